"""The settings of the edge, each with what it is for.

The command line makes its options from this record, so that each is written once. Only ``cli``
reads flags and the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")


def _setting(default: _T, text: str) -> _T:
    value: _T = field(default=default, metadata={"text": text})
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """How one process listens, and what it refuses."""

    host: str = _setting("127.0.0.1", "The address to listen on.")

    port: int = _setting(8000, "The port to listen on; 0 takes a free one and prints it.")

    grpc_port: int = _setting(
        -1, "The port to speak gRPC on; 0 takes a free one and prints it, -1 does without."
    )

    max_in_flight: int = _setting(
        1024, "Infer requests from their head to their answer; more are refused with 503."
    )

    max_body_bytes: int = _setting(
        64 << 20,
        "The largest request body, also after decompression; larger ones are refused with 413.",
    )

    max_json_bytes: int = _setting(
        4 << 20,
        "The largest JSON part of a body; decoding it holds up every other request meanwhile.",
    )

    max_buffered_bytes: int = _setting(
        1 << 30,
        "Bodies held at once by all requests; more are refused with 503. Unless it is given, at most "
        "an eighth of the memory limit.",
    )

    max_head_bytes: int = _setting(
        64 << 10, "The largest request head (line and headers); larger ones are refused with 431."
    )

    head_timeout_s: float = _setting(10.0, "How long a client may take to send a request's head.")

    body_timeout_s: float = _setting(
        20.0, "How long a client may take to send a body, besides what ``min_body_rate`` allows."
    )

    min_body_rate: float = _setting(
        64 << 10,
        "Bytes a second that a slow client must at least send once ``body_timeout_s`` is over.",
    )

    keep_alive_s: float = _setting(75.0, "How long an idle connection is kept.")

    request_timeout_s: float = _setting(
        30.0, "How long an answer may take; then the client gets 504. Clients may ask for less."
    )

    max_timeout_s: float = _setting(
        300.0, "The longest time that a client may ask for; a model's contract has its own."
    )

    queue_requests: int = _setting(
        512,
        "Requests that one version holds, waiting or running, unless its contract says; "
        "less important ones are refused before it is full.",
    )

    batch_rows: int = _setting(
        32,
        "Rows of one run at most when requests are merged, unless a contract says; 1: they are not.",
    )

    max_launch_ms: float = _setting(
        50.0,
        "Batches that take longer to be put together and handed over become smaller; 0: they do "
        "not.",
    )

    max_queue_ms: float = _setting(
        500.0,
        "Batches whose oldest request waited longer become smaller, unless that makes a row dearer; "
        "0: they do not.",
    )

    rate_per_s: float = _setting(
        0.0, "Requests a second that one client may send to one model; 0: any number."
    )

    rate_burst: int = _setting(10, "Requests of one client at once after a pause.")

    client_header: str = _setting(
        "x-client-key",
        "The header that names a client to rate limits; without it, its address does.",
    )

    inline_us: float = _setting(
        100.0,
        "Versions whose runs take less are run by the event loop itself, since handing such a run "
        "to the lane costs more; 0: none are.",
    )

    compute_nice: int = _setting(
        5,
        "How nice threads that run models are to those that answer, where they share a CPU (0 to "
        "19): under overload this is what keeps deadlines.",
    )

    place_lane: bool = _setting(
        False,
        "Keep the native thread that runs models off the first CPU, which is left to the event "
        "loop: for a machine that one server has to itself.",
    )

    drain_delay_s: float = _setting(
        0.0,
        "After SIGTERM, how long readiness is already down while new requests are still answered.",
    )

    drain_timeout_s: float = _setting(
        30.0, "After that, how long requests in flight may take before they are answered with 503."
    )

    step_processes: int = _setting(
        2,
        "Processes that decode images and run other declared steps, for all models together. Unless "
        "it is given, at most as many as the CPU budget.",
    )

    step_timeout_s: float = _setting(
        10.0, "How long the steps before or after a run may take; then their process is replaced."
    )

    step_memory_bytes: int = _setting(
        1 << 30,
        "The most memory of one such process, besides what it shares with the server. Unless it is "
        "given, at most an eighth of the memory limit for all.",
    )

    allow_pipelines: bool = _setting(
        False,
        "Run the pipeline.py that a contract names, which is code out of a model's folder, in "
        "processes of its own; without this, such models answer infer only.",
    )

    traces: str = _setting(
        "",
        "Where spans go: http://HOST:4318 or grpc://HOST:4317 of an OTLP receiver; without it, "
        "nowhere.",
    )

    trace_share: float = _setting(
        0.1, "The share of requests that are traced, where no caller's traceparent decides it."
    )

    terse_replies: bool = _setting(
        False, "Leave out the headers that tell of the trace, of times and of the machine."
    )

    metrics_dir: str = _setting(
        "", "A folder in which the workers of one server keep their metrics for each other."
    )

    worker: int = _setting(0, "The number of this process among them.")

    read_only_repository: bool = _setting(False, "Refuse the calls that load and unload models.")

    workers: int = _setting(
        1, "Serving processes on the same port, watched by one that replaces those that die."
    )

    watch_s: float = _setting(
        0.0, "How often the models folder is looked at for what has changed; 0: only when asked."
    )

    memory_budget_bytes: int = _setting(
        0,
        "The most that weights, code and arenas of all versions may hold, by worker; versions that "
        "are neither pinned nor in use make room. 0: half of the memory limit, -1: there is no limit.",
    )

    strict_readiness: bool = _setting(
        False,
        "Ready only when every model is; otherwise when all have settled and at least one is.",
    )
