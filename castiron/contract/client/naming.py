"""Names of models as names in programs: whatever a model is called, what is generated compiles."""

from __future__ import annotations

import keyword
import re

from castiron.contract import model

_RESERVED = {
    "application", "call", "castiron_client", "client", "errors", "json", "messages", "stream",
    "tensor",
}  # fmt: skip
# Names that the generated classes stand beside.
_TAKEN = {
    "Answer", "Client", "Image", "Inputs", "Input", "Literal", "NotRequired", "Options", "Outcome",
    "Outputs", "Question", "Tensor", "TypedDict",
}  # fmt: skip


def class_name(name: str) -> str:
    """``mobilenet-v2`` as ``MobilenetV2``; names of other scripts become ``Model``."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words)
    if not joined or joined[0].isdigit() or joined in _TAKEN:
        joined = f"Model{joined}"
    return joined


def file_name(name: str) -> str:
    """``mobilenet-v2`` as ``mobilenet_v2``, for modules in both languages."""
    joined = "_".join(re.findall(r"[a-z0-9]+", name.lower()))
    is_taken = not joined or joined[0].isdigit() or joined in _RESERVED or keyword.iskeyword(joined)
    return f"model_{joined}".rstrip("_") if is_taken else joined


def is_application(contract: model.Contract) -> bool:
    """Whether the model answers predict."""
    return bool(contract.schema.input) or contract.pipeline is not None


def answered(contract: model.Contract) -> tuple[model.Entry, ...]:
    """The values that predict is known to answer; none where only a pipeline knows."""
    if contract.schema.output or contract.pipeline is not None:
        return contract.schema.output
    return tuple(
        model.Entry(tensor.name, "tensor", tensor.name) for tensor in contract.output
    )  # fmt: skip


def is_text_only(entry: model.Entry) -> bool:
    """Whether an image is taken in JSON alone."""
    return entry.kind == "image" and entry.encodings == ("base64",)
