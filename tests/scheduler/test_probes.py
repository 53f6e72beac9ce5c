"""What other servers get wrong, asked of a lane in virtual time, and a long overload."""

from __future__ import annotations

import random

import pytest

from castiron.scheduler import request, settings
from castiron.scheduler.request import Request
from tests.scheduler.simulator import MS, US, Simulator

BATCHING = settings.Lane(max_batch_rows=8, num_classes=1)


def half_a_second(_rows: int) -> int:
    return 500 * MS


def request_at(number: int, now: int, timeout_ns: int, key: str | None = "same") -> Request:
    return Request(number, now, now + timeout_ns, batch_key=key)


@pytest.mark.parametrize(
    "refuses_late, outcome, at_ns",
    [(False, request.EXPIRED, 701 * MS), (True, request.REFUSED, MS)],
)
def test_one_impatient_client_of_three_in_a_batch_harms_no_other(
    refuses_late: bool, outcome: str, at_ns: int
) -> None:
    given = settings.Lane(max_batch_rows=8, num_classes=1, refuses_late=refuses_late)
    simulation = Simulator(given, half_a_second)
    for number in range(-8, 0):  # so that it knows what a run takes
        simulation.ask(request_at(number, (number + 8) * 500 * MS, 5000 * MS, key=None))
    begin_ns = 8 * 500 * MS
    simulation.ask(request_at(0, begin_ns, 5000 * MS))
    three = [
        simulation.ask(request_at(number, begin_ns + MS, timeout_ns))
        for number, timeout_ns in ((1, 5000 * MS), (2, 700 * MS), (3, 5000 * MS))
    ]
    simulation.run()
    assert [one.outcome for one in three] == [request.ANSWERED, outcome, request.ANSWERED]
    at = simulation.settled | dict.fromkeys(simulation.refused, begin_ns + MS)
    assert [at[one.id] - begin_ns for one in three] == [1000 * MS, at_ns, 1000 * MS]


def test_clients_that_leave_at_once_cost_no_run() -> None:
    simulation = Simulator(BATCHING, half_a_second)
    simulation.ask(request_at(0, 0, 5000 * MS))
    for number in range(1, 6):
        one = simulation.ask(request_at(number, MS, 5000 * MS))
        simulation.cancel_at(2 * MS, one)
    simulation.run()
    assert [run.ranges for run in simulation.runs] == [[(0, 0, 1)]]


def test_one_bad_row_among_good_ones_fails_alone() -> None:
    simulation = Simulator(BATCHING, half_a_second, bad=frozenset({3}))
    for number in range(6):
        simulation.ask(request_at(number, 0, 30_000 * MS))
    simulation.run()
    simulation.check_results()
    outcomes = [simulation.requests[number].outcome for number in range(6)]
    assert outcomes.count(request.ANSWERED) == 5
    assert outcomes[3] == request.FAILED


def test_a_single_client_waits_for_nothing_when_batching_is_on() -> None:
    for hold_ns in (0, 50 * MS):
        given = settings.Lane(max_batch_rows=8, max_hold_ns=hold_ns)
        simulation = Simulator(given, lambda _: MS)
        for number in range(50):
            simulation.ask(request_at(number, number * 3 * MS // 2, 1000 * MS))
        simulation.run()
        assert all(
            simulation.settled[one.id] == one.arrival_ns + MS
            for one in simulation.requests.values()
        )


def overloaded(seed: int, given: settings.Lane, timeout_ns: tuple[int, int]) -> Simulator:
    """10,000 requests with random deadlines, three times as many as full batches can serve."""
    dice = random.Random(seed)

    def run_ns(rows: int) -> int:
        return int((400 * US + 100 * US * rows) * dice.uniform(0.8, 1.5))

    most = given.max_batch_rows
    each_ns = (400 * US + 100 * US * most) * 1.15 / most / 3
    simulation = Simulator(given, run_ns, is_checked=False)
    now = 0.0
    for number in range(10_000):
        now += dice.expovariate(1 / each_ns)
        wait_ns = dice.randint(*timeout_ns)
        one = Request(number, int(now), int(now) + wait_ns, batch_key="k", priority=number % 3)
        simulation.ask(one)
        if dice.random() < 0.02:
            simulation.cancel_at(int(now) + dice.randrange(wait_ns), one)
    return simulation


@pytest.mark.parametrize("timeout_ns", [(MS, 40 * MS), (10 * MS, 1000 * MS)])
@pytest.mark.parametrize("most", [1, 8])
def test_under_three_times_overload_each_request_is_decided_by_its_deadline(
    most: int, timeout_ns: tuple[int, int]
) -> None:
    """Decided at most 5 ms late is asked for; in virtual time it is not late at all."""
    given = settings.Lane(max_batch_rows=most, max_requests=500)
    simulation = overloaded(most, given, timeout_ns)
    simulation.run()
    simulation.check_results()
    late = [at - simulation.requests[name].deadline_ns for name, at in simulation.settled.items()]
    assert max(late) <= 0
    answered = [one for one in simulation.requests.values() if one.outcome == request.ANSWERED]
    # A third can be served at best; with early refusal most of that is not wasted.
    assert len(answered) > 2000
    ended_ns = simulation.runs[-1].ended_ns
    busy_ns = sum(run.ended_ns - run.begun_ns for run in simulation.runs)
    assert busy_ns > 0.95 * ended_ns
    assert simulation.lane.limit.rows == most  # smaller batches would only do less


def test_refusing_early_answers_more_than_letting_all_expire() -> None:
    counts = {}
    for refuses_late in (False, True):
        given = settings.Lane(max_batch_rows=8, refuses_late=refuses_late, num_classes=1)
        simulation = overloaded(1, given, (5 * MS, 40 * MS))
        simulation.run()
        answered = [one for one in simulation.requests.values() if one.outcome == request.ANSWERED]
        counts[refuses_late] = len(answered)
    assert counts[True] > 1.05 * counts[False]
