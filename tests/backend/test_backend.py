"""ONNX's backend tests through the adapter: a handful here, all of them in the slow suite."""

from __future__ import annotations

import pathlib
import re
import unittest

import numpy as np
import onnx
import pytest
from onnx import helper

from castiron import backend

PASSES = pathlib.Path(__file__).with_name("passes.txt")
HANDFUL = (
    "test_add|test_sum_one_input|test_conv_with_strides_padding|test_softmax_axis_1|test_clip|"
    "test_if|test_scalar_shape|test_abs|test_cast_FLOAT_to_DOUBLE|test_scan9_sum|test_PReLU_2d|"
    "test_sequence_insert_at_back|test_mvn"
)


@pytest.fixture(scope="module")
def cases() -> dict[str, unittest.TestCase]:
    """Every backend test by name."""
    return {backend.name_of(case): case for case in backend.cases()}


def recorded() -> list[str]:
    return PASSES.read_text().split()


def test_the_record_of_passes_is_sorted_without_doubles_and_large_enough() -> None:
    names = recorded()
    assert names == sorted(set(names))
    assert len(names) >= 1831


def test_the_record_names_tests_that_exist(cases: dict[str, unittest.TestCase]) -> None:
    assert len(cases) == 2033
    assert set(recorded()) <= set(cases)


def test_a_handful_passes_or_is_refused_with_a_reason(cases: dict[str, unittest.TestCase]) -> None:
    wanted = [case for name, case in cases.items() if re.fullmatch(HANDFUL, name)]
    tally = backend.run(wanted)
    assert tally.failed == {}
    assert set(tally.passed) == {backend.name_of(case) for case in wanted} & set(recorded())
    assert list(tally.skipped) == ["test_sequence_insert_at_back"]
    assert "expected a tensor" in tally.skipped["test_sequence_insert_at_back"]
    assert {"test_abs", "test_add", "test_softmax_axis_1"} <= set(tally.native)
    assert "test_scan9_sum" not in tally.native


def _model(op: str, domain: str = "") -> onnx.ModelProto:
    info = helper.make_tensor_value_info("x", 1, [])
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], domain=domain)], "one", [info],
        [helper.make_tensor_value_info("y", 1, [])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_numpy_scalar_is_a_tensor_without_dims() -> None:
    rep = backend.Backend.prepare(_model("Neg"))
    (found,) = rep.run([np.float32(3)])
    assert found.shape == ()
    assert float(found) == -3.0


def test_a_refusal_skips_and_never_counts_as_a_pass() -> None:
    with pytest.raises(unittest.SkipTest, match="no such op is known"):
        backend.Backend.prepare(_model("Nag"))


def test_only_the_cpu_is_a_device() -> None:
    assert backend.Backend.supports_device("CPU")
    assert not backend.Backend.supports_device("CUDA")


def _outcomes() -> type[unittest.TestCase]:
    """A case class made in here, so that pytest does not collect it."""

    class Outcomes(unittest.TestCase):
        def test_right_cpu(self) -> None:
            pass

        def test_wrong_cpu(self) -> None:
            np.testing.assert_equal(1, 2)

        def test_broken_cpu(self) -> None:
            raise OSError("no room")

        def test_refused_cpu(self) -> None:
            raise unittest.SkipTest("by its nature")

    return Outcomes


def test_outcomes_are_told_apart() -> None:
    names = ("test_right", "test_wrong", "test_broken", "test_refused")
    outcomes = _outcomes()
    tally = backend.run([outcomes(f"{name}_cpu") for name in names])
    assert tally.passed == ["test_right"]
    assert set(tally.failed) == {"test_wrong", "test_broken"}
    assert tally.failed["test_broken"] == "OSError: no room"
    assert tally.skipped == {"test_refused": "by its nature"}
    assert tally.summary().startswith("1 of 4 passed, 2 failed, 1 skipped; 0 of the passes")


def test_the_runner_prints_counts_and_fails_on_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    written = tmp_path / "passes.txt"
    assert (
        backend.main(["^test_abs$", "^test_identity_opt$", "--show", "--passes", str(written)]) == 0
    )
    text = capsys.readouterr().out
    assert "skipped test_identity_opt: " in text
    assert "1 of 2 passed, 0 failed, 1 skipped; 1 of the passes (100%) compiled natively" in text
    assert written.read_text() == "test_abs\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_passed_once_passes_still(
    cases: dict[str, unittest.TestCase], capsys: pytest.CaptureFixture[str]
) -> None:
    tally = backend.run(list(cases.values()))
    with capsys.disabled():
        print(f"\n{tally.summary()}")  # noqa: T201
    lost = {
        name: tally.failed.get(name) or tally.skipped.get(name)
        for name in sorted(set(recorded()) - set(tally.passed))
    }
    assert lost == {}, "the record of passes may only grow"
