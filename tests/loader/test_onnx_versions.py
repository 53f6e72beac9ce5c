"""Old forms against what they meant: onnxruntime where it still runs them, numpy elsewhere."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import onnx
import onnxruntime
import pytest

from castiron import errors
from castiron.loader import load, onnx_versions
from tests.loader import models

random = np.random.default_rng(3)
X4 = random.standard_normal((2, 4, 3, 5)).astype(np.float32)
X2 = random.standard_normal((3, 4)).astype(np.float32)
INT64 = onnx.TensorProto.INT64

# op, opset, attributes, constant inputs after x
OLD_FORMS = [
    ("Softmax", 9, {}, []),
    ("Softmax", 11, {"axis": 2}, []),
    ("LogSoftmax", 12, {"axis": 1}, []),
    ("Hardmax", 11, {"axis": 1}, []),
    ("ReduceSum", 11, {"axes": [1, -1], "keepdims": 0}, []),
    ("ReduceMean", 13, {"axes": [2]}, []),
    ("ReduceMax", 12, {}, []),
    ("Unsqueeze", 11, {"axes": [0, 3]}, []),
    ("Clip", 7, {"min": -0.5}, []),
    ("Clip", 10, {"min": -0.5, "max": 0.25}, []),
    ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 1, 0, 1], "value": 1.5}, []),
    ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 1, 0, 1], "mode": "reflect"}, []),
    ("Slice", 9, {"starts": [1, 0], "ends": [4, -1], "axes": [1, 3]}, []),
    ("Split", 11, {"axis": 1}, []),
    ("Split", 11, {"axis": 3, "split": [4, 1]}, []),
    ("Split", 13, {"axis": 1}, []),
    ("Dropout", 9, {"ratio": 0.3}, []),
    ("Flatten", 9, {"axis": 2}, []),
    ("Upsample", 9, {"mode": "nearest"}, [np.asarray([1, 1, 2, 3], np.float32)]),
    ("Upsample", 7, {"mode": "linear", "scales": [1.0, 1.0, 2.0, 2.0]}, []),
    ("Resize", 10, {"mode": "nearest"}, [np.asarray([1, 1, 0.5, 0.5], np.float32)]),
    ("Resize", 10, {"mode": "linear"}, [np.asarray([1, 1, 2, 2], np.float32)]),
    ("BatchNormalization", 7, {}, [np.ones(4, np.float32)] * 4),
    ("BatchNormalization", 9, {"epsilon": 0.1}, [np.ones(4, np.float32)] * 4),
    ("LRN", 9, {"size": 3}, []),
    ("PRelu", 7, {}, [np.full((4, 1, 1), 0.1, np.float32)]),
    ("TopK", 9, {"k": 2, "axis": 1}, []),
]


@pytest.mark.parametrize("op, opset, attrs, constants", OLD_FORMS)
def test_an_old_form_computes_what_onnxruntime_computes(
    op: str, opset: int, attrs: dict[str, object], constants: list[np.ndarray]
) -> None:
    count = {"Split": 2, "TopK": 2}.get(op, 1)
    outputs = [f"y{index}" for index in range(count)]
    named = {f"c{index}": array for index, array in enumerate(constants)}
    proto = models.model(
        [models.node(op, ["x", *named], outputs, **attrs)],
        [models.value("x", ["n", 4, "h", 5])],
        outputs, named, opset=opset,
    )  # fmt: skip
    typed = onnx.ModelProto.FromString(proto.SerializeToString())
    for index, info in enumerate(typed.graph.output):
        info.type.tensor_type.elem_type = INT64 if op == "TopK" and index else 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    judge = onnxruntime.InferenceSession(typed.SerializeToString(), options)
    expected = judge.run(None, {"x": X4})
    found = models.answers(load(proto), {"x": X4})
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
        assert left.dtype == right.dtype


def test_opset_6_broadcast_aligns_at_the_axis() -> None:
    add = models.node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    b = np.arange(4, dtype=np.float32)
    proto = models.model([add], [models.value("x", [2, 4, 3, 5])], ["y"], {"b": b}, opset=6)
    (found,) = models.answers(load(proto), {"x": X4})
    np.testing.assert_array_equal(found, X4 + b[:, None, None])


def test_opset_6_broadcast_along_an_axis_of_unknown_rank_is_refused() -> None:
    add = models.node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    b = np.arange(4, dtype=np.float32)
    proto = models.model([add], [models.value("x", None)], ["y"], {"b": b}, opset=6)
    with pytest.raises(errors.LoadError, match="convert the model to opset 7"):
        load(proto)


def test_batch_normalization_for_each_element() -> None:
    node = models.node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], spatial=0)
    arrays = {key: random.random((4, 3, 5)).astype(np.float32) for key in "sbmv"}
    proto = models.model([node], [models.value("x", [2, 4, 3, 5])], ["y"], arrays, opset=7)
    (found,) = models.answers(load(proto), {"x": X4})
    s, b, m, v = arrays.values()
    np.testing.assert_allclose(found, (X4 - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-4, atol=1e-5)


def test_group_normalization_scales_go_from_groups_to_channels() -> None:
    node = models.node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    s, b = np.asarray([2, 3], np.float32), np.asarray([5, 7], np.float32)
    proto = models.model(
        [node], [models.value("x", [2, 4, 3, 5])], ["y"], {"s": s, "b": b}, opset=18
    )
    (found,) = models.answers(load(proto), {"x": X4})
    rows = X4.reshape(2, 2, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    expected = (normal * s[:, None] + b[:, None]).reshape(X4.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_cast_by_name_and_tile_of_one_axis() -> None:
    tile = models.node("Tile", ["x", "n", "axis"], ["a"])
    cast = models.node("Cast", ["a"], ["y"], to="INT64")
    constants = {"n": np.asarray([2], np.float32), "axis": np.asarray([1], np.float32)}
    proto = models.model([tile, cast], [models.value("x", [3, 4])], ["y"], constants, opset=5)
    (found,) = models.answers(load(proto), {"x": X2})
    np.testing.assert_array_equal(found, np.tile(X2.astype(np.int64), (1, 2)))


def test_an_old_dropout_gives_a_mask_of_ones() -> None:
    node = models.node("Dropout", ["x"], ["y", "mask"])
    proto = models.model([node], [models.value("x", [3, 4])], ["y", "mask"], opset=10)
    y, mask = models.answers(load(proto), {"x": X2})
    np.testing.assert_array_equal(y, X2)
    assert mask.dtype == np.bool_
    assert mask.all()


def test_scan_of_opset_8_is_refused_with_a_remedy() -> None:
    with pytest.raises(onnx_versions.Refusal, match="opset 9"):
        onnx_versions.scan_8(None, None)  # type: ignore[arg-type]


def _changed_ops() -> dict[str, int]:
    """Ops whose attributes, defaults or required inputs ever changed, by the last such version.

    An attribute that came later with a neutral default, or an input that became optional, changes
    nothing for old nodes and does not count.
    """
    history = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            history[schema.name].append(schema)
    changed = {}
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for old, new in itertools.pairwise(schemas):
            if _lost(old, new):
                changed[name] = new.since_version
    return changed


def _lost(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    if set(old.attributes) - set(new.attributes):
        return True
    for key, attr in old.attributes.items():
        if attr.default_value != new.attributes[key].default_value and attr.default_value.type:
            return True
    return len(old.inputs) > len(new.inputs)


def test_every_op_that_lost_something_has_a_rewrite() -> None:
    missing = [name for name in _changed_ops() if name not in onnx_versions.TABLE]
    assert missing == []
