"""From a folder to answering versions: builds apart, a cache by content, failures contained.

The build command is a small real program: it copies a source that names a model of
``tests.numpy_instance`` to its destination, or fails, as the source says.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from castiron import errors
from castiron.registry import registry as registries
from castiron.registry import supply
from castiron.registry import version as versions
from tests import numpy_instance

_BUILD = """
import os, sys, time
source, out = sys.argv[1:]
text = open(source).read()
print("reading", flush=True)
if text.startswith("hang"): time.sleep(600)
if text.startswith("broken"): sys.exit("op Foo has no rule")
if text.startswith("die"): os.abort()
with open(out + ".part", "w") as file: file.write(text)
os.rename(out + ".part", out)
with open(out + ".builds", "a") as file: file.write("x")
"""


def supplied() -> supply.Supply:
    return supply.Supply(
        open_instance=numpy_instance.opened,
        build_command=lambda source, out: [sys.executable, "-c", _BUILD, str(source), str(out)],
        interpret_command=lambda path: [
            sys.executable, "-m", "tests.numpy_instance", "interpret", str(path),
        ],
        open_lane=lambda _: None,
        build_key="test",
    )  # fmt: skip


def put(tmp_path: Path, **texts: str) -> None:
    """``model_1_onnx="text"`` becomes models/model/1/model.onnx."""
    for key, text in texts.items():
        model, number, suffix = key.rsplit("_", 2)
        path = tmp_path / "models" / model / number / f"model.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def serve(
    tmp_path: Path,
    use: Callable[[registries.Registry], Awaitable[None]],
    build_timeout_s: float = 60,
) -> None:
    """Start a registry over tmp_path/models, wait until it has settled, use it, close it."""

    async def body() -> None:
        settings = supply.Settings(tmp_path / "cache", build_timeout_s=build_timeout_s)
        registry = registries.Registry(supplied(), settings)
        task = registry.start(tmp_path / "models")
        try:
            await task
            assert registry.is_settled
            await use(registry)
        finally:
            registry.close()

    asyncio.run(body())


def test_the_highest_ready_version_answers_and_each_can_be_named(tmp_path: Path) -> None:
    put(tmp_path, m_1_cast="add_one", m_2_cast="add_one", m_10_cast="nonsense")

    async def use(registry: registries.Registry) -> None:
        assert registry.find("m").number == 2
        assert registry.find("m", "1").number == 1
        with pytest.raises(errors.ModelNotReady, match="version 10 of model 'm' is not ready"):
            registry.find("m", "10")
        assert "expected one of our models" in registry.models["m"][10].reason

    serve(tmp_path, use)


@pytest.mark.parametrize("number", ["3", "01", "-1", "1.0", "x", " 1", "\u0661", "9" * 40, "../1"])
def test_versions_that_do_not_exist_are_not_found(tmp_path: Path, number: str) -> None:
    put(tmp_path, m_1_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        with pytest.raises(errors.ModelNotFound, match=r"it has \[1\]"):
            registry.find("m", number)
        with pytest.raises(errors.ModelNotFound):
            registry.find("../m")

    serve(tmp_path, use)


def test_a_source_is_built_once_and_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, m_1_onnx="add_one")
    caplog.set_level(logging.INFO)

    async def use(registry: registries.Registry) -> None:
        assert registry.find("m").state == versions.READY

    serve(tmp_path, use)
    assert "m/1: reading" in caplog.text
    (executable,) = (tmp_path / "cache").glob("*.cast")
    serve(tmp_path, use)
    assert Path(f"{executable}.builds").read_text() == "x"
    put(tmp_path, m_1_onnx="fragile")
    serve(tmp_path, use)
    assert len(list((tmp_path / "cache").glob("*.cast"))) == 2


def test_external_data_beside_the_source_is_part_of_the_key(tmp_path: Path) -> None:
    put(tmp_path, m_1_onnx="add_one")

    async def use(_: registries.Registry) -> None:
        pass

    for weights in ("a", "b"):
        (tmp_path / "models" / "m" / "1" / "weights.bin").write_text(weights)
        serve(tmp_path, use)
    assert len(list((tmp_path / "cache").glob("*.cast"))) == 2


@pytest.mark.parametrize(
    "source, reason",
    [
        ("broken", "the build ended with status 1: reading\nop Foo has no rule"),
        ("die", "the build ended with status -6"),
        ("hang", "the build took longer than 4 s and was ended"),
    ],
)
def test_a_broken_source_says_why_and_stops_no_other(
    tmp_path: Path, source: str, reason: str
) -> None:
    put(tmp_path, bad_1_onnx=source, good_1_onnx="add_one", bad_2_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        assert registry.find("good").is_ready
        assert registry.find("bad").number == 2
        failed = registry.models["bad"][1]
        assert failed.state == versions.FAILED
        assert reason in failed.reason

    serve(tmp_path, use, build_timeout_s=4 if source == "hang" else 60)


def test_a_model_with_interpreted_steps_runs_in_another_process(tmp_path: Path) -> None:
    put(tmp_path, m_1_cast="add_one interpreted")

    async def use(registry: registries.Registry) -> None:
        version = registry.find("m")
        assert version.instance is not None
        assert not version.instance.is_native
        assert getattr(version.instance, "process_id", None)

    serve(tmp_path, use)


def test_nothing_is_ready_while_it_is_being_built_and_closing_ends_the_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, m_1_onnx="hang")
    caplog.set_level(logging.INFO)

    async def body() -> None:
        registry = registries.Registry(supplied(), supply.Settings(tmp_path / "cache"))
        task = registry.start(tmp_path / "models")
        async with asyncio.timeout(20):
            while "m/1: reading" not in caplog.text:  # noqa: ASYNC110  a build tells its log
                await asyncio.sleep(0.01)
        assert not registry.is_settled
        with pytest.raises(errors.ModelNotReady, match="1 is building"):
            registry.find("m")
        registry.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())


def test_a_version_that_cannot_be_announced_has_failed_and_stops_no_other(tmp_path: Path) -> None:
    put(tmp_path, a_1_cast="add_one", b_1_cast="add_one")

    async def announce(version: versions.Version, instance: supply.Instance) -> None:
        assert instance.is_native
        if version.model == "a":
            raise ValueError("no lane for this")

    async def body() -> None:
        hooks = registries.Hooks(prepare=announce)
        registry = registries.Registry(supplied(), supply.Settings(tmp_path / "cache"), hooks)
        await registry.start(tmp_path / "models")
        assert registry.find("b").is_ready
        assert registry.models["a"][1].reason == "ValueError: no lane for this"
        assert registry.models["a"][1].instance is None
        registry.close()

    asyncio.run(body())


def test_an_empty_folder_serves_nothing(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()

    async def use(registry: registries.Registry) -> None:
        assert not list(registry)
        with pytest.raises(errors.ModelNotFound):
            registry.find("m")

    serve(tmp_path, use)
