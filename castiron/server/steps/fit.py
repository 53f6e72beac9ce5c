"""Whether declared steps can lead to and from a model's tensors: every mismatch at once.

Called at load beside ``contract.check``. Dims that follow from the client's picture are unknown
here and fit only where the model leaves them open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from castiron import errors
from castiron.contract import model, steps
from castiron.server.steps import folder
from castiron.tensor import dtype as dtypes

Dims = Sequence[int | str | None]


def mismatches(
    contract: model.Contract, found: folder.Folder, *, has_before: bool, has_after: bool
) -> list[str]:
    """Each as ``path: expected ..., found ...``; sides that a pipeline does are passed over."""
    lines: list[str] = []
    if contract.schema.input and not has_before:
        lines.extend(_inputs(contract, found))
    if contract.schema.output and not has_after:
        lines.extend(_outputs(contract, found))
    return lines


def _inputs(contract: model.Contract, found: folder.Folder) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in contract.input}
    made: dict[str, str] = {}
    for index, entry in enumerate(contract.schema.input):
        path = f"schema.input[{index}]"
        for name in _made_by(entry):
            if name not in tensors:
                yield f"{path}.steps: the model has no input {name!r}"
            elif name in made:
                yield f"{path}: the input {name!r} is made by {made[name]} already"
            made[name] = path
        if entry.optional and entry.tensor:
            yield f"{path}.optional: the model cannot do without its input {entry.tensor!r}"
        if entry.tensor in tensors:
            yield from _input(entry, tensors, path, found)
    for name in tensors:
        if name not in made:
            yield f"schema.input: no entry makes the model's input {name!r}"


def _made_by(entry: model.Entry) -> list[str]:
    names = [entry.tensor]
    for step in entry.steps:
        if isinstance(step, steps.Tokenize):
            names += [step.mask, step.segments]
    return [name for name in names if name]


def _input(
    entry: model.Entry, tensors: dict[str, model.Tensor], path: str, found: folder.Folder
) -> Iterator[str]:
    tensor = tensors[entry.tensor]
    if entry.kind == "image":
        yield from _image(entry, tensor, path)
    for index, step in enumerate(entry.steps):
        if isinstance(step, steps.Tokenize):
            yield from _tokens(step, entry, tensors, path)
            yield from _file(found, step.file, f"{path}.steps[{index}].file")
    if entry.kind == "table":
        yield from _dims((None, len(entry.columns)), tensor.shape[-2:], tensor, path)
    if entry.kind in {"number", "flag"}:
        yield from _dims((1,) * len(tensor.shape), tensor.shape, tensor, path)
    if entry.kind in {"labels", "boxes"}:
        yield f"{path}.kind: {entry.kind} as an input need a pipeline"
    if entry.kind == "text" and not entry.steps and tensor.datatype != dtypes.STRING.oip:
        yield f"{path}.steps: expected tokenize, since {tensor.name!r} is {tensor.datatype}"


def _image(entry: model.Entry, tensor: model.Tensor, path: str) -> Iterator[str]:
    height: int | None = None
    width: int | None = None
    for index, step in enumerate(entry.steps):
        here = f"{path}.steps[{index}]"
        if isinstance(step, steps.Crop) and ((height or 0) < step.height and height is not None):
            yield f"{here}.height: expected at most the {height} there are, found {step.height}"
        if isinstance(step, steps.Resize | steps.Crop):
            height, width = step.height, step.width
        if isinstance(step, steps.Normalise):
            channels = 1 if _mode(entry) == "L" else 3
            yield from _per_channel(step, channels, here)
            made: Dims = (1, channels, height, width)
            if step.layout == "NHWC":
                made = (1, height, width, channels)
            yield from _dims(made, tensor.shape, tensor, here)
    dtype = dtypes.from_oip(tensor.datatype)
    if dtype is not None and not (dtype.is_float or dtype.is_integer):
        yield f"{path}.tensor: {tensor.name!r} is {tensor.datatype}, which holds no picture"


def _mode(entry: model.Entry) -> str:
    return next((step.mode for step in entry.steps if isinstance(step, steps.DecodeImage)), "RGB")


def _per_channel(step: steps.Normalise, channels: int, path: str) -> Iterator[str]:
    for name in ("mean", "std"):
        count = len(getattr(step, name))
        if count not in {1, channels}:
            yield f"{path}.{name}: expected 1 or {channels} numbers, found {count}"


def _dims(made: Dims, wanted: Dims, tensor: model.Tensor, path: str) -> Iterator[str]:
    if len(made) != len(wanted):
        yield (
            f"{path}: makes {len(made)} dims, the model's {tensor.name!r} has "
            f"{len(tensor.shape)}: {list(tensor.shape)}"
        )
        return
    for axis, (ours, theirs) in enumerate(zip(made, wanted, strict=True)):
        if isinstance(theirs, int) and ours != theirs:
            shown = "what the request brings" if ours is None else ours
            yield f"{path}: makes {shown} in dim {axis}, the model's {tensor.name!r} has {theirs}"


def _tokens(
    step: steps.Tokenize, entry: model.Entry, tensors: dict[str, model.Tensor], path: str
) -> Iterator[str]:
    length = step.max_tokens if step.pads else None
    for name in (entry.tensor, step.mask, step.segments):
        if name not in tensors:
            continue
        dtype = dtypes.from_oip(tensors[name].datatype)
        if dtype is not None and not dtype.is_integer:
            yield f"{path}.steps: tokens are integers, {name!r} is {tensors[name].datatype}"
        yield from _dims((1, length), tensors[name].shape, tensors[name], f"{path}.steps")


def _file(found: folder.Folder, name: str, path: str) -> Iterator[str]:
    try:
        found.file(name)
    except errors.ContractError as fault:
        yield f"{path}: {name!r}: {fault.problems[0]}"


def _outputs(contract: model.Contract, found: folder.Folder) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in contract.output}
    for index, entry in enumerate(contract.schema.output):
        path = f"schema.output[{index}]"
        tensor = tensors.get(entry.tensor)
        if tensor is not None:
            yield from _output(entry, tensor, path, found)


def _output(
    entry: model.Entry, tensor: model.Tensor, path: str, found: folder.Folder
) -> Iterator[str]:
    if entry.kind == "image":
        yield f"{path}.kind: images as outputs need a pipeline"
    is_list = entry.kind in {"labels", "boxes"}
    if (is_list or (entry.kind == "text" and tensor.datatype != "BYTES")) and not entry.steps:
        yield f"{path}.steps: expected steps that make {entry.kind} of {tensor.datatype}"
    for index, step in enumerate(entry.steps):
        here = f"{path}.steps[{index}]"
        axis = getattr(step, "axis", None)
        if axis is not None and not -len(tensor.shape) <= axis < len(tensor.shape):
            yield f"{here}.axis: the model's {tensor.name!r} has {len(tensor.shape)} dims"
            continue
        yield from _names(step, entry, tensor, here, found)


def _names(
    step: steps.Step, entry: model.Entry, tensor: model.Tensor, path: str, found: folder.Folder
) -> Iterator[str]:
    """Names and characters are there, and as many as the model has classes."""
    if isinstance(step, steps.Nms):
        dim = tensor.shape[step.axis] if tensor.shape else 0
        if isinstance(dim, int) and dim < 4 + step.has_objectness:
            yield f"{path}.axis: a box has at least 4 numbers, the model's dim has {dim}"
    if not isinstance(step, steps.Labels | steps.BoxLabels | steps.CtcText):
        return
    try:
        count = len(found.names(step))
    except errors.ContractError as fault:
        yield f"{path}: {fault.source!r}: {fault.problems[0]}"
        return
    classes, word = _classes(step, entry, tensor)
    if isinstance(step, steps.CtcText):
        count += step.has_space
    if isinstance(classes, int) and classes != count:
        yield f"{path}: expected {classes} {word}, as many as the model's classes, found {count}"


def _classes(
    step: steps.Step, entry: model.Entry, tensor: model.Tensor
) -> tuple[int | str | None, str]:
    last = tensor.shape[-1] if tensor.shape else None
    if isinstance(step, steps.CtcText):
        return (last - 1 if isinstance(last, int) else last), "characters beside the blank"
    if isinstance(step, steps.Labels):
        return last, "names"
    nms = next((each for each in entry.steps if isinstance(each, steps.Nms)), None)
    dim = None if nms is None else tensor.shape[nms.axis]
    if nms is None or not isinstance(dim, int):
        return None, "names"
    return max(1, dim - 4 - nms.has_objectness), "names"
