"""Candidates judged by the real command: none of the bad ones answers or leaves anything behind."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import castiron
from castiron import api
from castiron.executable import reader
from castiron.registry import registry as registries
from castiron.registry import supply
from castiron.registry import version as versions
from tests.executable import patched
from tests.loader import models

pytestmark = pytest.mark.xdist_group("judge")

GOLDEN = """name = "m"
[[input]]
name = "x"
datatype = "FP32"
shape = ["n", 4]
[[output]]
name = "y"
datatype = "FP32"
shape = ["n", 4]
[[golden]]
name = "doubled"
inputs.x = {{ shape = [1, 4], data = [1, 2, 3, 4] }}
outputs.y = {{ shape = [1, 4], data = {data} }}
"""


def times(factor: float, width: int = 4) -> onnx.ModelProto:
    constants = {"k": np.full((1, width), factor, np.float32)}
    node = models.node("Mul", ["x", "k"], ["y"])
    return models.model([node], [models.value("x", ["n", width])], ["y"], constants)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    for name, made in (("two", times(2)), ("three", times(3)), ("wide", times(2, 5))):
        castiron.build(made.SerializeToString(), folder / f"{name}.cast")
    return folder


def put(source: Path, folder: Path, number: int, data: str = "[2, 4, 6, 8]") -> Path:
    path = folder / "m" / str(number) / "model.cast"
    path.parent.mkdir(parents=True)
    shutil.copy(source, path)
    if data:
        (path.parent / "contract.toml").write_text(GOLDEN.format(data=data))
    return path


def maps() -> str:
    return Path("/proc/self/maps").read_text()


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def load_second(tmp_path: Path, place: Callable[[Path], None]) -> tuple[dict[int, str], str]:
    """States once a second version was placed beside a good one, and why it failed."""
    folder = tmp_path / "models"
    found: list[tuple[dict[int, str], str]] = []

    def cached() -> list[Path]:
        return sorted((tmp_path / "cache").rglob("*"))

    async def body() -> None:
        settings = supply.Settings(tmp_path / "cache")
        registry = registries.Registry(api._supply(1, []), settings)
        await registry.start(folder)
        assert registry.models["m"][1].is_ready, registry.models["m"][1].reason
        verdicts = cached()
        before = num_threads()
        place(folder)
        try:
            await registry.load("m")
        except castiron.errors.ModelNotReady:
            assert cached() == verdicts
            assert str(folder / "m" / "2") not in maps()
            assert num_threads() <= before + 1  # the loop's executor
        numbered = registry.models["m"]
        found.append(({n: v.state for n, v in numbered.items()}, numbered[2].reason))
        assert registry.find("m").number == (2 if numbered[2].is_ready else 1)
        registry.close()

    asyncio.run(body())
    return found[0]


REFUSED = {1: versions.READY, 2: versions.FAILED}


def test_a_good_candidate_takes_over(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)
    found, _ = load_second(tmp_path, lambda folder: _put(built / "two.cast", folder))
    assert found == {1: versions.READY, 2: versions.READY}


def _put(source: Path, folder: Path, data: str = "[2, 4, 6, 8]") -> None:
    put(source, folder, 2, data)


def test_a_wrong_golden_answer_keeps_a_candidate_out(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)
    found, why = load_second(tmp_path, lambda folder: _put(built / "three.cast", folder))
    assert found == REFUSED
    assert "golden 'doubled', output 'y'" in why
    assert "expected 2" in why


def test_golden_data_is_read_from_a_file_beside_the_contract(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)

    def place(folder: Path) -> None:
        path = put(built / "three.cast", folder, 2)
        text = GOLDEN.split("[[golden]]", maxsplit=1)[0].format(data="")
        (path.parent / "contract.toml").write_text(
            text + '[[golden]]\nname = "filed"\nfile = "case.npz"\n'
        )
        x = np.ones((2, 4), np.float32)
        arrays: dict[str, Any] = {"inputs.x": x, "outputs.y": 2 * x}
        np.savez(path.parent / "case.npz", **arrays)

    found, why = load_second(tmp_path, place)
    assert found == REFUSED
    assert "filed" in why


def test_a_schema_unlike_the_version_befores_keeps_a_candidate_out(
    built: Path, tmp_path: Path
) -> None:
    put(built / "two.cast", tmp_path / "models", 1)
    found, why = load_second(tmp_path, lambda folder: _put(built / "wide.cast", folder, ""))
    assert found == REFUSED
    assert "clients of the version before" in why


def test_a_schema_unlike_its_contract_keeps_a_candidate_out(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)
    found, why = load_second(tmp_path, lambda folder: _put(built / "wide.cast", folder))
    assert found == REFUSED
    assert "the model has 5" in why


def test_a_truncated_file_keeps_a_candidate_out(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)

    def place(folder: Path) -> None:
        path = put(built / "two.cast", folder, 2)
        os.truncate(path, path.stat().st_size - 100)

    found, _ = load_second(tmp_path, place)
    assert found == REFUSED


def test_a_wrong_digest_of_the_weights_keeps_a_candidate_out(built: Path, tmp_path: Path) -> None:
    put(built / "two.cast", tmp_path / "models", 1)

    def place(folder: Path) -> None:
        path = put(built / "two.cast", folder, 2)
        with reader.open(path) as held:
            at = held.header.parts["weights"].offset
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x01")

    found, why = load_second(tmp_path, place)
    assert found == REFUSED
    assert "weights" in why


def test_features_that_this_processor_lacks_keep_a_candidate_out(
    built: Path, tmp_path: Path
) -> None:
    put(built / "two.cast", tmp_path / "models", 1)

    def place(folder: Path) -> None:
        patched.with_flags(built / "two.cast", folder / "m" / "2" / "model.cast", "avx9000")

    found, why = load_second(tmp_path, place)
    assert found == REFUSED
    assert "avx9000" in why


def test_a_kernel_that_traps_ends_only_the_process_that_tries_it(
    built: Path, tmp_path: Path
) -> None:
    put(built / "two.cast", tmp_path / "models", 1)

    def place(folder: Path) -> None:
        trap = bytes.fromhex("0f0b")
        patched.with_code(built / "two.cast", folder / "m" / "2" / "model.cast", "fused", trap)

    found, why = load_second(tmp_path, place)
    assert found == REFUSED
    assert "SIGILL" in why
