# %% [markdown]
# # 06 · The backward pass
#
# **What you will build**
# 1. The gradients of attention by hand: $D$, $dV$, $dK$, $dQ$, first by the formula, then tile by tile.
# 2. A Triton kernel for $dK$ and $dV$: causal, grouped heads, any lengths, any strides.
# 3. An `autograd.Function` that passes `torch.autograd.gradcheck`.
#
# You need lessons 02 to 04, and the chain rule. Allow 90 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import inspect
import math

import torch

from flashlab import flash_attn_func
from flashlab.bench.counting import count
from flashlab.course import check, hint, predict, progress, quiz, solution, start, trace
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_06 import backward_bytes, kept_gb, naive, pictures, recorded, stored_gb
from flashlab.kernels import backward
from flashlab.reference import naive as reference
from flashlab.reference.tiling import Tiling

# isort: split
import triton  # after flashlab, which decides where kernels run
import triton.language as tl

start("06")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("06.q1")

# %%
quiz("06.q2")

# %% [markdown]
# ## What comes back
#
# Training needs three gradients. Somewhere behind attention stands a loss, a single number. Autograd has walked back from
# it as far as $O$ and hands over $dO$: how much the loss grows when an entry of $O$ grows. From it we must make $dQ$,
# $dK$ and $dV$.
#
# Most of the way is products of matrices, and for these there is one rule. If $Y = A B$, then
#
# $$dA = dY \, B^\top \qquad dB = A^\top \, dY$$
#
# No need to remember it: the shapes allow nothing else.

# %%
pictures.there_and_back()

# %% [markdown]
# Read the lower row from the right. $O = P V$ is a product, so $dP = dO\,V^\top$ and $dV = P^\top dO$. $S = \text{scale}
# \cdot Q K^\top$ is one too, so $dQ = \text{scale} \cdot dS\,K$ and $dK = \text{scale} \cdot dS^\top Q$. Two lines checked
# against autograd:

# %%
p, v = torch.softmax(normal(1, 4, 6), dim=1).requires_grad_(), normal(2, 6, 3).requires_grad_()
do = normal(3, 4, 3)
dp, dv = torch.autograd.grad(p @ v, (p, v), do)
print("dP = dO V^T:", torch.allclose(dp, do @ v.T), "  dV = P^T dO:", torch.allclose(dv, p.T @ do))

# %% [markdown]
# One step is missing: from $dP$ to $dS$, back through the softmax.
#
# ## Back through one row of softmax
#
# Take one row. $p_j = e^{s_j} / \sum_l e^{s_l}$. If $s_j$ grows, $p_j$ grows and *all others shrink*, since they share the
# denominator:
#
# $$\frac{\partial p_l}{\partial s_j} = p_l \, (\delta_{jl} - p_j) \qquad\Longrightarrow\qquad
# ds_j = \sum_l dp_l \, \frac{\partial p_l}{\partial s_j} = p_j \Big( dp_j - \underbrace{\sum_l p_l \, dp_l}_{D} \Big)$$
#
# ($\delta_{jl}$ is 1 for $j = l$ and 0 otherwise.) So $ds$ measures each $dp_j$ against their weighted mean. Three keys on a
# napkin; only the first one's probability matters to the loss:

# %%
p, dp = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]))
pictures.one_row(p, dp)
mean = (p * dp).sum()
ds = p * (dp - mean)
print("D  =", mean.item())
print("ds =", [round(x, 2) for x in ds.tolist()], " their sum is 0:", abs(ds.sum().item()) < 1e-15)

# %% [markdown]
# The loss never looked at keys 1 and 2. Still they get a gradient: to raise the first probability, one may also lower the
# other scores. And the sum is 0, because adding the same number to all scores changes nothing. Now fill in the line.

# %%
# spec: 06.softmax_gradient

# %%
# exercise: 06.softmax_gradient

# %%
check("06.softmax_gradient", softmax_gradient)

# %% [markdown]
# ## D, without the keys
#
# $D$ looks like trouble. It sums over *all* keys of the row, and in a tiled kernel they are never there at the same time.
# The forward pass had the same trouble with the maximum, and needed rescaling. Here there is a better way out. Put $dp_j =
# do \cdot v_j$ in:
#
# $$D = \sum_j p_j \, (do \cdot v_j) = do \cdot \sum_j p_j v_j = do \cdot o$$
#
# The sum over the keys is the output, and the forward pass has computed that already.

