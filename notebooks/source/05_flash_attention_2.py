# %% [markdown]
# # 05 · FlashAttention-2
#
# **What you will build**
# 1. The arithmetic that turns one head into a batch of them: addresses, kv heads of any ratio, two loops over the keys.
# 2. The kernel: batch, heads, GQA, causal, ragged lengths, in Triton.
# 3. A reading of the package's own kernel: what production adds, and what the compiler makes of it on GPUs you do not
#    have.
#
# You need lessons 03 and 04. Allow 90 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import inspect
import math

import torch

from flashlab import flash_attn_func, flash_attn_varlen_func
from flashlab.course import check, hint, predict, progress, quiz, solution, start, trace
from flashlab.course.lessons import lesson_05
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_05 import exponentials, grid, pictures, recorded
from flashlab.course.lessons.lesson_05.flash_attention import launch
from flashlab.hardware import gpu, occupancy
from flashlab.kernels import common, forward
from flashlab.kernels.inspect import Request, inspect_all
from flashlab.widgets import OccupancyScope

# isort: split
import triton  # after flashlab, which decides where kernels run
import triton.language as tl

start("05")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("05.q1")

# %%
quiz("05.q2")

# %% [markdown]
# ## One head becomes a grid
#
# Lesson 04's kernel does one head. A model has many: queries are (batch, seqlen, heads, head_dim). No head needs
# another, no sequence needs another, and no tile of queries needs another. So each of them is a program.
#
# $$\text{programs} = \left\lceil \frac{N_q}{B_M} \right\rceil \cdot \text{heads}_q \cdot \text{batch}$$

# %%
predict("05.programs", programs=...)

# %%
for heads_q, seqlen in ((24, 1000), (24, 1024), (8, 1000)):
    tiles = triton.cdiv(seqlen, 64)
    print(f"batch 3, {heads_q} query heads, {seqlen} queries: {tiles} tiles, {tiles * heads_q * 3} programs")

# %% [markdown]
# A GPU with 132 SMs and two programs on each runs 264 at a time. That grid keeps it busy; the grid of one sequence
# with 8 heads and one query does not (lesson 08).
#
# ## Where is my tile?
#
# A program knows three numbers: its tile, its head, its batch row. It has to find its rows in memory. The shape does
# not say where they are. The **strides** do: how many elements lie between two neighbours along a dimension.

# %%
pictures.layouts()

# %% [markdown]
# Both tensors have the shape (1, 3, 3, head_dim). The next token is three rows away in the first, one row in the
# second. A model hands you either, and slices of fused qkv tensors too. Copying them first would cost as much traffic
# as attention itself.
#
# $$\text{offset}(b, t, h) = b \cdot \text{stride}_b + t \cdot \text{stride}_t + h \cdot \text{stride}_h$$
#
# A worked example:

# %%
x = normal(1, 2, 5, 3, 4)
y = normal(1, 2, 3, 5, 4).transpose(1, 2)
print("shapes ", tuple(x.shape), tuple(y.shape))
print("strides", x.stride(), y.stride())
print("token 2 of head 1, batch 0: element", 2 * 12 + 1 * 4, "of x and", 2 * 4 + 1 * 20, "of y")
print("there they are:", bool(x[0, 2, 1, 0] == x.flatten()[28]), bool(y[0, 2, 1, 0] == normal(1, 2, 3, 5, 4).flatten()[28]))

# %% [markdown]
# (28 in both, by chance. The terms differ.) Now one line of yours:

# %%
# spec: 05.row_offset

# %%
# exercise: 05.row_offset

# %%
check("05.row_offset", row_offset)

# %% [markdown]
# ## Which kv head is mine?
#
# In grouped-query attention several query heads share one kv head: 32 query heads with 8 kv heads in Llama 3, 24 with
# 8 in Llama 3.2 3B, 28 with 4 in Qwen2.5 7B. So the ratio may be 4, or 3, or 7. The query heads of a group are
# *neighbours*.

# %%
pictures.kv_heads()

# %% [markdown]
# Both wrong lines give a valid kv head, and no error. With as many kv heads as query heads all three agree, and with
# one kv head two of them do. So test a ratio of 3.

