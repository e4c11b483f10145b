"""Softmax in three passes and in two on a GPU: what recorded.py holds, and what the notebook adds for your own GPU.

One program a row, 4096 numbers at a time. ``python -m flashlab.course.lessons.lesson_02.measure`` prints the record.
"""

import torch

from flashlab.course.lessons.lesson_01.measure import microseconds

SHAPES = ((8192, 32768), (256, 1048576))  # 2^28 float32 numbers each, 1.07 GB
BLOCK = 4096


def softmax_us(rows: int, columns: int) -> dict[str, float]:
    """Microseconds of both kernels, and of torch.softmax. Raises AssertionError where one of them is wrong."""
    import triton
    import triton.language as tl

    @triton.jit
    def three_passes(p_x, p_y, n, BLOCK: tl.constexpr):
        p_x += tl.program_id(0).to(tl.int64) * n
        p_y += tl.program_id(0).to(tl.int64) * n
        lane = tl.arange(0, BLOCK)
        m = tl.full((BLOCK,), float("-inf"), tl.float32)
        for start in range(0, n, BLOCK):
            m = tl.maximum(m, tl.load(p_x + start + lane))
        m = tl.max(m, 0)
        l = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            l += tl.exp(tl.load(p_x + start + lane) - m)
        l = tl.sum(l, 0)
        for start in range(0, n, BLOCK):
            tl.store(p_y + start + lane, tl.exp(tl.load(p_x + start + lane) - m) / l)

    @triton.jit
    def two_passes(p_x, p_y, n, BLOCK: tl.constexpr):
        p_x += tl.program_id(0).to(tl.int64) * n
        p_y += tl.program_id(0).to(tl.int64) * n
        lane = tl.arange(0, BLOCK)
        m = tl.full((), float("-inf"), tl.float32)
        l = tl.zeros((), tl.float32)
        for start in range(0, n, BLOCK):
            b_x = tl.load(p_x + start + lane)
            m_new = tl.maximum(m, tl.max(b_x, 0))
            l = l * tl.exp(m - m_new) + tl.sum(tl.exp(b_x - m_new), 0)
            m = m_new
        for start in range(0, n, BLOCK):
            tl.store(p_y + start + lane, tl.exp(tl.load(p_x + start + lane) - m) / l)

    x = torch.randn(rows, columns, device="cuda")
    y, expected = torch.empty_like(x), torch.softmax(x, dim=1)
    times = {"torch": microseconds(lambda: torch.softmax(x, dim=1, out=y))}
    for name, kernel in (("three passes", three_passes), ("two passes", two_passes)):
        launch = lambda kernel=kernel: kernel[(rows,)](x, y, columns, BLOCK=BLOCK, num_warps=8)
        times[name] = microseconds(launch)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=0)
    return times


if __name__ == "__main__":
    import triton

    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    for shape in SHAPES:
        print(shape, {name: round(us, 1) for name, us in softmax_us(*shape).items()}, flush=True)
