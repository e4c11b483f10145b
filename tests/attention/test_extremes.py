"""Inputs that break attention kernels: large logits, empty rows and batches, gradients without strides, NaN beside the data."""

import pytest
import torch

from flashlab import flash_attn_func


def ours(**options):
    return lambda q, k, v: flash_attn_func(q, k, v, **options, return_attn_probs=True)[:2]


def oracle(bench, **options):
    return lambda q, k, v, dtype: bench.attention(q, k, v, **options, dtype=dtype)


def inputs(bench, seqlen_q, seqlen_k, heads=(2, 1), head_dim=32, dtype=torch.float16, factors=(1.0, 1.0)):
    generator = torch.Generator().manual_seed(seqlen_q * 1000 + seqlen_k)
    q = bench.poisoned((1, seqlen_q, heads[0], head_dim), dtype, generator, factor=factors[0])
    k = bench.poisoned((1, seqlen_k, heads[1], head_dim), dtype, generator, factor=factors[1])
    return q, k, bench.poisoned((1, seqlen_k, heads[1], head_dim), dtype, generator)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(20, 3)), dict(softcap=15.0)], ids=str)
def test_large_inputs(bench, options):
    q, k, v = inputs(bench, 100, 130, factors=(5.0, 3.0))
    bench.compare(ours(**options), oracle(bench, **options), q, k, v, softcap=options.get("softcap", 0.0))


def test_softcap_does_not_overflow(bench):
    """Scores of 4400 to 1e4 either way under a cap of 50: a quotient of exponentials would be inf / inf."""
    k = torch.zeros(1, 6, 1, 16, device=bench.DEVICE)
    k[0, :, 0, 0] = torch.tensor([4400.0, 5000.0, 1e4, -1e4, 0.0, 30.0])
    q = torch.zeros(1, 3, 1, 16, device=bench.DEVICE)
    q[..., 0] = torch.tensor([1.0, -1.0, 0.5])[None, :, None]
    v = torch.randn(1, 6, 1, 16, generator=torch.Generator().manual_seed(0)).to(bench.DEVICE)
    options = dict(softcap=50.0, softmax_scale=1.0)
    bench.compare(ours(**options), oracle(bench, **options), q, k, v, softcap=50.0)


def test_gradient_where_a_hidden_score_is_huge(bench):
    """p must be masked after exp: a hidden key far above every visible one has exp(s - lse) = inf, and inf * 0 is NaN."""
    q, k, v = inputs(bench, 70, 70, dtype=torch.float32)
    k[0, 69] *= 1e3  # hidden from all but the last query,
    q[0, 69] = 0  # which does not mind
    options = dict(causal=True)
    bench.compare(ours(**options), oracle(bench, **options), q, k, v)


@pytest.mark.parametrize("seqlens", [(200, 70), (70, 1), (130, 129)])
@pytest.mark.parametrize("options", [dict(causal=True), dict(window_size=(5, 0)), dict(window_size=(0, 0))], ids=str)
def test_rows_that_see_no_key(bench, seqlens, options):
    q, k, v = inputs(bench, *seqlens)
    out, lse = ours(**options)(q, k, v)
    empty = seqlens[0] - seqlens[1]
    assert (out[:, :empty] == 0).all() and (lse[..., :empty] == float("-inf")).all()
    bench.compare(ours(**options), oracle(bench, **options), q, k, v)


@pytest.mark.parametrize("shape_q, shape_k", [((0, 5, 2, 16), (0, 7, 2, 16)), ((2, 0, 2, 16), (2, 7, 2, 16))])
def test_nothing_to_do(bench, shape_q, shape_k):
    q, k = torch.randn(shape_q, device=bench.DEVICE), torch.randn(shape_k, device=bench.DEVICE)
    leaves = [q.requires_grad_(), k.requires_grad_(), k.detach().clone().requires_grad_()]
    out = flash_attn_func(*leaves)
    assert out.shape == shape_q
    out.sum().backward()
    assert all(leaf.grad.shape == leaf.shape and (leaf.grad == 0).all() for leaf in leaves)


def test_no_keys_at_all(bench):
    q = torch.randn(1, 5, 2, 16, device=bench.DEVICE, requires_grad=True)
    k = torch.randn(1, 0, 2, 16, device=bench.DEVICE, requires_grad=True)
    with bench.uninitialised_is_nan():
        out, lse, _ = flash_attn_func(q, k, k, return_attn_probs=True)
        out.sum().backward()
    assert (out == 0).all() and (lse == float("-inf")).all() and (q.grad == 0).all()


