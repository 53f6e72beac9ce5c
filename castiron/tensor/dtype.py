"""Element types: their names in numpy, ONNX, LLVM and the Open Inference Protocol.

One table, read by every other folder. It imports nothing, since the load path needs it.
"""


class DType:
    """One element type; compare by identity, look up through the functions below."""

    __slots__ = ("llvm", "name", "oip", "onnx_code", "size_bytes", "struct_code")

    def __init__(self, name: str, size_bytes: int, codes: tuple[int, str, str, str]) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.onnx_code, self.oip, self.llvm, self.struct_code = codes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return named, (self.name,)

    @property
    def is_float(self) -> bool:
        """Whether values are IEEE-like floating point."""
        return "float" in self.name

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is neither)."""
        return "int" in self.name

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.is_float or self.name.startswith("int")


# name: ONNX TensorProto code, Open Inference Protocol name, LLVM type in memory, struct code.
FLOAT32 = DType("float32", 4, (1, "FP32", "float", "f"))
UINT8 = DType("uint8", 1, (2, "UINT8", "i8", "B"))
INT8 = DType("int8", 1, (3, "INT8", "i8", "b"))
UINT16 = DType("uint16", 2, (4, "UINT16", "i16", "H"))
INT16 = DType("int16", 2, (5, "INT16", "i16", "h"))
INT32 = DType("int32", 4, (6, "INT32", "i32", "i"))
INT64 = DType("int64", 8, (7, "INT64", "i64", "q"))
STRING = DType("string", 0, (8, "BYTES", "", ""))
BOOL = DType("bool", 1, (9, "BOOL", "i8", "?"))
FLOAT16 = DType("float16", 2, (10, "FP16", "half", "e"))
FLOAT64 = DType("float64", 8, (11, "FP64", "double", "d"))
UINT32 = DType("uint32", 4, (12, "UINT32", "i32", "I"))
UINT64 = DType("uint64", 8, (13, "UINT64", "i64", "Q"))
BFLOAT16 = DType("bfloat16", 2, (16, "BF16", "bfloat", ""))

ALL = (
    FLOAT32, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, FLOAT64,
    UINT32, UINT64, BFLOAT16,
)  # fmt: skip

_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_ONNX_CODE = {dtype.onnx_code: dtype for dtype in ALL}
_BY_OIP = {dtype.oip: dtype for dtype in ALL}


def named(name: str) -> DType:
    """The dtype with this numpy-style name; KeyError when there is none."""
    return _BY_NAME[name]


def from_onnx(code: int) -> DType | None:
    """The dtype with this ONNX code, or None for kinds that castiron does not hold."""
    return _BY_ONNX_CODE.get(code)


def from_oip(name: str) -> DType | None:
    """The dtype with this Open Inference Protocol name, or None."""
    return _BY_OIP.get(name)
