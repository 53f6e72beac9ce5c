"""The register microkernel under every matrix product and convolution.

A strip holds ``rows x vectors`` accumulators in registers over the whole depth, reads rows of A
where they lie and a panel of B, then applies the epilogue and stores. A panel function cuts any
number of rows into balanced strips (heights differ by at most one) and calls the strip of that
height. Who decides which rows and panels a unit covers is the kernel: gemm.py, direct.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen import vectors
from castiron.compiler.codegen.kernels import epilogues
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target

_BYTES = {F32: 4, "double": 8, "i32": 4, "i64": 8}


@dataclasses.dataclass(frozen=True, slots=True)
class Micro:
    """What all strips of one kernel share.

    ``nested`` strips walk A in three levels (taps of a convolution): ``outer`` times ``middle``
    times ``inner`` elements, with a jump in bytes after each inner and each middle run, while B
    is packed. Others have one level, with run-time distances between rows of B, and between the
    elements of a row of A if ``strided_a``. ``partial_b`` says that B has no padding behind its
    last column, so that the last vector is read masked. ``reads_ahead`` says that another panel
    lies behind B: while one is multiplied, the strips ask the second cache for the next, since
    weights come from main memory in any network larger than the caches.
    """

    element: str = F32
    nested: bool = False
    has_bias: bool = False
    partial_b: bool = False
    strided_a: bool = False
    reads_ahead: bool = False
    epilogue: epilogues.Epilogue | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return _BYTES[self.element]

    def tag(self) -> str:
        """The part of a kernel's symbol that names these choices."""
        flags = "".join(
            letter
            for letter, on in (
                ("n", self.nested),
                ("b", self.has_bias),
                ("p", self.partial_b),
                ("s", self.strided_a),
                ("a", self.reads_ahead),
            )
            if on
        )
        return f"{self.element}{flags}{epilogues.tag(self.epilogue)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Width:
    """The columns of a panel: ``vectors`` registers wide, the last one partly used if masked."""

    vectors: int
    masked: bool = False

    def tag(self) -> str:
        """The part of a symbol that names this width."""
        return f"{self.vectors}{'m' if self.masked else ''}"


def lanes_of(target: Target, element: str) -> int:
    """Lanes of one register for this element type."""
    return target.vector_lanes_f32 * 4 // _BYTES[element]


def widest(target: Target) -> int:
    """Vectors of the widest panel that pays on this target."""
    return 4 if target.num_vector_registers == 32 else 2


def most_rows(target: Target, vectors: int) -> int:
    """Rows of the tallest strip of this width whose registers fit without a spill."""
    if target.num_vector_registers == 32:
        return {1: 14, 2: 12, 3: 8, 4: 6}[vectors]
    if not target.has_fma:
        return {1: 8, 2: 4}[vectors]
    return {1: 10, 2: 6}[vectors]


def parameters(micro: Micro, width: Width) -> list[tuple[str, str]]:
    """The parameters that a strip and its panel share, in order."""
    names = [(PTR, "a"), (I64, "a_row"), (PTR, "b"), (I64, "inner"), (PTR, "c"), (I64, "c_row")]
    if micro.nested:
        names += [(I64, "outer"), (I64, "outer_jump"), (I64, "middle"), (I64, "middle_jump")]
    else:
        names += [(I64, "b_row"), *([(I64, "a_step")] if micro.strided_a else [])]
    if micro.has_bias:
        names.append((PTR, "bias"))
    if width.masked:
        names.append((I64, "columns"))
    if micro.epilogue:
        names += [(PTR, f"e{index}") for index in range(len(micro.epilogue.kinds))]
    return names


def panel_parameters(micro: Micro, width: Width) -> list[tuple[str, str]]:
    """What a panel takes: how many rows, and which of how many walks over the same B this is."""
    more = [(I64, "turns"), (I64, "turn")] if micro.reads_ahead else []
    return [(I64, "rows"), *parameters(micro, width), *more]


def _strip_parameters(micro: Micro, width: Width) -> list[tuple[str, str]]:
    """What a strip takes: ``ahead`` is what it asks the cache for, a step of it for each of B."""
    more = [(PTR, "ahead"), (I64, "ahead_step")] if micro.reads_ahead else []
    return [*parameters(micro, width), *more]


