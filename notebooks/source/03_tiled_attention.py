# %% [markdown]
# # 03 · Tiled attention
#
# **What you will build**
# 1. FlashAttention-2's loops in PyTorch: attention of a whole head, and the score matrix is never built.
# 2. FlashAttention-1's loops: the same, turned inside out. You will count what each order moves, and hold it against
#    the paper.
# 3. The causal version, which skips the tiles that nobody sees.
#
# You need lesson 02. Allow 90 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import inspect
import math

import torch

from flashlab.course import check, hint, predict, progress, quiz, solution, start
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.lesson_03 import paper_elements, pictures, recorded
from flashlab.reference import online, tiled, traffic
from flashlab.reference.tiling import Tiling
from flashlab.widgets import TileWalk

start("03")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("03.q1")

# %%
quiz("03.q2")

# %% [markdown]
# ## What fits on the chip
#
# Lesson 01 wrote the score matrix to HBM because there was no room for it elsewhere. At 8192 tokens it is 134 MB a
# head; one block of threads on an H200 has 227 KiB of SRAM. Lesson 02 gave the way out: a row can be worked off a few
# keys at a time. So keep on the chip only a **tile** of queries, a tile of keys and a tile of values:
#
# $$\underbrace{B_M \cdot d}_{q} + \underbrace{B_N \cdot d}_{k} + \underbrace{B_N \cdot d}_{v} \quad \text{numbers}$$
#
# $B_M$ is BLOCK_M, the queries in a tile; $B_N$ is BLOCK_N, the keys in a tile; $d$ is head_dim.

# %%
pictures.tiles_in_sram(((64, 64), (128, 64), (128, 128), (256, 128), (256, 256)))
for block_m, block_n in ((64, 64), (128, 128), (256, 256)):
    bf16, acc, scores = (block_m + 2 * block_n) * 128 * 2, block_m * 128 * 4, block_m * block_n * 4  # bytes
    print(f"{block_m} x {block_n}: {bf16 // 1024} KiB of q, k and v; in registers, as float32, "
          f"acc {acc // 1024} KiB and scores {scores // 1024} KiB")

# %% [markdown]
# Tiles of 128 x 128 take 96 KiB: they fit on an A100 and an H200, and not on a T4. Real kernels hold two or three
# tiles of K and V at once, so that the next one arrives while this one is worked on. And an SM has 256 KiB of
# registers, so the last line of that list cannot be: its acc and scores alone take 384. The room is soon used up.
#
# ## One tile against one tile
#
# It is the walk of lesson 02 with BLOCK_M rows at once. Each row has its own $m$ and $l$; acc has one row for each
# query.
#
# $$S = \frac{Q K^\top}{\sqrt d} \qquad P = e^{S - m_{\text{new}}} \qquad r = e^{m - m_{\text{new}}} \qquad
# \text{acc} \leftarrow r \cdot \text{acc} + P V$$
#
# A worked example first: 2 queries, 3 keys, head_dim 4, and the state that an earlier tile left behind.

# %%
b_q, b_k, b_v = normal(1, 2, 4), normal(2, 3, 4), normal(3, 3, 2)
m, l, acc = torch.tensor([0.2, 2.0]).double(), torch.tensor([1.0, 1.0]).double(), torch.ones(2, 2).double()
b_s = b_q @ b_k.T * 4**-0.5
m_new = torch.maximum(m, b_s.amax(dim=1))
print("scores of the tile      ", b_s.numpy().round(2).tolist())
print("m, before and after     ", m.numpy().round(2), m_new.numpy().round(2))
print("rescale, one for each row", torch.exp(m - m_new).numpy().round(4))

# %% [markdown]
# Row 0 found a larger score and shrinks what it had; row 1 did not, and its rescale is 1. Now the step, with one line
# missing:

# %%
# spec: 03.tile_step

# %%
# exercise: 03.tile_step

# %%
check("03.tile_step", tile_step)