# %%
p, v, do = torch.softmax(normal(1, 3, 1000), dim=1), normal(2, 1000, 4), normal(3, 3, 4)
o = p @ v
print("over 1000 keys     ", (p * (do @ v.T)).sum(dim=1).numpy().round(6))
print("over 4 features    ", (do * o).sum(dim=1).numpy().round(6))

# %% [markdown]
# So $D$ is one number a row, made from two tensors that lie in HBM anyway. Write it both ways, for all rows.

# %%
# spec: 06.delta

# %%
# exercise: 06.delta

# %%
check("06.delta", delta)

# %% [markdown]
# ## All of it, by the formula
#
# Here is the whole backward pass of one head, the worked example that you will cut into tiles:

# %%
print(inspect.getsource(naive.backward))

# %% [markdown]
# Note its first line. It does not ask for $P$. It makes it again, from $Q$, $K$ and lse: $p = e^{s - \text{lse}}$ is right at
# once, with no maximum and no division. Against autograd, in float64:

# %%
q, k, v = (normal(seed, n, 8).requires_grad_() for seed, n in ((1, 5), (2, 7), (3, 7)))
do = normal(4, 5, 8)
o, lse = naive.forward(q, k, v)
wanted = torch.autograd.grad(o, (q, k, v), do)
for name, ours, right in zip(("dq", "dk", "dv"), naive.backward(q, k, v, o, lse, do), wanted, strict=True):
    print(name, tuple(ours.shape), "largest difference below 1e-14:", (ours - right).abs().max().item() < 1e-14)

# %% [markdown]
# How much work is that? Count the `@`.

# %%
predict("06.flop_ratio", times=...)

# %%
forward, back = naive.products(naive.forward, q, k, v), naive.products(naive.backward, q, k, v, o, lse, do)
print(f"forward {forward.count} products, {forward.flop} FLOP; backward {back.count} products, {back.flop} FLOP")
print(f"ratio {back.flop / forward.flop}")

# %% [markdown]
# This is where the usual 3.5 comes from: forward and backward together are counted as 3.5 times the forward.
#
# ## Store P, or make it again?
#
# Why throw $P$ away and compute it a second time? One product of five is spent on that. Count what keeping it would cost.

# %%
predict("06.stored_gb", GB=...)

# %%
print(f"P in bf16, 32 layers:    {stored_gb():6.2f} GB")
print(f"lse in float32, 32 layers: {kept_gb():.3f} GB")

# %% [markdown]
# That settles it for long sequences: an H200 has 141 GB in all. But suppose there were room. Then it is a question of time.
# An entry of $P$ is written once and read once, 4 bytes. Making it again takes $2 \cdot \text{head\_dim}$ FLOP.

# %%
predict("06.break_even", head_dim=...)

# %%
pictures.recompute_or_store()
entries = 4 * 16 * 4096**2
for head_dim in (64, 128, 256):
    again = 2 * head_dim * entries / recorded.matmul_flop_per_s() * 1e3
    moved = 4 * entries / recorded.copy_bytes_per_s() * 1e3
    print(f"head_dim {head_dim:3}: again {again:.2f} ms, written and read {moved:.2f} ms")

# %% [markdown]
# (Batch 4, 16 heads of 4096; both at the best rates that were recorded on an H200.) Computing is cheaper than remembering, by
# a factor of 2.9 at head_dim 128. And it needs no bytes of its own: a tile of $K$ must be on the chip anyway, for $dQ$. Only
# the exponentials come on top; they are not in this picture.
#
# Above head_dim 375 it turns, and then the 69 GB alone are the argument.
#
# ## dQ: queries outside
#
# Now cut it. With lse and $D$ known, *any* tile of $p$ and $ds$ can be made on its own:
#
# $$P = e^{\,\text{scale} \cdot Q K^\top - \text{lse}} \qquad dP = dO\,V^\top \qquad dS = P \circ (dP - D)$$
#
# What remains is to add up. $dQ$ sums over keys, $dK$ and $dV$ sum over queries. So there are two natural walks:

# %%
pictures.two_walks(Tiling(1024, 1024, 128, 128, causal=True), q_tile=4, k_tile=2)

