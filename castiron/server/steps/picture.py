"""Image files to pictures and to numbers: the one door to Pillow.

Runs in step processes only: decoding takes milliseconds and its code is the oldest target of
attacks there is. Sizes are checked before pixels are unpacked. Which steps follow each other is
``inward.py``.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import faults
from castiron.server.steps.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

# A picture scaled up around a narrow frame may not grow beyond this before it is cut.
_MOST_SCALED_PIXELS = 16_000_000
_SIXTEEN_BIT = {"I;16", "I;16L", "I;16B", "I;16N"}

Image.MAX_IMAGE_PIXELS = None  # limits are the contract's, see ``decode``


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture, RGB or grey, and how its pixels came from the client's."""

    image: Image.Image
    place: Place
    is_bgr: bool = False


def decode(
    data: bytes | memoryview, step: steps.DecodeImage, formats: tuple[str, ...], max_pixels: int
) -> Picture:
    """The first frame of an image file, upright, on white where it is transparent.

    Raises InputError for what is no image of these formats, TooLargeError beyond ``max_pixels``.
    """
    wanted = [name.upper() for name in formats]
    try:
        with Image.open(io.BytesIO(data), formats=wanted) as opened:
            _check_size(opened.size, max_pixels)
            opened.load()
            image = _upright(opened)
            image = _flat(image).convert("L" if step.mode == "L" else "RGB")
    except UnidentifiedImageError:
        raise errors.InputError(
            f"expected an image file of {', '.join(formats)}, found {len(data)} bytes of "
            "something else"
        ) from None
    except errors.InputError:
        raise
    except MemoryError:
        raise faults.TooLargeError("the image needs more memory than there is for it") from None
    except Exception as fault:  # noqa: BLE001  whatever the decoder says, the bytes are wrong
        text = str(fault) or type(fault).__name__
        raise errors.InputError(f"expected a complete image file: {text[:200]}") from None
    return Picture(image, Place(image.width, image.height), step.mode == "BGR")


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise faults.TooLargeError(
            f"expected at most {max_pixels} pixels, found {width} x {height}"
        )
    if width < 1 or height < 1:
        raise errors.InputError(f"expected at least one pixel, found {width} x {height}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image  # without a copy
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001  EXIF data that make no sense turn nothing
        return image


def _flat(image: Image.Image) -> Image.Image:
    """Eight bits for each channel, nothing transparent."""
    if image.mode in _SIXTEEN_BIT:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise errors.InputError("expected an image of 8 or 16 bits, found 32")
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white


def resize(picture: Picture, step: steps.Resize, max_pixels: int) -> Picture:
    """The picture at another size; TooLargeError when its proportions make it huge."""
    width = _free_width(picture, step) if step.width is None else step.width
    if width * step.height > max_pixels:
        raise faults.TooLargeError(
            f"expected proportions that give at most {max_pixels} pixels at height {step.height}, "
            f"found {picture.image.width} x {picture.image.height}"
        )
    return _MEANS[step.how](picture, step, width)


def _free_width(picture: Picture, step: steps.Resize) -> int:
    image = picture.image
    width = max(1, round(image.width * step.height / image.height))
    width = -(-width // step.multiple) * step.multiple
    return width if step.max_width is None else min(width, step.max_width)


def _scaled(picture: Picture, size: tuple[int, int], step: steps.Resize) -> Picture:
    image = picture.image
    if size == image.size:
        return picture
    place = picture.place.scaled(size[0] / image.width, size[1] / image.height)
    return replace(picture, image=image.resize(size, _filter(step)), place=place)


def _filter(step: steps.Resize) -> Image.Resampling:
    return Image.Resampling[step.filter.upper()]


def _stretch(picture: Picture, step: steps.Resize, width: int) -> Picture:
    return _scaled(picture, (width, step.height), step)


def _fit(picture: Picture, step: steps.Resize, width: int) -> Picture:
    image = picture.image
    scale = min(width / image.width, step.height / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    inner = _scaled(picture, size, step)
    left, top = (width - size[0]) // 2, (step.height - size[1]) // 2
    fill = (step.fill,) * len(image.getbands())
    outer = Image.new(image.mode, (width, step.height), fill if len(fill) > 1 else step.fill)
    outer.paste(inner.image, (left, top))
    return replace(inner, image=outer, place=inner.place.moved(left, top))


def _cover(picture: Picture, step: steps.Resize, width: int) -> Picture:
    image = picture.image
    scale = max(width / image.width, step.height / image.height)
    size = (max(width, round(image.width * scale)), max(step.height, round(image.height * scale)))
    if size[0] * size[1] <= _MOST_SCALED_PIXELS:
        return _middle(_scaled(picture, size, step), width, step.height)
    # A sliver: what would be cut away is not scaled at all.
    kept = (min(image.width, width / scale), min(image.height, step.height / scale))
    left, top = (image.width - kept[0]) / 2, (image.height - kept[1]) / 2
    box = (left, top, left + kept[0], top + kept[1])
    cut = image.resize((width, step.height), _filter(step), box=box)
    place = picture.place.moved(-left, -top).scaled(width / kept[0], step.height / kept[1])
    return replace(picture, image=cut, place=place)


def crop(picture: Picture, step: steps.Crop) -> Picture:
    """The middle. InputError when the picture is smaller."""
    image = picture.image
    if image.width < step.width or image.height < step.height:
        raise errors.InputError(
            f"expected at least {step.width} x {step.height} pixels, "
            f"found {image.width} x {image.height}"
        )
    return _middle(picture, step.width, step.height)


def _middle(picture: Picture, width: int, height: int) -> Picture:
    image = picture.image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    cut = image.crop((left, top, left + width, top + height))
    return replace(picture, image=cut, place=picture.place.moved(-left, -top))


_MEANS: dict[str, Callable[[Picture, steps.Resize, int], Picture]] = {
    "stretch": _stretch,
    "fit": _fit,
    "crop": _cover,
}


def normalise(picture: Picture, step: steps.Normalise) -> np.ndarray:
    """Pixels as float32 of shape [1, c, h, w] or [1, h, w, c]: ``(pixel * scale - mean) / std``.

    Means and deviations stand in the order of the channels that the model reads.
    """
    pixels = np.asarray(picture.image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if picture.is_bgr:
        pixels = pixels[..., ::-1]
    height, width, channels = pixels.shape
    means, stds = (np.broadcast_to(each, channels) for each in (step.mean, step.std))
    planar = step.layout == "NCHW"
    shape = (1, channels, height, width) if planar else (1, height, width, channels)
    values = np.empty(shape, np.float32)
    for channel in range(channels):
        out = values[0, channel] if planar else values[0, ..., channel]
        scale = np.float32(step.scale / stds[channel])
        np.multiply(pixels[..., channel], scale, out=out, dtype=np.float32)
        if means[channel]:
            out -= np.float32(means[channel] / stds[channel])
    return values