# %%
# spec: 05.kv_head

# %%
# exercise: 05.kv_head

# %%
check("05.kv_head", kv_head)

# %% [markdown]
# What does sharing save? Think of the programs: one for each *query* head.

# %%
predict("05.gqa_bytes", times=...)

# %% [markdown]
# Count it while the package's kernel runs: `trace` adds up what every program loads.

# %%
for heads_kv in (8, 2, 1):
    q, k, v = lesson_05.small(heads_q=8, heads_kv=heads_kv)
    t = trace(lambda qkv=(q, k, v): flash_attn_func(*qkv))
    print(f"{heads_kv} kv heads: K is {k.nbytes // 1024:2} KiB, the programs load {t.loaded['k'] // 1024} KiB of it")

# %% [markdown]
# 128 queries are two tiles here, so each of 8 query heads reads its 8 KiB of K twice: 128 KiB, always. What sharing
# changes is *where from*. With one kv head, 16 programs read the same 8 KiB; the first finds it in HBM, the others in
# the L2. For prefill that is enough. A decode step has few queries and waits for HBM alone: there the query heads of
# a group are packed into one tile, and the factor is real (lessons 08 and 09).
#
# ## Causal: two loops
#
# Lesson 03 found three kinds of key tiles: whole, cut, skipped. The kernel makes two loops of them. The first runs
# over the whole tiles and has no mask. The second runs over the cut ones and pays for it: two comparisons and a select
# for each score, and the guard for rows without keys.
#
# $$\underbrace{0 \dots \text{full}}_{\text{no mask}} \quad \underbrace{\text{full} \dots \text{stop}}_{\text{masked}}
# \quad \underbrace{\text{stop} \dots N_k}_{\text{never loaded}}$$
#
# Query $i$ sees $i + N_k - N_q + 1$ keys: aligned at the bottom right, so that the last query sees all.

# %%
pictures.two_loops((512, 512, 128, 64, True), (256, 640, 128, 64, True), (320, 416, 128, 128, False))

# %% [markdown]
# The picture in the middle is a chunk of 256 new tokens behind a cache of 384. The one on the right is not causal, and
# still has a masked tile: K ends inside it.
#
# Which row of a query tile decides where to stop, and which one where the mask begins? In keys this time, and with
# every case that the kernel will meet:

# %%
# spec: 05.loop_bounds

# %%
# exercise: 05.loop_bounds

# %%
check("05.loop_bounds", loop_bounds)

# %% [markdown]
# Here is the version that readers write first, and what the checker says to it. `full` is rounded down from what the
# *last* row sees:

# %%
def mine(tile, block_m, block_n, seqlen_q, seqlen_k, causal):
    stop = min((tile + 1) * block_m, seqlen_q) + seqlen_k - seqlen_q if causal else seqlen_k
    return max(0, stop) // block_n * block_n, max(0, stop)


check("05.loop_bounds", mine)

# %% [markdown]
# ## How much is masked, and who goes first
#
# Is a second loop worth its trouble? Count what would pay for the mask without it.

# %%
predict("05.masked_tiles", percent=...)