# %% [markdown]
# Left: the walk of the forward pass. A program owns a tile of queries, and $dq$ stays on the chip until the last key tile.
# Right: a program owns a tile of keys; $dk$ and $dv$ stay on the chip. Under a causal mask it begins at the diagonal and goes
# *down*: the first keys are seen by everybody, so here the first program has the longest walk.
#
# Start with the left one, without a mask. It is `tiled_forward` with another body.

# %%
# spec: 06.tiled_dq

# %%
# exercise: 06.tiled_dq

# %%
check("06.tiled_dq", tiled_dq)

# %% [markdown]
# It is simpler than the forward: no $m$, no $l$, nothing is rescaled. Tiles may come in any order.
#
# ## The mask comes after exp
#
# With a mask there is a trap. In the forward pass a hidden score became $-\infty$ *before* exp. Do the same here, and look at a
# row that sees no key (more queries than keys). Its lse is $-\infty$.

# %%
s, lse = torch.tensor([1.0, 2.0]), torch.tensor(-math.inf)
unseen = torch.tensor([True, True])
print("masked before exp:", torch.exp(s.masked_fill(unseen, -math.inf) - lse).tolist())
print("mask multiplied:  ", (torch.exp(s - lse) * ~unseen).tolist())
print("masked after exp: ", torch.exp(s - lse).masked_fill(unseen, 0.0).tolist())

# %% [markdown]
# $-\infty - (-\infty)$ is NaN, and $\infty \cdot 0$ is NaN. Only choosing forgets what was there. Nor can the mask be left out
# because lse "knows" it. lse knows the *visible* scores only, and a hidden one may be far larger:

# %%
s, lse = torch.tensor([0.5, 100.0]), torch.tensor(0.5)  # the first key is visible, the second hidden
print("p of the visible and the hidden key, in float32:", torch.exp(s - lse).tolist())

# %% [markdown]
# A probability of infinity, and $0 \cdot \infty$ in the next product. This very bug stood in released kernels.
#
# ## dK and dV: keys outside
#
# Now the right walk, causal, aligned at the bottom right. Which is the first query that sees key $j$? The rule was $j \le i +
# N_k - N_q$, so $i \ge j - (N_k - N_q)$. The first key of the tile decides where the walk begins.

# %%
# spec: 06.tiled_dkdv

# %%
# exercise: 06.tiled_dkdv

# %%
check("06.tiled_dkdv", tiled_dkdv)

# %% [markdown]
# ## One kernel or two?
#
# Your two functions both compute $S$ and $dP$. Together that is seven products where five would do. Why not one kernel, keys
# outside, that has $dS$ at hand and adds its part of $dQ$ as well?

# %%
pictures.products()

# %% [markdown]
# Because $dQ$ then belongs to nobody. All programs of a head add to the same rows, in HBM or rather in the L2, and so they must
# add *atomically*.

# %%
predict("06.atomic_gb", GB=...)

# %% [markdown]
# Beside the bytes, atomics bring a subtler loss. Additions of floats depend on their order, and the order is whoever comes first:

# %%
parts = normal(1, 64, 4096).float()  # 64 key tiles, each with its part of 4096 entries of dq
one_order, another = torch.zeros(4096), torch.zeros(4096)
for i in range(64):
    one_order += parts[i]
    another += parts[63 - i]
differ, worst = (one_order != another).sum().item(), (one_order - another).abs().max().item()
print(f"{differ} of 4096 entries differ, the worst by {worst:.1e}")

# %% [markdown]
# Small, and enough that no training run can be repeated bit for bit. FlashAttention-2 adds atomically by default, and offers
# a slower `deterministic=True`. This package takes the other side: two kernels, each output has one owner, the sum has one
# order. The price is two products more:

# %%
for launch in count(recorded.FULL, "h200"):
    print(f"{launch.launch:8} tiles of {launch.block_m:3} x {launch.block_n}: {launch.programs} programs, "
          f"{launch.flop / 1e12:.2f} TFLOP")
print(f"forward + backward: 9 products of matrices instead of 7, {100 * (9 / 7 - 1):.0f}% more FLOP")

# %% [markdown]
# ## What they move
#
# The loads and stores of both, taken from the running kernels. One sequence of 256 tokens, 4 query heads on 2 kv heads,
# head_dim 32, float32, tiles of 64 x 64, no mask. dO is 131 KB.

# %%
predict("06.do_kb", KB=...)

# %%
moved = backward_bytes()
print(moved)

