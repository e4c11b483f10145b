"""03.k_bytes_read: how often the tiled loops read K, as a formula."""

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    total = 0
    for _start_m in range(0, seqlen_q, block_m):  # FlashAttention-2: queries outside
        for start_n in range(0, seqlen_k, block_n):  # every key tile is loaded, the last one as short as it is
            total += min(block_n, seqlen_k - start_n) * head_dim * element_bytes
    return total


def stub(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    """Bytes of K that one head's FlashAttention-2 loops load. Integers in, an integer out, no loop."""
    raise NotImplementedError


def solution(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    """Bytes of K that one head's FlashAttention-2 loops load. Integers in, an integer out, no loop."""
    query_tiles = -(-seqlen_q // block_m)  # rounded up
    return query_tiles * seqlen_k * head_dim * element_bytes


def read_once(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return seqlen_k * head_dim * element_bytes


def query_tiles_rounded_down(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return seqlen_q // block_m * seqlen_k * head_dim * element_bytes


def fractions_of_tiles(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return seqlen_q / block_m * seqlen_k * head_dim * element_bytes


def once_per_key_tile(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return -(-seqlen_k // block_n) * seqlen_k * head_dim * element_bytes


def once_per_query(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return seqlen_q * seqlen_k * head_dim * element_bytes


def padding_counted(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return -(-seqlen_q // block_m) * -(-seqlen_k // block_n) * block_n * head_dim * element_bytes


def v_counted_too(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    return 2 * solution(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes)


def _case(seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes):
    label = (
        f"{seqlen_q} queries, {seqlen_k} keys, head_dim {head_dim}, tiles of {block_m} x {block_n}, {element_bytes} B"
    )
    return Case(label, (seqlen_q, seqlen_k, head_dim, block_m, block_n, element_bytes))


def _one_query_tile():
    return [_case(128, 1024, 64, 128, 64, 2)]


def _prefill():
    return [_case(4096, 4096, 128, 128, 64, 2), _case(4096, 1024, 128, 64, 64, 4)]


def _ragged_queries():
    return [_case(1000, 512, 64, 128, 64, 2)]


def _ragged_keys():
    return [_case(512, 1000, 64, 128, 64, 2)]


def _decode():
    return [_case(1, 131072, 128, 64, 128, 2)]


EXERCISE = Exercise(
    id="03.k_bytes_read",
    title="How often K is read",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "The inner loop of the spec adds up to something simple: all tiles together are K, once. How many bytes is "
        "that?",
        "The outer loop repeats it, once per query tile. How many query tiles are there when the last one is short?",
        "Rounding up in integers: -(-a // b), or (a + b - 1) // b.",
    ),
    sub_checks=(
        SubCheck("one query tile reads K once", cases=_one_query_tile),
        SubCheck("a prompt of 4096", cases=_prefill),
        SubCheck("the last query tile is short", cases=_ragged_queries),
        SubCheck("the last key tile is short", cases=_ragged_keys),
        SubCheck("one query against a long cache", cases=_decode),
    ),
    mistakes=(
        Mistake(
            read_once,
            "This is K, once. Each query tile is on its own and walks over all of K again.",
            "What does the outer loop of the spec repeat?",
        ),
        Mistake(
            query_tiles_rounded_down,
            "The number of query tiles is rounded down: the short tile at the end reads K too, and with a single query "
            "nothing would be read at all.",
            "How many tiles are 1000 queries in tiles of 128?",
        ),
        Mistake(
            fractions_of_tiles,
            "A fraction of a query tile is counted. A short tile of queries reads all of K, just as a full one does.",
            "Does a tile with 104 rows instead of 128 read fewer keys?",
        ),
        Mistake(
            once_per_key_tile,
            "K is counted once per key tile. Key tiles are the pieces K is read in; how often it is read depends on "
            "the query tiles.",
            "Does block_n change the total of the spec?",
        ),
        Mistake(
            once_per_query,
            "K is counted once per query. That is what a loop over single queries would read: the tile exists so that "
            "block_m queries share one reading.",
            "How many query rows use a key tile while it is in SRAM?",
        ),
        Mistake(
            padding_counted,
            "The short key tile at the end is counted as a full one. What lies past the end of K is not loaded.",
            "How many keys does the last tile of the spec's inner loop hold?",
        ),
        Mistake(
            v_counted_too,
            "Twice too much: this is K and V together.",
            "Which of the two does the question ask for?",
        ),
    ),
    keep="Bytes of K = ceil(seqlen_q / BLOCK_M) * K. BLOCK_M decides the traffic; BLOCK_N does not appear.",
)
