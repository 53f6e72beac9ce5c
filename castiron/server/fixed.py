"""One kind of small request, run in memory of its own: values in, the run, the answer out.

Requests of one template have the same shapes, so nothing is looked up, made or described for each:
values are copied to where the run reads them, and the text around the outputs is that of the first
answer. For the event loop only, which ends one run before it begins the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castiron.server import reply, rows, values
from castiron.server.http import exchange
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

if TYPE_CHECKING:
    from castiron.registry import supply
    from castiron.registry import version as versions
    from castiron.runtime import bound
    from castiron.server import inference, template

# Of all kinds of requests of one version together.
_MOST_BYTES = 1 << 20
_EMPTY = b'"data":[]'


class Fixed:
    """The run of one template; ``outputs`` are views of what the last run gave."""

    __slots__ = ("_answer", "_arrays", "_raw", "_run", "num_rows", "outputs", "size_bytes")

    def __init__(
        self,
        own: bound.BoundRun,
        known: template.Template,
        interface: inference.Interface,
        num_rows: int,
    ) -> None:
        self._run = own.run
        self.size_bytes = own.size_bytes
        self._raw = [(own.inputs[each.name], each.begin, each.end) for each in known.places]
        self._arrays = [
            (each.name, _array(own.inputs[each.name], each.dtype, each.shape))
            for each in known.places
        ]
        self.outputs = {
            name: _array(own.outputs[name], interface.outputs[name], own.output_shapes[name])
            for name in known.wanted
        }
        self.num_rows = num_rows
        self._answer: _RawAnswer | _JsonAnswer | None = None

    def run_raw(self, raw: memoryview) -> rows.Arrays:
        """Outputs for the tensors in these bytes, valid until the next run."""
        for memory, begin, end in self._raw:
            memory[:] = raw[begin:end]
        self._run()
        return self.outputs

    def run(self, inputs: rows.Arrays) -> rows.Arrays:
        """Outputs for arrays of the template's shapes, valid until the next run."""
        for name, array in self._arrays:
            np.copyto(array, inputs[name])
        self._run()
        return self.outputs

    def answer(
        self, asked: inference.Inference, interface: inference.Interface, version: versions.Version
    ) -> reply.Reply:
        """The answer with a copy of what the last run gave. Raises as ``reply.described``."""
        own = self._answer
        if own is None:
            head, raw = reply.described(self.outputs, asked, interface, version)
            if raw:
                own = _RawAnswer(reply.encoded(head), raw, version.digest)
            else:
                own = _JsonAnswer(head, self.outputs, interface, version.digest)
            self._answer = own
        return own.reply()


class _RawAnswer:
    """Raw outputs behind a JSON text that is always the same."""

    __slots__ = ("_lines", "_parts")

    def __init__(self, text: bytes, raw: list[exchange.Bytes], digest: str) -> None:
        self._parts = [text, *raw]  # the outputs among them are memory that runs write
        self._lines = exchange.written(reply.joined(text, raw, digest).headers)

    def reply(self) -> reply.Reply:
        return reply.Reply([], [b"".join(self._parts)], self._lines)


class _JsonAnswer:
    """Lists of outputs between pieces of text that are always the same."""

    __slots__ = ("_digest", "_first", "_outputs")

    def __init__(
        self,
        head: dict[str, Any],
        outputs: rows.Arrays,
        interface: inference.Interface,
        digest: str,
    ) -> None:
        emptied = [{**each, "data": []} for each in head["outputs"]]
        # A name may hold these words too, but not the quotes, which JSON escapes.
        self._first, *pieces = reply.encoded({**head, "outputs": emptied}).split(_EMPTY)
        self._outputs = [
            (f"outputs.{name}", array, interface.outputs[name], piece)
            for (name, array), piece in zip(outputs.items(), pieces, strict=True)
        ]
        self._digest = digest

    def reply(self) -> reply.Reply:
        parts = [self._first]
        for path, array, dtype, piece in self._outputs:
            parts += b'"data":', values.json_text(array, dtype, path), piece
        return reply.joined(b"".join(parts), [], self._digest)


class Shelf:
    """The runs that one version's templates have; all are forgotten when they take too much."""

    __slots__ = ("_held_bytes", "_templates")

    def __init__(self) -> None:
        self._templates: list[template.Template] = []
        self._held_bytes = 0

    def put(self, known: template.Template, made: Fixed) -> None:
        """Give the template its run."""
        self._held_bytes += made.size_bytes
        if self._held_bytes > _MOST_BYTES:
            for each in self._templates:
                each.fixed, each.is_tried = None, False
            self._templates.clear()
            self._held_bytes = made.size_bytes
        known.fixed = made
        self._templates.append(known)


def of(
    instance: supply.Instance,
    interface: inference.Interface,
    known: template.Template,
    num_rows: int,
) -> Fixed | None:
    """The run of a template, None when it needs the long way. Raises InputError."""
    are_raw = set(known.wanted.values())
    looks = any(each.dtype is dtypes.BOOL for each in known.places)  # each of its bytes is checked
    if len(are_raw) > 1 or looks:
        return None
    own = instance.bind({each.name: each.shape for each in known.places})
    return None if own is None else Fixed(own, known, interface, num_rows)


def _array(memory: memoryview, dtype: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(memory, elements.numpy_dtype(dtype)).reshape(shape)
