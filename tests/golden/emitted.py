"""The LLVM text of a dozen small graphs on every target, as digests and three whole texts.

A change that is meant to leave the machine code as it is must leave these as they are. After a
change that is meant to alter it: ``python -m tests.golden.emitted`` writes them anew, and the
diff shows which graphs it reached.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from castiron.compiler import pipeline, plan, stages
from castiron.compiler import target as targets
from castiron.loader import evaluator
from castiron.loader import onnx as loader
from tests import built
from tests.loader import models

FOLDER = pathlib.Path(__file__).parent
DIGESTS = FOLDER / "digests.txt"


def _weights(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32) % 7 - 3).reshape(shape) / 8


def _conv(channels: tuple[int, int], kernel: int, **attrs: Any) -> onnx.ModelProto:
    weights = _weights(channels[1], channels[0] // attrs.get("group", 1), kernel, kernel)
    node = models.node("Conv", ["x", "w"], ["y"], kernel_shape=[kernel] * 2, **attrs)
    return models.model(
        [node], [models.value("x", ["n", channels[0], "h", "w"])], ["y"], {"w": weights}
    )


def _dense() -> onnx.ModelProto:
    nodes = [
        models.node("MatMul", ["x", "w"], ["a"]),
        models.node("Add", ["a", "b"], ["c"]),
        models.node("Sigmoid", ["c"], ["d"]),
        models.node("Mul", ["c", "d"], ["y"]),
    ]
    constants = {"w": _weights(24, 40), "b": _weights(40)}
    return models.model(nodes, [models.value("x", ["n", 24])], ["y"], constants)


def _chain() -> onnx.ModelProto:
    nodes = [
        models.node("Sub", ["x", "z"], ["a"]),
        models.node("Exp", ["a"], ["b"]),
        models.node("Add", ["b", "x"], ["y"]),
    ]
    inputs = [models.value("x", ["n", 5]), models.value("z", [5])]
    return models.model(nodes, inputs, ["y"])


def _norm() -> onnx.ModelProto:
    node = models.node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)
    constants = {"s": _weights(48), "b": _weights(48)}
    return models.model([node], [models.value("x", ["n", 48])], ["y"], constants)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "abs": lambda: built.one_op("Abs", ("n",)),
    "chain": _chain,
    "concat": lambda: built.one_op("Concat", ("n", 3), ("n", 5), axis=1),
    "convolution_1x1": lambda: _conv((16, 24), 1),
    "convolution_3x3": lambda: _conv((16, 24), 3, strides=[2, 2]),
    "dense_silu": _dense,
    "depthwise": lambda: _conv((16, 16), 3, group=16, pads=[1] * 4),
    "layer_norm": _norm,
    "max_pool": lambda: built.one_op("MaxPool", ("n", 16, "h", "w"), kernel_shape=[2, 2]),
    "network": built.network,
    "softmax": lambda: built.one_op("Softmax", ("n", 33), axis=-1),
    "transpose": lambda: built.one_op("Transpose", ("a", "b", 4), perm=[1, 0, 2]),
    "winograd": lambda: _conv((32, 32), 3, pads=[1] * 4),
}

# Short enough to be read in a review.
WHOLE = (("abs", "baseline"), ("chain", "avx2"), ("transpose", "aarch64"))


@functools.cache
def texts(model: str, target: str) -> tuple[str, ...]:
    """The text of every kernel of the model, in the order of its steps, each once."""
    machine = targets.named(target)
    options = pipeline.Options(machine, evaluator.evaluate_node, evaluator.package, strict=True)
    graph = pipeline.lower_graph(loader.load(MODELS[model]().SerializeToString()), options)
    weights, found = plan.Weights(), {}
    for stage in stages.cut(graph):
        edges = (stage.reads, stage.writes)
        for step in plan.plan_stage(graph, stage.nodes, edges, machine, weights).steps:
            found[step.kernel.symbol] = step.kernel.text
    return tuple(found.values())


def digests() -> list[str]:
    """One line for each model and target: both names, and the digest of the emitted text."""
    lines = []
    for model in MODELS:
        for target in targets.ALL:
            digest = hashlib.sha256("".join(texts(model, target.name)).encode()).hexdigest()
            lines.append(f"{model} {target.name} {digest}")
    return lines


def whole_path(model: str, target: str) -> pathlib.Path:
    """Where the whole text of this model on this target is kept."""
    return FOLDER / f"{model}_{target}.ll"


def main() -> None:
    """Write the digests and the whole texts as they are now."""
    DIGESTS.write_text("\n".join(digests()) + "\n")
    for model, target in WHOLE:
        whole_path(model, target).write_text("".join(texts(model, target)))


if __name__ == "__main__":
    main()