# %%
for block in (64, 128):
    masked, computed = lesson_05.tiles(block)
    pairs = (4096 // block) ** 2
    print(f"tiles of {block} x {block}: {pairs} pairs, {computed} computed ({100 * computed / pairs:.1f}%), "
          f"{masked} of them masked ({100 * masked / computed:.1f}%)")

# %% [markdown]
# So 97% of the work runs without a mask. But the walks are uneven now: the first query tile visits one key tile, the
# last one 64. A GPU hands out programs in the order of the grid. Does that order matter?

# %%
predict("05.long_first", percent=...)

# %%
pictures.long_rows_first()
short, long = lesson_05.finishes()
walks = grid.grid_walks(4096, heads=16, block_m=64, block_n=64, long_first=True)
print(f"{sum(walks)} key tiles for {lesson_05.places()} places: {sum(walks) / lesson_05.places():.0f} each at best")
print(f"short walks first: {short}, long walks first: {long}")

# %% [markdown]
# (Simulated: every key tile takes one unit of time, and a free place takes the next program.) One line in the kernel
# does it: `tile = num_tiles - 1 - tile`. You will meet it below.
#
# ## exp2, and a scale that costs nothing
#
# A GPU has no exponential. It has `ex2`, a power of two. So `exp` is a multiplication and an `ex2`:
# $e^x = 2^{x \log_2 e}$. Compiled for an H200, without one:

# %%
for name, found in exponentials.counts().items():
    print(f"{name + '(s * scale - m)':22}", ", ".join(f"{n} {what}" for what, n in found.items() if n))

# %% [markdown]
# That multiplication happens for every score. It can be had for nothing. Put $\log_2 e$ into the scale, once, outside
# the loops:
#
# $$\text{unit} = \text{scale} \cdot \log_2 e \qquad p = 2^{\,\text{unit} \cdot (q \cdot k) - m} \qquad
# m = \max(\text{unit} \cdot q \cdot k)$$
#
# One multiply-add and one `ex2` for each score. The price: $m$ is in **log2 units** now, and so is
# $m + \log_2 l$. The world outside wants a natural logarithm: $\text{lse} = (m + \log_2 l) \cdot \ln 2$.

# %%
unit = 64**-0.5 * math.log2(math.e)
qk = torch.tensor([8.0, 24.0, -16.0]).double()  # raw products, head_dim 64
m = (qk * unit).max()
l = torch.exp2(qk * unit - m).sum()
print(f"m = {m:.4f} in log2 units, {m * math.log(2):.4f} in natural ones")
print(f"m + log2(l) = {m + torch.log2(l):.4f}, times ln 2 = {(m + torch.log2(l)) * math.log(2):.4f}; "
      f"logsumexp = {torch.logsumexp(qk / 8, 0):.4f}")

# %% [markdown]
# Now the whole walk in these units. Four lines are missing.

# %%
# spec: 05.base_two

# %%
# exercise: 05.base_two

# %%
check("05.base_two", base_two)

# %% [markdown]
# ## The whole kernel
#
# You have all the parts. Lesson 04 gave the frame: load the queries, walk, divide, store. Here is the launcher. It
# passes every stride, and a grid of (tiles, query heads, batch).

# %%
print(inspect.getsource(launch))

# %% [markdown]
# A plan, in the order of the code:
#
# 1. which tile, head and batch row; the kv head; move the pointers there
# 2. `full` and `stop`
# 3. load the queries; `m`, `l`, `acc`
# 4. the loop without a mask
# 5. the loop with one: keys past the end, the diagonal, rows that have seen nothing
# 6. divide, convert, store
#
# The check runs it in the interpreter, in tiles of 16 x 16. What it reads outside a tensor is NaN there.

# %%
# spec: 05.flash_attention

# %%
# exercise: 05.flash_attention

# %%
check("05.flash_attention", flash_attention)

# %% [markdown]
# ## What it loads
#
# From here on the package's kernel does the work: the same two loops. In the interpreter its tiles are 64 x 64. A
# causal head of 256 tokens has four query tiles, and they read 1, 2, 3 and 4 tiles of K.

# %%
q, k, v = lesson_05.small(heads_q=1, heads_kv=1, seqlen=256)
t = trace(lambda: flash_attn_func(q, k, v, causal=True))
for program, moved in t.launches[0].programs.items():
    print(f"program {program[0]}: {moved['k'][0] // 1024:2} KiB of K, {moved['v'][0] // 1024:2} of V; "
          f"{moved['q'][0] // 1024} of Q; stores {moved['o'][1] // 1024} of O")
print(f"together {t.loaded['k'] // 1024} KiB of K; without a mask it would be "
      f"{trace(lambda: flash_attn_func(q, k, v)).loaded['k'] // 1024}")

# %% [markdown]
# Program 0 has the *last* tile: the long walks go first. And what happens to a length that is no multiple of the tile?

# %%
q, k, v = (normal(seed, 1, 100, 1, 16).float() for seed in (1, 2, 3))
t = trace(lambda: flash_attn_func(q, k, v, causal=True))
print(f"100 tokens: q is {q.nbytes} bytes, {t.loaded['q']} loaded; o is {q.nbytes} bytes, {t.stored['o']} stored")
print(f"K: {t.loaded['k']} bytes = {t.loaded['k'] // (16 * 4)} rows: 64 for the first tile, 100 for the second")
print("loads or stores outside a tensor:", len(t.outside))

# %% [markdown]
# Not one byte too many: the masks see to it.
#
# ## What the compiler makes of it
#
# `flashlab show forward --arch sm_90` compiles the package's kernel for a GPU you need not have. The same from Python,
# for an A100 (sm_80) and an H200 (sm_90), each in the tile that the package would choose there:

# %% tags=["nbval-ignore-output"]
shipped = inspect_all(
    [Request("forward", arch, head_dim=d, causal=True) for arch in ("sm_80", "sm_90") for d in (64, 128)]
)
print("arch   tile     warps  registers  spilled  shared memory")
for r, head_dim in zip(shipped, (64, 128, 64, 128), strict=True):
    tile = f"{r.launch['BLOCK_M']} x {r.launch['BLOCK_N']}"
    print(f"{r.arch}  {tile:9} {r.threads // 32:4} {r.registers:10} {r.spill_bytes:8} {r.shared_memory_bytes / 1024:10.0f} KiB "
          f"  (head_dim {head_dim})")

# %% [markdown]
# (Exact counts are of the Triton that built this page, 3.7.1. Yours may differ by a few.) Read a line of it.
#
# - **Registers**: a thread can have 255. acc and the scores are the bulk of them.
# - **Shared memory**: the tiles of K and V of all pipeline stages, and Q. 3 stages x 2 x 64 x 128 x 2 bytes = 96 KiB,
#   and 16 for Q, at head_dim 128 on the H200.
# - **Matrix instructions**: which kind of GPU it is.

# %%
for r, head_dim in zip(shipped, (64, 128, 64, 128), strict=True):
    kinds = ", ".join(kind for kind, n in r.tensor_core.items() if n)
    print(f"{r.arch}, head_dim {head_dim}: {kinds} with {r.threads // 32} warps of {r.launch['BLOCK_M'] // (r.threads // 32)} rows")

# %% [markdown]
# `mma` works for one warp, on 16 rows, from registers. `wgmma` is Hopper's: four warps together, 64 rows, and it reads
# K and V straight from shared memory. So on an H200 BLOCK_M must be at least 64 for every four warps. That is why the
# same source is in one case an A100's kernel and in the other an H200's.
#
# How many blocks fit?

# %%
predict("05.blocks", blocks=...)

# %%
fit = occupancy("9.0", **lesson_05.COMPILED)
print("blocks an SM by each resource alone:", {name: int(n) for name, n in fit.limits.items()})
print(f"{fit.blocks_per_sm} blocks, {fit.warps_per_sm} warps of 64: occupancy {fit.percent:g}%")

# %% [markdown]
# The same as a picture. `OccupancyScope(kernel="forward")` in a cell of its own has sliders.

# %%
OccupancyScope(**lesson_05.COMPILED).figure()

# %% [markdown]
# 12.5% occupancy, and it is the package's best tile. Occupancy hides latency by having other warps to run. Here the
# pipeline's stages hide it, and each warp has much to do. Do not chase the percentage.
#
# ## A spill, and why
#
# Larger tiles mean fewer loads (lesson 03). So why not 128 x 128 with four warps? Do the sum before you compile.

# %%
predict("05.acc_registers", registers=...)

# %%
pictures.registers(((64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 64, 4), (128, 128, 8), (128, 128, 4)))
for tile in ((64, 64, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8)):
    took = lesson_05.accumulators(tile[0], tile[1], 128, 32 * tile[2])
    print(f"{tile[0]} x {tile[1]}, {tile[2]} warps: acc {took['acc']:g} and scores {took['scores']:g} registers a thread")

# %% [markdown]
# Now ask the compiler:

# %% tags=["nbval-ignore-output"]
wanted = ((64, 64, 4, 3), (128, 64, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 4, 2))
ladder = inspect_all([Request("forward", "sm_90", causal=True, tile=tile) for tile in wanted])
print("tile       warps  registers  spilled bytes a thread  shared memory  blocks and warps an SM")
for (block_m, block_n, warps, _), r in zip(wanted, ladder, strict=True):
    fit = occupancy(r.arch, threads=r.threads, registers=r.registers, shared_memory=r.shared_memory_bytes)
    print(f"{block_m:3} x {block_n:<3} {warps:6} {r.registers:10} {r.spill_bytes:12} {r.shared_memory_bytes / 1024:20.0f} KiB "
          f"{fit.blocks_per_sm:9} {fit.warps_per_sm:7}")
print("and those of the table above:")
for r, head_dim in zip(shipped, (64, 128, 64, 128), strict=True):
    fit = occupancy(r.arch, threads=r.threads, registers=r.registers, shared_memory=r.shared_memory_bytes)
    print(f"{r.arch}, head_dim {head_dim:3}: {fit.blocks_per_sm} blocks an SM, limited by {fit.limiter}")

# %%
for (block_m, block_n, warps, _), r in zip(wanted, ladder, strict=True):
    if (block_m, block_n, warps) != (128, 128, 8):  # at the edge: it depends on the compiler's version
        print(f"{block_m} x {block_n}, {warps} warps: {'spills' if r.spill_bytes else 'does not spill'}")

# %% [markdown]
# Those with 128 rows for four warps spill. A **spill** is a register that was given up: its value is
# written to memory and read back, in *every* turn of the loop. It lands in the L1 cache mostly, and competes there
# with the tiles. Eight warps halve what a thread must hold, and the spill is gone. The price is that only one block
# fits, and then nothing runs while its warps wait at a barrier.
#
# The choice was made by measuring (one H200, 4096 tokens, 16 heads, batch 4, head_dim 128; TFLOP/s, full and causal):

# %%
for (block_m, block_n, warps, stages), (full, causal) in recorded.TILES.items():
    print(f"{block_m:3} x {block_n}, {warps} warps, {stages} stages: {full} and {causal}")

# %% [markdown]
# 1 and 4 percent apart, where 3 may be noise. (Other runs than the record below, which has 498 and 445 for this
# shape.) Neither spills. Do we ship one that does? Yes, in float32:

# %%
(single,) = inspect_all([Request("forward", "sm_90", dtype="float32", head_dim=64)])
print(f"float32, head_dim 64: {single.launch['BLOCK_M']} x {single.launch['BLOCK_N']}, {single.threads // 32} warps; "
      f"matrix instructions: {sum(single.tensor_core.values())}; spills: {single.spill_bytes > 0}")

# %% [markdown]
# IEEE float32 has no matrix instruction (TF32 has, and rounds to 10 bits). So the products are ordinary multiply-adds,
# whose operands all want registers. That row of the table was reasoned, not measured, and it shows. Float32 is there
# for tests.
#
# ## The exponentials
#
# Two matrix products for each tile, and one exponential for each score. Which of them is the bottleneck? An H200's
# matrix units do 989 TFLOP/s. Its exponentials come from another, small unit: 3.9e12 a second.

# %%
predict("05.exponentials", percent=...)

# %%
pictures.exponentials()
for head_dim in (64, 128, 256):
    share = lesson_05.exponential_share(head_dim)
    print(f"head_dim {head_dim}: exponentials take {100 * share:.0f}% of the products' time; one after the other, at most "
          f"{100 / (1 + share):.0f}% of the peak")

# %% [markdown]
# So it matters whether softmax and products **overlap**. Keep these percentages for the next section.
#
# ## On a real H200
#
# First a prediction about ourselves. Half of the work is skipped. Is half of the time?

# %%
predict("05.causal_us", us=...)

# %%
rows = recorded.prefill()
print(f"Recorded: {recorded.when()}")
for label in ("B16 H16 S1024 D128", "B4 H16 S4096 D128", "B2 H16 S8192 D128", "B1 H16 S16384 D128"):
    full, causal = (rows[name].seconds[recorded.OURS] * 1e6 for name in (label, f"{label} causal"))
    print(f"{label:19}: full {full:4.0f} us, causal {causal:4.0f} us, {100 * causal / full:.0f}% of it")

# %% [markdown]
# The longer the sequence, the nearer to half. At 1024 tokens a row of tiles is 16 long, and 136 of 256 pairs are
# computed, 53%; the rest is the mask and uneven walks. (49% cannot be the work alone: differences of 3% are noise in
# these runs.) Now against the others:

# %%
pictures.recorded_tflops()
print("shape                       flashlab  FlashAttention-2  cuDNN   of FA2  of cuDNN")
for label, row in rows.items():
    ours, fa2, cudnn = (row.tflops(peer) for peer in (recorded.OURS, recorded.FA2, recorded.CUDNN))
    print(f"{label:26} {ours:9.0f} {fa2:17.0f} {cudnn:6.0f} {ours / fa2:8.2f} {ours / cudnn:9.2f}")

# %% [markdown]
# Ahead of FlashAttention-2 (as PyTorch ships it) on every shape: that one uses the A100's `mma`. Behind cuDNN on
# **every** shape too: by a third at 1024 tokens, by a quarter or a sixth at 16384, by 4 to 8 percent at head_dim 64.
# Why?

# %%
for label in ("B1 H16 S16384 D128", "B1 H32 S16384 D64"):
    row, peak = rows[label], recorded.matmul_flops() / 1e12
    share = lesson_05.exponential_share(row.case.head_dim)
    print(f"{label}: the best product {peak:.0f}, without any overlap at most {peak / (1 + share):.0f}; "
          f"flashlab {row.tflops():.0f}, cuDNN {row.tflops(recorded.CUDNN):.0f} TFLOP/s")

# %% [markdown]
# At head_dim 128 cuDNN is well past the line of no overlap, and ours is near it. Triton waits for each `wgmma` at
# once: within a block, softmax and products take turns. Only *another* block on the SM can fill the gap. Two fit at
# head_dim 128, four at 64, and there ours is well past the line too. FlashAttention-3 has its warps take turns
# instead: one group multiplies while another is in its softmax (*warp specialisation* and ping-pong scheduling).
# Triton's own pass for that gained nothing on this kernel in any form that was tried, so it is not used.
#
# (The line comes from two datasheet figures and one measured product. That ours stands so near it is a hint, no
# proof.)
#
# Short sequences lose more: 1024 tokens are 16 steps, and the start of the pipeline and the last wave of programs
# weigh more.
#
# Where there is a GPU, this times the lesson's kernel, the package's and PyTorch's on it:

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_05 import measure

    rates = measure.tflops(causal=True)
    print(torch.cuda.get_device_name(), {name: f"{rate:.0f} TFLOP/s" for name, rate in rates.items()})
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The package's own kernel
#
# Its inner loop first. Look for your own lines in it.

# %%
print(inspect.getsource(forward._attend.fn))

# %% [markdown]
# What it adds, line by line:
#
# - `MASKED: tl.constexpr`: one text, compiled twice. `if MASKED` is decided by the compiler, so the first loop has no
#   trace of a mask. You wrote the two loops by hand.
# - `loop_bounds`, `tile_start`: with a *window* the band has a left edge too. Both edges share the masked loop, which
#   jumps over the inner tiles. A third loop was tried; its code took registers from the other two.
# - `unit = score_unit(...)`: `scale * log2(e)`, as yours. With softcap or ALiBi the scores are changed first, and
#   `scores` brings them into log2 units itself.
# - `token_offsets(..., p_block_table, ...)`: where a token lies. Contiguous: token times stride. In a *paged* cache the
#   table is asked first (lesson 11). `WIDE`: addresses in 64 bits, only for sequences that span 2^31 elements. The
#   32-bit form halves the registers that addresses take. With one masked loop in place of two it was worth 6%.
# - `load_tile(..., HEAD_DIM, BLOCK_D, MASKED)`: a head_dim of 80 is padded to 128 columns of which 80 are loaded.
# - V is masked as well as the scores. The comment says why.
# - `dot_add(p, b_v, acc * alpha[:, None])`: `p` in V's 16 bits for the matrix unit, and the sum inside the product.
#
# Then the kernel around it:

# %%
print(inspect.getsource(forward.forward_kernel.fn))

# %% [markdown]
# - `do_not_specialize=[...]`: Triton compiles anew for a length that is 1 or a multiple of 16. With these names left
#   out, a new sequence length never compiles.
# - `tile_of_program`: a grid of one dimension. Four heads run side by side so that their K and V stay in the L2 (6%
#   for causal), and **the long rows go first**.
# - `sequence(...)`, `VARLEN`: sequences of different lengths, packed without padding. `cu_seqlens` says where each
#   begins. A program past the end of its own sequence returns at once.
# - `sequence_base`: your `row_offset`, with the large products in 64 bits.
# - `kv_head = head // GROUP`: your `kv_head`. GROUP is a constexpr.
# - `band_range(...)`: your `loop_bounds`, with `window_left` and `window_right`. Causal is `window_right = 0`.
# - `softmax_finish`: the guard for rows without keys, and your way back to the natural lse.
#
# And outside: `flashlab/kernels/launch_tables/` holds a tile for each GPU, dtype and head_dim, measured or reasoned,
# and says which. A call looks its kernel up once and keeps it: that saves some 20 us of Python a call.
#
# `band_range` is the one to compare with yours:

# %%
print(inspect.getsource(common.band_range.fn))

# %% [markdown]
# Packed sequences at work: three of them, 100, 40 and 7 tokens.

# %%
lengths = (100, 40, 7)
cu_seqlens = torch.tensor([0, 100, 140, 147], dtype=torch.int32)
q, k, v = (normal(seed, 147, 6, 16).float() for seed in (1, 2, 3))
k, v = k[:, :2], v[:, :2]  # 6 query heads, 2 kv heads: slices, with strides of their own
t = trace(lambda: flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, 100, 100, causal=True))
one = lambda a, b: trace(lambda: flash_attn_func(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)).result[0]
apart = [one(0, 100), one(100, 140), one(140, 147)]
print("same as one at a time:", torch.allclose(t.result, torch.cat(apart), rtol=0, atol=1e-6))
idle = sum("q" not in moved for moved in t.launches[0].programs.values())
print(f"{len(t.launches[0].programs)} programs, 2 tiles for each of 3 sequences and 6 heads; {idle} returned at once")
print(f"O: {t.stored['o']} bytes stored; padded to 100 tokens it would be {3 * 100 * 6 * 16 * 4}")