# %% [markdown]
# (The spec takes the plain sums apart, without any maximum, and measures them against $m_{\text{new}}$ at the end. It
# overflows for large scores, but it is obviously right.)
#
# ## Queries outside: FlashAttention-2
#
# Two loops over tiles. One over queries, one over keys. Which is outside? Take the queries.

# %%
pictures.queries_outside()

# %% [markdown]
# A tile of queries walks past all keys, with its $m$, $l$ and acc at hand, and writes its rows once. No tile of
# queries needs another: on a GPU each is a **program** of its own, and all of them run at the same time.
#
# Write it. The lengths need not be multiples of the blocks. You may call your `tile_step`.

# %%
# spec: 03.tiled_forward

# %%
# exercise: 03.tiled_forward

# %%
check("03.tiled_forward", tiled_forward)

# %% [markdown]
# The last sub-check watches the tensors that your function makes. The naive formula gives the right answer too; it
# fails that one:

# %%
def by_the_book(q, k, v, block_m, block_n):
    s = q @ k.T * q.shape[1] ** -0.5
    m = s.amax(dim=1)
    p = torch.exp(s - m[:, None])
    return p @ v / p.sum(dim=1)[:, None], m + torch.log(p.sum(dim=1))


check("03.tiled_forward", by_the_book)

# %% [markdown]
# ## What it moves
#
# The score matrix is gone from HBM. But nothing is free: each tile of queries reads *all* of K and V again. How much
# is that?

# %%
predict("03.k_bytes", GB=...)

# %% [markdown]
# `flashlab.reference.tiled` runs these loops on a memory that keeps a bill, as in lesson 02. One head is enough: all
# 256 are alike.

# %%
q, k, v = (normal(seed, 4096, 128).float() for seed in (1, 2, 3))
fa2 = tiled.flash_attention_2(q, k, v, block_m=128, block_n=128)
moved = fa2.hbm.traffic()
print("one head, read   ", {kind: f"{size / 2**20:g} MiB" for kind, size in moved.reads.items()})
print("one head, written", {kind: f"{size / 2**20:g} MiB" for kind, size in moved.writes.items()})
print(f"256 heads: K {256 * moved.reads['k'] / 1e9:.2f} GB, all together {256 * moved.total / 1e9:.2f} GB")

# %% [markdown]
# Put it as a formula. Careful: one of the two block sizes does not appear in it.

# %%
# spec: 03.k_bytes_read

# %%
# exercise: 03.k_bytes_read

# %%
check("03.k_bytes_read", k_bytes_read)

# %% [markdown]
# ## Watch it walk
#
# Here is the score matrix of one head as tiles, halfway through. Rows are programs. The number in a tile is the step
# in which it was worked on; at the side is the bill so far.

# %%
walk = TileWalk(order="flash_attention_2", step=4)
walk.figure()

# %% [markdown]
# Eight programs, each at its fourth key tile. Now drive it yourself: drag the step, then choose another order of the
# loops, then causal.

# %%
walk

# %% [markdown]
# ## Is that few bytes or many?
#
# Compare with the work. A pair of tiles does $4 B_M B_N d$ FLOP: two products, two FLOP for each multiply-add.

# %%
predict("03.intensity", FLOP_per_byte=...)

# %%
pictures.block_sizes()
for block_m in (16, 64, 128, 256):
    moved = traffic.flash_attention_2(4096, 4096, 128, block_m, 64).total
    print(f"BLOCK_M = {block_m:3}: {256 * moved / 1e9:5.1f} GB, {4 * 4096**2 * 128 / moved:5.1f} FLOP per byte")

# %% [markdown]
# This is the whole point of a tile of *queries*: a key that is on the chip serves BLOCK_M of them. Intensity is
# BLOCK_M, near enough. BLOCK_N is only the size of the bites. It matters for SRAM and for how well the two products
# run, not for the bytes.
#
# A decode step has *one* query. Its BLOCK_M is 1, whatever you write there. Keep that for lesson 08.
#
# ## Keys outside: FlashAttention-1
#
# Now the other way round.

