"""Random inputs for a model, for ``profile`` and ``bench``: shapes from options, seeded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from castiron import errors

if TYPE_CHECKING:
    import argparse

    import numpy as np

    from castiron.tensor.signature import Signature, TensorSpec

_DEFAULT_EXTENT = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that choose the sample."""
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=EXTENT",
        help="the extent of a symbolic dim (default 1)",
    )


def inputs_for(signature: Signature, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """One array for each input, its symbolic dims as the options say."""
    import numpy as np

    extents = _extents(options.dim)
    known = {dim for spec in signature.inputs for dim in spec.dims if isinstance(dim, str)}
    unknown = sorted(set(extents) - known)
    if unknown:
        raise errors.InputError(
            f"expected one of the model's dims ({', '.join(sorted(known)) or 'it has none'}), "
            f"found {', '.join(unknown)}",
            "--dim",
        )
    random = np.random.default_rng(0)
    return {spec.name: _sample(spec, extents, random) for spec in signature.inputs}


def _extents(given: list[str]) -> dict[str, int]:
    extents = {}
    for item in given:
        name, _, value = item.rpartition("=")
        if not name or not value.isdigit():
            raise errors.InputError(f"expected NAME=EXTENT, found {item!r}", "--dim")
        extents[name] = int(value)
    return extents


def _sample(spec: TensorSpec, extents: dict[str, int], random: np.random.Generator) -> np.ndarray:
    shape = tuple(
        extents.get(dim, _DEFAULT_EXTENT) if isinstance(dim, str) else dim for dim in spec.dims
    )
    if spec.dtype.is_float:
        return random.standard_normal(shape).astype(spec.dtype.name)
    return random.integers(0, 2, shape).astype(spec.dtype.name)
