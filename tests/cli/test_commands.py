"""The commands as a user meets them: what they print, and how they end when something is wrong."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests import built


def castiron(folder: pathlib.Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, started in the folder; its exit code is checked."""
    done = subprocess.run(
        [sys.executable, "-m", "castiron", *words],
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two models, one of them built, and inputs for it."""
    made = tmp_path_factory.mktemp("commands")
    model = built.network()
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5])
    )
    onnx.save(model, made / "net.onnx")
    onnx.save(built.interpreted_between(), made / "between.onnx")
    pictures = np.random.default_rng(0).standard_normal((2, 3, 8, 9)).astype(np.float32)
    np.save(made / "x.npy", pictures)
    np.savez(made / "all.npz", allow_pickle=False, x=pictures)
    castiron(made, "build", "net.onnx", "--quiet")
    castiron(made, "build", "between.onnx", "--quiet")
    return made


def test_build_says_what_it_made(folder: pathlib.Path) -> None:
    done = castiron(folder, "build", "net.onnx", "--target", "baseline", "-o", "other.cast")
    first, second = done.stdout.splitlines()
    assert first.startswith("other.cast: 0.1 MB for baseline, built in ")
    assert second == "  5 native steps, nothing interpreted"
    assert done.stderr == ""


def test_build_names_what_it_interprets_and_why(folder: pathlib.Path) -> None:
    done = castiron(folder, "build", "between.onnx", "-o", "again.cast")
    assert "3 native steps, 1 interpreted node (25%):" in done.stdout
    assert "   1 x Compress: no kernel for op Compress" in done.stdout


def test_a_quiet_build_prints_the_path_alone(folder: pathlib.Path) -> None:
    assert castiron(folder, "build", "net.onnx", "--quiet").stdout == "net.cast\n"


@pytest.mark.parametrize(
    "words, message",
    [
        (["build", "between.onnx", "--strict"], "castiron build: tested: 1 node has no kernel"),
        (["build", "nothing.onnx"], "nothing.onnx: 1 problem found\n  - cannot be read"),
        (["build", "x.npy"], "expected an ONNX model, found"),
        (
            ["build", "net.onnx", "-o", "no/x.cast"],
            "expected a folder to write to, found none at no",
        ),
        (["build", "net.onnx", "-o", "net.onnx"], "would replace its own source"),
        (["build", "net.onnx", "-o", "."], "expected the name of a file to write, found a folder"),
        (["run", "nothing.cast"], "nothing.cast: file: expected to open it"),
        (["run", "net.onnx"], "expected an executable that begins"),
        (["run", "net.cast"], "--input: expected arrays for x: float32[n, 3, h, w], found none"),
        (["run", "net.cast", "--input", "no.npy"], "castiron run: no.npy: No such file"),
        (["run", "net.cast", "--input", "net.onnx"], "expected an .npy or .npz file of numbers"),
        (["run", "net.cast", "--input", "q=x.npy"], "found: missing x; unknown q"),
        (["run", "net.cast", "--input", "x=all.npz"], "an .npz file that names them all"),
        (["profile", "net.cast", "--dim", "q=3"], "expected one of the model's dims (h, n, w)"),
        (["profile", "net.cast", "--dim", "h=many"], "expected NAME=EXTENT, found 'h=many'"),
        (["bench", "net.onnx", "--peers", "abacus"], "expected some of onnxruntime, openvino"),
        (["verify", "net.onnx"], "give a .cast file made by castiron build"),
        (["inspect", "nothing"], "expected to open it"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_told_and_ends_with_1(
    folder: pathlib.Path, words: list[str], message: str
) -> None:
    done = castiron(folder, *words, code=1)
    assert done.stderr.startswith(f"castiron {words[0]}: ")
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words", [[], ["frobnicate"], ["build"], ["build", "net.onnx", "--target", "vax"]], ids=" ".join
)
def test_wrong_options_end_with_2_and_the_usage(folder: pathlib.Path, words: list[str]) -> None:
    assert castiron(folder, *words, code=2).stderr.startswith("usage: castiron")


def test_help_lists_every_command_with_a_line(folder: pathlib.Path) -> None:
    shown = castiron(folder, "--help").stdout
    for name in ("build", "run", "serve", "inspect", "profile", "bench", "verify"):
        assert f"\n    {name} " in shown


@pytest.mark.parametrize("given", ["x.npy", "x=x.npy", "all.npz"])
def test_run_prints_and_saves_the_outputs(folder: pathlib.Path, given: str) -> None:
    done = castiron(folder, "run", "net.cast", "--input", given, "--output", "out.npz")
    assert done.stdout.startswith("ran in ")
    assert "y: float32[2, 5]" in done.stdout
    with np.load(folder / "out.npz") as saved:
        assert saved["y"].shape == (2, 5)


def test_inspect_shows_edges_steps_and_bytes(folder: pathlib.Path) -> None:
    shown = castiron(folder, "inspect", "net.cast", "--graph").stdout
    assert "input    x: float32[n, 3, h, w]" in shown
    assert "output   y: float32[n, 5]" in shown
    assert "stage 0: native, 5 steps" in shown
    assert "= Conv(" in shown
    between = castiron(folder, "inspect", "between.cast").stdout
    assert "stage 1: interpreted: Compress" in between
    assert "no kernel for op Compress" in between


def test_inspect_as_json_holds_everything(folder: pathlib.Path) -> None:
    found = json.loads(castiron(folder, "inspect", "net.cast", "--json").stdout)
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["n", "3", "h", "w"]}]
    assert {"graph", "stages", "kernels", "bytes", "digest", "required_cpu_flags"} <= set(found)
    assert found["interpreted"] == {}


def test_profile_shows_the_slowest_step_first_with_a_bar(folder: pathlib.Path) -> None:
    words = ["profile", "net.cast", "--dim", "h=40", "--dim", "w=40", "--runs", "3"]
    lines = castiron(folder, *words, "--top", "3", "--svg", "bars.svg").stdout.splitlines()
    assert "steps; peak of one core" in lines[0]
    times = [float(line.split()[0]) for line in lines[2:5]]
    assert times == sorted(times, reverse=True)
    assert "█" in lines[2]
    assert lines[5].endswith("in 2 more")
    assert (folder / "bars.svg").read_text().startswith("<svg")


def test_profile_as_json_names_every_native_step(folder: pathlib.Path) -> None:
    found = json.loads(castiron(folder, "profile", "between.cast", "--dim", "n=9", "--json").stdout)
    assert found["peak_gflops"] > 0
    assert {step["name"] for step in found["steps"]} == {"twice", "mask", "y"}


def test_bench_compares_with_a_peer(folder: pathlib.Path) -> None:
    words = ["bench", "net.onnx", "--rounds", "1", "--runs", "2", "--dim", "h=16", "--dim", "w=16"]
    found = json.loads(castiron(folder, *words, "--json").stdout)
    assert set(found["engines"]) == {"castiron", "onnxruntime"}
    assert found["speed_against"]["onnxruntime"] > 0


def test_verify_reads_every_byte(folder: pathlib.Path) -> None:
    assert castiron(folder, "verify", "net.cast").stdout == (
        "net.cast: every part matches its digest\n"
    )
    data = bytearray((folder / "net.cast").read_bytes())
    data[-100] ^= 1
    (folder / "damaged.cast").write_bytes(data)
    assert "expected sha256" in castiron(folder, "verify", "damaged.cast", code=1).stderr


def test_only_the_chosen_command_is_imported(folder: pathlib.Path) -> None:
    code = (
        "import sys\nfrom castiron import cli\n"
        "assert cli.main(['verify', 'net.cast']) == 0\n"
        "loaded = [name for name in sys.modules if name.startswith('castiron.')]\n"
        "assert not [n for n in loaded if n.split('.')[1] in ('server', 'compiler', 'loader')]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)
