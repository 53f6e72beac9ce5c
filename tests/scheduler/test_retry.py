"""What refused clients are told."""

from __future__ import annotations

from castiron.scheduler import retry, settings

GIVEN = settings.Retry()
SECOND = settings.SECOND


def test_times_are_bounded_spread_and_never_shorter_than_needed() -> None:
    told = [retry.spread_ns(SECOND, number, GIVEN) for number in range(100)]
    assert min(told) >= SECOND
    assert max(told) <= SECOND * 5 // 4
    assert len({at_ns // (SECOND // 100) for at_ns in told}) > 20
    assert retry.spread_ns(1, 0, GIVEN) == GIVEN.min_ns
    assert retry.spread_ns(10**15, 7, GIVEN) == GIVEN.max_ns


def test_no_time_stays_no_time() -> None:
    assert retry.spread_ns(0, 5, GIVEN) == 0
    assert retry.seconds(0) == 0


def test_the_header_rounds_up() -> None:
    assert [retry.seconds(at_ns) for at_ns in (1, SECOND, SECOND + 1)] == [1, 1, 2]


def test_a_budget_bears_a_share_of_retries_and_is_spent_in_a_storm() -> None:
    budget = retry.Budget(GIVEN)
    for _ in range(100):
        for number in range(11):
            budget.note(is_retry=number == 0)
    assert not budget.is_spent
    for _ in range(GIVEN.burst):
        budget.note(is_retry=True)
    assert budget.is_spent
    for _ in range(11):
        budget.note(is_retry=False)
    assert not budget.is_spent
    assert (budget.num_first, budget.num_retries) == (1011, 110)