# %%
pictures.keys_outside()

# %% [markdown]
# K and V are loaded *once*. That sounds better. But between two visits the state of a row has to wait somewhere.
# There are thousands of rows, so it waits in HBM.

# %%
predict("03.o_writes", GB=...)

# %%
shape = dict(seqlen_q=4096, seqlen_k=4096, head_dim=128)
orders = {
    "naive": traffic.naive(**shape),
    "keys outside (FA-1)": traffic.flash_attention_1(**shape, block_m=128, block_n=128),
    "queries outside (FA-2)": traffic.flash_attention_2(**shape, block_m=128, block_n=128),
}
pictures.bytes_by_kind(orders)
for name, moved in orders.items():
    print(f"{name:23} {256 * moved.total / 1e9:5.1f} GB, of which O written {256 * moved.writes['o'] / 1e9:5.2f} GB")

# %% [markdown]
# So the same arithmetic in another order moves half as much again, and it *writes* 33 times as much of O. There is
# worse. In FlashAttention-2 every tile of queries is a program. Here one program has to do them all, since the next
# key tile needs what the last one left. So a head is one program.
#
# Write it. The state of all rows is given.

# %%
# spec: 03.keys_outside

# %%
# exercise: 03.keys_outside

# %%
check("03.keys_outside", keys_outside)

# %%
TileWalk(order="flash_attention_1", step=20).figure()

# %% [markdown]
# One program. It has finished two and a half *columns* after 20 steps; eight programs had done half of everything
# after 4.
#
# ## The count against the paper
#
# FlashAttention (arXiv 2205.14135) fits its tiles to an SRAM of $M$ numbers: $B_N = M / 4d$. Its theorem 2 says that
# it moves
#
# $$\Theta\left(\frac{N^2 d^2}{M}\right) \text{ numbers, where the naive way moves } \Theta(N d + N^2).$$
#
# $\Theta$ hides a constant. We can find it on a napkin. There are $N / B_N = 4 N d / M$ passes over the queries, and
# each moves $Q$ in, $O$ in and $O$ out: $3 N d$ numbers. So the constant is $4 \cdot 3 = 12$. Does the count agree?

# %%
pictures.theorem()
for head_dim in (64, 128):
    counted, formula = paper_elements(head_dim), 12 * traffic.theorem_2(2**16, head_dim, 2**16)
    print(f"M = 64K, head_dim {head_dim}: counted {counted:.2e}, formula {formula:.2e}, ratio {counted / formula:.3f}")

# %% [markdown]
# It does, within a few percent: the rest is K and V, and the statistics $m$ and $l$. For FlashAttention-2 the same
# napkin gives $4 N d / M$ tiles of queries and $2 N d$ for each, hence 8 in place of 12.
#
# Now read the formula. $N$ appears in it exactly as in the naive count, $N^2$. So the saving does **not** grow with
# the length. It is $4N^2$ over $12 N^2 d^2 / M$, which is $M / 3d^2$: it depends on SRAM and on head_dim.

# %%
predict("03.head_dim", times=...)

# %%
for head_dim in (64, 128, 256):
    naive = traffic.naive(2**16, 2**16, head_dim).total / 2
    counted, formula = naive / paper_elements(head_dim), 2**16 / (3 * head_dim**2)
    print(f"M = 64K, head_dim {head_dim}: naive moves {counted:.2f} times as much; M / 3d^2 = {formula:.2f}")

# %% [markdown]
# At head_dim 256, with an SRAM of that size, this count says that FlashAttention-1 moves *three times as much* as the
# naive way. It still saves the *memory*: naive needs 8.6 GB to hold S of that one head, FlashAttention nothing.
#
# ## Causal: which tiles?
#
# A causal mask hides the future: query $i$ sees key $j$ if
#
# $$j \le i + N_k - N_q$$
#
# with $N_q$ queries and $N_k$ keys. The last term **aligns at the bottom right**: the last query is the newest token,
# and it sees every key. With equal lengths it is 0.

