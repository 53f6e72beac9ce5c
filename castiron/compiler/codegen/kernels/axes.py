"""Axes of operands that walk together: strides, and neighbours that can be merged.

A kernel over several operands of one shape (some broadcast) needs only the axes on which they
move differently. Strides are in elements and may be symbolic; 0 is an axis that an operand does
not move along. Used by every kernel family that iterates over whole values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import Function, Value
from castiron.graph.graph import Extent, Shape
from castiron.tensor import dim


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its extent, the stride of each operand, and whether a reduction runs along it."""

    extent: Extent
    strides: tuple[Extent, ...]
    is_reduced: bool = False


def strides_of(shape: Shape) -> tuple[Extent, ...]:
    """Row-major strides in elements."""
    return tuple(dim.product(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Shape, output: Shape) -> tuple[Extent, ...]:
    """The strides with which an operand of ``shape`` is read over ``output``.

    An extent that is not provably the output's may be 1 at run time, and its stride then 0.
    """
    missing = len(output) - len(shape)
    found: list[Extent] = [0] * missing
    own = strides_of(shape)
    for extent, stride, target in zip(shape, own, output[missing:], strict=True):
        found.append(stride if extent == target else dim.stride_if_wide(extent, stride))
    return tuple(found)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The axes without those of extent 1, neighbours that walk as one merged; at least one."""
    kept: list[Axis] = []
    for axis in reversed(axes):
        if axis.extent == 1:
            continue
        inner = kept[-1] if kept else None
        if inner is not None and _continues(axis, inner):
            kept[-1] = dataclasses.replace(inner, extent=dim.mul(axis.extent, inner.extent))
        else:
            kept.append(axis)
    kept.reverse()
    width = len(axes[0].strides) if axes else 0
    return kept or [Axis(1, (1,) * width)]


def _continues(outer: Axis, inner: Axis) -> bool:
    if outer.is_reduced != inner.is_reduced:
        return False
    return all(
        big == dim.mul(small, inner.extent)
        for big, small in zip(outer.strides, inner.strides, strict=True)
    )


def split_index(f: Function, index: Value, extents: Sequence[Value | None]) -> list[Value]:
    """Row-major coordinates of a flat index; the first extent is not needed and may be None."""
    coordinates: list[Value] = []
    rest = index
    for extent in reversed(extents[1:]):
        assert extent is not None, "only the first extent may be missing"
        # The index may not exceed the product, so no extent is 0 where this runs.
        following = f.emit(loop.I64, f"udiv i64 {rest.text}, {extent.text}")
        coordinates.append(rest - following * extent)
        rest = following
    return [rest, *reversed(coordinates)]
