"""What our own OpenAPI allows and forbids, asked of a live server: no 5xx, nothing undeclared."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.core.result import Ok

from castiron.contract import model, openapi
from tests.fuzz import served

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def contract(name: str) -> model.Contract:
    """Of the models that add one."""
    return model.Contract(
        name=name,
        input=(model.Tensor("x", "FP32", ("rows", 4)),),
        output=(model.Tensor("y", "FP32", ("rows", 4)),),
    )


def operations(name: str) -> dict[str, Any]:
    """The calls of the description of a model, by method and path."""
    schema = schemathesis.openapi.from_dict(openapi.document(contract(name)))
    found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    return {operation.label: operation for operation in found}


# A model of its own is loaded and unloaded, so that the others stay.
OPERATIONS = {
    name: operation
    for chosen, is_of in (("add_one", False), ("spare", True))
    for name, operation in operations(chosen).items()
    if name.endswith("load") is is_of
}
MODES = schemathesis.GenerationMode


def questions() -> list[tuple[str, schemathesis.GenerationMode]]:
    """Each call as the description allows it, and as it forbids it where there is a way to."""
    found = [(name, MODES.POSITIVE) for name in OPERATIONS]
    for name, operation in OPERATIONS.items():
        if operation.body.items or operation.path_parameters.items:
            found.append((name, MODES.NEGATIVE))
    return found


@pytest.mark.parametrize("name, mode", questions(), ids=lambda each: getattr(each, "value", each))
def test_what_the_description_says_holds(
    server: served.Server, name: str, mode: schemathesis.GenerationMode
) -> None:
    @hypothesis.given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        response = case.call(base_url=f"http://127.0.0.1:{server.port}")
        # 503 and 504 are declared: for want of room, and where a request sets itself a time.
        assert response.status_code != 500, response.content
        case.validate_response(response, checks=CHECKS)

    ask()


def test_every_call_of_the_description_is_asked() -> None:
    assert len(OPERATIONS) >= 20
    for name in ("infer", "batch", "versions/{version}/batch"):
        assert (f"POST /v2/models/add_one/{name}", MODES.NEGATIVE) in questions()
    for name in ("load", "unload"):
        assert (f"POST /v2/repository/models/spare/{name}", MODES.NEGATIVE) in questions()