# %%
pictures.causal_tiles(Tiling(1024, 1024, 128, 128, causal=True), Tiling(512, 1536, 128, 128, causal=True))
for seqlen_q, seqlen_k in ((1024, 1024), (512, 1536)):
    tiling = Tiling(seqlen_q, seqlen_k, 128, 128, causal=True)
    seen = sum(tiling.sees(rows, keys) for rows in tiling.q_tiles for keys in tiling.k_tiles)
    pairs = len(tiling.q_tiles) * len(tiling.k_tiles)
    print(f"{seqlen_q} queries, {seqlen_k} keys: {seen} of {pairs} pairs of tiles are computed")

# %% [markdown]
# Three kinds of tiles. Blue: every row sees every key, so no mask is needed. Orange: the diagonal cuts it, and it is
# masked. Grey: nobody sees it, so it is not even loaded. The right picture is a *chunk*: 512 new tokens behind a
# cache of 1024.

# %%
predict("03.chunk", pairs=...)

# %%
tiling = Tiling(512, 4096, 128, 128, causal=True)
for i, rows in enumerate(tiling.q_tiles):
    seen = [tiling.sees(rows, keys) for keys in tiling.k_tiles]
    print(f"query tile {i}: sees {sum(seen)} of {len(seen)} key tiles")

# %% [markdown]
# Aligned at the top left it would have been 1 + 2 + 3 + 4 = 10, and the 3584 tokens of the cache would be all but
# invisible. That mistake looks plausible in every test with equal lengths.
#
# A kernel needs two numbers for each query tile: up to which key tile no mask is needed, and where to stop. Which row
# decides which?

# %%
# spec: 03.causal_tile_bounds

# %%
# exercise: 03.causal_tile_bounds

# %%
check("03.causal_tile_bounds", causal_tile_bounds)

# %% [markdown]
# Now all of it together. Start from your `tiled_forward`, and write the step out: the mask has its place between the
# scores and their maximum. Look after rows that see no key at all (more queries than keys).

# %%
# spec: 03.causal_forward

# %%
# exercise: 03.causal_forward

# %%
check("03.causal_forward", causal_forward)

# %% [markdown]
# ## A third order: cut the keys too
#
# Few queries and a long cache: few tiles of queries, so FlashAttention-2 has few programs; with a single query it has
# *one* per head. But lesson 02 has shown that the keys may be cut anywhere. So let several programs share them, and
# merge. That is split-KV, the subject of lesson 09. The loops are the same, the merge is the same. Here are four tiles of
# queries, and the keys cut in four: 16 programs.

# %%
TileWalk(order="split_kv", seqlen_q=64, block_m=16, seqlen_k=1024, num_splits=4, step=3).figure()

# %% [markdown]
# Now a single query, as in a decode step, with 2048 keys:

# %%
q, k, v = normal(1, 1, 64), normal(2, 2048, 64), normal(3, 2048, 64)
one = tiled.flash_attention_2(q, k, v, block_m=16, block_n=64)
cut = tiled.split_kv(q, k, v, block_m=16, block_n=64, num_splits=8)
print("same output, to 14 digits:", torch.allclose(one.out, cut.out, rtol=0, atol=1e-14))
print(f"one walk: {one.hbm.steps} steps, {one.hbm.traffic().total:,} bytes")
print(f"8 splits: {cut.hbm.steps} steps, {cut.hbm.traffic().total:,} bytes: "
      f"{100 * (cut.hbm.traffic().total / one.hbm.traffic().total - 1):.1f}% more")

