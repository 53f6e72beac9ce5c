"""The reference client of the protocol against a live server: every call it makes by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import castiron
from tests.server import live


@pytest.fixture
def client(server: live.Server) -> Iterator[Any]:
    made = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield made
    made.close()


def given(name: str, values: np.ndarray, datatype: str = "", **how: Any) -> Any:
    datatype = datatype or np_to_triton_dtype(values.dtype)
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, **how)
    return made


def test_health_calls(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_one")
    assert client.is_model_ready("add_one", "2")
    assert not client.is_model_ready("add_one", "3")
    assert not client.is_model_ready("broken")
    assert not client.is_model_ready("none")


def test_metadata_calls(client: Any) -> None:
    assert client.get_server_metadata()["name"] == "castiron"
    assert client.get_server_metadata()["version"] == castiron.__version__
    model = client.get_model_metadata("sum_and_difference")
    assert model["versions"] == ["1"]
    assert model["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "b", "datatype": "FP32", "shape": [-1, 2]},
    ]
    assert [output["name"] for output in model["outputs"]] == ["sum", "difference"]
    assert client.get_model_metadata("add_one")["versions"] == ["1", "2"]
    with pytest.raises(InferenceServerException, match="no version of model 'broken' is ready"):
        client.get_model_metadata("broken")


def test_configuration_statistics_and_index_calls(client: Any) -> None:
    configured = client.get_model_config("add_one", "1")
    assert configured["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, 4]}]
    client.infer("add_one", [given("x", np.zeros((1, 4), "f"))], model_version="1")
    (entry,) = client.get_inference_statistics("add_one", "1")["model_stats"]
    assert entry["inference_stats"]["success"]["count"] >= 1
    assert entry["inference_stats"]["compute_infer"]["ns"] > 0
    assert len(client.get_inference_statistics("add_one")["model_stats"]) == 2
    assert len(client.get_inference_statistics()["model_stats"]) > 10
    states = {
        (entry["name"], entry["version"]): entry["state"]
        for entry in client.get_model_repository_index()
    }
    assert states[("add_one", "2")] == "READY"
    assert states[("broken", "1")] == "UNAVAILABLE"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_in_every_mix_of_json_and_raw(
    client: Any, *, binary_in: bool, binary_out: bool
) -> None:
    a = np.array([[1, 2], [3, np.nan], [np.inf, -0.0]], np.float32)
    b = np.array([[0.5, -2], [1e-45, 1], [1, 0.0]], np.float32)
    answer = client.infer(
        "sum_and_difference",
        [given("a", a, binary_data=binary_in), given("b", b)],
        outputs=[
            triton.InferRequestedOutput("difference", binary_data=binary_out),
            triton.InferRequestedOutput("sum"),
        ],
        request_id="mine",
    )
    assert answer.get_response()["id"] == "mine"
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["difference", "sum"]
    assert answer.as_numpy("sum").tobytes() == (a + b).tobytes()
    assert answer.as_numpy("difference").tobytes() == (a - b).tobytes()


def test_infer_with_all_defaults_names_model_version_and_digest(client: Any) -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)
    answer = client.infer("add_one", [given("x", x)])
    assert answer.as_numpy("y").tolist() == [[2, 3, 4, 5]]
    assert answer.get_response()["model_version"] == "2"


NUMERIC = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("kind", NUMERIC)
@pytest.mark.parametrize("binary", [True, False])
def test_the_extremes_of_every_datatype_come_back(client: Any, kind: str, *, binary: bool) -> None:
    dtype = np.dtype(kind)
    if kind == "bool":
        x = np.array([True, False])
    elif dtype.kind == "f":
        limits = np.finfo(dtype)
        x = np.array([limits.min, limits.max, limits.smallest_subnormal, -0.0, 0.1], dtype)
    else:
        x = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 7], dtype)
    answer = client.infer(
        f"identity_{kind}",
        # This client does not send FP16 as JSON; it reads it.
        [given("x", x, binary_data=binary or kind == "float16")],
        outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
    )
    found = answer.as_numpy("y")
    assert found.dtype == x.dtype
    assert found.tobytes() == x.tobytes()


def test_bfloat16_comes_back(client: Any) -> None:
    x = np.array([1.5, -2.0, 3.0e38, 0.1, -0.0, np.inf, np.nan], ml_dtypes.bfloat16)
    answer = client.infer("identity_bfloat16", [given("x", x, "BF16")])
    assert answer.get_output("y")["datatype"] == "BF16"
    assert answer.as_numpy("y").astype(x.dtype).tobytes() == x.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_strings_with_nul_and_any_script_come_back(client: Any, *, binary: bool) -> None:
    x = np.array([b"", "päx\0y ☃".encode(), b"plain"], object)
    answer = client.infer(
        "identity_string",
        [given("x", x, binary_data=binary)],
        outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
    )
    found = [item if isinstance(item, bytes) else item.encode() for item in answer.as_numpy("y")]
    assert found == x.tolist()


def test_bytes_that_are_no_text_come_back_raw_and_are_refused_as_json(client: Any) -> None:
    x = np.array([b"\xff\0\xfe"], object)
    assert client.infer("identity_string", [given("x", x)]).as_numpy("y").tolist() == x.tolist()
    with pytest.raises(InferenceServerException, match=r"outputs\.y: holds bytes that are not"):
        client.infer(
            "identity_string",
            [given("x", x)],
            outputs=[triton.InferRequestedOutput("y", binary_data=False)],
        )


def test_empty_tensors_come_back(client: Any) -> None:
    for kind in ("float32", "int64", "bool"):
        answer = client.infer(f"identity_{kind}", [given("x", np.zeros(0, kind))])
        assert answer.as_numpy("y").shape == (0,)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies(client: Any, algorithm: str) -> None:
    x = np.arange(50_000, dtype=np.float32)
    answer = client.infer(
        "identity_float32",
        [given("x", x)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert np.array_equal(answer.as_numpy("y"), x)


def test_errors_reach_the_client_with_their_path_and_code(client: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"inputs\.x: expected rank 2") as refused:
        client.infer("add_one", [given("x", np.zeros(4, "f"))])
    assert refused.value.status() == "400"
    with pytest.raises(InferenceServerException, match="'none' is not served here") as refused:
        client.infer("none", [given("x", np.zeros(4, "f"))])
    assert refused.value.status() == "404"


def test_a_model_with_interpreted_steps_answers_the_same_way(client: Any) -> None:
    answer = client.infer("apart", [given("x", np.array([3, 4], np.float32))])
    assert answer.as_numpy("y").tolist() == [6, 8]
    with pytest.raises(InferenceServerException, match="expected rank 1") as refused:
        client.infer("apart", [given("x", np.zeros((1, 1), np.float32))])
    assert refused.value.status() == "400"


def test_many_calls_at_once(client: Any, server: live.Server) -> None:
    many = triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8)
    inputs = [np.full((1, 4), index, np.float32) for index in range(50)]
    waiting = [many.async_infer("add_one", [given("x", x)]) for x in inputs]
    for x, call in zip(inputs, waiting, strict=True):
        assert np.array_equal(call.get_result().as_numpy("y"), x + 1)
    many.close()


def test_the_asynchronous_form_of_the_client(server: live.Server) -> None:
    async def body() -> None:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("add_one"))["name"] == "add_one"
            inputs = [np.full((1, 4), index, np.float32) for index in range(20)]
            answers = await asyncio.gather(
                *(client.infer("add_one", [given("x", x)]) for x in inputs)
            )
            for x, answer in zip(inputs, answers, strict=True):
                assert np.array_equal(answer.as_numpy("y"), x + 1)
            with pytest.raises(InferenceServerException, match="is not served here"):
                await client.infer("none", [given("x", inputs[0])])

    asyncio.run(body())
