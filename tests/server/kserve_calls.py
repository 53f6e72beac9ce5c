"""Run in an environment of its own: KServe's clients infer over both protocols, print as JSON.

python kserve_calls.py HTTP_URL GRPC_ADDRESS MODEL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)


def _request(model: str, *, binary: bool) -> Any:
    values = InferInput("x", [2, 3], "FP32")
    values.set_data_from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), binary_data=binary)
    return InferRequest(model, [values])


async def _call(http: str, grpc: str, model: str) -> dict[str, Any]:
    rest = InferenceRESTClient(config=RESTConfig(protocol="v2"))
    other = InferenceGRPCClient(url=grpc)
    answers = {"live": await rest.is_server_live(http), "ready": await other.is_server_ready()}
    for binary in (False, True):
        by_rest = await rest.infer(http, _request(model, binary=binary), model_name=model)
        by_grpc = await other.infer(_request(model, binary=binary))
        for name, answer in (("rest", by_rest), ("grpc", by_grpc)):
            answers[f"{name} {binary}"] = answer.outputs[0].as_numpy().tolist()
    return answers


if __name__ == "__main__":
    json.dump(asyncio.run(_call(*sys.argv[1:])), sys.stdout)
