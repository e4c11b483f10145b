# %% [markdown]
# # 08 · Decoding underfills the GPU
#
# **What you will build**
# 1. The grid of a decode step, counted from the running kernels, and a packed decode kernel of your own in Triton.
# 2. A model of its time in one line, held against an H200: bytes over what that many blocks can read.
# 3. The batch that would fill the GPU, and the batch that its memory allows. They are not the same one.
#
# You need lessons 00, 03 and 04. Allow 90 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import inspect
import itertools

import torch

from flashlab.attention import flash_attn_func, flash_attn_with_kvcache
from flashlab.course import check, hint, predict, progress, quiz, solution, start
from flashlab.course.lessons.lesson_08 import (
    A100,
    H200,
    attention_share,
    full_batch,
    intensity,
    pictures,
    predicted_us,
    recorded,
    spec_of_llama,
    step_s,
    weights_bytes,
)
from flashlab.course.trace import trace
from flashlab.hardware import decode_grid, gpu, prefill_grid, underuse
from flashlab.kernels import decode, decode_plan
from flashlab.sizing import explain, max_context, plan, show_bytes
from flashlab.widgets import SMGrid

# isort: split
import triton  # after flashlab, which decides where kernels run
import triton.language as tl

start("08")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("08.q1")

# %%
quiz("08.q2")

# %% [markdown]
# ## One query
#
# A model writes one token at a time. Each new token asks all earlier ones:
#
# $$o = \text{softmax}\left(\frac{q K^\top}{\sqrt d}\right) V \qquad q: 1 \times d, \quad K, V: N \times d$$
#
# K and V of the earlier tokens are kept, that is the **KV cache**. So $q$ has *one* row. FlashAttention-2 made a program
# of each tile of queries. What is left of that grid when the queries go?

# %%
print("32 query heads, batch 1, BLOCK_M = 128")
for seqlen_q in (4096, 1024, 128, 1):
    grid = prefill_grid(batch=1, heads_q=32, heads_kv=8, seqlen_q=seqlen_q, seqlen_k=4096)
    print(f"{seqlen_q:5} queries: {grid.query_blocks:2} tiles x {grid.heads} heads = {grid.blocks:4} blocks")

# %% [markdown]
# A prompt of 4096 tokens gives an H200 (132 SMs) 1024 blocks, nearly eight for each SM. One token gives it 32.
#
# There is more to it. Llama-3.1-8B has 32 query heads and 8 kv heads: 4 query heads attend to the *same* K and V. A
# decode kernel puts those 4 rows into one tile, so that K and V are read once for all of them. That is **GQA packing**.

# %%
predict("08.blocks", blocks=...)

# %% [markdown]
# Ask the kernels. `trace` runs a call in the interpreter and writes down every launch, and what each program loads and
# stores. First the prefill kernel with a single query, then the decode kernel, told not to split. 256 keys will do.

# %%
def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).half()


q, k, v = normal(1, 1, 32, 128), normal(1, 256, 8, 128), normal(1, 256, 8, 128)
unpacked = trace(lambda: flash_attn_func(q, k, v))
packed = trace(lambda: flash_attn_with_kvcache(q, k, v, num_splits=1))
for name, seen in (("prefill kernel", unpacked), ("decode kernel", packed)):
    print(f"{name}: {len(seen.launches[0].programs)} programs, K loaded {seen.loaded['k']:,} bytes")
print(f"K is {k.nbytes:,} bytes;  same output: {torch.allclose(unpacked.result, packed.result, atol=1e-3)}")

# %% [markdown]
# 32 programs against 8. And look at the bytes: the 32 programs load K *four times*, once for each query head, and the 8
# load it once. In a picture:

# %%
pictures.packing()

# %% [markdown]
# So packing trades blocks for bytes. A quarter of the bytes, and a quarter of the blocks. And what are those bytes?

