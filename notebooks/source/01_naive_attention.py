# %% [markdown]
# # 01 · Naive attention
#
# **What you will build**
# 1. Attention as the textbook writes it: five lines, then masks, grouped heads, and a softmax that never overflows.
# 2. Its bill: which bytes cross the bus, and how often. You will predict it before you count it.
# 3. An answer to "is attention slow because of its intermediate results?" It is half a yes.
#
# Allow 75 minutes. The first half is about what attention computes, the second about what that costs.

# %% tags=["nbval-ignore-output"]
import inspect
import math
import textwrap

import torch
import torch.nn.functional as F

from flashlab.course import check, hint, predict, quiz, solution, start
from flashlab.course.lessons.lesson_00.pictures import rooflines
from flashlab.course.lessons.lesson_01 import pictures, recorded
from flashlab.hardware import gpu, roofline
from flashlab.reference import mask, naive, tiled

start("01")

# %% [markdown]
# Two questions from lesson 00 first.

# %%
quiz("01.q1")

# %%
quiz("01.q2")

# %% [markdown]
# ## Attention in five lines
#
# Each token asks a question (its **query** q), offers a label (its **key** k) and holds a content (its **value** v). A query is
# compared with every key. The answer is an average of the values, in which well-matched keys weigh more:
#
# $$o_i = \sum_j p_{ij} v_j, \qquad p_{ij} = \frac{e^{s_{ij}}}{\sum_j e^{s_{ij}}}, \qquad s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}$$
#
# (Vaswani et al., arXiv 1706.03762.) One query and three keys, small enough for a napkin:

# %%
q = torch.tensor([1.0, 0.0])
k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
v = torch.tensor([10.0, 20.0, 60.0])
s = k @ q / math.sqrt(2)
e = torch.exp(s)
p = e / e.sum()
print("scores ", [round(x, 3) for x in s.tolist()])
print("exp    ", [round(x, 3) for x in e.tolist()], " sum", round(e.sum().item(), 3))
print("weights", [round(x, 3) for x in p.tolist()])
print("output ", round((p @ v).item(), 2), "= 0.401 x 10 + 0.198 x 20 + 0.401 x 60")

# %% [markdown]
# For many queries the same is two matrix products with a softmax between them. Six tokens, four numbers each. Read the
# picture from left to right. In each row of p the weights add up to 1.

# %%
torch.manual_seed(1)
q, k, v = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
s = q @ k.T / math.sqrt(4)
p = torch.softmax(s, dim=-1)
print("rows of p add up to", [round(x, 6) for x in p.sum(dim=-1).tolist()])
pictures.matrices(q=q, kT=k.T, s=s, p=p, v=v, o=p @ v)

# %% [markdown]
# Mind the shapes: q, k, v and o are N × d, tall and narrow. But s and p are **N × N**. Half of this course follows from that.
#
# Now the function. One line is missing. PyTorch's own version is the spec.

# %%
# spec: 01.attention

# %%
# exercise: 01.attention

# %%
check("01.attention", attention)

# %% [markdown]
# Why divide by $\sqrt{d}$? A dot product of d standard normal pairs has standard deviation $\sqrt{d}$. Without the scale, wide
# heads have large scores, and a softmax of large scores picks one winner. The others get no weight, and no gradient.

# %%
torch.manual_seed(2)
for head_dim in (16, 64, 256):
    dots = (torch.randn(4096, head_dim) * torch.randn(4096, head_dim)).sum(dim=-1)
    spread = dots.std()
    print(f"head_dim {head_dim:3}: q.k spreads by {spread:4.1f}, q.k / sqrt(d) by {spread / head_dim**0.5:.2f}")
one_query, keys = torch.randn(128), torch.randn(32, 128)
pictures.weights_with_and_without_scale(
    torch.softmax(keys @ one_query, dim=-1), torch.softmax(keys @ one_query / 128**0.5, dim=-1)
)

# %% [markdown]
# ## A softmax that does not overflow
#
# exp grows fast, and number formats end. How soon?

# %%
predict("01.fp16_limit", score=...)

# %%
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    largest = torch.finfo(dtype).max
    print(f"{str(dtype):15} ends at {largest:9.3g}, so exp overflows above {math.log(largest):6.2f}")

