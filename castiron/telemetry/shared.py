"""The numbers of one process in a file that others map: metrics that outlive a worker.

One writer for each file, kept out of each other's way by a lock that ends with the process. A
number is an aligned word of the file, so a reader sees it as it was or as it is, never half. A
worker that takes the place of a dead one goes on from its counts. ``merged`` reads all files of a
folder and makes one page of them; who starts workers chooses the folder.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from castiron import errors
from castiron.telemetry import families, metrics

SUFFIX = ".metrics"
_MAGIC = b"CIMETR\x00\x01"
_HEADER = struct.Struct("<8sQQ")  # magic, bytes of the directory, number of cells
_ENTRY = struct.Struct("<IIQ")  # length and checksum of the text, first cell
_DIRECTORY_AT = 64
_CELLS_AT = 1 << 20
_SIZE_BYTES = 2 << 20  # pages that were never written to take no memory
_COMBINE: dict[str, Callable[[Iterable[float]], float]] = {
    "sum": math.fsum, "max": max, "min": min,
}  # fmt: skip
_KINDS: dict[str, Any] = {
    kind.__name__.lower(): kind for kind in (metrics.Counter, metrics.Gauge, metrics.Histogram)
}
_PATIENCE_S = 1.0
_Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Child:
    """One entry of a directory."""

    declared: metrics.Declared[Any]
    labels: tuple[str, ...]
    first: int

    @property
    def end(self) -> int:
        return self.first + self.declared.num_cells


class Page:
    """The file of one process; give it to ``Metrics`` as its store."""

    def __init__(self, path: str) -> None:
        """Open or make the file. Raises CastironError while another process writes to it."""
        self.path = path
        self.num_unshared = 0
        self._private: dict[_Key, metrics.Cells] = {}
        self._file = _locked(path)
        os.ftruncate(self._file, _SIZE_BYTES)
        self._map = mmap.mmap(self._file, _SIZE_BYTES)
        self._cells = memoryview(self._map)[_CELLS_AT:].cast("d")
        self._known: dict[_Key, _Child] = {}
        self._directory_bytes = self._num_cells = 0
        if _HEADER.unpack_from(self._map)[0] == _MAGIC:
            self._adopt()
        else:
            self._map[:_CELLS_AT] = bytes(_CELLS_AT)
            self._commit()

    def _adopt(self) -> None:
        """Go on from what a process before this one counted; what it was like is gone."""
        for child, end in _directory(self._map):
            self._known[child.declared.name, child.labels] = child
            self._directory_bytes = end
            self._num_cells = max(self._num_cells, child.end)
            if child.declared.create is metrics.Gauge:
                self._cells[child.first] = 0.0
        self._commit()

    def _commit(self) -> None:
        """Let readers see the entries so far; their text and cells are there before this."""
        _HEADER.pack_into(self._map, 0, _MAGIC, self._directory_bytes, self._num_cells)

    def cells(
        self, declared: metrics.Declared[metrics.ChildT], labels: tuple[str, ...]
    ) -> metrics.Cells:
        """Memory for the child with these label values; what it holds already goes on."""
        found = self._known.get((declared.name, labels))
        if found is not None and found.declared.bounds == declared.bounds:
            return self._cells[found.first : found.end]
        child = _Child(declared, labels, self._num_cells)
        if found is not None or not self._append(child):
            self.num_unshared += 1
            return metrics.private_cells(declared.num_cells)
        return self._cells[child.first : child.end]

    def labels_of(self, name: str) -> list[tuple[str, ...]]:
        """The children of a family that are in the file."""
        return [labels for of_name, labels in self._known if of_name == name]

    def _append(self, child: _Child) -> bool:
        text = json.dumps(_described(child), separators=(",", ":")).encode()
        at = _DIRECTORY_AT + self._directory_bytes
        end = at + _ENTRY.size + _padded(len(text))
        if end > _CELLS_AT or child.end > len(self._cells):
            return False
        self._cells[child.first : child.end] = metrics.private_cells(child.declared.num_cells)
        _ENTRY.pack_into(self._map, at, len(text), _checksum(text, child.first), child.first)
        self._map[at + _ENTRY.size : at + _ENTRY.size + len(text)] = text
        self._known[child.declared.name, child.labels] = child
        self._directory_bytes = end - _DIRECTORY_AT
        self._num_cells = child.end
        self._commit()
        return True

    def close(self) -> None:
        """Let another process write; the numbers stay, also those still counted here."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # the map holds a copy of the descriptor
            os.close(self._file)
            self._file = -1