# %%
moved = {name: packed.loaded.get(name, 0) + packed.stored.get(name, 0) for name in ("q", "k", "v", "o")}
print("256 keys:", ", ".join(f"{name} {100 * size / packed.total:.1f}%" for name, size in moved.items()))
kv, qo = 2 * 8 * 131072 * 128, 2 * 32 * 128  # elements
print(f"131072 keys: K and V {100 * kv / (kv + qo):.3f}%")

# %% [markdown]
# K and V. You may read that the bottleneck of inference is "reading and writing intermediate results". Half right: it is
# reading, but of the *cache*. Scores and probabilities have not left the chip since lesson 03, and with one query they
# would be small.
#
# Does the length of the cache bring more blocks?

# %%
for seqlen_k in (64, 256, 1024):
    cache = normal(1, seqlen_k, 8, 128)
    seen = trace(lambda cache=cache: flash_attn_with_kvcache(q, cache, cache, num_splits=1))
    per_program = {loaded for program in seen.launches[0].programs.values() for loaded, _ in [program["k"]]}
    print(f"{seqlen_k:5} keys: {len(seen.launches[0].programs)} programs, each loads {per_program.pop():,} bytes of K")

# %% [markdown]
# No. A longer cache makes a longer *loop* in each of the 8 programs. Write the grid as a formula. One line is missing.

# %%
# spec: 08.decode_blocks

# %%
# exercise: 08.decode_blocks

# %%
check("08.decode_blocks", decode_blocks)

# %% [markdown]
# `flashlab.hardware` counts the same way, and knows the tiles of keys beside them:

# %%
print(decode_grid(batch=16, heads_q=32, heads_kv=8, seqlen_k=8192, block_n=64))

# %% [markdown]
# ## A decode kernel
#
# Now the kernel. First without packing, complete: a program is one query head. It finds the kv head that it reads, and
# walks over its keys, one row against a tile. A single row needs no matrix instruction: multiply and sum.

# %%
@triton.jit
def unpacked_kernel(p_q, p_k, p_v, p_o, seqlen_k, scale, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr):
    head, dims = tl.program_id(0), tl.arange(0, D)
    kv_head = head // GROUP
    b_q = tl.load(p_q + head * D + dims)  # one row
    m = tl.full([], float("-inf"), tl.float32)
    l = tl.zeros([], tl.float32)
    acc = tl.zeros([D], tl.float32)
    for start_n in range(0, seqlen_k, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k
        keys = (kv_head * seqlen_k + cols)[:, None] * D + dims
        b_k = tl.load(p_k + keys, mask=inside[:, None], other=0.0)
        b_v = tl.load(p_v + keys, mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(b_k * b_q, 1) * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 0))
        rescale = tl.exp(m - m_new)
        p = tl.exp(s - m_new)
        l = l * rescale + tl.sum(p, 0)
        acc = acc * rescale + tl.sum(p[:, None] * b_v, 0)
        m = m_new
    tl.store(p_o + head * D + dims, acc / l)


# %%
q, k, v = normal(1, 8, 16).float(), normal(1, 2, 40, 16).float(), normal(1, 2, 40, 16).float()
o = torch.empty_like(q)
seen = trace(lambda: unpacked_kernel[(8,)](q, k, v, o, 40, 16**-0.5, GROUP=4, D=16, BLOCK_N=16))
print(seen)
print(f"K is {k.nbytes:,} bytes, loaded {seen.loaded['k'] // k.nbytes} times")

# %% [markdown]
# Now yours: one program for each *kv head*, with the GROUP query heads as rows. $m$ and $l$ get a number for each row,
# acc a row for each. Shapes are the hard part: scores of GROUP x BLOCK_N come from `b_q[:, None, :] * b_k[None, :, :]`,
# summed over the last dimension.

# %%
# spec: 08.packed_decode

# %%
# exercise: 08.packed_decode

# %%
check("08.packed_decode", packed_decode)

