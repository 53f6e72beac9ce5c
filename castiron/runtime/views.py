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

    from castiron.tensor.signature import TensorSpec

_TYPESTRS = {
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
    interface = getattr(value, "__array_interface__", None)
    view = _of_array(value, interface) if interface is not None else _of_buffer(value, spec)
    if view.dtype != spec.dtype.name:
        raise errors.InputError(
            f"expected dtype {spec.dtype.name}, found {view.dtype}; "
            f"convert it first, for example with x.astype({spec.dtype.name!r})",
            f"inputs.{spec.name}",
        )
    return view


def _of_array(value: Any, interface: dict[str, Any]) -> View:
    loaded: Any = sys.modules.get("numpy")
    if loaded is None or not isinstance(value, loaded.ndarray):
        # A numpy scalar's interface, for one, names memory that is gone already.
        import numpy as np

        value = np.asarray(value)
        interface = value.__array_interface__
    if interface["strides"] is not None or interface["typestr"][0] == ">":
        import numpy as np

        native = value.dtype.newbyteorder("=")
        value = np.ascontiguousarray(value, dtype=native).reshape(value.shape)
        interface = value.__array_interface__
    dtype = _TYPESTRS.get(interface["typestr"])
    if dtype is None:
        dtype = "string" if value.dtype.kind in "OSU" else str(value.dtype.name)
    return View(interface["data"][0], dtype, interface["shape"], value)


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
        return View(array.__array_interface__["data"][0], dtype, shape, array)
    if dtype == "bfloat16":
        import ml_dtypes

        array = np.empty(shape, ml_dtypes.bfloat16)
        return View(array.ctypes.data, dtype, shape, array)
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
    return _of_array(array, array.__array_interface__)
