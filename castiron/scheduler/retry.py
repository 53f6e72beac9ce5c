"""What a refused client is told: when to come back, and whether to come back at all.

``lane.py``, ``rate.py`` and ``breaker.py`` know how long it takes in nanoseconds; the server writes
the seconds of ``Retry-After``.
"""

from __future__ import annotations

from castiron.scheduler import settings

_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, spread as evenly as can be


def spread_ns(retry_after_ns: int, request_id: int, given: settings.Retry) -> int:
    """The time to tell this request: at least the one given, a little different for each."""
    if retry_after_ns <= 0:
        return 0
    bounded_ns = min(max(retry_after_ns, given.min_ns), given.max_ns)
    share = given.spread * (request_id * _GOLDEN % 1)
    return min(int(bounded_ns * (1 + share)), given.max_ns)


def seconds(retry_after_ns: int) -> int:
    """The whole seconds of a ``Retry-After`` header: rounded up, since early is useless."""
    return -(-retry_after_ns // settings.SECOND)


class Budget:
    """How many retries a model bears: a share of its first attempts.

    Retries of many clients at once keep an overload alive that they did not begin. When the
    budget is spent, refusals say so, and clients that obey stop.
    """

    __slots__ = ("_given", "_tokens", "num_first", "num_retries")

    def __init__(self, given: settings.Retry) -> None:
        self._given = given
        self._tokens = float(given.burst)
        self.num_first = 0
        self.num_retries = 0

    def note(self, *, is_retry: bool) -> None:
        """A request came in; whether it is a retry, its client says."""
        if is_retry:
            self.num_retries += 1
            self._tokens = max(0.0, self._tokens - 1)
        else:
            self.num_first += 1
            self._tokens = min(float(self._given.burst), self._tokens + self._given.share)

    @property
    def is_spent(self) -> bool:
        """Whether clients should not retry now."""
        return self._tokens < 1