# %% [markdown]
# The last sub-check traces your kernel. The unpacked one gives the right answer too, and fails it. While your kernel is
# graded, an element outside a tensor reads as NaN, so a forgotten mask shows.
#
# (Your sum of products runs on ordinary arithmetic units. Production uses the tensor core, `tl.dot`, and pads the rows to
# its 8 or 16. Why that costs nothing you will see below.)

# %% [markdown]
# ## "Less than 1% of an A100"
#
# You may have read this: with a batch smaller than the 108 SMs of an A100 a GPU is underused while decoding, and batch 1
# uses *less than 1%* of it. It is said of
# FlashAttention at long contexts. Is it so? Commit first.

# %%
predict("08.percent", percent=...)

# %%
pictures.three_readings()
share = underuse(batch=1, heads_q=32, heads_kv=8, sms=A100.sms)
print(f"one block a sequence     1 of {A100.sms}: {100 * share.batch_alone:5.2f}%")
print(f"one block a kv head      8 of {A100.sms}: {100 * share.gqa_packed:5.2f}%")
print(f"one block a query head  32 of {A100.sms}: {100 * share.per_query_head:5.2f}%")

# %% [markdown]
# Three readings, and only the first is below 1%. It compares the *batch* with the SMs, as if a sequence were one block.
# No FlashAttention launches that grid: heads have had blocks of their own since the first version. What the traced
# kernels launched are the other two. So, put right:
#
# - a kernel without packing gives 32 of 108 SMs a block: **29.6%**, and reads K and V four times;
# - a kernel with packing gives 8 of 108 a block: **7.4%**;
# - **0.93%** needs a model with a *single* kv head, or a single kv head on each GPU.
#
# The last case is not far-fetched. Now write all three.

# %%
# spec: 08.sms_at_work

# %%
# exercise: 08.sms_at_work

# %%
check("08.sms_at_work", sms_at_work)

# %%
print("batch 1, packed, on one A100 of a tensor-parallel group")
for model, heads_q, heads_kv in (("Llama-2-7B", 32, 32), ("Llama-3.1-8B", 32, 8), ("Llama-3.1-70B", 64, 8)):
    for gpus in (1, 8):
        q_here, kv_here = heads_q // gpus, heads_kv // gpus
        at_work = underuse(batch=1, heads_q=q_here, heads_kv=kv_here, sms=A100.sms).gqa_packed
        print(f"{model:14} {gpus} GPUs: {kv_here:2} kv heads here, {100 * at_work:5.2f}% of the SMs")

# %% [markdown]
# Share 8 kv heads among 8 GPUs, and each has *one*. There it is, the 0.93%.
#
# Mind also what is measured. SMs with a block is one thing, bandwidth another, arithmetic a third. Of the arithmetic a
# decode step uses very little, and it stays so when every SM is at work. That comes first.
#
# ## How much work is in a byte?
#
# Lesson 03: intensity is about the rows of the query tile. A kernel may *reserve* 64 rows, or 16. Rows that hold no
# query do no useful work. So: how many queries use a key while it is on the chip? And does a batch help?

# %%
predict("08.batch_gain", times=...)

# %% [markdown]
# Two FLOP a multiply-add, in two products; 2 bytes an element, in K and in V:
#
# $$I = \frac{4 \cdot b \cdot h_q \cdot N \cdot d}{2 \cdot (2 \cdot b \cdot h_{kv} \cdot N \cdot d)} = \frac{h_q}{h_{kv}}
# \quad \text{in 16 bits, for a long cache}$$
#
# The group is all there is. Write it, with q and o counted as well.

# %%
# spec: 08.step_intensity

# %%
# exercise: 08.step_intensity

# %%
check("08.step_intensity", step_intensity)

# %%
print("attention, 8192 keys, head_dim 128, 16 bits; query heads x kv heads")
for heads_q, heads_kv in ((32, 32), (32, 8), (64, 8), (32, 1)):
    row = {batch: intensity(batch, heads_q, heads_kv, 8192) for batch in (1, 64, 256)}
    print(f"{heads_q} x {heads_kv:2}: " + ", ".join(f"batch {batch}: {i:5.2f}" for batch, i in row.items()))
