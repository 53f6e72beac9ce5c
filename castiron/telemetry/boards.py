"""Grafana dashboards as the JSON that Grafana imports: one of all servers, one for each model.

Panels are tables of title, unit and queries below; where things stand on the screen follows from
their order. ``queries`` lists what a board asks, for those who run it against a live Prometheus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from castiron.telemetry import families, watched

_WINDOW = "$__rate_interval"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_Board = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Panel:
    """One graph; ``limit`` draws a line."""

    title: str
    unit: str
    queries: Mapping[str, str]  # legend to PromQL
    limit: float | None = None


def servers() -> _Board:
    """The board of all servers."""
    return _board("castiron", "castiron servers", _of_servers())


def model(each: watched.Watched) -> _Board:
    """The board of one model, with lines where its contract has limits."""
    uid = f"castiron-{hashlib.sha256(each.model.encode()).hexdigest()[:12]}"
    return _board(uid, f"castiron model {each.model}", _of_model(each))


def queries(board: Mapping[str, Any], window: str = "1m") -> list[str]:
    """Every PromQL expression of a board, with a fixed window of time instead of Grafana's."""
    return [
        target["expr"].replace(_WINDOW, window)
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def _rate(family: families.AnyDeclared, matcher: str = "", by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({family.name}{{{matcher}}}[{_WINDOW}]))"


def _of_servers() -> Iterator[_Panel]:
    yield _Panel("Requests by model", "reqps", {"{{model}}": _rate(families.ENDED, "", "model")})
    yield _Panel(
        "Requests by outcome", "reqps", {"{{outcome}}": _rate(families.ENDED, "", "outcome")}
    )
    p99 = watched.quantile(0.99, families.LATENCY.name, "", "model", _WINDOW)
    yield _Panel("Time of 99 of 100 requests", "s", {"{{model}}": p99})
    yield _Panel(
        "Requests in flight",
        "short",
        {
            "in flight": f"sum ({families.IN_FLIGHT.name})",
            "without an outcome": f"sum ({families.ACCEPTED.name}) - sum ({families.ENDED.name})"
            f" - sum ({families.IN_FLIGHT.name})",
        },
    )
    yield _Panel(
        "Device busy", "percentunit", {"{{instance}}": _rate(families.BUSY, "", "instance")}
    )
    yield _Panel(
        "Pool", "bytes",
        {
            name: f"sum ({families.POOL[f'{name}_bytes'].name})"
            for name in ("mapped", "allocated", "high_water")
        },
    )  # fmt: skip
    yield _Panel(
        "Pool fragmentation", "percentunit",
        {
            "between blocks": f"max ({families.POOL['fragmentation_ratio'].name})",
            "inside blocks": f"max ({families.POOL['internal_waste_ratio'].name})",
        },
    )  # fmt: skip
    # What seldom happens has no series before it does.
    yield _Panel(
        "Workers", "short",
        {
            "alive": f"sum ({families.WORKERS.name}) or count ({families.BUILD.name})",
            "replaced": f"sum (increase({families.RESTARTS.name}[{_WINDOW}])) or vector(0)",
        },
    )  # fmt: skip
    swap = watched.quantile(0.99, families.SWAP.name, "", "", _WINDOW)
    yield _Panel("Time to change a version", "s", {"99 of 100": f"{swap} or vector(0)"})
    refused = _rate(families.REFUSED_HEADS, "", "reason")
    yield _Panel("Connections refused", "ops", {"{{reason}}": f"{refused} or vector(0)"})
    traces = _rate(families.SPANS, "", "fate")
    yield _Panel("Traces", "ops", {"{{fate}}": f"{traces} or vector(0)"})
    builds = f"count by (version) ({families.BUILD.name})"
    yield _Panel("Versions of castiron", "short", {"{{version}}": builds})


def _of_model(each: watched.Watched) -> Iterator[_Panel]:
    here = watched.of_model(each.model)
    answered = f'{here},outcome="ok"'
    yield _Panel(
        "Requests by outcome", "reqps", {"{{outcome}}": _rate(families.ENDED, here, "outcome")}
    )
    yield _Panel(
        "Answered", "reqps", {"v{{version}}": _rate(families.ENDED, answered, "version")},
        each.throughput_per_s,
    )  # fmt: skip
    yield _Panel(
        "Time of requests", "s",
        {
            f"{rank:.0%}": watched.quantile(rank, families.LATENCY.name, here, "", _WINDOW)
            for rank in (0.5, 0.9, 0.99)
        },
        each.p99_s,
    )  # fmt: skip
    stage = f"sum by (stage) (rate({families.STAGE.name}_%s{{{here}}}[{_WINDOW}]))"
    yield _Panel(
        "Mean time by stage", "s", {"{{stage}}": f"{stage % 'sum'} / {stage % 'count'} >= 0"}
    )
    yield _Panel(
        "Failed", "percentunit", {"share": watched.share(watched.FAULTS, here, _WINDOW)},
        each.error_share,
    )  # fmt: skip
    yield _Panel(
        "Refused", "percentunit", {"share": watched.share(watched.REFUSALS, here, _WINDOW)},
        each.refused_share,
    )  # fmt: skip
    yield _Panel("Queue", "percentunit", {"fullest": watched.queue_fill(here)}, each.queue_share)
    waiting, high = (families.LANES[name].name for name in ("lane_waiting", "lane_high_water"))
    yield _Panel(
        "Requests waiting", "short",
        {"now": f"sum ({waiting}{{{here}}})", "at most": f"max ({high}{{{here}}})"},
    )  # fmt: skip
    rows = f"sum (rate({families.BATCH_ROWS.name}_%s{{{here}}}[{_WINDOW}]))"
    limit = families.LANES["lane_batch_limit_rows"].name
    yield _Panel(
        "Rows of a run", "short",
        {
            "mean": f"{rows % 'sum'} / {rows % 'count'}",
            "limit": f"max ({limit}{{{here}}})",
        },
    )  # fmt: skip
    yield _Panel(
        "Runs", "ops",
        {
            "all": _rate(families.RUNS, here),
            "wasted": _rate(families.WASTED, here),
        },
    )  # fmt: skip
    yield _Panel(
        "Ready", "short", {"v{{version}}": f"min by (version) ({families.READY.name}{{{here}}})"}
    )
    breaker = families.LANES["breaker_open"].name
    yield _Panel(
        "Given a rest", "short", {"v{{version}}": f"max by (version) ({breaker}{{{here}}})"}
    )


def _board(uid: str, title: str, panels: Iterator[_Panel]) -> _Board:
    return {
        "uid": uid,
        "title": title,
        "tags": ["castiron"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource",
                 "query": "prometheus"},
            ]
        },
        "panels": [_drawn(panel, index) for index, panel in enumerate(panels)],
    }  # fmt: skip


def _drawn(panel: _Panel, index: int) -> _Board:
    row, column = divmod(index, _COLUMNS)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    drawn = {"thresholdsStyle": {"mode": "off" if panel.limit is None else "line"}}
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": drawn,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "targets": list(_targets(panel.queries)),
    }


def _targets(asked: Mapping[str, str]) -> Iterator[_Board]:
    for index, (legend, expression) in enumerate(asked.items()):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": expression,
            "legendFormat": legend,
        }


def files(models: Sequence[watched.Watched]) -> dict[str, _Board]:
    """Every board by the name of its file."""
    made = {"castiron-servers.json": servers()}
    for each in models:
        made[f"castiron-model-{_file_name(each.model)}.json"] = model(each)
    return made


def _file_name(model_name: str) -> str:
    """The model's name without what a file's name should not have, and different from others'."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in model_name)
    if kept == model_name:
        return kept
    return f"{kept}-{hashlib.sha256(model_name.encode()).hexdigest()[:6]}"