# %% [markdown]
# ## On a real GPU: the order of the loops
#
# Two plain Triton kernels, alike but for the order of their loops (`lesson_03/measure.py`). *Predicted* is the
# counted bytes over 4284 GB/s, the best copy of that GPU, or the FLOP over 690 TFLOP/s, its best matrix product:
# whichever is longer.

# %%
print(f"Recorded: {recorded.WHEN}; bf16, head_dim 128, tiles of 128 x 64")
count = {"keys outside": traffic.flash_attention_1, "queries outside": traffic.flash_attention_2}
for (heads, n), us in recorded.LOOP_ORDERS.items():
    for order, recorded_us in us.items():
        gigabytes = heads * count[order](n, n, 128, 128, 64).total / 1e9
        by_bytes = gigabytes / recorded.COPY_BYTES_PER_S * 1e12
        by_flop = 4 * heads * n * n * 128 / recorded.MATMUL_FLOPS * 1e3
        print(f"{heads:5} heads of {n:5}, {order:15}: {gigabytes:4.1f} GB; predicted {max(by_bytes, by_flop):4.1f} ms "
              f"(bytes {by_bytes:4.1f}, FLOP {by_flop:.1f}), recorded {recorded_us / 1e3:5.1f} ms")

# %% [markdown]
# - **256 heads, keys outside**: the bytes set a floor of 12.5 ms, and it takes 17.
# - **16 heads, keys outside**: the same FLOP, nearly the same bytes, and **162 ms**. The *grid* explains that: 16
#   heads are 16 programs, and 116 of 132 SMs have nothing to do. With 8 times fewer SMs at work it takes 9.6 times as
#   long.
# - **Queries outside**: 16 heads make 2048 programs, so the number of heads does not matter: 4.1 ms. The prediction
#   is near. Is it right for the right reason?

# %%
print("BLOCK_M   counted    from HBM alone   recorded   FLOP floor")
for block_m, us in recorded.BLOCK_M_US.items():
    gigabytes = 256 * traffic.flash_attention_2(4096, 4096, 128, block_m, 64).total / 1e9
    from_hbm = gigabytes / recorded.COPY_BYTES_PER_S * 1e12
    floor = 4 * 256 * 4096**2 * 128 / recorded.MATMUL_FLOPS * 1e3
    print(f"{block_m:7} {gigabytes:6.1f} GB {from_hbm:13.1f} ms {us / 1e3:7.1f} ms {floor:9.1f} ms")

# %% [markdown]
# (Recorded on the same H200: the better of 2 and 4 warps, 256 heads of 4096.) The order is as counted: each halving
# of BLOCK_M makes it slower. But at BLOCK_M = 16 the bytes would take 32 ms from HBM, and the GPU needs 13. So most
# of them did *not* come from HBM. All programs of a head read the same K and V, 2 MiB, and the H200 has an L2 of 60
# MiB: the first one fetches a tile from HBM, the others find it in the L2.
#
# Nor is it HBM that decides at BLOCK_M = 128, though the two numbers agree. That agreement is chance; you will see as
# much work done in 3.2 ms below.
#
# **So mind what we counted**: the loads and stores of the programs. That is the traffic between the SMs and the L2.
# It equals the traffic of HBM only where nothing is found in the L2. The paper's model has no L2.
#
# And against production kernels?

# %%
pictures.from_naive_to_production()
print(f"naive {sum(recorded.NAIVE_US.values()) / 1e3:.1f} ms")
for name, tflops in recorded.PRODUCTION_TFLOPS.items():
    print(f"{name} {recorded.production_us(name) / 1e3:.2f} ms, {tflops} TFLOP/s")

