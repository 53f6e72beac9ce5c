"""What a process that only runs a model has loaded: almost nothing."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests import built

ABSENT = (
    "numpy", "json", "re", "dataclasses", "enum", "typing", "llvmlite", "onnx", "collections",
    "inspect", "logging", "asyncio", "threading", "subprocess",
)  # fmt: skip

RUN = """
import sys
import castiron
assert [n for n in sys.modules if n.startswith("castiron")] == ["castiron"]
instance = castiron.load(sys.argv[1], threads=int(sys.argv[2]))
values = memoryview(bytearray(32)).cast("f", (2, 4))
values[1, 2] = -3.0
outputs = instance.run({"x0": values})
assert isinstance(outputs["y"], memoryview), outputs
assert outputs["y"].tolist() == [[0.0] * 4, [0.0, 0.0, 3.0, 0.0]]
bound = instance.bind({"x0": (2, 4)})
bound.inputs["x0"][:] = values.cast("B")
bound.run()
assert bound.outputs["y"] == outputs["y"].cast("B"), bytes(bound.outputs["y"])
print(" ".join(sys.modules))
"""


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("load")
    return str(built.loaded(built.one_op("Abs", ("n", 4)), folder).path)


@pytest.mark.parametrize("threads", [1, 2])
def test_running_a_tiny_model_on_buffers_loads_no_large_module(
    executable: str, threads: int, tmp_path: pathlib.Path
) -> None:
    # -S and -I leave out what site-packages bring along on their own account.
    root = pathlib.Path(__file__).parent.parent
    code = f"import sys; sys.path.insert(0, {str(root)!r})\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, executable, str(threads)],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert sorted(loaded.intersection(ABSENT)) == []


def test_the_library_of_llvm_is_not_mapped_into_a_process_that_runs(executable: str) -> None:
    code = (
        "import sys, castiron, numpy\n"
        "i = castiron.load(sys.argv[1])\n"
        "i.run({'x0': numpy.ones((1, 4), 'float32')})\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'llvm' not in maps.lower() and 'onnx' not in maps.lower()\n"
        "assert i.path in maps\n"
    )
    subprocess.run([sys.executable, "-c", code, executable], check=True, timeout=60)


def test_the_face_of_the_package_shows_its_names_and_no_others() -> None:
    import castiron

    assert set(castiron.__all__) == {"Instance", "build", "load", "serve", "verify"}
    assert set(castiron.__all__) <= set(dir(castiron))
    for name in castiron.__all__:
        assert getattr(castiron, name).__module__.startswith("castiron.")
    with pytest.raises(AttributeError, match="module 'castiron' has no attribute 'tensorflow'"):
        castiron.tensorflow  # noqa: B018  # type: ignore[attr-defined]
