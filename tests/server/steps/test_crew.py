"""Processes that run steps: started when needed, bounded, replaced, and never the server's end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from castiron import errors
from castiron.server.steps import crew, faults
from tests.server.steps import contracts, images

PNG = images.file(images.stripes())
BOUNDS = crew.Bounds(processes=1, timeout_s=20.0, memory_bytes=1 << 30, max_waiting=2)

PIPELINE = """
name = "m"
input = [{ name = "x", datatype = "FP32", shape = ["n"] }]
output = [{ name = "y", datatype = "FP32", shape = ["n"] }]
schema.input = [{ name = "do", kind = "text" }]

[pipeline]
file = "pipeline.py"
"""

CODE = """
import os, sys, time

def before(values):
    do = values["do"]
    if do == "exit":
        os._exit(3)
    if do == "crash":
        import ctypes
        ctypes.string_at(0)
    if do == "sleep":
        time.sleep(60)
    if do == "hoard":
        return {"x": bytearray(8 << 30)}
    if do == "refuse":
        raise ValueError("not this one")
    if do == "stumble":
        return {"x": {}["missing"]}
    if do == "leave":
        sys.exit(1)
    if do == "ragged":
        return {"x": [[1, 2], [3]]}
    if do == "text":
        return {"x": ["a"]}
    if do == "other":
        return {"z": [1]}
    return {"x": [float(len(do)), os.getpid()]}

def after(tensors):
    if tensors["y"][0] < 0:
        raise RuntimeError("below zero \\ud800")
    return {"sum": tensors["y"].sum(), "all": tensors["y"]} if tensors["y"][0] else {"x": object()}
