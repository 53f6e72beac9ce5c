"""Token buckets, against the plain definition of one."""

from __future__ import annotations

from hypothesis import given, strategies

from castiron.scheduler import settings
from castiron.scheduler.rate import Limiter

SECOND = settings.SECOND


def test_a_burst_is_let_through_and_then_one_at_a_time() -> None:
    limiter = Limiter()
    allowed = settings.Rate(per_second=10, burst=3)
    assert [limiter.take("me", "m", allowed, 0) for _ in range(4)] == [0, 0, 0, SECOND // 10]
    assert limiter.take("me", "m", allowed, SECOND // 10 - 1) == 1
    assert limiter.take("me", "m", allowed, SECOND // 10) == 0
    assert limiter.take("me", "m", allowed, SECOND // 10) > 0


def test_clients_and_models_have_buckets_of_their_own() -> None:
    limiter = Limiter()
    allowed = settings.Rate(per_second=1)
    assert limiter.take("me", "m", allowed, 0) == 0
    assert limiter.take("me", "m", allowed, 0) == SECOND
    assert limiter.take("you", "m", allowed, 0) == 0
    assert limiter.take("me", "other", allowed, 0) == 0


@given(
    strategies.lists(strategies.integers(0, SECOND // 4), max_size=60),
    strategies.integers(1, 50),
    strategies.integers(1, 5),
)
def test_it_lets_through_what_a_bucket_with_tokens_would(
    pauses: list[int], per_second: int, burst: int
) -> None:
    limiter, now = Limiter(), 0
    allowed = settings.Rate(per_second, burst)
    each_ns = int(SECOND / per_second)
    filled_ns = burst * each_ns  # the tokens, counted in the time that makes them
    for pause in pauses:
        now += pause
        filled_ns = min(burst * each_ns, filled_ns + pause)
        wait_ns = limiter.take("me", "m", allowed, now)
        assert wait_ns == max(0, each_ns - filled_ns)
        if wait_ns == 0:
            filled_ns -= each_ns


def test_the_number_of_buckets_is_bounded_and_the_least_used_is_forgotten() -> None:
    limiter = Limiter(max_buckets=2)
    allowed = settings.Rate(per_second=1)
    for client in ("a", "b"):
        assert limiter.take(client, "m", allowed, 0) == 0
    assert limiter.take("a", "m", allowed, 0) > 0  # refused, but used
    assert limiter.take("c", "m", allowed, 0) == 0
    assert len(limiter) == 2
    assert limiter.num_forgotten == 1
    assert limiter.take("a", "m", allowed, 0) > 0
    assert limiter.take("b", "m", allowed, 0) == 0  # it was forgotten


def test_forgetting_a_full_bucket_is_not_counted() -> None:
    limiter = Limiter(max_buckets=1)
    allowed = settings.Rate(per_second=1)
    limiter.take("a", "m", allowed, 0)
    limiter.take("b", "m", allowed, 2 * SECOND)
    assert limiter.num_forgotten == 0
