"""What changed between two contracts of a model, and which changes break its clients.

``diff`` lists every change, those that break first. Tensors are compared here, applications'
values and the service in ``compare_service.py``; verdicts are ``rules.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from castiron.contract import bounds, compare_service, model, rules
from castiron.contract.rules import Change, change


def diff(old: model.Contract, new: model.Contract) -> list[Change]:
    """Every change from ``old`` to ``new``, those that break clients first."""
    found = [
        *_names(old, new),
        *_tensors("input", old.input, new.input),
        *_tensors("output", old.output, new.output),
        *_ties(old, new),
        *compare_service.entries("input", old.schema.input, new.schema.input),
        *compare_service.entries("output", old.schema.output, new.schema.output),
        *compare_service.service(old, new),
    ]
    return sorted(found, key=lambda item: not item.rule.is_breaking)


def breaking(changes: Sequence[Change]) -> list[Change]:
    """Those that break clients."""
    return [item for item in changes if item.rule.is_breaking]


def _names(old: model.Contract, new: model.Contract) -> Iterator[Change]:
    if old.name != new.name:
        yield change("name", "model-renamed", old.name, new.name)
    if old.description != new.description:
        yield change("description", "text-changed", old.description, new.description)


def _tensors(
    side: str, old: Sequence[model.Tensor], new: Sequence[model.Tensor]
) -> Iterator[Change]:
    before = {tensor.name: tensor for tensor in old}
    now = {tensor.name: tensor for tensor in new}
    gone = [tensor for tensor in old if tensor.name not in now]
    come = [tensor for tensor in new if tensor.name not in before]
    for tensor in gone:
        twin = next((t for t in come if _is_alike(tensor, t)), None)
        if twin is None:
            yield change(f"{side}.{tensor.name}", f"{side}-removed", tensor.name, None)
        else:
            come.remove(twin)
            yield change(f"{side}.{tensor.name}", f"{side}-renamed", tensor.name, twin.name)
            yield from _tensor(side, tensor, twin)
    for tensor in come:
        yield change(f"{side}.{tensor.name}", f"{side}-added", None, tensor.name)
    kept = [name for name in before if name in now]
    for name in kept:
        yield from _tensor(side, before[name], now[name])
    if kept != [name for name in now if name in before]:
        yield change(side, "reordered", tuple(before), tuple(now))


def _is_alike(one: model.Tensor, other: model.Tensor) -> bool:
    """Whether a name that went and a name that came are probably the same tensor."""
    return one.datatype == other.datatype and len(one.shape) == len(other.shape)


def _tensor(side: str, old: model.Tensor, new: model.Tensor) -> Iterator[Change]:
    path = f"{side}.{old.name}"
    if old.datatype != new.datatype:
        yield change(f"{path}.datatype", "datatype-changed", old.datatype, new.datatype)
    if len(old.shape) != len(new.shape):
        yield change(f"{path}.shape", "rank-changed", old.shape, new.shape)
    else:
        for axis, (before, now) in enumerate(zip(old.shape, new.shape, strict=True)):
            yield from _dim(side, f"{path}.shape[{axis}]", before, now)
    if old.description != new.description:
        yield change(f"{path}.description", "text-changed", old.description, new.description)
    for name, verdict in (
        ("range", bounds.of_spans(old.range, new.range)),
        ("allowed", bounds.of_lists(old.allowed, new.allowed)),
        ("nan", bounds.of_words(old.nan, new.nan)),
        ("infinity", bounds.of_words(old.infinity, new.infinity)),
        ("max_bytes", bounds.of_most(old.max_bytes, new.max_bytes)),
        ("max_dims", bounds.of_extents(old.max_dims, new.max_dims)),
    ):
        yield from compare_service.bound(side, f"{path}.{name}", verdict, _pair(old, new, name))


def _pair(old: Any, new: Any, name: str) -> tuple[Any, Any]:
    return getattr(old, name), getattr(new, name)


def _dim(side: str, path: str, old: int | str, new: int | str) -> Iterator[Change]:
    if isinstance(old, str) and isinstance(new, str):
        return  # what a symbol is called is nobody's business; see _ties
    if isinstance(old, int) and isinstance(new, int):
        if old != new:
            yield change(path, "dim-changed", old, new)
        return
    what = "fixed" if isinstance(new, int) else "freed"
    yield change(path, f"{side}-dim-{what}", old, new)


_Place = tuple[str, str, int]  # side, tensor, axis


def _ties(old: model.Contract, new: model.Contract) -> Iterator[Change]:
    """Dims that share a symbol are equal; which do may change."""
    before, now = _symbols(old), _symbols(new)
    shared = [place for place in before if place in now]
    known = _as_clients_know(before, now)
    for one, other in itertools.combinations(shared, 2):
        was, is_now = before[one] == before[other], now[one] == now[other]
        path = f"{_place(one)} and {_place(other)}"
        values = (f"{before[one]}, {before[other]}", f"{now[one]}, {now[other]}")
        if "output" not in {one[0], other[0]}:
            if was != is_now:
                yield change(path, "dims-tied" if is_now else "input-dims-untied", *values)
        elif was and known[now[one]] != known[now[other]]:
            yield change(path, "output-dims-untied", *values)


def _as_clients_know(before: dict[_Place, str], now: dict[_Place, str]) -> dict[str, str]:
    """New symbols, those put together that are equal in the requests of old clients."""
    known = {symbol: symbol for symbol in now.values()}
    inputs = [place for place in before if place in now and place[0] == "input"]
    for one, other in itertools.combinations(inputs, 2):
        if before[one] == before[other]:
            kept, gone = known[now[one]], known[now[other]]
            known = {symbol: kept if root == gone else root for symbol, root in known.items()}
    return known


def _symbols(contract: model.Contract) -> dict[_Place, str]:
    return {
        (side, tensor.name, axis): dim
        for side, tensors in (("input", contract.input), ("output", contract.output))
        for tensor in tensors
        for axis, dim in enumerate(tensor.shape)
        if isinstance(dim, str)
    }


def _place(place: _Place) -> str:
    side, name, axis = place
    return f"{side}.{name}.shape[{axis}]"


__all__ = ["Change", "breaking", "diff", "rules"]
