"""castiron compiles a trained model file into one executable file and serves it.

The public names are reached through this module and loaded on first use, so that
``import castiron`` itself loads nothing. The names live in ``castiron.api``.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from castiron.api import build, load, serve, verify
    from castiron.runtime.instance import Instance

__version__ = "0.1.0"
__all__ = ("Instance", "build", "load", "serve", "verify")


def __getattr__(name: str) -> object:
    if name in __all__:
        from castiron import api

        return getattr(api, name)
    raise AttributeError(f"module 'castiron' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
