"""Panels: how the columns of a matrix are cut for the microkernel, and packed at build time.

A row of columns is covered by panels of one width, the main one, and one narrower panel for the
rest; what does not fill a register is padded with zeros in packed panels and masked in stores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from castiron.compiler.codegen.kernels import tiles
from castiron.compiler.codegen.loop import Function, Module
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor.dim import Dim

# Cycles that an element of A and a register of B cost beside the multiplications of a strip.
_A_CYCLES = 0.1
_B_CYCLES = 0.2
# Cycles for a register of B to come from the last cache.
_COLD_CYCLES = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """``count`` columns as ``full`` panels of ``main`` vectors and perhaps one ``rest``."""

    count: int
    lanes: int
    main: int
    full: int
    rest: tiles.Width | None

    @property
    def panels(self) -> int:
        """Number of panels."""
        return self.full + (self.rest is not None)

    @property
    def padded(self) -> int:
        """Columns including the zeros behind the last one."""
        rest = self.rest.vectors if self.rest else 0
        return (self.full * self.main + rest) * self.lanes

    @property
    def last_columns(self) -> int:
        """Columns in the last vector of the rest; ``lanes`` when it is full."""
        return (self.count - 1) % self.lanes + 1


def columns(
    count: int,
    target: Target,
    element: str = "float",
    *,
    rows: int | None = None,
    is_cold: bool = False,
) -> Columns:
    """The cheapest cover of ``count`` columns.

    ``rows`` is the length of a run of rows, if known. ``is_cold`` says that every panel is read
    for one run only, so that it comes from far away.
    """
    lanes = tiles.lanes_of(target, element)
    vectors = -(-count // lanes)
    widths = range(1, tiles.widest(target) + 1)
    cold = _COLD_CYCLES if is_cold else 0.0
    times = {width: _time(target, width, rows, cold) for width in widths}
    main = min(widths, key=lambda width: (_cover(vectors, width, times), -width))
    full, rest = divmod(vectors, main)
    masked = count % lanes != 0
    if rest == 0 and masked:
        full, rest = full - 1, main
    elif full == 0 and not masked:
        # One whole panel is a full one, so that the widths alone name a kernel's text.
        full, main, rest = 1, rest, 0
    return Columns(count, lanes, main, full, tiles.Width(rest, masked) if rest else None)


def _cover(vectors: int, main: int, times: dict[int, float]) -> float:
    full, rest = divmod(vectors, main)
    return full * times[main] + (times[rest] if rest else 0.0)


def _time(target: Target, width: int, rows: int | None, cold: float) -> float:
    """Cycles for one step of depth and one row, in a run of ``rows`` rows.

    A strip needs half a cycle for each multiply-add and each load, at least the four cycles of
    one multiply-add's latency, and some time because neither operand always lies near. The first
    strip of a cold panel waits for it.
    """
    tallest = tiles.most_rows(target, width)
    run = rows or tallest
    strips = -(-run // tallest)
    height = run / strips
    busy = max(height * width / 2, (height + width) / 2, 4.0)
    near = strips * (busy + _A_CYCLES * height + _B_CYCLES * width)
    return (near + max(0.0, cold * width - busy)) / run


def strips(
    target: Target, cut: Columns, runs: Sequence[int] | None, limit: int = 0
) -> tuple[tiles.Strips, ...]:
    """The strips of every width of the cover, for panels of ``runs`` rows (None: any number)."""
    widths = [tiles.Width(cut.main)] if cut.full else []
    if cut.rest:
        widths.append(cut.rest)
    return tuple(tiles.strips(target, width, runs, limit) for width in widths)


def tag(cuts: Sequence[tiles.Strips]) -> str:
    """The part of a symbol that names widths and heights."""
    return "".join(cut.tag() for cut in cuts)


def panels(
    module: Module, micro: tiles.Micro, cuts: Sequence[tiles.Strips]
) -> dict[tiles.Width, Function]:
    """A panel function for each width."""
    return {cut.width: tiles.panel(module, micro, cut) for cut in cuts}


def runs(rows: Extent, parts: Extent) -> tuple[int, ...] | None:
    """How many rows a part can have when ``rows`` are cut evenly; None when it is not known."""
    if isinstance(rows, Dim) or isinstance(parts, Dim):
        return None
    if not parts:
        return ()
    return tuple(sorted({rows // parts, -(-rows // parts)}))


def pack(matrix: np.ndarray, cut: Columns) -> np.ndarray:
    """A [depth, columns] matrix as panels behind each other, each [depth][panel width]."""
    depth = matrix.shape[0]
    wide = np.zeros((depth, cut.padded), matrix.dtype)
    wide[:, : cut.count] = matrix
    step = cut.main * cut.lanes
    parts = [wide[:, n * step : (n + 1) * step].reshape(-1) for n in range(cut.full)]
    parts.append(wide[:, cut.full * step :].reshape(-1))
    return np.concatenate(parts)


def pack_vector(vector: np.ndarray, cut: Columns) -> np.ndarray:
    """A bias padded to whole registers."""
    padded = np.zeros(cut.padded, vector.dtype)
    padded[: cut.count] = vector
    return padded
