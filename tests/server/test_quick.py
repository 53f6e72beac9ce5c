"""Short runs on the loop itself: only once they are known, each size apart, and never for good."""

from __future__ import annotations

import time
from typing import Any

from castiron.server import quick

LIMIT_NS = 2_000_000


def busy(inputs: Any) -> Any:
    """Uses so much processor time of this thread."""
    end = time.thread_time_ns() + inputs["ns"]
    while time.thread_time_ns() < end:
        pass
    return inputs


def known(limit_ns: int = LIMIT_NS) -> quick.Quick:
    made = quick.Quick(limit_ns)
    for _ in range(10):
        made.observe_lane(100, LIMIT_NS // 2)
    return made


def run(made: quick.Quick, time_ns: int) -> quick.Run[Any]:
    size = made.short(100)
    assert size is not None
    return made.run(size, busy, {"ns": time_ns})


def test_nothing_is_run_inline_before_the_lane_has_shown_short_runs() -> None:
    made = quick.Quick(LIMIT_NS)
    assert not made.short(100)
    made.observe_lane(100, 1000)
    assert not made.short(100)
    assert known().short(100)


def test_long_runs_and_other_sizes_stay_on_the_lane() -> None:
    made = known()
    assert not made.short(1 << 20)
    for _ in range(10):
        made.observe_lane(1 << 20, 50_000_000)
    assert not made.short(1 << 20)
    assert made.short(100)


def test_a_limit_of_nothing_turns_it_off() -> None:
    assert not known(0).short(100)


def test_a_size_that_grew_slow_goes_back_to_the_lane_and_is_tried_again_later() -> None:
    made = known()
    for _ in range(10):
        run(made, LIMIT_NS // 10)
    for _ in range(8):
        if made.short(100):
            run(made, 3 * LIMIT_NS)
    assert not made.short(100)
    num_refused = 1
    while not made.short(100):
        num_refused += 1
        assert num_refused < 1000
    assert num_refused > 100


def test_it_counts_what_it_ran() -> None:
    made = known()
    outputs, begun_ns, ended_ns = run(made, 1)
    assert outputs == {"ns": 1}
    assert begun_ns < ended_ns
    assert made.num_runs == 1


def test_one_that_was_short_for_long_is_still_found_out_when_it_grows_slow() -> None:
    """Its processor time is asked for no more, until the clock finds a slow run."""
    made = known()
    for _ in range(200):
        run(made, 1000)
    num_slow = 0
    while made.short(100):
        run(made, 2 * LIMIT_NS)
        num_slow += 1
        assert num_slow < 20