def merged(folder: str, own: metrics.Metrics | None = None) -> metrics.Metrics:
    """One page of all files in the folder; ``own`` is brought up to date first.

    Counters and histograms are sums over all processes, also dead ones; gauges are put together as
    their family says, from those alive. Families come in the order of ``families.ALL``.
    """
    if own is not None:
        own.publish()
    found: dict[_Key, tuple[_Child, list[list[float]]]] = {}
    for path in _files(folder):
        for child, values in _read(path):
            kept = found.setdefault((child.declared.name, child.labels), (child, []))
            if kept[0].declared.bounds == child.declared.bounds:
                kept[1].append(values)
    order = {declared.name: index for index, declared in enumerate(families.ALL)}
    page = metrics.Metrics()
    by_name = sorted(found.values(), key=lambda kept: order.get(kept[0].declared.name, len(order)))
    for child, several in by_name:
        _put(page, child, several)
    return page


def _put(page: metrics.Metrics, child: _Child, several: list[list[float]]) -> None:
    declared = child.declared
    family = page.families.get(declared.name)
    if family is None:
        family = page.family(declared)
    elif family.declared.label_names != declared.label_names:
        return
    values = [_COMBINE[declared.merge](each) for each in zip(*several, strict=True)]
    cells = metrics.private_cells(len(values))
    for index, value in enumerate(values):
        cells[index] = value
    family.children[child.labels] = declared.create.over(cells, declared.bounds)


def _files(folder: str) -> list[str]:
    names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    return [os.path.join(folder, name) for name in names]


def _read(path: str) -> Iterator[tuple[_Child, list[float]]]:
    """Every child of a file with its numbers; gauges only of a process that is alive.

    Ended requests are read before accepted ones, and counted after them, so that no page says
    that more ended than were accepted.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        if os.fstat(file).st_size < _SIZE_BYTES:
            return  # not made to the end yet
        is_alive = not _try_lock(file, fcntl.LOCK_SH)
        with mmap.mmap(file, _SIZE_BYTES, prot=mmap.PROT_READ) as content:
            children = [child for child, _ in _directory(content)]
            children.sort(key=lambda child: child.declared.name == families.ACCEPTED.name)
            for child in children:
                if is_alive or child.declared.create is not metrics.Gauge:
                    at = _CELLS_AT + 8 * child.first
                    yield (
                        child,
                        list(struct.unpack_from(f"{child.declared.num_cells}d", content, at)),
                    )
    finally:
        os.close(file)


def _directory(content: mmap.mmap) -> Iterable[tuple[_Child, int]]:
    """The entries that are whole, each with where it ends; what follows a torn one is not read."""
    magic, used, _ = _HEADER.unpack_from(content)
    end = _DIRECTORY_AT + min(used, _CELLS_AT - _DIRECTORY_AT)
    at = _DIRECTORY_AT
    while magic == _MAGIC and at + _ENTRY.size <= end:
        size, checksum, first = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        text = content[at : min(at + size, end)]
        at += _padded(size)
        if not text or at > end or _checksum(text, first) != checksum:
            return
        child = _child(json.loads(text), first)
        if 8 * child.end > _SIZE_BYTES - _CELLS_AT:
            return
        yield child, at - _DIRECTORY_AT


def _checksum(text: bytes, first: int) -> int:
    return zlib.crc32(text, first & 0xFFFFFFFF)


def _described(child: _Child) -> list[Any]:
    declared = child.declared
    return [
        declared.kind, declared.name, declared.text, declared.label_names, declared.bounds,
        declared.merge, child.labels,
    ]  # fmt: skip


def _child(read: list[Any], first: int) -> _Child:
    kind, name, text, label_names, bounds, merge, labels = read
    declared = metrics.Declared(_KINDS[kind], name, text, tuple(label_names), tuple(bounds), merge)
    return _Child(declared, tuple(labels), first)


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


def _locked(path: str) -> int:
    """The file, open, with the writer's lock. Readers hold theirs for a moment only."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end_s = time.monotonic() + _PATIENCE_S
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() > end_s:
            os.close(file)
            raise errors.CastironError(f"{path}: another process writes its metrics here")
        time.sleep(0.001)
    return file


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
