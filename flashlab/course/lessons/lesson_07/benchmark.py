"""07.benchmark: what a kernel takes, told by a benchmark that does not lie. Graded on a model of a GPU."""

import statistics

from flashlab.course.lessons.lesson_07.model_gpu import FLUSH_BYTES, Kernel, ModelGPU
from flashlab.course.spec import Case, Exercise, Mistake, SubCheck

SMALL, LARGE = Kernel("a step over 32 MB", 32e6), Kernel("a step over 1 GB", 1e9)
NEAR = 0.02


def spec(gpu, kernel, samples):
    # what the model knows of the kernel, and no real GPU tells: a cold L2, nobody else at work, no host in it
    return gpu.cold_us(kernel)


def stub(gpu, kernel, samples):
    """Returns the median of ``samples`` microseconds that ``kernel`` takes on the GPU, its data not in the L2.

    gpu.launch(kernel), gpu.flush() and gpu.event() put something into the queue and return at once; gpu.synchronize()
    waits; gpu.elapsed_us(start, end) is the GPU's time between two events it has passed; gpu.clock() is the host's, in s.
    """
    raise NotImplementedError


def solution(gpu, kernel, samples):
    """Returns the median of ``samples`` microseconds that ``kernel`` takes on the GPU, its data not in the L2.

    gpu.launch(kernel), gpu.flush() and gpu.event() put something into the queue and return at once; gpu.synchronize()
    waits; gpu.elapsed_us(start, end) is the GPU's time between two events it has passed; gpu.clock() is the host's, in s.
    """
    gpu.launch(kernel)
    pairs = []
    for _ in range(samples):
        gpu.flush()
        start = gpu.event()
        gpu.launch(kernel)
        pairs.append((start, gpu.event()))
    gpu.synchronize()
    return statistics.median(gpu.elapsed_us(start, end) for start, end in pairs)


def _events(gpu, kernel, samples, *, warm=True, flush=True, timed_flush=False, idle=False, of=statistics.median):
    if warm:
        gpu.launch(kernel)
    pairs = []
    for _ in range(samples):
        start = gpu.event() if timed_flush else None
        if flush:
            gpu.flush()
        if idle:
            gpu.synchronize()
        start = start or gpu.event()
        gpu.launch(kernel)
        pairs.append((start, gpu.event()))
    gpu.synchronize()
    return of(gpu.elapsed_us(start, end) for start, end in pairs)


def _clock(gpu, kernel, samples, *, wait=True, flush=True, warm=True):
    if warm:
        gpu.launch(kernel)
        gpu.synchronize()
    times = []
    for _ in range(samples):
        if flush:
            gpu.flush()
        gpu.synchronize()
        start = gpu.clock()
        gpu.launch(kernel)
        if wait:
            gpu.synchronize()
        times.append((gpu.clock() - start) * 1e6)
    return statistics.median(times)


def no_warm_up(gpu, kernel, samples):
    return _events(gpu, kernel, samples, warm=False)


def hot_l2(gpu, kernel, samples):
    return _events(gpu, kernel, samples, flush=False)


def flush_is_timed(gpu, kernel, samples):
    return _events(gpu, kernel, samples, timed_flush=True)


def flush_is_timed_and_waited_for(gpu, kernel, samples):
    gpu.launch(kernel)
    gpu.synchronize()
    times = []
    for _ in range(samples):
        start = gpu.event()
        gpu.flush()
        gpu.launch(kernel)
        end = gpu.event()
        gpu.synchronize()
        times.append(gpu.elapsed_us(start, end))
    return statistics.median(times)


def gpu_waits_for_the_host(gpu, kernel, samples):
    return _events(gpu, kernel, samples, idle=True)


def mean(gpu, kernel, samples):
    return _events(gpu, kernel, samples, of=lambda times: statistics.mean(times))


def fastest(gpu, kernel, samples):
    return _events(gpu, kernel, samples, of=min)


def not_synchronised(gpu, kernel, samples):
    return _clock(gpu, kernel, samples, wait=False)


def host_clock(gpu, kernel, samples):
    return _clock(gpu, kernel, samples)


def host_clock_hot(gpu, kernel, samples):
    return _clock(gpu, kernel, samples, flush=False)


def flushed_afterwards(gpu, kernel, samples):
    gpu.launch(kernel)
    pairs = []
    for _ in range(samples):
        start = gpu.event()
        gpu.launch(kernel)
        pairs.append((start, gpu.event()))
        gpu.flush()
    gpu.synchronize()
    return statistics.median(gpu.elapsed_us(start, end) for start, end in pairs)


def a_loop_divided(gpu, kernel, samples):
    gpu.launch(kernel)
    start = gpu.event()
    for _ in range(samples):
        gpu.launch(kernel)
    end = gpu.event()
    gpu.synchronize()
    return gpu.elapsed_us(start, end) / samples


def a_loop_divided_flushed(gpu, kernel, samples):
    gpu.launch(kernel)
    start = gpu.event()
    for _ in range(samples):
        gpu.flush()
        gpu.launch(kernel)
    end = gpu.event()
    gpu.synchronize()
    return gpu.elapsed_us(start, end) / samples


def in_seconds(gpu, kernel, samples):
    return solution(gpu, kernel, samples) / 1e6


def in_milliseconds(gpu, kernel, samples):
    return solution(gpu, kernel, samples) / 1e3


