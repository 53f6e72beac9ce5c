"""Faults of steps that are neither a wrong value nor a failure of the server.

``crew.py`` carries them between processes by name; ``status`` codes are given in ``predict.py``.
"""

from __future__ import annotations

from castiron import errors


class TooLargeError(errors.InputError):
    """A value that is well-formed and larger than the contract allows."""


class PipelineError(errors.CastironError):
    """The user's own code failed on this request."""


class LateError(errors.CastironError):
    """Steps did not end in the time allowed; their process was replaced."""


class CrewDiedError(errors.CastironError):
    """The process of these steps ended while it ran them; it was replaced."""