# %% [markdown]
# The cure costs nothing. A softmax does not change when one number is subtracted from all scores of a row, since it cancels:
#
# $$\frac{e^{s_j - m}}{\sum_j e^{s_j - m}} = \frac{e^{s_j}}{\sum_j e^{s_j}}$$
#
# Take the row's maximum for m. Then no exponent is above 0, and nothing overflows. The same m gives the **log-sum-exp**, the one
# number that sums up a row of scores: $\text{lse} = m + \log \sum_j e^{s_j - m}$.
#
# Mind one case. A score of −∞ stands for a key that must not be looked at; the next section needs that. Where a whole row is −∞,
# the sum is empty, and its logarithm, the lse, is −∞ too.

# %%
# spec: 01.logsumexp

# %%
# exercise: 01.logsumexp

# %%
check("01.logsumexp", logsumexp)

# %% [markdown]
# With the lse, the weights need no division: $p_{ij} = e^{s_{ij} - \text{lse}_i}$. Whoever keeps one lse a row can compute every weight again,
# and need not store any. Lessons 02 and 06 live on that.

# %%
lse = torch.logsumexp(s, dim=-1)
error = (torch.exp(s - lse[:, None]) - torch.softmax(s, dim=-1)).abs().max().item()
print(f"exp(s - lse) against softmax: largest difference below 1e-15: {error < 1e-15}")
print(f"{s.numel()} scores came down to {lse.numel()} numbers: {[round(x, 3) for x in lse.tolist()]}")

# %% [markdown]
# ## Masks, and which corner they hang from
#
# A language model must not look ahead: hidden scores become −∞, so their weight is 0. With as many queries as keys that is a
# triangle. But in decoding there is *one* new query and a long cache of keys. Then there are two ways to place the triangle.

# %%
top_left = torch.ones(8, 8, dtype=torch.bool).tril()[:3]
bottom_right = mask.mask(3, 8, causal=True)
print("keys that each of the 3 queries sees, top left    :", top_left.sum(dim=1).tolist())
print("keys that each of the 3 queries sees, bottom right:", bottom_right.sum(dim=1).tolist())
pictures.two_masks(top_left, bottom_right)

# %% [markdown]
# The last query is the newest token, and the last key is that same token. So they belong together: **bottom right**. That is what
# flash-attn does from version 2.1 on, and what flashlab does. PyTorch's `is_causal=True` hangs the triangle from the top left. See what
# that makes of a decode step:

# %%
torch.manual_seed(3)
new_q, cached_k, cached_v = torch.randn(1, 1, 4), torch.randn(1, 8, 4), torch.randn(1, 8, 4)
theirs = F.scaled_dot_product_attention(new_q, cached_k, cached_v, is_causal=True)
everything = F.scaled_dot_product_attention(new_q, cached_k, cached_v)
print("is_causal=True gives the first value alone :", torch.allclose(theirs, cached_v[:, :1]))
print("is_causal=True gives what a step should give:", torch.allclose(theirs, everything))

# %% [markdown]
# No error, no warning, a wrong token. Write the mask that is right.

# %%
# spec: 01.causal_mask

# %%
# exercise: 01.causal_mask

# %%
check("01.causal_mask", causal_mask)

# %% [markdown]
# ## Grouped queries
#
# A layer has many heads, each with its own q, k and v. The keys and values of all past tokens must be kept, and that gets large.
# So newer models let a *group* of query heads share one KV head (GQA, arXiv 2305.13245; with a single one, MQA, arXiv 1911.02150):
#
# $$\text{query head } h \text{ reads KV head } \lfloor h \,/\, (\text{heads}_q / \text{heads}_{kv}) \rfloor$$

# %%
print("K and V of 131,072 tokens, one layer, head_dim 128, bf16:")
sharing = {"one KV head for each query head": 32, "groups of 4, as in Llama-3-8B": 8, "one for all": 1}
for model, heads_kv in sharing.items():
    print(f"  {model:32} {heads_kv:2} KV heads  {2 * heads_kv * 131072 * 128 * 2 / 1e9:.2f} GB")

# %% [markdown]
# Sharing saves memory only if nobody copies K for every query head afterwards. `repeat_interleave` does that, and so does a broadcast
# in a matrix product. There is a way without a copy, and it is the trick behind fast decoding kernels.

# %%
# spec: 01.grouped_attention

# %%
# exercise: 01.grouped_attention

# %%
check("01.grouped_attention", grouped_attention)

# %% [markdown]
# In a decode step each head has one query. Folded, K is read once for the whole group, and each key works for all of its queries.

# %%
pictures.folding(heads_q=8, heads_kv=2)
print("FLOP per byte of K in bf16: copied", 2 * 1 / 2, "   folded", 2 * 4 / 2)

