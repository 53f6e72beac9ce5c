"""One kind of small binary request, run in memory of its own: bytes in, the run, bytes out.

Requests with one head have the same shapes, so nothing is looked up, made or described for each:
tensors are copied to where the run reads them, and the answer's head is the one of the first.
For the event loop only, which ends one run before it begins the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from castiron.server import reply, rows
from castiron.server.http import exchange
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

if TYPE_CHECKING:
    from castiron.registry import supply
    from castiron.registry import version as versions
    from castiron.runtime import bound
    from castiron.server import inference, template

# Their bytes have to be looked at, or have no fixed number.
_LOOKED_AT = frozenset((dtypes.BOOL, dtypes.STRING))


class Fixed:
    """The run of one template; ``outputs`` are views of what the last run gave."""

    __slots__ = ("_answer", "_inputs", "_lines", "_run", "num_rows", "outputs")

    def __init__(
        self, own: bound.BoundRun, places: tuple[template.Place, ...], outputs: rows.Arrays
    ) -> None:
        self._run = own.run
        self._inputs = [(own.inputs[each.name], each.begin, each.end) for each in places]
        self.outputs = outputs
        self.num_rows = 1
        self._lines = b""
        self._answer: list[exchange.Bytes] = []

    def run(self, raw: memoryview) -> rows.Arrays:
        """Outputs for the tensors in these bytes, valid until the next run."""
        for memory, begin, end in self._inputs:
            memory[:] = raw[begin:end]
        self._run()
        return self.outputs

    def describe(
        self,
        asked: inference.Inference,
        interface: inference.Interface,
        version: versions.Version,
    ) -> None:
        """Make the head of all answers."""
        head, raw = reply.described(self.outputs, asked, interface, version)
        text = reply.encoded(head)
        self._answer = [text, *raw]
        self._lines = exchange.written(reply.joined(text, raw, version.digest).headers)

    @property
    def answer(self) -> reply.Reply:
        """The answer with the outputs of the last run."""
        return reply.Reply([], [b"".join(self._answer)], self._lines)


def of(
    instance: supply.Instance, interface: inference.Interface, known: template.Template
) -> Fixed | None:
    """The run of a template, None when it needs the long way. Raises InputError."""
    is_plain = all(known.wanted.values()) and _LOOKED_AT.isdisjoint(
        [each.dtype for each in known.places]
    )
    own = instance.bind({each.name: each.shape for each in known.places}) if is_plain else None
    if own is None:
        return None
    outputs = {name: _view(own, name, interface.outputs) for name in known.wanted}
    return Fixed(own, known.places, outputs)


def _view(own: bound.BoundRun, name: str, known: Mapping[str, dtypes.DType]) -> np.ndarray:
    flat = np.frombuffer(own.outputs[name], elements.numpy_dtype(known[name]))
    return flat.reshape(own.output_shapes[name])
