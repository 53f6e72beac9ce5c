"""Real models behind the contracts of examples/03-image-by-curl: image files in, words out.

The server is `castiron serve`; clients are curl and urllib, which know nothing of tensors.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import castiron
from tests.server import real
from tests.server.steps import images
from zoo import cases, pictures

EXAMPLE = Path(__file__).parents[2] / "examples" / "03-image-by-curl"
SOURCES = {"ocr": "ocr_rec", "orientation": "orientation", "nsfw": "nsfw", "nudenet": "nudenet"}

pytestmark = [pytest.mark.realmodel, pytest.mark.xdist_group("applications")]


@pytest.fixture(scope="module")
def server(
    model_file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[real.Server]:
    models = tmp_path_factory.mktemp("models")
    for name, source in SOURCES.items():
        file = model_file(source)
        folder = models / name / "1"
        folder.mkdir(parents=True)
        contract = EXAMPLE / f"{name}.contract.toml"
        castiron.build(str(file), out=folder / "model.cast", contract=contract)
        shutil.copy(contract, folder / "contract.toml")
    with real.serving(models, tmp_path_factory.mktemp("cache")) as running:
        yield running


def by_curl(server: real.Server, model: str, *options: str) -> Any:
    address = f"http://127.0.0.1:{server.port}/v2/models/{model}/predict"
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *options, address]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def by_urllib(server: real.Server, model: str, data: bytes, kind: str) -> tuple[int, Any]:
    address = f"http://127.0.0.1:{server.port}/v2/models/{model}/predict"
    request = urllib.request.Request(address, data, {"content-type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  loopback
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def saved(folder: Path, name: str, picture: pictures.Picture, **options: Any) -> Path:
    path = folder / name
    Image.fromarray(picture).save(path, **options)
    return path


@pytest.mark.parametrize("line", cases.OCR_LINES)
def test_curl_reads_a_line_of_text(line: str, server: real.Server, tmp_path: Path) -> None:
    file = saved(tmp_path, "line.png", pictures.text_line(line))
    by_form = by_curl(server, "ocr", "-F", f"image=@{file}")
    as_body = by_curl(server, "ocr", "--data-binary", f"@{file}", "-H", "content-type: image/png")
    assert by_form == as_body
    assert by_form["text"] == line
    assert 0.9 < by_form["confidence"] <= 1


@pytest.mark.parametrize("height", [32, 48, 96, 200])
def test_a_line_is_read_at_any_size(height: int, server: real.Server) -> None:
    data = images.file(Image.fromarray(pictures.text_line("Hello World 2026", height)))
    assert by_urllib(server, "ocr", data, "image/png")[1]["text"] == "Hello World 2026"


@pytest.mark.parametrize("quarters", range(4))
def test_curl_tells_how_a_page_is_turned(
    quarters: int, server: real.Server, tmp_path: Path
) -> None:
    page = np.ascontiguousarray(np.rot90(pictures.photo("page.png"), quarters))
    file = saved(tmp_path, "page.jpg", page, quality=95)
    reply = by_curl(server, "orientation", "-F", f"image=@{file}")
    assert reply["angle"] == str(-90 * quarters % 360)
    assert reply["all"][0]["label"] == reply["angle"]
    assert len(reply["all"]) == 4


def test_a_photo_is_safe_to_see(server: real.Server) -> None:
    data = images.file(Image.fromarray(pictures.photo("astronaut.png")), "JPEG", quality=95)
    code, reply = by_urllib(server, "nsfw", data, "image/jpeg")
    assert code == 200
    assert reply["labels"][0]["label"] == "safe"
    assert reply["labels"][0]["score"] == pytest.approx(0.983, abs=0.01)


@pytest.mark.parametrize("margin", [0, 256])
def test_the_box_of_a_face_is_in_pixels_of_the_photo(margin: int, server: real.Server) -> None:
    """White at the left moves the box by as much, though the net sees a smaller picture then."""
    photo = np.pad(
        pictures.photo("astronaut.png"), ((0, 0), (margin, 0), (0, 0)), constant_values=255
    )
    code, reply = by_urllib(server, "nudenet", images.file(Image.fromarray(photo)), "image/png")
    assert code == 200
    faces = [box for box in reply["boxes"] if box["label"] == "FACE_FEMALE"]
    assert len(faces) == 1, reply
    assert faces[0]["score"] > 0.6
    wanted = np.array([173, 83, 274, 180]) + np.array([margin, 0, margin, 0])
    np.testing.assert_allclose(faces[0]["box"], wanted, atol=12)


LINE = Image.fromarray(pictures.text_line("Hello World 2026"))


@pytest.mark.parametrize("kind", list(images.odd(LINE)))
def test_a_line_is_read_from_every_kind_of_file(kind: str, server: real.Server) -> None:
    code, reply = by_urllib(server, "ocr", images.odd(LINE)[kind], "image/png")
    assert (code, reply.get("text")) == (200, "Hello World 2026"), reply


@pytest.mark.parametrize("model", list(SOURCES))
def test_tiny_thin_and_huge_pictures_are_answered_or_refused(
    model: str, server: real.Server
) -> None:
    for size in ((1, 1), (1, 4000), (4000, 1), (3, 2)):
        code, reply = by_urllib(server, model, images.file(Image.new("RGB", size)), "image/png")
        assert code in {200, 400, 413}, (size, reply)
    code, reply = by_urllib(server, model, images.bomb(20_000, 20_000), "image/png")
    assert (code, "20000 x 20000" in reply["error"]) == (413, True)
    for data in images.broken(LINE).values():
        assert by_urllib(server, model, data, "image/png")[0] in {400, 413}
