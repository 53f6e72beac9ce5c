"""``castiron run``: run an executable once on arrays from files."""

from __future__ import annotations

import argparse
import os
import time

HELP = "run an executable file on .npy or .npz inputs"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="an .npy file for one input, or an .npz file with all of them",
    )
    parser.add_argument("--output", metavar="FILE.npz", help="where to save the outputs")
    parser.add_argument(
        "--threads",
        type=int,
        help="compute threads; more than the CPU budget are not used (default: that budget)",
    )


def run(options: argparse.Namespace) -> int:
    """Run and print or save the outputs."""
    from castiron import api, errors
    from castiron.machine import cpus

    # Before numpy is imported: it would start as many threads as there are CPUs.
    most = cpus.cpu_budget(options.threads).cpus
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(most))
    instance = api.load(options.file, threads=options.threads)
    inputs = _read_inputs(options.input, [spec.name for spec in instance.signature.inputs])
    if not inputs and instance.signature.inputs:
        raise errors.InputError(
            f"expected arrays for {', '.join(map(repr, instance.signature.inputs))}, found none; "
            "give each as --input NAME=FILE.npy",
            "--input",
        )
    start = time.perf_counter()
    outputs = instance.run(inputs)
    print(f"ran in {(time.perf_counter() - start) * 1e3:.2f} ms")
    for name, array in outputs.items():
        print(f"{name}: {array.dtype}{list(array.shape)}\n{array}")
    if options.output:
        import numpy as np

        np.savez(options.output, **outputs)
    return 0


def _read_inputs(given: list[str], names: list[str]) -> dict[str, object]:
    """Arrays by input name; a lone file without a name belongs to the lone input."""
    from castiron import errors

    inputs: dict[str, object] = {}
    for item in given:
        name, _, path = item.rpartition("=")
        loaded = _load(path)
        if isinstance(loaded, dict) and not name:
            inputs.update(loaded)
        elif not isinstance(loaded, dict) and (name or len(names) == 1):
            inputs[name or names[0]] = loaded
        else:
            raise errors.InputError(
                f"expected NAME=FILE.npy for one of {', '.join(names)}, or an .npz file that "
                f"names them all; found {item}",
                "--input",
            )
    return inputs


def _load(path: str) -> object:
    """The array of an .npy file, or the dict of all arrays of an .npz file."""
    import zipfile

    import numpy as np

    from castiron import errors

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return dict(loaded)
    except (ValueError, EOFError, zipfile.BadZipFile) as found:
        raise errors.InputError(
            f"expected an .npy or .npz file of numbers, {path} is none; write one with numpy.save",
            "--input",
        ) from found
