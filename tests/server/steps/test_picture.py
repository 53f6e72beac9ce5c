"""Image files to pictures and to numbers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import faults, picture
from castiron.server.steps.place import Place
from tests.server.steps import images
from zoo import pictures

FORMATS = ("jpeg", "png", "webp", "bmp", "gif")
LINE = Image.fromarray(pictures.text_line("castiron"))


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def decode(data: bytes, mode: str = "RGB", max_pixels: int = 1_000_000) -> picture.Picture:
    return picture.decode(data, steps.DecodeImage(mode), FORMATS, max_pixels)


def shown(image: Image.Image) -> picture.Picture:
    return picture.Picture(image, Place(image.width, image.height))


def resized(image: Image.Image, step: steps.Resize) -> picture.Picture:
    return picture.resize(shown(image), step, 1_000_000)


@pytest.mark.parametrize("kind", list(images.odd(LINE)))
def test_every_kind_of_file_shows_the_same_picture(kind: str) -> None:
    found = decode(images.odd(LINE)[kind]).image
    assert found.size == LINE.size
    assert found.mode == "RGB"
    difference = np.abs(np.asarray(found, np.int16) - np.asarray(LINE, np.int16))
    # Black and white alone lose the greys at the edges of letters; JPEG rings around them.
    assert difference.mean() < (8 if kind in {"one bit", "palette", "animated"} else 3)


@pytest.mark.parametrize("kind", list(images.broken(LINE)))
def test_what_is_no_allowed_image_is_the_clients_fault(kind: str) -> None:
    with pytest.raises(errors.InputError, match="expected"):
        decode(images.broken(LINE)[kind])


def test_a_bomb_is_refused_by_its_head_alone() -> None:
    with pytest.raises(faults.TooLargeError, match=r"at most 1000000 pixels, found 20000 x 20000"):
        decode(images.bomb(20_000, 20_000))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    found = images.odd(LINE)
    content = bytearray(found[data.draw(st.sampled_from(sorted(found)))])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.InputError):  # nothing else, and no hang
        decode(bytes(content))


def test_grey_is_one_channel_and_bgr_turns_channels_round() -> None:
    data = images.file(images.stripes())
    grey = picture.normalise(decode(data, "L"), steps.Normalise())
    assert grey.shape == (1, 1, 40, 60)
    rgb = picture.normalise(decode(data), steps.Normalise())
    bgr = picture.normalise(decode(data, "BGR"), steps.Normalise())
    np.testing.assert_array_equal(rgb[:, ::-1], bgr)
    assert rgb[0, :, 0, 0].tolist() == [1, 0, 0]


def test_normalising_is_what_is_usual_for_nets() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    step = steps.Normalise(mean=mean, std=std)
    found = picture.normalise(shown(Image.fromarray(pixels)), step)
    np.testing.assert_allclose(found, pictures.planes([pixels], mean, std), atol=1e-6)
    whole = steps.Normalise(scale=1.0, mean=(1.0, 2.0, 3.0), layout="NHWC")
    last = picture.normalise(shown(Image.fromarray(pixels)), whole)
    np.testing.assert_array_equal(last[0], pixels - f32([1, 2, 3]))


def test_stretching_keeps_no_proportions_and_its_own_size_changes_nothing() -> None:
    image = images.stripes()
    assert resized(image, steps.Resize(20, 90)).image.size == (90, 20)
    assert resized(image, steps.Resize(40, 60)).image is image


def test_a_free_width_follows_the_proportions_up_to_a_bound() -> None:
    image = images.stripes(60, 40)
    assert resized(image, steps.Resize(20)).image.size == (30, 20)
    assert resized(image, steps.Resize(20, multiple=16)).image.size == (32, 20)
    assert resized(image, steps.Resize(20, max_width=25)).image.size == (25, 20)
    assert resized(Image.new("RGB", (1, 500)), steps.Resize(20)).image.size == (1, 20)
    with pytest.raises(faults.TooLargeError, match="at height 48, found 50000 x 1"):
        resized(Image.new("RGB", (50_000, 1)), steps.Resize(48))


def test_fitting_fills_both_sides_equally() -> None:
    found = resized(Image.new("RGB", (60, 30), "white"), steps.Resize(40, 40, "fit", fill=114))
    pixels = np.asarray(found.image)
    assert pixels.shape == (40, 40, 3)
    assert pixels[:10].max() == pixels[30:].min() == 114
    assert pixels[10:30].min() == 255
    assert found.place == Place(60, 30, 40 / 60, 20 / 30, 0, 10)
    grey = resized(Image.new("L", (60, 30)), steps.Resize(40, 40, "fit", fill=7))
    assert np.asarray(grey.image)[0, 0] == 7


def test_covering_and_cropping_is_short_side_and_centre() -> None:
    photo = pictures.photo("chelsea.png")
    covered = resized(Image.fromarray(photo), steps.Resize(256, 256, "crop"))
    found = picture.crop(covered, steps.Crop(224, 224))
    np.testing.assert_array_equal(np.asarray(found.image), pictures.centre(photo, 256, 224))


def test_a_sliver_is_cut_before_it_is_scaled() -> None:
    found = resized(Image.new("RGB", (30_000, 2), "red"), steps.Resize(256, 256, "crop"))
    assert found.image.size == (256, 256)
    assert np.asarray(found.image)[0, 0].tolist() == [255, 0, 0]
    assert found.place.left == pytest.approx(-14_999 * 128)


def test_cropping_more_than_there_is_is_refused() -> None:
    with pytest.raises(errors.InputError, match="at least 100 x 10 pixels, found 60 x 40"):
        picture.crop(shown(images.stripes()), steps.Crop(10, 100))


SIZES = st.integers(1, 300)


@given(SIZES, SIZES, SIZES, SIZES, st.sampled_from(["stretch", "fit", "crop"]))
@settings(max_examples=60, deadline=None)
def test_a_place_leads_the_middle_of_a_picture_to_the_middle(
    width: int, height: int, out_width: int, out_height: int, how: str
) -> None:
    found = resized(Image.new("L", (width, height)), steps.Resize(out_height, out_width, how))
    assert found.image.size == (out_width, out_height)
    place = found.place
    middle = (width / 2 * place.scale_x + place.left, height / 2 * place.scale_y + place.top)
    assert middle == pytest.approx((out_width / 2, out_height / 2), abs=1.0)
