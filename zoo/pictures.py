"""Pictures: photographs out of packages, and lines of text and tables that are drawn here.

Everything is uint8 [height, width, 3] in RGB; `planes` turns pictures into what a net reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from zoo import fetch

Picture = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float32]


def photo(name: str) -> Picture:
    """A picture of the table, such as `astronaut.png`."""
    with Image.open(fetch.path(name)) as image:
        return np.asarray(image.convert("RGB"))


def resized(picture: Picture, width: int, height: int) -> Picture:
    """The picture at another size, its proportions not kept, bilinear."""
    image = Image.fromarray(picture)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def centre(picture: Picture, short_side: int, side: int) -> Picture:
    """Scaled until its short side has `short_side` pixels, then the middle square of `side`."""
    height, width = picture.shape[:2]
    scale = short_side / min(height, width)
    scaled = resized(picture, round(width * scale), round(height * scale))
    top, left = (scaled.shape[0] - side) // 2, (scaled.shape[1] - side) // 2
    return scaled[top : top + side, left : left + side]


def text_line(text: str, height: int = 48, letter_share: float = 0.66) -> Picture:
    """Black text on white in Pillow's own font, as wide as it needs."""
    font = ImageFont.load_default(round(height * letter_share))
    left, top, right, bottom = font.getbbox(text)
    margin = height // 4
    image = Image.new("RGB", (round(right - left) + 2 * margin, height), "white")
    place = (margin - left, (height - (bottom - top)) / 2 - top)
    ImageDraw.Draw(image).text(place, text, fill="black", font=font)
    return np.asarray(image)


def table(rows: int = 3, columns: int = 3, side: int = 488) -> Picture:
    """A ruled table with a word in each cell, in the upper part of a white square."""
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(20)
    width, height, margin = (side - 40) // columns, 50, 20
    for row in range(rows):
        for column in range(columns):
            x, y = margin + column * width, margin + row * height
            draw.rectangle((x, y, x + width, y + height), outline="black", width=2)
            draw.text((x + 12, y + 12), f"cell {row}{column}", fill="black", font=font)
    return np.asarray(image)


def padded(pictures: Sequence[Picture]) -> list[Picture]:
    """All at the size of the largest, white at the right and below."""
    height = max(picture.shape[0] for picture in pictures)
    width = max(picture.shape[1] for picture in pictures)
    result = []
    for picture in pictures:
        room = ((0, height - picture.shape[0]), (0, width - picture.shape[1]), (0, 0))
        result.append(np.pad(picture, room, constant_values=255))
    return result


def planes(
    pictures: Sequence[Picture],
    mean: Sequence[float] | float = 0.0,
    deviation: Sequence[float] | float = 1.0,
    *,
    bgr: bool = False,
) -> Array:
    """Pictures of one size as float32 [n, 3, height, width]: (x / 255 - mean) / deviation.

    `mean` and `deviation` stand in the order of the channels that the net reads.
    """
    stack = np.stack(pictures).astype(np.float32) / 255
    if bgr:
        stack = stack[..., ::-1]
    stack = (stack - np.asarray(mean, np.float32)) / np.asarray(deviation, np.float32)
    return np.ascontiguousarray(stack.transpose(0, 3, 1, 2))
