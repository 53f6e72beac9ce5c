"""Calls over gRPC as tests make them: by the reference client's parts, and by bare messages."""

from __future__ import annotations

import queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype


def given(name: str, values: np.ndarray, datatype: str = "") -> Any:
    made = triton.InferInput(name, list(values.shape), datatype or np_to_triton_dtype(values.dtype))
    made.set_data_from_numpy(values)
    return made


def sleeping(seconds: float) -> list[Any]:
    return [given("seconds", np.array([seconds], np.float32))]


def message(model: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    """A request with typed contents."""
    made = service_pb2.ModelInferRequest(model_name=model)
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return made


def refused(call: Any, *arguments: Any, **more: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **more)
    return error.value


def telling(told: queue.Queue[Any]) -> Any:
    """What a call is given that puts its error there."""

    def tell(result: Any, error: Any) -> None:
        told.put(error)

    return tell


def ignored(result: Any, error: Any) -> None:
    pass


ONE = given("x", np.array([[1, 2, 3, 4]], np.float32))
