"""An executable mapped onto this machine, ready to run.

``run`` checks the inputs, binds the symbols, rents an arena and makes one native call for each
native stage; interpreted stages go to an interpreter that is handed in. ``start`` does the same
on a lane and tells the event loop when it is done. Runs share code and weights; each rents its
own arena, so any number may be under way. ``bind`` makes a run with memory of its own for shapes
that come again and again (``bound.py``).
"""

from __future__ import annotations

import ctypes

from castiron import errors
from castiron.executable import abi, program
from castiron.runtime import binding as bindings
from castiron.runtime import bound, views
from castiron.runtime.binding import Binding, BindingCache
from castiron.runtime.bound import BoundRun
from castiron.runtime.call import Call
from castiron.tensor import dtype as dtypes
from castiron.tensor.signature import Signature, TensorSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    from castiron.executable.reader import ExecutableFile
    from castiron.runtime.lane import Lane
    from castiron.runtime.pool import Pool
    from castiron.runtime.team import Team

    class Interpreter(Protocol):
        """Runs the nodes of one interpreted stage."""

        def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
            """Outputs by name for inputs by name, as numpy arrays."""

    Done = Callable[[dict[str, Any] | None, Exception | None], None]

_RUN = "castiron_run"
_WORD = ctypes.c_int64
_MOST_LEARNED = 256


class Device:
    """What the instances of one process share: the pool of memory and the team of threads.

    ``team`` is called with an image's functions at the first load, since threads live in
    generated code; None keeps every run on its caller's thread.
    """

    __slots__ = ("pool", "team", "threads")

    def __init__(
        self, pool: Pool, threads: int, team: Callable[[Mapping[str, int], int], Team] | None
    ) -> None:
        self.pool = pool
        self.threads = threads
        self.team = team


