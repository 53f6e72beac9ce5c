"""Image files for tests, drawn and written here: ordinary ones, odd ones, hostile ones."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def file(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    written = io.BytesIO()
    image.save(written, form, **options)
    return written.getvalue()


def stripes(width: int = 60, height: int = 40) -> Image.Image:
    """Red at the left, green in the middle, blue at the right."""
    image = Image.new("RGB", (width, height))
    third = width // 3
    for index, colour in enumerate(("red", "lime", "blue")):
        image.paste(Image.new("RGB", (third, height), colour), (index * third, 0))
    return image


def bomb(width: int, height: int) -> bytes:
    """A PNG of one colour, a few kilobytes long, whose pixels would fill memory."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(width // 8 + 1)) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", rows + packer.flush()), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def odd(line: Image.Image) -> dict[str, bytes]:
    """The same picture in every way in which pictures come; each must be read as ``line`` is."""
    grey = np.asarray(line.convert("L"))
    veil = np.zeros((*grey.shape, 4), np.uint8)
    veil[..., 3] = 255 - grey
    turned = Image.Exif()
    turned[0x112] = 6
    frames = [Image.new("P", line.size)] * 3
    return {
        "png": file(line),
        "jpeg": file(line, "JPEG", quality=95),
        "webp": file(line, "WEBP", quality=95),
        "bmp": file(line, "BMP"),
        "animated": file(line.convert("P"), "GIF", save_all=True, append_images=frames),
        "palette": file(line.convert("P")),
        "grey": file(line.convert("L")),
        "grey with alpha": file(line.convert("LA")),
        "one bit": file(line.convert("1")),
        "sixteen bits": file(Image.fromarray(grey.astype(np.uint16) * 257)),
        "transparent": file(Image.fromarray(veil)),
        "cmyk": file(line.convert("CMYK"), "JPEG", quality=95),
        "progressive": file(line, "JPEG", quality=95, progressive=True),
        "turned by exif": file(line.rotate(90, expand=True), "JPEG", quality=95, exif=turned),
    }


def broken(line: Image.Image) -> dict[str, bytes]:
    """What must be refused: no image, half an image, another kind, more pixels than allowed."""
    png = file(line)
    return {
        "nothing": b"",
        "text": b"hello",
        "half": png[: len(png) // 2],
        "a head alone": png[:33],
        "a lying head": png[:16] + struct.pack(">II", 4000, 4000) + png[24:],
        "tiff": file(line, "TIFF"),
        "a bomb": bomb(20_000, 20_000),
        "a huge webp": b"RIFF" + struct.pack("<I", 100) + b"WEBPVP8X" + struct.pack("<I", 10)
        + b"\x10\0\0\0\xff\x3f\0\xff\x3f\0" + bytes(70),
        "a huge gif": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0"
        + struct.pack("<HH", 65535, 65535) + b"\0\x02\x02\x4c\x01\x00;",
    }  # fmt: skip
