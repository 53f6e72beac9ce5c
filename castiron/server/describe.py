"""What the server says about itself and its models: metadata, configuration, statistics, index.

Plain objects in the shape of the Open Inference Protocol and of the extensions that its clients
call. Nothing here changes anything.
"""

from __future__ import annotations

from typing import Any

import castiron
from castiron.registry import registry as registries
from castiron.registry import version as versions
from castiron.server import meters, served, status
from castiron.tensor import signature as signatures

EXTENSIONS = (
    "binary_tensor_data", "parameters", "model_configuration", "statistics", "model_repository",
)  # fmt: skip

# The protocol's names of states; ours are building, loading, ready, failed, closed.
_STATES = {
    versions.BUILDING: "LOADING",
    versions.LOADING: "LOADING",
    versions.STAGED: "LOADING",
    versions.RESTING: "UNAVAILABLE",
    versions.READY: "READY",
    versions.FAILED: "UNAVAILABLE",
    versions.CLOSED: "UNAVAILABLE",
}

# The protocol's names of times, and our stages.
_TIMED = {
    "queue": "queue",
    "compute_input": "parse",
    "compute_infer": "compute",
    "compute_output": "render",
}


def server() -> dict[str, Any]:
    """GET /v2."""
    return {
        "name": "castiron",
        "version": castiron.__version__,
        "extensions": list(EXTENSIONS),
    }


def readiness(
    registry: registries.Registry, *, is_draining: bool, is_strict: bool
) -> tuple[bool, dict[str, Any]]:
    """Whether a balancer should send requests here, and why not.

    Strictly, every model must answer but those that were taken away on purpose.
    """
    ready = {version.model for version in registry if version.is_ready}
    unsettled = registry.unsettled()
    is_ready = bool(ready) and not unsettled and not is_draining
    if is_strict:
        is_ready = is_ready and ready == {
            version.model for version in registry if version.state != versions.CLOSED
        }
    detail: dict[str, Any] = {"ready": is_ready, "live": True}
    if is_draining:
        detail["reason"] = "the server is stopping"
    elif not registry.models:
        detail["reason"] = "no model was found"
    elif not is_ready or ready != registry.models.keys():
        detail["versions"] = {
            f"{version.model}/{version.number}": version.state
            for version in registry
            if not version.is_ready
        }
    return is_ready, detail


def model(registry: registries.Registry, version: versions.Version) -> dict[str, Any]:
    """GET /v2/models/{model}."""
    assert version.instance is not None
    signature = version.instance.signature
    numbered = registry.models[version.model]
    return {
        "name": version.model,
        "versions": [str(number) for number in sorted(numbered) if numbered[number].is_ready],
        "platform": "castiron",
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
        "parameters": {"digest": version.digest},
    }


def _tensor(spec: signatures.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.dtype.oip, "shape": _dims(spec)}


def _dims(spec: signatures.TensorSpec) -> list[int]:
    return [dim if isinstance(dim, int) else -1 for dim in spec.dims]


def configuration(made: served.Served) -> dict[str, Any]:
    """GET /v2/models/{model}/config: the part of a model's configuration that we have.

    ``max_batch_size`` stays 0, which says that dims are complete: batches are our own business.
    """
    version, signature = made.version, made.instance.signature
    levels = {
        "priority_levels": len(made.classes),
        "default_priority_level": made.default_class + 1,
    }
    return {
        "name": version.model,
        "platform": "castiron",
        "backend": "castiron",
        "version_policy": {"all": {}},
        "max_batch_size": 0,
        "dynamic_batching": levels,
        "input": [_configured(spec) for spec in signature.inputs],
        "output": [_configured(spec) for spec in signature.outputs],
        "parameters": {
            key: {"string_value": value} for key, value in made.instance.metadata.items()
        },
    }


def _configured(spec: signatures.TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.dtype.oip == "BYTES" else spec.dtype.oip
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": _dims(spec)}


def statistics(version: versions.Version, counted: meters.VersionMeters) -> dict[str, Any]:
    """One entry of GET /v2/models/stats; times are sums in nanoseconds."""
    succeeded = counted.outcomes[status.OK].value
    failed = sum(child.value for child in counted.outcomes.values()) - succeeded
    times = counted.settled()
    stages = [(name, times.stages[stage]) for name, stage in _TIMED.items()]
    shown = {name: {"count": stage.count, "ns": int(stage.total * 1e9)} for name, stage in stages}
    total_ns = sum(stage["ns"] for stage in shown.values())
    return {
        "name": version.model,
        "version": str(version.number),
        "last_inference": times.last_ms,
        "inference_count": int(succeeded),
        "execution_count": counted.executions,
        "inference_stats": {
            "success": {"count": int(succeeded), "ns": total_ns},
            "fail": {"count": int(failed), "ns": 0},
            **shown,
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [
            {"batch_size": rows, "compute_infer": {"count": count, "ns": total_ns}}
            for rows, (count, total_ns) in sorted(times.batches.items())
        ],
    }


def index(registry: registries.Registry, *, only_ready: bool = False) -> list[dict[str, str]]:
    """POST /v2/repository/index."""
    return [
        {
            "name": version.model,
            "version": str(version.number),
            "state": "UNAVAILABLE"
            if version.state == versions.READY and not version.is_ready
            else _STATES[version.state],
            "reason": version.reason.split("\n", 1)[0],
        }
        for version in registry
        if version.is_ready or not only_ready
    ]
