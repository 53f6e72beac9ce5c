"""Asks a server of the Open Inference Protocol, version 2, over HTTP; standard library only.

Written beside the typed class of each model by ``castiron contract export``, and imports nothing
of castiron. A Tensor holds the bytes that travel, so that no value changes on the way; numpy is
used only by the two methods that are named after it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    import numpy as np

    Value = bool | int | float | str | bytes

# What struct calls the elements of each datatype; BF16 and BYTES are done by hand.
_CODES = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B",
    "UINT16": "H", "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_NUMPY = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "uint16",
}  # fmt: skip
DATATYPES = (*_CODES, "BF16", "BYTES")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LENGTH = "Inference-Header-Content-Length"


class InferenceError(Exception):
    """Any failure of a call."""


class ConnectionBroken(InferenceError):
    """The server could not be reached, or the connection broke."""


class TimedOut(InferenceError):
    """No answer in the time allowed, as this client or the server saw it."""


class ProtocolBroken(InferenceError):
    """The answer is not what the protocol, or the model's contract, says."""


class ServerRefused(InferenceError):
    """The server refused; ``status`` is the code of HTTP, ``path`` the place of the fault."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        first, colon, _ = message.partition(": ")
        self.path = first if colon and " " not in first else ""


class RequestWrong(ServerRefused):
    """The request itself is wrong; another try would be refused as well."""


class NotFound(RequestWrong):
    """No such model or version."""


class Denied(RequestWrong):
    """The server wants a token, or the one that was sent does not allow this call."""


class Unavailable(ServerRefused):
    """The server is busy or not ready.

    ``retry_after_s`` says when to try again, None that it would not help; ``reason`` is one word
    for programs, empty when the server gives none.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None, reason: str) -> None:
        super().__init__(status, message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class Tensor(NamedTuple):
    """One tensor as it travels: ``raw`` is little-endian, row-major; BYTES with lengths."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def of(cls, datatype: str, shape: Sequence[int], values: Iterable[Value]) -> Tensor:
        """From plain values in row-major order. ValueError when they do not fit."""
        listed = list(values)
        if len(listed) != math.prod(shape):
            raise ValueError(
                f"expected {math.prod(shape)} values for shape {list(shape)}, found {len(listed)}"
            )
        try:
            return cls(datatype, tuple(shape), _packed(datatype, listed))
        except (struct.error, OverflowError, TypeError) as fault:
            raise ValueError(f"a value is no {datatype}: {fault}") from None

    def values(self) -> list[Any]:
        """Plain values in row-major order; BYTES are bytes."""
        if self.datatype == "BYTES":
            return _unpacked_strings(self.raw, math.prod(self.shape))
        if self.datatype == "BF16":
            wide = (bits << 16 for bits in struct.unpack(f"<{len(self.raw) // 2}H", self.raw))
            return [struct.unpack("<f", struct.pack("<I", bits))[0] for bits in wide]
        code = _CODES[self.datatype]
        return list(struct.unpack(f"<{len(self.raw) // struct.calcsize(code)}{code}", self.raw))

    @classmethod
    def from_numpy(cls, given: np.ndarray, datatype: str = "") -> Tensor:
        """From a numpy array. uint16 bit patterns, or ml_dtypes.bfloat16, make BF16."""
        import numpy as np

        names = {name: oip for oip, name in _NUMPY.items() if oip != "BF16"}
        names |= {"bfloat16": "BF16", "object": "BYTES"}
        chosen = datatype or names.get(given.dtype.name) or "BYTES"
        if chosen == "BYTES":
            return cls.of(chosen, given.shape, given.reshape(-1).tolist())
        kind = np.dtype(_NUMPY[chosen])
        whole = np.ascontiguousarray(given)
        if whole.dtype.name == "bfloat16":
            whole = whole.view(kind)
        if whole.dtype != kind:
            raise ValueError(f"expected an array of {kind} for {chosen}, found {given.dtype}")
        return cls(chosen, given.shape, whole.astype(kind.newbyteorder("<"), copy=False).tobytes())

    def numpy(self) -> np.ndarray:
        """As a numpy array; BF16 as uint16 bit patterns, BYTES as objects."""
        import numpy as np

        if self.datatype == "BYTES":
            found = np.empty(math.prod(self.shape), object)
            found[:] = self.values()
        else:
            kind = np.dtype(_NUMPY[self.datatype]).newbyteorder("<")
            found = np.frombuffer(self.raw, kind)
        return found.reshape(self.shape)


class Reply(NamedTuple):
    """What a model answered."""

    model: str
    version: str
    id: str
    digest: str
    outputs: dict[str, Tensor]

    def promised(self, name: str, datatype: str) -> Tensor:
        """An output that the model's contract promises. ProtocolBroken when it is another."""
        found = self.outputs.get(name)
        if found is None or found.datatype != datatype:
            kind = found.datatype if found else "nothing"
            raise ProtocolBroken(f"output {name}: expected {datatype}, found {kind}")
        return found


class Options(NamedTuple):
    """How one request is made."""

    version: str = ""
    """A version's number; empty: the highest one that is ready."""
    timeout_s: float | None = None
    """None: the client's."""
    id: str = ""
    """Given back in the reply."""
    is_binary: bool = True
    """How tensors travel. JSON holds no NaN payloads and no bytes that are not UTF-8."""
    parameters: Mapping[str, Any] = {}
    """Further parameters of the protocol."""


class Client:
    """A server. Connections are kept and used again, also by several threads."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"expected an address such as http://host:8000, found {url!r}")
        self._parts = parts
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def is_ready(self) -> bool:
        """Whether the server wants requests."""
        return self._ask("GET", "/v2/health/ready").status == 200

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Whether a model, or one version of it, would answer."""
        return self._ask("GET", f"{_model_path(model, version)}/ready").status == 200

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """What the server says about a model."""
        return _succeeded(self._ask("GET", _model_path(model, version)))[0]

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Tensor],
        wanted: Sequence[str] = (),
        options: Options | None = None,
    ) -> Reply:
        """Run a model. ``wanted`` names the outputs to send; none: all of them."""
        how = options or Options()
        timeout_s = self._timeout_s if how.timeout_s is None else how.timeout_s
        head, raw = _request(inputs, wanted, how, timeout_s)
        headers = {"Content-Type": "application/json"}
        if how.is_binary:
            headers = {"Content-Type": "application/octet-stream", _LENGTH: str(len(head))}
        path = f"{_model_path(model, how.version)}/infer"
        return _reply(self._ask("POST", path, b"".join([head, *raw]), headers, timeout_s))

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        target = self._parts.path.rstrip("/") + path
        end_s = time.monotonic() + allowed_s
        while True:
            connection, is_used = self._connection(max(end_s - time.monotonic(), 0.001))
            try:
                connection.request(method, target, body, {**self._headers, **(headers or {})})
                answer = _answer(connection, end_s)
            except TimeoutError as fault:
                connection.close()
                raise TimedOut(f"no answer within {allowed_s} s") from fault
            except (OSError, http.client.HTTPException) as fault:
                connection.close()
                # A kept connection may have been closed meanwhile, before the request came.
                if is_used and isinstance(fault, ConnectionError):
                    continue
                raise ConnectionBroken(f"{self._parts.netloc}: {fault}") from fault
            if not answer.closes:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        try:
            kept = self._idle.pop()
        except IndexError:
            is_plain = self._parts.scheme == "http"
            kind = http.client.HTTPConnection if is_plain else http.client.HTTPSConnection
            assert self._parts.hostname is not None
            return kind(self._parts.hostname, self._parts.port, timeout=timeout_s), False
        kept.timeout = timeout_s
        if kept.sock is not None:
            kept.sock.settimeout(timeout_s)
        return kept, True


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes
    closes: bool