"""

Test = Callable[[crew.Crew], Awaitable[None]]


@contextlib.asynccontextmanager
async def working(bounds: crew.Bounds = BOUNDS) -> AsyncIterator[crew.Crew]:
    made = crew.Crew("tests", bounds)
    try:
        yield made
    finally:
        made.close()


def pictures() -> crew.Lesson:
    return crew.Lesson(contracts.PICTURE, "nowhere", {})


async def show(made: crew.Crew, lesson: crew.Lesson, data: bytes = PNG) -> crew.Answer:
    return await made.call(lesson, {"act": "before", "values": {}}, {"image": data})


def own(folder: Path, code: str = CODE) -> crew.Lesson:
    (folder / "pipeline.py").write_text(code)
    return crew.Lesson(PIPELINE, str(folder), {})


async def do(made: crew.Crew, lesson: crew.Lesson, word: str) -> np.ndarray:
    answer = await made.call(lesson, {"act": "before", "values": {"do": word}})
    return answer.tensors["x"]


def test_values_go_in_and_tensors_come_out_and_the_other_way_round() -> None:
    async def run() -> None:
        async with working() as made:
            lesson = pictures()
            answer = await show(made, lesson)
            assert answer.tensors["x"].shape == (1, 3, 8, 8)
            assert answer.head["place"]["width"] == 60
            head = {"act": "after", "place": None}
            y = np.array([[0.1, 0.7, 0.2]], np.float32)
            reply = orjson.loads((await made.call(lesson, head, tensors={"y": y})).raw["reply"])
            assert [each["label"] for each in reply["labels"]] == ["b", "c"]

    asyncio.run(run())


def test_faults_of_steps_arrive_as_what_they_are() -> None:
    async def run() -> None:
        async with working() as made:
            with pytest.raises(errors.InputError, match="image: expected an image file") as raised:
                await show(made, pictures(), b"nothing")
            assert raised.value.path == "image"
            with pytest.raises(faults.TooLargeError, match="20000 x 20000"):
                await show(made, pictures(), images.bomb(20_000, 20_000))
            assert len(made.process_ids) == 1

    asyncio.run(run())


def test_a_contract_is_learnt_once_and_forgotten_with_its_version() -> None:
    async def run() -> None:
        async with working() as made:
            first, second = pictures(), pictures()
            await show(made, first)
            made.forget(first)
            await show(made, second)
            await show(made, first)  # learnt again, whatever was forgotten

    asyncio.run(run())


def test_no_more_processes_and_no_more_waiting_than_allowed() -> None:
    async def run() -> None:
        async with working() as made:
            lesson = pictures()
            calls = [asyncio.create_task(show(made, lesson)) for _ in range(5)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            refused = [each for each in found if isinstance(each, errors.ResourceError)]
            assert len(refused) == 2 and "wait for a process" in str(refused[0])
            assert len(made.process_ids) == 1
            await show(made, lesson)

    asyncio.run(run())


@pytest.mark.parametrize("word", ["exit", "crash"])
def test_a_process_that_dies_fails_one_call_and_is_replaced(word: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with working() as made:
            lesson = own(tmp_path)
            before = (await do(made, lesson, "x"))[1]
            wanted = "left with status 3" if word == "exit" else "signal 11 ended it"
            with pytest.raises(faults.CrewDiedError, match=wanted):
                await do(made, lesson, word)
            assert (await do(made, lesson, "x"))[1] != before

    asyncio.run(run())


def test_an_idle_process_that_is_killed_fails_nothing() -> None:
    async def run() -> None:
        async with working() as made:
            lesson = pictures()
            await show(made, lesson)
            (killed,) = made.process_ids
            os.kill(killed, signal.SIGKILL)
            await asyncio.sleep(0.2)
            await show(made, lesson)
            assert made.process_ids != [killed]

    asyncio.run(run())


def test_a_late_process_is_ended_and_the_next_call_has_a_new_one(tmp_path: Path) -> None:
    async def run() -> None:
        bounds = crew.Bounds(1, 1.0, 1 << 30)
        async with working(bounds) as made:
            lesson = own(tmp_path)
            await do(made, lesson, "x")
            begun = time.monotonic()
            with pytest.raises(faults.LateError, match="longer than 1 s"):
                await do(made, lesson, "sleep")
            assert time.monotonic() - begun < 5
            await do(made, lesson, "x")

    asyncio.run(run())


def test_a_caller_that_leaves_does_not_take_the_process_along(tmp_path: Path) -> None:
    async def run() -> None:
        async with working() as made:
            lesson = own(tmp_path)
            first = (await do(made, lesson, "x"))[1]
            leaving = asyncio.create_task(do(made, lesson, "y"))
            waiting = asyncio.create_task(do(made, lesson, "z"))
            await asyncio.sleep(0)
            leaving.cancel()
            assert (await waiting)[1] == first
            gone = asyncio.create_task(do(made, lesson, "z"))
            gone.cancel()
            assert (await do(made, lesson, "four"))[0] == 4

    asyncio.run(run())


@pytest.mark.parametrize(
    "word, kind, wanted",
    [
        ("refuse", errors.InputError, "pipeline.py refused the request: not this one"),
        ("stumble", faults.PipelineError, "pipeline.py: before: KeyError: 'missing'"),
        ("hoard", faults.PipelineError, "before: MemoryError"),
        ("leave", faults.PipelineError, "before: SystemExit: 1"),
        ("ragged", faults.PipelineError, "before: x: ValueError"),
        ("text", faults.PipelineError, "before: x: expected FP32, found <U1"),
        ("other", faults.PipelineError, r"expected tensors \['x'\], found \['z'\]"),
    ],
)
def test_what_the_users_code_does_wrong_is_told_and_ends_nothing(
    word: str, kind: type[Exception], wanted: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with working() as made:
            lesson = own(tmp_path)
            with pytest.raises(kind, match=wanted):
                await do(made, lesson, word)
            assert (await do(made, lesson, "four"))[0] == 4
            assert len(made.process_ids) == 1

    asyncio.run(run())


async def ended(made: crew.Crew, lesson: crew.Lesson, *numbers: float) -> Any:
    head = {"act": "after", "place": None}
    answer = await made.call(lesson, head, tensors={"y": np.array(numbers, np.float32)})
    return orjson.loads(answer.raw["reply"])


def test_the_users_code_ends_replies_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with working() as made:
            lesson = own(tmp_path)
            assert await ended(made, lesson, 1, 2) == {"sum": 3, "all": [1, 2]}
            with pytest.raises(faults.PipelineError, match="after: RuntimeError: below zero"):
                await ended(made, lesson, -1)
            with pytest.raises(faults.PipelineError, match="after: expected what JSON can hold"):
                await ended(made, lesson, 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    "code, wanted",
    [
        ("def before(:", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("raise SystemExit", "SystemExit"),
        ("x = 1", "expected a function before or after, found neither"),
    ],
)
def test_a_pipeline_that_cannot_be_loaded_is_told_when_it_is_learnt(
    code: str, wanted: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with working() as made:
            with pytest.raises(errors.ContractError, match=wanted):
                await made.call(own(tmp_path, code), {"act": "describe"})

    asyncio.run(run())
