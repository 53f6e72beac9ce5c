"""Where a model's picture lies in the picture that the client sent, so that boxes can go back.

Plain numbers that travel between the steps before and after a run. ``picture.py`` makes them,
``boxes.py`` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A point (x, y) of the client's picture is at ``(x * scale_x + left, y * scale_y + top)``."""

    width: int
    """Of the client's picture, once upright."""

    height: int
    """Of the client's picture, once upright."""

    scale_x: float = 1.0
    """Pixels of the model's picture for one of the client's, across."""

    scale_y: float = 1.0
    """The same, down."""

    left: float = 0.0
    """Where the client's left edge lies."""

    top: float = 0.0
    """Where the client's upper edge lies."""

    def scaled(self, x: float, y: float) -> Place:
        """After the model's picture was scaled."""
        return replace(
            self, scale_x=self.scale_x * x, scale_y=self.scale_y * y,
            left=self.left * x, top=self.top * y,
        )  # fmt: skip

    def moved(self, x: float, y: float) -> Place:
        """After the model's picture was moved inside a frame."""
        return replace(self, left=self.left + x, top=self.top + y)
