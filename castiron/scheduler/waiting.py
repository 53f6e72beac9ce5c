"""The parts that wait, in order: who is next, and who may ride along.

Level 0 holds those that aged past every class, by arrival; level c + 1 holds class c, earliest
deadline first. Sorted lists, one of all parts and one for each key: a part that leaves is gone at
once, with its inputs, and the number ahead of a newcomer is an index. ``lane.py`` decides when.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

from castiron.scheduler.batch import Part, Place
from castiron.scheduler.request import Request


class Waiting:
    """Parts in order of urgency."""

    __slots__ = ("_ageing_ns", "_groups", "_last_number", "_num_classes", "_order", "rows")

    def __init__(self, num_classes: int, ageing_ns: int) -> None:
        self._num_classes = num_classes
        self._ageing_ns = ageing_ns
        self._order: list[Place] = []
        self._groups: dict[Hashable, list[Place]] = {}
        self._last_number = 0
        self.rows = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Part]:
        return (place[3] for place in self._order)

    @property
    def first(self) -> Part | None:
        """The most urgent part."""
        return self._order[0][3] if self._order else None

    def urgency(self, request: Request, now: int) -> tuple[int, int]:
        """Level, and nanoseconds inside it; the lesser goes first."""
        level = min(request.priority, self._num_classes - 1) + 1
        level -= (now - request.arrival_ns) // self._ageing_ns
        if level > 0:
            return level, request.deadline_ns
        return 0, request.arrival_ns

    def rises_ns(self, request: Request, now: int) -> int:
        """When the request rises to its next level; its deadline when it does not before that."""
        age_ns = self._ageing_ns
        rises_ns = request.arrival_ns + ((now - request.arrival_ns) // age_ns + 1) * age_ns
        if rises_ns >= request.deadline_ns or self.urgency(request, now)[0] == 0:
            return request.deadline_ns
        return rises_ns

    def add(self, part: Part, now: int) -> None:
        """Put the part where it belongs now."""
        self._last_number += 1
        level, at_ns = self.urgency(part.request, now)
        place = part.place = (level, at_ns, self._last_number, part)
        insort(self._order, place)
        self.rows += part.rows
        part.request.waiting.append(part)
        key = part.key
        if key is not None:
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = [place]
            else:
                insort(group, place)

    def remove(self, part: Part) -> None:
        """Take the part out."""
        place = part.place
        assert place is not None, part
        part.place = None
        part.request.waiting.remove(part)
        self.rows -= part.rows
        del self._order[bisect_left(self._order, place)]
        key = part.key
        if key is not None:
            group = self._groups[key]
            del group[bisect_left(group, place)]
            if not group:
                del self._groups[key]

    def raise_up(self, request: Request, now: int) -> None:
        """Put the request's parts where they belong after it aged."""
        for part in list(request.waiting):
            self.remove(part)
            self.add(part, now)

    def num_ahead(self, urgency: tuple[int, int]) -> int:
        """How many parts go before one of this urgency."""
        return bisect_left(self._order, (*urgency, self._last_number + 1))

    def mate_rows(self, part: Part, limit: int) -> int:
        """How many rows, up to ``limit``, could share a batch with this part, its own included."""
        rows = 0
        for place in self._alike(part):
            rows += place[3].rows
            if rows >= limit:
                return limit
        return rows

    def take(self, limit: int, *, cuts: bool, merges: bool) -> list[Part]:
        """Take out the most urgent part, and of those of its key the next ones while they fit.

        ``limit`` is in rows. A part that is larger runs alone; with ``cuts`` its first rows do,
        and the others keep its place.
        """
        order = self._order
        first = order[0][3]
        if cuts and first.rows > limit:
            return [self._cut(first, limit)]
        group = self._alike(first) if merges else order[:1]
        taken = [first]
        room = limit - first.rows
        for place in group[1 : max(0, room) + 1]:  # each has a row at least
            room -= place[3].rows
            if room < 0:
                break
            taken.append(place[3])
        if order[len(taken) - 1][3] is taken[-1]:
            self._remove_first(taken)
        else:
            for part in taken:
                self.remove(part)
        return taken

    def _remove_first(self, taken: list[Part]) -> None:
        """Take out parts of one key that all others stand behind."""
        del self._order[: len(taken)]
        key = taken[0].key
        if key is not None:
            group = self._groups[key]
            del group[: len(taken)]
            if not group:
                del self._groups[key]
        for part in taken:
            part.place = None
            part.request.waiting.remove(part)
            self.rows -= part.end - part.begin

    def _alike(self, part: Part) -> list[Place]:
        key = part.key
        assert part.place is not None
        return [part.place] if key is None else self._groups[key]

    def _cut(self, part: Part, rows: int) -> Part:
        taken = Part(part.request, part.begin, part.begin + rows, part.cohort)
        part.begin += rows
        self.rows -= rows
        return taken

    def check(self) -> None:
        """Assert what always holds."""
        parts = list(self)
        assert self._order == sorted(self._order), "parts are out of order"
        assert self.rows == sum(part.rows for part in parts), "rows are miscounted"
        assert all(place is place[3].place for place in self._order)
        grouped = [place for group in self._groups.values() for place in group]
        assert len(grouped) == sum(part.key is not None for part in parts), "groups lost a part"
        for key, group in self._groups.items():
            assert group == sorted(group), "a group is out of order"
            assert group, "an empty group is kept"
            assert all(place[3].key == key for place in group), "a part is in a foreign group"
