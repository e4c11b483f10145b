# %% [markdown]
# # 04 · Your first Triton kernel
#
# **What you will build**
# 1. A softmax kernel for rows of any length.
# 2. A cure for a kernel that reads what is not its own, and the means to notice one.
# 3. Attention of one head, in one kernel: lesson 03's loops on a GPU.
#
# You need lessons 02 and 03. Allow 90 minutes. No GPU is needed: without one, Triton's interpreter runs the kernels.

# %% tags=["nbval-ignore-output"]
import inspect
import time

import torch

from flashlab import flash_attn_func
from flashlab.course import check, hint, predict, progress, quiz, solution, start, trace
from flashlab.course.lessons.in_triton import DEVICE, matrix
from flashlab.course.lessons.lesson_04 import attention_head as given_head
from flashlab.course.lessons.lesson_04 import lanes_off, pictures, recorded
from flashlab.course.lessons.lesson_04 import row_max as given_max
from flashlab.course.lessons.lesson_04 import row_softmax as given_softmax
from flashlab.kernels import common, forward
from flashlab.reference import traffic

# isort: split
import triton  # after flashlab, which decides where kernels run
import triton.language as tl

start("04")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("04.q1")

# %%
quiz("04.q2")

# %% [markdown]
# ## A function that runs many times at once
#
# A GPU has many SMs (an H200: 132), and each runs several *blocks of threads* at a time. In Triton you do not write
# for a thread. You write what one block does, as a function. It is called a **program**. You launch it on a **grid**:
# so many programs, all with the same arguments. A program knows one thing that the others do not: its number,
# `tl.program_id(0)`. From that it works out which part of the data is its own.

# %%
pictures.programs(n=1000, block=256)

