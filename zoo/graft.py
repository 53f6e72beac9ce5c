"""Real models with a piece grafted on that no published file has.

No package was found that ships a model with NonMaxSuppression inside; detectors leave it to the
caller. Here it is put behind the raw head of one, as users of such models do.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from zoo import fetch

NUM_CLASSES = 18


def nudenet_with_suppression() -> onnx.ModelProto:
    """The detector with one more output `selected`: int64 [n, 3] of picture, class, box."""
    proto = onnx.load(fetch.path("nudenet"))
    graph = proto.graph
    graph.initializer.extend(
        [
            helper.make_tensor("nms_parts", TensorProto.INT64, [2], [4, NUM_CLASSES]),
            helper.make_tensor("nms_max", TensorProto.INT64, [1], [100]),
            helper.make_tensor("nms_overlap", TensorProto.FLOAT, [1], [0.45]),
            helper.make_tensor("nms_score", TensorProto.FLOAT, [1], [0.25]),
        ]
    )
    limits = ["nms_max", "nms_overlap", "nms_score"]
    graph.node.extend(
        [
            helper.make_node("Split", ["output0", "nms_parts"], ["nms_b", "nms_s"], axis=1),
            helper.make_node("Transpose", ["nms_b"], ["nms_boxes"], perm=[0, 2, 1]),
            helper.make_node(
                "NonMaxSuppression",
                ["nms_boxes", "nms_s", *limits],
                ["selected"],
                center_point_box=1,
            ),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("selected", TensorProto.INT64, ["n", 3]))
    onnx.checker.check_model(proto)
    return proto
