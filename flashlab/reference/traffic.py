"""What the loops of flashlab.reference.tiled must move, in closed form: the count, exactly, without running anything.

With N queries and keys of width d, in elements, and blocks that divide N:

    naive               4 N d + 4 N^2                    Q, K, V, O once; S and P written and read
    FlashAttention-1    2 N d + 3 N d * N / block_n      K, V once; Q and O in, O out for every key tile (+ m, l)
    FlashAttention-2    2 N d + 2 N d * N / block_m      Q, O once; K and V for every query tile (+ lse)

FlashAttention-1 with the paper's blocks, block_n = M / 4d for an SRAM of M elements, moves 12 N^2 d^2 / M to leading
order: theorem 2 of arXiv 2205.14135 says Theta(N^2 d^2 / M). The functions below are exact for any lengths and blocks.
All sizes are counts of elements; results are bytes.
"""

import math

from flashlab.reference.memory import STATISTIC_BYTES, Traffic


def naive(seqlen_q: int, seqlen_k: int, head_dim: int, *, element_bytes: int = 2) -> Traffic:
    """Three launches, each matrix moved once a launch. A causal mask saves nothing: the whole of S is made."""
    rows, keys = (element_bytes * head_dim * n for n in (seqlen_q, seqlen_k))
    scores = element_bytes * seqlen_q * seqlen_k
    return Traffic({"q": rows, "k": keys, "v": keys, "s": scores, "p": scores}, {"s": scores, "p": scores, "o": rows})


def flash_attention_1(
    seqlen_q: int, seqlen_k: int, head_dim: int, block_m: int, block_n: int, *, causal=False, element_bytes: int = 2
) -> Traffic:
    """K and V once; Q, O, m and l once for every key tile that sees them, and O, m and l once more to begin with."""
    passes = sum(_queries_seeing(j, seqlen_q, seqlen_k, block_m, causal) for j in range(0, seqlen_k, block_n))
    row, statistic = element_bytes * head_dim, STATISTIC_BYTES
    reads = {"k": row * seqlen_k, "v": row * seqlen_k, "q": row * passes, "o": row * passes}
    reads |= {"m": statistic * passes, "l": statistic * passes}
    stored = passes + seqlen_q
    return _traffic(reads, {"o": row * stored, "m": statistic * stored, "l": statistic * stored})


def flash_attention_2(
    seqlen_q: int, seqlen_k: int, head_dim: int, block_m: int, block_n: int, *, causal=False, element_bytes: int = 2
) -> Traffic:
    """Q, O and lse once; K and V once for every query tile, as far as that tile sees."""
    keys = sum(_keys_seen(i, seqlen_q, seqlen_k, block_m, block_n, causal) for i in range(0, seqlen_q, block_m))
    row = element_bytes * head_dim
    return _traffic(
        {"q": row * seqlen_q, "k": row * keys, "v": row * keys},
        {"o": row * seqlen_q, "lse": STATISTIC_BYTES * seqlen_q},
    )


def split_kv(
    seqlen_q: int, seqlen_k: int, head_dim: int, block_m: int, block_n: int, num_splits: int,
    *, causal=False, element_bytes: int = 2,
) -> Traffic:  # fmt: skip
    """FlashAttention-2's K and V; Q once for every split that sees a key; a float32 partial a split, out and back."""
    per_split = math.ceil(math.ceil(seqlen_k / block_n) / num_splits) * block_n
    keys = queries = 0
    for i in range(0, seqlen_q, block_m):
        seen = _keys_seen(i, seqlen_q, seqlen_k, block_m, block_n, causal)
        keys += seen
        queries += min(block_m, seqlen_q - i) * (math.ceil(seen / per_split) if seen else 0)
    row, statistic = element_bytes * head_dim, STATISTIC_BYTES
    partial_rows = num_splits * seqlen_q
    partials = {"o_partial": statistic * head_dim * partial_rows, "lse_partial": statistic * partial_rows}
    return _traffic(
        {"q": row * queries, "k": row * keys, "v": row * keys, **partials},
        {"o": row * seqlen_q, "lse": statistic * seqlen_q, **partials},
    )


def paper_blocks(head_dim: int, sram_elements: int) -> tuple[int, int]:
    """(block_m, block_n) as algorithm 1 of arXiv 2205.14135 picks them: block_n = ceil(M / 4d), block_m at most d."""
    block_n = math.ceil(sram_elements / (4 * head_dim))
    return min(block_n, head_dim), block_n


def theorem_2(seqlen: int, head_dim: int, sram_elements: int) -> float:
    """N^2 d^2 / M elements: FlashAttention's HBM accesses are a constant times this, for d <= M <= N d."""
    return seqlen**2 * head_dim**2 / sram_elements


def _keys_seen(first_query, seqlen_q, seqlen_k, block_m, block_n, causal):
    """How many keys the query tile that starts there loads: whole tiles up to the diagonal of its last query."""
    if not causal:
        return seqlen_k
    diagonal = min(first_query + block_m, seqlen_q) - 1 + seqlen_k - seqlen_q
    return min(seqlen_k, max(0, math.ceil((diagonal + 1) / block_n) * block_n))


def _queries_seeing(first_key, seqlen_q, seqlen_k, block_m, causal):
    """How many queries load the key tile that starts there: whole tiles from the one whose diagonal reaches it."""
    first_query = max(0, first_key - (seqlen_k - seqlen_q)) if causal else 0
    return max(0, seqlen_q - first_query // block_m * block_m)


def _traffic(reads, writes):
    return Traffic({kind: n for kind, n in reads.items() if n}, {kind: n for kind, n in writes.items() if n})