@pytest.mark.parametrize("expand", ["sum", "batch", "heads", "tokens"])
def test_output_gradients_with_stride_0(bench, expand):
    """y.sum().backward() hands over one number with every stride 0."""
    q, k, v = (torch.cat([x, -x]) for x in inputs(bench, 70, 70, dtype=torch.float32))
    gradient = {
        "sum": torch.ones((), device=bench.DEVICE),
        "batch": torch.randn(70, 2, 32, device=bench.DEVICE),
        "heads": torch.randn(1, 70, 1, 32, device=bench.DEVICE),
        "tokens": torch.randn(1, 1, 2, 32, device=bench.DEVICE),
    }[expand].expand(q.shape)
    assert 0 in gradient.stride()

    def gradients(function, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(function(*leaves), leaves, gradient.to(dtype).expand(q.shape))

    exact = gradients(lambda *x: bench.attention(*x)[0], torch.float64)
    for one, other in zip(gradients(flash_attn_func, torch.float32), exact, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_inputs_backed_by_a_transposed_tensor(bench):
    """A last dimension that is not contiguous is copied, never misread."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (
        torch.randn(1, 2, 32, 70, generator=generator).to(bench.DEVICE).permute(0, 3, 1, 2).half() for _ in range(3)
    )
    assert q.stride(-1) != 1
    bench.compare(ours(causal=True), oracle(bench, causal=True), q, k, v)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(40, 2), softcap=20.0)], ids=str)
def test_the_same_bits_every_time(bench, options):
    """Forward and backward, whatever ``deterministic`` says: nothing is added by atomics."""
    repeats = 250 if bench.DEVICE == "cuda" else 2
    size = (4, 777, 8, 4) if bench.DEVICE == "cuda" else (1, 100, 4, 2)
    batch, seqlen, heads, heads_kv = size
    generator = torch.Generator().manual_seed(6)
    q = bench.poisoned((batch, seqlen, heads, 64), torch.bfloat16, generator)
    k, v = (bench.poisoned((batch, seqlen, heads_kv, 64), torch.bfloat16, generator) for _ in range(2))
    weights = [torch.randn(q.shape, generator=generator).to(bench.DEVICE)]
    run = lambda: bench.differentiate(
        lambda *x: (flash_attn_func(*x, **options, deterministic=True),), [q, k, v], weights
    )
    (first,), gradients = run()
    for _ in range(repeats):
        (out,), again = run()
        assert torch.equal(out, first)
        assert all(torch.equal(one, other) for one, other in zip(again, gradients, strict=True))


def test_the_64_bit_walk_gives_the_same_bits(bench, monkeypatch):
    """Sequences that span 2^31 elements or more compile another form; here every sequence is made to."""
    from flashlab.kernels import backward, configs, forward

    q, k, v = inputs(bench, 100, 130)
    weights = [torch.ones(1, device=bench.DEVICE)]
    run = lambda: bench.differentiate(lambda *x: (flash_attn_func(*x, causal=True, window_size=(90, 0)),), [q, k, v], weights)
    (out,), gradients = run()
    for module in (forward, backward):
        monkeypatch.setattr(module, "SPAN_OF_32_BITS", 0)
    configs.forget()
    (wide,), wide_gradients = run()
    configs.forget()
    assert torch.equal(out, wide) and all(map(torch.equal, gradients, wide_gradients))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs 5 GB of a GPU")
@pytest.mark.parametrize("layout", ["many rows", "one long stride"])
def test_past_2_31_elements(bench, layout):
    """Offsets of 2^31 and more, between sequences and inside one; the far end is what is compared."""
    if layout == "many rows":
        shape = 3, 66_000, 96, 128  # 2.4e9 elements, each sequence 8.1e8
    else:
        shape = 1, 1100, 16_384, 128  # 2.3e9 elements in one sequence
    huge = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    assert huge.numel() > 2**31
    heads = slice(shape[2] - 2, shape[2])
    huge[:, :, heads].normal_()
    q = huge[-1:, -300:, heads] if layout == "many rows" else huge[:, :, heads]
    k = huge[-1:, -1000:, heads] if layout == "many rows" else q
    out, grads = bench.differentiate(lambda q, k: (flash_attn_func(q, k, k, causal=True),), [q, k], [torch.ones(1).cuda()])
    exact, exact_grads = bench.differentiate(
        lambda q, k: (flash_attn_func(q, k, k, causal=True),), [q.contiguous(), k.contiguous()], [torch.ones(1).cuda()]
    )
    assert torch.equal(out[0], exact[0]) and all(map(torch.equal, grads, exact_grads))
    if layout == "many rows":  # and a launch over all of it, compared at its far end
        out = flash_attn_func(huge[:, :, -1:], huge[:, :, -1:], huge[:, :, -1:], window_size=(63, 0))
        alone = flash_attn_func(*(huge[-1:, -200:, -1:],) * 3, window_size=(63, 0))
        assert torch.allclose(out[-1:, -130:], alone[:, -130:], atol=2e-2)
