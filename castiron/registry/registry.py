"""Names to versions to running instances.

Owned by the event loop. ``start`` lists the folder and returns at once with a task that makes
every version ready or failed, one build at a time; a broken version stops no other. The server
asks ``candidates`` for each request; which of them comes first is ``routes.py``. ``load`` looks
at a model's folder again: candidates are judged and staged beside what answers, then ``switch``
turns to them at once. What answered before rests, so that ``rollback`` is as quick; ``unload``
takes a model away once nothing of it runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from castiron import errors
from castiron.registry import builder, judge, policy, room, routes, store, supply
from castiron.registry import version as versions
from castiron.runtime import interpreted

log = logging.getLogger("castiron.registry")


async def _ready(version: versions.Version, instance: supply.Instance) -> None:
    """Nothing more is needed."""
    del version, instance


async def _gone(version: versions.Version) -> None:
    """Nothing is to be waited for."""
    del version


def _seen(version: versions.Version) -> None:
    """Nobody looks."""
    del version


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the server does when versions come and go."""

    prepare: Callable[[versions.Version, supply.Instance], Awaitable[None]] = _ready
    """Awaited before a version is admitted; what it raises makes the version fail."""

    retire: Callable[[versions.Version], Awaitable[None]] = _gone
    """Awaited before the instance of a version that answers no more is closed: until then, what
    was accepted is answered."""

    watch: Callable[[versions.Version], None] = _seen
    """Told of each version that is listed."""


