"""Where each output position of a resized axis reads, and with which weights: a small table.

The table is written at run time by one step per axis: extents may be symbols, and the arithmetic
(double precision, ONNX's formulas for coordinates, nearest and cubic weights) is done once per
position instead of once per pixel. Entries: ``taps`` byte offsets (i64) for every position, then
``taps`` float weights for every position. Offset -1 marks a position outside the region of
interest. resize.py reads the table.
"""

from __future__ import annotations

import dataclasses
import struct

from castiron.compiler.codegen import loop, step, vectors
from castiron.compiler.codegen.kernels.dims import from_word
from castiron.compiler.codegen.loop import F32, F64, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim as dims

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How positions are mapped: what the table kernel's text depends on."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    excludes_outside: bool = False

    @property
    def taps(self) -> int:
        """Input positions that one output position reads."""
        return TAPS[self.mode]

    def symbol(self) -> str:
        """The kernel's name."""
        detail = self.nearest if self.mode == "nearest" else self.coordinates
        return f"resize_taps_{self.mode}_{detail}_{step.tag(repr(self))}"


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis: extents, bytes between positions, scale (0: output / input), region."""

    size: Extent
    output: Extent
    stride: Extent
    scale: float = 0.0
    region: tuple[float, float] = (0.0, 1.0)


def table_bytes(axis: Axis, rule: Rule) -> Extent:
    """Size of the axis's table."""
    return dims.mul(axis.output, rule.taps * 12)


def table_step(name: str, table: str, axis: Axis, rule: Rule, target: Target) -> step.Step:
    """The step that writes the axis's table into a buffer."""
    params = (
        axis.size, axis.output, axis.stride, _word(axis.scale),
        _word(axis.region[0]), _word(axis.region[1]),
    )  # fmt: skip
    return step.Step(
        name=f"{name} taps",
        kernel=step.Kernel(rule.symbol(), _text(rule, target)),
        operands=(step.Write(table),),
        params=params,
        units=1,
        grain=0,
    )


