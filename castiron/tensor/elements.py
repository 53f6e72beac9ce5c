"""How the elements of each dtype lie in numpy arrays and in bytes on a wire.

Numbers are little-endian, C order. BFLOAT16 is the type of ``ml_dtypes``. STRING travels as
``object`` arrays of ``str``; bytes that are not UTF-8 are kept as surrogate escapes, so every byte
string comes back as it was. numpy is imported on use.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from castiron.tensor.dtype import DType


def numpy_dtype(dtype: DType) -> np.dtype:
    """The numpy dtype that holds elements of ``dtype``."""
    found = _numpy_dtypes.get(dtype.name)
    return _find_numpy_dtype(dtype.name) if found is None else found


_numpy_dtypes: dict[str, np.dtype] = {}


def _find_numpy_dtype(name: str) -> np.dtype:
    import numpy as np

    found: np.dtype = np.dtype("object")
    if name == "bfloat16":
        import ml_dtypes

        found = np.dtype(ml_dtypes.bfloat16)
    elif name != "string":
        found = np.dtype(name)
    _numpy_dtypes[name] = found
    return found


def pack_strings(array: np.ndarray) -> bytes:
    """Each string as a four-byte little-endian length and its bytes, in C order.

    Elements may be ``str`` or ``bytes``.
    """
    parts: list[bytes] = []
    for item in array.reshape(-1).tolist():
        raw = item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
        parts.append(struct.pack("<I", len(raw)))
        parts.append(raw)
    return b"".join(parts)


def unpack_strings(data: bytes | memoryview, shape: tuple[int, ...]) -> np.ndarray:
    """The opposite of ``pack_strings``; ValueError says which string does not fit."""
    import numpy as np

    count = 1
    for dim in shape:
        count *= dim
    if count * 4 > len(data):
        raise ValueError(f"{count} strings need at least {count * 4} bytes, {len(data)} came")
    items = np.empty(count, object)
    position = 0
    for index in range(count):
        end = position + 4
        if end > len(data):
            raise ValueError(f"the length of string {index} is cut off at byte {len(data)}")
        size = int.from_bytes(data[position:end], "little")
        position = end + size
        if position > len(data):
            raise ValueError(f"string {index} needs {size} bytes, {len(data) - end} are left")
        items[index] = bytes(data[end:position]).decode("utf-8", "surrogateescape")
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes are left after the last string")
    return items.reshape(shape)
