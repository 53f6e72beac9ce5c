"""Loading and unloading models because a client says so, by whatever protocol.

What a model is, its folder says; a request cannot bring files or a configuration along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from castiron import errors
from castiron.server import status

if TYPE_CHECKING:
    from castiron.server import dispatch


async def load(dispatcher: dispatch.Dispatcher, model: str, given: Mapping[str, Any]) -> None:
    """Look at the model's folder again; returns when its versions are ready.

    Raises Refusal when that is not allowed here, and what ``Registry.load`` raises.
    """
    _allow(dispatcher)
    for name in given:
        raise errors.InputError(
            "is not offered here: a model is what its folder holds", f"parameters.{name[:80]}"
        )
    await dispatcher.change("load", model, None)


async def unload(dispatcher: dispatch.Dispatcher, model: str, given: Mapping[str, Any]) -> None:
    """Take the model away; returns when nothing of it runs. Raises as ``load``.

    ``unload_dependents`` is accepted: no model has any.
    """
    _allow(dispatcher)
    for name in given:
        if name != "unload_dependents":
            raise errors.InputError("is not offered here", f"parameters.{name[:80]}")
    await dispatcher.change("unload", model, None)


def _allow(dispatcher: dispatch.Dispatcher) -> None:
    if dispatcher.settings.read_only_repository:
        raise status.Refusal(403, "this server does not load or unload models by request")