print(f"needed to be busy on an H200: {H200.ridge:.0f} FLOP per byte; on an A100: {A100.ridge:.0f}")

# %% [markdown]
# The batch cancels. Each sequence brings its own K and V, so it brings its own bytes. A *weight* is another matter: all
# sequences use the same one, a weight of 2 bytes does 2 FLOP for each of them, so its intensity **is** the batch.

# %%
pictures.two_intensities()
for group in (1, 2, 4, 8):
    rate = intensity(1, 8 * group, 8, 131072) * recorded.gpu_bytes_per_s()  # FLOP per second, every SM at work
    print(f"{group} query heads per kv head: at most {100 * rate / H200.dense_16bit_flops:.1f}% of an H200's arithmetic")

# %% [markdown]
# At most, and with every SM at work. With a group of 1 or 2, "less than 1%" *of the arithmetic* is the plain truth, for
# any batch and any kernel. What a kernel can help is the bandwidth. So forget FLOP in a decode step: count bytes, and ask
# how fast they come.
#
# ## How long does it take?
#
# Lesson 00 had 132 blocks read less than a third of the bandwidth. Here is such a curve again, for a kernel that keeps
# more loads under way, and which reads large pieces. It reads, and does nothing else.

# %%
print(f"Recorded: {recorded.when('launch')}")
print("blocks     GB/s   of the most")
for blocks, rate in recorded.underfill().items():
    if blocks in (1, 8, 32, 64, 132, 264, 528, 2112):
        print(f"{blocks:6} {rate / 1e9:8.0f} {100 * rate / recorded.gpu_bytes_per_s():10.1f}%")

# %% [markdown]
# (Lesson 00's single block read 10.5 GB/s, this one reads 35. Both on an H200, both with 256 threads. What differs is
# the bytes that each has under way: Little's law. A curve like this belongs to a *kernel*.)
#
# A decode step of batch 1 has 8 blocks and 131072 keys to read. How long?

# %%
predict("08.unsplit", us=...)

# %% [markdown]
# And when the whole GPU is at work?

# %%
predict("08.filled", us=...)

# %%
size = recorded.kv_bytes(1, 8, 131072)
one_split = recorded.decode(1, 32, 8, 131072, "flashlab-unsplit")
chosen = recorded.decode(1, 32, 8, 131072)
splits = recorded.launch(1, 32, 8, 131072)[1]
print(f"Recorded: {recorded.when()}")
print(f"K and V of one layer: {show_bytes(size)}")
for what, us in (
    ("predicted by the datasheet", size / H200.hbm_bytes_per_s * 1e6),
    ("predicted for 8 blocks", size / recorded.read_rate(8) * 1e6),
    ("recorded, 8 blocks", one_split),
    (f"recorded, {splits} splits (lesson 09)", chosen),
):
    print(f"{what:30} {us:5.0f} us, {size / us / 1e3:5.0f} GB/s")
print(f"with all SMs at work {one_split / chosen:.1f} times as fast")

# %% [markdown]
# 2.1 ms, for the attention of *one* layer. 17 times what the same GPU needs when all of it is at work. Which share of it
# did the 8 blocks use, then?

# %%
flop = 4 * 32 * 131072 * 128
print(f"SMs with a block:  {100 * 8 / H200.sms:5.2f}%")
print(f"bandwidth reached: {100 * size / one_split / 1e-6 / recorded.gpu_bytes_per_s():5.2f}% of the most it reads")
print(f"arithmetic done:   {100 * flop / (one_split * 1e-6) / H200.dense_16bit_flops:5.2f}% of the datasheet's dense rate")
print(f"          and with all SMs at work: {100 * flop / (chosen * 1e-6) / H200.dense_16bit_flops:.2f}%")

