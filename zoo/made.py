"""Models that are made here and not fetched, each written once into the cache folder.

`path("resnet50")` answers with a file. What a model looks like is said in `zoo.light`,
`zoo.encoder`, `zoo.mobilenet` and `zoo.graft`; this file only knows their names.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from zoo import encoder, fetch, graft, light, mobilenet

_MAKERS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{name: functools.partial(light.model, name) for name in light.NAMES},
    "minilm": encoder.model,
    "mobilenet_v2": mobilenet.model,
    "nudenet_nms": graft.nudenet_with_suppression,
}
NAMES = tuple(_MAKERS)


def path(name: str) -> Path:
    """The file of one of `NAMES`, made on first use and again whenever its recipe changes.

    Raises `KeyError` for another name, and for `nudenet_nms` what `zoo.fetch.path` raises.
    """
    make = _MAKERS[name]
    file = fetch.cache_folder() / "made" / f"{name}-{_recipe()}.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}.draft")
        onnx.save(make(), draft)
        draft.replace(file)
    return file


def _recipe() -> str:
    """A digest of the makers' own text and of the onnx release whose models they start from."""
    sources = (encoder, graft, light, mobilenet)
    texts = [Path(str(module.__file__)).read_bytes() for module in sources]
    return hashlib.sha256(b"".join([onnx.__version__.encode(), *texts])).hexdigest()[:12]