# %% [markdown]
# dkdv reads Q, dO, lse and D once for each of 4 key tiles. dq reads K and V once for each of 4 query tiles, and that for each of
# the two query heads that share them. $P$ would be 1,048,576 bytes here; it is in no list.
#
# ## Grouped heads
#
# With GQA several query heads read one kv head. What is read three times receives the sum of three gradients:

# %%
k = normal(1, 1, 4, 2).requires_grad_()  # one kv head
wide = k.repeat_interleave(3, dim=0)  # as its three query heads see it
weights = normal(2, 3, 4, 2)
(dk,) = torch.autograd.grad((weights * wide).sum(), k)
print("dk is the sum over the group:", torch.allclose(dk, weights.sum(dim=0, keepdim=True)))

# %% [markdown]
# A program that owns the keys walks past the queries of all three heads, one head after the other, and holds the whole sum. No
# atomics here either. But the grid becomes smaller:

# %%
predict("06.programs", programs=...)

# %%
for launch in count(recorded.FULL.alike(heads_q=32, heads_kv=8), "h200"):
    print(f"{launch.launch:8} {launch.programs} programs")

# %% [markdown]
# Still 15 waves on 132 SMs. With one kv head (MQA), batch 1 and 4096 keys it would be 64 programs, and half of the GPU would
# have nothing to do.
#
# ## The trap of stride 0
#
# One thing before the kernel. Which memory does $dO$ lie in? Try the simplest loss of all:

# %%
o = normal(1, 20, 8).float().requires_grad_()
out, arrived = o * 1, []
out.register_hook(arrived.append)
out.sum().backward()
do = arrived[0]
in_memory = do.untyped_storage().nbytes() // do.element_size()
print("shape", tuple(do.shape), " strides", do.stride(), " numbers in memory:", in_memory)

# %% [markdown]
# 160 entries, *one* number in memory: the gradient of a sum is 1 everywhere, and PyTorch does not write it out. Now a kernel, as
# a worked example: $D$ in Triton. It takes for granted that both tensors lie row by row.

