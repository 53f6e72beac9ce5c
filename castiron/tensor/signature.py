"""A model's signature: the name, dtype and dims of each input and output.

Dims are ``int`` where the model is static and a symbol's name where it is not. Used by the
runtime and the server; imports nothing heavy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from castiron.tensor.dtype import DType


class TensorSpec:
    """One input or output of a model."""

    __slots__ = ("dims", "dtype", "name")

    def __init__(self, name: str, dtype: DType, dims: tuple[int | str, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims

    def __repr__(self) -> str:
        dims = ", ".join(str(dim) for dim in self.dims)
        return f"{self.name}: {self.dtype}[{dims}]"


class Signature:
    """All inputs and outputs of a model, in order."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.inputs))}) -> ({', '.join(map(repr, self.outputs))})"
