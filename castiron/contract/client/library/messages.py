"""The forms of requests and replies: JSON, and binary tensors after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .errors import InferenceError, ProtocolBroken, failure
from .tensor import Tensor


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


def request(
    inputs: Mapping[str, Tensor], wanted: Sequence[str], how: Options, timeout_s: float
) -> tuple[dict[str, Any], list[bytes]]:
    """A request: its JSON, and the raw tensors that follow it."""
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
            item["data"] = given.to_json()
        listed.append(item)
    parameters = {
        "timeout": microseconds(timeout_s),
        "binary_data_output": how.is_binary,
        **how.parameters,
    }
    head: dict[str, Any] = {"inputs": listed, "parameters": parameters}
    if wanted:
        head["outputs"] = [{"name": name} for name in wanted]
    if how.id:
        head["id"] = how.id
    return head, raw


def encoded(head: Mapping[str, Any]) -> bytes:
    """JSON as it travels. ValueError for numbers that it does not have."""
    return json.dumps(head, allow_nan=False, separators=(",", ":")).encode()


def microseconds(timeout_s: float) -> int:
    """As the protocol counts."""
    return max(1, round(timeout_s * 1e6))


def reply(head: Mapping[str, Any], raw: bytes, digest: str) -> tuple[Reply, bytes]:
    """One reply, and the raw bytes that belong to what follows it. Raises ProtocolBroken."""
    outputs: dict[str, Tensor] = {}
    try:
        for item in head["outputs"]:
            datatype, shape = str(item["datatype"]), tuple(map(int, item["shape"]))
            size = item.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[item["name"]] = Tensor.from_json(datatype, shape, item["data"])
            else:
                outputs[item["name"]] = Tensor(datatype, shape, _checked(raw[:size], size))
                raw = raw[size:]
        names = str(head["model_name"]), str(head["model_version"])
        return Reply(*names, str(head.get("id", "")), digest, outputs), raw
    except (KeyError, TypeError, ValueError) as fault:
        raise ProtocolBroken(f"the reply is not of the protocol: {fault}") from None


def outcomes(head: Mapping[str, Any], raw: bytes) -> list[Reply | InferenceError]:
    """What became of each request of a batch. Raises ProtocolBroken."""
    found: list[Reply | InferenceError] = []
    for item in head.get("responses", ()):
        if "error" in item:
            wait_ms = item.get("retry_after_ms")
            wait_s = None if wait_ms is None else wait_ms / 1e3
            found.append(failure(int(item["status"]), str(item["error"]), wait_s))
        else:
            one, raw = reply(item, raw, "")
            found.append(one)
    return found


def _checked(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise ValueError("binary tensors are cut off")
    return raw