# %% [markdown]
# ## All of it together
#
# Now write the whole thing yourself: scale, mask, stable softmax, lse. The spec is flashlab's own oracle. One case is new. With more
# queries than keys the first queries see nothing. Then the sum is empty: o is 0 and lse is −∞.

# %%
# spec: 01.masked_attention

# %%
# exercise: 01.masked_attention

# %%
check("01.masked_attention", masked_attention)

# %% [markdown]
# Here is the oracle that every kernel of this package answers to, opened from the installed source. Look for your own lines.

# %%
source = inspect.getsource(naive.attention)
print(textwrap.dedent(source[source.index("    i = torch.arange") :]))

# %% [markdown]
# What it adds to yours:
#
# | line | what for |
# |---|---|
# | `dtype` (float64) | an oracle must be better than what it judges |
# | `allowed(i, j, ...)` | one rule for causal masks, sliding windows and ragged lengths |
# | `masked_fill(unseen_k...)` | NaN in an unused cache slot must not leak: 0 × NaN is NaN |
# | `repeat_interleave` | it *does* copy K: an oracle may be slow, but it must be obviously right |
# | `softcap`, `alibi_slopes` | two changes to the scores that models in use make |
# | `p ... masked_fill(~seen, 0)` | a row that sees nothing |

# %%
q4, k4, v4 = (torch.randn(1, 5, 2, 4, dtype=torch.float64) for _ in range(3))
o, lse = naive.attention(q4, k4, v4, causal=True)
heads_first = [x.transpose(1, 2) for x in (q4, k4, v4)]
theirs = F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
print("o is (batch, seqlen, heads, head_dim) =", tuple(o.shape))
print("lse is (batch, heads, seqlen) =", tuple(lse.shape))
print("on a square, PyTorch agrees:", torch.allclose(o, theirs))

# %% [markdown]
# ## The bill
#
# So far for what it computes. PyTorch runs it as three kernels, and a kernel's only way to hand something on is through HBM:
#
# | kernel | reads | writes |
# |---|---|---|
# | $S = QK^T$ | q, k | **S** |
# | $P = \text{softmax}(S)$ | **S** | **P** |
# | $O = PV$ | **P**, v | o |
#
# The narrow tensors have $N d$ elements, S and P have $N^2$, and each of those moves twice. For one head that is
#
# $$\text{elements} = 4Nd + 4N^2$$

# %%
predict("01.prefill_traffic", GB=...)

# %%
# spec: 01.naive_bytes

# %%
# exercise: 01.naive_bytes

# %%
check("01.naive_bytes", naive_bytes)

# %% [markdown]
# Is that formula true? The package has a naive attention that is billed for every load and store. Run it and compare.

# %%
n, head_dim = 64, 16
q1, k1, v1 = (torch.randn(n, head_dim, dtype=torch.float64) for _ in range(3))
counted = tiled.naive(q1, k1, v1, element_bytes=2).hbm.traffic()
print("read   ", counted.reads)
print("written", counted.writes)
print(f"counted {counted.total} bytes, formula {2 * (4 * n * head_dim + 4 * n * n)}")

# %% [markdown]
# Now a layer of Llama-3-8B, from 1k to 128k tokens.

# %%
lengths = [2**i * 1024 for i in range(8)]
narrow = [2 * (2 * 32 + 2 * 8) * n * 128 / 1e9 for n in lengths]  # q, o: 32 heads; k, v: 8; bf16
scores = [2 * 4 * 32 * n * n / 1e9 for n in lengths]
for n, a, b in zip(lengths, narrow, scores, strict=True):
    print(f"{n:7} tokens: q, k, v, o {a:6.2f} GB   S and P {b:8.1f} GB   {b / a:6.0f} times")
pictures.traffic(lengths, narrow, scores, marked=8192)

# %% [markdown]
# Traffic is one thing. S also has to *be* somewhere.

# %%
predict("01.scores_size", GiB=...)

# %%
room = gpu("h200").memory_bytes / 2**30
for n in (8192, 32768, 131072):
    print(f"{n:7} tokens: S takes {32 * n * n * 2 / 2**30:7.1f} GiB; an H200 has {room:.0f}")

