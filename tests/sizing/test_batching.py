"""The simulated stream: every step replayed from the spans and held against memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.sizing import CacheSpec, GiB, Layer, Request, simulate, stream

SPECS = [
    CacheSpec([Layer("full", 2, 64, 64)]),
    CacheSpec([Layer("full", 2, 64, 64), Layer("sliding", 2, 64, 64, 20)], "fp8"),
    CacheSpec([Layer("linear", 2, conv_elements=64, recurrent_elements=256), Layer("full", 1, 64, 64)]),
]
requests = st.lists(st.builds(Request, st.integers(0, 30), st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=12)
policies = st.sampled_from([{"page_size": 1}, {"page_size": 16}, {"policy": "reserved"},
                            {"policy": "reserved", "reserve_tokens": 100}, {"page_size": 8, "max_batch": 3}])  # fmt: skip


def room_for(spec, requests, options, spare):
    """Enough for the largest request alone, and `spare` times as much again."""
    page = None if options.get("policy") else options["page_size"]
    longest = options.get("reserve_tokens") or max(one.input + one.output for one in requests)
    return spec.constant_bytes + int(spec.sequence_bytes(longest, page) * (1 + spare))


@given(st.sampled_from(SPECS), requests, policies, st.floats(0, 5))
def test_replay(spec, requests, options, spare):
    room = room_for(spec, requests, options, spare)
    timeline = simulate(spec, room, requests, **options)
    page = None if options.get("policy") else options["page_size"]
    ran = [0] * len(requests)
    for step in timeline.steps:
        now = [i for i, spans in enumerate(timeline.spans) if any(a <= step.time < b for a, b in spans)]
        tokens = [requests[i].input + ran[i] + 1 for i in now]
        reserved = [options.get("reserve_tokens") or requests[i].input + requests[i].output for i in now]
        held = sum(spec.sequence_bytes(n, page) for n in (tokens if page else reserved))
        assert (len(now), sum(tokens), held) == (step.running, step.tokens, step.held_bytes)
        assert step.live_bytes == sum(spec.sequence_bytes(n) for n in tokens) <= step.held_bytes <= room - spec.constant_bytes
        assert step.running <= options.get("max_batch", step.running)
        for i in now:
            ran[i] += 1
        arrived = sum(one.arrival <= step.time for one in requests)
        assert step.waiting == arrived - sum(ran[i] == requests[i].output for i in range(len(requests))) - len(now) + len(
            step.finished)  # fmt: skip
        assert set(step.finished) == {i for i in now if ran[i] == requests[i].output}
    assert ran == [one.output for one in requests]
    first = [timeline.spans[i][0][0] for i in sorted(range(len(requests)), key=lambda i: requests[i].arrival)]
    assert first == sorted(first)
    assert all(spans[0][0] >= one.arrival for spans, one in zip(timeline.spans, requests, strict=True))


@given(st.sampled_from(SPECS), requests, st.floats(0, 5))
def test_reserved_memory_is_never_taken_back(spec, requests, spare):
    options = {"policy": "reserved"}
    timeline = simulate(spec, room_for(spec, requests, options, spare), requests, **options)
    assert timeline.preemptions == timeline.recomputed_tokens == 0
    assert all(len(spans) == 1 for spans in timeline.spans)


def test_by_hand():
    """Room for 12 tokens. A (input 4) and B (input 4) make 3 and 4 tokens: at step 1 they hold 6 + 6, at step 2 A wants
    a 13th, so B, admitted last, gives way; A finishes with 7; B comes back with its 2 tokens made and needs 2 more steps."""
    spec = CacheSpec([Layer("full", 1, 64, 64)])
    tables = 4  # bytes of a block table entry; a page of one token each
    room = 12 * (spec.bytes_per_token() + tables)
    timeline = simulate(spec, room, [Request(0, 4, 3), Request(0, 4, 4)], page_size=1)
    assert timeline.spans == [[(0, 3)], [(0, 2), (3, 5)]]
    assert [step.tokens for step in timeline.steps] == [10, 12, 7, 7, 8]
    assert [step.preempted for step in timeline.steps] == [(), (), (1,), (), ()]
    assert [step.finished for step in timeline.steps] == [(), (), (0,), (), (1,)]
    assert (timeline.recomputed_tokens, timeline.peak_batch, timeline.mean_batch, timeline.end) == (6, 2, 7 / 5, 5)
    assert timeline.peak_bytes == room


def test_the_batch_shrinks_as_lengths_grow():
    """Twelve requests start together; as they grow the cache holds fewer and fewer of them."""
    spec = CacheSpec([Layer("full", 2, 64, 64)])
    timeline = simulate(spec, 12 * spec.sequence_bytes(40, 16), [Request(0, 16, 200)] * 12)
    batches = [step.running for step in timeline.steps[:190]]
    assert batches[0] == 12 and batches[-1] == 2 and batches == sorted(batches, reverse=True)


def test_idle_steps_are_left_out():
    timeline = simulate(SPECS[0], GiB, [Request(0, 1, 1), Request(10**9, 1, 2)])
    assert [step.time for step in timeline.steps] == [0, 10**9, 10**9 + 1] and timeline.end == 10**9 + 2


def test_nothing_to_do():
    timeline = simulate(SPECS[0], GiB, [])
    assert (timeline.steps, timeline.end, timeline.mean_batch, timeline.peak_batch, timeline.waste) == ([], 0, 0, 0, 0)


def test_pages_waste_less_and_finish_sooner_than_reservations(spec):
    """The point of paging (arXiv 2309.06180), on one stream."""
    llama, jobs = spec("llama-3-8b"), stream(150, every=2, input=(100, 1000), output=(50, 500), seed=1)
    own = simulate(llama, 4 * GiB, jobs, policy="reserved")
    longest = simulate(llama, 4 * GiB, jobs, policy="reserved", reserve_tokens=1500)
    paged = simulate(llama, 4 * GiB, jobs)
    assert paged.end < own.end < longest.end
    assert paged.waste < 0.05 < own.waste < longest.waste


def test_a_stream_is_the_same_every_time():
    jobs = stream(200, every=3, input=(5, 9), output=(1, 4), seed=7)
    assert jobs == stream(200, every=3, input=(5, 9), output=(1, 4), seed=7) != stream(200, 3, (5, 9), (1, 4), seed=8)
    assert {one.input for one in jobs} == {5, 6, 7, 8, 9} and {one.output for one in jobs} == {1, 2, 3, 4}
    assert [one.arrival for one in jobs] == sorted(one.arrival for one in jobs)
    assert 400 < jobs[-1].arrival < 800
    assert {one.arrival for one in stream(5, every=0, input=(1, 1), output=(1, 1))} == {0}


@pytest.mark.parametrize("wrong, message", [
    ({"policy": "hope"}, "policy 'hope': must be one of paged, reserved"),
    ({"page_size": 0}, "page_size must be at least 1"),
    ({"reserve_tokens": 5}, "goes with policy 'reserved'"),
    ({"policy": "reserved", "reserve_tokens": 5}, r"requests\[1\]: ends at 60 tokens, beyond reserve_tokens 5"),
    ({"max_batch": 0}, "max_batch must be at least 1"),
    ({"cache_bytes": -1}, "cache_bytes must be at least 0"),
    ({"cache_bytes": 100}, r"requests\[0\]: its 2 tokens alone do not fit"),
    ({"requests": [Request(-1, 1, 1)]}, r"requests\[0\].arrival must be at least 0"),
    ({"requests": [Request(0, 1, 0)]}, r"requests\[0\].output must be at least 1"),
])  # fmt: skip
def test_impossible_streams_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        simulate(SPECS[0], **{"cache_bytes": GiB, "requests": [Request(0, 1, 1), Request(0, 50, 10)]} | wrong)


def test_plain_tuples_are_requests():
    assert simulate(SPECS[0], GiB, [(0, 5, 3), (2, 1, 1)]) == simulate(SPECS[0], GiB, [Request(0, 5, 3), Request(2, 1, 1)])


@pytest.mark.parametrize("wrong, message", [
    ({"every": -1}, "every must be above 0"), ({"every": float("inf")}, "every must be"), ({"every": float("nan")}, "every must be"),
    ({"input": (5, 1)}, r"input\[1\] must be at least 5, got 1"), ({"input": (-5, 1)}, r"input\[0\] must be at least 0"),
    ({"output": (0, 1)}, r"output\[0\] must be at least 1"), ({"count": 0}, "count must be at least 1"),
])  # fmt: skip
def test_impossible_streams_are_not_made(wrong, message):
    with pytest.raises(ValueError, match=message):
        stream(**{"count": 3, "every": 1, "input": (1, 2), "output": (1, 2)} | wrong)
