"""Times of several contenders that run in turn, so that what slows the machine slows them all."""

import statistics
import time


def interleaved(runs, repeats, warmup=3):
    """Returns each function's median seconds; `runs` is a dict of functions, the first `warmup` rounds do not count."""
    times = {name: [] for name in runs}
    for repeat in range(repeats + warmup):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