def _answer(connection: http.client.HTTPConnection, end_s: float) -> _Answer:
    """Read it; the time allowed is for all of it, not for each piece."""
    response = connection.getresponse()
    parts: list[bytes] = []
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        part = response.read1(1 << 20)
        if not part:
            break
        parts.append(part)
    if response.length:
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    closes = response.will_close or connection.sock is None
    response.close()  # after reading by pieces it does not know that it is at its end
    return _Answer(response.status, response.headers, b"".join(parts), closes)


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _request(
    inputs: Mapping[str, Tensor], wanted: Sequence[str], how: Options, timeout_s: float
) -> tuple[bytes, list[bytes]]:
    listed: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, given in inputs.items():
        item: dict[str, Any] = {
            "name": name,
            "datatype": given.datatype,
            "shape": list(given.shape),
        }
        if how.is_binary:
            item["parameters"] = {"binary_data_size": len(given.raw)}
            raw.append(given.raw)
        else:
            item["data"] = _json_values(given)
        listed.append(item)
    parameters = {
        "timeout": max(1, round(timeout_s * 1e6)),
        "binary_data_output": how.is_binary,
        **how.parameters,
    }
    head: dict[str, Any] = {"inputs": listed, "parameters": parameters}
    if wanted:
        head["outputs"] = [{"name": name} for name in wanted]
    if how.id:
        head["id"] = how.id
    return json.dumps(head, allow_nan=False, separators=(",", ":")).encode(), raw