# %% [markdown]
# So: 6% of the SMs, 6% of the bandwidth, 0.1% of the arithmetic. When you read a percentage, ask *of what*.
#
# The time as a formula. Blocks read at their own pace until together they reach the pace of the memory; computing goes
# on meanwhile:
#
# $$t = \max\left(\frac{\text{bytes}}{\min(\text{blocks} \cdot r_{\text{block}},\ r_{\text{GPU}})},\
# \frac{\text{FLOP}}{\min(\text{blocks}, \text{SMs}) \cdot f_{\text{SM}}}\right)$$

# %%
# spec: 08.decode_us

# %%
# exercise: 08.decode_us

# %%
check("08.decode_us", decode_us)

# %% [markdown]
# Now against the record: every decode step that was timed with one split. *Two bounds* is your formula. *Curve* takes the
# rate from the recorded curve above.

# %%
print(f"Recorded: {recorded.when()}")
print("bf16, head_dim 128; us; the tile is BLOCK_N / warps / stages")
print("batch  heads    keys  blocks  tile     two bounds  curve  recorded   GB/s")
for batch, heads_q, heads_kv, seqlen_k, peer in recorded.UNSPLIT:
    size, blocks = recorded.kv_bytes(batch, heads_kv, seqlen_k), batch * heads_kv
    bounds = predicted_us(batch, heads_q, heads_kv, seqlen_k)
    us = recorded.decode(batch, heads_q, heads_kv, seqlen_k, peer)
    curve, tile = size / recorded.read_rate(blocks) * 1e6, recorded.launch(batch, heads_q, heads_kv, seqlen_k)[0]
    tile = f"{tile.BLOCK_N}/{tile.num_warps}/{tile.num_stages}"
    print(f"{batch:5} {heads_q:3}/{heads_kv:<2} {seqlen_k:7} {blocks:7}  {tile:8} {bounds:10.0f} {curve:6.0f} {us:9.0f} "
          f"{size / us / 1e3:6.0f}")
pictures.rates()

# %% [markdown]
# - **8 blocks**: 8 to 17% longer than predicted. The kernel also computes, and at 8192 keys the fixed cost of a launch
#   begins to show.
# - **One block**: faster than predicted, 41 GB/s. The package has a larger tile there, with more bytes under way.
# - **512 and 1024 blocks**: as predicted. The memory sets the pace, and nobody needs to know which kernel it is.
# - **128 blocks** is where the two predictions disagree, 120 and 160, and the record says 125. Again it is the tile: for
#   a grid of about one block an SM the package takes one of 64 keys and four stages, with much more under way.
#
# The crosses are batch 1 with its keys *split*, n splits being 8n blocks. They fall on the same line. Memory does not
# know whether a block is there because of the batch or because of a split. Hence two ways out of the corner: more
# sequences, this lesson; more blocks for each, the next.
#
# ## What a batch buys
#
# More sequences are more blocks. Enough of them, and every SM has one.

# %%
predict("08.full_batch", sequences=...)

# %%
print("smallest batch that gives every SM a block: one a query head / one a kv head / one a sequence")
for name in ("a100", "h200", "b200"):
    sms = gpu(name).sms
    print(f"{gpu(name).name:14} {sms} SMs: {full_batch(sms, 32):3} / {full_batch(sms, 8):3} / {full_batch(sms, 1):3}")

# %% [markdown]
# "Batch below the number of SMs" was the claim. It is 17 sequences on an H200, not 132. (A block on each SM is not yet all
# of the bandwidth. In the curve above 132 blocks reach 76%; a decode tile with more under way reaches 96%, at batch 16.)
#
# 16 sequences as a picture. At the right is the time that `flashlab.hardware` predicts for any number of splits, start and
# second launch included, of a kernel with tiles of 64 keys and 4 warps on two places an SM:

# %%
step = SMGrid(batch=16, seqlen_k=8192)
step.figure()

