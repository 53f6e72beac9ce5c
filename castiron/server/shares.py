"""What a server takes of a machine that allows little: settings made to fit, and told in the log.

Anonymous memory is what gets a process killed: arenas get half of the memory limit, bodies an
eighth, step processes an eighth, and the rest is for Python. Mapped weights are pages of files,
which the kernel takes back when it must.
"""

from __future__ import annotations

import dataclasses
import logging

from castiron.machine import cpus, memory
from castiron.server import settings as server_settings

log = logging.getLogger("castiron.server")

_EIGHTH = 8
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(server_settings.Settings)}


def fitted(
    given: server_settings.Settings, budget: cpus.Budget, limit: memory.Limit
) -> server_settings.Settings:
    """The settings with defaults lowered to the limits; what differs from a default stays.

    ``memory_budget_bytes`` becomes half of the limit when it is 0, and 0, no limit, when it is
    negative: weights are one copy for all workers, so it is not divided by them.
    """
    eighth_bytes = limit.share_bytes(given.workers) // _EIGHTH
    step_processes = _lowered(given, "step_processes", budget.cpus)
    held_bytes = given.memory_budget_bytes or limit.size_bytes // 2
    return dataclasses.replace(
        given,
        step_processes=step_processes,
        step_memory_bytes=_lowered(given, "step_memory_bytes", eighth_bytes // step_processes),
        max_buffered_bytes=_lowered(given, "max_buffered_bytes", eighth_bytes),
        memory_budget_bytes=max(0, held_bytes),
    )


def arenas_bytes(limit: memory.Limit, workers: int) -> int:
    """What the arenas of all models of one worker may take together."""
    return limit.share_bytes(workers) // 2


def tell(given: server_settings.Settings, budget: cpus.Budget, limit: memory.Limit) -> None:
    """Say in the log what was found and what follows from it."""
    where = f" ({limit.where})" if limit.where else ""
    log.info(
        "%s; memory %d MB, limited by %s%s: %d MB for models, %d MB for arenas, %d MB for bodies",
        budget, limit.size_bytes >> 20, limit.name, where, given.memory_budget_bytes >> 20,
        arenas_bytes(limit, given.workers) >> 20, given.max_buffered_bytes >> 20,
    )  # fmt: skip


def _lowered(given: server_settings.Settings, name: str, most: int) -> int:
    value = int(getattr(given, name))
    return min(value, max(1, most)) if value == _DEFAULTS[name] else value
