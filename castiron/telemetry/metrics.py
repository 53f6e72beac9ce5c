"""Counters, gauges and histograms, and their Prometheus text form.

Made for one thread: the event loop owns all of it, so counts are exact without locks. Children
are resolved once and kept by the caller; on the hot path an update is one or two numbers in memory
(0.05 and 0.3 us; prometheus_client takes 0.4 and 0.9 us on the same machine for its locks). That
memory is the process's own, or a file that others read (``shared.py``). What is counted is
written in ``families.py`` and declared where it happens (``server/meters.py``).
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds: from what a tiny model takes to what nobody waits for; three steps each decade.
LATENCY_BOUNDS_S = (
    10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3,
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip


Cells: TypeAlias = "memoryview[float]"


class Counter(ctypes.c_double):
    """A number that only grows; callers write ``counter.value += 1``."""

    num_cells = 1

    @classmethod
    def over(cls, cells: Cells, bounds: tuple[float, ...]) -> Counter:
        """The counter whose number lies in this cell."""
        assert not bounds
        return cls.from_buffer(cells)

    def samples(self) -> list[tuple[str, str, float]]:
        """(name suffix, extra label, value) of each line."""
        return [("", "", self.value)]

    def publish(self) -> None:
        """It is in its cell already."""


class Gauge(ctypes.c_double):
    """A number that goes up and down: set, or read from ``source`` when it is asked for."""

    num_cells = 1
    source: Callable[[], float] | None = None

    @classmethod
    def over(cls, cells: Cells, bounds: tuple[float, ...]) -> Gauge:
        """The gauge whose number lies in this cell."""
        assert not bounds
        return cls.from_buffer(cells)

    def samples(self) -> list[tuple[str, str, float]]:
        """(name suffix, extra label, value) of each line."""
        self.publish()
        return [("", "", self.value)]

    def publish(self) -> None:
        """Put what the source says now into the cell, where other processes see it."""
        if self.source is not None:
            self.value = self.source()


class Histogram:
    """How often a value fell at or under each bound; the last count is for all above.

    ``cells`` has the counts and then the sum.
    """

    __slots__ = ("bounds", "cells", "counts")

    def __init__(self, bounds: tuple[float, ...], cells: Cells | None = None) -> None:
        self.cells = private_cells(len(bounds) + 2) if cells is None else cells
        self.bounds = bounds
        self.counts = self.cells[: len(bounds) + 1]

    @classmethod
    def over(cls, cells: Cells, bounds: tuple[float, ...]) -> Histogram:
        """The histogram whose counts, and then the sum, lie in these cells."""
        return cls(bounds, cells)

    def observe(self, value: float) -> None:
        """Count one value."""
        cells = self.cells
        cells[bisect_left(self.bounds, value)] += 1
        cells[-1] += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return int(sum(self.counts))

    @property
    def total(self) -> float:
        """Their sum."""
        return self.cells[-1]

    def samples(self) -> list[tuple[str, str, float]]:
        """(name suffix, extra label, value) of each line: cumulative, as Prometheus wants it."""
        lines: list[tuple[str, str, float]] = []
        below = 0.0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            lines.append(("_bucket", f'le="{_number(bound)}"', below))
        return [*lines, ("_sum", "", self.total), ("_count", "", below)]

    def publish(self) -> None:
        """It is in its cells already."""


def private_cells(count: int) -> Cells:
    """Memory that nobody else sees, all zero."""
    return memoryview(bytearray(8 * count)).cast("d")


ChildT = TypeVar("ChildT", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Declared(Generic[ChildT]):
    """What one family is, whoever counts it."""

    create: type[ChildT]
    """Counter, Gauge or Histogram."""

    name: str
    """As Prometheus knows it: ends in its unit, and in ``_total`` if it only grows."""

    text: str
    """One sentence for people."""

    label_names: tuple[str, ...] = ()
    """Of each child."""

    bounds: tuple[float, ...] = ()
    """Of a histogram, ascending."""

    merge: str = "sum"
    """How values of several processes become one: ``sum``, ``max`` or ``min``."""

    @property
    def kind(self) -> str:
        """As Prometheus calls it."""
        return str(self.create.__name__).lower()

    @property
    def num_cells(self) -> int:
        """How many numbers a child has."""
        return len(self.bounds) + 2 if self.bounds else 1


class Store(Protocol):
    """Where the numbers of children lie."""

    def cells(self, declared: Declared[ChildT], labels: tuple[str, ...]) -> Cells:
        """Memory for the child with these label values; what it holds already goes on."""
        ...

    def labels_of(self, name: str) -> list[tuple[str, ...]]:
        """The children of a family that hold something already."""
        ...


class Family(Generic[ChildT]):
    """All children of one metric name, one for each combination of label values."""

    __slots__ = ("_store", "children", "declared")

    def __init__(self, declared: Declared[ChildT], store: Store | None = None) -> None:
        self.declared: Declared[ChildT] = declared
        self.children: dict[tuple[str, ...], ChildT] = {}
        self._store = store

    @property
    def name(self) -> str:
        """As Prometheus knows it."""
        return self.declared.name

    def child(self, *labels: str) -> ChildT:
        """The child with these label values, made at first use; keep it, do not ask each time."""
        found = self.children.get(labels)
        if found is None:
            declared, store = self.declared, self._store
            assert len(labels) == len(declared.label_names), (self.name, labels)
            if store is None:
                cells = private_cells(declared.num_cells)
            else:
                cells = store.cells(declared, labels)
            made = declared.create.over(cells, declared.bounds)
            assert isinstance(made, declared.create)
            found = self.children[labels] = made
        return found

    def lines(self) -> Iterable[str]:
        """The text form: help, type, then the samples of each child."""
        yield f"# HELP {self.name} {self.declared.text}"
        yield f"# TYPE {self.name} {self.declared.kind}"
        for values, child in self.children.items():
            labels: list[str] = [
                f'{name}="{_escaped(label)}"'
                for name, label in zip(self.declared.label_names, values, strict=True)
            ]
            for suffix, extra, value in child.samples():
                shown = ",".join([*labels, extra] if extra else labels)
                braces = f"{{{shown}}}" if shown else ""
                yield f"{self.name}{suffix}{braces} {_number(value)}"


class Metrics:
    """Every family of one process, in order of declaration."""

    __slots__ = ("families", "store")

    def __init__(self, store: Store | None = None) -> None:
        self.store = store
        self.families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}

    def counter(self, name: str, text: str, *label_names: str) -> Family[Counter]:
        """Declare a counter; its name ends in ``_total``."""
        assert name.endswith("_total"), name
        return self.family(Declared(Counter, name, text, label_names))

    def gauge(self, name: str, text: str, *label_names: str) -> Family[Gauge]:
        """Declare a gauge."""
        return self.family(Declared(Gauge, name, text, label_names))

    def histogram(
        self, name: str, text: str, *label_names: str, bounds: tuple[float, ...] = LATENCY_BOUNDS_S
    ) -> Family[Histogram]:
        """Declare a histogram over ``bounds``, ascending; its name ends in its unit."""
        return self.family(Declared(Histogram, name, text, label_names, bounds))

    def family(self, declared: Declared[ChildT]) -> Family[ChildT]:
        """The family of a declaration, which is made once."""
        assert declared.name not in self.families, f"{declared.name} is declared twice"
        made = Family(declared, self.store)
        self.families[declared.name] = made
        return made

    def publish(self) -> None:
        """Bring numbers that are read when asked for to where other processes see them."""
        for family in self.families.values():
            for child in family.children.values():
                child.publish()

    def expose(self) -> str:
        """The Prometheus text form (0.0.4) of everything."""
        lines = [line for family in self.families.values() for line in family.lines()]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
