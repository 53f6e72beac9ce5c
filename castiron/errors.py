"""Every exception of the project, as one tree.

    CastironError
        LoadError           a source file could not become a graph; lists every problem at once
        BuildError          a graph could not become an executable
            VerifyError     a pass broke the graph: our own fault, never the user's
        ContractError       a contract says what cannot be, or does not fit its model
        ExecutableError     an executable file is damaged, foreign or does not fit this machine
        InputError          a request's inputs do not fit the model's signature
        ResourceError       memory, threads or queue room ran out
        AdmissionError      a version of a model is not fit to answer
        ModelNotFound       no such model or version
        ModelNotReady       the model or version exists but cannot answer now

Each message says what was expected, what was found, where, and what to do. Outer layers add
context with ``add_note``; they do not replace. ``server/status.py`` gives each its wire code.
"""


class CastironError(Exception):
    """Any failure that castiron reports on purpose."""


class LoadError(CastironError):
    """A source file could not become a graph.

    ``problems`` holds one line for each finding: node, op, version, dtype, shape, remedy.
    """

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = len(problems)
        super().__init__(f"{source}: {count} problem{'s' if count != 1 else ''} found\n{lines}")


class BuildError(CastironError):
    """A graph could not become an executable."""


class VerifyError(BuildError):
    """A pass left the graph in a state that breaks its rules."""


class ContractError(CastironError):
    """A contract says what cannot be, or does not fit its model; lists every problem at once."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = len(problems)
        super().__init__(f"{source}: {count} problem{'s' if count != 1 else ''} found\n{lines}")


class ExecutableError(CastironError):
    """An executable file is damaged, foreign, or does not fit this machine."""


class AdmissionError(CastironError):
    """A version of a model is not fit to answer, so it takes no request."""


class InputError(CastironError):
    """A request's inputs do not fit the model's signature.

    ``path`` names the place, for example ``inputs[0].shape``.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class ResourceError(CastironError):
    """Memory, threads or queue room ran out."""


class ModelNotFound(CastironError):
    """No such model or version."""


class ModelNotReady(CastironError):
    """The model or version exists but cannot answer now."""
