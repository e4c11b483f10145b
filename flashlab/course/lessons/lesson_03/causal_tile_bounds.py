"""03.causal_tile_bounds: which key tiles a causal query tile needs, and which of them need no mask."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(start_m, block_m, block_n, seqlen_q, seqlen_k):
    i = torch.arange(start_m, min(start_m + block_m, seqlen_q))[:, None]
    visible = torch.arange(seqlen_k) <= i + seqlen_k - seqlen_q  # the last query sees the last key
    tiles = visible.split(block_n, dim=1)
    full = sum(bool(tile.all()) and tile.shape[1] == block_n for tile in tiles)
    end = sum(bool(tile.any()) for tile in tiles)
    return full, end


def stub(start_m, block_m, block_n, seqlen_q, seqlen_k):
    """For the query tile that starts at start_m: (full, end), two integers, no loop.

    Key tiles 0 .. full-1 are seen whole by every row: no mask. Tiles full .. end-1 need one. The others are skipped.
    """
    raise NotImplementedError


def solution(start_m, block_m, block_n, seqlen_q, seqlen_k):
    """For the query tile that starts at start_m: (full, end), two integers, no loop.

    Key tiles 0 .. full-1 are seen whole by every row: no mask. Tiles full .. end-1 need one. The others are skipped.
    """
    offset = seqlen_k - seqlen_q
    seen_by_first = max(0, start_m + offset + 1)  # how many keys the tile's first row sees: the fewest
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset)  # and its last row: the most
    return seen_by_first // block_n, -(-seen_by_last // block_n)


def aligned_top_left(start_m, block_m, block_n, seqlen_q, seqlen_k):
    seen_by_first = min(start_m + 1, seqlen_k)
    seen_by_last = min(start_m + block_m, seqlen_q, seqlen_k)
    return seen_by_first // block_n, -(-seen_by_last // block_n)


def diagonal_tile_dropped(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset)
    return max(0, start_m + offset + 1) // block_n, seen_by_last // block_n


def full_by_the_last_row(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset)
    return seen_by_last // block_n, -(-seen_by_last // block_n)


def rows_past_the_end(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    return max(0, start_m + offset + 1) // block_n, -(-max(0, start_m + block_m + offset) // block_n)


def below_zero(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    return (start_m + offset + 1) // block_n, -(-(min(start_m + block_m, seqlen_q) + offset) // block_n)


def own_key_forgotten(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset - 1)
    return max(0, start_m + offset) // block_n, -(-seen_by_last // block_n)


def own_key_forgotten_in_full(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset)
    return max(0, start_m + offset) // block_n, -(-seen_by_last // block_n)


def own_key_forgotten_in_end(start_m, block_m, block_n, seqlen_q, seqlen_k):
    offset = seqlen_k - seqlen_q
    seen_by_last = max(0, min(start_m + block_m, seqlen_q) + offset - 1)
    return max(0, start_m + offset + 1) // block_n, -(-seen_by_last // block_n)


def nothing_skipped(start_m, block_m, block_n, seqlen_q, seqlen_k):
    full = max(0, start_m + seqlen_k - seqlen_q + 1) // block_n
    return full, -(-seqlen_k // block_n)


def _case(start_m, block_m, block_n, seqlen_q, seqlen_k):
    last = min(start_m + block_m, seqlen_q) - 1
    label = f"queries {start_m} to {last} of {seqlen_q}, {seqlen_k} keys, BLOCK_N = {block_n}"
    return Case(label, (start_m, block_m, block_n, seqlen_q, seqlen_k))


def _square():
    return [_case(start, 4, 4, 16, 16) for start in (0, 4, 12)]


def _unequal_tiles():
    return [_case(*args) for args in ((8, 8, 4, 32, 32), (4, 4, 8, 32, 32), (6, 3, 2, 32, 32))]


def _one_key_wide():
    return [_case(start, 1, 1, 8, 8) for start in (0, 5)]


def _longer_keys():
    return [_case(*args) for args in ((0, 4, 4, 8, 24), (4, 4, 4, 8, 24), (0, 1, 8, 1, 100))]


def _ragged():
    return [_case(*args) for args in ((16, 8, 4, 18, 18), (8, 8, 8, 12, 19))]


def _more_queries_than_keys():
    return [_case(*args) for args in ((0, 4, 4, 16, 6), (8, 4, 4, 16, 6), (12, 4, 4, 16, 6))]


EXERCISE = Exercise(
    id="03.causal_tile_bounds",
    title="Which key tiles a causal query tile needs",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Ask it of single rows first. Query i sees keys 0 .. i + seqlen_k - seqlen_q: that is i + seqlen_k - seqlen_q "
        "+ 1 of them, or none where this is negative.",
        "end is decided by the tile's last row, which sees the most: all tiles that its keys reach into, so round up. "
        "full is decided by the first row, which sees the fewest: whole tiles only, so round down.",
        "The last row of the tile is min(start_m + block_m, seqlen_q) - 1: the last query tile may be short.",
        "Clamp both counts with max(0, ...) before dividing: with more queries than keys the first rows see nothing.",
    ),
    sub_checks=(
        SubCheck("square tiles, equal lengths", cases=_square),
        SubCheck("BLOCK_M and BLOCK_N differ", cases=_unequal_tiles),
        SubCheck("a tile of one row and one key", cases=_one_key_wide),
        SubCheck("more keys than queries: aligned at the bottom right", cases=_longer_keys),
        SubCheck("the last query tile is short", cases=_ragged),
        SubCheck("more queries than keys: some rows see nothing", cases=_more_queries_than_keys),
    ),
    mistakes=(
        Mistake(
            aligned_top_left,
            "This is the diagonal drawn from the top left corner: query i sees keys 0 .. i. With a cache in front of "
            "the queries almost all of it would be invisible.",
            "The last query is the newest token. Which key is at its own position, when seqlen_k is larger than "
            "seqlen_q?",
        ),
        Mistake(
            diagonal_tile_dropped,
            "end is rounded down: the tile that the diagonal ends in is skipped, although its first keys are seen.",
            "The last row of the tile sees 13 keys and BLOCK_N is 4. How many tiles must be visited?",
        ),
        Mistake(
            full_by_the_last_row,
            "full counts what the last row sees whole. The rows above it see less: their part of the diagonal tiles "
            "would go unmasked, and they would look into the future.",
            "Which row of a query tile sees the fewest keys?",
        ),
        Mistake(
            rows_past_the_end,
            "The last query tile is short, and end was worked out for rows that do not exist: it visits too many "
            "tiles, past the end of K.",
            "Which is the last real row of the tile?",
        ),
        Mistake(
            below_zero,
            "The counts became negative. A row that sees nothing sees 0 keys.",
            "How many keys does the first of 16 queries see when there are 6 keys?",
        ),
        Mistake(
            own_key_forgotten,
            "One key too few: a query sees its own position too.",
            "With 1 query and 1 key, how many keys does it see?",
        ),
        Mistake(
            own_key_forgotten_in_full,
            "full is worked out from one key too few: the first row sees its own position too. The answer of the "
            "attention would still be right, with a mask where none is needed.",
            "Query 0 of 8, with 8 keys: how many keys does it see?",
        ),
        Mistake(
            own_key_forgotten_in_end,
            "end is worked out from one key too few: the last row sees its own position too.",
            "Query 7 of 8, with 8 keys: how many keys does it see?",
        ),
        Mistake(
            nothing_skipped,
            "end is the number of all key tiles: the answer of the attention would be right, but nothing is skipped, "
            "and half of the work of a square causal problem is thrown away.",
            "Which is the last key that the last row of the tile sees?",
        ),
    ),
    keep="The last row decides where to stop (round up), the first row decides where the mask begins (round down).",
)
