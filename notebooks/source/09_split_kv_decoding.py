# %% [markdown]
# # 09 · Split-KV decoding
#
# **What you will build**
# 1. The split: one decode step cut over the whole GPU, in PyTorch and then as a Triton kernel.
# 2. The combine kernel, which puts the parts together again.
# 3. The rule that says how many splits. You will hold it, and two famous claims, 8 times and 50 times, against
#    recorded runs.
#
# You need lessons 02, 04 and 08. Allow 90 minutes. No GPU is needed.

# %% tags=["nbval-ignore-output"]
import inspect
import math

import torch

from flashlab import flash_attn_with_kvcache
from flashlab.course import check, hint, predict, progress, quiz, solution, start, trace
from flashlab.course.lessons.data import normal
from flashlab.course.lessons.in_triton import DEVICE
from flashlab.course.lessons.lesson_08.recorded import launch
from flashlab.course.lessons.lesson_09 import end_to_end, even_splits, pictures, recorded, step_bytes
from flashlab.hardware import decode_grid, num_splits, waves
from flashlab.hardware import splits as split_rules
from flashlab.kernels import combine, decode, decode_plan
from flashlab.reference.algebra import Partial, merge
from flashlab.widgets import SMGrid, TileWalk

# isort: split
import triton  # after flashlab, which decides where kernels run
import triton.language as tl

start("09")

# %% [markdown]
# Two questions on what came before.

# %%
quiz("09.q1")

# %%
quiz("09.q2")

# %% [markdown]
# ## Eight programs for 132 SMs
#
# One sequence, 32 query heads on 8 kv heads, 131072 keys: this is the step of this lesson. The query heads of a group
# share one tile, so there is one tile of work for each kv head. Call it a **row**: batch times kv heads. Eight rows
# are eight programs, and an H200 has 132 SMs.

# %%
pictures.sms_at_work(1, 16, 17)
one = recorded.sweep()[1]
cache = 2 * 8 * 131072 * 128 * 2  # bytes of K and V, bf16
print(f"{cache / 1e6:.0f} MB in {one:.0f} us, recorded on an H200: {cache / one / 1e3:.0f} GB/s of 4800")
print(f"each of the 8 programs reads {cache / 8 / one / 1e3:.0f} GB/s")

# %% [markdown]
# Five percent of the bandwidth: a program can only have so many loads under way, and 124 SMs have none. A longer
# cache does not help. It makes the eight programs run longer.
#
# ## Cut the keys
#
# So give each row *several* programs, and each of them a piece of the keys. That is possible because of lesson 02.
# Attention over some of the keys is a pair, $o_i$ and $\text{lse}_i$, and pairs merge:
#
# $$\text{lse} = \log \sum_i e^{\text{lse}_i} \qquad\qquad o = \sum_i e^{\text{lse}_i - \text{lse}} \, o_i$$

# %%
pictures.two_launches()

# %% [markdown]
# Two launches. No program of the first needs another one. The second starts when all parts are there. Here are 2048 keys
# and 16 query rows, halfway; drag the number of splits and see the walk get shorter:

# %%
walk = TileWalk(order="split_kv", seqlen_q=16, block_m=16, seqlen_k=2048, num_splits=8, step=2)
walk.figure()

# %%
walk

# %% [markdown]
# By hand, for 12 keys in three splits, with values of one number each:

# %%
s, v = torch.tensor([1.0, 2, 0, 1, 5, 0, 1, 1, 2, 2, 2, 0]).double(), torch.arange(12).double()
lses = torch.stack([torch.logsumexp(part, 0) for part in s.split(4)])
outs = torch.stack([torch.softmax(a, 0) @ b for a, b in zip(s.split(4), v.split(4), strict=True)])
lse = torch.logsumexp(lses, 0)
weights = torch.exp(lses - lse)
for i in range(3):
    print(f"split {i}: out {outs[i]:.3f}, lse {lses[i]:.3f}, weight {weights[i]:.3f}")
print(f"merged      {weights @ outs:.6f}")
print(f"all at once {torch.softmax(s, 0) @ v:.6f}")

# %% [markdown]
# Split 1 has the key with score 5, and four fifths of the weight. A plain average of the three outs would be far off.
#
# ## Which keys?
#
# A kernel works in tiles of BLOCK_N keys, so a split is a number of whole tiles. There are two ways to deal them out:

# %%
pictures.cuts(tiles=9, splits=4)

# %% [markdown]
# Above, each split takes $\lceil 9 / 4 \rceil = 3$ tiles, and nothing is left for the last one. Below, split $i$ goes
# from tile $\lfloor i T / n \rfloor$ to tile $\lfloor (i + 1) T / n \rfloor$. The longest split has three tiles either
# way, so they take equally long. But the even cut leaves no program idle. One line is missing:

# %%
# spec: 09.split_range

# %%
# exercise: 09.split_range

# %%
check("09.split_range", split_range)

# %% [markdown]
# `even_splits(length, block_n, num_splits)` gives all ranges of a row at once, from the package. Note its first
# argument. A cache has room for more keys than it holds, and the keys that are *there* have to be shared out, not the
# room:

# %%
print("64 keys, tiles of 16, 4 splits            ", even_splits(64, 16, 4))
by_room = [(min(a, 64), min(b, 64)) for a, b in even_splits(1024, 16, 4)]
print("the same, cut from a capacity of 1024 keys", by_room)

# %% [markdown]
# The second answer is right, too: every key is in one split. But three of four programs have nothing to do.
# FlashAttention once did this (issue 1000 of its repository), and no test of the *result* will ever find it. A trace
# does. Does the package share out what is there?

