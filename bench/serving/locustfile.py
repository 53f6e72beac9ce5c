"""Users of any server of the Open Inference Protocol, for locust.

    locust -f bench/serving/locustfile.py -H http://127.0.0.1:8000

OIP_MODEL names the model, OIP_ROWS what its open dims are (1), OIP_RATE the requests a second of
each user (50). What the model takes is asked of the server, or told by OIP_INPUTS, a JSON list of
name, datatype and shape, where a server cannot say it. Inputs are zeros, sent as bytes too where
the server takes them. For latencies of small calls locust is too slow itself.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, NoReturn

from locust import FastHttpUser, constant_throughput, task
from locust.env import Environment
from locust.exception import StopUser

_MODEL = os.environ.get("OIP_MODEL", "")
_ROWS = int(os.environ.get("OIP_ROWS", "1"))
_RATE = float(os.environ.get("OIP_RATE", "50"))
_INPUTS = json.loads(os.environ.get("OIP_INPUTS", "[]"))
_BYTES = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2,
          "INT32": 4, "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8}  # fmt: skip


def _stop(environment: Environment, reason: str) -> NoReturn:
    """End a run that would measure nothing but errors."""
    logging.getLogger(__name__).error(reason)
    environment.process_exit_code = 2
    environment.runner.quit()
    raise StopUser


class Caller(FastHttpUser):
    """Infers, mostly; now and then looks at health and metadata, as clients and balancers do."""

    wait_time = constant_throughput(_RATE)

    def on_start(self) -> None:
        """Ask what the model takes."""
        if not _MODEL:
            _stop(self.environment, "expected the name of a model in OIP_MODEL; found none")
        self._place = f"/v2/models/{_MODEL}"
        told = self.client.get(self._place, name="metadata")
        inputs = _INPUTS or (told.json().get("inputs") if told.status_code == 200 else [])
        if not inputs:
            reason = f"{self._place} names no inputs (status {told.status_code}); set OIP_INPUTS"
            _stop(self.environment, reason)
        server = self.client.get("/v2", name="server").json()
        self._takes_bytes = "binary_tensor_data" in server.get("extensions", [])
        self._json = json.dumps({"inputs": [_as_json(each) for each in inputs]}).encode()
        items = [_as_bytes(each) for each in inputs]
        content = {
            "inputs": [item for item, _ in items],
            "parameters": {"binary_data_output": True},
        }
        self._head = json.dumps(content).encode()
        self._body = self._head + b"".join(data for _, data in items)

    @task(10)
    def infer(self) -> None:
        """Numbers as JSON."""
        headers = {"Content-Type": "application/json"}
        self.client.post(f"{self._place}/infer", data=self._json, headers=headers, name="infer")

    @task(10)
    def infer_bytes(self) -> None:
        """Numbers as bytes, both ways."""
        if not self._takes_bytes:
            return
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(self._head)),
        }
        self.client.post(
            f"{self._place}/infer", data=self._body, headers=headers, name="infer, bytes"
        )

    @task(1)
    def look(self) -> None:
        """What balancers and careful clients ask."""
        self.client.get(f"{self._place}/ready", name="ready")
        self.client.get(self._place, name="metadata")


def _shape(tensor: dict[str, Any]) -> list[int]:
    return [_ROWS if extent < 0 else extent for extent in map(int, tensor["shape"])]


def _as_json(tensor: dict[str, Any]) -> dict[str, Any]:
    shape = _shape(tensor)
    zero: object = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
    return _head(tensor, shape) | {"data": [zero] * math.prod(shape)}


def _as_bytes(tensor: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    shape = _shape(tensor)
    # A string is four bytes of length and no more when it is empty.
    data = bytes(math.prod(shape) * _BYTES.get(tensor["datatype"], 4))
    return _head(tensor, shape) | {"parameters": {"binary_data_size": len(data)}}, data


def _head(tensor: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape}
