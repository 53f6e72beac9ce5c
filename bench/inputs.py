"""Inputs on disk, as `bench.worker` reads them: an index of names and shapes, and raw files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo import cases, fetch

# The sizes at which these nets are usually compared; all others take their first case.
_USUAL_SHAPES = {"ocr_det": (1, 3, 640, 640), "ocr_rec": (1, 3, 48, 320)}


def usual(name: str) -> cases.Inputs:
    """The input on which a model of the zoo is measured."""
    first = cases.cases(name)[0]
    if name not in _USUAL_SHAPES:
        return first
    blank = np.zeros(_USUAL_SHAPES[name], np.float32)
    return {key: cases.noise_like({key: blank}, seed=7)[key] for key in first}


def folder(name: str, inputs: cases.Inputs) -> Path:
    """Write inputs under a name of their own and answer with the folder."""
    place = work_folder() / "inputs" / name
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (key, array) in enumerate(inputs.items()):
        (place / str(number)).write_bytes(np.ascontiguousarray(array).tobytes())
        lines.append("\t".join([key, array.dtype.name, *map(str, array.shape)]) + "\n")
    (place / "index").write_text("".join(lines))
    return place


def work_folder() -> Path:
    """Where measurements keep their files, beside those of the zoo."""
    return fetch.cache_folder().parent / "bench"
