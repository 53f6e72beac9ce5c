"""Names to versions to running instances.

Owned by the event loop. ``start`` lists the folder and returns at once with a task that makes
every version ready or failed, one build at a time; a broken version stops no other. The server
asks ``candidates`` for each request; which version answers when none is named is decided here.
``load`` looks at a model's folder again, ``unload`` takes a model away once nothing of it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from castiron import errors
from castiron.registry import builder, store, supply
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

    __slots__ = ("_busy", "_folder", "_hooks", "_settings", "_supply", "_task", "models")

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
        self.models: dict[str, dict[int, versions.Version]] = {}

    def __iter__(self) -> Iterator[versions.Version]:
        for numbered in self.models.values():
            yield from numbered.values()

    def start(self, models_dir: Path) -> asyncio.Task[None]:
        """List the folder and begin to make everything in it ready."""
        self._folder = models_dir
        listing = store.scan(models_dir)
        for line in listing.passed_over:
            log.warning("passed over: %s", line)
        for found in listing.versions:
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
        found = [version for version in numbered.values() if version.is_ready]
        if len(found) > 1:
            found.sort(key=_number, reverse=True)
        if found:
            return found
        raise errors.ModelNotReady(f"no version of model {model!r} is ready: {_states(numbered)}")

    def _named(
        self, model: str, numbered: dict[int, versions.Version], number: str
    ) -> versions.Version:
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

    def close(self) -> None:
        """Stop what is being made ready and give all instances back."""
        if self._task is not None:
            self._task.cancel()
        for version in self:
            version.close()

    async def load(self, model: str) -> None:
        """Look at the model's folder again: make new, changed and unloaded versions ready.

        A changed version answers with its old file until the new one is ready, and goes on with
        it when the new one fails. Raises ModelNotFound when the folder holds no such model,
        ModelNotReady when a version could not be made ready; the others are.
        """
        async with self._busy:
            listing = store.scan(self._folder)
            found = {each.number: each for each in listing.versions if each.model == model}
            if not found:
                raise errors.ModelNotFound(
                    f"model {model!r} is not in the folder: expected "
                    f"{model[:80]}/1/model.onnx or model.cast"
                )
            problems = [await self._load(each) for each in found.values()]
            for number in set(self.models[model]) - set(found):
                await self._take_away(self.models[model].pop(number))
            if any(problems):
                raise errors.ModelNotReady("; ".join(filter(None, problems)))

    async def _load(self, found: store.Found) -> str:
        """One version; what kept it from becoming ready."""
        old = self.models.get(found.model, {}).get(found.number)
        if old is not None and old.is_ready and old.is_current(found):
            return ""
        version = versions.Version(found)
        answering = old if old is not None and old.is_ready else None
        if answering is None:
            self._list(version)
        if not version.is_settled:
            if _file(version).suffix == ".onnx":
                version.state = versions.BUILDING
            await self._prepare(version)
        if version.is_ready and answering is not None:
            self._list(version)
            await self._take_away(answering)
        name = f"{found.model}/{found.number}"
        return "" if version.is_ready else f"version {name} failed; the server's log says why"

    async def unload(self, model: str) -> None:
        """Answer no more for this model, finish what was accepted, give its memory back.

        Raises ModelNotFound. The model stays listed, and ``load`` brings it back.
        """
        numbered = self.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        async with self._busy:
            for version in numbered.values():
                await self._take_away(version)

    async def _take_away(self, version: versions.Version) -> None:
        version.state = versions.CLOSED
        version.reason = "unloaded"
        await self._hooks.retire(version)
        version.close()
        log.info("%s/%d is unloaded", version.model, version.number)

    def _list(self, version: versions.Version) -> versions.Version:
        self.models.setdefault(version.model, {})[version.number] = version
        self._hooks.watch(version)
        return version

    async def _prepare_all(self) -> None:
        async with self._busy:
            await self._prepare_listed()

    async def _prepare_listed(self) -> None:
        """Executables first, since they are ready in milliseconds; then builds, newest first."""
        waiting = [version for version in self if not version.is_settled]
        sources = [version for version in waiting if _file(version).suffix == ".onnx"]
        for version in sources:
            version.state = versions.BUILDING
        for version in waiting:
            if version.state == versions.LOADING:
                await self._prepare(version)
        for version in sorted(sources, key=lambda version: -version.number):
            await self._prepare(version)

    async def _prepare(self, version: versions.Version) -> None:
        name = f"{version.model}/{version.number}"
        try:
            path = _file(version)
            if version.state == versions.BUILDING:
                path = await builder.build(name, path, self._supply, self._settings)
                version.state = versions.LOADING
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

    async def _admit(self, version: versions.Version, instance: supply.Instance) -> None:
        try:
            await self._hooks.prepare(version, instance)
        except BaseException:
            instance.close()
            raise
        version.admit(instance)

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


def _number(version: versions.Version) -> int:
    return version.number


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
