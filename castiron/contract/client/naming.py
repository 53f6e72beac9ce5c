"""Names of models as names in programs: whatever a model is called, what is generated compiles."""

from __future__ import annotations

import keyword
import re

_RESERVED = {"client", "json", "tensor", "castiron_client"}


def class_name(name: str) -> str:
    """``mobilenet-v2`` as ``MobilenetV2``; names of other scripts become ``Model``."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words)
    if not joined or joined[0].isdigit() or joined in {"Client", "Inputs", "Outputs", "Tensor"}:
        joined = f"Model{joined}"
    return joined


def file_name(name: str) -> str:
    """``mobilenet-v2`` as ``mobilenet_v2``, for modules in both languages."""
    joined = "_".join(re.findall(r"[a-z0-9]+", name.lower()))
    is_taken = not joined or joined[0].isdigit() or joined in _RESERVED or keyword.iskeyword(joined)
    return f"model_{joined}".rstrip("_") if is_taken else joined
