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
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
ADD_ONE = model.Contract(
    name="add_one",
    input=(model.Tensor("x", "FP32", ("rows", 4)),),
    output=(model.Tensor("y", "FP32", ("rows", 4)),),
)
SCHEMA = schemathesis.openapi.from_dict(openapi.document(ADD_ONE))
_FOUND = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]
OPERATIONS = {operation.label: operation for operation in _FOUND}
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
        case.call_and_validate(base_url=f"http://127.0.0.1:{server.port}", checks=CHECKS)

    ask()


def test_every_call_of_the_description_is_asked() -> None:
    assert len(OPERATIONS) >= 13
    assert ("POST /v2/models/add_one/infer", MODES.NEGATIVE) in questions()
