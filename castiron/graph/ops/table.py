"""The table of ops: each name that has a type rule, and the rule.

An op that is missing here (control flow, sequences, other domains) has outputs of unknown type
unless the loader knows better; it runs on the reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable

from castiron import errors
from castiron.graph.ops import (
    convolution,
    elementwise,
    gather,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    shape,
    slicing,
    sorting,
)
from castiron.graph.ops.rule import Site, Types

Rule = Callable[[Site], Types]

RULES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.UNARY, elementwise.unary),
    **dict.fromkeys(elementwise.ARITHMETIC, elementwise.binary),
    **dict.fromkeys(elementwise.COMPARISONS, elementwise.compare),
    **dict.fromkeys(elementwise.LOGIC, elementwise.compare),
    **dict.fromkeys(reduction.REDUCTIONS, reduction.reduce),
    "PRelu": elementwise.prelu,
    "Where": elementwise.where,
    "Cast": elementwise.cast,
    "CastLike": elementwise.cast,
    "Clip": elementwise.clip,
    "IsNaN": elementwise.is_nan,
    "IsInf": elementwise.is_nan,
    "Dropout": elementwise.dropout,
    "Fused": elementwise.fused,
    "Conv": convolution.conv,
    "ConvInteger": convolution.conv_integer,
    "QLinearConv": convolution.qlinear_conv,
    "ConvTranspose": convolution.conv_transpose,
    "DeformConv": convolution.deform_conv,
    "MaxPool": pooling.pool,
    "AveragePool": pooling.pool,
    "LpPool": pooling.pool,
    "GlobalAveragePool": pooling.global_pool,
    "GlobalMaxPool": pooling.global_pool,
    "GlobalLpPool": pooling.global_pool,
    "MaxUnpool": pooling.max_unpool,
    "RoiAlign": pooling.roi_align,
    "MaxRoiPool": pooling.max_roi_pool,
    "ArgMax": reduction.arg_reduce,
    "ArgMin": reduction.arg_reduce,
    "CumSum": reduction.cumulate,
    "CumProd": reduction.cumulate,
    "MatMul": matmul.matmul,
    "Gemm": matmul.gemm,
    "MatMulInteger": matmul.matmul_integer,
    "QLinearMatMul": matmul.qlinear_matmul,
    "Einsum": matmul.einsum,
    "Attention": matmul.attention,
    "BatchNormalization": normalization.batch_normalization,
    "LayerNormalization": normalization.layer_normalization,
    "InstanceNormalization": normalization.same,
    "GroupNormalization": normalization.group_normalization,
    "RMSNormalization": normalization.along_axis,
    "MeanVarianceNormalization": normalization.same,
    "LpNormalization": normalization.along_axis,
    "LRN": normalization.same,
    "RotaryEmbedding": normalization.same,
    "Softmax": normalization.along_axis,
    "LogSoftmax": normalization.along_axis,
    "Hardmax": normalization.along_axis,
    "Shape": shape.shape,
    "Size": shape.size,
    "DimsToTensor": shape.dims_to_tensor,
    "ConstantOfShape": shape.constant_of_shape,
    "Range": shape.range_,
    "EyeLike": shape.eye_like,
    "RandomNormal": shape.random,
    "RandomUniform": shape.random,
    "RandomNormalLike": shape.random,
    "RandomUniformLike": shape.random,
    "Bernoulli": shape.random,
    "HannWindow": shape.window_function,
    "HammingWindow": shape.window_function,
    "BlackmanWindow": shape.window_function,
    "Reshape": movement.reshape,
    "Squeeze": movement.squeeze,
    "Unsqueeze": movement.unsqueeze,
    "Flatten": movement.flatten,
    "Transpose": movement.transpose,
    "Expand": movement.expand,
    "Tile": movement.tile,
    "Slice": slicing.slice_,
    "Concat": slicing.concat,
    "Split": slicing.split,
    "Pad": slicing.pad,
    "Trilu": movement.trilu,
    "DepthToSpace": movement.depth_to_space,
    "SpaceToDepth": movement.space_to_depth,
    "Gather": gather.gather,
    "GatherElements": gather.gather_elements,
    "GatherND": gather.gather_nd,
    "ScatterElements": gather.scatter,
    "ScatterND": gather.scatter,
    "TensorScatter": gather.scatter,
    "OneHot": gather.one_hot,
    "NonZero": gather.non_zero,
    "Compress": gather.compress,
    "ReverseSequence": gather.reverse_sequence,
    "LSTM": recurrent.recurrent,
    "GRU": recurrent.recurrent,
    "RNN": recurrent.recurrent,
    "com.microsoft::DynamicQuantizeLSTM": recurrent.quantized_lstm,
    "Resize": resize.resize,
    "GridSample": resize.grid_sample,
    "AffineGrid": resize.affine_grid,
    "TopK": sorting.top_k,
    "Unique": sorting.unique,
    "NonMaxSuppression": sorting.non_max_suppression,
    "QuantizeLinear": quantization.quantize,
    "DequantizeLinear": quantization.dequantize,
    "DynamicQuantizeLinear": quantization.dynamic_quantize,
}


def infer_node(at: Site) -> Types | None:
    """The types of the node's outputs, in order; None for an op without a rule.

    A BuildError names the node, the input, the rule, what was expected and what was found.
    """
    infer = RULES.get(at.node.op)
    if infer is None:
        return None
    try:
        return infer(at)
    except errors.BuildError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, AttributeError) as e:
        at.fail(f"the type rule cannot use this node's attributes or inputs: {e!r}")
