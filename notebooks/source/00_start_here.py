# %% [markdown]
# # 00 · Start here
#
# **What you will build**
# 1. Three small formulas that size most GPU work on a napkin: bytes, intensity, attainable rate.
# 2. The roofline of three GPUs, with a decode step on it. It stands far to the left, and you will know why.
# 3. Your first predictions. This course asks for a number before it shows one.
#
# You need PyTorch and the chain rule. You need no GPU: every lesson runs on a CPU, and on a GPU unchanged.
# Allow an hour.

# %% tags=["nbval-ignore-output"]
import itertools
import math

import torch

from flashlab.course import check, hint, predict, progress, quiz, solution, start
from flashlab.course.lessons.lesson_00 import pictures, read_gb_per_s_by_latency, recorded
from flashlab.hardware import gpu, measured

start("00")

# %% [markdown]
# That cell is the **canary**. Every lesson begins with it. It says where kernels will run, and it has just run a small
# Triton kernel and compared the result with float64. So a broken installation is named here, with what to do about it.
# In a terminal `.venv/bin/flashlab doctor`, from the folder of your clone, says the same at more length.
#
# ## How a lesson works
#
# | you call | what happens |
# |---|---|
# | `quiz("00.q1")` | asks; `quiz("00.q1", "b")` answers. You learn whether it is right, never what is right. |
# | `predict("00.threads", threads=...)` | asks; put a number in the place of the dots. The first one counts. |
# | `check("00.tensor_bytes", tensor_bytes)` | tests the function you wrote, and says which known mistake it looks like. |
# | `hint("00.tensor_bytes")` | one more step each time you call it. |
# | `solution("00.tensor_bytes")` | the tested answer. Nothing later depends on your having solved anything. |
# | `progress()` | what is done, over all lessons. |
#
# Each lesson opens with two questions on what came before. Nothing came before this one, so these ask whether you are in
# the right place.

# %%
quiz("00.q1")

# %%
quiz("00.q2")

# %% [markdown]
# ## A GPU in numbers
#
# A GPU is many small processors around one large memory. NVIDIA calls the processor a **streaming multiprocessor**, SM.
# An SM runs **warps**: 32 threads that execute the same instruction. It keeps many warps at once, each with its own
# registers, and in every cycle it picks one that is ready.
#
# An H200 has 132 SMs, and each can hold 64 warps. Commit to a number, then look.

# %%
predict("00.threads", threads=...)

# %%
h200 = gpu("h200")
print(f"{h200.sms} SMs x {h200.threads_per_sm} threads = {h200.sms * h200.threads_per_sm:,} threads")
pictures.one_gpu("h200")

# %% [markdown]
# A CPU core makes *one* thread fast. It has large caches and guesses ahead. An SM makes *many* threads fast together: when
# one waits for memory, another computes. So a GPU is quick only when it has a lot to do. Half of this course is about a
# case where it has not.
#
# Mind the two kinds of memory. **HBM** is where tensors live: large and far. **SRAM** is on the chip: registers and shared
# memory in each SM, an L2 for all. How much is on the chip, in all?

# %%
on_chip = {
    "registers": h200.sms * 65536 * 4,  # 65,536 registers of 4 bytes in each SM
    "shared memory": h200.sms * h200.shared_memory_per_sm,
    "L2": h200.l2_bytes,
}
for name, size in on_chip.items():
    print(f"{name:14} {size / 1e6:8,.0f} MB")
times = h200.memory_gb * 1e9 / sum(on_chip.values())
print(f"{'HBM':14} {h200.memory_gb * 1e3:8,.0f} MB, {times:.0f} times all of the above")

# %% [markdown]
# ## Bytes
#
# Everything in this course begins with how many bytes something has:
#
# $$\text{bytes} = \text{elements} \times \text{bytes per element}$$
#
# bfloat16 has 2 bytes, float32 has 4, int8 has 1. In an exercise the **spec** stands first: plain PyTorch that says what is
# wanted. Below it is your **stub**. This first one lacks one line. Put it in the place of the dots.