# %% [markdown]
# ## Where the idea loses
#
# - **One query.** A grid of tiles x heads x batch is 32 programs for one sequence with 32 heads. 100 of 132 SMs do
#   nothing. That is lesson 08.
# - **Short sequences**: a third behind cuDNN at 1024 tokens. And a call costs 34 us of Python on the host, however few
#   the tokens; PyTorch's costs 19.
# - **Tiles are whole.** Seven tokens pay for 64 rows. Causal pays for both halves of the diagonal's tiles.
# - **Overlap**, as above: a Triton kernel leaves it to a second block.
#
# > **To keep**
# > - One program for each query tile, query head and sequence. Strides say where; kv head = head // group.
# > - GQA does not change what programs load in prefill. It changes what there *is* to load.
# > - Two loops: whole tiles without a mask, cut ones with it. First row: where the mask begins, rounded down. Last row:
# >   where to stop.
# > - Long rows first, or the GPU waits for the last one.
# > - scale * log2(e) in one multiply-add, exp2, and (m + log2 l) * ln 2 on the way out.
# > - Registers a thread for acc and scores: BLOCK_M * (head_dim + BLOCK_N) / threads. Half of the 255 is about what
# >   there is room for; the rest goes to addresses, probabilities, m and l.
# > - Exponentials cost half of the products' time at head_dim 128, all of it at 64. Overlap decides between 530 and
# >   690 TFLOP/s.
#
# **Left out.** Tensor descriptors and TMA (tried: no faster than pointers here); FP8; dropout; attention sinks. How
# the tiles were tuned: lesson 07.
#
# **Read next.** Dao, *FlashAttention-2* (arXiv 2307.08691), section 3. Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao,
# *FlashAttention-3* (arXiv 2407.08608), sections 3.1 and 3.2, on overlap. `flashlab/kernels/common.py`, top to bottom.
# Then lesson 06: the way back.
