"""The path of a request to the call it means: what is asked, of which model and version.

Names come percent-encoded. Who may ask, and by which method, is ``rest.py``'s to say.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from urllib.parse import unquote

from castiron.server import status

INFER, PREDICT, BATCH = "infer", "predict", "batch"
# Clients make up paths; none that is long is kept for them.
_MOST_KEPT_BYTES = 256
_POSTED = frozenset((INFER, PREDICT, BATCH, "load", "unload", "index"))
_OF_A_MODEL = {
    (): "model", ("ready",): "model_ready", ("config",): "config", ("stats",): "stats",
    (INFER,): INFER, (PREDICT,): PREDICT, (BATCH,): BATCH,
}  # fmt: skip
_OF_THE_SERVER = {
    ("v2",): "server",
    ("v2", "health", "live"): "live",
    ("v2", "health", "ready"): "ready",
    ("v2", "models"): "models",
    ("v2", "models", "stats"): "all_stats",
    ("v2", "repository", "index"): "index",
    ("metrics",): "metrics",
}


@dataclass(frozen=True, slots=True)
class Route:
    """One call; ``call`` is empty for a path that means none."""

    call: str
    model: str = ""
    version: str = ""

    @property
    def method(self) -> str:
        """The one method of it; HEAD goes with GET."""
        return "POST" if self.call in _POSTED else "GET"


def of(raw_path: bytes) -> Route:
    """The call that a path means. Refusal 404 for a version that is not given."""
    return _known(raw_path) if len(raw_path) <= _MOST_KEPT_BYTES else _read(raw_path)


@functools.lru_cache(maxsize=1024)
def _known(raw_path: bytes) -> Route:
    return _read(raw_path)


def _read(raw_path: bytes) -> Route:
    parts = tuple(raw_path.decode("latin-1").strip("/").split("/"))
    if call := _OF_THE_SERVER.get(parts):
        return Route(call)
    if parts[:3] == ("v2", "repository", "models"):
        is_change = len(parts) == 5 and parts[4] in {"load", "unload"}
        return Route(parts[4], unquote(parts[3])) if is_change else Route("")
    if parts[:2] != ("v2", "models") or len(parts) < 3 or not parts[2]:
        return Route("")
    return _of_model(unquote(parts[2]), parts[3:])


def _of_model(model: str, parts: tuple[str, ...]) -> Route:
    """[/versions/{version}][/infer|predict|batch|ready|config|stats] after a model's name."""
    version = ""
    if len(parts) > 1 and parts[0] == "versions":
        version, parts = unquote(parts[1]), parts[2:]
        if not version:
            raise status.Refusal(404, "path: expected a version number", status.NOT_FOUND)
    return Route(_OF_A_MODEL.get(parts, ""), model, version)