def flushed_once(gpu, kernel, samples):
    gpu.launch(kernel)
    gpu.flush()
    return _events(gpu, kernel, samples, warm=False, flush=False)


def _only(kernel, samples, **effect):
    quiet = dict(compile_s=0.0, l2_bytes=0, disturbed=False)
    return Case(f"{kernel.name}, {samples} samples", (ModelGPU(**quiet | effect), kernel, samples), NEAR)


def _ended():
    return [_only(LARGE, 5)]


def _host():
    return [_only(SMALL, 5)]


def _compile():
    return [_only(LARGE, 1, compile_s=0.4), _only(SMALL, 2, compile_s=0.4)]


def _l2():
    return [_only(SMALL, 9, l2_bytes=60 * 2**20, issue_s=0.0)]


def _unlucky():
    return [_only(LARGE, 16, disturbed=True), _only(SMALL, 33, disturbed=True)]


def _all():
    return [Case(f"{kernel.name}, 20 samples", (ModelGPU(), kernel, 20), NEAR) for kernel in (SMALL, LARGE)]


EXERCISE = Exercise(
    id="07.benchmark",
    title="A benchmark that does not lie",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "launch only queues. Put events around it, wait once at the end, and ask elapsed_us then.",
        "Launch once before you time anything: that call compiles.",
        "Flush before each sample, and take the start event after the flush. Do not wait in between: while the GPU is busy "
        "flushing, the host issues the rest, and the kernel starts the moment the flush ends.",
        "Keep the (start, end) pairs in a list. statistics.median(gpu.elapsed_us(a, b) for a, b in pairs).",
    ),
    sub_checks=(
        SubCheck("what is timed has ended", cases=_ended),
        SubCheck("the host's time is not in it", cases=_host),
        SubCheck("the first call is not in it", cases=_compile),
        SubCheck("the L2 is cold every time, and emptying it is not in it", cases=_l2),
        SubCheck("a disturbed run in eight changes nothing", cases=_unlucky),
        SubCheck("all together", cases=_all),
    ),
    mistakes=(
        Mistake(
            not_synchronised,
            "This is the time that launch takes: it puts the kernel into the queue and comes back. The kernel has hardly begun.",
            "What has the GPU done when your clock stops?",
        ),
        Mistake(
            host_clock,
            "The host's clock also counts issuing the launch and waking up again. For a short kernel that is most of it.",
            "Which clock stands still while Python runs? gpu.event() is a mark on it.",
        ),
        Mistake(
            host_clock_hot,
            "The host's clock also counts issuing the launch and waking up again. And the L2 still holds the last sample's data.",
            "Which clock stands still while Python runs? What does the second sample find in the L2?",
        ),
        Mistake(
            gpu_waits_for_the_host,
            "The queue was empty when the start event went in: the GPU passed it and then waited for the host to issue the "
            "kernel. That wait is in your time.",
            "What is the GPU doing between your start event and the kernel? Who could keep it busy?",
        ),
        Mistake(
            no_warm_up,
            "The first sample contains the compilation: the GPU waits for it between the two events.",
            "How many times has the kernel been launched before the first start event?",
        ),
        Mistake(
            hot_l2,
            "From the second sample on, the data lie in the L2: a model whose 32 layers read their own caches in turn never "
            "finds them there. And with nothing else in the queue the GPU waits for the host.",
            "What did the sample before leave in the L2?",
        ),
        Mistake(
            flushed_once,
            "The L2 was emptied once. From the second sample on, the data lie in it again, and the GPU waits for the host.",
            "Is your flush inside the loop?",
        ),
        Mistake(
            flushed_afterwards,
            "The flush comes after the kernel, so nothing stands before the first sample: it finds the warm-up's data in the L2, "
            "and a GPU that waits for the host. With few samples the median sees it.",
            "What is in the queue when your first start event goes in?",
        ),
        Mistake(
            flush_is_timed,
            f"The flush is inside the events: {FLUSH_BYTES / 2**20:.0f} MiB are read on your bill.",
            "Which comes first, gpu.flush() or the start event?",
        ),
        Mistake(
            flush_is_timed_and_waited_for,
            f"The flush is inside the events: {FLUSH_BYTES / 2**20:.0f} MiB are read on your bill. And so is the wait for the host "
            "that issues it, since the queue was empty.",
            "Which comes first, gpu.flush() or the start event? And what is in the queue when the event goes in?",
        ),
        Mistake(
            a_loop_divided,
            "One pair of events around the whole loop: the mean, with the L2 hot, and every disturbed run in it.",
            "How would you find out that one of the samples was unlike the others?",
        ),
        Mistake(
            a_loop_divided_flushed,
            "One pair of events around the whole loop, so that the flushes and every disturbed run are in it.",
            "How would you find out that one of the samples was unlike the others?",
        ),
        Mistake(
            mean,
            "This is the mean. One sample in eight took half as long again, and all of it counts.",
            "Sort the samples: which one does a disturbed run not move?",
        ),
        Mistake(
            fastest,
            "This is the fastest sample: the luckiest run, and the more samples the luckier. The median was asked for.",
            "What would half of the runs beat?",
        ),
        Mistake(in_seconds, "These are seconds; microseconds were asked for.", "What unit does elapsed_us have?"),
        Mistake(in_milliseconds, "These are milliseconds; microseconds were asked for.", "What unit does elapsed_us have?"),
    ),
    keep="Warm up, flush, keep the GPU busy, read its own clock, take the median: leave one out and you time something else.",
)
