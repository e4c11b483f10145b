# %% [markdown]
# # 02 · Online softmax
#
# **What you will build**
# 1. A softmax that needs one walk over a row to know its maximum *and* its sum.
# 2. Attention of a query in one walk over the keys, with no probability ever stored.
# 3. `merge(a, b)`: two walks become one. Everything later in this course rests on it.
#
# You need lesson 01. Allow 75 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import functools
import inspect
import math

import torch

from flashlab.course import check, hint, predict, progress, quiz, solution, start
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_02 import growths, passes, pictures, predicted_us, recorded
from flashlab.hardware import measured
from flashlab.reference import algebra, online
from flashlab.reference.algebra import Partial, merge
from flashlab.widgets import SoftmaxScrubber

start("02")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("02.q1")

# %%
quiz("02.q2")

# %% [markdown]
# ## Why softmax seems to need three passes
#
# $$\text{softmax}(x)_i = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# Lesson 01 met the trouble with it: $e^{89}$ is more than float32 can hold, and $e^{12}$ is more than float16 can.
# The cure is to subtract the maximum.

# %%
x = torch.tensor([60.0, 80.0, 100.0])
print("as written   ", torch.exp(x) / torch.exp(x).sum())
print("minus the max", torch.exp(x - x.max()) / torch.exp(x - x.max()).sum())

# %% [markdown]
# *Any* number $m$ may be subtracted, since $e^{-m}$ stands above and below the fraction and cancels. The maximum is
# the safe one: every exponent is then at most 0, and one of them is 0. Keep that "any" in mind.
#
# But now there is an order to keep. First find $m$, then $l = \sum_j e^{x_j - m}$, then divide. Each of the three
# needs the one before, so a row that does not fit on the chip is read three times.

# %%
predict("02.three_passes", GB=...)

# %%
pictures.passes()
print(inspect.getsource(passes.three_passes))

# %% [markdown]
# `HBM` is a memory that keeps a bill. `load` and `store` are the only ways in and out. Here it is for two rows, and
# scaled up to all 8192. (`normal(seed, ...)` gives random numbers, the same on every machine.)

# %%
rows = normal(0, 2, 32768)
y, hbm = passes.three_passes(rows, block=4096)
print("same as torch.softmax:", torch.allclose(y, torch.softmax(rows, dim=1), rtol=0, atol=1e-15))
print("read", hbm.traffic().reads, "written", hbm.traffic().writes)
print(f"8192 rows: {hbm.traffic().total * 8192 / 2 / 1e9:.2f} GB")

# %% [markdown]
# ## The maximum may grow
#
# Can maximum and sum be found in *one* pass? Walk from left to right and keep two numbers: $m$, the largest so far,
# and $l$, the sum of $e^{x_i - m}$ so far. A new element may be larger than $m$. Then every term in $l$ was measured
# against a number that is no longer the maximum. But all of them are off by the same factor:
#
# $$e^{x_i - m_{\text{new}}} = e^{x_i - m_{\text{old}}} \cdot \underbrace{e^{m_{\text{old}} - m_{\text{new}}}}_{\text{the rescale}}$$
#
# So the old terms need not be seen again. One multiplication moves their whole sum.

# %%
pictures.moving_reference([1, 3, 2, 5])

# %% [markdown]
# Read it from left to right. Each panel has seen one element more; the new one is orange. When 3 arrives, the first
# bar shrinks from 1.00 (dashed) to $e^{1-3} = 0.14$. When 2 arrives nothing shrinks. When 5 arrives, everything does.
# The same, by hand:

# %%
m, l = -math.inf, 0.0
for x_j in [1.0, 3.0, 2.0, 5.0]:
    m_new = max(m, x_j)
    rescale = math.exp(m - m_new)
    print(f"x = {x_j:g}: m {m:4g} -> {m_new:g}   l = {l:.4f} * {rescale:.4f} + {math.exp(x_j - m_new):.4f}", end="")
    l = l * rescale + math.exp(x_j - m_new)
    m = m_new
    print(f" = {l:.4f}")
print(f"all at once: l = {sum(math.exp(x_j - 5) for x_j in [1.0, 3.0, 2.0, 5.0]):.4f}")

# %% [markdown]
# Mind the first step. $m$ starts at $-\infty$, so the rescale is $e^{-\infty} = 0$: nothing came before, and nothing
# is kept. No special case is needed.
#
# Your turn: the same in PyTorch, with one line missing. The spec says what must come out.

