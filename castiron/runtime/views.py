"""Tensors as the machine sees them: an address, a shape, and whoever keeps the bytes alive.

Accepts numpy arrays and anything else with the buffer protocol; makes numpy arrays when numpy is
loaded already and memoryviews otherwise, so that a tiny model needs no numpy at all.
"""

from __future__ import annotations

import ctypes
import sys

from castiron import errors
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np

    from castiron.tensor.signature import TensorSpec

# numpy takes microseconds to make up a dtype's name.
_NAMES = {
    "<f4": "float32", "<f8": "float64", "<f2": "float16", "|b1": "bool", "|i1": "int8",
    "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32", "<u4": "uint32",
    "<i8": "int64", "<u8": "uint64",
}  # fmt: skip
# The size of some integer codes depends on who wrote them, so it is asked of the buffer.
_SIGNED, _UNSIGNED, _FLOATS = "bhilqn", "BHILQN", "efd"


class View:
    """Bytes at ``address`` with a shape; ``owner`` keeps them alive."""

    __slots__ = ("address", "dtype", "owner", "shape")

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...], owner: Any) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.owner = owner


def of(value: Any, spec: TensorSpec) -> View:
    """The value as row-major memory; InputError when it is no tensor of the spec's dtype."""
    np: Any = sys.modules.get("numpy")
    if np is not None and type(value) is np.ndarray:
        view = _of_array(value)
    elif hasattr(value, "__array_interface__"):
        # Scalars and the like: their interface names memory that may be gone already.
        import numpy as np

        view = _of_array(np.asarray(value))
    else:
        view = _of_buffer(value, spec)
    if view.dtype != spec.dtype.name:
        raise errors.InputError(
            f"expected dtype {spec.dtype.name}, found {view.dtype}; "
            f"convert it first, for example with x.astype({spec.dtype.name!r})",
            f"inputs.{spec.name}",
        )
    return view


def _of_array(array: np.ndarray) -> View:
    kind = array.dtype
    if not (kind.isnative and array.flags.c_contiguous):
        import numpy as np

        array = np.ascontiguousarray(array, kind.newbyteorder("=")).reshape(array.shape)
    name = _NAMES.get(array.dtype.str)
    if name is None:
        name = "string" if kind.kind in "OSU" else kind.name
    return View(_address_of(array), name, array.shape, array)


def _address_of(array: Any) -> int:
    """Where the elements lie. The first way is four times as fast, for what can be written."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):
        address: int = array.__array_interface__["data"][0]
        return address


def _of_buffer(value: Any, spec: TensorSpec) -> View:
    try:
        memory = memoryview(value)
    except TypeError:
        raise errors.InputError(
            f"expected a numpy array or a buffer, found {type(value).__name__}; "
            "make it one with numpy.asarray(x)",
            f"inputs.{spec.name}",
        ) from None
    shape = tuple(memory.shape or ())
    if memory.readonly or not memory.c_contiguous:
        owner = bytearray(memory.tobytes())
    else:
        owner = memory.cast("B") if memory.nbytes else bytearray(1)  # type: ignore[assignment]
    address = ctypes.addressof(ctypes.c_char.from_buffer(owner)) if len(owner) else 0
    return View(address, _dtype_of(memory), shape, owner)


def _dtype_of(memory: memoryview) -> str:
    """The dtype of a buffer's elements, or the format as it is where we know none."""
    code = memory.format.lstrip("@=<")
    bits = 8 * memory.itemsize
    if code == "?":
        return "bool"
    for kind, codes in (("int", _SIGNED), ("uint", _UNSIGNED), ("float", _FLOATS)):
        if len(code) == 1 and code in codes:
            return f"{kind}{bits}"
    return memory.format


def empty(dtype: str, shape: tuple[int, ...]) -> View:
    """New memory for a tensor: a numpy array when numpy is loaded, a memoryview otherwise.

    A memoryview without elements is flat, since it cannot have an extent of 0 beside others.
    """
    np: Any = sys.modules.get("numpy")
    if np is not None and dtype != "bfloat16":
        array = np.empty(shape, dtype)
        return View(_address_of(array), dtype, shape, array)
    if dtype == "bfloat16":
        import ml_dtypes
        import numpy as np

        array = np.empty(shape, ml_dtypes.bfloat16)
        return View(_address_of(array), dtype, shape, array)
    kind = dtypes.named(dtype)
    code: Any = kind.struct_code
    count = 1
    for extent in shape:
        count *= extent
    memory = bytearray(max(count * kind.size_bytes, 1))
    view = memoryview(memory)[: count * kind.size_bytes].cast(code)
    if count and len(shape) != 1:
        view = view.cast("B").cast(code, shape)
    return View(ctypes.addressof(ctypes.c_char.from_buffer(memory)), dtype, shape, view)


def of_result(value: Any, dtype: str) -> View:
    """An interpreter's result as row-major memory of the dtype that the plan counts on.

    ``dtype`` is "" where the model does not say it; the result is then kept as it is.
    """
    import numpy as np

    wanted = elements.numpy_dtype(dtypes.named(dtype)) if dtype else None
    array = np.ascontiguousarray(value, wanted).reshape(np.shape(value))
    return _of_array(array)