# %%
q, k, v = normal(1, 1, 1, 4, 16).float(), normal(2, 1, 1024, 2, 16).float(), normal(3, 1, 1024, 2, 16).float()
moved = trace(lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=256, num_splits=4))
read = [moved.launches[0].programs[0, split, 0]["k"][0] // (16 * 4) for split in range(4)]  # a key: 16 numbers of 4 bytes
print("256 keys in a cache of 1024, 4 splits: the programs of row 0 read", read)

# %% [markdown]
# It does.
#
# ## What a split leaves behind
#
# Now the parts, for one kv head and all its query heads, in PyTorch. Three things to look after: the real length, the
# splits without keys, and that each part is normalised *by itself*.

# %%
# spec: 09.split_partials

# %%
# exercise: 09.split_partials

# %%
check("09.split_partials", split_partials)

# %% [markdown]
# ## Merging, when nobody wrote
#
# You know the merge from lesson 02. One thing is new. A program that finds no keys is quickest if it stores
# lse = $-\infty$ and leaves. Then its out is whatever was in that memory before: an old tensor, or NaN.

# %%
lses = torch.tensor([1.0, -math.inf])
outs = torch.tensor([3.0, math.nan])  # nobody wrote the second
w = torch.exp(lses - lses.max())
print("weights      ", w.tolist())
print("sum of w * o ", float((w * outs).sum()))
print("what is meant", float(torch.where(w > 0, w * outs, 0.0).sum()))

# %% [markdown]
# A weight of 0 does not help: 0 · NaN is NaN. One line is missing:

# %%
# spec: 09.combine_partials

# %%
# exercise: 09.combine_partials

# %%
check("09.combine_partials", combine_partials)

# %% [markdown]
# The most natural wrong answer, and what the report makes of it:

# %%
def multiplied(outs, lses):
    m = lses.amax(dim=0)
    m = torch.where(m == -math.inf, 0.0, m)
    w = torch.exp(lses - m)
    l = w.sum(dim=0)
    acc = (w[:, :, None] * outs).sum(dim=0)
    return acc / torch.where(l == 0, 1.0, l)[:, None], m + torch.log(l)


check("09.combine_partials", multiplied)

# %% [markdown]
# ## The split kernel
#
# In Triton the grid gets a second axis: program (row, split). The loop over key tiles is that of lesson 04, and it
# does not change at all. It runs from `first_tile` to `last_tile` instead of from 0 to the end.
#
# The loop is given. Write what stands before it, and the two stores behind it. `unit` folds $\log_2 e$ into the scale,
# so the loop works with powers of 2: $l = \sum 2^{s - m}$, and m is in base 2. The lse that you store is natural.

# %%
# spec: 09.split_decode

# %%
# exercise: 09.split_decode

# %%
check("09.split_decode", split_decode)

# %% [markdown]
# The length is loaded *inside* the kernel, from the device. So a batch whose rows have different lengths needs
# nothing from the host, and a CUDA graph can be replayed while the rows grow.
#
# ## The combine kernel
#
# One program a row. `tl.arange` wants a power of two, so the splits are padded, and a lane too many must weigh
# nothing. This one you write whole.

# %%
# spec: 09.combine_splits

# %%
# exercise: 09.combine_splits

# %%
check("09.combine_splits", combine_splits)

# %% [markdown]
# That is Flash-Decoding, all of it.
#
# ## What the cut costs
#
# Every split writes a part, and the second launch reads it.

# %%
predict("09.partials", percent=...)

# %% [markdown]
# Is the formula what a kernel really moves? Trace the package's own two kernels, on something small: 4 query heads
# on 2 kv heads, head_dim 16, 200 keys, 3 splits, float32.

# %%
q, k, v = normal(1, 1, 1, 4, 16).float(), normal(2, 1, 200, 2, 16).float(), normal(3, 1, 200, 2, 16).float()
moved = trace(lambda: flash_attn_with_kvcache(q, k, v, num_splits=3))
print(moved)
parts = 3 * 4 * (16 + 1) * 4
print(f"3 splits x 4 heads x (16 + 1) numbers x 4 bytes = {parts} bytes, stored and loaded")

# %%
for split in range(3):
    program = moved.launches[0].programs[0, split, 0]
    keys = program["k"][0] // (16 * 4)  # a key is 16 numbers of 4 bytes
    print(f"program (0, {split}): {keys} keys read, {program['parts'][1]} bytes of partials stored")

# %% [markdown]
# K and V are read once, however many splits there are. Only q is read once for each. And 200 keys are four tiles here,
# the last one of 8 keys: 64 + 64 + 72.

# %%
print("keys      splits   K and V      parts, out and back")
for seqlen in (512, 2048, 8192, 131072):
    for n in sorted({16, min(33, seqlen // 32)}):  # no more splits than tiles of 32 keys
        one_head = step_bytes(seqlen, n)
        kv = 8 * (one_head.reads["k"] + one_head.reads["v"])
        parts = 8 * 2 * (one_head.reads["o_partial"] + one_head.reads["lse_partial"])
        print(f"{seqlen:6} {n:9} {kv / 1e6:9.2f} MB {parts / 1e6:9.2f} MB {parts / kv:9.1%}")

# %% [markdown]
# At 131072 keys next to nothing. At 512 keys and 16 splits, one for each tile, a quarter as many bytes again. So splits
# are free only where there is much to read.
#
# ## How many splits? Waves
#
# Suppose an SM holds one program. 132 of them run at once: a **wave**. With $R$ rows and $n$ splits there are
#
# $$w = \frac{R \, n}{\text{SMs}} \text{ waves, and they take the time of } \lceil w \rceil \qquad
# \text{efficiency} = \frac{w}{\lceil w \rceil}$$
#
# Look at the third picture at the top again: 17 splits are 136 programs.

# %%
predict("09.waves", percent=...)

# %%
pictures.efficiency()
for n in (8, 15, 16, 17, 33, 34):
    filled = waves(blocks=8 * n, sms=132)
    print(f"{n:3} splits: {filled.blocks:3} programs, {filled.waves:.2f} waves take the time of {filled.rounds}: "
          f"{filled.efficiency:.1%}")

# %% [markdown]
# A tooth of the saw for every wave. 33 splits fill two waves and 66 fill four, to the last place, and the more waves
# there are, the less the last one matters. But each split costs. FlashAttention-3 chooses so:
#
# - The rows fill 80% of the SMs already, or there are at most 4 key tiles: 1.
# - Otherwise try every $n$ up to 128, the SMs and the key tiles, whichever is least. Take the *smallest* whose
#   efficiency is at least 85% of the best one's.
#
# Write it.

# %%
# spec: 09.efficient_splits

# %%
# exercise: 09.efficient_splits

# %%
check("09.efficient_splits", efficient_splits)

# %%
predict("09.fa3", splits=...)

# %% [markdown]
# This package's kernels use a simpler rule: as many programs as the GPU holds at once, and never one more.
#
# $$n = \left\lfloor \frac{\text{programs an SM holds} \cdot \text{SMs}}{R} \right\rfloor$$
#
# Which of the two is better? That is a question for a GPU.
#
# ## On a real GPU
#
# First commit yourself.

# %%
predict("09.eight", us=...)

# %%
predict("09.best", us=...)

# %%
pictures.sweep()
print(f"tiles of 32 keys: {recorded.when('launch')}")
print("tiles of 64 keys: one H200, 2026-11-30, torch 2.11.0, triton 3.6.0, another run, dirty L2")
print("splits   tiles of 32   tiles of 64   predicted for 64")
for n in (1, 2, 4, 8, 16, 17, 24, 33):
    model = pictures.predicted_us(n)
    print(f"{n:6} {recorded.sweep()[n]:10.0f} us {recorded.LARGE_TILES[n]:10.0f} us {model:12.0f} us")

# %% [markdown]
# Three things to see.
#
# **Halving works** up to eight splits. Then the memory itself comes in sight, and the curve bends towards the floor.
#
# **The cliff at 17** is there for tiles of 64 keys: 135 us become 158. The saw says *twice* the time, the GPU says a
# sixth more. An SM holds two of these programs, so there is no second wave. But four SMs got two programs and the
# others one, and those four finish last.

# %%
grid = SMGrid(num_splits=17, blocks_per_sm=1, wave=2)
grid.figure()

# %% [markdown]
# So it would be if an SM held *one* program. The curve is the model for tiles of 64, the diamonds were recorded with
# tiles of 32. Now drag *blocks per SM* to 2: the second wave is gone, and the cliff at 17 is lower. Where is the next
# cliff then? Drag the splits over it.

# %%
grid

# %% [markdown]
# **Tiles of 32 keys have no cliff**, and need more splits. Such a program has fewer bytes under way, so it reads more
# slowly (2102 us against 1633 in one split), and several of them must share an SM. Then one more or less hardly
# matters. How many does an SM hold? Compile it and see. (This takes some seconds, and needs no GPU.)

# %% tags=["nbval-ignore-output"]
from flashlab.hardware.residency import occupancy
from flashlab.kernels.inspect import inspect as compiled

report = compiled("decode", "sm_90", group=4)
held = occupancy("9.0", report.threads, report.registers, report.shared_memory_bytes)
print(f"{report.launch['BLOCK_N']} keys a tile, {report.threads} threads, {report.registers} registers a thread, "
      f"{report.shared_memory_bytes} bytes of shared memory: an SM holds {held.blocks_per_sm}")

# %% [markdown]
# Now the rules. FlashAttention-3's takes one program an SM. Ours is told by a table how many an SM *should* hold for
# this tile: two at this shape.

# %%
sweep = recorded.sweep()
best = min(sweep, key=sweep.get)
tile, ours = launch(1, 32, 8, 131072)  # the tile and the splits that the package takes on an H200
theirs = num_splits(blocks=8, sms=132, key_blocks=131072 // 32)
print(f"best of the sweep: {best} splits, {sweep[best]:.1f} us")
print(f"{tile.blocks_per_sm} programs an SM, tiles of {tile.BLOCK_N}: {ours} splits, {sweep[ours]:.1f} us")
print(f"FlashAttention-3: {theirs} splits; recorded were 12 ({sweep[12]:.1f} us) and 16 ({sweep[16]:.1f} us)")

# %% [markdown]
# For *this* kernel 15 splits would cost a good quarter. That does not make the rule wrong. FlashAttention-3's tiles
# are larger, one of its programs fills an SM, and for our tiles of 64 keys 16 splits *are* the best of all. A rule for
# splits belongs to a kernel, not to a GPU.
#
# ## "Up to 50 times"
#
# The post that introduced Flash-Decoding (pytorch.org/blog/flash-decoding, October 2023) says: attention up to 50
# times faster than FlashAttention. It prints a table, for an A100. Here are the rows with the same number of keys in
# all, 65536, in ever fewer sequences.

# %%
pictures.published()
for (batch, seqlen), us in recorded.PUBLISHED.items():
    if batch in (256, 8, 1):
        print(f"{batch:3} x {seqlen:6} keys: FlashAttention 2.0.9 {us['flash2']:6.1f} us, Flash-Decoding "
              f"{us['split']:5.1f} us: {us['flash2'] / us['split']:4.1f} times")

# %% [markdown]
# Flash-Decoding does not care how the keys are distributed. That is the split. Now be careful: what is compared?
#
# - The largest factor in the table is **43**, at 131072 keys. 50 is not in it.
# - At batch 256 it is already **6**. There are 4096 programs then, and nothing is underfilled. What else differs? Each
#   kv head serves 8 query heads. FlashAttention 2.0.9 had a program for each *query* head, and each read its K and V
#   again; 8 times 67 MB in 390 us are 1.4 TB/s. So this 6 is rather the packing than the split.
# - From 6 to 36 at batch 1: *that* is the split, about 6 times. One program a query head makes 16 programs on 108 SMs,
#   and 108 / 16 is 6.75.
#
# So what does the split alone give? Take *one* kernel, once in one split and once in many.

# %%
predict("09.one_head", times=...)

# %%
pictures.factors()
split_us = recorded.decode("flashlab")
print(f"8 kv heads: one split {recorded.decode('flashlab-unsplit'):.0f} us, split {split_us:.1f} us")
print(f"1 kv head:  one split {recorded.decode('flashlab-unsplit', heads_kv=1):.0f} us, "
      f"split {recorded.decode('flashlab', heads_kv=1):.1f} us")
print(f"8 kv heads, PyTorch's own: cuDNN {recorded.decode('torch-cudnn'):.0f} us, "
      f"FlashAttention-2 {recorded.decode('torch-flash'):.0f} us; both split")
print(recorded.when())

# %% [markdown]
# Seven honest factors, from 11 to 61, for one idea. **17** is the same kernel against itself. But our tile is one that
# is slow unsplit. Against the fastest kernel without a split that was seen, FlashAttention-4 at 1331 us (another run),
# it is **11**. With one kv head, one program, it is **61**. And FlexAttention, which did not split here, gives 36.
#
# Against anyone who splits as well, the factor is 1.0 to 1.2. A factor is a statement about *two* kernels and a shape.
#
# ## "8 times faster"
#
# The same post says 8 times, end to end, for CodeLlama-34B. A token is more than attention. It also reads all weights,
# and that part does not get faster. With $a$ the time of attention:
#
# $$\frac{t_\text{weights} + a}{t_\text{weights} + a / \text{factor}}$$
#
# The table's shape is that of CodeLlama-34B on four GPUs. So both claims can be held against each other.

# %%
predict("09.token", times=...)

# %%
for part in ("A100-SXM-80GB", "A100-SXM-40GB"):
    factor = end_to_end.published_token_factor(65536, part)
    print(f"CodeLlama-34B on four {part}, 65536 tokens: attention 36 times faster, a token {factor:.1f} times")
pictures.tokens()
for seqlen in (8192, 32768, 131072):
    attention = recorded.decode("flashlab-unsplit", seqlen_k=seqlen) / recorded.decode("flashlab", seqlen_k=seqlen)
    print(f"Llama-3-8B's shape on an H200, {seqlen:6} keys: attention {attention:4.1f} times, "
          f"a token {end_to_end.recorded_token_factor(seqlen):.1f} times")

# %% [markdown]
# The post's 8 is measured; our napkin gives 9 or 10, where nothing but weights and attention takes time. They fit. (The
# post does not say on how many GPUs it measured. Four is what the table's shape stands for.) It is the *largest* factor
# of a curve that begins at 1: at 512 tokens there is no attention to speak of. For the H200 the kernel times are recorded
# and the sum is computed; lesson 15 measures a whole model.
#
# ## Your own GPU
#
# Where there is one, this runs the sweep on it.

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    from flashlab.course.lessons.lesson_09 import measure

    us = measure.sweep()
    print(torch.cuda.get_device_name(), {n: f"{t:.0f} us" for n, t in us.items()})
    sms = torch.cuda.get_device_properties().multi_processor_count
    print(f"{sms} SMs; FlashAttention-3's rule: {num_splits(blocks=8, sms=sms, key_blocks=1024)} splits, "
          f"best here: {min(us, key=us.get)}")
else:
    print("No GPU here, so there is nothing to time. The recorded numbers above are an H200's.")

# %% [markdown]
# ## The package's own kernels
#
# Open them. First, which keys a program gets, in `flashlab/kernels/decode.py`:

# %%
def excerpt(module, start, stop):
    source = inspect.getsource(module)
    at = source.index(start)
    print(source[at : source.index(stop, at)].rstrip())


excerpt(decode, "    length = _real_length(p_cache_seqlens, b,", "    shift = length - seqlen_q")

# %% [markdown]
# What it adds to yours, line by line:
#
# - `_real_length(...)`: your `tl.load(p_lengths + row)`, plus the tokens that this call appends, and never more than the
#   cache can hold.
# - `_key_tiles(...)`: not 0 to the last tile, but *start* to *end*: a sliding window skips old tiles, left padding
#   skips the first ones. Between `full_start` and `full_end` no tile needs a mask. Yours masks every tile.
# - `splits = tl.maximum(tl.minimum(splits, end - start), 1)`: never more splits than this row has tiles.
# - `if split >= splits`: the empty split says $-\infty$ and *leaves*. It writes no out; you have met the consequence.
# - `first_tile`, `last_tile`: your line, in 64 bits, since tiles times splits may pass $2^{31}$.
#
# Next, the group of query heads as the rows of a tile:

# %%
excerpt(decode, "    packed = place % row_tiles", "    if SPLIT:")

# %% [markdown]
# - `packed // GROUP` is the query *token*, `packed % GROUP` the head in its group: several new tokens (speculative
#   decoding, or a chunk) share the tile as well. Yours has one token.
# - Then three calls of `_attend` in place of your loop: the masked tiles at either edge, and the unmasked ones between.
#   In them, what yours does not have: pages found through `block_table` (lesson 11), int8, fp8 and int4 caches
#   unpacked on the way (lesson 12), softcap and ALiBi.
# - With AXIS = 0 the *keys* are the long side of the product, so that a group pads to 8 rows and not to 16.
#
# At its end the kernel lets the next one begin:

# %%
excerpt(decode, "    if EARLY_COMBINE:", "    if SPLIT")
excerpt(combine, "    if STARTED_EARLY:", "    if BALANCE:")

# %% [markdown]
# - Programmatic dependent launch (Hopper and later): the combine kernel is started while the last splits still run. It
#   computes its addresses and waits in `gdc_wait` until the parts are there. That hides part of the second launch.
#
# And the combine kernel itself:

# %%
excerpt(combine, "    m = tl.full([], NEG_INF", "@triton.jit")

# %% [markdown]
# - `for first in range(0, num_partials, BLOCK_N)`: any number of splits, a tile of them at a time, with the online
#   softmax of lesson 02. Yours takes them all at once.
# - `mask=(lse > NEG_INF)[:, None] & ...`: your mask. What nobody wrote is not even read.
# - `dims` are 32 columns of head_dim only: for 32 heads of 128 that makes 128 programs, so the second launch does not
#   underfill the GPU in its turn.
# - It takes powers of 2: the difference to the maximum times log2 e, and at the end log2 of l times ln 2.
#
# The number of splits, last:

# %%
print(inspect.getsource(split_rules.splits_to_fill))
print(inspect.getsource(decode_plan.Plan.splits))

# %% [markdown]
# - `given > 0`: whoever names a number gets it.
# - `lengths`: *real* lengths, where the host knows them. If they are alike, your formula.
# - If they differ, or lie on the device, the last line: all rows share one pool of programs, `BALANCE`. What for?
#
# ## A batch of unequal rows
#
# 63 sequences of 1024 keys, and one of 131072. One number of splits cannot fit both.

# %%
tile, tokens, heads_kv, slots = 32, [1024] * 63 + [131072], 8, 3 * 132
tiles = [n // tile for n in tokens]
share = [max(1, slots * t // (heads_kv * sum(tiles))) for t in tiles]
ways = {
    "one split": [1] * 64,
    "as many programs a row as the longest row wants": None,
    "16 splits for every row": [16] * 64,
    "splits in proportion to real lengths": share,
}
for name, us in recorded.UNEVEN_US.items():
    splits = ways[name] or share
    programs = heads_kv * (64 * max(share) if ways[name] is None else sum(splits))
    longest = max(math.ceil(t / n) for t, n in zip(tiles, splits, strict=True))
    print(f"{name:48} {programs:6} programs, the longest {longest:5} tiles: {us:6.0f} us")
print(f"{'reading alone':48} {'':37} {recorded.UNEVEN_READ_US:6.0f} us")

# %% [markdown]
# (Recorded on an H200, pages of a paged cache. The first column is arithmetic: tiles of 32 keys, three programs an SM.)
# The longest program sets the pace. In the second way the splits are the same as in the fourth, but every short row
# has 32 programs that find nothing, and thousands of them stand in the queue before the ones that matter. In the
# fourth a row gets splits by its share of all tiles, computed *by the programs themselves*: the lengths never leave
# the GPU.
#
# ## Where the idea loses
#
# **Large batches.** 64 sequences make 512 rows, and the GPU is full. Both rules say 1 then, and there is no second launch
# and nothing to merge. Splits would bring nothing but their parts.

# %%
for batch, seqlen in ((1, 131072), (4, 32768), (16, 8192), (64, 4096)):
    rows = decode_grid(batch=batch, heads_q=32, heads_kv=8, seqlen_k=seqlen).rows
    shape = dict(batch=batch, seqlen_k=seqlen)
    us, rival = recorded.decode("flashlab", **shape), recorded.decode("torch-cudnn", **shape)
    theirs, (_, ours) = num_splits(blocks=rows, sms=132, key_blocks=seqlen // 32), launch(batch, 32, 8, seqlen)
    print(f"{batch:3} x {seqlen:6} keys: {rows:3} rows; splits: FlashAttention-3 {theirs:2}, package {ours:2}; "
          f"recorded {us:.0f} us, cuDNN {rival:.0f} us")
parts, kv = 2 * 16 * 64 * 32 * (128 + 1) * 4, 2 * 64 * 8 * 4096 * 128 * 2  # bytes: 16 splits, out and back; K and V
print(f"64 x 4096 in 16 splits: {parts / 1e6:.0f} MB of parts, {100 * parts / kv:.1f}% of K and V, for nothing")

# %% [markdown]
# **Short steps.** Two launches from Python cost more than the GPU needs for 8192 keys, and then the GPU waits:

# %%
pictures.host()
for seqlen in (8192, 131072):
    two = recorded.decode("flashlab", time="host_s", seqlen_k=seqlen)
    one = recorded.decode("flashlab-unsplit", time="host_s", seqlen_k=seqlen)
    print(f"{seqlen:6} keys: Python takes {one:.0f} us for one launch, {two:.0f} us for two")

# %% [markdown]
# The remedy is not a kernel but a CUDA graph: the launches of a whole step are recorded once and replayed together,
# 4 us a call here. vLLM and SGLang decode that way. It needs a grid that does not depend on the lengths, which
# is one more reason to read them on the device.
#
# **Bits.** Another number of splits rounds differently. A result that must repeat bit for bit, in whatever batch it finds
# itself, needs a fixed `num_splits`:

# %%
q, k, v = (x.to(DEVICE) for x in (q, k, v))  # where kernels run
three, again, one = (flash_attn_with_kvcache(q, k, v, num_splits=n) for n in (3, 3, 1))
print("three splits twice: the same bits:", torch.equal(three, again))
print("three splits and one: the same bits:", torch.equal(three, one), " to 6 digits:", torch.allclose(three, one, atol=1e-6))

# %% [markdown]
# > **To keep**
# > - A decode step has batch x kv heads rows. If they do not fill the GPU, cut the keys: program (row, split).
# > - A split is attention over its own tiles: (out, lse), edges at floor(i T / n), cut from the *real* length.
# > - The combine kernel is a softmax over the lses. Empty: lse = $-\infty$, and its out is not read.
# > - K and V are still read once. The parts cost splits x heads x (head_dim + 1) x 4 bytes, out and back.
# > - Waves: one program past a full wave costs. How much depends on how many programs an SM holds: measure your kernel.
# > - "50 times" and "8 times" are one shape, one GPU and one rival each. The same kernel against itself: 17.
#
# **Left out.** Cluster reductions, where splits merge through the shared memory of neighbouring SMs and no second
# launch is needed. Persistent kernels that walk a list of work made beforehand (FlashInfer). The last split to finish
# doing the merge itself, with an atomic counter. Cascades: many sequences with one shared beginning.
#
# **Read next.** Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference* (PyTorch blog, 2023). Then
# hopper/heuristics.h in Dao-AILab/flash-attention, one page. Then lesson 10: how large is this cache?
