"""Odd calls over gRPC: messages changed field by field and byte by byte, deadlines, cancels.

The same rule as over HTTP: the caller's fault is told as such, in words, and never as ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.fuzz import calls, mutations, protos, report, served

_SIDE_BY_SIDE = 100
SERVICE = "/inference.GRPCInferenceService/"
_ASKED = {
    "ServerLive": service_pb2.ServerLiveRequest,
    "ServerReady": service_pb2.ServerReadyRequest,
    "ModelReady": service_pb2.ModelReadyRequest,
    "ServerMetadata": service_pb2.ServerMetadataRequest,
    "ModelMetadata": service_pb2.ModelMetadataRequest,
    "ModelConfig": service_pb2.ModelConfigRequest,
    "ModelStatistics": service_pb2.ModelStatisticsRequest,
    "RepositoryIndex": service_pb2.RepositoryIndexRequest,
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest,
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest,
}
_FIELDS = {"BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
           "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
           "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
           "FP32": "fp32_contents", "FP64": "fp64_contents",
           "BYTES": "bytes_contents"}  # fmt: skip
_FAULTS = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE",
           "FAILED_PRECONDITION"}  # fmt: skip


class Call:
    """One call: where, which bytes, until when; ``family`` for the counts."""

    __slots__ = ("data", "family", "is_right", "leaves", "method", "timeout_s")

    def __init__(self, method: str, data: bytes, family: str) -> None:
        self.method = method
        self.data = data
        self.family = family
        self.is_right = False
        self.timeout_s: float | None = None
        self.leaves = False

    def __repr__(self) -> str:
        return f"Call({self.method!r}, {self.data!r}, {self.family!r}, {self.timeout_s})"


def call(seed: int, index: int) -> Call:
    """The call of this number in the run of this seed."""
    dice = random.Random(f"rpc {seed} {index}")
    name = dice.choice(list(_ASKED)) if dice.random() < 0.15 else "ModelInfer"
    message = _infer(dice) if name == "ModelInfer" else _ASKED[name]()
    if "name" in message.DESCRIPTOR.fields_by_name:
        message.name = "add_one"
    elif name.startswith("RepositoryModel"):
        message.model_name = "spare"
    match dice.choices(["right", "fields", "bytes", "method", "deadline", "gone"],
                       [15, 50, 20, 3, 6, 6])[0]:  # fmt: skip
        case "fields":
            protos.changed(message, dice)
            return Call(name, message.SerializeToString(), "fields")
        case "bytes":
            data = mutations.bytes_changed(message.SerializeToString(), dice)
            return Call(name, data, "bytes")
        case "method":
            odd = ["Nothing", "", "modelInfer", "ModelInfer/x", "\u00e9"]
            return Call(dice.choice(odd), message.SerializeToString(), "method")
        case family:
            made = Call(name, message.SerializeToString(), family)
    made.is_right = family == "right"
    made.leaves = family == "gone"
    if family == "deadline":
        made.timeout_s = dice.choice([0.0, 1e-4, 1e-3, 0.01])
    return made


def _infer(dice: random.Random) -> Any:
    """A right call, typed or raw."""
    model, found = calls.content(dice)
    message = service_pb2.ModelInferRequest(model_name=model, id=found.get("id", ""))
    is_raw = model == "every" or dice.random() < 0.5
    for tensor in found["inputs"]:
        made = message.inputs.add(
            name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"]
        )
        if is_raw:
            message.raw_input_contents.append(calls.packed(tensor["datatype"], tensor["data"]))
        else:
            data = tensor["data"]
            if tensor["datatype"] == "BYTES":
                data = [each.encode() for each in data]
            getattr(made.contents, _FIELDS[tensor["datatype"]]).extend(data)
    for wanted in found.get("outputs", []):
        message.outputs.add(name=wanted["name"])
    return message


def send(port: int, seed: int, numbers: range, found: report.Report) -> None:
    """Make the calls of these numbers; what each shows goes into the report."""
    asyncio.run(_all(port, seed, numbers, found))


async def _all(port: int, seed: int, numbers: range, found: report.Report) -> None:
    waiting = iter(numbers)
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
                )
            )
            for _ in range(4)
        ]

        async def work(channel: grpc.aio.Channel) -> None:
            for number in waiting:
                await _judged(channel, (seed, number), found)

        await asyncio.gather(*(work(channels[each % 4]) for each in range(_SIDE_BY_SIDE)))


async def _judged(channel: grpc.aio.Channel, name: tuple[int, int], found: report.Report) -> None:
    asked = call(*name)
    begun_s = time.monotonic()
    found.families[f"gRPC {asked.family}"] += 1
    code, words = await _answer(channel, asked)
    found.longest_s = max(found.longest_s, time.monotonic() - begun_s)
    found.codes[code] += 1
    complaint = _complaint(asked, code, words)
    if complaint:
        found.complaints.append(f"gRPC {name} {asked.family} {asked.method}: {complaint}")


async def _answer(channel: grpc.aio.Channel, asked: Call) -> tuple[str, str]:
    """The status code's name and its words."""
    rpc = channel.unary_unary(SERVICE + asked.method)
    timeout_s = served.DEADLINE_S if asked.timeout_s is None else asked.timeout_s
    begun = rpc(asked.data, timeout=timeout_s)
    if asked.leaves:
        await asyncio.sleep(random.Random(asked.data).choice([0, 0, 0.001]))
        begun.cancel()
    try:
        await begun
    except grpc.aio.AioRpcError as fault:
        return fault.code().name, fault.details() or ""
    except asyncio.CancelledError:
        return "CANCELLED", "we left"
    return "OK", ""


def _complaint(asked: Call, code: str, words: str) -> str:
    if code == "OK" or (code == "CANCELLED" and asked.leaves):
        return ""
    if code == "DEADLINE_EXCEEDED":
        is_asked = asked.timeout_s is not None or b"timeout" in asked.data
        return "" if is_asked else "no answer in time"
    if code in {"UNAVAILABLE", "RESOURCE_EXHAUSTED"} and any(
        word in words for word in ("limit", "full", "would not be ready")
    ):
        return ""
    if asked.is_right:
        return f"expected OK, found {code}: {words[:200]}"
    if code not in _FAULTS:
        return f"{code}: {words[:200]}"
    return "" if words else f"{code} without words"