class _Strip:
    """One strip function being written."""

    def __init__(self, module: Module, micro: Micro, width: Width, rows: int) -> None:
        name = f"strip_{rows}x{width.tag()}"
        params = _strip_parameters(micro, width)
        self.f = module.function(name, params)
        self.micro, self.width, self.rows = micro, width, rows
        self.lanes = lanes_of(module.target, micro.element)
        self.type = language.vector(self.lanes, micro.element)
        self.at = {label: value for (_, label), value in zip(params, self.f.params, strict=True)}
        self.mask = self.f.lane_mask(self.at["columns"], self.lanes) if width.masked else None

    def is_partial(self, vector: int) -> bool:
        return self.width.masked and vector == self.width.vectors - 1

    def write(self) -> Function:
        pointers = [*self._bases(), self.at["b"]]
        if self.micro.reads_ahead:
            pointers.append(self.at["ahead"])
        state = [*pointers, *self._initial()]
        state = self._nest(state) if self.micro.nested else self._run(state)
        self._finish(state[len(pointers) :])
        self.f.return_()
        return self.f

    def _bases(self) -> list[Value]:
        """Pointers to rows 0, 3, 6...: the two rows behind each are reached by index."""
        f, a = self.f, self.at["a"]
        rest = [f.offset(a, self.at["a_row"] * row) for row in range(3, self.rows, 3)]
        return [a, *rest]

    def _initial(self) -> list[Value]:
        if not self.micro.has_bias:
            return [self.f.const(0, self.type)] * (self.rows * self.width.vectors)
        step = self.lanes * self.micro.size_bytes
        row = [
            self.f.load(self.type, self.at["bias"], step * vector)
            for vector in range(self.width.vectors)
        ]
        return row * self.rows

    def _nest(self, state: list[Value]) -> list[Value]:
        f, num = self.f, len(self._group_sizes())
        with f.loop(0, self.at["outer"], carry=state) as outer:
            with f.loop(0, self.at["middle"], carry=outer.carried) as middle:
                state = self._run(middle.carried)
                moved = [f.offset(base, self.at["middle_jump"]) for base in state[:num]]
                middle.update([*moved, *state[num:]])
            state = middle.results
            moved = [f.offset(base, self.at["outer_jump"]) for base in state[:num]]
            outer.update([*moved, *state[num:]])
        return outer.results

    def _run(self, state: list[Value]) -> list[Value]:
        """``inner`` steps of depth on the state [bases..., b, (ahead,) sums...]."""
        f, num = self.f, len(self._group_sizes())
        # A run-time step tempts LLVM to reach row after row by one chain of additions.
        step = self.at["a_step"] if self.micro.strided_a else self.micro.size_bytes
        with f.loop(0, self.at["inner"], carry=state) as depth:
            bases, b, rest = depth.carried[:num], depth.carried[num], depth.carried[num + 1 :]
            ahead = rest[:1] if self.micro.reads_ahead else []
            for place in ahead:
                vectors.prefetch(f, place)
            sums = self._multiply(bases, b, rest[len(ahead) :])
            moved = [f.offset(base, step) for base in bases]
            following = [f.offset(place, self.at["ahead_step"]) for place in ahead]
            depth.update([*moved, f.offset(b, self._b_row()), *following, *sums])
        return depth.results

    def _group_sizes(self) -> list[int]:
        return [min(3, self.rows - row) for row in range(0, self.rows, 3)]

    def _b_row(self) -> Value | int:
        if self.micro.nested:
            return self.width.vectors * self.lanes * self.micro.size_bytes
        return self.at["b_row"]

    def _multiply(self, bases: list[Value], b: Value, sums: list[Value]) -> list[Value]:
        f, vectors = self.f, self.width.vectors
        columns = [self._load_b(b, vector) for vector in range(vectors)]
        for row in range(self.rows):
            place = bases[row // 3]
            if row % 3:
                distance = self.at["a_row"]
                place = f.offset(place, distance << 1 if row % 3 == 2 else distance)
            scalar = f.splat(f.load(self.micro.element, place), self.lanes)
            for vector in range(vectors):
                at = row * vectors + vector
                sums[at] = self._fma(scalar, columns[vector], sums[at])
        return sums

    def _load_b(self, b: Value, vector: int) -> Value:
        place = self.f.offset(b, vector * self.lanes * self.micro.size_bytes)
        if self.micro.partial_b and self.is_partial(vector):
            assert self.mask is not None
            return self.f.masked_load(self.type, place, self.mask)
        return self.f.load(self.type, place)

    def _fma(self, left: Value, right: Value, addend: Value) -> Value:
        if self.micro.element in ("i32", "i64"):
            return left * right + addend
        return self.f.fma(left, right, addend)

    def _finish(self, sums: list[Value]) -> None:
        """Epilogue (unless it is left to a pass of its own) and stores, row by row."""
        f, micro, step = self.f, self.micro, self.lanes * self.micro.size_bytes
        inline = micro.epilogue if epilogues.is_light(micro.epilogue) else None
        if inline:
            tensors = [self.at[f"e{n}"] for n in range(len(inline.kinds))]
            tensors = epilogues.loaded(f, inline, tensors, self.lanes)
        offset: Value | int = 0
        for row in range(self.rows):
            for vector in range(self.width.vectors):
                value = sums[row * self.width.vectors + vector]
                mask = self.mask if self.is_partial(vector) else None
                if inline:
                    pointers = epilogues.places(f, inline, tensors, (offset, vector * step))
                    value = epilogues.apply(f, inline, value, (pointers, mask))
                place = f.offset(f.offset(self.at["c"], offset), vector * step)
                if mask is None:
                    f.store(value, place)
                else:
                    f.masked_store(value, place, mask)
            if row + 1 < self.rows:
                offset = self.at["c_row"] * (row + 1)


def strip(module: Module, micro: Micro, width: Width, rows: int) -> Function:
    """The function that computes ``rows`` rows of a panel of this width."""
    return _Strip(module, micro, width, rows).write()


@dataclasses.dataclass(frozen=True, slots=True)
class Strips:
    """How one width of panels is cut: at most ``tallest`` rows, only the ``heights`` that occur."""

    width: Width
    tallest: int
    heights: tuple[int, ...]

    def tag(self) -> str:
        """The part of a symbol that names width and heights."""
        whole = self.heights == tuple(range(1, self.tallest + 1))
        most = self.tallest
        listed = f"to{most}" if whole else f"{'_'.join(map(str, self.heights))}of{most}"
        return f"w{self.width.tag()}h{listed}"


def strips(target: Target, width: Width, runs: Sequence[int] | None, limit: int = 0) -> Strips:
    """The strips for panels of ``runs`` rows (None: any number), ``limit`` rows at most if set."""
    tallest = min(limit or 64, most_rows(target, width.vectors))
    if runs is None:
        return Strips(width, tallest, tuple(range(1, tallest + 1)))
    heights = set()
    for run in runs:
        count = -(-run // tallest)
        heights |= {run // count, -(-run // count)} if count else set()
    return Strips(width, tallest, tuple(sorted(heights)))


def panel(module: Module, micro: Micro, cut: Strips) -> Function:
    """The function that computes one panel, its rows cut into balanced strips."""
    width, tallest = cut.width, cut.tallest
    functions = {height: strip(module, micro, width, height) for height in cut.heights}
    params = panel_parameters(micro, width)
    strip_labels = [label for _, label in _strip_parameters(micro, width)]
    f = module.function(f"panel_{width.tag()}", params)
    at = {label: value for (_, label), value in zip(params, f.params, strict=True)}
    heavy = micro.epilogue if not epilogues.is_light(micro.epilogue) else None
    finish = epilogues.finisher(module, heavy, width.tag(), micro.element) if heavy else None
    with f.when(at["rows"] > 0):
        count = (at["rows"] + (tallest - 1)) // tallest
        low = at["rows"] // count
        high_strips = at["rows"] - low * count
        if micro.reads_ahead:
            at |= _ahead(f, (micro, width), at, count)
        places = _moving(micro, at)
        # Narrow rows may be dense, and many of them fill the registers better than one strip.
        at_end = width.vectors == 1
        size = (at["rows"], _columns(f, micro, width, at))
        for height, number in ((low + 1, high_strips), (low, count - high_strips)):
            with f.loop(0, number, carry=list(places.values())) as turn:
                now = {**at, **dict(zip(places, turn.carried, strict=True))}
                _dispatch(f, functions, height, [now[label] for label in strip_labels])
                if finish and not at_end:
                    epilogues.call_finisher(f, finish, now, (height, size[1]))
                turn.update(_moved(f, places, now, height))
            places = dict(zip(places, turn.results, strict=True))
        if finish and at_end:
            epilogues.call_finisher(f, finish, at, size)
    f.return_()
    return f


def _columns(f: Function, micro: Micro, width: Width, at: dict[str, Value]) -> Value:
    lanes = lanes_of(f.target, micro.element)
    if width.masked:
        return at["columns"] + (width.vectors - 1) * lanes
    return f.const(width.vectors * lanes, I64)


def _ahead(
    f: Function, shape: tuple[Micro, Width], at: dict[str, Value], count: Value
) -> dict[str, Value]:
    """Where this walk's part of the next panel begins; a strip's share of it, and a step's."""
    micro, width = shape
    depth = at["inner"]
    if micro.nested:
        depth = depth * at["outer"] * at["middle"]
        b_row = f.const(width.vectors * lanes_of(f.target, micro.element) * micro.size_bytes, I64)
    else:
        b_row = at["b_row"]
    share = b_row // (count * at["turns"])
    return {
        "ahead": f.offset(at["b"], depth * (b_row + share * count * at["turn"])),
        "ahead_step": share,
        "ahead_down": depth * share,
    }


def _moving(micro: Micro, at: dict[str, Value]) -> dict[str, Value]:
    """The pointers that go on from strip to strip."""
    labels = ["a", "c", *(["ahead"] if micro.reads_ahead else [])]
    if micro.epilogue:
        kinds = micro.epilogue.kinds
        labels += [f"e{n}" for n, kind in enumerate(kinds) if kind == epilogues.FULL]
    return {label: at[label] for label in labels}


def _moved(
    f: Function, places: dict[str, Value], now: dict[str, Value], height: Value
) -> list[Value]:
    down = {"a": now["a_row"] * height, "ahead": now.get("ahead_down", now["a_row"])}
    c_down = now["c_row"] * height
    return [f.offset(now[label], down.get(label, c_down)) for label in places]


def _dispatch(
    f: Function, functions: dict[int, Function], height: Value, args: Sequence[Value]
) -> None:
    for rows, function in functions.items():
        with f.when(height.equals(rows)):
            f.call(function, args)