# %% [markdown]
# Naive takes twice as long as its bytes predict; most of that is the softmax (lesson 01). The tiled kernels are bound
# by the FLOP, and how near they come is a matter of craft: PyTorch's FlashAttention-2 uses the A100's matrix
# instructions, cuDNN and FlashAttention-4 use Hopper's. The same loops, from 6.2 to 3.2 ms. Even the plain ones stand
# between, because Triton compiles them to Hopper's instructions.
#
# Where there is a GPU, this times the two orders on it:

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_03 import measure

    times = measure.loop_orders_us(heads=64, seqlen=4096)
    print(torch.cuda.get_device_name(), {order: f"{us / 1e3:.2f} ms" for order, us in times.items()})
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The package's own source
#
# You have written what `flashlab.reference.tiled` is made of. Here is its inner loop, which FlashAttention-2 and
# split-KV share:

# %%
print(inspect.getsource(tiled._attend))
print(inspect.getsource(tiled.flash_attention_2))

# %% [markdown]
# What it adds to yours, line by line:
#
# - `program.load`, `program.store`: the only ways to memory, each with a name and a bill. That is where all the bytes
#   of this lesson come from.
# - `range(len(tiling.k_tiles))` is handed in: FlashAttention-2 passes all key tiles, a split passes its own. Hence
#   one loop for both.
# - `if not tiling.sees(rows, keys): break`: your causal bound, asked tile by tile. It may *break* because what is
#   hidden from a row stays hidden for all later keys.
# - `tiling.scores` masks; `online.step` holds the guard for rows that have seen nothing yet; `online.finish` the one
#   for rows that never do.
# - `program.visited(i, j)`: the clock. The tile walk above is drawn from it.
#
# And the heart of FlashAttention-1, where O waits in HBM *divided*, as in the paper: undo, go on, redo.

# %%
source = inspect.getsource(tiled.flash_attention_1)
print(source[source.index("    for j, keys"):])

# %% [markdown]
# ## Where the idea loses
#
# **Short sequences gain less**, because there S is small beside Q, K, V and O. Recorded with lesson 01's steps, the
# L2 flushed before each:

# %%
print(f"naive / PyTorch's FlashAttention-2, 16 heads, head_dim 128 ({recorded.WHEN})")
for (batch, _, _, n, _, _), us in recorded.PREFILL.items():
    naive_us = us["scores"] + us["softmax"] + us["output"]
    fused_us = us["fused"]
    print(f"  {batch:2} of {n:5} tokens: {naive_us / 1e3:5.2f} ms / {fused_us / 1e3:4.2f} ms = {naive_us / fused_us:.1f}")

# %% [markdown]
# **A large head_dim and a small SRAM**: see $M / 3d^2$. **If you need the probabilities**, for a picture or for a
# loss on them: they are not there. You can only compute them again, from lse. That is also what the backward pass
# must do, and it costs FLOP (lesson 06).
#
# > **To keep**
# > - Tiles of q, k and v on the chip, $m$, $l$ and acc in registers: the score matrix never exists.
# > - Queries outside: K and V are read once for each query tile, the output is written once, and every query tile is a
# >   program of its own.
# > - Keys outside: K and V are read once, but the state of every row goes out and back for each key tile, and a head is
# >   one program.
# > - Bytes go with 1 / BLOCK_M; intensity is about BLOCK_M FLOP per byte. BLOCK_N does not matter for bytes.
# > - 12 N²d²/M for FlashAttention-1, 8 for FlashAttention-2. The saving does not grow with N; it falls with d².
# > - Causal: the last row says where to stop, the first row where the mask begins. Aligned at the bottom right.
# > - Counted bytes are what programs load. The L2 stands between that and HBM.
#
# **Left out.** How a program is laid over warps and matrix instructions, and how loads are made to overlap with work:
# lessons 04 and 05. Dropout, windows, softcap: each changes `scores`, not the loops. Persistent programs and the
# order in which programs are started, which decides how well the L2 works.
#
# **Read next.** Dao, Fu, Ermon, Rudra, Ré, *FlashAttention* (arXiv 2205.14135), sections 3.1 and 3.2 and theorem 2.
# Dao, *FlashAttention-2* (arXiv 2307.08691), section 3.2, on why the loops were swapped. Then lesson 04: your first
# kernel.
