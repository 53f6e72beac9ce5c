"""The report beside the plan: the same names, sizes that evaluate, nothing that changes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import castiron
from castiron import api
from castiron.executable import program
from tests import built


def reported(model: Any, folder: pathlib.Path) -> dict[str, Any]:
    path = castiron.build(model, folder / "model.cast")
    with api.open_file(path) as file:
        found: dict[str, Any] = json.loads(file.report())
    return found


def test_work_of_a_step_evaluates_at_any_size(tmp_path: pathlib.Path) -> None:
    (stage,) = reported(built.network(), tmp_path)["stages"]
    sizes = {"n": 2, "h": 10, "w": 20}
    values = program.evaluate(stage["dims"], [sizes[name] for name in stage["symbols"]])
    flops = {step["name"]: values[step["flops"]] for step in stage["steps"]}
    pixels = 2 * 10 * 20
    assert flops["a + b" if "a + b" in flops else "a"] >= 2 * pixels * 8 * 27
    assert all(values[step["bytes"]] > 0 for step in stage["steps"])


def test_what_is_interpreted_is_listed_with_its_reason(tmp_path: pathlib.Path) -> None:
    found = reported(built.interpreted_between(), tmp_path)
    assert [stage["kind"] for stage in found["stages"]] == ["native", "interpreted", "native"]
    assert found["stages"][1]["ops"] == ["Compress"]
    ((reason, names),) = found["interpreted"].items()
    assert (reason, len(names)) == ("Compress: no kernel for op Compress", 1)
    assert "Interpreted(" in found["graph"]
