"""What the supervisor and a worker tell each other: JSON objects, one in each packet of a socket.

``do`` is an order to a worker, answered by ``done`` with the same id; ``ask`` is a worker's wish
for a change of all workers, answered by ``answer``; ``say`` needs no answer.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from castiron import errors

MAX_BYTES = 1 << 16
Message = dict[str, Any]

_KINDS: dict[str, type[errors.CastironError]] = {
    kind.__name__: kind
    for kind in (errors.InputError, errors.ModelNotFound, errors.ModelNotReady,
                 errors.ResourceError)
}  # fmt: skip
_MAX_TEXT = 4000


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends; the end of one is told to the other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message) -> bool:
    """Send it, whole; False when nobody is there or nobody has read for long."""
    try:
        end.send(json.dumps(message).encode())
    except OSError:
        return False
    return True


def receive(end: socket.socket) -> Message | None:
    """The next one; None at the end. Raises BlockingIOError when there is none yet."""
    try:
        packet = end.recv(MAX_BYTES)
    except BlockingIOError:
        raise
    except OSError:
        return None
    found: Message | None = json.loads(packet) if packet else None
    return found


def fault_of(error: BaseException) -> Message:
    """An error as a part of a message."""
    kind = next((each for each in type(error).__mro__ if each.__name__ in _KINDS), None)
    return {"kind": kind.__name__ if kind else "", "text": str(error)[:_MAX_TEXT]}


def error_of(fault: Message) -> errors.CastironError:
    """What ``fault_of`` was given, as far as callers tell errors apart."""
    made = _KINDS.get(fault["kind"], errors.CastironError)
    return made(fault["text"])
