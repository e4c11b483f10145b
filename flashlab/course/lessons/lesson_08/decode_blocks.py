"""08.decode_blocks: how many blocks one attention launch has."""

import itertools

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    group, tiles = heads_q // heads_kv, set()
    for b, head, i in itertools.product(range(batch), range(heads_q), range(seqlen_q)):  # every query vector there is
        if pack_gqa:  # the query heads of one kv head are rows of the same tile
            tiles.add((b, head // group, (i * group + head % group) // block_m))
        else:
            tiles.add((b, head, i // block_m))
    return len(tiles)


def stub(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    """Blocks of one launch without splits: integers in, an integer out, no loop. Not every argument matters."""
    group = heads_q // heads_kv
    heads, queries = (heads_kv, seqlen_q * group) if pack_gqa else (heads_q, seqlen_q)
    return ...


def solution(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    """Blocks of one launch without splits: integers in, an integer out, no loop. Not every argument matters."""
    group = heads_q // heads_kv
    heads, queries = (heads_kv, seqlen_q * group) if pack_gqa else (heads_q, seqlen_q)
    return batch * heads * -(-queries // block_m)  # rounded up


def key_tiles_counted(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    rows = solution(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa)
    return rows * -(-seqlen_k // block_n)


def query_tiles_of_the_cache(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * (heads_kv if pack_gqa else heads_q) * -(-seqlen_k // block_m)


def rounded_down(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, queries = (heads_kv, seqlen_q * (heads_q // heads_kv)) if pack_gqa else (heads_q, seqlen_q)
    return batch * heads * (queries // block_m)


def always_one_more(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, queries = (heads_kv, seqlen_q * (heads_q // heads_kv)) if pack_gqa else (heads_q, seqlen_q)
    return batch * heads * (queries // block_m + 1)


def group_for_heads(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    group = heads_q // heads_kv
    return batch * group * -(-seqlen_q // block_m)


def fractions_of_tiles(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, queries = (heads_kv, seqlen_q * (heads_q // heads_kv)) if pack_gqa else (heads_q, seqlen_q)
    return batch * heads * queries / block_m


def one_block_per_query(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * (heads_kv if pack_gqa else heads_q) * seqlen_q


def query_heads_always(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * heads_q * -(-seqlen_q // block_m)


def packed_rows_forgotten(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * (heads_kv if pack_gqa else heads_q) * -(-seqlen_q // block_m)


def kv_heads_always(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * heads_kv * -(-seqlen_q * (heads_q // heads_kv) // block_m)


def _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa):
    return (heads_kv, seqlen_q * (heads_q // heads_kv)) if pack_gqa else (heads_q, seqlen_q)


def one_block_per_row(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, rows = _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa)
    return batch * heads * rows


def tiles_forgotten(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch * _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa)[0]


def all_rows_rounded_down(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, rows = _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa)
    return batch * heads * rows // block_m


def all_rows_rounded_up(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, rows = _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa)
    return -(-batch * heads * rows // block_m)


def sequences_in_one_tile(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    heads, rows = _heads_and_rows(heads_q, heads_kv, seqlen_q, pack_gqa)
    return heads * -(-batch * rows // block_m)


def layers_counted(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return layers * solution(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa)


def batch_alone(layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa):
    return batch


def _case(batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, pack_gqa, layers=32, block_n=64):
    label = (
        f"batch {batch}, {heads_q} query and {heads_kv} kv heads, {seqlen_q} queries, {seqlen_k} keys, "
        f"BLOCK_M {block_m}, {'packed' if pack_gqa else 'not packed'}"
    )
    return Case(label, (layers, batch, heads_q, heads_kv, seqlen_q, seqlen_k, block_m, block_n, pack_gqa))


def _by_query_head():
    return [_case(1, 32, 8, 1, 131072, 64, False), _case(3, 24, 8, 1, 500, 16, False)]


def _packed():
    return [_case(1, 32, 8, 1, 131072, 64, True), _case(3, 24, 8, 1, 500, 16, True)]


def _batch():
    return [_case(16, 32, 8, 1, 8192, 64, True), _case(16, 16, 16, 1, 8192, 64, True)]


def _many_rows():
    return [_case(1, 71, 1, 1, 2048, 64, True), _case(2, 32, 8, 5, 4096, 16, True)]


def _prefill():
    return [_case(1, 8, 2, 500, 500, 128, False), _case(1, 8, 2, 500, 500, 128, True)]


def _divides():
    return [_case(1, 4, 2, 256, 512, 128, False), _case(3, 16, 1, 1, 4096, 16, True)]


EXERCISE = Exercise(
    id="08.decode_blocks",
    title="The grid of a decode step",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "A block belongs to one tile of queries of one head of one sequence. So three numbers are multiplied: "
        "sequences, heads that have blocks of their own, tiles of queries in a head.",
        "The two lines above the dots give you heads and queries, packed or not. A single query still takes a whole "
        "tile.",
        "Rounding up in integers: -(-a // b). The keys do not appear: a block walks over all of them.",
    ),
    sub_checks=(
        SubCheck("one query, a block for each query head", cases=_by_query_head),
        SubCheck("one query, packed: a block for each kv head", cases=_packed),
        SubCheck("a batch", cases=_batch),
        SubCheck("more packed rows than BLOCK_M", cases=_many_rows),
        SubCheck("a prompt of 500 tokens, by the same formula", cases=_prefill),
        SubCheck("rows that fill their tiles exactly", cases=_divides),
    ),
    mistakes=(
        Mistake(
            key_tiles_counted,
            "The tiles of keys are counted as blocks. A block walks over the keys in a loop; tiles of keys are its "
            "steps, not its neighbours. (Making blocks of them is split-KV, the next lesson.)",
            "Does block_n stand in the grid of your kernels so far, or in their loop?",
        ),
        Mistake(
            query_tiles_of_the_cache,
            "Tiles of the whole sequence are counted, as in a prefill. A decode step has the queries of the new "
            "token alone.",
            "Which of the two lengths is cut by block_m: that of the queries or that of the cache?",
        ),
        Mistake(
            rounded_down,
            "The number of query tiles is rounded down. One query in tiles of 64 would then be no block at all.",
            "How many tiles does a single query need?",
        ),
        Mistake(
            always_one_more,
            "One tile too many where BLOCK_M divides the rows: // and + 1 is not rounding up.",
            "How many tiles of 128 are 256 queries?",
        ),
        Mistake(
            group_for_heads,
            "The group, heads_q / heads_kv, is counted in the place of heads. The group says how many rows a tile "
            "gains; blocks are counted by the heads that remain outside it.",
            "32 query heads on 8 kv heads: how many packed tiles are there, and how many rows has each?",
        ),
        Mistake(
            fractions_of_tiles,
            "A fraction of a tile is counted. A block with one row is launched, and walks over the keys, as a full "
            "one does.",
            "Does a block with 4 of its 64 rows in use leave out any key?",
        ),
        Mistake(
            one_block_per_query,
            "Each query token is a block of its own here. Up to block_m rows share one.",
            "What is block_m for?",
        ),
        Mistake(
            one_block_per_row,
            "Each row is a block of its own here. Up to block_m rows share one.",
            "What is block_m for?",
        ),
        Mistake(
            tiles_forgotten,
            "Every head is one block here, however many queries it has. That is right while they fit into one tile.",
            "500 queries in tiles of 128: how many blocks has a head?",
        ),
        Mistake(
            all_rows_rounded_down,
            "The rows of all heads are added up and then cut into tiles, rounded down. A tile belongs to one head, and its last "
            "one is a block however few rows it has.",
            "How many tiles does one head need? Round that up, then multiply.",
        ),
        Mistake(
            all_rows_rounded_up,
            "The rows of all heads and sequences are put into common tiles. A tile belongs to one head of one sequence: other "
            "heads have other keys.",
            "How many tiles does one head need? Round that up, then multiply.",
        ),
        Mistake(
            sequences_in_one_tile,
            "Rows of several sequences share a tile. Each sequence has keys of its own, and a block walks over one cache.",
            "Whose keys would such a block load?",
        ),
        Mistake(
            query_heads_always,
            "The query heads are counted in the packed launch too. Packing makes the query heads of a kv head rows "
            "of one tile, so that kv heads remain.",
            "Who has a block of its own when four query heads sit in one tile?",
        ),
        Mistake(
            packed_rows_forgotten,
            "The kv heads are right, but the rows they gained are forgotten: packed, a tile must hold group rows for "
            "each query token. With 71 query heads on one kv head a tile of 64 is not enough.",
            "How many rows does one query token bring along when its heads are packed?",
        ),
        Mistake(
            kv_heads_always,
            "The launch that does not pack is counted as if it did. Without packing each query head has its own "
            "blocks, and the heads of a group read the same keys side by side.",
            "What does pack_gqa=False change?",
        ),
        Mistake(
            layers_counted,
            "All layers are counted. Each layer is a launch of its own, and needs the one before it: they never "
            "share the GPU.",
            "Can layer 2 of a token start before layer 1 has ended?",
        ),
        Mistake(
            batch_alone,
            "The batch alone is counted: one block for a sequence. Heads are independent of each other and get "
            "blocks of their own, in every FlashAttention since the first.",
            "Does head 3 need anything from head 2?",
        ),
    ),
    keep="Blocks = batch x heads (kv heads, when packed) x ceil(queries / BLOCK_M). The cache's length is not in it.",
)
