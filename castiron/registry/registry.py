"""Names to versions to running instances.

Owned by the event loop. ``start`` lists the folder and returns at once with a task that makes
every version ready or failed, one build at a time; a broken version stops no other. The server
asks ``find`` for each request; which version answers when none is named is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from castiron import errors
from castiron.registry import builder, store, supply
from castiron.registry import version as versions
from castiron.runtime import interpreted

log = logging.getLogger("castiron.registry")


class Registry:
    """All models of one folder."""

    __slots__ = ("_changed", "_settings", "_supply", "_task", "models")

    def __init__(
        self,
        supplied: supply.Supply,
        settings: supply.Settings,
        on_ready: Callable[[versions.Version], None] = lambda _: None,
    ) -> None:
        self._supply = supplied
        self._settings = settings
        self._changed = on_ready
        self._task: asyncio.Task[None] | None = None
        self.models: dict[str, dict[int, versions.Version]] = {}

    def __iter__(self) -> Iterator[versions.Version]:
        for numbered in self.models.values():
            yield from numbered.values()

    def start(self, models_dir: Path) -> asyncio.Task[None]:
        """List the folder and begin to make everything in it ready."""
        listing = store.scan(models_dir)
        for line in listing.passed_over:
            log.warning("passed over: %s", line)
        for found in listing.versions:
            version = versions.Version(found)
            self.models.setdefault(found.model, {})[found.number] = version
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
        numbered = self.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        if number:
            return self._named(model, numbered, number)
        for candidate in sorted(numbered, reverse=True):
            if numbered[candidate].is_ready:
                return numbered[candidate]
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

    async def _prepare_all(self) -> None:
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
            version.admit(await self._open(path))
            self._changed(version)
        except (errors.CastironError, OSError) as error:
            version.fail(str(error))
            log.error("%s failed: %s", name, version.reason)  # noqa: TRY400  it says all itself
            return
        except Exception as error:  # whatever is wrong with it, the others go on
            version.fail(f"{type(error).__name__}: {error}")
            log.exception("%s failed", name)
            return
        log.info("%s is ready, %s", name, version.digest)

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
