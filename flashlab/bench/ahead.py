"""Compile before measuring, in several processes: compilers keep what they made on disk, and the run finds it there.

A run's time goes to compilers (FlexAttention and FlashAttention-4 take seconds a shape) far more than to kernels. Each process
here prepares and calls its share of (case, peer) pairs once, times nothing, and leaves Triton's, inductor's and the peers' own
caches behind.
"""

import contextlib
import multiprocessing
import os
import time

from flashlab.bench import inputs, peers
from flashlab.bench.cases import Case, cases


def compile_ahead(kinds: list[str], which: str, names: list[str] | None, processes: int, seconds: float) -> int:
    """Compile what runs of these kinds need. Returns how many pairs were done before the time was up."""
    jobs = [
        (case, peer.name)
        for kind in kinds
        for case in cases(kind, which)
        for peer in peers.choose(kind, names)
        if peer.compiles and peer.absent() is None and peer.refuses(case) is None
    ]
    # FlexAttention's pairs last longest: they go first, one to a process after another.
    jobs.sort(key=lambda job: job[1] not in ("torch-flex", "flash-attn-4"))
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Value("i", 0)
    until = time.time() + seconds
    workers = [spawn.Process(target=_work, args=(jobs[i::processes], until, done), daemon=True) for i in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.1, until - time.time()))
        if worker.is_alive():
            worker.kill()
            worker.join()
    return done.value


def _work(jobs: list[tuple[Case, str]], until: float, done) -> None:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    import torch

    by_name = {peer.name: peer for peer in peers.all_peers()}
    for case, name in jobs:
        if time.time() > until:
            return
        with contextlib.suppress(Exception):  # the run itself will say what is wrong with it
            runner = by_name[name].prepare(case, inputs.make(case, "cuda", 0))
            with runner.scope():
                runner.call()
            torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with done.get_lock():
            done.value += 1
