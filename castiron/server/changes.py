"""Changes of what is served, asked for by an operator: load, unload, promote, rollback.

One door for the admin port, the repository calls and the folder's watcher. In a process of its own
the registry changes; one of several workers asks the supervisor, and all change together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from castiron import errors
from castiron.registry import registry as registries
from castiron.server import control, describe, dispatch
from castiron.server.security import admin

Change = Callable[[str, Mapping[str, Any]], Awaitable[None]]


def calls(dispatcher: dispatch.Dispatcher) -> admin.Calls:
    """What the admin port offers; each call answers with what it led to."""
    registry = dispatcher.registry

    def told(is_asked: Callable[[str], bool]) -> dict[str, Any]:
        return {"models": [entry for entry in listed(registry) if is_asked(entry["name"])]}

    def answering(change: Change) -> admin.Action:
        async def act(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
            await change(model, given)
            return told(lambda name: name == model)

        return act

    async def load(model: str, given: Mapping[str, Any]) -> None:
        await control.load(dispatcher, model, given)

    async def unload(model: str, given: Mapping[str, Any]) -> None:
        await control.unload(dispatcher, model, given)

    async def promote(model: str, given: Mapping[str, Any]) -> None:
        await dispatcher.change("promote", model, number_in(registry, model, given))

    async def rollback(model: str, given: Mapping[str, Any]) -> None:
        for name in given:
            raise errors.InputError("is not offered here", name[:80])
        await dispatcher.change("rollback", model, None)

    actions = {"load": load, "unload": unload, "promote": promote, "rollback": rollback}
    return admin.Calls(told, {name: answering(change) for name, change in actions.items()})


def number_in(registry: registries.Registry, model: str, given: Mapping[str, Any]) -> int | None:
    """The version that the parameters name, by number or label; None: the newest."""
    for name in given:
        if name != "version":
            raise errors.InputError("is not offered here; there is: version", name[:80])
    found = given.get("version")
    if found is None or (type(found) is int and found > 0):
        return found
    number = registry.routes.number(model, found) if isinstance(found, str) else ""
    if number.isascii() and number.isdigit() and 0 < len(number) <= 18:
        return int(number)
    raise errors.InputError(f"expected a version's number or label, found {found!r}", "version")


def listed(registry: registries.Registry) -> list[dict[str, Any]]:
    """The index of models as operators see it: states by our words, and who answers."""
    answering = {}
    for model, numbered in registry.models.items():
        ready = [version for version in numbered.values() if version.is_ready]
        answering[model] = {each.number for each in registry.routes.order(model, ready)[:1]}
    entries: list[dict[str, Any]] = [dict(entry) for entry in describe.index(registry)]
    for entry, version in zip(entries, registry, strict=True):
        entry["condition"] = version.state
        entry["answers"] = version.number in answering[version.model]
        entry["digest"] = version.digest
        entry["held_bytes"] = version.held_bytes
    return entries
