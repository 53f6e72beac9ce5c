"""The models that all servers serve: quick, slow, failing on a row, idle, of any shape, heavy to load.

Each takes and gives rows, so that a server may merge calls. Peers run the same files with
onnxruntime; nothing here knows a server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# One layer of the slow chain is a product of these extents for each row, 0.3 billion
# multiplications; forty of them take a core about a fifth of a second.
_WIDTH, _LINES = 768, 512
# So many products of square tables of this extent are the load of the one that takes long: they
# have no input, so whoever loads it computes them, which takes a core about 1.5 s.
_TABLE, _PRODUCTS = 1024, 80
# Weights of the one with many: 16 MB.
_MANY = 1_000_000
# What the failing model may be asked for.
NUM_ROWS = 8
# How many rows a call of the one of any shape may have.
MOST_ROWS = 16
# Datatypes of x and y, and how many values a row of each has.
COLUMNS: dict[str, tuple[str, str, tuple[int | str, int | str]]] = {
    "quick": ("FP32", "FP32", (4, 4)),
    "slow": ("FP32", "FP32", (1, 1)),
    "picky": ("INT64", "FP32", (1, 2)),
    "same": ("FP32", "FP32", (150_528, 150_528)),
    "shapes": ("FP32", "FP32", ("columns", "columns")),
    "heavy": ("FP32", "FP32", (4, 4)),
    "wide": ("FP32", "FP32", (4, 1)),
}

_Value = tuple[str, int, list[str | int]]


def save(folder: Path, kinds: Collection[str]) -> dict[str, Path]:
    """Write these models; the file of each by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in kinds:
        onnx.save(_MAKERS[name](), folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in kinds}


def heavy(seed: int = 0) -> onnx.ModelProto:
    """y = x + a number that takes long to compute; another for each seed."""
    table = np.random.default_rng(seed).normal(0, _TABLE**-0.5, (_TABLE, _TABLE))
    nodes, last = [], "table"
    for index in range(_PRODUCTS):
        nodes.append(helper.make_node("MatMul", [last, "table"], [f"p{index}"]))
        nodes.append(helper.make_node("Tanh", [f"p{index}"], [f"h{index}"]))
        last = f"h{index}"
    nodes.append(helper.make_node("ReduceMean", [last], ["mean"], keepdims=0))
    nodes.append(helper.make_node("Add", ["x", "mean"], ["y"]))
    kind = int(TensorProto.FLOAT)
    constants: dict[str, np.ndarray] = {"table": table.astype(np.float32)}
    return _model(nodes, ("x", kind, ["rows", 4]), ("y", kind, ["rows", 4]), constants)


def _wide() -> onnx.ModelProto:
    """y = the largest of a million products of each row, which reads all weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["wide"]),
        helper.make_node("ReduceMax", ["wide", "inner"], ["y"], keepdims=1),
    ]
    constants: dict[str, np.ndarray] = {
        "weights": np.ones((4, _MANY), np.float32),
        "inner": np.array([1], np.int64),
    }
    kind = int(TensorProto.FLOAT)
    return _model(nodes, ("x", kind, ["rows", 4]), ("y", kind, ["rows", 1]), constants)


def _shapes() -> onnx.ModelProto:
    """y = x + 1, whatever the extents."""
    return _model(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        ("x", int(TensorProto.FLOAT), ["rows", "columns"]),
        ("y", int(TensorProto.FLOAT), ["rows", "columns"]),
        {"one": np.ones(1, np.float32)},
    )


def _quick() -> onnx.ModelProto:
    """y = x + 1 over rows of four."""
    return _model(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        ("x", int(TensorProto.FLOAT), ["rows", 4]),
        ("y", int(TensorProto.FLOAT), ["rows", 4]),
        {"one": np.ones(1, np.float32)},
    )


def _same() -> onnx.ModelProto:
    """y = x over rows of 600 KB, a picture's worth."""
    width: list[str | int] = ["rows", COLUMNS["same"][2][0]]
    kind = int(TensorProto.FLOAT)
    node = helper.make_node("Identity", ["x"], ["y"])
    return _model([node], ("x", kind, width), ("y", kind, width), {})


def _slow() -> onnx.ModelProto:
    """y = x + 0, after a long chain of products that no compiler can leave out."""
    nodes, constants = _nothing_slowly("x", layers=40)
    nodes.append(helper.make_node("Add", ["x", "nothing"], ["y"]))
    kind = int(TensorProto.FLOAT)
    return _model(nodes, ("x", kind, ["rows", 1]), ("y", kind, ["rows", 1]), constants)


def _picky() -> onnx.ModelProto:
    """y = the row of a table that x names; a row that the table has not is an error."""
    nodes, constants = _nothing_slowly("number", layers=10)
    constants["table"] = np.arange(NUM_ROWS * 2, dtype=np.float32).reshape(NUM_ROWS, 2)
    constants["pairs"] = np.array([-1, 2], np.int64)
    nodes = [
        helper.make_node("Cast", ["x"], ["number"], to=TensorProto.FLOAT),
        *nodes,
        helper.make_node("Gather", ["table", "x"], ["found"], axis=0),
        helper.make_node("Reshape", ["found", "pairs"], ["row"]),
        helper.make_node("Add", ["row", "nothing"], ["y"]),
    ]
    taken: _Value = ("x", int(TensorProto.INT64), ["rows", 1])
    return _model(nodes, taken, ("y", int(TensorProto.FLOAT), ["rows", 2]), constants)


def _nothing_slowly(column: str, layers: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Nodes that make ``nothing``, a zero for each row of a column of numbers, in a long time."""
    mixing = np.random.default_rng(7).normal(0, (2 / _WIDTH) ** 0.5, (_WIDTH, _WIDTH))
    constants: dict[str, np.ndarray] = {
        "apart": np.array([-1, 1, 1], np.int64),
        "lines": np.ones((_LINES, _WIDTH), np.float32),
        "mixing": mixing.astype(np.float32),
        "inner": np.array([1, 2], np.int64),
        "zero": np.zeros(1, np.float32),
        "column": np.array([-1, 1], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", [column, "apart"], ["apart_x"]),
        helper.make_node("Add", ["apart_x", "lines"], ["h0"]),
    ]
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{layer}", "mixing"], [f"p{layer}"]))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"h{layer + 1}"]))
    nodes += [
        helper.make_node("ReduceMean", [f"h{layers}", "inner"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["zeros"]),
        helper.make_node("Reshape", ["zeros", "column"], ["nothing"]),
    ]
    return nodes, constants


def _model(
    nodes: list[onnx.NodeProto],
    taken: _Value,
    given: _Value,
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info(*taken)],
        [helper.make_tensor_value_info(*given)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


_MAKERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "quick": _quick, "slow": _slow, "picky": _picky, "same": _same,
    "shapes": _shapes, "heavy": heavy, "wide": _wide,
}  # fmt: skip
assert _MAKERS.keys() == COLUMNS.keys()