# %%
# spec: 00.tensor_bytes

# %%
# exercise: 00.tensor_bytes

# %%
check("00.tensor_bytes", tensor_bytes)

# %% [markdown]
# What does a wrong answer look like? Here is one that counts elements. The report says which properties hold, where the
# first difference is, and what the answer looks like. It also says which function it graded.

# %%
check("00.tensor_bytes", lambda shape, dtype: math.prod(shape))

# %% [markdown]
# ## Time is bytes over bandwidth
#
# Reading takes at least
#
# $$t \ge \frac{\text{bytes}}{\text{bandwidth}}$$
#
# and for a great deal of GPU work that is the whole story. A language model that serves one user reads *every* weight for
# *every* token.

# %%
predict("00.weights", ms=...)

# %%
weights = 8.03e9 * 2  # bytes: Llama-3-8B in bf16
reading = weights / h200.hbm_bytes_per_s
computing = 2 * 8.03e9 / h200.dense_16bit_flops  # a multiply-add for each parameter
print(f"reading   {weights / 1e9:.1f} GB    {reading * 1e3:5.2f} ms: at most {1 / reading:.0f} tokens a second")
print(f"computing {2 * 8.03:.1f} GFLOP {computing * 1e3:5.2f} ms: {reading / computing:.0f} times less")

# %% [markdown]
# The arithmetic units are idle for 99.5% of that time. Not because of a bad kernel: the bytes are the limit. Keep this
# number in mind. It comes back in every lesson.
#
# ## Latency, and how it is hidden
#
# Bandwidth says how many bytes arrive in a second. **Latency** says how long *one* load waits. These are recorded: a chain
# of loads, each of which needs the value of the one before.

# %%
print(f"Recorded: {recorded.WHEN}.")
for where, spread, wait in recorded.LATENCY_NS:
    print(f"  {where:18} {wait:6.1f} ns  (lines spread over {spread / 2**20:g} MiB)")
pictures.latencies(clock_ghz=recorded.CLOCK_GHZ)

# %% [markdown]
# A load from HBM waits for about 700 cycles. Nobody makes that wait much shorter. What helps is to have many loads under
# way at the same time. How many is **Little's law**:
#
# $$\text{bytes under way} = \text{bandwidth} \times \text{latency}$$
#
# For the H200's 4.8 TB/s and 353 ns that is 1.7 MB, or 12.8 kB for each SM, at every moment. What has a block of 256
# threads under way? (A *block*, in Triton a *program*, is a group of warps that one SM takes on together.) *Suppose* that
# each thread waits for one 16-byte load at a time: then it is 4 kB. So what do you expect of one block on each SM?

# %%
predict("00.one_block_per_sm", GB_per_s=...)

# %%
print(f"Recorded: {measured.GPU}, {measured.DATE}, torch 2.11.0, triton 3.6.0. GB/s read by blocks of 256 threads")
print("blocks  predicted  recorded")
for blocks, rate in measured.UNDERFILL:
    print(f"{blocks:6} {read_gb_per_s_by_latency(blocks):10.1f} {rate / 1e9:9.1f}")
pictures.underfill()

# %% [markdown]
# The prediction is one line: 4096 bytes a block over 353 ns, and never more than the datasheet's 4800 GB/s. One load of 16
# bytes under way for each thread is an assumption in it: nobody counted them. Read the first row backwards to see how good
# it is: 10.5 GB/s times 353 ns are 3.7 kB. The prediction is too hopeful, by 10% for one block and by 27% for 264, probably
# because a loaded memory answers later than an idle one. But it has the shape.
#
# Look at 32 blocks: 325 GB/s, **7%** of the datasheet. A decode step of a small batch launches about that many. Hold on to
# that picture until lesson 08.
#
# ## Intensity
#
# Some work does a lot with each byte, some does little. The measure is **arithmetic intensity**:
#
# $$I = \frac{\text{FLOP}}{\text{bytes moved to and from HBM}}$$
#
# A product of two matrices, (m, k) by (k, n), does $2mnk$ FLOP, since a multiply-add counts as two. PyTorch can count that by itself,
# and the spec lets it. Write the same as arithmetic.

