"""How often one client may ask one model: token buckets, as many as memory was set aside for.

A bucket is kept as the one time at which it will be full again, which needs no refilling and does
not round. The bucket that was used least recently is forgotten first: most likely it is full, and
then forgetting it changes nothing. The server calls this before anything is read of a body.
"""

from __future__ import annotations

from castiron.scheduler import settings

_Key = tuple[str, str]


class Limiter:
    """The buckets of all clients and models of one process."""

    __slots__ = ("_full_ns", "_max_buckets", "num_forgotten")

    def __init__(self, max_buckets: int = 65536) -> None:
        assert max_buckets > 0
        self._max_buckets = max_buckets
        self._full_ns: dict[_Key, int] = {}
        self.num_forgotten = 0

    def __len__(self) -> int:
        return len(self._full_ns)

    def take(self, client: str, model: str, allowed: settings.Rate, now: int) -> int:
        """Take one request out of the bucket: 0, or in how many nanoseconds there will be one."""
        interval_ns = int(settings.SECOND / allowed.per_second)
        key = (client, model)
        full_ns = max(self._full_ns.pop(key, now), now) + interval_ns
        late_ns = full_ns - now - max(1, allowed.burst) * interval_ns
        if late_ns > 0:
            self._full_ns[key] = full_ns - interval_ns
            return late_ns
        self._full_ns[key] = full_ns
        if len(self._full_ns) > self._max_buckets:
            self._forget(now)
        return 0

    def _forget(self, now: int) -> None:
        oldest = next(iter(self._full_ns))
        if self._full_ns.pop(oldest) > now:
            self.num_forgotten += 1  # it was not full: its client may ask a little more