# %%
@triton.jit
def double_kernel(p_x, p_y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    offsets = i * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    b_x = tl.load(p_x + offsets, mask=inside)
    tl.store(p_y + offsets, 2 * b_x, mask=inside)


x = torch.arange(1000.0, device=DEVICE)
y = torch.zeros_like(x)
double_kernel[(4,)](x, y, 1000, BLOCK=256)
print("y[-3:] =", y[-3:].tolist(), " all doubled:", bool((y == 2 * x).all()))

# %% [markdown]
# Line by line. `@triton.jit` turns the function into a kernel. `[(4,)]` is the grid: 4 programs. The tensors `x` and
# `y` arrive as **pointers**, the address of their first element; hence the names `p_x`, `p_y`. `tl.arange(0, BLOCK)`
# is a tile of BLOCK numbers; `p_x + offsets` is a tile of BLOCK pointers, and `tl.load` fetches all of them at once.
# Names with `b_` are tiles that are on the chip.
#
# 4 programs of 256 make 1024, and there are 1000 elements. So 24 **lanes** of the last program stand for nothing. The
# **mask** switches them off: no load, no store.
#
# `BLOCK: tl.constexpr` is known when the kernel is compiled. Another BLOCK is another machine program. `n` is an
# ordinary argument.

# %%
predict("04.programs", programs=...)

# %%
for n, block in ((1000, 256), (1_000_000, 1024)):
    programs = triton.cdiv(n, block)
    print(f"{n:9,} elements, {block} a program: {programs} programs, {programs * block - n} lanes off in the last one")

# %% [markdown]
# `trace` watches a kernel run and counts what every program loads and stores. (It needs tensors on the CPU, since it
# always uses the interpreter.)

# %%
x, y = torch.arange(1000.0), torch.zeros(1000)
t = trace(lambda: double_kernel[(4,)](x, y, 1000, BLOCK=256))
print(t)
for program, moved in t.launches[0].programs.items():
    print("program", program, {name: f"{loaded} B in, {stored} B out" for name, (loaded, stored) in moved.items()})

# %% [markdown]
# The last program moves 232 elements, 928 bytes. Lanes that are off cost no bytes.
#
# ## Pointers and strides
#
# A tensor is a run of memory and a rule. The rule has two **strides**: how many elements to the next row, how many to
# the next column.
#
# $$\text{address of } x_{r,c} = p_x + r \cdot \text{stride}_m + c \cdot \text{stride}_n$$

# %%
pictures.tile_in_memory(rows=4, width=6, stride=8, tile=((1, 3), (2, 5)))
wide = torch.arange(32).view(4, 8)
x = wide[:, :6]
print("x.shape", tuple(x.shape), " x.stride()", x.stride(), " the tile:", x[1:3, 2:5].tolist())
print("x.T.stride()", x.T.stride(), ": the same memory, another rule")

# %% [markdown]
# The orange tile is 6 numbers that do not lie side by side. Its pointers are a *tile* of pointers, made like an
# addition table: a column of row offsets plus a row of column offsets.

# %%
rows, cols = torch.arange(1, 3), torch.arange(2, 5)
print((rows[:, None] * 8 + cols[None, :] * 1).tolist())

# %% [markdown]
# Triton uses the same notation, `[:, None]` and `[None, :]`. Your turn: one line. The kernel adds up each tile of a
# matrix, one program a tile. Here every tile fits, so there is no mask yet.

# %%
# spec: 04.tile_sums

# %%
# exercise: 04.tile_sums

# %%
check("04.tile_sums", tile_sums)

# %% [markdown]
# Kernel and launcher stand in one cell, and `check` gets the launcher. Stuck? `hint("04.tile_sums")` gives one more
# step each time.
#
# ## Blocks are powers of two
#
# The size of a tile must be a power of two, in each dimension: Triton lays tiles out over 32 threads a warp, and over
# registers, by halving. Anything else is refused:

# %%
@triton.jit
def odd_kernel(p_x):
    tl.load(p_x + tl.arange(0, 129))


try:
    trace(lambda: odd_kernel[(1,)](torch.zeros(129)))
except Exception as error:
    print("refused:", error.__cause__)

# %% [markdown]
# Data does not come in powers of two. A row of 129 needs a block of 256.

# %%
predict("04.lanes_off", percent=...)

# %%
pictures.waste(marked=129)
for n in (127, 128, 129, 1000, 1025):
    print(f"n = {n:4}: block {triton.next_power_of_2(n):4}, {lanes_off(n):4.1f}% of the lanes off")

# %% [markdown]
# So there is nearly always a mask, and a second question: what does a lane *hold* that is off? `other=` says so. Pick
# what changes nothing: 0 in a sum, $-\infty$ in a maximum, 1 in a product. Without `other` the lane holds anything:
# the interpreter happens to put 0 there, a GPU promises nothing. (`check` puts NaN there, so that it shows.)
#
# Two lines are missing:

# %%
# spec: 04.row_sums

# %%
# exercise: 04.row_sums

# %%
check("04.row_sums", row_sums)

# %% [markdown]
# ## A softmax in one read
#
# Lesson 02 read every row twice or three times, because a row did not fit on the chip. A row of a few thousand
# numbers does fit: a program holds it in registers. Then maximum, sum and division need no second look at memory.
#
# $$y_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}, \quad m = \max_j x_j$$

# %%
predict("04.softmax_bytes", KB=...)

# %%
x = matrix(1, 33, 129, device="cpu")
print(trace(lambda: given_softmax.solution(x)))

# %% [markdown]
# Write it, all of it. The launcher is there; the kernel is yours: which row, which columns, load, compute, store.

# %%
# spec: 04.row_softmax

# %%
# exercise: 04.row_softmax

# %%
check("04.row_softmax", row_softmax)

# %% [markdown]
# Why does the check try rows *far below zero*? Here is a kernel that loads with `other=0.0`, on three inputs:

# %%
x = matrix(2, 4, 33, gap=0)
for shift in (50.0, 0.0, -50.0):
    wrong = given_softmax.other_is_zero(x + shift)
    print(f"entries around {shift:3.0f}: each row should add up to 1, it adds up to {wrong[0].sum().item():.4f}")

# %% [markdown]
# Around 50 the mistake weighs $e^{0-50}$ and does not show. Around 0 it is a good part of the sum. Around -50 the
# padding takes *all* of the weight. Scores can be anywhere, so test them everywhere.
#
# ## Who reads what is not his own?
#
# A pointer knows no end. A load without a mask reads on, and gets what happens to lie there. On a GPU three things
# can happen: nothing at all; a wrong number now and then; or `an illegal memory access was encountered`, and the
# process is lost. In the interpreter: the first two, or Python crashes.
#
# Here is a kernel that takes the maximum of each row, 4 rows a program. Its results:

# %%
x = matrix(3, 6, 13, gap=0, device="cpu")
x[:, 0] = 0.0
t = trace(lambda: given_max.stub(x, 4), guard=True)
print("as torch:", bool((t.result == x.amax(dim=1)).all()))
for access in t.outside:
    print(access)

# %% [markdown]
# All right, and yet program 1 reads behind the end. `guard=True` keeps such accesses from happening, and
# `trace(...).outside` names them. Two other ways to notice: put **NaN around your data**, as the checks here do, so
# that what is read by mistake spoils the result (a sum, that is: `tl.max` passes NaN over); and on a GPU run
# `compute-sanitizer`, which watches every address.
#
# Find what is wrong in the mask. There are *two* things.

# %%
# spec: 04.row_max

# %%
# exercise: 04.row_max

# %%
check("04.row_max", row_max)

# %% [markdown]
# ## What the interpreter does not show
#
# It runs your kernel as Python, one program after another. That is why you can `print` in it, and why a mistake gives
# a line number. But four things it cannot show.
#
# **Races.** On a GPU programs run at the same time. Here 64 programs each add 1 to the same number: load, add, store.

# %%
@triton.jit
def count_kernel(p_total):
    tl.store(p_total, tl.load(p_total) + 1)


total = torch.zeros(1)
trace(lambda: count_kernel[(64,)](total))
print("64 programs counted in the interpreter:", int(total))

# %% [markdown]
# On a GPU many of them may load the same old value before any has stored, and the total is then too small, each time
# another number. The cure is `tl.atomic_add(p_total, 1)`; or better, let no two programs write to the same place.
#
# **bfloat16.** The interpreter is built on numpy, which has no bfloat16. It computes with the bare bits and says
# nothing:

# %%
@triton.jit
def add_kernel(p_x, p_y, p_sum):
    tl.store(p_sum, tl.load(p_x) + tl.load(p_y))


def one_plus_one(dtype):
    one, result = torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    trace(lambda: add_kernel[(1,)](one, one, result))
    return result.item()


for dtype in (torch.float32, torch.float16, torch.bfloat16):
    print(f"{str(dtype):15} 1 + 1 = {one_plus_one(dtype):.3g}")

# %% [markdown]
# So this course uses float32 and float16 in its kernels, and the package widens bfloat16 to float32 wherever it
# interprets.
#
# **Rounding of products.** `tl.dot` of float32 is exact here. On a GPU it uses TF32, with 10 bits of fraction, unless
# you say `input_precision="ieee"`. Say it where you compare.
#
# **Speed.** A launch costs the interpreter milliseconds, whatever the kernel. Measure on a GPU or not at all.

# %% tags=["nbval-ignore-output"]
x = torch.arange(1000.0, device=DEVICE)
y = torch.zeros_like(x)
began = time.perf_counter()
for _ in range(20):
    double_kernel[(4,)](x, y, 1000, BLOCK=256)
if DEVICE == "cuda":
    torch.cuda.synchronize()
print(f"one launch of 4 programs on this machine's {DEVICE}: {(time.perf_counter() - began) / 20 * 1e6:.0f} us")

# %% [markdown]
# ## Attention of one head
#
# Now lesson 03's FlashAttention-2. Its outer loop went over tiles of queries, and no tile needed another. So that
# loop disappears: it *is* the grid. What stays is the loop over keys.

# %%
pictures.grid_of_the_head()

# %%
predict("04.tile_steps", steps=...)

# %%
for block in (16, 32, 64, 128):
    programs, steps = triton.cdiv(100, block), triton.cdiv(200, block)
    lanes = programs * steps * block * block
    print(f"tiles of {block:3}: {programs} programs of {steps:2} steps = {programs * steps:2}; "
          f"{lanes} scores computed for {100 * 200}")

# %% [markdown]
# Two products in each step, `tl.dot(a, b)`. It wants tiles of at least 16 in each dimension: that is what a tensor
# core takes. `tl.trans` turns a tile around. The rest you know.
#
# | lesson 03, PyTorch | Triton |
# |---|---|
# | `for start_m in range(...)` | `tl.program_id(0)` |
# | `q[rows]` | `tl.load(p_q + rows[:, None] * stride_q + dims[None, :], mask=..., other=0.0)` |
# | `b_q @ b_k.T` | `tl.dot(b_q, tl.trans(b_k), input_precision="ieee")` |
# | `torch.exp`, `torch.maximum`, `b_s.amax(dim=1)` | `tl.exp`, `tl.maximum`, `tl.max(b_s, axis=1)` |
# | slices end by themselves | every load and store has a mask |
#
# Mind the keys that do not exist. Their `b_k` is 0, so their score is 0, and that is a weight.

# %%
# spec: 04.attention_head

# %%
# exercise: 04.attention_head

# %%
check("04.attention_head", attention_head)

# %% [markdown]
# Does the kernel move what lesson 03 said it would? There the bytes came from a formula and from loops in PyTorch.
# Here they are counted in a kernel that runs:

# %%
q, k, v = given_head.problem(1, 100, 200, device="cpu")
t = trace(lambda: given_head.solution(q, k, v, 32, 32))
formula = traffic.flash_attention_2(100, 200, 16, 32, 32, element_bytes=4)
for name in ("q", "k", "v"):
    print(f"{name} loaded: kernel {t.loaded[name]:6,} bytes, lesson 03 {formula.reads[name]:6,}")
print(f"o stored: kernel {t.stored['o']:6,} bytes, lesson 03 {formula.writes['o']:6,}")

# %% [markdown]
# To the byte. Tiles are padded, bytes are not.
#
# ## How many programs does a GPU want?
#
# A program runs on one SM. One program alone leaves 131 SMs of an H200 idle. How much of the memory's speed can it
# have? This was recorded with programs that do nothing but read.

# %%
predict("04.read_rate", GB_per_s=...)

# %%
pictures.read_rates()
print(f"Recorded: {recorded.when()}")
rates, most = recorded.read_rates(), recorded.ceiling() / 1e9
for n in (1, 8, 64, 132, 264, 2112):
    predicted = min(n * rates[1] / 1e9, most)
    print(f"{n:5} programs: predicted {predicted:6.0f} GB/s, recorded {rates[n] / 1e9:6.0f}")

# %% [markdown]
# Up to 64 programs each one adds its 31 to 35 GB/s. At 132, one for each SM, three quarters of the memory's speed are
# reached; two for each SM reach 96% of it. So **a kernel needs several hundred programs** of this size, or it leaves
# memory idle whatever it does inside. Your attention head of 100 queries has 4. Keep that for lesson 08.
#
# Where there is a GPU, this measures it:

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_04 import measure

    mine = measure.read_rates((1, 8, 64, 132, 264, 528))
    print(torch.cuda.get_device_name(), {n: f"{rate / 1e9:.0f} GB/s" for n, rate in mine.items()})
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The package's own kernel
#
# `flashlab.kernels.forward` is the kernel behind `flash_attn_func`. Every tile that it loads goes through one helper:

# %%
print(inspect.getsource(common.load_tile.fn))

# %% [markdown]
# What it adds to your loads:
#
# - `HEAD_DIM` and `BLOCK_D`: a head_dim of 80 gets a tile of 128, and the columns from 80 on are masked.
# - `MASKED` and the `if`s are settled when the kernel is compiled. A tile that fits whole compiles to a load without
#   any mask.
# - `offsets` come from outside: the same helper reads a contiguous cache and one made of pages (lesson 11).
#
# And its loop over the keys:

# %%
print(inspect.getsource(forward._attend.fn))

# %% [markdown]
# Yours is in it. The rest, line by line:
#
# - `loop_bounds`, `tile_start`: the loop runs twice, once over tiles at an edge (MASKED), once over those that are
#   seen whole. Only the first kind pays for masks.
# - `token_offsets`: through a page table if there is one, in 64 bits if the tensor is that large. Your
#   `cols * stride` overflows at $2^{31}$ elements.
# - `scores`, `visible`: softcap, ALiBi, causal masks and windows, each compiled in only where it is asked for.
# - `softmax_step`: your five lines, with `exp2` in place of `exp` (lesson 02's trap), and a guard for a row that has
#   seen no key yet, where $-\infty - (-\infty)$ is NaN.
# - `b_v` is loaded *after* the scores, and masked like `b_k`: "a probability of 0 times a NaN is NaN".
# - `dot_add`: rounds p to the dtype of v, which is what tensor cores multiply.
#
# Lesson 05 builds these one after another. Does it move what yours moves?

# %%
print(trace(lambda: flash_attn_func(*(z[None, :, None] for z in (q, k, v)))))

# %% [markdown]
# Its tiles are 64 x 64 in the interpreter, so there are 2 programs, not 4, and K is loaded twice, not four times. And
# it stores the lse.
#
# ## Where the idea loses
#
# **Rows just above a power of two** compute up to twice what they need: 129 in 256, 1025 in 2048. **Long rows** do
# not fit into a program: at 64K float32 a row is 256 KiB, all the registers of an SM. Then it is lesson 02 again,
# block by block. **Small problems** are all launch: 10 to 30 us of Python a call, in which an H200 reads 45 to 130
# MB. And **what Triton hides** you cannot steer: which thread holds what, when a load is waited for. Kernels that
# need the last 20% go one floor lower, to CUDA or to Gluon.
#
# > **To keep**
# > - A program is one block of threads. The grid says how many; `program_id` says which.
# > - Tensors arrive as pointers. A tile is a tile of pointers: base + rows * stride + columns * stride.
# > - Block sizes are powers of two, data is not. Every load and store has a mask, and a lane that is off holds the
# >   neutral element: 0 for a sum, $-\infty$ for a maximum.
# > - 0 times NaN is NaN: mask V as well as the scores.
# > - A right result does not prove a right kernel. Watch its memory: NaN around the data, `trace`, a sanitizer.
# > - The interpreter shows values and bytes. It does not show races, bfloat16, TF32 or time.
# > - A GPU wants several hundred programs.
#
# **Left out.** How a tile is laid over warps and threads, shared memory, and how loads are made to overlap with work
# (`num_warps`, `num_stages`): lessons 05 and 07. Tensor descriptors, which let the hardware compute addresses and
# bounds. Autotuning.
#
# **Read next.** Tillet, Kung, Cox, *Triton: an intermediate language and compiler for tiled neural network
# computations* (MAPL 2019). Triton's own tutorials on fused softmax and matrix multiplication. Sasha Rush's
# Triton-Puzzles. Then lesson 05: from one head to all of them.
