"""The process that runs steps, for ``crew.py``: one message, one answer, until the socket closes.

    python -m castiron.server.steps.worker SOCKET,IN,OUT MEMORY_BYTES

It learns contracts by number, so that labels and tokenizers are read once. What a message holds
is ``message.py``. Every fault of a step is an answer; only the system can end this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from castiron import errors
from castiron.contract import document
from castiron.runtime import interpreted, region
from castiron.server.steps import faults, folder, inward, message, outward, pipeline

_PR_SET_PDEATHSIG = 1


class Known:
    """One contract that was learnt: its two sides, and the user's functions instead of them."""

    __slots__ = ("inward", "outward", "pipeline")

    def __init__(self, head: dict[str, Any]) -> None:
        contract = document.parse(head["contract"])
        found = folder.Folder(Path(head["folder"]), head["metadata"])
        own = None
        if contract.pipeline is not None:
            own = pipeline.Pipeline(found.file(contract.pipeline.file), contract)
        self.pipeline = own
        self.inward = inward.Inward(contract, found)
        self.outward = None
        if own is None or own.after is None:
            self.outward = outward.Outward(contract, found)

    def described(self) -> dict[str, Any]:
        """Which sides the user's own code does."""
        own = self.pipeline
        return {
            "has_before": own is not None and own.before is not None,
            "has_after": own is not None and own.after is not None,
        }

    def before(self, values: dict[str, Any]) -> inward.Made:
        """Values to tensors."""
        if self.pipeline is None or self.pipeline.before is None:
            return self.inward.run(values)
        self.inward.check(values)
        return inward.Made(self.pipeline.tensors(values))

    def after(self, tensors: message.Arrays, place: Any) -> Any:
        """Tensors to values."""
        if self.outward is None:
            assert self.pipeline is not None
            return self.pipeline.values(tensors)
        return self.outward.run(tensors, message.place_from(place))


class Worker:
    """What this process knows and where its messages lie."""

    __slots__ = ("_inbox", "_known", "_outbox")

    def __init__(self, inbox: region.Region, outbox: region.Region) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._known: dict[int, Known] = {}

    def answer(self, used: int) -> int:
        """Do what the message in the inbox asks; the bytes of the answer in the outbox."""
        try:
            return self._act(*message.read(self._inbox, used))
        except MemoryError:
            fault = faults.TooLargeError("the value needs more memory than there is for it")
            return message.write(self._outbox, message.described(fault), {}, {})
        except ModuleNotFoundError as absent:
            text = f"these steps need the package {absent.name}: install castiron[steps]"
            return self._failed(errors.CastironError(text))
        except Exception as fault:  # noqa: BLE001  every fault is an answer
            return self._failed(fault)

    def _failed(self, fault: Exception) -> int:
        return message.write(self._outbox, message.described(fault), {}, {})

    def _act(
        self, head: dict[str, Any], raw: dict[str, memoryview], tensors: dict[str, np.ndarray]
    ) -> int:
        for key in head.get("forget", ()):
            self._known.pop(key, None)
        if head["act"] == "learn":
            self._known[head["key"]] = Known(head)
            return message.write(self._outbox, {}, {}, {})
        known = self._known[head["key"]]
        if head["act"] == "describe":
            return message.write(self._outbox, known.described(), {}, {})
        if head["act"] == "before":
            values = head["values"] | {name: bytes(data) for name, data in raw.items()}
            made = known.before(values)
            shown = {"place": message.place_to(made.place)}
            return message.write(self._outbox, shown, {}, made.tensors)
        return self._reply(known.after(tensors, head["place"]))

    def _reply(self, values: Any) -> int:
        try:
            text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        except (orjson.JSONEncodeError, RecursionError) as fault:
            raise faults.PipelineError(f"after: expected what JSON can hold: {fault}") from None
        return message.write(self._outbox, {}, {"reply": text}, {})


def main(fds: str, memory_bytes: int) -> None:
    """Answer until the other side closes."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the server drains, then closes the socket
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _bound(memory_bytes)
    socket_fd, inbox_fd, outbox_fd = map(int, fds.split(","))
    worker = Worker(region.Region(inbox_fd), region.Region(outbox_fd))
    with socket.socket(fileno=socket_fd) as channel:
        channel.send(interpreted.MESSAGE.pack(interpreted.READY, 0))
        while received := channel.recv(interpreted.MESSAGE.size):
            _, used = interpreted.MESSAGE.unpack(received)
            try:
                channel.send(interpreted.MESSAGE.pack(interpreted.DONE, worker.answer(used)))
            except (BrokenPipeError, ConnectionResetError):
                return


def _bound(memory_bytes: int) -> None:
    """Private memory, and files, which shared memory counts as; no core files."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
