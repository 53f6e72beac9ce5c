"""Ops of the com.microsoft domain as standard ops, and one standard op as smaller ones.

``TABLE`` names, for each op, the function that writes its parts. What stays whole and is run by
the evaluator is listed in ``INTERPRETED``. Formulas follow the operators' published definitions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from castiron.loader import onnx_versions
from castiron.loader.onnx_draft import Draft, Writer

Parts = Callable[[Draft, Writer], "Draft | None"]

INTERPRETED = frozenset({"com.microsoft::DynamicQuantizeLSTM"})


def _finish(draft: Draft, out: Writer, op: str, inputs: tuple[str, ...], **attrs: object) -> None:
    """The last part: it makes the draft's own first output."""
    out.put(Draft(op, inputs, draft.outputs[:1], attrs, name=draft.name))


def _scalar(value: float, draft: Draft, out: Writer, hint: str) -> str:
    return onnx_versions.float_like(value, draft.inputs[0], out, f"{draft.outputs[0]}_{hint}")


def bias_gelu(draft: Draft, out: Writer) -> None:
    """Gelu(x + bias)."""
    _finish(draft, out, "Gelu", (out.make("Add", draft.inputs, draft),), approximate="none")


def fast_gelu(draft: Draft, out: Writer) -> None:
    """The tanh form of Gelu(x + bias); the bias is optional."""
    x = draft.inputs[0]
    biased = out.make("Add", draft.inputs, draft) if draft.input(1) else x
    _finish(draft, out, "Gelu", (biased,), approximate="tanh")


def quick_gelu(draft: Draft, out: Writer) -> None:
    """x * sigmoid(alpha * x)."""
    x = draft.inputs[0]
    alpha = _scalar(draft.attrs.get("alpha", 1.702), draft, out, "alpha")
    sigmoid = out.make("Sigmoid", (out.make("Mul", (x, alpha), draft),), draft)
    _finish(draft, out, "Mul", (x, sigmoid))


def mean_variance_normalization(draft: Draft, out: Writer) -> None:
    """(x - mean) / (sqrt(variance) + 1e-9) over the given axes."""
    axes = out.constant(draft.attrs.get("axes", (0, 2, 3)), np.int64, f"{draft.outputs[0]}_axes")
    x = draft.inputs[0]
    mean = out.make("ReduceMean", (x, axes), draft)
    centred = out.make("Sub", (x, mean), draft)
    square = out.make("Mul", (centred, centred), draft)
    variance = out.make("ReduceMean", (square, axes), draft)
    spread = out.make("Sqrt", (variance,), draft)
    bounded = out.make("Add", (spread, _scalar(1e-9, draft, out, "epsilon")), draft)
    _finish(draft, out, "Div", (centred, bounded))


def fused_matmul(draft: Draft, out: Writer) -> Draft | None:
    """alpha * op(A) @ op(B), where op swaps the last two axes."""
    a, b = draft.inputs
    if draft.attrs.get("transBatchA") or draft.attrs.get("transBatchB"):
        raise onnx_versions.Refusal("FusedMatMul with transBatch is not supported")
    a = _swapped(a, draft, out) if draft.attrs.get("transA") else a
    b = _swapped(b, draft, out) if draft.attrs.get("transB") else b
    alpha = draft.attrs.get("alpha", 1.0)
    if alpha == 1.0:
        _finish(draft, out, "MatMul", (a, b))
        return None
    product = out.make("MatMul", (a, b), draft)
    _finish(draft, out, "Mul", (product, _scalar(alpha, draft, out, "alpha")))
    return None


def _swapped(name: str, draft: Draft, out: Writer) -> str:
    rank = out.hints.rank(name)
    if rank is None:
        raise onnx_versions.Refusal("FusedMatMul needs operands of known rank to transpose them")
    if rank < 2:
        return name
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return out.make("Transpose", (name,), draft, perm=perm)


def _activated(draft: Draft, out: Writer, op: str, inputs: tuple[str, ...]) -> None:
    """``op`` followed by the activation that a fused op names."""
    attrs = {k: v for k, v in draft.attrs.items() if not k.startswith("activation")}
    activation = draft.attrs.get("activation", "")
    if not activation:
        _finish(draft, out, op, inputs, **attrs)
        return
    value = out.make(op, inputs, draft, **attrs)
    params = draft.attrs.get("activation_params", ())
    if activation == "Clip":
        bounds = [_scalar(bound, draft, out, "bound") for bound in params]
        _finish(draft, out, "Clip", (value, *bounds))
        return
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    given = dict(zip(names, params, strict=False))
    given |= {
        key: draft.attrs[f"activation_{key}"] for key in names if f"activation_{key}" in draft.attrs
    }
    _finish(draft, out, activation, (value,), **given)


def fused_gemm(draft: Draft, out: Writer) -> None:
    """Gemm and an activation."""
    _activated(draft, out, "Gemm", draft.inputs)


