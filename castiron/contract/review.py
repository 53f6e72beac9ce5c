"""What in a contract makes no sense by itself, before any model is looked at.

``problems`` lists every fault with its path. Words outside their lists name the nearest one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from castiron.contract import form, model, steps
from castiron.tensor import dtype as dtypes

KINDS = ("text", "image", "table", "number", "flag", "labels", "boxes", "tensor")
_RULES = ("switch", "canary", "shadow", "manual")
_POLICIES = ("allow", "refuse")
_ENCODINGS = ("base64", "raw")
_FORMATS = ("jpeg", "png", "webp", "bmp", "gif", "tiff")
_DATATYPES = tuple(dtype.oip for dtype in dtypes.ALL)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_MAX_DIM = (1 << 31) - 1

# What an application's value is before its first step, or what it must be after the last.
_STARTS = {"text": steps.TEXT, "image": steps.ENCODED}
_ENDS = {"text": steps.TEXT, "labels": steps.RANKED, "boxes": steps.BOXES}
_WORDS_OF_STEPS = {
    "mode": ("RGB", "BGR", "L"),
    "how": ("stretch", "fit", "crop"),
    "filter": ("nearest", "bilinear", "bicubic", "lanczos"),
    "layout": ("NCHW", "NHWC"),
    "form": ("xyxy", "cxcywh"),
}


def problems(contract: model.Contract) -> list[str]:
    """Every fault, as ``path: expected ..., found ...``."""
    found: list[str] = []
    for side in ("input", "output"):
        tensors: tuple[model.Tensor, ...] = getattr(contract, side)
        found.extend(_repeated(side, [tensor.name for tensor in tensors]))
        for index, tensor in enumerate(tensors):
            found.extend(_tensor(tensor, f"{side}[{index}]"))
        entries: tuple[model.Entry, ...] = getattr(contract.schema, side)
        found.extend(_repeated(f"schema.{side}", [entry.name for entry in entries]))
        for index, entry in enumerate(entries):
            known = [tensor.name for tensor in tensors]
            found.extend(_entry(entry, f"schema.{side}[{index}]", side, known))
    found.extend(_service(contract))
    found.extend(_release(contract.release))
    found.extend(_golden(contract))
    return found


def _repeated(path: str, names: Sequence[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{path}: the name {name!r} is there {count} times"


def _word(path: str, word: str, known: Iterable[str]) -> Iterator[str]:
    known = tuple(known)
    if word not in known:
        yield f"{path}: expected one of {', '.join(known)}, found {word!r}" + form.nearest(
            word, known
        )


def _span(path: str, span: tuple[float, float] | None) -> Iterator[str]:
    if span is None:
        return
    if any(math.isnan(end) for end in span):
        yield f"{path}: expected numbers, found NaN"
    elif span[0] > span[1]:
        yield f"{path}: expected the least value first, found {list(span)}"


def _tensor(tensor: model.Tensor, path: str) -> Iterator[str]:
    yield from _word(f"{path}.datatype", tensor.datatype, _DATATYPES)
    yield from _word(f"{path}.nan", tensor.nan, _POLICIES)
    yield from _word(f"{path}.infinity", tensor.infinity, _POLICIES)
    yield from _span(f"{path}.range", tensor.range)
    for axis, dim in enumerate(tensor.shape):
        if isinstance(dim, int) and not 0 <= dim <= _MAX_DIM:
            yield f"{path}.shape[{axis}]: expected 0 to {_MAX_DIM} or a symbol, found {dim}"
    if tensor.max_dims and len(tensor.max_dims) != len(tensor.shape):
        yield f"{path}.max_dims: expected {len(tensor.shape)} numbers, one for each dim"
    dtype = dtypes.from_oip(tensor.datatype)
    if dtype is not None:
        yield from _fitting(tensor, dtype, path)


def _fitting(tensor: model.Tensor, dtype: dtypes.DType, path: str) -> Iterator[str]:
    """Constraints that values of this dtype can have."""
    is_number = dtype.is_float or dtype.is_integer
    if tensor.range is not None and not is_number:
        yield f"{path}.range: {dtype.oip} has no order; use allowed"
    for name in ("nan", "infinity"):
        if getattr(tensor, name) == "refuse" and not dtype.is_float:
            yield f"{path}.{name}: {dtype.oip} has no such value"
    if tensor.max_bytes is not None and dtype is not dtypes.STRING:
        yield f"{path}.max_bytes: only BYTES have lengths, this is {dtype.oip}"
    kinds: set[type] = {int, float} if dtype.is_float else {int}
    if not is_number:
        kinds = {bool} if dtype is dtypes.BOOL else {str}
    for index, value in enumerate(tensor.allowed):
        if type(value) not in kinds:
            yield f"{path}.allowed[{index}]: expected a value of {dtype.oip}, found {value!r}"
        elif dtype.is_integer and not _holds(dtype, int(value)):
            yield f"{path}.allowed[{index}]: {dtype.oip} does not hold {value}"


def _holds(dtype: dtypes.DType, value: int) -> bool:
    bits = 8 * dtype.size_bytes
    if dtype.is_signed:
        return -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    return 0 <= value < 1 << bits


def _entry(entry: model.Entry, path: str, side: str, tensors: list[str]) -> Iterator[str]:
    yield from _word(f"{path}.kind", entry.kind, KINDS)
    yield from _span(f"{path}.range", entry.range)
    if entry.tensor or side == "output" or entry.kind == "tensor":
        yield from _word(f"{path}.tensor", entry.tensor, tensors)
    for index, language in enumerate(entry.languages):
        if not _LANGUAGE.fullmatch(language):
            yield f"{path}.languages[{index}]: expected a tag such as en or pt-BR, found {language!r}"
    for index, word in enumerate(entry.encodings):
        yield from _word(f"{path}.encodings[{index}]", word, _ENCODINGS)
    for index, word in enumerate(entry.formats):
        yield from _word(f"{path}.formats[{index}]", word, _FORMATS)
    if entry.kind == "table" and not entry.columns:
        yield f"{path}.columns: expected at least one column, found none"
    yield from _repeated(f"{path}.columns", [column.name for column in entry.columns])
    for index, column in enumerate(entry.columns):
        yield from _span(f"{path}.columns[{index}].range", column.range)
    yield from _chain(entry, path, side)
    for index, step in enumerate(entry.steps):
        yield from _step(step, f"{path}.steps[{index}]")


def _chain(entry: model.Entry, path: str, side: str) -> Iterator[str]:
    """Each step must get what it takes, and the last make what is wanted."""
    here = _STARTS.get(entry.kind, steps.ARRAY) if side == "input" else steps.ARRAY
    for index, step in enumerate(entry.steps):
        if here != step.TAKES:
            op = steps.OP_OF[type(step)]
            yield f"{path}.steps[{index}]: {op} takes {step.TAKES}, here comes {here}"
            return
        here = step.MAKES
    wanted = steps.ARRAY if side == "input" else _ENDS.get(entry.kind, steps.ARRAY)
    if here != wanted and entry.tensor and (entry.steps or entry.kind == "image"):
        yield f"{path}.steps: expected {wanted} in the end, found {here}"


def _step(step: steps.Step, path: str) -> Iterator[str]:
    for name, words in _WORDS_OF_STEPS.items():
        if hasattr(step, name):
            yield from _word(f"{path}.{name}", getattr(step, name), words)
    for name in ("height", "width", "multiple", "max_width", "max_tokens", "k", "max_boxes"):
        value = getattr(step, name, None)
        if value is not None and value < 1:
            yield f"{path}.{name}: expected at least 1, found {value}"
    if isinstance(step, steps.Normalise):
        if len(step.mean) not in {1, 3} or len(step.std) not in {1, 3}:
            yield f"{path}: expected one mean and std, or one for each of three channels"
        if 0 in step.std:
            yield f"{path}.std: nothing can be divided by 0"
    if isinstance(step, steps.Labels | steps.BoxLabels | steps.CtcText):
        sources = ("file", "names", "characters", "metadata")
        given = [name for name in sources if getattr(step, name, "")]
        if len(given) != 1:
            known = ", ".join(name for name in sources if hasattr(step, name))
            yield f"{path}: expected exactly one of {known}, found {' and '.join(given) or 'none'}"


def _at_least(path: str, record: Any, least: float, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(record, name)
        if value is not None and not value >= least:
            yield f"{path}.{name}: expected at least {least:g}, found {value}"


def _shares(path: str, record: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 <= value <= 1:
            yield f"{path}.{name}: expected a share from 0 to 1, found {value}"


def _service(contract: model.Contract) -> Iterator[str]:
    counts = ("burst", "body_bytes", "queue_requests", "queue_rows", "queue_bytes", "batch_rows",
              "concurrency")  # fmt: skip
    yield from _at_least("limits", contract.limits, 1, counts)
    yield from _at_least("limits", contract.limits, 0, ["rate_per_s"])
    yield from _at_least("sla", contract.sla, 0, ["p99_ms", "throughput_per_s"])
    yield from _shares("sla", contract.sla, ["availability"])
    yield from _shares("alerts", contract.alerts, ["error_share", "queue_share", "refused_share"])
    yield from _at_least("timeout", contract.timeout, 1, ["default_ms", "maximum_ms"])
    if contract.timeout.default_ms > contract.timeout.maximum_ms:
        yield "timeout.default_ms: expected at most maximum_ms"
    limits = contract.limits
    if limits.batch_rows and limits.queue_rows and limits.batch_rows > limits.queue_rows:
        yield "limits.batch_rows: expected at most queue_rows, since a batch comes from the queue"
    if limits.burst is not None and limits.rate_per_s is None:
        yield "limits.burst: expected rate_per_s beside it"
    priority = contract.priority
    if not priority.classes:
        yield "priority.classes: expected at least one"
    else:
        yield from _word("priority.default", priority.default, priority.classes)
    yield from _repeated("priority.classes", priority.classes)
    if contract.pipeline is not None:
        yield from _at_least("pipeline", contract.pipeline, 1, ["processes", "timeout_ms"])
        if not contract.pipeline.file.endswith(".py"):
            yield f"pipeline.file: expected a Python file, found {contract.pipeline.file!r}"


def _release(release: model.Release) -> Iterator[str]:
    yield from _word("release.rule", release.rule, _RULES)
    yield from _shares("release", release, ["max_error_share", "min_agreement"])
    yield from _at_least("release", release, 0, ["hold_s", "min_requests", "max_p99_ratio"])
    if (release.rule == "canary") != bool(release.shares):
        yield "release.shares: expected shares for a canary, and for nothing else"
    if any(not 0 < share <= 1 for share in release.shares):
        yield f"release.shares: expected shares up to 1, found {list(release.shares)}"
    if list(release.shares) != sorted(set(release.shares)):
        yield f"release.shares: expected growing shares, found {list(release.shares)}"


def _golden(contract: model.Contract) -> Iterator[str]:
    yield from _repeated("golden", [case.name for case in contract.golden])
    for index, case in enumerate(contract.golden):
        path = f"golden[{index}]"
        yield from _at_least(path, case, 0, ["rtol", "atol"])
        if bool(case.file) == bool(case.inputs):
            yield f"{path}: expected either a file or inputs"
            continue
        yield from _samples(f"{path}.inputs", case.inputs, contract.input)
        yield from _samples(f"{path}.outputs", case.outputs, contract.output)


def _samples(
    path: str, samples: Mapping[str, model.Sample], tensors: Sequence[model.Tensor]
) -> Iterator[str]:
    for name, sample in samples.items():
        yield from _word(f"{path}.{name}", name, [tensor.name for tensor in tensors])
        count = math.prod(sample.shape)
        if count != len(sample.data):
            yield f"{path}.{name}.data: expected {count} values, found {len(sample.data)}"
