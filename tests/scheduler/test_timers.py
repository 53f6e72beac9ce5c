"""When a lane must be woken, and what that costs."""

from __future__ import annotations

from castiron.scheduler import request
from castiron.scheduler.request import Request
from castiron.scheduler.timers import Timers


def test_the_next_time_is_that_of_a_request_that_is_not_settled() -> None:
    held = {number: Request(number, 0, 10 * number) for number in range(1, 4)}
    timers = Timers(held)
    for one in held.values():
        timers.add(one.deadline_ns, one)
    held[1].settle(request.CANCELLED)
    del held[2]
    assert timers.next_ns == 30
    assert timers.due(29) is None
    assert timers.due(30) is held[3]
    assert timers.next_ns is None


def test_the_settled_leave_little_memory_behind_however_far_their_deadlines_are() -> None:
    held: dict[int, Request] = {}
    timers = Timers(held)
    most = 0
    for number in range(5000):
        held[number] = Request(number, number, 10**15)
        timers.add(10**15, held[number])
        held.pop(number - 10, None)
        timers.clear()
        most = max(most, len(timers))
    assert most <= 2 * 10 + 64
