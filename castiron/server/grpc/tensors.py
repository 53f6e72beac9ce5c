"""ModelInferRequest to an ``Inference``, and outputs to ModelInferResponse.

The same checks and paths as JSON bodies have (``server/inference.py``); values follow the policy
of docs/protocol.md. Replies are typed when the request was and all outputs have a typed form, else
raw. FP16 and BF16 are always raw: the protocol has no list for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron import errors
from castiron.registry import version as versions
from castiron.server import inference, values
from castiron.server.grpc import messages
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

# The list of InferTensorContents that holds each datatype.
_LISTS = {
    dtypes.BOOL: "bool_contents", dtypes.INT8: "int_contents", dtypes.INT16: "int_contents",
    dtypes.INT32: "int_contents", dtypes.INT64: "int64_contents", dtypes.UINT8: "uint_contents",
    dtypes.UINT16: "uint_contents", dtypes.UINT32: "uint_contents",
    dtypes.UINT64: "uint64_contents", dtypes.FLOAT32: "fp32_contents",
    dtypes.FLOAT64: "fp64_contents", dtypes.STRING: "bytes_contents",
}  # fmt: skip
_Response = messages.named("ModelInferResponse")


def read(request: Any, interface: inference.Interface) -> inference.Inference:
    """What the request asks. Raises InputError with the path of the fault."""
    parameters = messages.parameters(request.parameters)
    inference.refuse_unoffered(parameters, "")
    return inference.Inference(
        request.id,
        _inputs(request, interface),
        _wanted(request, interface),
        inference.timeout_s(parameters.get("timeout")),
        inference.priority(parameters.get("priority")),
    )


def _inputs(request: Any, interface: inference.Interface) -> dict[str, np.ndarray]:
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise errors.InputError(
            f"expected none, or one for each of {len(request.inputs)} inputs, found {len(raw)}",
            "raw_input_contents",
        )
    found: dict[str, np.ndarray] = {}
    for index, item in enumerate(request.inputs):
        path = f"inputs[{index}]"
        dtype = inference.known(item.name, interface.inputs, "input", path)
        if item.name in found:
            raise errors.InputError(f"input {item.name!r} is given twice", f"{path}.name")
        inference.check_datatype(item.datatype, item.name, dtype, path)
        inference.refuse_unoffered(messages.parameters(item.parameters), f"{path}.")
        shape = inference.shape_of(list(item.shape), f"{path}.shape")
        if not raw:
            found[item.name] = _typed(item, dtype, shape, path)
            continue
        if item.HasField("contents"):
            raise errors.InputError("expected none beside raw_input_contents", f"{path}.contents")
        place = f"raw_input_contents[{index}]"
        found[item.name] = values.from_bytes(memoryview(raw[index]), dtype, shape, place)
    inference.refuse_missing(interface.inputs, found)
    return found


def _typed(item: Any, dtype: dtypes.DType, shape: tuple[int, ...], path: str) -> np.ndarray:
    wanted = _LISTS.get(dtype)
    path = f"{path}.contents"
    if wanted is None:
        raise errors.InputError(f"{dtype.oip} has no typed form; send it raw", path)
    for field, _ in item.contents.ListFields():
        if field.name != wanted:
            raise errors.InputError(f"expected {dtype.oip} in {wanted}, found {field.name}", path)
    listed = list(getattr(item.contents, wanted))
    if dtype is not dtypes.STRING:
        return values.from_json(listed, dtype, shape, f"{path}.{wanted}")
    array = np.empty(len(listed), object)
    array[:] = listed
    return _shaped(array, shape, f"{path}.{wanted}")


def _shaped(array: np.ndarray, shape: tuple[int, ...], path: str) -> np.ndarray:
    count = int(np.prod(shape, dtype=object))
    if len(array) != count:
        raise errors.InputError(
            f"expected {count} values for shape {list(shape)}, found {len(array)}", path
        )
    return array.reshape(shape)


def _wanted(request: Any, interface: inference.Interface) -> dict[str, bool]:
    is_raw = bool(request.raw_input_contents)
    wanted: dict[str, bool] = {}
    for index, item in enumerate(request.outputs):
        path = f"outputs[{index}]"
        inference.known(item.name, interface.outputs, "output", path)
        if item.name in wanted:
            raise errors.InputError(f"output {item.name!r} is asked for twice", f"{path}.name")
        inference.refuse_unoffered(messages.parameters(item.parameters), f"{path}.")
        wanted[item.name] = is_raw
    wanted = wanted or dict.fromkeys(interface.outputs, is_raw)
    if any(interface.outputs[name] not in _LISTS for name in wanted):
        return dict.fromkeys(wanted, True)
    return wanted


def answer(
    outputs: Any,
    asked: inference.Inference,
    interface: inference.Interface,
    version: versions.Version,
) -> Any:
    """The ModelInferResponse with the wanted outputs."""
    response = _Response(model_name=version.model, model_version=str(version.number), id=asked.id)
    for name, is_raw in asked.wanted.items():
        output, dtype = outputs[name], interface.outputs[name]
        item = response.outputs.add(name=name, datatype=dtype.oip, shape=output.shape)
        if is_raw:
            response.raw_output_contents.append(bytes(values.to_bytes(output, dtype)))
        else:
            getattr(item.contents, _LISTS[dtype]).extend(_plain(output, dtype))
    return response


def _plain(output: np.ndarray, dtype: dtypes.DType) -> list[Any]:
    flat = output.reshape(-1)
    if dtype is not dtypes.STRING:
        return flat.astype(elements.numpy_dtype(dtype), copy=False).tolist()
    # What was not UTF-8 comes out of another process as escapes (``tensor/elements.py``).
    return [
        item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
        for item in flat.tolist()
    ]
