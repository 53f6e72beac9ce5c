"""What is watched about one model: numbers out of its contract, as dashboards and alerts use them.

``api.dashboard`` makes these; ``boards.py`` and ``rules.py`` write them down in the words of
Grafana and Prometheus. PromQL that both need is here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from castiron.telemetry import families

# Outcomes that are ours to answer for, and those that tell clients to come again.
FAULTS = "failed|timeout"
REFUSALS = "overloaded|not_ready"


@dataclass(frozen=True, slots=True)
class Watched:
    """One model. Times are seconds; None is not watched."""

    model: str
    """Its name."""

    p99_s: float | None = None
    """99 of 100 requests are answered within this time."""

    error_share: float | None = None
    """The share of requests that may fail."""

    refused_share: float | None = None
    """The share of requests that may be refused."""

    queue_share: float | None = None
    """How full its queue may be."""

    throughput_per_s: float | None = None
    """Requests a second that it is meant to bear."""

    window_s: float = 300.0
    """How long something must last before somebody is told."""


def quoted(text: str) -> str:
    """A string of PromQL."""
    return json.dumps(text, ensure_ascii=False)


def of_model(model: str) -> str:
    """The matcher of a model's series."""
    return f"model={quoted(model)}"


def share(outcomes: str, matcher: str, window: str) -> str:
    """The share of requests that ended in one of these outcomes."""
    name = families.ENDED.name
    return (
        f'sum(rate({name}{{{matcher},outcome=~"{outcomes}"}}[{window}]))'
        f" / sum(rate({name}{{{matcher}}}[{window}]))"
    )


def quantile(rank: float, histogram: str, matcher: str, by: str, window: str) -> str:
    """A quantile over all servers and versions, for each value of the labels ``by``."""
    labels = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({rank:g}, sum by ({labels})"
        f" (rate({histogram}_bucket{{{matcher}}}[{window}])))"
    )


def queue_fill(matcher: str) -> str:
    """How full the queue of a model is, at the server where it is fullest."""
    return f"max({families.LANES['lane_fill_ratio'].name}{{{matcher}}})"
