"""Every metric family there is: name, kind, sentence, labels, and how processes are put together.

``docs/metrics.md`` is made from this by ``python -m tools.write_metrics``. Who counts declares the
record with ``Metrics.family``; dashboards and alert rules take their names from here as well.
"""

from __future__ import annotations

from typing import TypeAlias

from castiron.telemetry.metrics import LATENCY_BOUNDS_S, Counter, Declared, Gauge, Histogram

STAGES = ("read", "parse", "queue", "batch", "compute", "render")
ROW_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)
SWAP_BOUNDS_S = (1e-4, 1e-3, 2e-3, 5e-3, 0.012, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_VERSION = ("model", "version")

ACCEPTED = Declared(
    Counter, "castiron_requests_accepted_total", "Infer requests whose head was read."
)
ENDED = Declared(
    Counter,
    "castiron_requests_total",
    "Infer requests by the one outcome each had; model is empty for unknown names, and for what "
    "failed because its worker died.",
    (*_VERSION, "outcome"),
)
REFUSED = Declared(
    Counter,
    "castiron_refused_requests_total",
    "Requests that flow control refused, by its reason.",
    (*_VERSION, "reason"),
)
IN_FLIGHT = Declared(Gauge, "castiron_requests_in_flight", "Accepted and not ended.")
LATENCY = Declared(
    Histogram,
    "castiron_request_seconds",
    "Time of answered infer requests from their head to their answer.",
    _VERSION,
    LATENCY_BOUNDS_S,
)
STAGE = Declared(
    Histogram,
    "castiron_stage_seconds",
    "Time of answered infer requests by stage.",
    (*_VERSION, "stage"),
    LATENCY_BOUNDS_S,
)
RUNS = Declared(Counter, "castiron_runs_total", "Runs that went through.", _VERSION)
ROWS = Declared(Counter, "castiron_rows_total", "Rows of answered requests.", _VERSION)
BATCH_ROWS = Declared(Histogram, "castiron_batch_rows", "Rows of each run.", _VERSION, ROW_BOUNDS)
WASTED = Declared(
    Counter, "castiron_wasted_runs_total", "Runs whose end nobody waited for any more.", _VERSION
)
BUSY = Declared(
    Counter, "castiron_device_busy_seconds_total", "Time during which the device was running."
)
REFUSED_HEADS = Declared(
    Counter,
    "castiron_connections_refused_total",
    "Connections ended because of a malformed, oversize or late request.",
    ("reason",),
)
REFUSED_CALLERS = Declared(
    Counter,
    "castiron_callers_refused_total",
    "Calls refused for who made them: a token that is missing or not believed, by why, or an "
    "action that it does not allow (forbidden).",
    ("reason",),
)
DIRECT_BODIES = Declared(
    Counter, "castiron_direct_bodies_total", "Large bodies read straight into memory of their own."
)
READY = Declared(Gauge, "castiron_version_ready", "1 when ready.", _VERSION, merge="min")
BUILD = Declared(Gauge, "castiron_build_info", "Always 1.", ("version",), merge="max")

LANES = {
    "lane_waiting": Declared(
        Gauge, "castiron_lane_waiting", "Requests that wait in the lane.", _VERSION
    ),
    "lane_fill_ratio": Declared(
        Gauge,
        "castiron_lane_fill_ratio",
        "How full the lane is: what it holds as a share of its tightest bound.",
        _VERSION,
        merge="max",
    ),
    "lane_high_water": Declared(
        Gauge,
        "castiron_lane_high_water",
        "Requests that the lane held at once at most, so far.",
        _VERSION,
        merge="max",
    ),
    "lane_running": Declared(Gauge, "castiron_lane_running", "Batches under way.", _VERSION),
    "lane_batch_limit_rows": Declared(
        Gauge,
        "castiron_lane_batch_limit_rows",
        "Rows that a batch may have at present.",
        _VERSION,
        merge="max",
    ),
    "lane_shut_classes": Declared(
        Gauge,
        "castiron_lane_shut_classes",
        "Priority classes that are refused at present.",
        _VERSION,
        merge="max",
    ),
    "breaker_open": Declared(
        Gauge,
        "castiron_breaker_open",
        "1 while the version is given a rest, 0.5 while it is tried again.",
        _VERSION,
        merge="max",
    ),
    "inline_runs": Declared(
        Gauge,
        "castiron_inline_runs",
        "Runs made by the event loop itself, so far.",
        _VERSION,
    ),
}

_POOL_BYTES = {
    "mapped": "mapped from the system",
    "allocated": "in blocks that are rented",
    "requested": "asked for by those who rent",
    "idle": "kept warm for the next who rents",
    "free": "free in its buddy allocators",
    "high_water": "rented at once at most, so far",
    "returned": "given back to the system, so far",
}
POOL = {
    **{
        f"{name}_bytes": Declared(
            Gauge, f"castiron_pool_{name}_bytes", f"Memory of the device's pool: {text}."
        )
        for name, text in _POOL_BYTES.items()
    },
    "internal_waste_ratio": Declared(
        Gauge,
        "castiron_pool_internal_waste_ratio",
        "Share of the rented memory that nobody asked for.",
        merge="max",
    ),
    "fragmentation_ratio": Declared(
        Gauge,
        "castiron_pool_fragmentation_ratio",
        "Share of the free memory that is not in the largest free block.",
        merge="max",
    ),
}

RESTARTS = Declared(
    Counter,
    "castiron_worker_restarts_total",
    "Workers replaced by the supervisor, by why.",
    ("reason",),
)
WORKERS = Declared(Gauge, "castiron_workers", "Workers that are alive.")
SWAP = Declared(
    Histogram,
    "castiron_swap_seconds",
    "Time from the first worker's change to a new version until the last one's.",
    ("model",),
    SWAP_BOUNDS_S,
)
SPANS = Declared(
    Counter,
    "castiron_traces_total",
    "Sampled requests by what became of their spans: exported, or dropped for want of room.",
    ("fate",),
)
UNSHARED = Declared(
    Counter,
    "castiron_metrics_unshared_total",
    "Children of families for which the file that workers share had no room.",
)

AnyDeclared: TypeAlias = Declared[Counter] | Declared[Gauge] | Declared[Histogram]

ALL: tuple[AnyDeclared, ...] = (
    ACCEPTED, ENDED, REFUSED, IN_FLIGHT, LATENCY, STAGE, RUNS, ROWS, BATCH_ROWS, WASTED, BUSY,
    REFUSED_HEADS, REFUSED_CALLERS, DIRECT_BODIES, READY, BUILD, *LANES.values(), *POOL.values(), RESTARTS,
    WORKERS, SWAP, SPANS, UNSHARED,
)  # fmt: skip


def page() -> str:
    """``docs/metrics.md``."""
    lines = [
        "# Metrics",
        "",
        "What `GET /metrics` says. Each accepted request ends in exactly one outcome, so",
        "`castiron_requests_total` summed over all labels, plus `castiron_requests_in_flight`, is",
        "`castiron_requests_accepted_total`. Stages are "
        + ", ".join(f"`{s}`" for s in STAGES)
        + ".",
        "The last column says how several workers become one number. This page is made from",
        "`castiron/telemetry/families.py` by `python -m tools.write_metrics`.",
        "",
        "| name | kind | labels | what it says | workers |",
        "| --- | --- | --- | --- | --- |",
    ]
    for declared in ALL:
        labels = ", ".join(f"`{label}`" for label in declared.label_names)
        lines.append(
            f"| `{declared.name}` | {declared.kind} | {labels} | {declared.text} "
            f"| {declared.merge} |"
        )
    return "\n".join(lines) + "\n"