class Instance:
    """A loaded executable. ``signature``, ``metadata`` and ``digest`` describe it."""

    def __init__(
        self,
        file: ExecutableFile,
        device: Device,
        interpreter: Callable[[bytes], Interpreter],
    ) -> None:
        self.path = file.path
        self._file = file
        self._device = device
        self._program = program.decode(file.plan)
        self.metadata = self._program.metadata
        self.signature = signature_of(self._program)
        self.is_native = all(isinstance(s, program.NativeStage) for s in self._program.stages)
        base, self._weights = file.map_code(), file.map_weights()
        self._kernels = [base + offset for offset in self._program.kernel_offsets]
        self.code = dict(zip(self._program.kernels, self._kernels, strict=True))
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.code[_RUN])
        team = device.team(self.code, device.threads) if device.team else None
        self._team = team.address if team else 0
        self._threads = team.threads if team else 1
        self._caches = [BindingCache() for _ in self._program.stages]
        self.crash_address = 0  # where runs say which step they are in; 0: they do not
        self._learned: dict[tuple[tuple[int, ...], ...], list[int | None]] = {}
        self._interpreters = self._make_interpreters(interpreter)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's header, in hex: it covers the digest of every part."""
        return self._file.digest

    def close(self) -> None:
        """Close the file. Mapped code stays mapped: threads may still be inside it."""
        self._file.close()

    def unmap(self) -> None:
        """Close, and give code and weights back. Nothing of it may run any more.

        The threads of a process live in the image they were started from: never unmap that one.
        """
        self.close()
        self._file.unmap()

    @property
    def held_bytes(self) -> int:
        """Bytes of code and weights, and of the largest arena that a run has needed so far."""
        parts = self._file.header.parts
        arenas = [cache.largest_bytes(self._threads) for cache in self._caches]
        return parts["image"].size + parts["weights"].size + max(arenas, default=0)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name for inputs by name.

        Inputs are numpy arrays or buffers of the signature's dtype and shape; outputs are numpy
        arrays when numpy is loaded, memoryviews otherwise. Raises InputError.
        """
        symbols, slots = self._accept(inputs)
        for position, stage in enumerate(self._program.stages):
            if isinstance(stage, program.InterpretedStage):
                self._interpret(position, stage, (symbols, slots))
                continue
            call = self._prepare(position, stage, (symbols, slots))
            self._run(call.context_address)
            self._finish(stage, call, slots)
        return self._outputs(slots)

    def start(self, inputs: Mapping[str, Any], lane: Lane, on_done: Done) -> Callable[[], None]:
        """Begin a run on a lane; later ``on_done(outputs, error)`` is called on its loop.

        Only for native models. Raises InputError at once when the inputs do not fit. What is
        returned may be called until then: the run is stopped before its next step, and ends
        with ModelNotReady unless that came too late.
        """
        if not self.is_native or len(self._program.stages) != 1:
            raise errors.ModelNotReady(
                f"{self.path}: has interpreted steps, which cannot run on a lane; "
                "run it in a helper process"
            )
        symbols, slots = self._accept(inputs)
        stage = self._program.stages[0]
        assert isinstance(stage, program.NativeStage)
        call = self._prepare(0, stage, (symbols, slots))

        def finish() -> None:
            is_stopped = not call.context[abi.CTX_NUM_STEPS] and call.binding.num_steps
            call.context[abi.CTX_NUM_STEPS] = call.binding.num_steps
            self._finish(stage, call, slots)
            if is_stopped:
                on_done(None, errors.ModelNotReady("the run was stopped"))
            else:
                on_done(self._outputs(slots), None)

        try:
            lane.submit(call.context_address, finish)
        except BaseException:
            self._finish(stage, call, slots)
            raise
        return call.stop

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> BoundRun | None:
        """A run with memory of its own, for inputs of these shapes by name.

        None where there can be none: the model has interpreted steps or strings, or its inputs
        and outputs take more than ``bound.MOST_BYTES``. Raises InputError, as ``run`` would for
        inputs of such shapes.
        """
        stage = self._program.stages[0]
        if isinstance(stage, program.InterpretedStage) or len(self._program.stages) != 1:
            return None
        given = self._check_shapes(shapes)
        symbols = self._learn(given)
        kinds = bound.kinds_of(self._program, self._program.inputs, given)
        if not bound.is_small(kinds):
            return None
        binding = self._bind(0, stage, symbols)
        kinds += bound.kinds_of(self._program, stage.writes, binding.write_shapes)
        if not bound.is_small(kinds):
            return None
        call = self._new_call(stage, binding)
        return BoundRun(self._run, call, self._device.pool, self._program, given)

    def profile(self, inputs: Mapping[str, Any]) -> list[list[int]]:
        """Run once and give the clock ticks of every step, by stage (empty if interpreted)."""
        symbols, slots = self._accept(inputs)
        ticks: list[list[int]] = []
        for position, stage in enumerate(self._program.stages):
            if isinstance(stage, program.InterpretedStage):
                self._interpret(position, stage, (symbols, slots))
                ticks.append([])
                continue
            call = self._prepare(position, stage, (symbols, slots))
            times = (_WORD * max(stage.num_steps, 1))()
            call.context[abi.CTX_TIMES] = ctypes.addressof(times)
            self._run(call.context_address)
            call.context[abi.CTX_TIMES] = 0
            self._finish(stage, call, slots)
            ticks.append(list(times[: stage.num_steps]))
        return ticks

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The value of every symbol that these inputs decide."""
        values, _ = self._accept(inputs)
        names = self._program.symbols
        return {n: v for n, v in zip(names, values, strict=True) if v is not None}

    def arena_bytes(self, inputs: Mapping[str, Any]) -> int:
        """Bytes of arena and scratch that the largest native stage needs for these inputs."""
        symbols, _ = self._accept(inputs)
        largest = 0
        for position, stage in enumerate(self._program.stages):
            if isinstance(stage, program.NativeStage):
                binding = self._bind(position, stage, symbols)
                needed = binding.arena_bytes + binding.scratch_bytes * self._threads
                largest = max(largest, needed)
        return largest

    def _make_interpreters(self, make: Callable[[bytes], Interpreter]) -> dict[int, Interpreter]:
        source = b"" if self.is_native else self._file.source()
        return {
            position: make(source[stage.offset : stage.offset + stage.length])
            for position, stage in enumerate(self._program.stages)
            if isinstance(stage, program.InterpretedStage)
        }

    def _accept(
        self, inputs: Mapping[str, Any]
    ) -> tuple[list[int | None], list[views.View | None]]:
        """Check every input; the symbols they bind and the slots they fill."""
        specs = self.signature.inputs
        if len(inputs) != len(specs):
            raise _wrong_names(inputs, specs)
        slots: list[views.View | None] = [None] * len(self._program.slots)
        shapes = []
        for slot, spec in zip(self._program.inputs, specs, strict=True):
            if spec.name not in inputs:
                raise _wrong_names(inputs, specs)
            slots[slot] = view = views.of(inputs[spec.name], spec)
            shapes.append(view.shape)
        symbols = self._learned.get(tuple(shapes))
        if symbols is None:
            symbols = self._learn(shapes)
        # Stages with interpreted results learn more symbols in the course of a run.
        return (symbols if self.is_native else list(symbols)), slots

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes in the order of the inputs, each one that an array can have."""
        specs = self.signature.inputs
        if shapes.keys() != {spec.name for spec in specs}:
            raise _wrong_names(shapes, specs)
        given = [tuple(shapes[spec.name]) for spec in specs]
        unknown: list[int | None] = [None] * len(self._program.symbols)
        for slot, shape, spec in zip(self._program.inputs, given, specs, strict=True):
            if not bound.is_shape(shape):
                raise self._wrong_shape(slot, shape, unknown, spec)
        return given

    def _learn(self, shapes: list[tuple[int, ...]]) -> list[int | None]:
        """The symbols that these input shapes decide, remembered for the next time."""
        symbols: list[int | None] = [None] * len(self._program.symbols)
        for slot, shape, spec in zip(
            self._program.inputs, shapes, self.signature.inputs, strict=True
        ):
            self._bind_shape(slot, shape, symbols, spec)
        bindings.make_room(self._learned, _MOST_LEARNED - 1)
        self._learned[tuple(shapes)] = symbols
        return symbols

    def _bind_shape(
        self,
        slot: int,
        shape: tuple[int, ...],
        symbols: list[int | None],
        spec: TensorSpec | None,
    ) -> None:
        """Check a tensor's shape against its slot and learn the symbols it decides."""
        rows = self._program.slots[slot].dims
        if rows is None:
            return
        dims = self._program.dims
        fits = len(rows) == len(shape)
        for row, extent in zip(rows, shape, strict=True) if fits else ():
            operation, value = dims[3 * row], dims[3 * row + 1]
            if operation == program.SYMBOL:
                if symbols[value] is None:
                    symbols[value] = extent
                fits = fits and symbols[value] == extent
            elif operation == program.CONST:
                fits = fits and value == extent
            elif program.is_known(dims, row, symbols):
                # Of an interpreted step, whose result native ones will read as it was foreseen.
                values = program.evaluate(dims, [symbol or 0 for symbol in symbols])
                fits = fits and values[row] == extent
        if not fits:
            raise self._wrong_shape(slot, shape, symbols, spec)

    def _wrong_shape(
        self,
        slot: int,
        shape: tuple[int, ...],
        symbols: list[int | None],
        spec: TensorSpec | None,
    ) -> errors.InputError:
        found = f"found shape {list(shape)}" + _known_symbols(self._program.symbols, symbols)
        if spec is not None:
            return errors.InputError(f"expected {spec}, {found}", f"inputs.{spec.name}")
        # The op was interpreted, and these inputs made it give what the build did not foresee.
        inside = self._program.slots[slot]
        return errors.InputError(
            f"an interpreted step was expected to make {inside.name}: "
            f"{inside.dtype}[{', '.join(inside.labels)}], {found}",
            "inputs",
        )

    def _bind(
        self, position: int, stage: program.NativeStage, symbols: Sequence[int | None]
    ) -> Binding:
        values = tuple(symbols[index] or 0 for index in stage.symbols)
        return self._caches[position].get(stage, values, self._kernels)

    def _prepare(
        self,
        position: int,
        stage: program.NativeStage,
        state: tuple[list[int | None], list[views.View | None]],
    ) -> Call:
        """Rent an arena, make the outputs and fill the context of one native call."""
        symbols, slots = state
        binding = self._bind(position, stage, symbols)
        try:
            call: Call = binding.idle_calls.pop()
        except IndexError:
            call = self._new_call(stage, binding)
        bases = call.bases
        at = abi.REGION_FIRST_INPUT
        call.owners = read = [slots[slot] for slot in stage.reads]
        for view in read:
            bases[at] = view.address  # type: ignore[union-attr]
            at += 1
        call.outputs = []
        for slot, shape in zip(stage.writes, binding.write_shapes, strict=True):
            view = views.empty(self._program.slots[slot].dtype, shape)
            call.outputs.append(view)
            bases[at] = view.address
            at += 1
        # Last, so that nothing is rented if anything above fails.
        if call.rented_bytes:
            call.rent(self._device.pool)
        return call

    def _new_call(self, stage: program.NativeStage, binding: Binding) -> Call:
        num_slots = len(stage.reads) + len(stage.writes)
        call = Call(binding, self._weights, num_slots, self._threads)
        call.context[abi.CTX_TEAM] = self._team
        call.context[abi.CTX_CRASH] = self.crash_address
        return call

    def _finish(
        self, stage: program.NativeStage, call: Call, slots: list[views.View | None]
    ) -> None:
        call.give(self._device.pool)
        for slot, view in zip(stage.writes, call.outputs, strict=True):
            slots[slot] = view
        call.outputs = []
        call.owners = []
        call.binding.idle_calls.append(call)

    def _interpret(
        self,
        position: int,
        stage: program.InterpretedStage,
        state: tuple[list[int | None], list[views.View | None]],
    ) -> None:
        symbols, slots = state
        names = [self._program.slots[slot].name for slot in stage.reads]
        arrays = [slots[slot].owner for slot in stage.reads]  # type: ignore[union-attr]
        results = self._interpreters[position].run(dict(zip(names, arrays, strict=True)))
        for slot in stage.writes:
            name, dtype = self._program.slots[slot].name, self._program.slots[slot].dtype
            slots[slot] = view = views.of_result(results[name], dtype)
            self._bind_shape(slot, view.shape, symbols, None)

    def _outputs(self, slots: Sequence[views.View | None]) -> dict[str, Any]:
        return {
            self._program.slots[slot].name: slots[slot].owner  # type: ignore[union-attr]
            for slot in self._program.outputs
        }


