"""Changes of applications' values, limits, timeouts, classes and promises between two contracts.

The part of ``compare.py`` that is not about tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from castiron.contract import bounds, model, steps
from castiron.contract.rules import Change, change


def bound(side: str, path: str, verdict: str, values: tuple[Any, Any]) -> Iterator[Change]:
    """A bound that narrowed or widened, or both, which are two changes."""
    if verdict in {bounds.NARROWED, bounds.MOVED}:
        yield change(path, f"{side}-narrowed", *values)
    if verdict in {bounds.WIDENED, bounds.MOVED}:
        yield change(path, f"{side}-widened", *values)


def entries(side: str, old: Sequence[model.Entry], new: Sequence[model.Entry]) -> Iterator[Change]:
    """Changes of what applications send (``input``) or get (``output``)."""
    before = {entry.name: entry for entry in old}
    now = {entry.name: entry for entry in new}
    come = [entry for entry in new if entry.name not in before]
    for name, entry in before.items():
        path = f"schema.{side}.{name}"
        if name in now:
            yield from _entry(side, path, entry, now[name])
            continue
        twin = next((e for e in come if dataclasses.replace(e, name=name) == entry), None)
        if twin is not None:
            come.remove(twin)
            yield change(path, "entry-renamed", name, twin.name)
        else:
            yield change(path, "entry-removed", name, None)
    for entry in come:
        need = "optional" if entry.optional else "required"
        rule = "output-entry-added" if side == "output" else f"{need}-entry-added"
        yield change(f"schema.{side}.{entry.name}", rule, None, entry.kind)


def _entry(side: str, path: str, old: model.Entry, new: model.Entry) -> Iterator[Change]:
    if old.kind != new.kind:
        yield change(f"{path}.kind", "kind-changed", old.kind, new.kind)
    if old.optional != new.optional:
        rule = "entry-optional" if new.optional else "entry-required"
        rule = f"output-{rule}" if side == "output" else rule
        yield change(f"{path}.optional", rule, old.optional, new.optional)
    for name, verdict in (
        ("languages", bounds.of_lists(old.languages, new.languages)),
        ("values", bounds.of_lists(old.values, new.values)),
        ("max_chars", bounds.of_most(old.max_chars, new.max_chars)),
        ("encodings", bounds.of_lists(old.encodings, new.encodings)),
        ("formats", bounds.of_lists(old.formats, new.formats)),
        ("max_pixels", bounds.of_most(old.max_pixels, new.max_pixels)),
        ("range", bounds.of_spans(old.range, new.range)),
        ("max_rows", bounds.of_most(old.max_rows, new.max_rows)),
    ):
        values = getattr(old, name), getattr(new, name)
        yield from bound(side, f"{path}.{name}", verdict, values)
    yield from _columns(side, path, old, new)
    yield from _labels(side, path, _labels_of(old), _labels_of(new))
    for name, rule in (("steps", "steps-changed"), ("tensor", "inside-changed"),
                       ("description", "text-changed")):  # fmt: skip
        if getattr(old, name) != getattr(new, name):
            yield change(f"{path}.{name}", rule, getattr(old, name), getattr(new, name))


def _labels_of(entry: model.Entry) -> tuple[str, ...]:
    """The labels or characters that an entry is made of, where the contract lists them."""
    for step in entry.steps:
        if isinstance(step, steps.Labels | steps.BoxLabels):
            return step.names
        if isinstance(step, steps.CtcText):
            return tuple(step.characters)
    return ()


def _labels(side: str, path: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Change]:
    place = f"{path}.labels"
    yield from bound(side, place, bounds.of_lists(old, new), (old, new))
    shared = set(old) & set(new)
    if any(old.index(label) != new.index(label) for label in shared):
        yield change(place, "labels-moved", old, new)


def _columns(side: str, path: str, old: model.Entry, new: model.Entry) -> Iterator[Change]:
    before = tuple(column.name for column in old.columns)
    now = tuple(column.name for column in new.columns)
    if before != now:
        yield change(f"{path}.columns", "columns-changed", before, now)
        return
    for one, other in zip(old.columns, new.columns, strict=True):
        place = f"{path}.columns.{one.name}"
        verdict = bounds.of_spans(one.range, other.range)
        yield from bound(side, f"{place}.range", verdict, (one.range, other.range))
        if one.unit != other.unit:
            yield change(f"{place}.unit", "columns-changed", one.unit, other.unit)


def service(old: model.Contract, new: model.Contract) -> Iterator[Change]:
    """Changes of limits, timeouts, classes, promises, and of what clients do not see."""
    for item in dataclasses.fields(model.Limits):
        values = getattr(old.limits, item.name), getattr(new.limits, item.name)
        yield from _limit(f"limits.{item.name}", *values)
    for name in ("default_ms", "maximum_ms"):
        before, now = getattr(old.timeout, name), getattr(new.timeout, name)
        if before != now:
            rule = "timeout-lowered" if now < before else "timeout-raised"
            yield change(f"timeout.{name}", rule, before, now)
    yield from _promise("sla.p99_ms", old.sla.p99_ms, new.sla.p99_ms, less_is_better=True)
    for name in ("throughput_per_s", "availability"):
        values = getattr(old.sla, name), getattr(new.sla, name)
        yield from _promise(f"sla.{name}", *values, less_is_better=False)
    yield from _classes(old.priority, new.priority)
    for name in ("alerts", "release"):
        before, now = getattr(old, name), getattr(new, name)
        for item in dataclasses.fields(before):
            yield from _inside(f"{name}.{item.name}", before, now, item.name)
    for name in ("golden", "pipeline"):
        yield from _inside(name, old, new, name)


def _inside(path: str, old: Any, new: Any, name: str) -> Iterator[Change]:
    before, now = getattr(old, name), getattr(new, name)
    if before != now:
        yield change(path, "inside-changed", before, now)


def _limit(path: str, old: float | None, new: float | None) -> Iterator[Change]:
    if old == new:
        return
    if old is None or new is None:
        yield change(path, "limit-added" if old is None else "limit-removed", old, new)
    else:
        yield change(path, "limit-lowered" if new < old else "limit-raised", old, new)


def _promise(
    path: str, old: float | None, new: float | None, *, less_is_better: bool
) -> Iterator[Change]:
    if old == new:
        return
    is_weaker = new is None or (old is not None and (new > old) == less_is_better)
    rule = "promise-weakened" if is_weaker else "promise-strengthened"
    yield change(path, rule, old, new)


def _classes(old: model.Priority, new: model.Priority) -> Iterator[Change]:
    for name in old.classes:
        if name not in new.classes:
            yield change(f"priority.classes.{name}", "class-removed", name, None)
    for name in new.classes:
        if name not in old.classes:
            yield change(f"priority.classes.{name}", "class-added", None, name)
    before = [name for name in old.classes if name in new.classes]
    now = [name for name in new.classes if name in old.classes]
    for name in before:
        was, is_now = before.index(name), now.index(name)
        if was != is_now:
            rule = "class-demoted" if is_now > was else "class-promoted"
            yield change(f"priority.classes.{name}", rule, was, is_now)
    if old.default == new.default:
        return
    known = list(new.classes)
    is_lower = old.default not in known or known.index(new.default) > known.index(old.default)
    rule = "default-class-demoted" if is_lower else "default-class-promoted"
    yield change("priority.default", rule, old.default, new.default)
