"""External data: mapped when it lies below the model, refused when it reaches elsewhere."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import onnx
import pytest

from castiron import errors
from castiron.loader import load
from tests.loader import models

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def write(folder: pathlib.Path, **fields: str) -> pathlib.Path:
    """A model in `folder/model` whose weight lies outside of its file."""
    home = folder / "model"
    home.mkdir(exist_ok=True)
    add = models.node("Add", ["x", "w"], ["y"])
    proto = models.model([add], [models.value("x", [2, 3])], ["y"], {"w": WEIGHT})
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in fields.items():
        tensor.external_data.add(key=key, value=text)
    path = home / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def refusal(path: pathlib.Path) -> str:
    with pytest.raises(errors.LoadError) as refused:
        load(path)
    return str(refused.value)


def test_data_below_the_folder_is_mapped_and_not_copied(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, location="part/w.bin", offset="8", length="24")
    (path.parent / "part").mkdir()
    (path.parent / "part" / "w.bin").write_bytes(b"\0" * 8 + WEIGHT.tobytes())
    loaded = load(path)
    np.testing.assert_array_equal(loaded.constants["w"], WEIGHT)
    assert not loaded.constants["w"].flags.owndata
    assert not loaded.constants["w"].flags.writeable


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/hostname", "part/../../w.bin", "", ".", "a\\w.bin", "a\0b"]
)
def test_a_location_outside_the_folder_is_refused(tmp_path: pathlib.Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    assert "plain path below the model's folder" in refusal(write(tmp_path, location=location))


def test_a_symbolic_link_is_not_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = write(tmp_path, location="w.bin")
    (path.parent / "w.bin").symlink_to(tmp_path / "w.bin")
    assert "links are not followed" in refusal(path)


def test_a_linked_folder_is_not_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = write(tmp_path, location="up/w.bin")
    (path.parent / "up").symlink_to(tmp_path)
    assert "links are not followed" in refusal(path)


def test_a_hard_link_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = write(tmp_path, location="w.bin")
    os.link(tmp_path / "w.bin", path.parent / "w.bin")
    assert "has 2 names" in refusal(path)


def test_a_pipe_or_a_folder_is_refused_without_hanging(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, location="w.bin")
    os.mkfifo(path.parent / "w.bin")
    assert "not a regular file" in refusal(path)
    (path.parent / "w.bin").unlink()
    (path.parent / "w.bin").mkdir()
    assert "not a regular file" in refusal(path)


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({"offset": "1"}, "asks for 24 from offset 1"),
        ({"length": "23"}, "has length 23"),
        ({"length": "-1"}, "not a whole number"),
        ({"offset": "9" * 30}, "asks for 24"),
        ({"offset": "four"}, "not a whole number"),
    ],
)
def test_offset_and_length_are_checked(
    tmp_path: pathlib.Path, fields: dict[str, str], problem: str
) -> None:
    path = write(tmp_path, location="w.bin", **fields)
    (path.parent / "w.bin").write_bytes(WEIGHT.tobytes())
    assert problem in refusal(path)


def test_bytes_have_no_folder(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, location="w.bin")
    with pytest.raises(errors.LoadError, match="load the model by its path"):
        load(path.read_bytes())


def test_external_data_in_an_attribute_obeys_the_same_rules(tmp_path: pathlib.Path) -> None:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2, 3])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    made = models.node("Constant", [], ["y"], value=tensor)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.onnx"
    path.write_bytes(models.model([made], [], ["y"]).SerializeToString())
    assert "plain path below the model's folder" in refusal(path)