def signature_of(written: program.Program) -> Signature:
    """Names, dtypes and dims of the inputs and outputs of a program."""

    def spec(slot: program.Slot) -> TensorSpec:
        labels = [int(label) if label.isdigit() else label for label in slot.labels]
        return TensorSpec(slot.name, dtypes.named(slot.dtype), tuple(labels))

    return Signature(
        tuple(spec(written.slots[slot]) for slot in written.inputs),
        tuple(spec(written.slots[slot]) for slot in written.outputs),
    )


def _wrong_names(inputs: Mapping[str, Any], specs: Sequence[TensorSpec]) -> errors.InputError:
    expected = ", ".join(map(repr, specs))
    missing = [spec.name for spec in specs if spec.name not in inputs]
    surplus = [name for name in inputs if all(name != spec.name for spec in specs)]
    found = "; ".join(
        part
        for part in (
            f"missing {', '.join(missing)}" if missing else "",
            f"unknown {', '.join(map(str, surplus))}" if surplus else "",
        )
        if part
    )
    return errors.InputError(f"expected inputs {expected}, found: {found}", "inputs")


def _known_symbols(names: Sequence[str], values: Sequence[int | None]) -> str:
    known = [f"{n}={v}" for n, v in zip(names, values, strict=True) if v is not None]
    return f" with {', '.join(known)}" if known else ""
