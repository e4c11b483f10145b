"""The pool under any sequence of operations: no page owned twice, none lost, every token where it was put."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flashlab import flash_attn_with_kvcache
from flashlab.kvcache.pool import HOLE, OutOfPages, PagedKVCache
from flashlab.reference.naive import attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, HEADS, DIM, PAGE = 2, 2, 4, 16


class PoolMachine(RuleBasedStateMachine):
    """A pool of few pages beside a model that keeps every token in a list."""

    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.pool = PagedKVCache(LAYERS, HEADS, DIM, num_pages=7, page_size=PAGE, dtype=torch.float32, device=DEVICE)
        self.model = {}
        self.counter = 0

    def fresh(self, count, new):
        """Tokens nobody has: (layers, count, new, heads, dim)."""
        size = LAYERS * count * new * HEADS * DIM
        k = torch.arange(self.counter, self.counter + size, dtype=torch.float32).reshape(LAYERS, count, new, HEADS, DIM)
        self.counter += size
        return k, -k

    @rule(target=sequences)
    def allocate(self):
        sequence = self.pool.allocate()
        assert sequence not in self.model
        self.model[sequence] = torch.zeros(LAYERS, 0, HEADS, DIM)
        return sequence

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence):
        before = self.pool.utilisation().pages_used
        copy = self.pool.fork(sequence)
        self.model[copy] = self.model[sequence]
        assert self.pool.utilisation().pages_used == before
        return copy

    @rule(sequence=consumes(sequences))
    def free(self, sequence):
        self.pool.free(sequence)
        del self.model[sequence]

    @rule(chosen=st.lists(sequences, min_size=1, max_size=3, unique=True), new=st.integers(0, 40))
    def append(self, chosen, new):
        before = self.state()
        k, v = self.fresh(len(chosen), new)
        try:
            self.pool.append(chosen, k.to(DEVICE), v.to(DEVICE))
        except OutOfPages as error:
            assert "pages" in str(error) and self.state() == before
            return
        for i, sequence in enumerate(chosen):
            self.model[sequence] = torch.cat([self.model[sequence], k[:, i]], 1)

    @rule(sequence=sequences, data=st.data())
    def keep(self, sequence, data):
        length = self.pool.length(sequence)
        tokens = sorted(data.draw(st.sets(st.integers(0, length - 1)))) if length else []
        if data.draw(st.booleans()):  # keep whole leading pages, which must then stay shared
            tokens = sorted({*tokens, *range(min(length, 20))})
        before = self.state()
        try:
            self.pool.keep(sequence, tokens)
        except OutOfPages:
            assert self.state() == before
            return
        self.model[sequence] = self.model[sequence][:, tokens]

    @rule()
    def defragment(self):
        self.pool.defragment()
        used = self.pool.utilisation().pages_used
        assert {page for s in self.model for page in self.pool.pages(s)} == set(range(used))
        assert self.pool.defragment() == 0

    def state(self):
        return {s: (self.pool.pages(s), self.pool.length(s)) for s in self.pool.sequences}, self.pool.utilisation()

    @invariant()
    def every_token_is_where_it_was_put(self):
        assert set(self.pool.sequences) == set(self.model)
        for sequence, tokens in self.model.items():
            assert self.pool.length(sequence) == tokens.shape[1]
            for layer in range(LAYERS):
                k, v = self.pool.read(layer, sequence)
                assert torch.equal(k.cpu(), tokens[layer]) and torch.equal(v.cpu(), -tokens[layer])

    @invariant()
    def no_page_is_owned_twice_and_none_is_lost(self):
        pages = [page for sequence in self.model for page in self.pool.pages(sequence)]
        owners = [pages.count(page) for page in range(self.pool.num_pages)]
        assert owners == self.pool._owners
        assert sorted(self.pool._free) == [page for page in range(self.pool.num_pages) if owners[page] == 0]
        for sequence in self.model:
            assert len(self.pool.pages(sequence)) == -(-self.pool.length(sequence) // PAGE)

    @invariant()
    def utilisation_adds_up(self):
        used = self.pool.utilisation()
        pages = [page for sequence in self.model for page in self.pool.pages(sequence)]
        assert used.pages_used == len(set(pages)) and used.pages_shared_saved == len(pages) - len(set(pages))
        assert used.tokens == sum(t.shape[1] for t in self.model.values())
        assert 0 <= used.slots_unused < max(1, used.pages_used) * PAGE
        assert used.bytes_used == used.pages_used * 2 * LAYERS * PAGE * HEADS * DIM * 4


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def filled(lengths, format="native", seed=0, **options):
    pool = PagedKVCache(1, 2, 16, num_pages=24, page_size=PAGE, format=format, dtype=torch.float32, device=DEVICE, **options)
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for length in lengths:
        sequences.append(pool.allocate())
        k, v = (torch.randn(1, 1, length, 2, 16, generator=generator).to(DEVICE) for _ in range(2))
        pool.append(sequences[-1:], k, v)
    return pool, sequences


@pytest.mark.parametrize("format", ["native", "fp8", "int8", "int4"])
def test_its_tables_are_ready_for_the_kernel(format):
    """Lengths around a page's edges, a fork that grew, pages in any order: the kernel sees what read() says."""
    pool, sequences = filled([0, 1, PAGE - 1, PAGE, PAGE + 1, 50], format)
    pool.free(sequences.pop(2))
    sequences.append(pool.fork(sequences[-1]))
    pool.append(sequences[-1:], *(torch.randn(1, 1, 3, 2, 16, device=DEVICE) for _ in range(2)))
    q = torch.randn(len(sequences), 1, 4, 16, device=DEVICE)
    out, lse = flash_attn_with_kvcache(q, **pool.arguments(0, sequences), return_softmax_lse=True)
    for i, sequence in enumerate(sequences):
        k, v = (t[None].cpu() for t in pool.read(0, sequence))
        ref, ref_lse = attention(q[i : i + 1].cpu(), k, v)
        torch.testing.assert_close(out[i : i + 1].cpu().double(), ref, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lse[i : i + 1].cpu().double(), ref_lse, rtol=1e-4, atol=1e-5)