# %%
@triton.jit
def delta_kernel(p_o, p_do, p_delta, seqlen_q, D: tl.constexpr, BLOCK_M: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < seqlen_q
    tile = rows[:, None] * D + tl.arange(0, D)
    b_o = tl.load(p_o + tile, mask=valid[:, None], other=0.0)
    b_do = tl.load(p_do + tile, mask=valid[:, None], other=0.0)
    tl.store(p_delta + rows, tl.sum(b_o * b_do, 1), mask=valid)


def delta_in_triton(o, do):
    result = torch.empty(o.shape[0])
    delta_kernel[(triton.cdiv(o.shape[0], 16),)](o, do, result, o.shape[0], D=o.shape[1], BLOCK_M=16)
    return result


o = o.detach()
for name, given in (("written out", do.contiguous()), ("as it came", do)):
    t = trace(lambda given=given: delta_in_triton(o, given), guard=True)
    print(f"{name:11}", "right" if torch.allclose(t.result, (given * o).sum(dim=1), atol=1e-5) else "wrong;",
          f"{sum(access.elements for access in t.outside)} elements from outside", *t.outside[:1])

# %% [markdown]
# (`trace` watches every load and store of a kernel; with `guard=True` a load outside gives NaN.) On a GPU the kernel would have
# read 159 numbers of somebody else. No error, only nonsense, and only in the smallest test that anyone would write. So the strides
# of $dO$ are arguments.
#
# ## dK and dV in Triton
#
# Your `tiled_dkdv`, now as a kernel. The outer loop is gone: it is the grid, one program for each tile of keys and each kv head.
# The frame is there. Write the loops.

# %%
# spec: 06.dkdv

# %%
# exercise: 06.dkdv

# %%
check("06.dkdv", dkdv)

# %% [markdown]
# ## An autograd.Function
#
# Put it in a form that PyTorch can train with. `forward` keeps what `backward` needs, and $P$ is not among it; autograd calls
# `backward` with $dO$. To show that it is right there is a judge who knows no formula: `torch.autograd.gradcheck` moves each
# input entry by $10^{-6}$ and looks at what the output does. In float64, since in float32 such a step drowns.

# %%
# spec: 06.attention

# %%
# exercise: 06.attention

# %%
check("06.attention", attention)

# %% [markdown]
# ## The package's own kernels
#
# Here is what you wrote, as the package runs it. First the inner loop of dkdv:

# %%
print(inspect.getsource(backward._gather_queries.fn))

# %% [markdown]
# What it adds to yours, line by line:
#
# - `loop_bounds`, `tile_start`, `MASKED`: the loop is compiled twice. The first time for the tiles on the edges, with masks; the
#   second for those inside, without any. Yours masks everywhere.
# - `s = dot(b_k, tl.trans(b_q))`: the scores come out *transposed*, (keys, queries), and so do p and ds. Then `dv += p @ do` and
#   `dk += ds @ q` need no transpose of something just computed; only tiles that were loaded are turned.
# - `p_lse` is in log2 units, `_probabilities` uses exp2: lesson 05.
# - `other=POS_INF`: a row past the end gets lse = +inf, and $2^{s - \infty} = 0$. Below you see that rows without keys get it too.
# - `dot_add(p, b_do, dv)` rounds p to bf16 first: that is what the matrix units multiply. The sums stay in float32.
# - `softcap_slope`, `slope`, `window_left`, `WIDE`: softcap has a derivative of its own, ALiBi and windows change s and the
#   mask, WIDE makes 64-bit addresses where a sequence spans $2^{31}$ elements.
#
# The masking, and what prepares it:

# %%
print(inspect.getsource(backward._probabilities.fn))
source = inspect.getsource(backward.preprocess_kernel.fn)
print(source[source.index("    delta = tl.sum") :])

# %% [markdown]
# - `tl.where(visible(...), p, 0.0)` stands after exp2.
# - `preprocess` is a kernel of its own: $D$ for all rows, once, and lse in log2 units with $-\infty$ replaced by $+\infty$. So a
#   row that sees no key has p = 0 even in a tile that is not masked.
# - `delta -= dlse`: lse is an output as well, and a loss may use it. Its gradient is $\partial \text{lse} / \partial s_j = p_j$, so
#   it joins $D$: $ds = p \, (dp - D + d\text{lse})$.
#
# And around the loop:

# %%
source = inspect.getsource(backward.dkdv_kernel.fn)
print(source[source.index("    # The band") : source.index("        slope = 0.0")])
print(source[source.index("    out = (first_token") :])

# %% [markdown]
# - The band from the keys' side: your `first`, with windows and both edges.
# - `for member in range(GROUP)`: your sum over the group, in this order every time.
# - `dk * softmax_scale` once at the end, and one store: nobody else writes there.
#
# The same numbers as autograd through the reference, with all of it at once: grouped heads, more keys than queries, odd lengths,
# and a $dO$ of stride 0.

# %%
q, k, v = (normal(seed, 1, tokens, heads, 16).float() for seed, tokens, heads in ((1, 19, 6), (2, 33, 2), (3, 33, 2)))
where = "cuda" if torch.cuda.is_available() else "cpu"


def gradients(attention):
    inputs = [x.to(where).requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attention(*inputs).sum(), inputs)


ours = gradients(lambda q, k, v: flash_attn_func(q, k, v, causal=True))
right = gradients(lambda q, k, v: reference.attention(q, k, v, causal=True)[0])
for name, mine, theirs in zip(("dq", "dk", "dv"), ours, right, strict=True):
    print(name, tuple(mine.shape), "within 1e-5:", (mine - theirs).abs().max().item() < 1e-5)

# %% [markdown]
# ## On a real GPU

# %%
predict("06.train_ms", ms=...)

# %%
print(f"Recorded: {recorded.when()}")
product = recorded.FULL.alike(kind="prefill").flop / 2 / recorded.matmul_flop_per_s() * 1e3  # ms of one product
took = {"forward": (2, recorded.forward_ms(recorded.FULL)), "backward": (7, recorded.backward_ms(recorded.FULL))}
took |= {f"  of it {name}": (recorded.PRODUCTS[name], recorded.KERNELS_MS[name]) for name in ("dkdv", "dq")}
for name, (products, ms) in took.items():
    print(f"{name:13} {products} products: predicted {products * product:.2f} ms, recorded {ms:.2f} ms, "
          f"{100 * products * product / ms:.0f}% of the best rate")
print(f"  and preprocess, which reads O and dO: predicted {recorded.preprocess_floor_ms(recorded.FULL):.3f} ms, "
      f"recorded {recorded.KERNELS_MS['preprocess']:.3f} ms")

# %% [markdown]
# *Predicted* is the FLOP alone, at the rate of the best bf16 product in that run. *Backward* is the record of both less the
# record of the forward. The three kernels were timed by themselves in an earlier run of the same day; with the host's share they
# make up the same sum.
#
# The backward comes nearer to the best rate than the forward. It has one exp for 3.5 products (the forward one for 2), and no
# maximum, no rescale stands between them. And the others?

# %%
pictures.forward_and_backward()
for case in recorded.CASES:
    times = recorded.milliseconds(case)
    fastest_first = sorted(times.items(), key=lambda item: item[1])
    print(f"{case.label:23} ms:", ", ".join(f"{name.replace(' (torch)', '')} {ms:.2f}" for name, ms in fastest_first))

# %% [markdown]
# **cuDNN is ahead**: ours takes 1.29 to 1.40 times as long. What we know of our own side: Triton's compiler waits for each
# product at once, so the softmax of a block does not overlap with its own products (lesson 05). And we do nine products where
# seven would do: at the best rate that alone is 0.69 ms of the 1.21 that lie between us. It is the price of one owner for each output.
#
# **PyTorch's FlashAttention-2 is behind**, by 1.36 to 1.43, though it does seven products: it is written for the A100's matrix
# instructions. **FlexAttention**, compiled by Triton as well, is level without a mask, a little ahead of us at 8192, and behind
# under a causal one.
#
# Where there is a GPU, this times forward and backward on it:

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_06 import measure

    times = measure.train_us(batch=4, heads=16, seqlen=4096)
    print(torch.cuda.get_device_name(), {name: f"{us / 1e3:.2f} ms" for name, us in times.items()})
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## Where the idea loses
#
# - **Against one pass.** Two products more, 29% of all FLOP. Who does not need the same bits twice may want them back.
# - **Small shapes.** Four launches and autograd's own work take the host longer than the GPU.
# - **Large head_dim.** dkdv holds two sums in registers, dk and dv, where dq holds one. At head_dim 256 its tile of keys falls to
#   32, too few for Hopper's large matrix instructions.
#
# - **Few kv heads.** One program for each tile of keys and *kv* head: MQA at batch 1 leaves SMs without work.
#
# The second and the third, recorded on the same H200, the same day:

# %%
case = recorded.FULL
for name in (recorded.OURS, recorded.AHEAD):
    ms, host_ms = recorded.milliseconds(case)[name], recorded.host_ms(case, name)
    print(f"{case.label}, {name:13}: GPU {ms:.2f} ms, host {host_ms:.2f} ms")
print("16 tokens, 2 heads, host:", ", ".join(f"{name} {us} us" for name, us in recorded.TINY_HOST_US.items()))
print("head_dim 256, TFLOP/s:", ", ".join(f"{name} {rate}" for name, rate in recorded.HEAD_DIM_256_TFLOPS.items()))

# %% [markdown]
# > **To keep**
# > - $dV = P^\top dO$, $dP = dO V^\top$, $dS = P \circ (dP - D)$, $dQ = \text{scale} \cdot dS\,K$, $dK = \text{scale} \cdot dS^\top Q$.
# > - $D$ = rowsum(dO ∘ O) = rowsum(P ∘ dP): the sum over the keys is the output, which is there already.
# > - Keep lse, not P: 2048 times less at 4096 keys. Any tile of p comes out right at once, $e^{s - \text{lse}}$.
# > - Backward is 2.5 times the forward's FLOP; 3.5 as two kernels.
# > - Two kernels, each output with one owner: no atomics, the same bits every time. 9 products in all instead of 7.
# > - The mask comes after exp, and it chooses: -inf - -inf and inf * 0 are NaN.
# > - Grouped heads: dK and dV are sums over the group. dO may have stride 0.
# > - gradcheck in float64 before anything else.
#
# **Left out.** Dropout, which must make the same random numbers again. The gradients of a bias, which do need all of dS. Second
# derivatives: `once_differentiable` refuses them. One pass that hands its dQ on in a fixed order. Sequences packed end to end
# (the package's `flash_attn_varlen_func` has a backward as well).
#
# **Read next.** Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 2. Dao et al., *FlashAttention* (arXiv 2205.14135),
# appendix B.2, where the memory-efficient backward is derived. Then lesson 07: how to measure, so that numbers like the ones above can be believed.