# %%
# spec: 00.matmul_intensity

# %%
# exercise: 00.matmul_intensity

# %%
check("00.matmul_intensity", matmul_intensity)

# %% [markdown]
# ## The roofline
#
# Two things limit a kernel: how fast the GPU computes, and how fast bytes arrive. Both happen at once, so the slower one
# decides. Write that down as a rate, in FLOP per second. (Williams, Waterman and Patterson, *Roofline*, CACM 2009.)

# %%
# spec: 00.attainable

# %%
# exercise: 00.attainable

# %%
check("00.attainable", attainable)

# %% [markdown]
# The corner is called the **ridge**: peak over bandwidth. To the left of it memory is the limit, to the right arithmetic.
# On an H200 it stands at 206 FLOP per byte. A kernel with less *cannot* be busy, however well it is written.

# %%
for name in ("h200", "h100", "a100", "l4", "t4"):
    part = gpu(name)
    peak, bandwidth = part.dense_16bit_flops / 1e12, part.hbm_bytes_per_s / 1e12
    print(f"{part.name:14} {peak:5.0f} TFLOP/s / {bandwidth:4.2f} TB/s = {part.ridge:4.0f} FLOP per byte")

# %% [markdown]
# One vector times one matrix is what a model does for a single token. Where does that stand?

# %%
predict("00.matvec", percent=...)

# %%
def intensity_of_rows(m, n=4096, k=4096):
    return 2 * m * n * k / (2 * (m * k + k * n + m * n))


points = {
    "add two vectors": 1 / 6,  # 1 FLOP; two bf16 read, one written
    "matrix x 1 row": intensity_of_rows(1),
    "matrix x 64 rows": intensity_of_rows(64),
    "4096-cubed product": intensity_of_rows(4096),
}
for name, intensity in points.items():
    rate = min(h200.dense_16bit_flops, intensity * h200.hbm_bytes_per_s)
    percent = 100 * rate / h200.dense_16bit_flops
    print(f"{name:19} {intensity:8.2f} FLOP per byte   {rate / 1e12:6.1f} TFLOP/s   {percent:6.2f}%")
pictures.rooflines(("h200", "a100", "t4"), points)

# %% [markdown]
# Read the slope from left to right: the *same* weights, used for more rows. Nothing else changed. That is what a larger
# batch buys: each weight is read once and used m times. It buys until the ridge, and nothing after it. Where is that?
# This time solve for it, without a loop.

# %%
# spec: 00.rows_to_fill

# %%
# exercise: 00.rows_to_fill

# %%
check("00.rows_to_fill", rows_to_fill)

# %%
for m in (1, 8, 64, 230, 1024):
    rate = min(h200.dense_16bit_flops, intensity_of_rows(m) * h200.hbm_bytes_per_s)
    us = 2 * m * 4096**2 / rate * 1e6
    print(f"{m:5} rows: {rate / 1e12:6.1f} TFLOP/s, {us:5.1f} us, {us / m * 1e3:7.1f} ns a row")

# %% [markdown]
# One row takes 7 us and so do 64: sixty-three are almost free. "Use a larger batch" is good advice, up to the ridge.
#
# ## What all this is for
#
# Attention in a decode step has one query, and reads the keys and values of all earlier tokens. So it fails twice:
#
# 1. **Little to do for each byte.** A key is read, used for one dot product, and dropped. That is the far left of the roofline.
# 2. **Few blocks.** A kernel that gives each query tile and head one block launches as many blocks as there are heads.
#    With 32 of them most SMs have nothing. That GPU does not even reach its bandwidth.
#
# You may have read that batch 1 uses "less than 1%" of an A100. The napkin says 1 block of 108 SMs.

