"""The process that runs an executable with interpreted steps, for ``interpreted.py``.

It answers one message after another and holds no state between runs. It ends when the socket
closes, which also happens when the server dies in whatever way.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from castiron import errors
from castiron.runtime import interpreted, region
from castiron.tensor import signature as signatures

if TYPE_CHECKING:
    Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]


def answer(run: Run, signature: signatures.Signature, fds: str) -> None:
    """Serve runs until the other side closes; ``fds`` is "SOCKET,INPUTS,OUTPUTS"."""
    # The server drains on these signals and ends this process when nothing is in flight.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    socket_fd, inputs_fd, outputs_fd = map(int, fds.split(","))
    inputs, outputs = region.Region(inputs_fd), region.Region(outputs_fd)
    names = {spec.name: spec.dtype.name for spec in signature.outputs}
    with socket.socket(fileno=socket_fd) as channel:
        channel.send(interpreted.MESSAGE.pack(interpreted.READY, 0))
        while message := channel.recv(interpreted.MESSAGE.size):
            _, used = interpreted.MESSAGE.unpack(message)
            kind, used = _run_once(run, names, inputs.read(used), outputs)
            try:
                channel.send(interpreted.MESSAGE.pack(kind, used))
            except (BrokenPipeError, ConnectionResetError):
                return


def _run_once(
    run: Run, names: Mapping[str, str], arrays: dict[str, np.ndarray], outputs: region.Region
) -> tuple[int, int]:
    try:
        return interpreted.DONE, outputs.write(run(arrays), names)
    except Exception as error:  # noqa: BLE001  every fault of a model is an answer
        return interpreted.FAILED, outputs.write(_described(error), dict.fromkeys(_FAULT, "string"))


_FAULT = ("name", "message", "path")


def _described(error: Exception) -> dict[str, np.ndarray]:
    path = error.path if isinstance(error, errors.InputError) else ""
    message = str(error).removeprefix(f"{path}: ") if path else str(error)
    values = (type(error).__name__, message, path)
    return {key: np.array(value, object) for key, value in zip(_FAULT, values, strict=True)}
