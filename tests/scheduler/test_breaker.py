"""When a version is given a rest, and how it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from castiron.scheduler import settings
from castiron.scheduler.breaker import CLOSED, OPEN, TRYING, Breaker

SECOND = settings.SECOND
GIVEN = settings.Breaker(
    window_ns=10 * SECOND, min_requests=4, failure_share=0.5, open_ns=5 * SECOND,
    max_open_ns=15 * SECOND, num_trials=2,
)  # fmt: skip


def tell(broken: Breaker, verdicts: str, now: int) -> None:
    for verdict in verdicts:
        permit = broken.permit(now)
        assert permit is not None
        broken.report(permit, {"+": True, "-": False, "?": None}[verdict], now)


def opened(now: int = 0) -> Breaker:
    broken = Breaker(GIVEN)
    tell(broken, "----", now)
    assert broken.state(now) == OPEN
    return broken


def test_it_opens_at_its_share_of_failures_and_not_before_enough_were_seen() -> None:
    broken = Breaker(GIVEN)
    tell(broken, "---", 0)
    assert broken.state(0) == CLOSED
    tell(broken, "+", 0)
    assert broken.state(0) == CLOSED  # three of four failed, but nothing opens for an answer
    tell(broken, "-", 0)
    assert broken.state(0) == OPEN


def test_failures_outside_the_window_do_not_count() -> None:
    broken = Breaker(GIVEN)
    tell(broken, "---", 0)
    tell(broken, "---", 11 * SECOND)
    assert broken.state(11 * SECOND) == CLOSED
    tell(broken, "-", 12 * SECOND)
    assert broken.state(12 * SECOND) == OPEN


def test_what_ended_without_a_verdict_does_not_count() -> None:
    broken = Breaker(GIVEN)
    tell(broken, "????---", 0)
    assert broken.state(0) == CLOSED


def test_an_open_one_lets_nothing_through_until_its_time_is_over() -> None:
    broken = opened()
    assert broken.permit(5 * SECOND - 1) is None
    assert broken.retry_after_ns(2 * SECOND) == 3 * SECOND
    assert broken.state(5 * SECOND) == TRYING


def test_trials_are_few_and_close_it_when_all_were_answered() -> None:
    broken = opened()
    now = 5 * SECOND
    permits = [broken.permit(now) for _ in range(3)]
    assert permits[2] is None
    assert permits[0] is not None
    assert permits[1] is not None
    broken.report(permits[0], True, now)
    assert broken.state(now) == TRYING
    broken.report(permits[1], True, now)
    assert broken.state(now) == CLOSED


def test_a_trial_without_a_verdict_makes_place_for_another() -> None:
    broken = opened()
    now = 5 * SECOND
    tell(broken, "????++", now)
    assert broken.state(now) == CLOSED


def test_each_failed_trial_doubles_the_rest_up_to_a_bound_and_success_ends_that() -> None:
    broken = opened()
    now, rests = 0, []
    for _ in range(4):
        rests.append(broken.retry_after_ns(now))
        now += rests[-1]
        tell(broken, "-", now)
    assert rests == [5 * SECOND, 10 * SECOND, 15 * SECOND, 15 * SECOND]
    now += 15 * SECOND
    tell(broken, "++", now)
    tell(broken, "----", now)
    assert broken.retry_after_ns(now) == 5 * SECOND


def test_what_was_permitted_before_it_opened_says_nothing_about_the_trial() -> None:
    broken = Breaker(GIVEN)
    old = broken.permit(0)
    assert old is not None
    tell(broken, "----", 0)
    now = 5 * SECOND
    assert broken.permit(now) is not None
    broken.report(old, False, now)
    assert broken.state(now) == TRYING


@given(some.lists(some.tuples(some.sampled_from("+-?"), some.integers(0, 3 * SECOND)), max_size=80))
def test_it_never_stays_shut_for_good_and_never_has_too_many_trials(
    events: list[tuple[str, int]],
) -> None:
    broken, now = Breaker(GIVEN), 0
    for verdict, pause in events:
        now += pause
        permits = [broken.permit(now) for _ in range(3)]
        good = [permit for permit in permits if permit is not None]
        if broken.state(now) == TRYING:
            assert len(good) <= GIVEN.num_trials
        for permit in good:
            broken.report(permit, {"+": True, "-": False, "?": None}[verdict], now)
    now += GIVEN.max_open_ns
    for _ in range(GIVEN.num_trials):
        last = broken.permit(now)
        assert last is not None
        broken.report(last, True, now)
    assert broken.permit(now) is not None