def fused_conv(draft: Draft, out: Writer) -> None:
    """Conv, then an optional residual added, then an activation."""
    if not draft.input(3):
        _activated(draft, out, "Conv", draft.inputs[:3])
        return
    attrs = {k: v for k, v in draft.attrs.items() if not k.startswith("activation")}
    value = out.make("Conv", draft.inputs[:3], draft, **attrs)
    kept = {k: v for k, v in draft.attrs.items() if k.startswith("activation")}
    _activated(draft.change(attrs=kept), out, "Add", (value, draft.inputs[3]))


def skip_layer_normalization(draft: Draft, out: Writer) -> None:
    """LayerNormalization(x + skip + bias); the fourth output is the sum."""
    total = _skip_sum(draft, out, draft.input(4))
    inputs = (total, draft.inputs[2], *draft.inputs[3:4])
    epsilon = draft.attrs.get("epsilon", 1e-12)
    out.put(Draft("LayerNormalization", tuple(filter(None, inputs)), _norm_outputs(draft),
                  {"axis": -1, "epsilon": epsilon}, name=draft.name))  # fmt: skip


def skip_simplified_layer_normalization(draft: Draft, out: Writer) -> None:
    """RMSNormalization(x + skip + bias); the fourth output is the sum."""
    total = _skip_sum(draft, out, draft.input(3))
    _finish(draft, out, "RMSNormalization", (total, draft.inputs[2]),
            axis=-1, epsilon=draft.attrs.get("epsilon", 1e-12))  # fmt: skip


def simplified_layer_normalization(draft: Draft, out: Writer) -> None:
    """RMSNormalization under the name that it had before opset 23."""
    _finish(draft, out, "RMSNormalization", draft.inputs[:2],
            axis=draft.attrs.get("axis", -1), epsilon=draft.attrs.get("epsilon", 1e-5))  # fmt: skip


def _skip_sum(draft: Draft, out: Writer, bias: str) -> str:
    wanted = draft.outputs[3] if len(draft.outputs) > 3 else ""
    x = draft.inputs[0]
    if bias:
        x = out.make("Add", (x, bias), draft)
    if not wanted:
        return out.make("Add", (x, draft.inputs[1]), draft)
    out.put(Draft("Add", (x, draft.inputs[1]), (wanted,), name=f"{draft.name}_sum"))
    return wanted


def _norm_outputs(draft: Draft) -> tuple[str, ...]:
    outputs = draft.outputs[:3]
    while len(outputs) > 1 and not outputs[-1]:
        outputs = outputs[:-1]
    return outputs


def dynamic_quantize_matmul(draft: Draft, out: Writer) -> None:
    """A quantised on the fly, times the integer B, back to float, plus bias."""
    a, b, b_scale, b_zero, bias = (draft.input(index) for index in range(5))
    quantised = tuple(out.names.fresh(f"{draft.outputs[0]}_{part}") for part in ("q", "s", "z"))
    out.put(Draft("DynamicQuantizeLinear", (a,), quantised, name=f"{draft.name}_quantize"))
    integers, scale, zero = quantised
    _integer_product(draft, out, (integers, b, scale, b_scale, zero, b_zero, bias))


def matmul_integer_to_float(draft: Draft, out: Writer) -> None:
    """The integer product times both scales, plus bias."""
    _integer_product(draft, out, tuple(draft.input(index) for index in range(7)))


def _integer_product(draft: Draft, out: Writer, operands: tuple[str, ...]) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = operands
    inputs = [a, b, a_zero, b_zero]
    while not inputs[-1]:
        inputs.pop()
    product = out.make("MatMulInteger", tuple(inputs), draft)
    wide = out.make("Cast", (product,), draft, to=onnx.TensorProto.FLOAT)
    scale = out.make("Mul", (a_scale, b_scale), draft)
    if not bias:
        _finish(draft, out, "Mul", (wide, scale))
        return
    _finish(draft, out, "Add", (out.make("Mul", (wide, scale), draft), bias))


def standard(draft: Draft, _out: Writer) -> Draft:
    """The contributed op means what the standard one of that name means."""
    return draft.change(domain="", version=21)


TABLE: dict[str, Parts] = {
    "com.microsoft::BiasGelu": bias_gelu,
    "com.microsoft::DequantizeLinear": standard,
    "com.microsoft::DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "com.microsoft::FastGelu": fast_gelu,
    "com.microsoft::FusedConv": fused_conv,
    "com.microsoft::FusedGemm": fused_gemm,
    "com.microsoft::FusedMatMul": fused_matmul,
    "com.microsoft::Gelu": standard,
    "com.microsoft::MatMulIntegerToFloat": matmul_integer_to_float,
    "com.microsoft::QuantizeLinear": standard,
    "com.microsoft::QuickGelu": quick_gelu,
    "com.microsoft::SimplifiedLayerNormalization": simplified_layer_normalization,
    "com.microsoft::SkipLayerNormalization": skip_layer_normalization,
    "com.microsoft::SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
}

SUPPORTED = INTERPRETED | {name for name in TABLE if "::" in name}