# %% [markdown]
# Four SMs have nothing to do. Drive it: one sequence more; then batch 1; then 131072 keys. What does the left half say to
# that?

# %%
step

# %% [markdown]
# The keys change the time and not a single square.
#
# And a batch buys something else, which has nothing to do with attention: the weights are read once for all. A step of
# the whole model reads
#
# $$\text{bytes} = \underbrace{\text{weights}}_{\text{once}} + \text{batch} \times \text{cache of one sequence}$$

# %%
one = spec_of_llama().bytes_per_token()
print(f"Llama-3.1-8B: weights {weights_bytes() / 1e9:.2f} GB; a token of the cache 2 x 32 x 8 x 128 x 2 = {one:,} bytes")
print("tokens a second of all sequences, from the bytes alone, at the H200's best recorded read rate:")
for tokens in (1024, 8192, 32768, 131072):
    most = plan(spec_of_llama(), H200, tokens=tokens).max_batch
    some = [*(batch for batch in (1, 4, 16, 64, 256) if batch < most), most]
    print(f"{tokens:7} tokens: " + ", ".join(f"batch {b}: {b / step_s(b, tokens):.0f}" for b in some))
pictures.tokens_per_second()

# %% [markdown]
# At 1024 tokens a batch of 64 gives 42 times the tokens of a single sequence, since nearly all the bytes are weights. At
# 131072 tokens a sequence's cache is larger than the weights. Then batch 6 is not even twice batch 1, and the memory is
# full. So "use a larger batch" is good advice for short contexts, and does little for long ones.
#
# What does it look like *without* filling the GPU?

# %%
weights_ms = weights_bytes() / recorded.gpu_bytes_per_s() * 1e3
for name, us in (("one split", one_split), (f"{splits} splits", chosen)):
    attention_ms = 32 * us / 1e3
    print(f"131072 tokens, {name:9}: weights {weights_ms:.1f} ms + 32 layers of attention {attention_ms:4.1f} ms: "
          f"{1e3 / (weights_ms + attention_ms):3.0f} tokens a second")
print(f"attention's share of the bytes: {100 * attention_share(1, 131072):.0f}%")

# %% [markdown]
# Half of the bytes, and 95% of the time. That is what 8 blocks cost a whole model.
#
# ## What memory forbids
#
# So take 17 sequences. They are long: 131072 tokens each.

# %%
predict("08.memory", percent=...)

# %%
pictures.memory((1, 3, 6, full_batch()))
fits = plan(spec_of_llama(), H200, tokens=131072)
print(f"memory {show_bytes(fits.budget.memory)}, 90% of it less the weights: {show_bytes(fits.budget.cache)}")
print(f"one sequence {show_bytes(fits.sequence_bytes)}: {fits.max_batch} fit, {full_batch()} would fill the SMs")

# %% [markdown]
# Twice the memory that there is. This part of the claim is right: **long contexts force small batches**, and small
# batches underfill. Mind the units: nvidia-smi says MiB, $2^{20}$ bytes; a GB is $10^9$.
#
# Write the planner.

# %%
# spec: 08.largest_batch

# %%
# exercise: 08.largest_batch

# %%
check("08.largest_batch", largest_batch)

# %%
pictures.fill_and_memory()
for name in ("a100", "h100", "h200", "b200"):
    part = gpu(name)
    room = plan(spec_of_llama(), part, tokens=131072).budget.cache
    batch = plan(spec_of_llama(), part, tokens=131072).max_batch
    edge = max_context(spec_of_llama(), room, full_batch(part.sms))
    print(f"{part.name:13} 131072 tokens: batch {batch}, {8 * batch:2} blocks for {part.sms} SMs "
          f"({100 * 8 * batch / part.sms:2.0f}%); filled up to {edge:,} tokens")

# %% [markdown]
# With an 80 GB GPU the batch that memory allows stops filling the SMs at about 30000 tokens; with an H200 at 54000.
# Beyond that only more blocks *for each sequence* help.
#
# One more thing that goes around: the cache in fp16 takes "4 x n x m x h" bytes, for n tokens in, m tokens out and a
# hidden size h. Let the package answer, for 1024 + 1024 tokens:

