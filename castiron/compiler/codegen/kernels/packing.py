"""Panels: how the columns of a matrix are cut for the microkernel, and packed at build time.

A row of columns is covered by panels of one width, the main one, and one narrower panel for the
rest; what does not fill a register is padded with zeros in packed panels and masked in stores.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen.kernels import tiles
from castiron.compiler.target import Target


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

    def tag(self) -> str:
        """The part of a symbol that names the widths used."""
        main = f"w{self.main}" if self.full else "w0"
        return f"{main}r{self.rest.tag()}" if self.rest else main


def columns(count: int, target: Target, element: str = "float", widest: int = 0) -> Columns:
    """The cheapest cover of ``count`` columns by panels of at most ``widest`` vectors."""
    lanes = tiles.lanes_of(target, element)
    limit = widest or tiles.widest(target)
    vectors = -(-count // lanes)
    main = min(range(1, limit + 1), key=lambda width: _cost(vectors, width))
    full, rest = divmod(vectors, main)
    masked = count % lanes != 0
    if rest == 0 and masked:
        full, rest = full - 1, main
    return Columns(count, lanes, main, full, tiles.Width(rest, masked) if rest else None)


def _cost(vectors: int, main: int) -> tuple[float, int]:
    """Time of one row in register columns: narrow panels load A more often for each product."""
    slow = {0: 0.0, 1: 1.3, 2: 2.1, 3: 3.05, 4: 4.0}
    full, rest = divmod(vectors, main)
    return full * slow[main] + slow[rest], -main


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
