"""Asks a server of the Open Inference Protocol, version 2, over HTTP; standard library only.

Written beside the typed class of each model by ``castiron contract export``, and imports nothing
of castiron.
"""

from .application import Box, Label, Shaped, as_text, promised
from .client import Client
from .errors import (
    ConnectionBroken,
    Denied,
    InferenceError,
    NotFound,
    ProtocolBroken,
    RequestWrong,
    ServerRefused,
    TimedOut,
    Unavailable,
)
from .messages import Options, Reply
from .tensor import DATATYPES, Tensor

__all__ = [
    "DATATYPES", "Box", "Client", "ConnectionBroken", "Denied", "InferenceError", "Label",
    "NotFound", "Options", "ProtocolBroken", "Reply", "RequestWrong", "ServerRefused", "Shaped",
    "Tensor", "TimedOut", "Unavailable", "as_text", "promised",
]  # fmt: skip
