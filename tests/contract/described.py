"""Whether an answer is one that an OpenAPI description of ours declares: code, headers and body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema

METHODS = ("get", "post", "put", "delete", "patch")
_CHECKS: dict[str, Callable[[str], bool]] = {"integer": str.isdigit, "string": bool}


class Description:
    """A description, to be asked about answers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.paths: dict[str, dict[str, Any]] = document["paths"]

    def calls(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Path, method and what is said about each."""
        for path, item in self.paths.items():
            for method in METHODS:
                if method in item:
                    yield path, method, item[method]

    def codes(self, path: str, method: str) -> set[int]:
        """What a call may be answered with."""
        return set(map(int, self.paths[path][method]["responses"]))

    def check(self, path: str, method: str, answer: tuple[int, Mapping[str, str], bytes]) -> Any:
        """The content of an answer that is as described; AssertionError for any other.

        Names of headers are in lower case. 405 is said once, for all paths.
        """
        code, headers, body = answer
        call = self.paths[path].get(method)
        if call is None:
            assert code == 405, (path, method, code)
            response = self._document["components"]["responses"]["405"]
        else:
            assert str(code) in call["responses"], (path, method, code, body[:200])
            response = self._found(call["responses"][str(code)])
        self._check_headers(response.get("headers", {}), headers)
        kind = headers["content-type"].partition(";")[0]
        assert kind in response["content"], (path, code, kind)
        if kind != "application/json":
            return body
        content = json.loads(body)
        schema = response["content"][kind]["schema"]
        whole = {"components": self._document["components"], **schema}
        jsonschema.Draft202012Validator(whole).validate(content)
        return content

    def _found(self, entry: dict[str, Any]) -> dict[str, Any]:
        found: Any = entry
        while "$ref" in found:
            path, found = found["$ref"], self._document
            for part in path.removeprefix("#/").split("/"):
                found = found[part]
        assert isinstance(found, dict)
        return found

    def _check_headers(self, described: dict[str, Any], headers: Mapping[str, str]) -> None:
        for name, entry in described.items():
            said = self._found(entry)
            value = headers.get(name.lower())
            assert value is not None or not said.get("required"), f"no header {name}"
            if value is not None and "type" in said["schema"]:
                assert _CHECKS[said["schema"]["type"]](value), (name, value)
