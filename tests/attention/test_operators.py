"""What PyTorch asks of an operator: gradients in float64, fakes, compilation, autocast, transforms, CUDA graphs."""

import pytest
import torch
from torch.library import opcheck

from flashlab import flash_attn_func, flash_attn_varlen_func
from flashlab.attention.prefill import _prefill, _prefill_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


def qkv(seqlen_q=5, seqlen_k=7, heads=(2, 1), head_dim=8, dtype=torch.float32, grad=True, batch=1):
    torch.manual_seed(seqlen_q)
    shapes = (seqlen_q, heads[0]), (seqlen_k, heads[1]), (seqlen_k, heads[1])
    return [torch.randn(batch, *shape, head_dim, device=DEVICE).to(dtype).requires_grad_(grad) for shape in shapes]


@pytest.mark.skipif(ON_GPU, reason="float64 runs in the interpreter only")
@pytest.mark.parametrize(
    "options",
    [dict(), dict(causal=True), dict(window_size=(2, 1)), dict(softcap=2.0), dict(softcap=1.5, causal=True, slopes=True)],
    ids=str,
)
def test_gradients_are_those_of_the_function(options):
    """Of out and of the LSE, by finite differences."""
    options = dict(options)
    if options.pop("slopes", False):
        options["alibi_slopes"] = torch.tensor([0.3, 0.7])

    def function(q, k, v):
        out, lse, _ = flash_attn_func(q, k, v, **options, return_attn_probs=True)
        return out, lse

    torch.autograd.gradcheck(function, qkv(3, 4, head_dim=2, dtype=torch.float64))


@pytest.mark.skipif(ON_GPU, reason="float64 runs in the interpreter only")
def test_gradients_of_packed_sequences():
    q, k, v = (x[0].detach().requires_grad_() for x in qkv(4, 4, head_dim=2, dtype=torch.float64))
    cu_q, cu_k = (torch.tensor(cu, dtype=torch.int32) for cu in ([0, 1, 1, 4], [0, 3, 4, 4]))
    torch.autograd.gradcheck(lambda *x: flash_attn_varlen_func(*x, cu_q, cu_k, 3, 3, causal=True), (q, k, v))


@pytest.mark.parametrize("kind", ["padded", "packed", "paged"])
def test_opcheck(kind):
    numbers = 7, 9, 0.3, -1, 0, 0.0
    cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=DEVICE)
    if kind == "padded":
        q, k, v = qkv(7, 9)
        tensors = None, None, torch.ones(2, device=DEVICE), None
    else:
        q, k, v = (x[0].detach().requires_grad_(kind == "packed") for x in qkv(7, 7))
        tensors = cu, cu, None, None
    if kind == "paged":
        k = v = torch.randn(3, 16, 1, 8, device=DEVICE)
        tensors = cu, cu, None, torch.tensor([[2], [0]], dtype=torch.int32, device=DEVICE)
    opcheck(_prefill, (q, k, v, *tensors, *numbers))


@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck_of_the_backward(transposed):
    """The fake gives the strides of the real gradients, whatever the inputs' are."""
    q, k, v = (x.detach() for x in qkv(7, 9))
    if transposed:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    numbers = 7, 9, 0.3, -1, 0, 0.0
    out, lse = _prefill(q, k, v, None, None, None, None, *numbers)
    opcheck(_prefill, (q, k, v, None, None, None, None, *numbers))
    opcheck(_prefill_backward, (out, lse, q, k, v, out, lse, None, None, None, *numbers))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(dynamic):
    def model(q, k, v):
        out, lse, _ = flash_attn_func(q * 2, k, v, causal=True, return_attn_probs=True)
        return (out * 3).sum() + lse.sum()

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="inductor" if ON_GPU else "aot_eager")
    for seqlen in (5, 9, 6):
        one, other = qkv(seqlen, 9, grad=True), qkv(seqlen, 9, grad=True)
        expected, got = model(*one), compiled(*other)
        torch.testing.assert_close(got, expected)
        for mine, theirs in zip(torch.autograd.grad(expected, one), torch.autograd.grad(got, other), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_compile_packed_sequences():
    q, k, v = (x[0] for x in qkv(7, 7))
    cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=DEVICE)
    compiled = torch.compile(
        lambda *x: flash_attn_varlen_func(*x, cu, cu, 4, 4, window_size=(2, 2)), fullgraph=True,
        backend="inductor" if ON_GPU else "aot_eager",
    )  # fmt: skip
    torch.testing.assert_close(
        compiled(q, k, v), flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, window_size=(2, 2))
    )


def test_the_operator_and_the_short_cut_agree():
    """Eager tensors skip the dispatcher; bits and gradients are the same with it."""
    numbers = 5, 7, 8**-0.5, -1, 0, 0.0
    one, other = qkv(), qkv()
    direct = flash_attn_func(*one, causal=True)
    through, _ = _prefill(*other, None, None, None, None, *numbers)
    assert torch.equal(direct, through)
    direct.square().sum().backward()
    through.square().sum().backward()
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in zip(one, other, strict=True))


def test_gradient_of_the_lse_alone():
    q, k, v = qkv()
    _, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    lse.sum().backward()
    assert (v.grad == 0).all() and (q.grad != 0).any()


def test_second_derivatives_raise():
    q, k, v = qkv()
    (gradient,) = torch.autograd.grad(flash_attn_func(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = qkv()
    with torch.autocast(DEVICE, dtype=dtype):
        out = flash_attn_func(q, k, v)
    assert out.dtype is dtype
    out.sum().backward()
    assert all(x.grad.dtype is torch.float32 for x in (q, k, v))


def test_function_transforms_raise():
    """torch.library's gradients know no torch.func: it says so rather than give a wrong answer."""
    q, k, v = qkv(grad=False)
    with pytest.raises(RuntimeError, match="setup_context|functorch"):
        torch.func.grad(lambda q: flash_attn_func(q, k, v).square().sum())(q)


def test_fake_tensors_have_the_real_strides():
    from torch._subclasses import FakeTensorMode

    real = flash_attn_func(*qkv(grad=False), return_attn_probs=True)[:2]
    with FakeTensorMode():
        fake = flash_attn_func(*(torch.empty_like(x, device=DEVICE) for x in map(torch.Tensor.detach, qkv())),
                               return_attn_probs=True)[:2]  # fmt: skip
    assert [(x.shape, x.stride(), x.dtype) for x in real] == [(x.shape, x.stride(), x.dtype) for x in fake]


@needs_gpu
@pytest.mark.gpu
def test_cuda_graph_of_forward_and_backward():
    q, k, v = qkv(300, 300, (4, 2), 64, torch.bfloat16)
    step = lambda: torch.autograd.grad(flash_attn_func(q, k, v, causal=True).float().square().sum(), (q, k, v))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in (q, k, v):
            x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(captured, step(), strict=True))


@needs_gpu
@pytest.mark.gpu
def test_a_new_length_compiles_nothing():
    from flashlab.kernels.backward import dkdv_kernel, dq_kernel
    from flashlab.kernels.forward import forward_kernel

    variants = lambda: [
        len(cache[0]) for kernel in (forward_kernel, dkdv_kernel, dq_kernel) for cache in kernel.device_caches.values()
    ]
    run = lambda seqlen: flash_attn_func(*qkv(seqlen, seqlen, (4, 2), 64, torch.bfloat16), causal=True).sum().backward()
    run(1000)
    before = variants()
    for seqlen in (999, 1001, 1024, 1536, 2047):
        run(seqlen)
    assert variants() == before
