"""castiron compiles a trained model file into one executable file and serves it.

The public names are reached through this module and loaded on first use, so that
``import castiron`` itself loads nothing. The names live in ``castiron.api``.
"""

__version__ = "0.1.0"

_PUBLIC = ("Instance", "build", "load", "serve", "verify")


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        from castiron import api

        return getattr(api, name)
    raise AttributeError(f"module 'castiron' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