def test_the_table_is_built_once_until_something_changes():
    pool, sequences = filled([5, 20])
    first = pool.tables(sequences)
    assert pool.tables(sequences) is first
    pool.extend(sequences, 1)
    assert pool.tables(sequences)[1].tolist() == [6, 21]


def test_formats_may_differ_by_layer_and_cost_what_they_say():
    pool = PagedKVCache(4, 2, 16, num_pages=3, page_size=16, format=["native", "fp8", "int8", "int4"], dtype=torch.bfloat16)
    per_vector = [16 * 2, 16 + 4, 16 + 4, 8 + 4]
    assert [layer.page_bytes for layer in pool.layers] == [2 * 16 * 2 * size for size in per_vector]


def test_dropped_pages_are_free_and_hidden_by_a_window():
    pool, (sequence,) = filled([70])
    q = torch.randn(1, 1, 2, 16, device=DEVICE)
    window = (20, 0)
    before = flash_attn_with_kvcache(q, **pool.arguments(0, [sequence]), window_size=window)
    assert pool.drop_front(sequence, 70 - 21) == 3
    for layer in pool.layers:  # whoever gets the pages next may write anything
        free = torch.tensor(pool._free, device=DEVICE)
        layer.k[free], layer.v[free] = float("nan"), float("nan")
    after = flash_attn_with_kvcache(q, **pool.arguments(0, [sequence]), window_size=window)
    assert torch.equal(before, after) and pool.pages(sequence)[:3] == (HOLE,) * 3
    with pytest.raises(ValueError, match="dropped pages"):
        pool.read(0, sequence)
    pool.free(sequence)
    assert pool.utilisation().pages_used == 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="page_size 24"):
        PagedKVCache(1, 1, 8, num_pages=1, page_size=24)
    with pytest.raises(ValueError, match="num_pages 0"):
        PagedKVCache(1, 1, 8, num_pages=0)
    with pytest.raises(ValueError, match="format lists 1 layers"):
        PagedKVCache(2, 1, 8, num_pages=1, format=["int8"])
    pool, sequences = filled([3])
    with pytest.raises(ValueError, match="listed once"):
        pool.extend(sequences * 2, 1)
    with pytest.raises(ValueError, match="k has shape"):
        pool.append(sequences, torch.zeros(1, 1, 1, 2, 8), torch.zeros(1, 1, 1, 2, 16))
    with pytest.raises(IndexError, match="token 3"):
        pool.keep(sequences[0], [3])
    with pytest.raises(KeyError):
        pool.free(99)
    with pytest.raises(ValueError, match="format 'fp4': must be one of native"):
        PagedKVCache(1, 1, 8, num_pages=1, format="fp4")
    with pytest.raises(TypeError, match="layers is a float"):
        PagedKVCache(1.5, 1, 8, num_pages=1)
    with pytest.raises(TypeError, match="dtype torch.int32"):
        PagedKVCache(1, 1, 8, num_pages=1, dtype=torch.int32)
    with pytest.raises(ValueError, match="head_dim 300"):
        PagedKVCache(1, 1, 300, num_pages=1)
    with pytest.raises(IndexError, match="layer 1"):
        pool.read(1, sequences[0])