# %%
a100 = gpu("a100")
readings = {"one block in all": 1, "one for each of 32 query heads": 32, "one for each of 8 KV heads": 8}
for what, blocks in readings.items():
    print(f"{what:32} {blocks:2} of {a100.sms} SMs = {100 * blocks / a100.sms:5.2f}%")

# %% [markdown]
# Three readings, three answers. Which of them a real kernel has is the question of lesson 08. Lesson 09 then fills the rest of the GPU by
# splitting the keys.
#
# ## Your own GPU
#
# Where there is one, this measures the same chain of loads on it.

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_00 import measure

    for name, size in measure.WORKING_SETS.items():
        print(f"{torch.cuda.get_device_name()}: {name:4} {measure.latency_ns(size):6.1f} ns")
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The map
#
# | lesson | the question it answers |
# |---|---|
# | **One head, exactly** | |
# | 01 naive attention | What does the textbook formula cost in bytes? |
# | 02 online softmax | How can a softmax be computed without seeing the whole row? |
# | 03 tiled attention | In which order should the loops run, and what does each order move? |
# | **Kernels** | |
# | 04 first Triton kernel | What is a program, a pointer, a mask? |
# | 05 FlashAttention-2 | What does a production kernel add to 40 lines of Triton? |
# | 06 backward pass | Why is it cheaper to compute the probabilities twice? |
# | 07 measure | How do benchmarks lie, and what limits the number of blocks on an SM? |
# | **Decoding** | |
# | 08 decoding underfills the GPU | Where does "less than 1%" come from, and what does a batch buy? |
# | 09 split-KV decoding | Into how many parts should the keys be split? |
# | **The cache** | |
# | 10 KV-cache arithmetic | How many bytes does *this* model keep for each token? |
# | 11 paged KV and batching | How many users fit, and how does one pack them? |
# | 12 smaller cache | What do int8, int4 and eviction save, and what do they break? |
# | 13 PCIe and offload | When is it quicker to fetch a cache than to compute it again? |
# | **Beyond one kernel** | |
# | 14 beyond one GPU | How can GPUs share one long sequence? |
# | 15 capstone | How fast does a real model get, and where does the rest of the time go? |
#
# One identity runs through it all: two partial results of attention can be *merged*. You meet it in 02. It becomes the
# tile loop in 03, the split in 09, the page table in 11 and the collective in 14.
#
# `progress()` shows how far you are, in every lesson that your copy has.
#
# > **To keep**
# > - A GPU is quick when many warps are there to hide each other's waits. An H200 holds 270,336 threads.
# > - Reading takes at least bytes / bandwidth. Write the bytes down first.
# > - Bandwidth is bytes under way over latency: an almost empty GPU is slow even at reading.
# > - Rate = min(peak, intensity × bandwidth). On an H200 the corner is at 206 FLOP per byte.
# > - A batch reuses weights: about 230 rows fill an H200, 1 row leaves 99.5% of its arithmetic idle.
#
# **Left out.** Clocks drop under load, so no kernel sees the datasheet's peak: the best product recorded on that H200 ran
# at 690 of 989 TFLOP/s, the best read above at 4524 of 4800 GB/s. Caches: the roofline here counts HBM alone, and work that fits the L2 can beat it.
# Where the idea loses: for kernels of a few microseconds the launch itself costs as much, and no roofline shows that.
#
# **Read next.** Williams, Waterman, Patterson, *Roofline: an insightful visual performance model* (CACM 52(4), 2009). Luo et al.,
# *Dissecting the NVIDIA Hopper architecture* (arXiv 2501.12084), for latencies measured with more care. Then lesson 01.
