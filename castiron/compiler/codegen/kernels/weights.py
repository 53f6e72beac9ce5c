"""Packs the weights of a convolution at run time, where they are not constants.

The same panels as packing.py makes while building, written to a buffer of the arena by a step in
front of the convolution. Plain loops: a weight is moved once and used for every pixel.
"""

from __future__ import annotations

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import packing
from castiron.compiler.codegen.kernels.geometry import Geometry
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target

_SYMBOL = "pack_weights"
_NUMBERS = "panels full main padded depth own each taps".split()


def size_bytes(geometry: Geometry, columns: packing.Columns) -> int:
    """Bytes of the packed weights."""
    return geometry.group * columns.padded * _depth(geometry) * 4


def _depth(geometry: Geometry) -> int:
    own = geometry.channels // geometry.group
    return own * geometry.rows.kernel * geometry.columns.kernel


def pack_step(
    name: str, weights: str, buffer: str, shape: tuple[Geometry, packing.Columns], target: Target
) -> step.Step:
    """The step that fills ``buffer`` from ``weights`` [filters, channels of a group, taps...]."""
    geometry, columns = shape
    size = size_bytes(geometry, columns)
    numbers = {
        "panels": columns.panels,
        "full": columns.full,
        "main": columns.main * columns.lanes,
        "padded": columns.padded,
        "depth": _depth(geometry),
        "own": geometry.channels // geometry.group,
        "each": columns.count,
        "taps": geometry.rows.kernel * geometry.columns.kernel,
    }
    return step.Step(
        name=f"{name} (weights)",
        kernel=_kernel(target),
        operands=(step.Read(weights), step.Write(buffer)),
        params=tuple(numbers[key] for key in _NUMBERS),
        units=geometry.group * columns.panels,
        bytes_moved=2 * size,
    )


def _kernel(target: Target) -> step.Kernel:
    module = Module(target)
    f = module.kernel(_SYMBOL)
    args, begin, end, _ = f.params
    source, to = f.argument(args, 0, PTR), f.argument(args, 1, PTR)
    at = {name: f.argument(args, n, I64) for n, name in enumerate(_NUMBERS, 2)}
    with f.loop(begin, end) as unit:
        group = unit.index // at["panels"]
        first = (unit.index - group * at["panels"]) * at["main"]
        width = f.minimum(at["main"], at["padded"] - first)
        place = f.offset(to, (group * at["padded"] + first) * at["depth"] * 4)
        filters = f.offset(source, group * at["each"] * at["depth"] * 4)
        with f.loop(0, width) as column:
            number = first + column.index
            own = f.offset(filters, number * at["depth"] * 4)
            _column(f, at, (own, f.offset(place, column.index * 4)), (number, width))
    f.return_()
    return step.Kernel(_SYMBOL, module.text())


def _column(
    f: Function,
    at: dict[str, Value],
    places: tuple[Value, Value],
    where: tuple[Value, Value],
) -> None:
    """One filter, or zeros behind the last one, down the depth of its panel."""
    source, to = places
    number, width = where
    with f.loop(0, at["taps"]) as tap, f.loop(0, at["own"]) as channel:
        row = tap.index * at["own"] + channel.index
        place = f.offset(to, row * width * 4)
        exists = number < at["each"]
        with f.when(exists):
            weight = f.load(F32, source, (channel.index * at["taps"] + tap.index) * 4)
            f.store(weight, place)
        with f.unless(exists):
            f.store(f.const(0, F32), place)
