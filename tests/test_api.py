"""Building: what is refused, all at once and in words; and the same bytes from the same model."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest

import castiron
from castiron import api, errors
from tests import built
from tests.loader import models


def test_a_model_is_built_from_a_path_bytes_or_a_proto(tmp_path: pathlib.Path) -> None:
    model = built.one_op("Abs", ("n",))
    onnx.save(model, tmp_path / "m.onnx")
    assert castiron.build(tmp_path / "m.onnx") == str(tmp_path / "m.cast")
    found = {pathlib.Path(tmp_path / "m.cast").read_bytes()}
    for source in (str(tmp_path / "m.onnx"), model.SerializeToString(), model):
        out = castiron.build(source, tmp_path / "again.cast")
        found.add(pathlib.Path(out).read_bytes())
    assert len(found) == 1


def test_bytes_without_a_place_to_write_to_are_refused() -> None:
    with pytest.raises(TypeError, match="needs a path to write to"):
        castiron.build(built.one_op("Abs", ("n",)).SerializeToString())


def test_an_unknown_target_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    model = built.one_op("Abs", ("n",)).SerializeToString()
    with pytest.raises(errors.BuildError, match=r"avx512.*avx2.*baseline.*vax"):
        castiron.build(model, tmp_path / "m.cast", "vax")


def test_strict_lists_every_gap_at_once(tmp_path: pathlib.Path) -> None:
    nodes = [
        models.node("Compress", ["x", "mask"], ["a"], axis=0),
        models.node("Unique", ["x"], ["b"]),
        models.node("Abs", ["x"], ["c"]),
    ]
    inputs = [models.value("x", ["n"]), models.value("mask", ["n"], onnx.TensorProto.BOOL)]
    model = models.model(nodes, inputs, ["a", "b", "c"]).SerializeToString()
    with pytest.raises(errors.BuildError) as caught:
        castiron.build(model, tmp_path / "m.cast", strict=True)
    message = str(caught.value)
    assert "2 nodes have no kernel and may not be interpreted" in message
    assert "'a': no kernel for op Compress" in message
    assert "'b': no kernel for op Unique" in message
    assert not (tmp_path / "m.cast").exists()
    assert not castiron.load(castiron.build(model, tmp_path / "m.cast")).is_native


def test_a_build_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "m.cast"
    castiron.build(built.one_op("Abs", ("n",)), out)
    before = out.read_bytes()
    with pytest.raises(errors.LoadError):
        castiron.build(b"no model", out)
    with pytest.raises(errors.CastironError):
        castiron.build(built.one_op("Abs", (2,), (3,)), out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.cast"]


def test_progress_is_told_every_pass_and_the_machine_code(tmp_path: pathlib.Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(step: str, done: int, total: int) -> None:
        seen.append((step, done, total))

    castiron.build(built.network(), tmp_path / "m.cast", progress=progress)
    names = list(dict.fromkeys(name for name, _, _ in seen))
    assert names[0] == "infer_shapes"
    assert names[-2:] == ["fuse_elementwise", "machine code"]
    assert all(0 <= done <= total for _, done, total in seen)


BUILD = """
import sys
import castiron
from tests import built
for name in ("network", "interpreted_between"):
    castiron.build(getattr(built, name)(), f"{sys.argv[1]}/{name}.cast", "avx2")
"""


def test_two_processes_give_the_same_bytes_with_a_cold_and_a_warm_cache(
    tmp_path: pathlib.Path,
) -> None:
    found = []
    for round_, seed in enumerate(("1", "2", "3")):
        out = tmp_path / str(round_)
        out.mkdir()
        cache = tmp_path / ("other" if seed == "3" else "cache")
        settings = {"CASTIRON_CACHE": str(cache), "PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", BUILD, str(out)],
            check=True, timeout=100, env={**os.environ, **settings},
        )  # fmt: skip
        found.append([path.read_bytes() for path in sorted(out.iterdir())])
    assert [len(files) for files in found] == [2, 2, 2]
    assert found[0] == found[1] == found[2]
    assert any((tmp_path / "cache").rglob("*"))


def test_each_target_of_this_machine_computes_the_same(tmp_path: pathlib.Path) -> None:
    from castiron.compiler import target as targets
    from castiron.executable import cpu

    x = np.random.default_rng(1).standard_normal((2, 3, 9, 8)).astype(np.float32)
    answers = []
    for target in targets.ALL:
        path = castiron.build(built.network(), tmp_path / f"{target.name}.cast", target.name)
        if target.architecture == cpu.machine() and set(target.required_flags) <= cpu.flags():
            answers.append(castiron.load(path, threads=1).run({"x": x})["y"])
        else:
            with pytest.raises(errors.ExecutableError, match=r"code for|a processor with all"):
                castiron.load(path)
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-5)


def test_a_load_that_fails_leaves_no_file_open(tmp_path: pathlib.Path) -> None:
    path = castiron.build(built.one_op("Abs", ("n",)), tmp_path / "m.cast", "aarch64")
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    with pytest.raises(errors.ExecutableError, match="build the model for this machine"):
        castiron.load(path)
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before


def test_all_instances_share_one_pool_and_one_device_for_each_number_of_threads() -> None:
    one, two = api.device(1), api.device(2)
    assert one is api.device(1)
    assert one.pool is two.pool
    assert (one.threads, two.threads) == (1, 2)


def test_models_loaded_by_many_threads_at_once_share_one_team(tmp_path: pathlib.Path) -> None:
    path = castiron.build(built.network(), tmp_path / "m.cast")
    code = """
import concurrent.futures, pathlib, sys
import castiron
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    loaded = list(pool.map(lambda _: castiron.load(sys.argv[1], threads=2), range(16)))
assert len({instance._team for instance in loaded}) == 1
assert len({id(instance._device) for instance in loaded}) == 1
names = [p.read_text().strip() for p in pathlib.Path("/proc/self/task").glob("*/comm")]
ours = [name for name in names if name.startswith("castiron-")]
assert len(ours) == loaded[0]._threads - 1, names
"""
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)


def test_verify_finds_a_changed_weight(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(castiron.build(built.network(), tmp_path / "m.cast"))
    castiron.verify(path)
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)
    with pytest.raises(errors.ExecutableError, match="part weights"):
        castiron.verify(path)
