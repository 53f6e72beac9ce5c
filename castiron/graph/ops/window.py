"""The arithmetic of sliding windows: extents of convolutions and pools, and explicit padding."""

from __future__ import annotations

import dataclasses

from castiron.graph.graph import Extent, Shape
from castiron.graph.ops import bounds
from castiron.graph.ops.rule import Site
from castiron.tensor import dim as dims


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis: kernel size, stride, dilation, and padding at both ends."""

    kernel: Extent
    stride: int
    dilation: int
    begin: Extent
    end: Extent

    @property
    def reach(self) -> Extent:
        """The extent that one window covers, dilation included."""
        return dims.add(dims.mul(dims.add(self.kernel, -1), self.dilation), 1)


def windows_of(at: Site, spatial: Shape, kernel: tuple[Extent, ...]) -> list[Window]:
    """The windows of a Conv or pool node over input extents ``spatial``.

    ``auto_pad`` is resolved: SAME makes ceil(in / stride) windows, the odd cell of padding goes
    to the end for SAME_UPPER and to the start for SAME_LOWER.
    """
    rank = len(spatial)
    strides = _ints(at, "strides", rank, 1)
    dilations = _ints(at, "dilations", rank, 1)
    auto = at.attr("auto_pad", "NOTSET") or "NOTSET"
    if len(kernel) != rank:
        at.fail(f"kernel_shape: expected {rank} extents, found {len(kernel)}")
    pads = _ints(at, "pads", 2 * rank, 0) if auto == "NOTSET" else (0,) * (2 * rank)
    found = []
    for axis in range(rank):
        window = Window(kernel[axis], strides[axis], dilations[axis], pads[axis], pads[axis + rank])
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            window = _same(window, spatial[axis], upper=auto == "SAME_UPPER")
        found.append(window)
    return found


def _same(window: Window, extent: Extent, upper: bool) -> Window:
    count = dims.ceildiv(extent, window.stride)
    needed = dims.add(dims.mul(dims.add(count, -1), window.stride), window.reach)
    total = bounds.maximum(bounds.sub(needed, extent), 0)
    small = dims.floordiv(total, 2)
    large = bounds.sub(total, small)
    begin, end = (small, large) if upper else (large, small)
    return dataclasses.replace(window, begin=begin, end=end)


def extent_of(at: Site, window: Window, extent: Extent) -> Extent:
    """The number of windows; a ceil-mode window that starts in the end padding is dropped."""
    if at.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return dims.ceildiv(extent, window.stride)
    padded = dims.add(extent, dims.add(window.begin, window.end))
    room = bounds.sub(padded, window.reach)
    if not isinstance(room, dims.Dim) and room < 0 and extent != 0:
        at.fail(f"the window covers {window.reach}, more than the padded input of {padded}")
    count = _count(at, window, extent, room)
    if isinstance(extent, dims.Dim):
        at.at_least(count, 0, "the input must be as large as the window")
    return count


def _count(at: Site, window: Window, extent: Extent, room: Extent) -> Extent:
    if not at.attr("ceil_mode", 0):
        return dims.add(dims.floordiv(room, window.stride), 1)
    starts_inside = bounds.sub(bounds.sub(window.reach, window.end), window.stride)
    if bounds.is_nonnegative(starts_inside):
        return dims.add(dims.ceildiv(room, window.stride), 1)
    return dims.ceildiv(dims.add(extent, window.begin), window.stride)


def _ints(at: Site, key: str, count: int, default: int) -> tuple[int, ...]:
    given = at.attr(key)
    if given is None:
        return (default,) * count
    if len(given) != count:
        at.fail(f"{key}: expected {count} integers, found {len(given)}")
    if key != "pads" and any(not isinstance(item, dims.Dim) and item < 1 for item in given):
        at.fail(f"{key}: expected positive integers, found {tuple(given)}")
    return tuple(given)
