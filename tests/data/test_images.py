from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detscope.data.images import (
    ImageError,
    decode_image,
    inspect_image,
    open_image,
    read_label_image,
)
from detscope.errors import InputError

ORIENTATION = 0x0112


def jpeg(width: int = 64, height: int = 48, mode: str = "RGB", **options: object) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def half_red(mode: str, file_format: str) -> bytes:
    """Left half red (or light), right half black."""
    picture = Image.new("RGB", (40, 20))
    picture.paste((255, 0, 0), (0, 0, 20, 20))
    buffer = io.BytesIO()
    picture.convert(mode).save(buffer, file_format)
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_header_only(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", pixels)


BAD_FILES = {
    "truncated.jpg": (jpeg(640, 480)[:9000], "truncated"),
    "truncated.png": (half_red("RGB", "PNG")[:70], "decoded"),
    "empty.jpg": (b"", "0 bytes"),
    "page.jpg": (b"<!DOCTYPE html><html>404</html>", "HTML"),
    "text.jpg": (b"version https://git-lfs", "known format"),
    "big.png": (png_header_only(12000, 12000), "12000 x 12000"),
    "huge.png": (png_header_only(20000, 20000), "pixels, the limit"),
}


@pytest.mark.parametrize("read", [inspect_image, open_image])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_has_a_reason_of_one_line(tmp_path: Path, name: str, read: object) -> None:
    content, word = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)  # type: ignore[operator]
    assert caught.value.message.startswith(f"{tmp_path / name}: ")
    assert word in caught.value.message
    assert "\n" not in caught.value.message
    assert "skip" in caught.value.hint


def test_a_missing_file_a_folder_and_a_fifo_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").mkdir()
    os.mkfifo(tmp_path / "fifo.jpg")
    for name, word in [("none.jpg", "no such file"), ("x.jpg", "folder"), ("fifo.jpg", "regular")]:
        with pytest.raises(ImageError, match=word):
            open_image(tmp_path / name)


@pytest.mark.parametrize(
    ("mode", "file_format"),
    [
        ("RGB", "JPEG"),
        ("CMYK", "JPEG"),
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
        ("P", "GIF"),
        ("RGB", "BMP"),
        ("RGB", "WEBP"),
        ("CMYK", "TIFF"),
    ],
)
def test_every_colour_mode_becomes_rgb_with_its_colours(mode: str, file_format: str) -> None:
    image = decode_image(half_red(mode, file_format), "x")
    assert image.dtype == np.uint8 and image.shape == (20, 40, 3)
    red, black = image[10, 5], image[10, 35]
    assert red[0] > 200 and red[1] < 60 and red[2] < 60
    assert (black < 60).all()


@pytest.mark.parametrize(("mode", "file_format"), [("L", "JPEG"), ("L", "PNG"), ("LA", "PNG"), ("1", "PNG")])
def test_grey_pictures_have_three_equal_channels(mode: str, file_format: str) -> None:
    image = decode_image(half_red(mode, file_format), "x")
    assert image.shape == (20, 40, 3)
    assert (image == image[:, :, :1]).all()


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_sixteen_bit_pictures_keep_their_range(file_format: str) -> None:
    ramp = (np.arange(256) * 256 + 100).astype(np.uint16).reshape(1, 256).repeat(8, axis=0)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, file_format)
    image = decode_image(buffer.getvalue(), "x")
    assert image.shape == (8, 256, 3)
    assert np.abs(image[0, :, 0].astype(int) - np.arange(256)).max() <= 1


def test_floating_point_pixels_are_refused() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(buffer, "TIFF")
    with pytest.raises(ImageError, match="floating-point"):
        decode_image(buffer.getvalue(), "x")


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_the_exif_orientation_is_applied(tmp_path: Path, file_format: str) -> None:
    picture = Image.open(io.BytesIO(half_red("RGB", "PNG")))
    exif = picture.getexif()
    exif[ORIENTATION] = 6  # to be turned clockwise: left becomes top
    path = tmp_path / "x.jpg"
    picture.save(path, file_format, exif=exif)
    image = open_image(path)
    assert image.shape == (40, 20, 3)
    assert image[5, 10, 0] > 200 and image[35, 10, 0] < 60
    facts = inspect_image(path)
    assert (facts.width, facts.height, facts.stored_width, facts.stored_height) == (20, 40, 40, 20)


def test_annotations_of_the_stored_pixels_keep_them_unturned() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    raw = jpeg(64, 48, exif=exif)
    assert decode_image(raw, "x", 48, 64).shape == (64, 48, 3)
    assert decode_image(raw, "x", 64, 48).shape == (48, 64, 3)
    with pytest.raises(ImageError, match="is 48 x 64, its annotations say 50 x 50"):
        decode_image(raw, "x", 50, 50)


def test_bytes_after_the_end_of_a_jpeg_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(jpeg() + b"camera notes" * 20)
    assert inspect_image(path).width == 64


def test_a_thin_picture_is_fine() -> None:
    assert decode_image(jpeg(1, 3000), "x").shape == (3000, 1, 3)


def test_label_images_keep_their_values(tmp_path: Path) -> None:
    labels = np.array([[1, 2], [3, 1]], dtype=np.uint8)
    Image.fromarray(labels).save(tmp_path / "a.png")
    assert read_label_image(tmp_path / "a.png").tolist() == labels.tolist()
    Image.new("RGB", (2, 2)).save(tmp_path / "b.png")
    with pytest.raises(ImageError, match="class numbers"):
        read_label_image(tmp_path / "b.png")