# %%
explained = explain(spec_of_llama(), batch=1, input=1024, output=1024)
print("\n= ".join(explained.formula[0].split(" = ")))
for wrong in explained.wrong:
    print(f"{wrong.ratio:4.3g} times: {wrong.name}: {wrong.formula}. {wrong.why}")

# %% [markdown]
# The two lengths must be *added*: the cache holds n + m tokens. With batch $b$, layers $l$ and multi-head attention it is
# $4 \cdot b \cdot l \cdot h \cdot (n + m)$: 2 bytes, K and V (FlexGen, arXiv 2303.06865). With 8 kv heads for 32 query
# heads, as here, a quarter of that. Lesson 10 takes it apart.
#
# ## The claims, one by one
#
# | you may read | and what is so |
# |---|---|
# | a new token attends to all earlier ones | right: one query, the whole cache |
# | FlashAttention runs in parallel over batch and query length, and decoding has a query length of one | right, and heads are left out: the first version ran batch × heads, the second added tiles of queries |
# | with a batch below the number of SMs the GPU is underused | heads count too: an H200 is filled by 17 sequences of 8 kv heads |
# | batch 1 uses less than 1% of an A100 | of its SMs 0.93%, 7.4% or 29.6%, by what counts as a block; on an H200 with 8 blocks 6% of the bandwidth and 0.1% of the arithmetic |
# | the bottleneck is reading and writing intermediate results | it is reading K and V: 99.997% of the bytes at 131072 keys |
# | larger batches raise utilisation | right: of the SMs until they are full, of the weights' arithmetic until the ridge; of attention's arithmetic never |
# | long contexts force small batches | right: 6 of 131072 tokens on an H200 |
# | the cache takes 4·n·m·h bytes | wrong: 4·b·l·h·(n + m), less with fewer kv heads |
#
# ## On your own GPU
#
# 65536 tokens in all, in 1, 4, 16 or 64 sequences. The bytes stay the same; the blocks grow.

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_08 import measure

    sms = torch.cuda.get_device_properties().multi_processor_count
    print(torch.cuda.get_device_name(), f"{sms} SMs, {measure.total_bytes() / 1e9:.2f} GB of K and V")
    for batch, (one_us, chosen_us) in measure.underfill_us().items():
        rate = measure.total_bytes() / one_us / 1e3
        print(f"batch {batch:2}, {8 * batch:3} blocks: one split {one_us:7.1f} us ({rate:5.0f} GB/s), "
              f"the rule's {chosen_us:6.1f} us")
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The package's own source
#
# Where are the 8 blocks in the kernel that `flash_attn_with_kvcache` launches? This is how a program of it finds out who
# it is, from the installed source:

# %%
source = inspect.getsource(decode.decode_kernel.fn)
print(source[source.index("    row_tiles = ") : source.index("    answers = ")])

# %% [markdown]
# Line by line, what production adds to your grid:
#
# - `row_tiles`: your `ceil(queries / BLOCK_M)`, with the packed rows, `seqlen_q * GROUP`. It is 1 in a plain decode step,
#   more for speculative tokens or a very large group.
# - `place`: one number for (batch, kv head, tile of rows), taken apart by `//` and `%`, so that the grid needs no third
#   axis.
# - `split`: the second axis. It is what lesson 09 is about.
# - `BALANCE`: sequences of different lengths, known on the GPU alone. A program then finds its row by adding up.
# - `rows`, `heads`, `is_row`: row i of the tile is query token i // GROUP of head i % GROUP. The tile has at least 8 or 16
#   rows, the tensor core's own size, so with a group of 4 most are empty. It does not matter: FLOP are not the limit.
#
# And the launch:

# %%
source = inspect.getsource(decode_plan.Plan.__init__)
print(source[source.index("        group = ") : source.index("        # The page number")])
print(inspect.getsource(decode_plan.splits_to_fill))

# %% [markdown]
# - `rows / self.device.sms` goes into the choice of the *tile*: how full the grid would be decides how much one block must
#   have under way. Few rows get small tiles and many splits; about one row an SM gets a tile with a deep pipeline.
# - `slots`: how many blocks the GPU holds at once. The rule fills them, and never one more.
#
# What that makes of a growing batch, for an H200:

# %%
print("batch  rows   tile: keys, warps, stages   splits   blocks")
for batch in (1, 2, 4, 8, 12, 16, 17, 32, 64):
    tile, splits = recorded.launch(batch, 32, 8, 32768)
    rows, shape = 8 * batch, f"{tile.BLOCK_N:11} {tile.num_warps:6} {tile.num_stages:7}"
    print(f"{batch:5} {rows:5} {shape} {splits:8} {rows * splits:8}")

# %% [markdown]
# At batch 17 there are 136 blocks for 132 SMs. With one block an SM the last four would have to wait for a second wave.
# Small tiles share an SM, so there is none. Waves are the first subject of lesson 09.
#
# ## Where the idea loses
#
# **A large batch is full already.** At batch 64 and 4096 keys the decode step reads at the best rate that was ever
# recorded on that GPU. There is nothing left to fill, and the rule takes one split.

# %%
print(f"Recorded: {recorded.when()}")
print("us of the decode step, and of a kernel that only loads K and V")
for batch, seqlen_k in ((1, 131072), (1, 8192), (4, 32768), (16, 8192), (64, 4096), (128, 1024)):
    us, loads = (recorded.decode(batch, 32, 8, seqlen_k, peer) for peer in ("flashlab", "loads-alone"))
    splits = recorded.launch(batch, 32, 8, seqlen_k)[1]
    print(f"batch {batch:3} x {seqlen_k:6} keys, {splits:2} splits: {us:5.1f}, loads alone {loads:5.1f}: "
          f"{100 * loads / us:3.0f}%")

# %% [markdown]
# **A short cache has other costs.** 8192 keys at batch 1 are 34 MB, 7.5 us of reading; the step takes 15.9. Starting two
# kernels is as much as reading.
#
# **Packing loses blocks.** It is right whenever bytes are the limit, which is nearly always. The bytes that it saves
# might have come from the L2, though: the heads of a group read the same keys at about the same time.
#
# > **To keep**
# > - Blocks = batch × heads (kv heads, when packed) × ceil(queries / BLOCK_M). The cache is each block's loop.
# > - "Less than 1%": 0.93% counts the batch alone. Real launches are 29.6%, or 7.4% with packing, on an A100 and 32/8
# >   heads. One kv head on each of 8 GPUs is 0.93% after all.
# > - Attention's intensity is the group, about 4 FLOP per byte in bf16, at any batch. The weights' is the batch.
# > - Time = bytes / min(blocks × block rate, GPU rate). 8 blocks on an H200: 2100 us where 126 are enough.
# > - A batch fills the SMs (17 sequences on an H200) and shares the weights. Memory allows 6 of 131072 tokens.
# > - Packed, K and V are loaded once for each kv head; unpacked, once for each query head.
# > - Ask *of what* a percentage is: SMs, bandwidth, or arithmetic.
#
# **Left out.** Sequences of different lengths: the longest decides, unless the work is shared out (lessons 09 and 11).
# Continuous batching, which keeps the batch full while sequences come and go (lesson 11). Smaller caches, which allow
# larger batches (lesson 12). Two tokens at a time, speculative decoding: it raises the rows, and so the intensity.
#
# **Read next.** Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference* (2023), where the 1% comes from;
# read it with your three readings. Pope et al., *Efficiently scaling transformer inference* (arXiv 2211.05102), on what a
# batch buys. Then lesson 09: cut the keys, and give every SM a block at batch 1.
