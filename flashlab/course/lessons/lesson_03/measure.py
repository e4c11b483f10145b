"""The two loop orders timed on a GPU: what recorded.py holds, and what the notebook adds for your own GPU.

Plain kernels, alike but for the order of the loops, so that the difference is the order's. The package's are faster.
``python -m flashlab.course.lessons.lesson_03.measure`` prints the record.
"""

import torch

from flashlab.course.lessons.lesson_01.measure import microseconds

SHAPES = ((8 * 32, 4096), (16, 16384), (2, 16384))  # (batch * heads, seqlen), head_dim 128
HEAD_DIM = 128


def kernels():
    """(keys outside, queries outside). q, k, v, o: (heads, seqlen, head_dim), contiguous; the blocks divide seqlen."""
    import triton
    import triton.language as tl

    @triton.jit
    def step(b_q, b_k, b_v, m, l, acc, scale):
        b_s = tl.dot(b_q, tl.trans(b_k)) * scale
        m_new = tl.maximum(m, tl.max(b_s, 1))
        rescale = tl.exp2(m - m_new)
        b_p = tl.exp2(b_s - m_new[:, None])
        l = l * rescale + tl.sum(b_p, 1)
        acc = acc * rescale[:, None] + tl.dot(b_p.to(b_v.dtype), b_v)
        return m_new, l, acc

    @triton.jit
    def keys_outside(p_q, p_k, p_v, p_o, p_m, p_l, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
        """One program a head. o waits in HBM in bf16, divided; m and l in float32. They come as 0, -inf and 0."""
        head = tl.program_id(0).to(tl.int64)
        cols = tl.arange(0, D)
        for start_n in range(0, n, BN):
            keys = (head * n + start_n + tl.arange(0, BN))[:, None] * D + cols
            b_k, b_v = tl.load(p_k + keys), tl.load(p_v + keys)
            for start_m in range(0, n, BM):
                rows = head * n + start_m + tl.arange(0, BM)
                tile = rows[:, None] * D + cols
                m, l = tl.load(p_m + rows), tl.load(p_l + rows)
                acc = tl.load(p_o + tile).to(tl.float32) * l[:, None]
                m, l, acc = step(tl.load(p_q + tile), b_k, b_v, m, l, acc, scale)
                tl.store(p_o + tile, (acc / l[:, None]).to(p_o.dtype.element_ty))
                tl.store(p_m + rows, m)
                tl.store(p_l + rows, l)
            tl.debug_barrier()

    @triton.jit
    def queries_outside(p_q, p_k, p_v, p_o, p_m, p_l, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
        """One program a query tile."""
        head = tl.program_id(1).to(tl.int64)
        cols = tl.arange(0, D)
        rows = head * n + tl.program_id(0) * BM + tl.arange(0, BM)
        tile = rows[:, None] * D + cols
        b_q = tl.load(p_q + tile)
        m = tl.full((BM,), float("-inf"), tl.float32)
        l = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, D), tl.float32)
        for start_n in range(0, n, BN):
            keys = (head * n + start_n + tl.arange(0, BN))[:, None] * D + cols
            m, l, acc = step(b_q, tl.load(p_k + keys), tl.load(p_v + keys), m, l, acc, scale)
        tl.store(p_o + tile, (acc / l[:, None]).to(p_o.dtype.element_ty))
        tl.store(p_m + rows, m)
        tl.store(p_l + rows, l)

    return keys_outside, queries_outside


def loop_orders_us(heads: int, seqlen: int, block_m: int = 128, block_n: int = 64, warps: int = 4) -> dict[str, float]:
    """Microseconds of both orders. Raises AssertionError where one of them is wrong."""
    keys_outside, queries_outside = kernels()
    q, k, v = (torch.randn(heads, seqlen, HEAD_DIM, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    o, m, l = torch.empty_like(q), *(torch.empty(heads, seqlen, device="cuda") for _ in range(2))
    scale = HEAD_DIM**-0.5 * 1.4426950408889634
    times = {}
    for name, kernel, grid in (
        ("keys outside", keys_outside, (heads,)),
        ("queries outside", queries_outside, (seqlen // block_m, heads)),
    ):

        def launch(kernel=kernel, grid=grid):
            kernel[grid](q, k, v, o, m, l, seqlen, scale, HEAD_DIM, block_m, block_n, num_warps=warps, num_stages=2)

        o.zero_(), l.zero_(), m.fill_(float("-inf"))
        launch()
        torch.testing.assert_close(o, expected, rtol=3e-2, atol=3e-3)
        times[name] = microseconds(launch)
    return times


if __name__ == "__main__":
    import triton

    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    for shape in SHAPES:
        print(shape, {name: round(us, 1) for name, us in loop_orders_us(*shape).items()}, flush=True)
