"""The calls: each makes a request, asks, and reads what comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .application import body_of
from .connection import LENGTH, Connections, succeeded
from .errors import InferenceError
from .messages import (
    Options,
    Reply,
    encoded,
    microseconds,
    outcomes,
    reply,
    request,
)
from .tensor import Tensor


class Client:
    """A server. Connections are kept and used again, also by several threads."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self._connections = Connections(url, timeout_s=timeout_s, headers=headers)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._connections.close()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def is_ready(self) -> bool:
        """Whether the server wants requests."""
        return self._connections.ask("GET", "/v2/health/ready").status == 200

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Whether a model, or one version of it, would answer."""
        path = f"{_model_path(model, version)}/ready"
        return self._connections.ask("GET", path).status == 200

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """What the server says about a model."""
        return succeeded(self._connections.ask("GET", _model_path(model, version)))[0]

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Tensor],
        wanted: Sequence[str] = (),
        options: Options | None = None,
    ) -> Reply:
        """Run a model. ``wanted`` names the outputs to send; none: all of them."""
        how = options or Options()
        head, raw = request(inputs, wanted, how, self._allowed_s(how))
        path = f"{_model_path(model, how.version)}/infer"
        found, rest, digest = self._send(path, head, raw, how)
        return reply(found, rest, digest)[0]

    def batch(
        self,
        model: str,
        requests: Sequence[Mapping[str, Tensor]],
        wanted: Sequence[str] = (),
        options: Options | None = None,
    ) -> list[Reply | InferenceError]:
        """Run a model on each of many requests, in one call.

        Each has its own outcome, in order. Raises only what is wrong with the whole.
        """
        how = options or Options()
        made = [request(inputs, wanted, how, self._allowed_s(how)) for inputs in requests]
        raw = [data for _, each in made for data in each]
        path = f"{_model_path(model, how.version)}/batch"
        found, rest, _ = self._send(path, {"requests": [head for head, _ in made]}, raw, how)
        return outcomes(found, rest)

    def predict(
        self, model: str, values: Mapping[str, Any], options: Options | None = None
    ) -> dict[str, Any]:
        """Ask with an application's values; images are bytes. The answer's values by name."""
        how = options or Options()
        body, headers = body_of(values)
        allowed_s = self._allowed_s(how)
        headers["Timeout"] = str(microseconds(allowed_s))
        path = f"{_model_path(model, how.version)}/predict"
        return succeeded(self._connections.ask("POST", path, body, headers, allowed_s))[0]

    def _allowed_s(self, how: Options) -> float:
        return self._connections.timeout_s if how.timeout_s is None else how.timeout_s

    def _send(
        self, path: str, head: dict[str, Any], raw: list[bytes], how: Options
    ) -> tuple[dict[str, Any], bytes, str]:
        """The JSON of an answer, what follows it, and which executable gave it."""
        text = encoded(head)
        headers = {"Content-Type": "application/json"}
        if how.is_binary:
            headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(text))}
        body = b"".join([text, *raw])
        answer = self._connections.ask("POST", path, body, headers, self._allowed_s(how))
        found, rest = succeeded(answer)
        return found, rest, answer.headers.get("X-Model-Version") or ""


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path