# %%
# spec: 02.running_max_and_sum

# %%
# exercise: 02.running_max_and_sum

# %%
check("02.running_max_and_sum", running_max_and_sum)

# %% [markdown]
# Stuck? `hint("02.running_max_and_sum")` gives one more step each time you call it, and `solution(...)` shows the
# tested answer.
#
# What if the rescale is forgotten? With falling numbers the maximum never grows, so *nothing shows*. This is why a
# test on one convenient input proves little. Here is how the report speaks of it:

# %%
def forgetful(x):
    m, l = x.new_tensor(-math.inf), x.new_tensor(0.0)
    for x_j in x:
        m = torch.maximum(m, x_j)
        l = l + torch.exp(x_j - m)
    return m, l


check("02.running_max_and_sum", forgetful)

# %% [markdown]
# ## How often does it grow?

# %%
predict("02.growths", times=...)

# %%
pictures.growing_maximum(normal(3, 1024), [4, 16, 64, 256, 1024, 4096])
for n in (16, 1024, 4096):
    print(f"{n:5} scores: the maximum grows {growths(n, rows=512):.2f} times, ln n - 0.42 = {math.log(n) - 0.42:.2f}")

# %% [markdown]
# The tenth score beats the nine before it with chance 1/10. The chances add up to a logarithm. So most rescales
# multiply by exactly 1, and some kernels skip them (FlashAttention-4 rescales only when the maximum grew by a lot).
# Ours do not: a multiplication by 1 is cheap, a branch is not.
#
# ## A block at a time
#
# A GPU does not take one number at a time. It takes a block. Nothing changes: $m_{\text{new}}$ is the larger of $m$
# and the block's maximum, and the block's terms are added as a sum. Rows are independent, so a block holds many of
# them.
#
# Write it. The last block may be shorter than the others. The checks run in float64, so that only real mistakes show:
# `x.new_zeros(...)` and `x.new_full(...)` make tensors like `x`, `torch.zeros(...)` would make float32.

# %%
# spec: 02.online_softmax

# %%
# exercise: 02.online_softmax

# %%
check("02.online_softmax", online_softmax)

# %% [markdown]
# What did that buy?

# %%
predict("02.saved", percent=...)

# %%
rows = normal(0, 2, 32768)
for name, softmax in (("three passes", passes.three_passes), ("two passes", passes.two_passes)):
    moved = softmax(rows, block=4096)[1].traffic()
    print(f"{name:13} read {moved.reads['x'] * 4096 / 1e9:.2f} GB, written {moved.writes['y'] * 4096 / 1e9:.2f} GB, "
          f"together {moved.total * 4096 / 1e9:.2f} GB")

# %% [markdown]
# A quarter less: 1.33 times faster at best. Does a real GPU agree? Predicted is bytes over 4284 GB/s, the best copy
# that was seen on the same GPU.

# %%
print(f"Recorded: {recorded.WHEN}; float32, 1.07 GB")
for (n_rows, n_columns), us in recorded.SOFTMAX_US.items():
    for name, movements in (("three passes", 4), ("two passes", 3)):
        predicted = movements * n_rows * n_columns * 4 / recorded.COPY_BYTES_PER_S * 1e6
        print(f"{n_rows:6} rows of {n_columns:7}, {name}: predicted {predicted:.0f} us, recorded {us[name]:.0f} us")
    print(f"{n_rows:6} rows of {n_columns:7}, torch.softmax: recorded {us['torch']:.0f} us")

# %% [markdown]
# On the shorter rows the H200 agrees to within 5%, and is 1.29 times faster. (The long ones leave only 256 programs,
# about two for each SM, and that is not enough to keep the memory busy all the time.) Milakov and Gimelshein found up
# to 1.3 (arXiv 1805.02867). Useful, not dramatic. Where there is a GPU, this times both kernels on it:

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_02 import measure

    print(torch.cuda.get_device_name(), {name: f"{us:.0f} us" for name, us in measure.softmax_us(8192, 32768).items()})
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# The second pass stays because every probability has to be *written*, and none is known before the end.
#
# So ask a better question. Who needs the probabilities?
#
# ## Attention does not need the probabilities
#
# $$o = \sum_j \text{softmax}(s)_j v_j = \frac{\sum_j e^{s_j - m} v_j}{\sum_j e^{s_j - m}} = \frac{\text{acc}}{l}$$
#
# The denominator is $l$. The numerator, call it acc, is one more running sum of the *same* exponentials, only with
# $v_j$ behind each. So it follows the same rule: when $m$ grows, multiply by the rescale. Then there is **no second
# pass**. Each key and each value is read once, and the probabilities never exist.

