"""Alert rules for Prometheus, made from what contracts promise, and promtool's tests of them.

``document`` gives the rule file; ``tests`` gives a file for ``promtool test rules`` in which each
alert of a model is shown series just above its threshold, and just below. ``api.dashboard`` writes
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from castiron.telemetry import families, watched

RULES_FILE = "castiron-rules.yaml"
TESTS_FILE = "castiron-rules-test.yaml"
_RATE = "1m"
_STEP_S = 15
_Document = dict[str, Any]
_Series = list[tuple[str, float, float]]  # name and labels, first value, growth for each step


def document(models: Sequence[watched.Watched]) -> _Document:
    """The rule file: one group for the servers, one for each model."""
    groups = [{"name": "castiron", "rules": list(_of_servers())}]
    for each in models:
        rules = [_rule(*entry) for entry in _of_model(each)]
        if rules:
            groups.append({"name": f"castiron model {each.model}", "rules": rules})
    return {"groups": groups}


_Entry = tuple[str, str, str, float, Mapping[str, str]]  # alert, expression, says, for s, labels


def _of_model(each: watched.Watched) -> Iterable[_Entry]:
    matcher, labels = watched.of_model(each.model), {"model": each.model, "severity": "page"}
    if each.p99_s is not None:
        p99 = watched.quantile(0.99, families.LATENCY.name, matcher, "", _RATE)
        says = f"99 of 100 requests of {each.model} take longer than {each.p99_s * 1e3:g} ms"
        yield "CastironSlow", f"{p99} > {each.p99_s:g}", says, each.window_s, labels
    if each.error_share is not None and each.error_share < 1:
        share = watched.share(watched.FAULTS, matcher, _RATE)
        says = f"More than {each.error_share:.3%} of the requests of {each.model} fail"
        yield "CastironFailing", f"{share} > {each.error_share:g}", says, each.window_s, labels
    labels = {**labels, "severity": "warn"}
    if each.refused_share is not None and each.refused_share < 1:
        share = watched.share(watched.REFUSALS, matcher, _RATE)
        says = f"More than {each.refused_share:.3%} of the requests of {each.model} are refused"
        yield "CastironRefusing", f"{share} > {each.refused_share:g}", says, each.window_s, labels
    if each.queue_share is not None:
        fill = watched.queue_fill(matcher)
        says = f"The queue of {each.model} is more than {each.queue_share:.0%} full"
        yield "CastironQueueFull", f"{fill} > {each.queue_share:g}", says, each.window_s, labels


def _of_servers() -> Iterable[_Document]:
    ready, pool = families.READY.name, families.POOL["fragmentation_ratio"].name
    restarts, busy = families.RESTARTS.name, families.BUSY.name
    workers = families.WORKERS.name
    missing = (
        f"sum by (instance) ({families.ACCEPTED.name}) - sum by (instance) ({families.ENDED.name})"
        f" - sum by (instance) ({families.IN_FLIGHT.name}) != 0"
    )
    yield _rule(
        "CastironVersionNotReady", f"{ready} == 0",
        "A version that is declared does not answer", 300, {"severity": "warn"},
    )  # fmt: skip
    yield _rule(
        "CastironRestarting", f"sum by (instance) (increase({restarts}[10m])) > 3",
        "Workers were replaced more than three times within ten minutes", 0, {"severity": "page"},
    )  # fmt: skip
    yield _rule(
        "CastironSaturated",
        f"sum by (instance) (rate({busy}[{_RATE}])) / on (instance)"
        f" (max by (instance) ({workers}) or sum by (instance) (rate({busy}[{_RATE}])) * 0 + 1)"
        " > 0.95",
        "The device runs nearly all of the time", 300, {"severity": "warn"},
    )  # fmt: skip
    yield _rule(
        "CastironOutcomesMissing", missing,
        "Requests that were accepted have no outcome; this is a fault of castiron", 300,
        {"severity": "warn"},
    )  # fmt: skip
    yield _rule(
        "CastironMemoryFragmented", f"{pool} > 0.9",
        "The pool's free memory lies in small pieces", 1800, {"severity": "warn"},
    )  # fmt: skip
    yield _rule(
        "CastironTracesLost",
        f'sum by (instance) (rate({families.SPANS.name}{{fate="dropped"}}[5m])) > 0',
        "Spans are dropped; is the receiver there and fast enough?", 600, {"severity": "warn"},
    )  # fmt: skip


def _rule(
    alert: str, expression: str, says: str, for_s: float, labels: Mapping[str, str]
) -> _Document:
    made: _Document = {"alert": alert, "expr": expression}
    if for_s:
        made["for"] = f"{round(for_s)}s"
    written = {name: _literal(value) for name, value in labels.items()}
    return {**made, "labels": written, "annotations": {"summary": _literal(says)}}


def _literal(text: str) -> str:
    """Text that Prometheus, which takes labels and annotations for templates, gives back as is."""
    return text.replace("{{", '{{ "{{" }}')


# Tests of the rules.


def tests(models: Sequence[watched.Watched]) -> _Document:
    """A file for ``promtool test rules`` beside the rule file."""
    cases = [
        _case(each, entry, is_above=is_above)
        for each in models
        for entry in _of_model(each)
        for is_above in (True, False)
    ]
    for rule in _of_servers():
        cases += [_server_case(rule, is_above=is_above) for is_above in (True, False)]
    return {"rule_files": [RULES_FILE], "evaluation_interval": f"{_STEP_S}s", "tests": cases}


def _case(each: watched.Watched, entry: _Entry, *, is_above: bool) -> _Document:
    alert, _, says, for_s, labels = entry
    firing = {"exp_labels": dict(labels), "exp_annotations": {"summary": says}}
    name = f"{alert} of {each.model}, {'above' if is_above else 'below'}"
    fires = firing if is_above else None
    return _test(name, alert, for_s, _SERIES[alert](each, is_above), fires)


def _server_case(rule: _Document, *, is_above: bool) -> _Document:
    alert = rule["alert"]
    series, found = _SERVER_SERIES[alert][is_above], _SERVER_LABELS[alert]
    firing = {
        "exp_labels": {**rule["labels"], **found},
        "exp_annotations": dict(rule["annotations"]),
    }
    name = f"{alert}, {'above' if is_above else 'below'}"
    for_s = float(rule.get("for", "0s").removesuffix("s"))
    return _test(name, alert, for_s, series, firing if is_above else None)


def _test(
    name: str, alert: str, for_s: float, series: _Series, firing: _Document | None
) -> _Document:
    # A rate needs its window of values before the alert can begin to wait.
    at_s = round(for_s) + 600
    num_steps = at_s // _STEP_S + 1
    return {
        "name": name,
        "interval": f"{_STEP_S}s",
        "input_series": [
            {"series": labelled, "values": f"{first:g}+{step:g}x{num_steps}"}
            for labelled, first, step in series
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{at_s}s",
                "alertname": alert,
                "exp_alerts": [firing] if firing else [],
            }
        ],
    }


def _latencies(each: watched.Watched, is_above: bool) -> _Series:
    """A tenth of all requests take twice, or half, as long as allowed."""
    assert each.p99_s is not None
    labels = f'{watched.of_model(each.model)},version="1"'
    name, took_s = families.LATENCY.name, each.p99_s * (2 if is_above else 0.5)
    bounds = sorted({took_s / 2, took_s, each.p99_s * 4})
    made: _Series = [
        (f'{name}_bucket{{{labels},le="{bound:g}"}}', 0, 90 if bound < took_s else 100)
        for bound in bounds
    ]
    return [*made, (f'{name}_bucket{{{labels},le="+Inf"}}', 0, 100)]


def _outcomes(each: watched.Watched, outcome: str, allowed: float, is_above: bool) -> _Series:
    labels = f'{watched.of_model(each.model)},version="1"'
    found = min(1.0, allowed * 1.5) if is_above else allowed * 0.5
    name = families.ENDED.name
    return [
        (f'{name}{{{labels},outcome="ok"}}', 0, 1e6 * (1 - found)),
        (f'{name}{{{labels},outcome="{outcome}"}}', 0, 1e6 * found),
    ]


def _faults(each: watched.Watched, is_above: bool) -> _Series:
    assert each.error_share is not None
    return _outcomes(each, "failed", each.error_share, is_above)


def _refusals(each: watched.Watched, is_above: bool) -> _Series:
    assert each.refused_share is not None
    return _outcomes(each, "overloaded", each.refused_share, is_above)


def _queue(each: watched.Watched, is_above: bool) -> _Series:
    """Two servers, of which one is as full as that."""
    assert each.queue_share is not None
    fill = each.queue_share * (1.01 if is_above else 0.99)
    name, matcher = families.LANES["lane_fill_ratio"].name, watched.of_model(each.model)
    return [
        (f'{name}{{{matcher},version="1",instance="{instance}"}}', value, 0)
        for instance, value in (("a", fill), ("b", 0))
    ]


_SERIES = {
    "CastironSlow": _latencies,
    "CastironFailing": _faults,
    "CastironRefusing": _refusals,
    "CastironQueueFull": _queue,
}

_HERE, _VERSION = 'instance="a"', 'model="m",version="1",instance="a"'
_BUSY, _WORKERS = f"{families.BUSY.name}{{{_HERE}}}", f"{families.WORKERS.name}{{{_HERE}}}"
_FRAGMENTED = f"{families.POOL['fragmentation_ratio'].name}{{{_HERE}}}"
_DROPPED = f'{families.SPANS.name}{{{_HERE},fate="dropped"}}'
_ENDED = f'{families.ENDED.name}{{{_VERSION},outcome="ok"}}'


def _requests(num_lost: int) -> _Series:
    return [
        (f"{families.ACCEPTED.name}{{{_HERE}}}", 5 + num_lost, 100),
        (_ENDED, 2, 100),
        (f"{families.IN_FLIGHT.name}{{{_HERE}}}", 3, 0),
    ]


# For each alert: the series with which it does not fire, and those with which it does.
_SERVER_SERIES: dict[str, tuple[_Series, _Series]] = {
    "CastironVersionNotReady": (
        [(f"{families.READY.name}{{{_VERSION}}}", 1, 0)],
        [(f"{families.READY.name}{{{_VERSION}}}", 0, 0)],
    ),
    "CastironRestarting": (
        [(f'{families.RESTARTS.name}{{{_HERE},reason="dead"}}', 0, 0.05)],
        [(f'{families.RESTARTS.name}{{{_HERE},reason="dead"}}', 0, 0.2)],
    ),
    # Two workers are busy for twice the time of one.
    "CastironSaturated": (
        [(_BUSY, 0, _STEP_S), (_WORKERS, 2, 0)],
        [(_BUSY, 0, _STEP_S)],
    ),
    "CastironOutcomesMissing": (_requests(0), _requests(1)),
    "CastironMemoryFragmented": ([(_FRAGMENTED, 0.8, 0)], [(_FRAGMENTED, 0.95, 0)]),
    "CastironTracesLost": ([(_DROPPED, 7, 0)], [(_DROPPED, 7, 1)]),
}
_SERVER_LABELS = {
    alert: {"instance": "a"} if alert != "CastironVersionNotReady"
    else {"instance": "a", "model": "m", "version": "1"}
    for alert in _SERVER_SERIES
}  # fmt: skip
