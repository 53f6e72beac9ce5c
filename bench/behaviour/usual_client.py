"""Triton's client library, asked to do what it offers with its defaults; what did not work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.behaviour import servers


def faults(way: str, server: servers.Server) -> list[str]:
    """One line for each call that failed."""
    client, module = _rest(server) if way == "REST" else _grpc(server)
    return [
        fault
        for name, call in _calls(client, module).items()
        if (fault := _fault_of(name, call)) is not None
    ]


def _calls(client: Any, module: Any) -> dict[str, Callable[[], object]]:
    def infer() -> None:
        x = module.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.ones((1, 4), np.float32))
        y = client.infer("quick", [x], request_id="a").as_numpy("y")
        if y is None or (y != 2).any():
            raise ValueError(f"expected 2 2 2 2, found {y}")

    return {
        "infer": infer,
        "metadata": lambda: client.get_model_metadata("quick"),
        "configuration": lambda: client.get_model_config("quick"),
        "statistics": lambda: client.get_inference_statistics("quick"),
        "index": client.get_model_repository_index,
    }


def _fault_of(name: str, call: Callable[[], object]) -> str | None:
    try:
        call()
    except Exception as fault:  # noqa: BLE001  any of them is the finding
        words = " ".join(str(fault).split())
        return f"{name}: {words[:60]}"
    return None


def _rest(server: servers.Server) -> tuple[Any, Any]:
    import tritonclient.http as module

    return module.InferenceServerClient(f"127.0.0.1:{server.http_port}"), module


def _grpc(server: servers.Server) -> tuple[Any, Any]:
    import tritonclient.grpc as module

    return module.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"), module
