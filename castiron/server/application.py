"""The face that applications see of one version: values instead of tensors, by its contract.

Made while a version is prepared; what of its contract does not fit the model keeps the version
out. Steps that may take long run in a crew's processes, the rest here. HTTP is ``predict.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from castiron import errors
from castiron.contract import document, model
from castiron.server import asking
from castiron.server import settings as server_settings
from castiron.server.steps import crew, fit, folder, inward, message, outward

if TYPE_CHECKING:
    from castiron.registry import version as versions

log = logging.getLogger("castiron.server")

# Larger tables are checked cell by cell in a process.
_LIGHT_BYTES = 1 << 15


class Crews:
    """The crew that all declared steps share; pipelines have one each."""

    __slots__ = ("_own", "_settings", "_shared")

    def __init__(self, given: server_settings.Settings) -> None:
        self._settings = given
        self._shared: crew.Crew | None = None
        self._own: set[crew.Crew] = set()

    @property
    def may_run_pipelines(self) -> bool:
        """Whether the operator lets code from models' folders run."""
        return self._settings.allow_pipelines

    def shared(self) -> crew.Crew:
        """For declared steps; its processes start when they are needed."""
        if self._shared is None:
            given = self._settings
            bounds = crew.Bounds(
                given.step_processes, given.step_timeout_s, given.step_memory_bytes
            )
            self._shared = crew.Crew("declared steps", bounds)
        return self._shared

    def own(self, name: str, declared: Any) -> crew.Crew:
        """For one pipeline."""
        timeout_s = declared.timeout_ms / 1e3
        memory = declared.memory_bytes or self._settings.step_memory_bytes
        made = crew.Crew(f"the pipeline of {name}",
                         crew.Bounds(declared.processes, timeout_s, memory))  # fmt: skip
        self._own.add(made)
        return made

    def give_back(self, given: crew.Crew) -> None:
        """End the processes of a pipeline whose version is gone."""
        if given in self._own:
            self._own.discard(given)
            given.close()

    def close(self) -> None:
        """End all processes."""
        for each in [*self._own, *([self._shared] if self._shared else [])]:
            each.close()
        self._own.clear()
        self._shared = None


class Application:
    """One version as applications see it."""

    __slots__ = ("_crew", "_crews", "_inward", "_lesson", "_outward", "contract", "refusal")

    def __init__(
        self, contract: model.Contract, found: folder.Folder, crews: Crews, name: str
    ) -> None:
        self.contract = contract
        self.refusal = ""
        self._crews = crews
        self._inward: inward.Inward | None = None
        self._outward: outward.Outward | None = None
        needed = {each: found.metadata[each] for each in _metadata(contract)
                  if each in found.metadata}  # fmt: skip
        self._lesson = crew.Lesson(document.text(contract), str(found.path), needed)
        if contract.pipeline is None:
            self._crew = crews.shared()
        else:
            self._crew = crews.own(name, contract.pipeline)

    async def prepare(self, found: folder.Folder, name: str) -> None:
        """Compare declared steps with tensors, and let a process learn what takes long.

        Raises ContractError with every mismatch, or with what is wrong with a file.
        """
        contract = self.contract
        is_own, has_after = contract.pipeline is not None, False
        is_long = inward.needs_process(contract)
        if not is_own:
            _require(contract, found, name)
        if is_own or is_long:
            learnt = await self._crew.call(self._lesson, {"act": "describe"})
            has_after = learnt.head["has_after"]
            if is_own:
                _require(contract, found, name, has_before=learnt.head["has_before"],
                         has_after=has_after)  # fmt: skip
        if not is_own and not is_long:
            self._inward = inward.Inward(contract, found)
        if not has_after:
            self._outward = outward.Outward(contract, found)

    def close(self) -> None:
        """The version is gone."""
        self._crew.forget(self._lesson)
        self._crews.give_back(self._crew)

    async def before(self, asked: asking.Asked, size_bytes: int) -> inward.Made:
        """Values that came in so many bytes to tensors.

        Raises InputError, TooLargeError and what a crew raises.
        """
        if self._inward is not None and size_bytes <= _LIGHT_BYTES:
            return self._inward.run(asked.values | asked.raw)
        head = {"act": "before", "values": asked.values}
        answer = await self._crew.call(self._lesson, head, asked.raw)
        return inward.Made(answer.tensors, message.place_from(answer.head["place"]))

    @property
    def outputs(self) -> list[str] | None:
        """The model's outputs that the reply is made of; None: all."""
        return None if self._outward is None else self._outward.tensors

    def after_now(self, outputs: message.Arrays, made: inward.Made) -> bytes | None:
        """The reply as JSON, or None where making it would hold up the event loop."""
        if self._outward is None or not self._outward.is_light(outputs):
            return None
        return orjson.dumps(self._outward.run(outputs, made.place))

    async def after(self, outputs: message.Arrays, made: inward.Made) -> bytes:
        """The reply as JSON, made in a process."""
        head = {"act": "after", "place": message.place_to(made.place)}
        answer = await self._crew.call(self._lesson, head, tensors=outputs)
        return answer.raw["reply"]


def _metadata(contract: model.Contract) -> set[str]:
    """The keys of the model's metadata that steps name."""
    every = [step for entry in contract.schema.output for step in entry.steps]
    return {key for step in every if (key := getattr(step, "metadata", ""))}


def _require(
    contract: model.Contract,
    found: folder.Folder,
    source: str,
    *,
    has_before: bool = False,
    has_after: bool = False,
) -> None:
    problems = fit.mismatches(contract, found, has_before=has_before, has_after=has_after)
    if problems:
        raise errors.ContractError(source, problems)


async def prepare(
    contract: model.Contract | None,
    version: versions.Version,
    metadata: Mapping[str, str],
    crews: Crews,
) -> Application | None:
    """The application of a version, None when its contract has none. Raises ContractError."""
    if contract is None or not _is_application(contract):
        return None
    source = version.found.file
    found = folder.Folder(Path() if source is None else source.parent, metadata)
    name = f"{version.model}/{version.number}"
    made = Application(contract, found, crews, name)
    if contract.pipeline is not None and not crews.may_run_pipelines:
        made.refusal = (
            f"the contract of {name} names {contract.pipeline.file}, which is code; "
            "the operator has not allowed pipelines (--allow-pipelines)"
        )
        log.warning("%s", made.refusal)
        return made
    try:
        await made.prepare(found, name)
    except BaseException:
        made.close()
        raise
    return made


def _is_application(contract: model.Contract) -> bool:
    return bool(contract.schema.input or contract.pipeline)