# %% [markdown]
# ## Where the steps stand on the roofline
#
# Bytes alone do not decide: the work is quadratic as well, $4N^2d$ FLOP a head. So look at the quotient. For long prompts in bf16, with
# as many KV heads as query heads:
#
# $$I_\text{naive} = \frac{4N^2d}{2 \cdot 4N^2} = \frac{d}{2} = 64, \qquad I_\text{fused} = \frac{4N^2d}{2 \cdot 4Nd} = \frac{N}{2} = 4096$$
#
# for d = 128 and N = 8192. *Fused* means: one kernel that never lets S leave the chip. The N² cancels in the first and not in the second.

# %%
layer = dict(heads_q=32, heads_kv=8, head_dim=128)
prefill = roofline("h200", seqlen_q=8192, seqlen_k=8192, **layer)
print(f"{prefill.gpu}, ridge {prefill.ridge:.0f} FLOP per byte; a prompt of 8192 tokens, one layer")
for step in prefill.steps:
    work = f"{step.flop / 1e9:7.1f} GFLOP {step.bytes / 1e9:6.2f} GB"
    print(f"  {step.name:8} {work}  {step.intensity:7.1f} FLOP per byte  {step.bound:7}  {step.time_s * 1e3:.2f} ms")
decode = roofline("h200", seqlen_q=1, seqlen_k=131072, **layer)
rooflines(("h200", "a100"), {
    "softmax": prefill.softmax.intensity,
    "decode, fused": decode.fused.intensity,
    "QK and PV": prefill.qk.intensity,
    "prefill, fused": prefill.fused.intensity,
})

# %% [markdown]
# Even the two matrix products stay left of the ridge. Each does 2d FLOP for an element of S that it has to move: at most d = 128 FLOP per
# byte, and an H200 wants 206. (An A100 wants 153.) So *all* of naive attention waits for memory, and the fused kernel does not. It does
# the same arithmetic.
#
# ## Recorded
#
# The roofline gives a floor: no kernel can be quicker. What does PyTorch take? One H200, 16 heads, head_dim 128, 16,384 tokens in all.

# %%
SIZES = ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k", "head_dim")
STEPS = ("scores", "softmax", "output", "fused")


def floors(shape):  # milliseconds
    found = roofline("h200", **dict(zip(SIZES, shape, strict=True)))
    return {name: step.time_s * 1e3 for name, step in zip(STEPS, found.steps, strict=True)}


print(f"Recorded: {recorded.WHEN}.")
print(f"{'ms, floor / recorded':22}" + "".join(f"{name:>17}" for name in STEPS))
for shape, times in recorded.PREFILL.items():
    floor = floors(shape)
    steps = "".join(f"{floor[name]:9.2f} /{times[name] / 1e3:6.2f}" for name in STEPS)
    print(f"{shape[0]:4} x {shape[3]:5} tokens     {steps}")
shown = [(16, 16, 16, 1024, 1024, 128), (4, 16, 16, 4096, 4096, 128)]
pictures.predicted_and_recorded(
    [f"{shape[0]} x {shape[3]} tokens" for shape in shown],
    [floors(shape) for shape in shown],
    [{name: us / 1e3 for name, us in recorded.PREFILL[shape].items()} for shape in shown],
)

# %% [markdown]
# The two products take 1.2 to 1.6 times their floor. The softmax takes nearly four times its own at 4096 tokens, for reasons of that
# kernel and not of its bytes: a floor is a bound, not a forecast. And the fused kernel, bound by arithmetic, takes a third of
# the time of the three steps. (It is FlashAttention-2, written for the A100, and takes 2.8 times its floor here. Lesson 05 asks why.)
#
# One trap is in the record: `s = q @ k.T * scale` reads and writes S once more. Scaling q instead is free.

# %%
shape = (4, 16, 16, 4096, 4096, 128)
pass_ms = 2 * 2 * 4 * 16 * 4096**2 / gpu("h200").hbm_bytes_per_s * 1e3
times = recorded.PREFILL[shape]
print(f"scaling S at 4 x 4096 tokens: predicted {pass_ms:.2f} ms, recorded {times['scaling'] / 1e3:.2f} ms")
print(f"all of fused attention:                         recorded {times['fused'] / 1e3:.2f} ms")

# %% [markdown]
# ## Decoding is another animal
#
# A model that writes a text computes attention once for each new token: one query, against the keys and values of all tokens so far. Those
# do not change any more, so they are kept: the **KV cache**. Its answer is the last row of causal attention over everything.