@pytest.mark.parametrize(
    "refused, message",
    [
        (lambda pool, a, new: pool.append([99], new(3), new(3)), "sequence 99"),
        (lambda pool, a, new: pool.append([a], new(3)[0], new(3)[0]), "k has shape"),
        (lambda pool, a, new: pool.append([a], new(3), new(2)), "v has shape"),
        (lambda pool, a, new: pool.append([a], new(3).int(), new(3).int()), "k is torch.int32"),
        (lambda pool, a, new: pool.append([a], new(3), new(3).to("meta")), "v is on meta"),
        (lambda pool, a, new: pool.extend([a], -1), "new -1"),
        (lambda pool, a, new: pool.extend([a], 1.5), "new is a float"),
        (lambda pool, a, new: pool.write(0, [a], new(60)[0], new(60)[0]), "sequence 1 holds 20"),
        (lambda pool, a, new: pool.write(0, [a], new(1)[0], new(1)[0]), "shared"),
        (lambda pool, a, new: pool.write(-1, [a], new(1)[0], new(1)[0]), "layer -1"),
        (lambda pool, a, new: pool.drop_front(a, -1), "tokens -1"),
        (lambda pool, a, new: pool.drop_front(99, 1), "sequence 99"),
        (lambda pool, a, new: pool.fork(99), "sequence 99"),
        (lambda pool, a, new: pool.arguments(0, [99]), "sequence 99"),
    ],
)
def test_a_refused_call_changes_nothing(refused, message):
    pool, (a,) = filled([20])
    pool.fork(a)
    shape = (len(pool.layers), 1, 0, pool.heads_kv, pool.head_dim)
    new = lambda tokens: torch.ones(*shape[:2], tokens, *shape[3:], device=DEVICE)
    before = pool.utilisation(), pool.pages(a), [layer.k.clone() for layer in pool.layers]
    with pytest.raises((KeyError, IndexError, TypeError, ValueError), match=message):
        refused(pool, a, new)
    assert (pool.utilisation(), pool.pages(a)) == before[:2]
    assert all(torch.equal(layer.k, k) for layer, k in zip(pool.layers, before[2], strict=True))


def test_a_dropped_page_is_not_written_and_no_query_reads_in_its_place():
    pool, (a,) = filled([48])
    q = torch.randn(1, 5, 2, 16, device=DEVICE)
    k, v = pool.read(0, a)
    pool.drop_front(a, 48)
    with pytest.raises(ValueError, match="dropped"):
        pool.write(0, [a], k[None, :1], v[None, :1])
    pool, (a,) = filled([48])
    k, v = pool.read(0, a)
    pool.drop_front(a, 20)
    for layer in pool.layers:
        layer.k[pool._free], layer.v[pool._free] = float("nan"), float("nan")
    for options in (dict(), dict(causal=True), dict(window_size=(30, 0))):  # none hides the hole by itself
        out = flash_attn_with_kvcache(q, **pool.arguments(0, [a]), **options)
        ref, _ = attention(q.cpu(), k[None, 16:].cpu(), v[None, 16:].cpu(), **options)
        torch.testing.assert_close(out.cpu().double(), ref.double(), rtol=1e-4, atol=1e-5)