def _succeeded(answer: _Answer) -> tuple[dict[str, Any], bytes]:
    """The JSON and what follows it."""
    if answer.status != 200:
        raise _refusal(answer)
    length = int(answer.headers.get(_LENGTH) or len(answer.body))
    try:
        head = json.loads(answer.body[:length])
    except ValueError as fault:
        raise ProtocolBroken(f"expected JSON: {fault}") from None
    if not isinstance(head, dict):
        raise ProtocolBroken("expected a JSON object")
    return head, answer.body[length:]


def _refusal(answer: _Answer) -> InferenceError:
    message = answer.body[:200].decode("utf-8", "replace")
    # What stands between us and the server may answer in its own words.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        message = str(json.loads(answer.body)["error"])
    status = answer.status
    if status in {408, 504}:
        return TimedOut(message)
    if status in {401, 403}:
        return Denied(status, message)
    if status == 404:
        return NotFound(status, message)
    if status in {429, 503}:
        seconds = answer.headers.get("Retry-After", "")
        wait_s = float(seconds) if seconds.isdecimal() else None
        return Unavailable(status, message, wait_s, answer.headers.get("X-Refusal-Reason", ""))
    return ServerRefused(status, message) if status >= 500 else RequestWrong(status, message)


def _reply(answer: _Answer) -> Reply:
    head, raw = _succeeded(answer)
    outputs: dict[str, Tensor] = {}
    try:
        for item in head["outputs"]:
            datatype, shape = str(item["datatype"]), tuple(map(int, item["shape"]))
            size = item.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[item["name"]] = Tensor.of(datatype, shape, _plain(datatype, item["data"]))
            else:
                outputs[item["name"]] = Tensor(datatype, shape, _checked(raw[:size], size))
                raw = raw[size:]
        digest = answer.headers.get("X-Model-Version") or ""
        names = str(head["model_name"]), str(head["model_version"])
        return Reply(*names, str(head.get("id", "")), digest, outputs)
    except (KeyError, TypeError, ValueError) as fault:
        raise ProtocolBroken(f"the reply is not of the protocol: {fault}") from None


def _plain(datatype: str, data: list[Any]) -> list[Any]:
    is_float = datatype.startswith(("FP", "BF"))
    return [_SPECIAL.get(value, value) for value in data] if is_float else data


def _checked(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise ValueError("binary tensors are cut off")
    return raw


def _json_values(given: Tensor) -> list[Any]:
    found = given.values()
    if given.datatype == "BYTES":
        try:
            return [item.decode() for item in found]
        except UnicodeDecodeError:
            raise ValueError("BYTES that are not UTF-8 do not fit into JSON") from None
    return [item if math.isfinite(item) else _word(item) for item in found]


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        strings = [item if isinstance(item, bytes) else item.encode() for item in values]
        return b"".join(struct.pack("<I", len(item)) + item for item in strings)
    if datatype == "BF16":
        return struct.pack(f"<{len(values)}H", *map(_bfloat16, values))
    if datatype not in _CODES:
        raise ValueError(f"unknown datatype {datatype}; known are {', '.join(DATATYPES)}")
    wanted: tuple[type, ...] = (float, int) if datatype.startswith("FP") else (int,)
    wanted = (bool,) if datatype == "BOOL" else wanted
    if wrong := set(map(type, values)) - set(wanted):
        raise TypeError(f"found {wrong.pop().__name__}")
    return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)


def _bfloat16(value: float) -> int:
    """The bits of the nearest BF16, ties to even; straight from the double, rounded once."""
    if type(value) not in {float, int}:
        raise TypeError(f"found {type(value).__name__}")
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return 0x7FC0
    size = abs(float(value))
    if math.isinf(size):
        return sign | 0x7F80
    exponent = max(math.frexp(size)[1] - 1, -126) if size else -126
    bits = round(math.ldexp(size, 7 - exponent)) + ((exponent + 126) << 7)
    if bits >= 0x7F80:
        raise OverflowError(f"{value} is beyond BF16")
    return sign | bits


def _unpacked_strings(raw: bytes, count: int) -> list[bytes]:
    found: list[bytes] = []
    place = 0
    while len(found) < count:
        end = place + 4 + int.from_bytes(raw[place : place + 4], "little")
        if place + 4 > len(raw) or end > len(raw):
            raise ValueError(f"string {len(found)} is cut off")
        found.append(raw[place + 4 : end])
        place = end
    if place != len(raw):
        raise ValueError("bytes are left after the last string")
    return found
