"""``contract.toml`` to a Contract and back."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from castiron import errors
from castiron.contract import document, form, model, steps, toml
from tests.contract import samples

MINIMAL = 'name = "m"\n[[input]]\nname = "x"\ndatatype = "FP32"\n'


def faults(text: str) -> list[str]:
    with pytest.raises(errors.ContractError) as raised:
        document.parse(text)
    return raised.value.problems


def strategy_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, whether it makes sense or not."""
    if isinstance(kind, types.UnionType):
        return st.one_of([strategy_of(item) for item in kind.__args__])
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=5), strategy_of(arguments[1]), max_size=2)
    if typing.get_origin(kind) is tuple and arguments[-1] is Ellipsis:
        return st.lists(strategy_of(arguments[0]), max_size=3).map(tuple)
    if typing.get_origin(kind) is tuple:
        return st.tuples(*map(strategy_of, arguments))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {item.name: strategy_of(hints[item.name]) for item in dataclasses.fields(kind)}
        made: Any = kind
        return st.builds(made, **fields)
    plain = {
        str: st.text(max_size=8),
        bool: st.booleans(),
        int: st.integers(-(1 << 63), (1 << 64) - 1),
        float: st.floats(allow_nan=False),
        type(None): st.none(),
    }
    return plain[kind]


@hypothesis.given(strategy_of(model.Contract))
def test_any_record_survives_being_written_and_read(contract: model.Contract) -> None:
    text = toml.text(form.write(contract))
    problems: list[str] = []
    assert form.read(model.Contract, tomllib.loads(text), "", problems) == contract
    assert problems == []


def test_a_contract_with_everything_is_written_the_same_each_time() -> None:
    text = document.text(samples.FULL)
    assert document.parse(text) == samples.FULL
    assert document.text(document.parse(text)) == text


def test_every_step_can_be_written_and_read() -> None:
    made: list[steps.Step] = []
    for kind in steps.BY_OP.values():
        needed: dict[str, Any] = {"height": 4, "width": 4, "file": "names.txt", "max_tokens": 8}
        known = {item.name for item in dataclasses.fields(kind)}
        made.append(kind(**{key: value for key, value in needed.items() if key in known}))
    entry = model.Entry("a", "tensor", "x", steps=tuple(made))
    table = tomllib.loads(toml.text(form.write(entry)))
    assert form.read(model.Entry, table, "", []) == entry


def test_an_unknown_key_is_a_fault_that_names_the_nearest_one() -> None:
    assert faults(MINIMAL + "rnage = [0, 1]\n[limits]\nburts = 3\n") == [
        "input[0].rnage: unknown key; did you mean 'range'?",
        "limits.burts: unknown key; did you mean 'burst'?",
    ]


def test_an_unknown_step_names_the_nearest_one() -> None:
    text = MINIMAL + '[[schema.input]]\nname = "p"\nkind = "image"\nsteps = [{ op = "resise" }]\n'
    assert faults(text) == [
        "schema.input[0].steps[0].op: unknown step 'resise'; did you mean 'resize'?"
    ]


@pytest.mark.parametrize(
    "text, fault",
    [
        ("name = 3", "name: expected text, found 3"),
        ("", "name: expected text, found nothing"),
        ("name = 'm'\ninput = 3", "input: expected a list, found 3"),
        ("name = 'm'\nlimits = 3", "limits: expected a table, found 3"),
        ("name = 'm'\n[limits]\nburst = 1.5", "limits.burst: expected a whole number, found 1.5"),
        ("name = 'm'\n[limits]\nburst = true", "limits.burst: expected a whole number, found True"),
        ("name = 'm'\n[sla]\np99_ms = 'x'", "sla.p99_ms: expected a number, found 'x'"),
        (MINIMAL + "range = [1]", "input[0].range: expected 2 values, found 1"),
        (MINIMAL + "shape = [1.5]", "input[0].shape[0]: expected a whole number or text, found 1.5"),
        ("format = 2\nname = 'm'", "format: expected 1, found 2; a newer castiron may read it"),
        ("name = 'm'\n[golden.x]", "golden: expected a list, found a table"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_told_by_its_path(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def test_every_fault_is_told_at_once() -> None:
    found = faults("nmae = 'm'\n[timeout]\ndefault_ms = 'soon'\n[[input]]\ndatatype = 'FP32'\n")
    assert [line.split(":")[0] for line in found] == [
        "nmae", "name", "input[0].name", "timeout.default_ms",
    ]  # fmt: skip


@hypothesis.given(st.text(max_size=200))
def test_any_text_is_a_contract_or_a_contract_error(text: str) -> None:
    with contextlib.suppress(errors.ContractError):
        assert document.parse(MINIMAL + text).name == "m"


@pytest.mark.parametrize("content", [b"\xff", b"#" * (5 << 20)])
def test_a_file_that_is_no_text_of_this_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "contract.toml").write_bytes(content)
    with pytest.raises(errors.ContractError, match="expected"):
        document.load(tmp_path / "contract.toml")


def test_a_contract_is_found_beside_its_model(tmp_path: Path) -> None:
    version = tmp_path / "net" / "2"
    version.mkdir(parents=True)
    (version / "model.onnx").touch()
    assert document.beside(version / "model.onnx") is None
    (version / "contract.toml").touch()
    assert document.beside(version / "model.onnx") == version / "contract.toml"
    assert document.beside(version) == version / "contract.toml"
    (version / "other.onnx").touch()
    assert document.beside(version / "model.onnx") is None, "it may be the other model's"
    (version / "model.contract.toml").touch()
    assert document.beside(version / "model.onnx") == version / "model.contract.toml"


def test_a_folder_means_its_highest_version(tmp_path: Path) -> None:
    for number in ("1", "2", "10"):
        (tmp_path / "net" / number).mkdir(parents=True)
        (tmp_path / "net" / number / "model.onnx").touch()
    assert document.model_in(tmp_path / "net") == tmp_path / "net" / "10" / "model.onnx"
    assert document.name_of(tmp_path / "net" / "10" / "model.onnx") == "net"
    assert document.name_of(tmp_path / "net") == "net"
    assert document.name_of("somewhere/resnet.onnx") == "resnet"
    with pytest.raises(errors.ContractError, match="found none"):
        document.model_in(tmp_path)


def test_contracts_are_read_without_numpy() -> None:
    script = (
        "import sys; from castiron.contract import check, compare, document, validate;"
        "document.parse(sys.argv[1]); assert 'numpy' not in sys.modules"
    )
    text = document.text(samples.FULL)
    subprocess.run([sys.executable, "-c", script, text], check=True, timeout=60)
