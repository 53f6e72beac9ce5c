"""Versions that follow each other: staged, switched, promoted, rolled back, dropped, watched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from castiron import errors
from castiron.registry import registry as registries
from castiron.registry import supply, watch
from castiron.registry import version as versions
from tests.registry import test_registry

put = test_registry.put
serve = test_registry.serve


def answering(registry: registries.Registry) -> int:
    return registry.find("m").number


def states(registry: registries.Registry) -> dict[int, str]:
    return {number: version.state for number, version in registry.models["m"].items()}


def latest(tmp_path: Path, count: int = 1, keep: int = 1) -> None:
    (tmp_path / "models").mkdir(exist_ok=True)
    text = f'[default]\nserve = "latest"\nlatest = {count}\nkeep = {keep}\n'
    (tmp_path / "models" / "models.toml").write_text(text)


def test_a_new_version_answers_the_old_one_rests_and_a_rollback_returns(tmp_path: Path) -> None:
    latest(tmp_path)
    put(tmp_path, m_1_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        put(tmp_path, m_2_cast="add_one")
        await registry.load("m")
        assert answering(registry) == 2
        assert states(registry) == {1: versions.RESTING, 2: versions.READY}
        with pytest.raises(errors.ModelNotReady):
            registry.find("m", "1")
        resting = registry.models["m"][1].instance
        assert await registry.rollback("m") == 1
        assert registry.find("m").instance is resting
        assert states(registry) == {1: versions.READY, 2: versions.RESTING}
        put(tmp_path, m_3_cast="add_one")
        await registry.load("m")
        assert answering(registry) == 1  # what was gone back to stays until somebody says so
        assert states(registry) == {1: versions.READY, 3: versions.RESTING}
        await registry.promote("m", 3)
        assert answering(registry) == 3
        assert states(registry) == {1: versions.RESTING, 3: versions.READY}
        await registry.promote("m", None)
        assert answering(registry) == 3

    serve(tmp_path, use)


def test_only_so_many_rest_and_the_others_are_given_back(tmp_path: Path) -> None:
    latest(tmp_path, keep=1)
    put(tmp_path, m_1_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        first = registry.models["m"][1]
        for number in (2, 3):
            put(tmp_path, **{f"m_{number}_cast": "add_one"})
            await registry.load("m")
        assert sorted(registry.models["m"]) == [2, 3]
        assert first.state == versions.CLOSED
        assert first.instance is None

    serve(tmp_path, use)


def test_what_is_staged_answers_only_after_the_switch_and_can_be_dropped(tmp_path: Path) -> None:
    put(tmp_path, m_1_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        put(tmp_path, m_2_cast="add_one", m_3_cast="nonsense")
        numbers, problems = await registry.stage("m")
        assert numbers == [2]
        assert len(problems) == 1
        assert answering(registry) == 1
        await registry.drop("m")
        assert registry.models["m"][2].state == versions.CLOSED
        await registry.stage("m")
        await registry.take_away(registry.switch("m"))
        assert answering(registry) == 2

    serve(tmp_path, use)


def test_when_nothing_wanted_can_answer_what_answers_goes_on(tmp_path: Path) -> None:
    latest(tmp_path)
    put(tmp_path, m_1_cast="add_one")

    async def use(registry: registries.Registry) -> None:
        put(tmp_path, m_2_cast="nonsense")
        with pytest.raises(errors.ModelNotReady, match="m/2 failed"):
            await registry.load("m")
        assert answering(registry) == 1
        assert registry.unsettled() == []

    serve(tmp_path, use)


def test_a_label_stands_for_a_number(tmp_path: Path) -> None:
    put(tmp_path, m_1_cast="add_one", m_2_cast="add_one")
    (tmp_path / "models" / "models.toml").write_text("[models.m]\nlabels = { stable = 1 }\n")

    async def use(registry: registries.Registry) -> None:
        assert registry.find("m", "stable").number == 1
        with pytest.raises(errors.ModelNotFound, match="canary"):
            registry.find("m", "canary")

    serve(tmp_path, use)


class _Sized:
    """An instance that says how much it holds."""

    def __init__(self, instance: supply.Instance, size: int) -> None:
        self._instance = instance
        self.held_bytes = size

    def __getattr__(self, name: str) -> object:
        return getattr(self._instance, name)


def test_a_model_makes_room_unless_it_is_pinned_or_in_use(tmp_path: Path) -> None:
    put(tmp_path, a_1_cast="add_one", b_1_cast="add_one", c_1_cast="add_one")
    (tmp_path / "models" / "models.toml").write_text("[models.a]\npinned = true\n")

    async def use() -> None:
        settings = supply.Settings(tmp_path / "cache", memory_budget_bytes=210)
        given = test_registry.supplied()
        sized = supply.Supply(
            lambda path: _Sized(given.open_instance(path), 100),  # type: ignore[arg-type,return-value]
            given.build_command, given.interpret_command, given.open_lane,
        )  # fmt: skip
        registry = registries.Registry(sized, settings)
        await registry.start(tmp_path / "models")
        found = {version.model: version.state for version in registry}
        assert found == {"a": versions.READY, "b": versions.READY, "c": versions.READY}
        put(tmp_path, d_1_cast="add_one")
        registry.models["b"][1].in_flight = 1
        await registry.load("d")
        assert registry.models["c"][1].state == versions.CLOSED
        assert registry.models["d"][1].is_ready
        registry.close()

    asyncio.run(use())


def watching(
    folder: Path, use: Callable[[list[str], list[str]], Awaitable[None]], period_s: float = 0.02
) -> None:
    async def body() -> None:
        loaded: list[str] = []
        gone: list[str] = []

        async def load(model: str) -> None:
            loaded.append(model)

        async def unload(model: str) -> None:
            gone.append(model)

        watcher = watch.Watcher(folder, period_s, load, unload)
        watcher.start()
        await use(loaded, gone)
        watcher.close()

    asyncio.run(body())


async def until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_met():  # noqa: ASYNC110  the folder tells nobody
            await asyncio.sleep(0.01)


def test_a_version_that_is_renamed_into_place_is_loaded_once(tmp_path: Path) -> None:
    put(tmp_path, m_1_onnx="add_one")
    folder = tmp_path / "models"

    async def use(loaded: list[str], gone: list[str]) -> None:
        await asyncio.sleep(0.1)
        assert loaded == []
        made = tmp_path / "2"
        made.mkdir()
        (made / "model.onnx").write_text("add_one")
        made.rename(folder / "m" / "2")
        await until(lambda: loaded == ["m"])
        await asyncio.sleep(0.1)
        assert loaded == ["m"]
        (folder / "m").rename(tmp_path / "away")
        await until(lambda: gone == ["m"])

    watching(folder, use)


def test_a_file_that_still_grows_is_not_loaded(tmp_path: Path) -> None:
    put(tmp_path, m_1_onnx="add_one")
    path = tmp_path / "models" / "m" / "2" / "model.onnx"
    path.parent.mkdir()

    async def use(loaded: list[str], gone: list[str]) -> None:
        with path.open("w") as file:
            for _ in range(30):
                file.write("more")
                file.flush()
                await asyncio.sleep(0.01)
                assert loaded == []
        await until(lambda: loaded == ["m"])

    watching(tmp_path / "models", use, period_s=0.05)


def test_half_an_executable_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.cast"
    path.write_bytes(b"\x7fELF")
    assert not watch.is_whole(path)
    assert watch.is_whole(tmp_path / "model.onnx")
