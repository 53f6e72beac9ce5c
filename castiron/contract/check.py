"""Whether a contract fits a model: every difference at once, each by the path of its field.

Called when a model is loaded and by ``castiron contract check``. Values of requests are
``validate.py``; whether two contracts agree is ``compare.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from castiron import errors
from castiron.contract import form, model
from castiron.tensor import signature as signatures


def check(contract: model.Contract, signature: signatures.Signature) -> list[str]:
    """Each mismatch as ``path: expected ..., found ...``, in the order of the contract."""
    return [
        *_side("input", contract.input, signature.inputs),
        *_side("output", contract.output, signature.outputs),
    ]


def require(contract: model.Contract, signature: signatures.Signature, source: str) -> None:
    """Raise ContractError with every mismatch, if there is one."""
    if mismatches := check(contract, signature):
        raise errors.ContractError(source, mismatches)


def _side(
    side: str, tensors: Sequence[model.Tensor], specs: Sequence[signatures.TensorSpec]
) -> Iterator[str]:
    known = {spec.name: spec for spec in specs}
    for index, tensor in enumerate(tensors):
        path = f"{side}[{index}]"
        if tensor.name in known:
            yield from _tensor(tensor, known[tensor.name], path)
        else:
            hint = form.nearest(tensor.name, known) or f"; it has {', '.join(known)}"
            yield f"{path}.name: the model has no {side} {tensor.name!r}{hint}"
    named = {tensor.name for tensor in tensors}
    for spec in specs:
        if spec.name not in named:
            yield f"{side}: the model's {side} {spec.name!r} is missing in the contract"


def _tensor(tensor: model.Tensor, spec: signatures.TensorSpec, path: str) -> Iterator[str]:
    if tensor.datatype != spec.dtype.oip:
        yield f"{path}.datatype: the model has {spec.dtype.oip}, found {tensor.datatype}"
    if len(tensor.shape) != len(spec.dims):
        yield (
            f"{path}.shape: the model has {len(spec.dims)} dims {list(spec.dims)}, "
            f"found {len(tensor.shape)}"
        )
        return
    for axis, (ours, theirs) in enumerate(zip(tensor.shape, spec.dims, strict=True)):
        # A number where the model has a symbol narrows it, which a contract may do.
        if isinstance(theirs, int) and ours != theirs:
            yield f"{path}.shape[{axis}]: the model has {theirs}, found {ours!r}"
    yield from _narrowed(tensor, spec, path)


def _narrowed(tensor: model.Tensor, spec: signatures.TensorSpec, path: str) -> Iterator[str]:
    for axis, (most, theirs) in enumerate(zip(tensor.max_dims, spec.dims, strict=False)):
        if most and isinstance(theirs, int) and theirs > most:
            yield f"{path}.max_dims[{axis}]: the model has {theirs}, found {most}"
