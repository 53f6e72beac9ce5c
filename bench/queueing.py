"""Scheduling: what a request costs the lane, from its coming to its outcome.

    python -m bench.queueing [--requests 40000] [--rounds 5]

Process time of `submit`, `next_batch`, `launch`, `finished` and `take_settled`, with so many
requests waiting all the while, for batches of several sizes. Nothing is run; the clock is virtual.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from collections.abc import Iterator

from castiron.scheduler import batch, lane, request, settings

_DEPTHS = (0, 100, 1000, 10_000)
_SIZES = (1, 8, 32)
_FAR_NS = 10**15


def _requests(count: int) -> Iterator[request.Request]:
    made = [
        request.Request(number, 0, _FAR_NS + number * 7919 % 1000, batch_key="same", priority=1)
        for number in range(count)
    ]
    return iter(made)


def measure(depth: int, size: int, count: int) -> float:
    """Microseconds of process time for a request, with `depth` waiting and batches of `size`."""
    given = settings.Lane(max_requests=10**6, max_rows=10**7, max_batch_rows=size)
    measured = lane.Lane(given)
    coming = _requests(count + depth)
    for asked in itertools.islice(coming, depth):
        measured.submit(asked, 0)
    now = 0
    begun = time.process_time_ns()
    for _ in range(count // size):
        for asked in itertools.islice(coming, size):
            measured.submit(asked, now)
        now += 1000
        formed = measured.next_batch(now)
        assert formed is not None
        measured.launch(formed, now)
        measured.finished(formed, batch.Ran([None] * len(formed.parts), (formed.rows,)), now)
        measured.take_settled()
    return (time.process_time_ns() - begun) / (count // size * size) / 1000


def main(arguments: list[str] | None = None) -> None:
    """Print one line for each depth: the least of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    gc.disable()  # other parts of a process would pay for it as well
    print("waiting  " + "".join(f"batches of {size:<4}" for size in _SIZES))
    for depth in _DEPTHS:
        costs = [
            min(measure(depth, size, options.requests) for _ in range(options.rounds))
            for size in _SIZES
        ]
        print(f"{depth:<9}" + "".join(f"{cost:<15.2f}" for cost in costs) + "us a request")


if __name__ == "__main__":
    main()
