"""The plan section of an executable: what a run does, as ints and names.

A program is a list of stages over slots: tensors that enter, leave or cross stages. The bytes are
a nest of tuples in a tagged form that decodes with ``struct`` alone, since the load path imports
next to nothing. ``compiler/encode.py`` fills a program; ``runtime/binding.py`` turns its native
stages into step records for given symbol values.
"""

from __future__ import annotations

import struct

from castiron import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1

# Operations of a dims table: (operation, a, b), operands are indices of earlier rows.
CONST, SYMBOL, ADD, MUL, FLOORDIV, MIN, MAX, WIDE = range(8)

# Kinds of a step's operand: (kind, reference, row of its byte offset).
IN_WEIGHTS, IN_BUFFER, IN_SLOT = range(3)


class Slot:
    """A tensor at a stage's edge.

    ``dims`` are rows of the program's dims table, or None when even the rank is unknown;
    ``labels`` are the same dims as a person reads them: ``3``, ``batch``, ``w//8``.
    """

    __slots__ = ("dims", "dtype", "labels", "name")

    def __init__(
        self, name: str, dtype: str, dims: Sequence[int] | None, labels: Sequence[str]
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.labels = labels


class NativeStage:
    """Steps of machine code.

    ``symbols`` index the program's symbols, in the order that row (SYMBOL, i, 0) means.
    ``buffers`` holds (row of size, first step, last step) for each arena buffer, flattened.
    ``steps`` holds for each step: kernel, row of units, row of grain, number of operands, number
    of params, then (kind, reference, row of offset) per operand, then a row per param.
    ``placed`` holds offsets and the total when there are no symbols, else nothing.
    ``checks`` holds pairs of rows that must be equal; ``reasons`` says why.
    """

    __slots__ = (
        "buffers", "checks", "dims", "num_steps", "placed", "reads", "reasons", "scratch",
        "steps", "symbols", "write_dims", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.symbols: Sequence[int] = ()
        self.dims: Sequence[int] = ()
        self.reads: Sequence[int] = ()
        self.writes: Sequence[int] = ()
        self.write_dims: Sequence[Sequence[int]] = ()
        self.buffers: Sequence[int] = ()
        self.placed: Sequence[int] = ()
        self.num_steps = 0
        self.steps: Sequence[int] = ()
        self.scratch: Sequence[int] = ()
        self.checks: Sequence[int] = ()
        self.reasons: Sequence[str] = ()

    def fields(self) -> tuple[object, ...]:
        """The stage as a nest of tuples, in the order ``_native`` reads."""
        return (
            "native", _ints(self.symbols), _ints(self.dims), _ints(self.reads),
            _ints(self.writes), tuple(_ints(dims) for dims in self.write_dims),
            _ints(self.buffers), _ints(self.placed), self.num_steps, _ints(self.steps),
            _ints(self.scratch), _ints(self.checks), tuple(self.reasons),
        )  # fmt: skip


class InterpretedStage:
    """Nodes for the reference evaluator: a span of the source section, slots in and out."""

    __slots__ = ("label", "length", "offset", "reads", "writes")

    def __init__(self, label: str, span: tuple[int, int]) -> None:
        self.label = label
        self.offset, self.length = span
        self.reads: Sequence[int] = ()
        self.writes: Sequence[int] = ()

    def fields(self) -> tuple[object, ...]:
        """The stage as a nest of tuples."""
        reads, writes = _ints(self.reads), _ints(self.writes)
        return ("interpreted", self.label, self.offset, self.length, reads, writes)


class Program:
    """The whole plan section.

    ``dims`` is a dims table over all symbols, for the shapes of slots. ``inputs`` and ``outputs``
    index ``slots``. ``kernels`` names every function of the image, ``kernel_offsets`` says where.
    """

    __slots__ = (
        "dims", "inputs", "kernel_offsets", "kernels", "metadata", "outputs", "slots", "stages",
        "symbols",
    )  # fmt: skip

    def __init__(self) -> None:
        self.symbols: Sequence[str] = ()
        self.dims: Sequence[int] = ()
        self.slots: Sequence[Slot] = ()
        self.inputs: Sequence[int] = ()
        self.outputs: Sequence[int] = ()
        self.kernels: Sequence[str] = ()
        self.kernel_offsets: Sequence[int] = ()
        self.stages: Sequence[NativeStage | InterpretedStage] = ()
        self.metadata: dict[str, str] = {}


def encode(program: Program) -> bytes:
    """The program as bytes; the same program always gives the same bytes."""
    slots = tuple(
        (slot.name, slot.dtype, slot.dims is not None, _ints(slot.dims or ()), tuple(slot.labels))
        for slot in program.slots
    )
    nest = (
        FORMAT, tuple(program.symbols), _ints(program.dims), slots, _ints(program.inputs),
        _ints(program.outputs), tuple(program.kernels), _ints(program.kernel_offsets),
        tuple(stage.fields() for stage in program.stages),
        tuple((key, program.metadata[key]) for key in sorted(program.metadata)),
    )  # fmt: skip
    parts: list[bytes] = []
    _write(nest, parts)
    return b"".join(parts)


def decode(data: bytes | memoryview) -> Program:
    """The program that these bytes hold; ExecutableError when they hold none."""
    try:
        nest, end = _read(memoryview(data), 0)
        if end != len(data) or nest[0] != FORMAT:
            raise ValueError(f"format {nest[0]!r}, {len(data) - end} bytes left over")
        return _program(nest)
    except (ValueError, IndexError, TypeError, struct.error, UnicodeDecodeError) as error:
        raise errors.ExecutableError(
            f"plan section: expected a program of format {FORMAT}, found damage ({error}); "
            "build the executable again"
        ) from None


def _program(nest: tuple) -> Program:  # type: ignore[type-arg]
    program = Program()
    program.symbols, program.dims = nest[1], nest[2]
    program.slots = [
        Slot(name, dtype, dims if known else None, labels)
        for name, dtype, known, dims, labels in nest[3]
    ]
    program.inputs, program.outputs, program.kernels = nest[4], nest[5], nest[6]
    program.kernel_offsets = nest[7]
    program.stages = [_stage(fields) for fields in nest[8]]
    program.metadata = dict(nest[9])
    return program


def _stage(fields: tuple) -> NativeStage | InterpretedStage:  # type: ignore[type-arg]
    if fields[0] == "interpreted":
        stage = InterpretedStage(fields[1], (fields[2], fields[3]))
        stage.reads, stage.writes = fields[4], fields[5]
        return stage
    native = NativeStage()
    (
        _, native.symbols, native.dims, native.reads, native.writes, native.write_dims,
        native.buffers, native.placed, native.num_steps, native.steps, native.scratch,
        native.checks, native.reasons,
    ) = fields  # fmt: skip
    return native


class _Ints:
    """Numbers to be written as one run of words."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values


def _ints(values: Sequence[int]) -> _Ints:
    return _Ints(values)


def _write(item: object, parts: list[bytes]) -> None:
    if isinstance(item, tuple):
        parts.append(struct.pack("<cI", b"T", len(item)))
        for part in item:
            _write(part, parts)
    elif isinstance(item, _Ints):
        count = len(item.values)
        parts.append(struct.pack(f"<cI{count}q", b"Q", count, *item.values))
    elif isinstance(item, str):
        data = item.encode()
        parts.append(struct.pack("<cI", b"S", len(data)) + data)
    else:
        assert isinstance(item, int), f"a program holds no {type(item).__name__}"
        parts.append(struct.pack("<cq", b"I", item))


def _read(data: memoryview, at: int) -> tuple:  # type: ignore[type-arg]
    kind = data[at : at + 1].tobytes()
    if kind == b"I":
        return struct.unpack_from("<q", data, at + 1)[0], at + 9
    (length,) = struct.unpack_from("<I", data, at + 1)
    at += 5
    if length > len(data) - at:
        raise ValueError(f"length {length} at byte {at} passes the end")
    if kind == b"Q":
        return data[at : at + 8 * length].cast("q"), at + 8 * length
    if kind == b"S":
        return data[at : at + length].tobytes().decode(), at + length
    if kind != b"T":
        raise ValueError(f"unknown tag {kind!r} at byte {at - 5}")
    items = []
    for _ in range(length):
        item, at = _read(data, at)
        items.append(item)
    return tuple(items), at


def is_known(dims: Sequence[int], row: int, symbols: Sequence[int | None]) -> bool:
    """Whether every symbol that the row's value depends on has a value itself."""
    operation, a, b = dims[3 * row : 3 * row + 3]
    if operation == CONST:
        return True
    if operation == SYMBOL:
        return symbols[a] is not None
    return is_known(dims, a, symbols) and is_known(dims, b, symbols)


def evaluate(dims: Sequence[int], symbols: Sequence[int]) -> list[int]:
    """Every row of a dims table under these symbol values, in order."""
    values: list[int] = []
    append = values.append
    for at in range(0, len(dims), 3):
        operation, a, b = dims[at : at + 3]
        if operation == CONST:
            append(a)
        elif operation == MUL:
            append(values[a] * values[b])
        elif operation == ADD:
            append(values[a] + values[b])
        elif operation == SYMBOL:
            append(symbols[a])
        elif operation == FLOORDIV:
            append(values[a] // values[b] if values[b] else 0)
        elif operation == MIN:
            append(min(values[a], values[b]))
        elif operation == MAX:
            append(max(values[a], values[b]))
        elif operation == WIDE:
            append(0 if values[a] == 1 else values[b])
        else:
            raise errors.ExecutableError(f"plan section: unknown dims operation {operation}")
    return values
