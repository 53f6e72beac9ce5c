"""From kernel text to a mapped file: each target of this machine, in a process without LLVM."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, kernel_cache, link, threads
from castiron.executable import reader, writer

ROOT = pathlib.Path(__file__).parents[3]
HOST = targets.host()
HOST_TARGETS = [
    target
    for target in targets.ALL
    if target.architecture == HOST.architecture
    and set(target.required_flags) <= {*HOST.required_flags, "sse2"}
]

DOT = """
@weights = internal constant [16 x float] [float 1.0, float 2.0, float 3.0, float 4.0, float 5.0,
  float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0,
  float 14.0, float 15.0, float 16.0], align 64
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
define dso_local float @dot(ptr %x) align 64 {
  %a = load <16 x float>, ptr %x, align 4
  %b = load <16 x float>, ptr @weights, align 64
  %c = fmul <16 x float> %a, %b
  %s = call float @llvm.vector.reduce.fadd.v16f32(float 0.0, <16 x float> %c)
  ret float %s
}
"""

LOAD_AND_CALL = """
    import importlib.abc, sys

    class Refuse(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] in ("llvmlite", "onnx", "numpy"):
                raise AssertionError("the load path imported " + name)

    sys.meta_path.insert(0, Refuse())
    sys.path.insert(0, {root!r})
    import ctypes
    from castiron.executable import reader
    file = reader.open({path!r})
    base = file.map_code()
    dot = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p)(base + file.symbols()["dot"][0])
    x = (ctypes.c_float * 16)(*[1.0] * 16)
    print(dot(ctypes.addressof(x)))
    maps = open("/proc/self/maps").read()
    print(sum(" r-xp " in l and {path!r} in l for l in maps.splitlines()), "rwx" in maps)
    print("llvm" in maps, "onnx" in maps)
"""


def build(target: targets.Target, path: pathlib.Path, cache: pathlib.Path) -> link.Image:
    texts = [threads.run_text(target.architecture), DOT]
    objects = assemble.compile_kernels(
        texts, target, workers=0, cache=kernel_cache.KernelCache(cache)
    )
    image = link.link(objects, target)
    contents = writer.Contents(
        target=target.name,
        machine=target.architecture,
        flags=target.required_flags,
        image=image.data,
        text_bytes=image.text_bytes,
        symbols=image.symbols,
        plan=b"plan",
    )
    writer.write(path, contents)
    return image


@pytest.mark.parametrize("target", HOST_TARGETS, ids=lambda target: target.name)
def test_a_built_file_runs_where_there_is_no_compiler(
    target: targets.Target, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "model.cast"
    build(target, path, tmp_path / "cache")
    script = textwrap.dedent(LOAD_AND_CALL.format(root=str(ROOT), path=str(path)))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["136.0", "1 False", "False False"]


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_the_same_kernels_give_the_same_file_for_every_target(
    target: targets.Target, tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "a.cast", tmp_path / "b.cast"
    image = build(target, first, tmp_path / "cache-a")
    build(target, second, tmp_path / "cache-b")
    assert first.read_bytes() == second.read_bytes()
    with reader.open(first) as file:
        assert file.symbols() == image.symbols
        assert {"castiron_run", "dot"} <= set(image.symbols)
        file.verify()