# %%
scrubber = SoftmaxScrubber(step=4)
scrubber.figure()

# %% [markdown]
# Above: 16 scores in tiles of 4, with the running maximum in red. Below: their weights. Right: the three numbers that
# are kept, and how the last tile changed each. Here the fourth tile raises $m$ from 2.4 to 3.1: $l$ and acc shrink to
# one half, then the tile is added. Drag the slider below from 0 to the end (click it, then use the arrow keys). Then
# change the tile size: the last step does not care.

# %%
scrubber

# %%
for block_n in (1, 3, 4, 16):
    last = SoftmaxScrubber(block_n=block_n, step=-(-16 // block_n) + 1)
    print(f"tiles of {block_n:2}: {last.summary.split('. ')[1]}")

# %% [markdown]
# Now write it for one query. Return two things: `out`, and
#
# $$\text{lse} = \log \sum_j e^{s_j} = m + \log l$$
#
# the log-sum-exp of lesson 01. You will see in a moment why that second number is worth keeping.

# %%
# spec: 02.online_attention

# %%
# exercise: 02.online_attention

# %%
check("02.online_attention", online_attention)

# %% [markdown]
# ## A trap: which logarithm?
#
# A GPU has an instruction for $2^x$, none for $e^x$. So kernels multiply the scores by $\log_2 e = 1.4427$ and use
# `exp2` throughout. The weights come out the same, but $m$, and with it lse, is now to base 2. Others expect the
# natural logarithm. Nothing crashes when the two are mixed. The answer is just wrong.
#
# See it happen. `Partial(out, lse)` is attention over some of the keys, and `merge` puts two of them together; how it
# does that is what the rest of this lesson is about.

# %%
s, v = normal(7, 1, 16), normal(8, 16, 4)
a, b = Partial.of(s[:, :12], v[:12]), Partial.of(s[:, 12:], v[12:])
right = torch.softmax(s, dim=1) @ v
b_in_base_2 = Partial(b.out, b.lse / math.log(2))  # a base-2 lse that says it is natural
print("right      ", right.numpy().round(4))
print("bases mixed", merge(a, b_in_base_2).out.numpy().round(4))

# %% [markdown]
# The cure is one conversion, at the door. One line is missing:

# %%
# spec: 02.lse_from_base_two

# %%
# exercise: 02.lse_from_base_two

# %%
check("02.lse_from_base_two", lse_from_base_two)

# %% [markdown]
# ## Two walks become one
#
# Cut the keys into two sets, $A$ and $B$. Let somebody else do $B$, at the same time, on another SM. Each side ends
# with its own out and lse. Can the two be put together, *without* the keys?
#
# $e^{\text{lse}_A} = \sum_{j \in A} e^{s_j}$ is the total weight of $A$, and $\text{out}_A$ is the weighted mean of
# its values. A weight and a mean: that is a mass and its centre. And two masses are replaced by one, at their common
# centre:
#
# $$\text{out} = \frac{e^{\text{lse}_A} \text{out}_A + e^{\text{lse}_B} \text{out}_B}
# {e^{\text{lse}_A} + e^{\text{lse}_B}} \qquad
# \text{lse} = \log\left(e^{\text{lse}_A} + e^{\text{lse}_B}\right)$$

# %%
s, v = normal(21, 12), normal(22, 12, 2)
v[:8] -= 2.0  # the values of A lie to the lower left of those of B, so that the picture is easy to read
pictures.centre_of_mass(s, v, cut=8)
a, b = Partial.of(s[None, :8], v[:8]), Partial.of(s[None, 8:], v[8:])
print("merged     ", merge(a, b).out[0].numpy().round(6), " lse", round(float(merge(a, b).lse), 6))
print("all at once", (torch.softmax(s, dim=0) @ v).numpy().round(6), " lse", round(float(torch.logsumexp(s, dim=0)), 6))

# %% [markdown]
# Each dot is a value, its area the weight of its key. Blue are the keys of $A$, orange those of $B$, crosses their
# centres. The star is the merge. It lies on the dashed line, nearer to the heavier side.
#
# This is why lse is worth keeping: without it a partial result does not know its own weight.
#
# Write `merge_two`. Two things to look after: $e^{\text{lse}}$ overflows, so measure both against the larger. And a
# side may have seen *no key at all*; it stands as $(0, -\infty)$.

# %%
# spec: 02.merge_two

# %%
# exercise: 02.merge_two

# %%
check("02.merge_two", merge_two)

# %% [markdown]
# ## Merging is addition in disguise
#
# Give every partial result the pair $(e^{\text{lse}} \text{out}, e^{\text{lse}})$: its plain sum of weight times
# value, and its plain sum of weights. Merging *adds* these pairs, nothing else. So whatever holds for addition holds
# for merging:
#
# - **commutative**: $a + b = b + a$. Who finishes first does not matter.
# - **associative**: $(a + b) + c = a + (b + c)$. In which groups they are merged does not matter.
# - **identity**: adding $(0, 0)$ changes nothing. $e^{\text{lse}} = 0$ means $\text{lse} = -\infty$: the empty
#   partial is $(0, -\infty)$.

# %%
s, v = normal(31, 1, 80), normal(32, 80, 4)
partials = [Partial.of(s[:, j : j + 10], v[j : j + 10]) for j in range(0, 80, 10)]
pictures.merge_orders(partials)
whole = torch.softmax(s, dim=1) @ v
for name, order in pictures.ORDERS.items():
    same = torch.allclose(pictures.fold(order, partials).out, whole, rtol=0, atol=1e-14)
    print(f"{name:18} equals softmax over all 80 keys, to 14 digits: {same}")

# %% [markdown]
# The tile loop above is the left picture: one after another. Split-KV decoding (lesson 09) is the middle one.
# Attention over several GPUs (lesson 14) is the right one. **One identity, three machines.**
#
# "To 14 digits", not "to the bit": floating-point addition rounds, so another order may differ in the last bit. What
# about nothing merged with nothing?

# %%
empty = Partial.empty(1, 4, dtype=torch.float64)
print("empty + a     ", bool((merge(empty, partials[0]).out == partials[0].out).all()), "(the same bits as a)")
print("empty + empty ", merge(empty, empty).out.numpy(), float(merge(empty, empty).lse))
print("but           ", float(torch.exp(empty.lse - empty.lse)), "= exp(-inf - -inf): what an unguarded merge computes")

# %% [markdown]
# Does such a thing happen? Always: a causal mask that hides all of a split, a sequence in the batch that is shorter
# than the others, more splits than there are tiles.
#
# Last exercise: all parts at once, as the combine kernel of split-KV decoding does it. The spec merges two at a time.
# You use one maximum, one sum and no loop.

# %%
# spec: 02.merge_many

# %%
# exercise: 02.merge_many

# %%
check("02.merge_many", merge_many)

# %% [markdown]
# ## What the cut costs
#
# A split must write its partial result, and somebody must read it.

# %%
predict("02.partials", KB=...)

# %%
for num_splits in (2, 16, 128):
    partial_bytes = 2 * num_splits * (128 + 1) * 4  # written and read
    cache_bytes = 2 * 131072 * 128 * 2  # K and V in bf16
    print(f"{num_splits:4} splits: {partial_bytes / 1e3:6.1f} KB of partials, {cache_bytes / 1e6:.1f} MB of K and V: "
          f"{100 * partial_bytes / cache_bytes:.3f}%")

# %% [markdown]
# ## What the cut buys: a decode step, recorded
#
# One new token, 131072 keys in the cache, 8 KV heads. One walk per head means 8 blocks for 132 SMs. The walks are
# long, and 124 SMs have nothing to do. Merging allows us to cut them. What does that give?

# %%
predict("02.splits", us=...)

# %%
pictures.splits()
print(f"{measured.GPU}, {measured.DATE}, torch 2.11.0, triton 3.6.0, bf16: tiles of 64 keys, two blocks on an SM")
print("splits  predicted us  recorded us")
for num_splits, seconds in measured.SPLIT_CURVE:
    if num_splits in (1, 2, 4, 8, 16, 17, 132):
        print(f"{num_splits:6} {predicted_us(num_splits):13.0f} {seconds * 1e6:12.0f}")

# %% [markdown]
# Twelve times faster, by one identity. From 1 to 8 splits time halves each time, as it should: twice as many SMs
# read. Then the memory itself is the limit. At 17 splits there is a step up, which both the model and the GPU show.
# Why that is, and how many splits to take, is lesson 09.

# %% [markdown]
# ## The package's own source
#
# You have written what `flashlab.reference` is made of. Open it. First the step of a tile:

# %%
print(inspect.getsource(online.step))
print(inspect.getsource(online.rescale))
print(inspect.getsource(online._anchor))

# %% [markdown]
# What it adds to yours:
#
# - `b_s` is *(rows, n)*: many queries share each tile. Hence the `[:, None]`s. That is lesson 03.
# - `_anchor`: while a row has seen only masked scores, its $m$ is $-\infty$, and $-\infty - (-\infty)$ is NaN. It
#   measures against 0 instead; every term is then $e^{-\infty} = 0$.
# - It returns a new `State` and changes nothing in place, so a test can compare before and after.
#
# And merge:

# %%
print(inspect.getsource(algebra.merge))

# %% [markdown]
# What it adds to yours:
#
# - `if other.base != first.base`: a partial carries the base of its logarithm, and mixed bases are an *error*. That
#   is the trap from above, closed for good.
# - `m = _finite(lse.amax(0))`: your guard for rows that nobody saw.
# - `total.masked_fill(total == 0, 1)`: your guard against 0 / 0.
# - `.masked_fill(weight[..., None] == 0, 0)`: one guard that you did not need. A split that saw no key may leave
#   *anything* in its out, NaN too, because nobody wrote there. And 0 · NaN is NaN, so multiplying by a weight of 0 is
#   not enough:

# %%
a, unwritten = partials[0], Partial(torch.full((1, 4), math.nan).double(), torch.tensor([-math.inf]).double())
print("package        ", bool((merge(a, unwritten).out == a.out).all()), "(the same bits as a)")
print("1 * a + 0 * NaN", (1.0 * a.out + 0.0 * unwritten.out).numpy()[0])

# %% [markdown]
# ## Where the idea loses
#
# **A row that fits on the chip.** 8192 float32 numbers are 32 KiB, and an SM of an H200 has 228 KiB of shared memory.
# Load the row once, and all three passes run in SRAM. Then online softmax saves no byte at all, and costs more
# arithmetic.
#
# **Exponentials are not free.** An SM of an H100 or H200 does 4096 FLOP of bf16 matrix product in a clock, and only
# 16 exponentials (CUDA Programming Guide, throughput of arithmetic instructions; the FlashAttention-3 paper, arXiv
# 2407.08608, makes the same point). One score costs $4d$ FLOP and one exponential:

# %%
print("clocks for 16 scores    matrix products    exponentials")
for head_dim in (64, 128, 256):
    print(f"head_dim {head_dim:<3} {16 * 4 * head_dim / 4096:26.0f} {16 / 16:15.0f}")
print()
for block_n in (1, 16, 128):
    print(f"tiles of {block_n:3} keys: {1 / block_n:6.1%} more exponentials, for the rescales")

# %% [markdown]
# At head_dim 64 the exponentials take *as long as* the matrix products. One rescale for each element would double
# them; one for each tile of 128 adds under 1%. That is one more reason to work in tiles.
#
# > **To keep**
# > - Softmax may be measured against any $m$. When $m$ grows, one multiplication by $e^{m_{\text{old}} - m_{\text{new}}}$
# >   moves a whole sum.
# > - Alone, online softmax saves a quarter of the bytes. With acc it makes attention a single walk: no probability is
# >   ever stored.
# > - Attention over some keys is (out, lse): a centre and its mass. $(0, -\infty)$ is nothing.
# > - Merging is addition in disguise: any order, any grouping. It costs 516 bytes a partial at head_dim 128.
# > - State the base of your logarithm.
#
# **Left out.** Lower precision: in float16 or bfloat16 kernels keep $m$, $l$ and acc in float32, and lesson 05 shows
# what happens if not. Gradients: lse comes back in lesson 06, where it rebuilds the probabilities. Softmax with a
# sink or a softcap changes the scores, not the walk.
#
# **Read next.** Milakov and Gimelshein, *Online normalizer calculation for softmax* (arXiv 1805.02867), four pages
# that started it. Rabe and Staats, *Self-attention does not need O(n²) memory* (arXiv 2112.05682): the same with
# chunks. Then lesson 03, where many queries share each tile.