# %%
torch.manual_seed(4)
q, k, v = (torch.randn(1, 9, 2, 4, dtype=torch.float64) for _ in range(3))  # 9 tokens, 2 heads
everything, _ = naive.attention(q, k, v, causal=True)
last_token, _ = naive.attention(q[:, -1:], k, v, causal=True)
print("the decode step is the last row:", torch.allclose(last_token, everything[:, -1:], rtol=0, atol=1e-12))

# %% [markdown]
# With **one** query S is no longer a matrix but a row for each head: 1 × N. So is the saying right that inference suffers from
# "reading and writing intermediate results"? Commit first.

# %%
predict("01.decode_share", percent=...)

# %%
def parts(seqlen_q, seqlen_k, heads_kv):
    return {
        "q and o": 2 * 2 * 32 * seqlen_q * 128,
        "k and v": 2 * 2 * heads_kv * seqlen_k * 128,
        "s and p": 2 * 4 * 32 * seqlen_q * seqlen_k,
    }


cases = {
    "prompt of 8192 tokens": parts(8192, 8192, 8),
    "one token after 131,072, GQA": parts(1, 131072, 8),
    "the same with 32 KV heads": parts(1, 131072, 32),
}
for name, sizes in cases.items():
    print(f"{name:30} " + "   ".join(f"{part} {size / 1e6:9.2f} MB" for part, size in sizes.items()))
pictures.shares(cases)

# %% [markdown]
# **Half right.** For a prompt the intermediates are 99% of the bytes, and FlashAttention removes them. For decoding they are 6%, or 2%: what
# is read is **K and V**, and no fusion removes those. Each byte of them is used once for each query head of its group. That makes 4 FLOP
# per byte here, 2% of the H200's ridge. So a decode step cannot be quicker than its cache can be read.

# %%
predict("01.decode_time", us=...)

# %%
print(f"Recorded: {recorded.WHEN}.")
print("Batch 1, 32 query heads, 8 KV heads.")
print(f"{'us, floor / recorded':22}" + "".join(f"{name:>17}" for name in STEPS))
for shape, times in recorded.DECODE.items():
    floor = floors(shape)
    steps = "".join(f"{floor[name] * 1e3:9.1f} /{times[name]:6.1f}" for name in STEPS)
    print(f"{shape[4]:9} keys        {steps}")

# %% [markdown]
# Look at the softmax of 131,072 keys. It moves 17 MB, which is nothing: 3.5 us. It took 36. There are 32 rows, PyTorch gives each row a
# block, and so 100 of 132 SMs had nothing to do. The *few blocks* of lesson 00 again. The fused kernel takes 1.4 times its
# floor at this length, because it shares the keys out among more blocks. How it does that is the other half of this course: lessons 08 and 09.
#
# ## Your own GPU
#
# Where there is one, this times the same steps on it.

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_01.measure import naive_steps

    for shape in ((4, 16, 16, 2048, 2048, 128), (1, 32, 8, 1, 32768, 128)):
        times = {name: round(us, 1) for name, us in naive_steps(*shape).items()}
        print(torch.cuda.get_device_name(), dict(zip(SIZES, shape, strict=True)), "microseconds:", times)
else:
    print("No GPU here. The recorded numbers above are an H200's.")

# %% [markdown]
# > **To keep**
# > - Attention is an average of values, weighted by a softmax of $q \cdot k / \sqrt{d}$. The weights are $e^{s - \text{lse}}$.
# > - Subtract the row's maximum before exp. A row that sees no key gives o = 0 and lse = −∞.
# > - Causal masks hang from the bottom right: the last query stands at the last key.
# > - Query heads that share keys are rows of one matrix: fold them, do not copy K.
# > - Naive attention moves $4Nd + 4N^2$ elements. Its intensity is d/2, whatever N; fused it would be N/2.
# > - In decoding the intermediates are a few percent. The cache is the traffic.
#
# **Left out.** Dropout, and the backward pass, which would need P again (lesson 06). Projections around attention: for short prompts
# they cost more than attention does. Where the idea loses: while the S of all heads fits the L2 cache it hardly sees HBM, and short rows
# leave little to save. At 512 tokens the recorded gain is 1.8, at 4096 it is 2.9. In a decode step of 8192 keys the three steps take 35 us and
# PyTorch's fused kernel 29, four times its floor: there the launch and the idle SMs decide.
#
# **Read next.** Dao et al., *FlashAttention* (arXiv 2205.14135), sections 2 and 3.1: you have just derived its Algorithm 0. Milakov and
# Gimelshein, *Online normalizer calculation for softmax* (arXiv 1805.02867), which lesson 02 builds.
