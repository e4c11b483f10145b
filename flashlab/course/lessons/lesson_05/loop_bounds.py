"""05.loop_bounds: where a program's two loops over the keys begin and end, in keys."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    i = torch.arange(tile * block_m, min(tile * block_m + block_m, seqlen_q))[:, None]
    visible = torch.arange(seqlen_k) <= (i + seqlen_k - seqlen_q if causal else i + seqlen_k)
    stop = int(visible.any(dim=0).sum())  # beyond it no row of the tile sees a key
    full = int(visible.all(dim=0).sum()) // block_n * block_n  # up to it all rows see all keys, in whole tiles
    return full, stop


def stub(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    """For the program of query tile ``tile``: (full, stop), in keys.

    The first loop is range(0, full, block_n), without a mask. The second is range(full, stop, block_n), with one.
    """
    raise NotImplementedError


def solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    """For the program of query tile ``tile``: (full, stop), in keys.

    The first loop is range(0, full, block_n), without a mask. The second is range(full, stop, block_n), with one.
    """
    fewest = most = seqlen_k
    if causal:
        offset = seqlen_k - seqlen_q
        first_row = tile * block_m
        last_row = min(first_row + block_m, seqlen_q) - 1
        fewest = max(0, first_row + offset + 1)
        most = max(0, last_row + offset + 1)
    return fewest // block_n * block_n, most


def _bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal, offset=None, own=1, clamp=0, short=True):
    """The solution with parts of it turned wrong."""
    if not causal:
        return seqlen_k // block_n * block_n, seqlen_k
    offset = seqlen_k - seqlen_q if offset is None else offset
    end = min(tile * block_m + block_m, seqlen_q) if short else tile * block_m + block_m
    return max(clamp, tile * block_m + offset + own) // block_n * block_n, max(clamp, end - 1 + offset + own)


def aligned_top_left(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = _bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal, offset=0)
    return min(full, seqlen_k // block_n * block_n), min(stop, seqlen_k)


def full_by_the_last_row(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    _, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return stop // block_n * block_n, stop


def last_key_tile_without_a_mask(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return (full, stop) if causal else (-(-seqlen_k // block_n) * block_n, seqlen_k)


def rows_past_the_end(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    return _bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal, short=False)


def own_key_forgotten(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    return _bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal, own=0)


def full_one_key_short(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return (max(0, tile * block_m + seqlen_k - seqlen_q) // block_n * block_n if causal else full), stop


def stop_rounded_up(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return full, (-(-stop // block_n) * block_n if causal else stop)


def both_stops_rounded_up(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return full, -(-stop // block_n) * block_n


def below_zero(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    return _bounds(tile, block_m, block_n, seqlen_q, seqlen_k, causal, clamp=-(10**9))


def nothing_skipped(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    return solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)[0], seqlen_k


def in_tiles(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    full, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return full // block_n, -(-stop // block_n)


def full_in_the_middle_of_a_tile(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    _, stop = solution(tile, block_m, block_n, seqlen_q, seqlen_k, causal)
    return (max(0, tile * block_m + seqlen_k - seqlen_q + 1) if causal else seqlen_k), stop


def _case(tile, block_m, block_n, seqlen_q, seqlen_k, causal=True):
    kind = "causal" if causal else "full"
    label = f"tile {tile} of {seqlen_q} queries, {seqlen_k} keys, {kind}, {block_m} x {block_n}"
    return Case(label, (tile, block_m, block_n, seqlen_q, seqlen_k, causal))


def _no_mask():
    return [_case(0, 16, 16, 64, 64, False), _case(2, 16, 16, 64, 40, False), _case(0, 16, 32, 20, 100, False)]


def _square():
    return [_case(tile, 16, 16, 64, 64) for tile in range(4)]


def _unequal_tiles():
    return [_case(1, 32, 16, 128, 128), _case(3, 16, 32, 128, 128), _case(2, 16, 64, 128, 128)]


def _behind_a_cache():
    return [_case(0, 16, 16, 32, 96), _case(1, 16, 16, 32, 100), _case(0, 16, 32, 1, 100)]


def _whole_for_the_first_row():
    return [_case(0, 16, 16, 1, 64), _case(1, 16, 32, 17, 64)]


def _short_tile():
    return [_case(2, 16, 16, 40, 40), _case(1, 16, 16, 20, 50)]


def _more_queries():
    return [_case(tile, 16, 16, 64, 24) for tile in range(4)]


EXERCISE = Exercise(
    id="05.loop_bounds",
    title="Where the two loops end",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Row i sees i + seqlen_k - seqlen_q + 1 keys, the first ones, if it is causal; otherwise all seqlen_k. Never "
        "fewer than 0.",
        "stop is what the tile's last row sees: it sees the most. The last row is min(tile * block_m + block_m, "
        "seqlen_q) - 1.",
        "full is what the first row sees, which is the fewest, rounded down to a multiple of block_n.",
        "Without a mask every row sees seqlen_k keys. Round that down as well: a key tile that is cut by the end of K "
        "has columns that are no keys, and belongs in the masked loop.",
    ),
    sub_checks=(
        SubCheck("not causal: only the end of K is cut", cases=_no_mask),
        SubCheck("causal, square tiles, equal lengths", cases=_square),
        SubCheck("BLOCK_M and BLOCK_N differ", cases=_unequal_tiles),
        SubCheck("queries behind a cache: aligned at the bottom right", cases=_behind_a_cache),
        SubCheck("the first row sees whole tiles alone", cases=_whole_for_the_first_row),
        SubCheck("the last query tile is short", cases=_short_tile),
        SubCheck("more queries than keys: some tiles see nothing", cases=_more_queries),
    ),
    mistakes=(
        Mistake(
            aligned_top_left,
            "This is the diagonal drawn from the top left corner: query i sees keys 0 .. i. Behind a cache of 64 keys "
            "it would see its first keys only.",
            "The last query is the newest token. How many keys does it see when seqlen_k is larger than seqlen_q?",
        ),
        Mistake(
            full_by_the_last_row,
            "The loop without a mask runs past the diagonal: full was rounded down from what the last row sees, and the "
            "rows above it see less. They would look into the future.",
            "Which row of the tile sees the fewest keys?",
        ),
        Mistake(
            last_key_tile_without_a_mask,
            "The loop without a mask takes in the key tile that K ends in. Its last columns are no keys, but they score "
            "0, not -inf, and a score of 0 has a weight.",
            "seqlen_k = 40 and BLOCK_N = 16: how many of the three key tiles are whole?",
        ),
        Mistake(
            rows_past_the_end,
            "The last query tile is short, and stop was worked out for rows that do not exist: it lies past the end of "
            "K, and the loop visits a tile of nothing.",
            "Which is the last row of the tile that there really is?",
        ),
        Mistake(
            own_key_forgotten,
            "One key too few: a query sees its own position too.",
            "One query, one key: how many keys does it see?",
        ),
        Mistake(
            full_one_key_short,
            "full is one tile short where the first row sees exactly so many whole tiles: it sees its own key too. The "
            "answer of the attention would be right, and a whole tile pays for a mask.",
            "One query behind 63 cached keys, BLOCK_N = 16: how many of the 64 keys does it see?",
        ),
        Mistake(
            stop_rounded_up,
            "stop is rounded up to a whole tile. range(full, stop, block_n) visits a tile that stop lies inside of all the "
            "same; stop is the number of keys that the last row sees.",
            "Which tiles do range(0, 40, 16) and range(0, 48, 16) visit?",
        ),
        Mistake(
            both_stops_rounded_up,
            "stop is rounded up to a whole tile. range(full, stop, block_n) visits a tile that stop lies inside of all the "
            "same; stop is the number of keys that the last row sees, never more than seqlen_k.",
            "Which tiles do range(0, 40, 16) and range(0, 48, 16) visit?",
        ),
        Mistake(
            below_zero,
            "A bound is negative. A row that sees nothing sees 0 keys. (In Triton // rounds a negative number towards "
            "zero, in Python away from it: one more reason not to have any.)",
            "How many keys does the first of 64 queries see when there are 24 keys?",
        ),
        Mistake(
            nothing_skipped,
            "stop is the end of K: the answer of the attention would be right, but nothing is skipped. Half of the work "
            "of a square causal problem is thrown away.",
            "Which is the last key that the tile's last row sees?",
        ),
        Mistake(
            in_tiles,
            "These are numbers of tiles, as in lesson 03. The loops here count in keys: range(0, full, block_n).",
            "What is the step of the two loops?",
        ),
        Mistake(
            full_in_the_middle_of_a_tile,
            "full is no multiple of block_n. The first loop's last tile would begin before full and end after it.",
            "Where does the last tile of range(0, 20, 16) end?",
        ),
    ),
    keep="The first row says how far no mask is needed, rounded down; the last row says where to stop.",
)
