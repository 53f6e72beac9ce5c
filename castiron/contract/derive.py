"""A contract for a model that has none: what its signature and metadata say, and our defaults.

Its text is what ``castiron contract init`` writes, for people to go on from.
"""

from __future__ import annotations

from collections.abc import Mapping

from castiron.contract import document, model
from castiron.tensor import signature as signatures

_ROWS = 32


def derive(
    signature: signatures.Signature, metadata: Mapping[str, str], name: str = "model"
) -> model.Contract:
    """The contract inside the metadata if there is one, else one made from the signature.

    Raises ContractError when the metadata's own contract has a fault.
    """
    if held := metadata.get(document.METADATA_KEY):
        return document.parse(held, f"the contract inside {name}")
    return model.Contract(
        name=name,
        description=metadata.get("description", ""),
        input=tuple(map(_tensor, signature.inputs)),
        output=tuple(map(_tensor, signature.outputs)),
        limits=model.Limits(batch_rows=_ROWS if is_row_wise(signature) else 1, concurrency=1),
    )


def _tensor(spec: signatures.TensorSpec) -> model.Tensor:
    return model.Tensor(name=spec.name, datatype=spec.dtype.oip, shape=tuple(spec.dims))


def is_row_wise(signature: signatures.Signature) -> bool:
    """Whether every tensor's first dim is one symbol, so that requests can be put together."""
    firsts = {spec.dims[0] if spec.dims else 0 for spec in signature.inputs + signature.outputs}
    return len(firsts) == 1 and isinstance(next(iter(firsts)), str)