class Registry:
    """All models of one folder."""

    __slots__ = ("_busy", "_folder", "_has_started", "_hooks", "_settings", "_staged", "_supply",
                 "_task", "left_out", "models", "routes")  # fmt: skip

    def __init__(
        self,
        supplied: supply.Supply,
        settings: supply.Settings,
        hooks: Hooks = Hooks(),
    ) -> None:
        self._supply = supplied
        self._settings = settings
        self._hooks = hooks
        self._folder = Path()
        self._busy = asyncio.Lock()  # one build, load or unload at a time
        self._task: asyncio.Task[None] | None = None
        self._has_started = False
        self._staged: dict[str, list[versions.Version]] = {}
        self.left_out: set[str] = set()  # models that were unloaded before this process started
        self.routes = routes.Routes()
        self.models: dict[str, dict[int, versions.Version]] = {}

    def __iter__(self) -> Iterator[versions.Version]:
        for numbered in self.models.values():
            yield from numbered.values()

    def start(self, models_dir: Path) -> asyncio.Task[None]:
        """List the folder and begin to make everything in it ready."""
        self._folder = models_dir
        listing = store.scan(models_dir)
        self._read_policies()
        for line in listing.passed_over:
            log.warning("passed over: %s", line)
        for found in self._wanted(listing):
            version = self._list(versions.Version(found))
            if version.state == versions.FAILED:
                log.error("%s/%d failed: %s", version.model, version.number, version.reason)
        if not self.models:
            log.warning("no model found in %s", models_dir)
        self._task = asyncio.create_task(self._prepare_all())
        return self._task

    def find(self, model: str, number: str = "") -> versions.Version:
        """The version that answers: the one named, else the highest that is ready.

        Raises ModelNotFound for names that are not served, ModelNotReady for those that are
        but cannot answer now.
        """
        return self.candidates(model, number)[0]

    def candidates(self, model: str, number: str = "") -> list[versions.Version]:
        """All that could answer, in order of preference; at least one. Raises as ``find``."""
        numbered = self.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        if number:
            return [self._named(model, numbered, number)]
        ready = [version for version in numbered.values() if version.is_ready]
        if found := self.routes.order(model, ready):
            return found
        raise errors.ModelNotReady(f"no version of model {model!r} is ready: {_states(numbered)}")

    def _named(
        self, model: str, numbered: dict[int, versions.Version], number: str
    ) -> versions.Version:
        number = self.routes.number(model, number)
        known = number.isascii() and number.isdigit() and len(number) <= 18
        version = numbered.get(int(number)) if known else None
        if version is None or str(version.number) != number:
            raise errors.ModelNotFound(
                f"model {model!r} has no version {number[:40]!r}; it has {sorted(numbered)}"
            )
        if not version.is_ready:
            raise errors.ModelNotReady(
                f"version {number} of model {model!r} is not ready: {_state(version)}"
            )
        return version

    @property
    def is_settled(self) -> bool:
        """Whether every version is ready or failed."""
        return all(version.is_settled for version in self)

    def unsettled(self) -> list[versions.Version]:
        """Versions without which it is not said whether models can be asked.

        Once the folder was made ready, a candidate counts only where nothing answers meanwhile.
        """
        waiting = [version for version in self if not version.is_settled]
        if not self._has_started:
            return waiting
        answered = {version.model for version in self if version.is_ready}
        return [version for version in waiting if version.model not in answered]

    def close(self) -> None:
        """Stop what is being made ready and give all instances back."""
        if self._task is not None:
            self._task.cancel()
        for version in self:
            version.close()

    async def change(self, action: str, model: str, number: int | None) -> None:
        """``load``, ``unload``, ``promote`` or ``rollback``, by name."""
        if action == "load":
            await self.load(model)
        elif action == "unload":
            await self.unload(model)
        elif action == "promote":
            await self.promote(model, number)
        else:
            assert action == "rollback", action
            await self.rollback(model)

    async def load(self, model: str) -> None:
        """Look at the model's folder again: make new, changed and unloaded versions ready.

        A changed version answers with its old file until the new one is ready, and goes on with
        it when the new one fails. Raises ModelNotFound when the folder holds no such model,
        ModelNotReady when a version could not be made ready; the others are.
        """
        async with self._busy:
            problems = await self._stage(model)
            await self.take_away(self.switch(model))
        if problems:
            raise errors.ModelNotReady("; ".join(problems))

    async def stage(self, model: str) -> tuple[list[int], list[str]]:
        """The first half of ``load``: the numbers that wait for ``switch`` or ``drop``, and what
        kept others out."""
        async with self._busy:
            problems = await self._stage(model)
        return [version.number for version in self._staged.get(model, [])], problems

    async def _stage(self, model: str) -> list[str]:
        listing = store.scan(self._folder)
        self._read_policies()
        self.left_out.discard(model)
        if not any(each.model == model for each in listing.versions):
            raise errors.ModelNotFound(
                f"model {model!r} is not in the folder: expected "
                f"{model[:80]}/1/model.onnx or model.cast"
            )
        wanted = [each for each in self._wanted(listing) if each.model == model]
        problems = [await self._stage_one(each) for each in wanted]
        return [problem for problem in problems if problem]

    async def _stage_one(self, found: store.Found) -> str:
        """One version; what kept it from becoming ready."""
        old = self.models.get(found.model, {}).get(found.number)
        is_kept = old is not None and (old.is_ready or old.state == versions.RESTING)
        if old is not None and is_kept and old.is_current(found):
            return ""
        version = versions.Version(found)
        if not is_kept:
            self._list(version)
        if not version.is_settled:
            if _file(version).suffix == ".onnx":
                version.state = versions.BUILDING
            await self._prepare(version)
        if version.state != versions.STAGED:
            return f"version {found.model}/{found.number} failed; the server's log says why"
        self._staged.setdefault(found.model, []).append(version)
        return ""

    def switch(self, model: str) -> list[versions.Version]:
        """Let what is staged answer, from this moment; what is to be taken away then.

        Never waits, so it is as quick as the loop.
        """
        numbered = self.models.setdefault(model, {})
        gone = []
        for version in self._staged.pop(model, []):
            old = numbered.get(version.number)
            if old is not None and old is not version:
                gone.append(old)
            version.admit()
            self._list(version)
        listed = {each.number for each in store.of_model(self._folder, model)}
        gone += [numbered.pop(number) for number in set(numbered) - listed]
        return gone + self._settle(model)

    async def drop(self, model: str) -> None:
        """Give up what is staged."""
        await self.take_away(self._staged.pop(model, []))

    def _settle(self, model: str) -> list[versions.Version]:
        """Who answers and who rests, by the policy; those for whom there is no room to rest."""
        numbered = self.models[model]
        wanted = self.routes.wanted(model, numbered.keys())
        for version in numbered.values():
            if version.state == versions.RESTING and version.number in wanted:
                version.admit()
        if not any(numbered[number].is_ready for number in wanted):
            return []  # what is wanted cannot answer; what answers goes on
        for version in numbered.values():
            if version.state == versions.READY and version.number not in wanted:
                version.rest()
        ready = [version for version in numbered.values() if version.is_ready]
        for version in self.routes.order(model, ready)[:1]:
            self.routes.answers(model, version.number)
        resting = sorted(n for n in numbered if numbered[n].state == versions.RESTING)
        keep = self.routes.policies.of(model).keep
        return [numbered.pop(number) for number in resting[: max(0, len(resting) - keep)]]

    async def promote(self, model: str, number: int | None) -> None:
        """Let this version answer, and no newer one; None: the newest again, whichever it is.

        A version that rests or is ready answers at once. Raises ModelNotFound, ModelNotReady.
        """
        await self.take_away(self.turn(model, number))

    def turn(self, model: str, number: int | None) -> list[versions.Version]:
        """As ``promote``, without waiting; what is to be taken away then."""
        self.require(model, number)
        if number is None:
            self.routes.promoted.pop(model, None)
        else:
            self.routes.promoted[model] = number
        return self._settle(model)

    def require(self, model: str, number: int | None) -> None:
        """Raise what ``promote`` would."""
        numbered = self._numbered(model)
        if number is None:
            return
        version = numbered.get(number)
        if version is None:
            raise errors.ModelNotFound(
                f"model {model!r} has no version {number}; it has {sorted(numbered)}"
            )
        if version.state not in {versions.READY, versions.RESTING}:
            raise errors.ModelNotReady(
                f"version {number} of model {model!r} is {version.state}; load it first"
            )

    async def rollback(self, model: str) -> int:
        """Back to the version that answered before; its number. Raises as ``promote``."""
        number = self.before(model)
        await self.promote(model, number)
        return number

    def before(self, model: str) -> int:
        """The version that a rollback would go to. Raises ModelNotFound, ModelNotReady."""
        kept = [version.number for version in self._numbered(model).values()
                if version.state in {versions.READY, versions.RESTING}]  # fmt: skip
        return self.routes.before(model, kept)

    def _numbered(self, model: str) -> dict[int, versions.Version]:
        numbered = self.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        return numbered

    def _read_policies(self) -> None:
        try:
            self.routes.policies = policy.load(self._folder)
        except errors.CastironError as fault:
            log.error("%s; what it said before goes on", fault)  # noqa: TRY400  it says all

    def _wanted(self, listing: store.Listing) -> list[store.Found]:
        """What the policies say of what was found, and what waits to be promoted."""
        numbers: dict[str, list[int]] = {}
        for found in listing.versions:
            numbers.setdefault(found.model, []).append(found.number)
        wanted = {
            model: self.routes.wanted(model, each)
            | self.routes.policies.of(model).wanted(each, None)
            for model, each in numbers.items()
        }
        return [found for found in listing.versions
                if found.number in wanted[found.model] and found.model not in self.left_out]  # fmt: skip

    async def unload(self, model: str) -> None:
        """Answer no more for this model, finish what was accepted, give its memory back.

        Raises ModelNotFound. The model stays listed, and ``load`` brings it back.
        """
        numbered = self._numbered(model)
        async with self._busy:
            await self.take_away(list(numbered.values()))

    async def take_away(self, gone: list[versions.Version], reason: str = "unloaded") -> None:
        """Finish what these versions have accepted, then give their memory back."""
        for version in gone:
            version.state = versions.CLOSED
            version.reason = reason
        for version in gone:
            await self._hooks.retire(version)
            version.unmap()
            log.info("%s/%d is unloaded", version.model, version.number)

    def _list(self, version: versions.Version) -> versions.Version:
        self.models.setdefault(version.model, {})[version.number] = version
        self._hooks.watch(version)
        return version

    async def _prepare_all(self) -> None:
        async with self._busy:
            await self._prepare_listed()
            self._has_started = True

    async def _prepare_listed(self) -> None:
        """Executables first, since they are ready in milliseconds; then builds, newest first."""
        waiting = [version for version in self if not version.is_settled]
        sources = [version for version in waiting if _file(version).suffix == ".onnx"]
        for version in sources:
            version.state = versions.BUILDING
        for version in waiting:
            if version.state == versions.LOADING:
                await self._prepare(version)
                await self._turn_to(version)
        for version in sorted(sources, key=lambda version: -version.number):
            await self._prepare(version)
            await self._turn_to(version)

    async def _turn_to(self, version: versions.Version) -> None:
        if version.state == versions.STAGED:
            version.admit()
            await self.take_away(self._settle(version.model))

    async def _prepare(self, version: versions.Version) -> None:
        name = f"{version.model}/{version.number}"
        try:
            path = _file(version)
            if version.state == versions.BUILDING:
                path = await builder.build(name, path, self._supply, self._settings)
                version.state = versions.LOADING
            await judge.judge(
                version.found, path, self._before(version), self._supply, self._settings
            )
            await self._make_room(version, path)
            await self._admit(version, await self._open(path))
        except (errors.CastironError, OSError) as error:
            version.fail(str(error))
            log.error("%s failed: %s", name, version.reason)  # noqa: TRY400  it says all itself
            return
        except Exception as error:  # whatever is wrong with it, the others go on
            version.fail(f"{type(error).__name__}: {error}")
            log.exception("%s failed", name)
            return
        log.info("%s is ready, %s", name, version.digest)

    def _before(self, version: versions.Version) -> Path | None:
        """The executable of the highest lower version that answers or rests."""
        numbered = self.models.get(version.model, {})
        for number in sorted((n for n in numbered if n < version.number), reverse=True):
            path = getattr(numbered[number].instance, "path", None)
            if path is not None:
                return Path(path)
        return None

    async def _make_room(self, version: versions.Version, path: Path) -> None:
        """Take away as little as will do. Raises ResourceError when that is not enough."""
        budget_bytes = self._settings.memory_budget_bytes
        if not budget_bytes:
            return
        held = [
            room.Held(each, each.held_bytes, self._is_free(each, version.model),
                      each.state == versions.RESTING)
            for each in self if each.instance is not None
        ]  # fmt: skip
        needed_bytes = os.path.getsize(path)  # noqa: ASYNC240  a name in a cache that is warm
        chosen = room.victims(held, needed_bytes, budget_bytes)
        if chosen is None:
            raise errors.ResourceError(
                f"expected room for {needed_bytes} bytes within the budget of {budget_bytes}; "
                "what is loaded is pinned or in use; unload something or allow more"
            )
        gone = [each for each in self if each in chosen]
        for each in gone:
            log.warning("%r makes room for %s/%d", each, version.model, version.number)
        await self.take_away(gone, "it made room for another model; load brings it back")

    def _is_free(self, version: versions.Version, model: str) -> bool:
        """Whether it may make room: what a model is answering with stays while it is replaced."""
        is_needed = version.model == model and version.is_ready
        is_pinned = self.routes.policies.of(version.model).pinned
        return not is_needed and not is_pinned and not version.in_flight

    async def _admit(self, version: versions.Version, instance: supply.Instance) -> None:
        try:
            await self._hooks.prepare(version, instance)
        except BaseException:
            instance.close()
            raise
        version.stage(instance)

    async def _open(self, path: Path) -> supply.Instance:
        instance = self._supply.open_instance(path)
        if instance.is_native:
            return instance
        apart = interpreted.InterpretedInstance(
            self._supply.interpret_command(path),
            instance,
            start_timeout_s=self._settings.start_timeout_s,
            run_timeout_s=self._settings.run_timeout_s,
        )
        instance.close()
        try:
            await apart.wait_ready()
        except BaseException:
            apart.close()
            raise
        return apart


def _file(version: versions.Version) -> Path:
    assert version.found.file is not None
    return version.found.file


def _state(version: versions.Version) -> str:
    if version.state == versions.READY:
        return "its process died and is being replaced"
    # The reasons of failed builds are long and for the log; a client learns the state.
    return version.state


def _states(numbered: dict[int, versions.Version]) -> str:
    return ", ".join(f"{number} is {version.state}" for number, version in numbered.items())