def _word(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def float_word(value: float, size: int) -> int:
    """The bits of a float of ``size`` bytes as a param; ``element_of`` takes them out again."""
    packed = struct.pack({2: "<e", 4: "<f", 8: "<d"}.get(size, "<d"), value)
    return int.from_bytes(packed, "little", signed=True) if size > 1 else int(value)


def element_of(f: Function, word: Value, size: int) -> Value:
    """The integer of ``size`` bytes with the low bits of a word."""
    return word if size == 8 else f.convert("trunc", word, f"i{8 * size}")


class _Numbers:
    """The kernel's params as values; extents also as doubles."""

    def __init__(self, f: Function) -> None:
        args = f.params[0]
        self.table = f.argument(args, 0, PTR)
        self.size, self.output, self.stride, scale, start, end = (
            f.argument(args, 1 + n) for n in range(6)
        )
        self.wide_size = f.convert("sitofp", self.size, F64)
        self.wide_output = f.convert("sitofp", self.output, F64)
        self.start, self.end = from_word(f, start, F64), from_word(f, end, F64)
        given = from_word(f, scale, F64)
        self.scale = f.select(scale.equals(0), self.wide_output / self.wide_size, given)
        # The output's extent before it was rounded down, which some formulas use.
        self.exact_output = self.scale * self.wide_size


def _text(rule: Rule, target: Target) -> str:
    module = Module(target)
    f = module.kernel(rule.symbol())
    begin, end = f.params[1:3]
    at = _Numbers(f)
    weights = f.offset(at.table, at.output * (8 * rule.taps))
    with f.when((begin < end) & (at.size > 0)), f.loop(0, at.output) as turn:
        x = _coordinate(f, rule, at, f.convert("sitofp", turn.index, F64))
        positions, values = _taps(f, rule, at, x)
        outside: Value | None = None
        if rule.coordinates == "tf_crop_and_resize":
            outside = (x < 0.0) | (x > at.wide_size - 1.0)
        for n, (position, value) in enumerate(zip(positions, values, strict=True)):
            offset = _clamped(f, at, position) * at.stride
            if outside is not None:
                offset = f.select(outside, -1, offset)
            place = turn.index * rule.taps + n
            f.store(offset, at.table, place * 8)
            f.store(f.convert("fptrunc", value, F32), weights, place * 4)
    f.return_()
    return module.text()


def _clamped(f: Function, at: _Numbers, position: Value) -> Value:
    return f.minimum(f.maximum(position, 0), at.size - 1)


def _coordinate(f: Function, rule: Rule, at: _Numbers, y: Value) -> Value:
    """The position in the input, a double, that output position ``y`` maps to."""
    if rule.coordinates == "asymmetric":
        return y / at.scale
    if rule.coordinates in ("align_corners", "tf_crop_and_resize"):
        is_single = at.exact_output.equals(1.0)
        last = at.exact_output - 1.0
        if rule.coordinates == "align_corners":
            return f.select(is_single, 0.0, y * (at.wide_size - 1.0) / last)
        room = (at.end - at.start) * (at.wide_size - 1.0)
        many = y * (at.end - at.start) * (at.wide_size - 1.0) / last
        return f.select(is_single, room / 2.0, many) + at.start * (at.wide_size - 1.0)
    half = (y + 0.5) / at.scale - 0.5
    if rule.coordinates == "pytorch_half_pixel":
        return f.select(at.exact_output.equals(1.0), -0.5, half)
    if rule.coordinates == "half_pixel_symmetric":
        adjustment = at.wide_output / at.exact_output
        return at.wide_size / 2.0 * (1.0 - adjustment) + half
    return half


def _taps(f: Function, rule: Rule, at: _Numbers, x: Value) -> tuple[list[Value], list[Value]]:
    """Positions in the input (unclamped) and weights."""
    if rule.mode == "nearest":
        return [_nearest(f, rule, x)], [f.const(1.0, F64)]
    # The neighbour on the left is strictly left of x, so the ratio is in (0, 1].
    left = vectors.ceil(f, x) - 1.0
    ratio = x - left
    base = f.convert("fptosi", left, I64)
    if rule.mode == "linear":
        positions, weights = [base, base + 1], [1.0 - ratio, ratio]
    else:
        positions = [base + (n - 1) for n in range(4)]
        weights = _cubic(rule.cubic_a, ratio)
    if rule.excludes_outside:
        weights = _without_outside(f, at, positions, weights)
    return positions, weights


def _nearest(f: Function, rule: Rule, x: Value) -> Value:
    low = vectors.floor(f, x)
    rest = x - low
    up = {
        "round_prefer_floor": rest > 0.5,
        "round_prefer_ceil": rest >= 0.5,
        "floor": f.const(False, loop.I1),
        "ceil": rest > 0.0,
    }[rule.nearest]
    return f.convert("fptosi", low, I64) + f.convert("zext", up, I64)


def _cubic(a: float, r: Value) -> list[Value]:
    near, far, other = r + 1.0, 2.0 - r, 1.0 - r
    return [
        ((near * a - 5 * a) * near + 8 * a) * near - 4 * a,
        (r * (a + 2) - (a + 3)) * r * r + 1.0,
        (other * (a + 2) - (a + 3)) * other * other + 1.0,
        ((far * a - 5 * a) * far + 8 * a) * far - 4 * a,
    ]


def _without_outside(
    f: Function, at: _Numbers, positions: list[Value], weights: list[Value]
) -> list[Value]:
    kept = []
    for position, weight in zip(positions, weights, strict=True):
        inside = (position >= 0) & (position < at.size)
        kept.append(f.select(inside, weight, 0.0))
    total = kept[0]
    for weight in kept[1:]:
        total = total + weight
    return [weight / total for weight in kept]
