"""``castiron contract``: written, checked, compared and exported from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import helper

from castiron import api, cli, errors
from castiron.contract import document


def model(path: Path, columns: int = 3, kind: int = onnx.TensorProto.FLOAT) -> Path:
    """A model that adds its input to itself."""
    edges = [helper.make_tensor_value_info(name, kind, ["N", columns]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "twice", edges[:1], edges[1:]
    )
    opset = helper.make_opsetid("", 21)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def run(*words: object) -> int:
    return cli.main(["contract", *map(str, words)])


def test_a_contract_is_written_beside_its_model_and_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "twice" / "1" / "model.onnx")
    assert run("init", source) == 0
    written = source.with_name("contract.toml")
    assert capsys.readouterr().out == f"{written}\n"
    declared = document.load(written)
    assert declared.name == "twice"
    assert declared.input[0].shape == ("N", 3)
    assert declared.output[0].datatype == "FP32"
    assert run("check", source) == 0
    assert run("check", tmp_path / "twice") == 0
    assert run("init", source) == 1
    assert "there is one already" in capsys.readouterr().err
    assert run("init", source, "--force") == 0
    assert run("init", tmp_path / "twice", "-o", "-") == 0
    assert 'name = "twice"' in capsys.readouterr().out


def test_among_other_models_the_file_is_named_after_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        model(tmp_path / f"{name}.onnx")
    assert run("init", tmp_path / "a.onnx") == 0
    assert (tmp_path / "a.contract.toml").is_file()
    assert not (tmp_path / "contract.toml").exists()


def test_every_mismatch_is_printed_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "model.onnx", kind=onnx.TensorProto.DOUBLE)
    other = model(tmp_path / "other" / "model.onnx", columns=4)
    run("init", other)
    assert run("check", source, "--contract", other.with_name("contract.toml")) == 1
    error = capsys.readouterr().err
    assert "4 problems found" in error
    assert "input[0].datatype: the model has FP64, found FP32" in error
    assert "output[0].shape[1]: the model has 3, found 4" in error


def test_steps_that_lead_nowhere_are_printed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "model.onnx")
    assert run("init", source) == 0
    declared = tmp_path / "contract.toml"
    steps = """
[[schema.input]]
name = "rows"
kind = "table"
tensor = "x"
columns = [{ name = "a" }, { name = "b" }]

[[schema.output]]
name = "labels"
kind = "labels"
tensor = "y"
steps = [{ op = "top_k" }, { op = "labels", file = "labels.txt" }]
"""
    declared.write_text(declared.read_text() + steps)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    assert run("check", source) == 1
    found = capsys.readouterr().err
    assert "schema.input[0]: makes 2 in dim 1, the model's 'x' has 3" in found
    assert "schema.output[0].steps[1]: expected 3 names, as many as the model's classes" in found
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    declared.write_text(
        declared.read_text().replace('{ name = "b" }', '{ name = "b" }, { name = "c" }')
    )
    assert run("check", source) == 0


def test_the_executable_holds_its_contract(tmp_path: Path) -> None:
    source = model(tmp_path / "model.onnx")
    run("init", source)
    beside = source.with_name("contract.toml")
    beside.write_text(beside.read_text() + "\n[sla]\np99_ms = 5.0\n")
    (tmp_path / "elsewhere").mkdir()
    built = Path(api.build(source, tmp_path / "elsewhere" / "twice.cast"))
    declared = api.contract(built)
    assert declared.sla.p99_ms == 5.0
    instance = api.load(built)
    assert document.parse(instance.metadata[document.METADATA_KEY]) == declared
    instance.close()
    assert run("check", built) == 0


def test_a_model_that_breaks_its_contract_is_not_built(tmp_path: Path) -> None:
    narrow = model(tmp_path / "narrow" / "model.onnx")
    run("init", narrow)
    wide = model(tmp_path / "wide" / "model.onnx", columns=4)
    with pytest.raises(errors.ContractError, match="2 problems found"):
        api.build(wide, contract=narrow.with_name("contract.toml"))
    assert not wide.with_suffix(".cast").exists()


def test_changes_are_printed_and_the_status_tells_whether_one_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = model(tmp_path / "old" / "model.onnx")
    run("init", old)
    contract = old.with_name("contract.toml")
    new = tmp_path / "new.toml"
    new.write_text(contract.read_text().replace("default_ms = 10000.0", "default_ms = 20000.0"))
    capsys.readouterr()
    assert run("diff", contract, new) == 0
    assert "safe      timeout.default_ms" in capsys.readouterr().out
    assert run("diff", new, contract) == 1
    assert capsys.readouterr().out.endswith("1 changed, 1 of it breaking clients\n")
    assert run("diff", new, old, "--json") == 1
    [change] = json.loads(capsys.readouterr().out)
    assert (change["path"], change["rule"]["name"]) == ("timeout.default_ms", "timeout-lowered")


def test_everything_is_exported_twice_the_same(tmp_path: Path) -> None:
    source = model(tmp_path / "twice.onnx")
    for folder in ("one", "two"):
        assert run("export", source, "-o", tmp_path / folder) == 0
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".proto", ".ts", ".py"}
    for path in files:
        twin = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == twin.read_bytes()
    assert run("export", source, "--form", "openapi", "-o", tmp_path / "three") == 0
    assert [path.name for path in (tmp_path / "three").iterdir()] == ["openapi.json"]


def test_a_contract_with_faults_is_told_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "model.onnx")
    source.with_name("contract.toml").write_text('nam = "x"\n[limit]\n')
    assert run("check", source) == 1
    error = capsys.readouterr().err
    assert "nam: unknown key; did you mean 'name'?" in error
    assert "limit: unknown key; did you mean 'limits'?" in error
    assert "Traceback" not in error
