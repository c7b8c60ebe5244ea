import io
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from mptexp.spec import data_folders
from mptexp.training.data import decoding
from mptexp.training.data.decoding import Broken

RED = (200, 30, 30)


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def alpha_png():
    image = Image.new("RGBA", (20, 10), (*RED, 0))
    image.paste((*RED, 255), (0, 0, 10, 10))
    return image


def palette_png():
    image = Image.new("P", (20, 10), 1)
    image.putpalette([0, 0, 0, *RED])
    return image


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(Image.new("RGB", (20, 10), RED), "JPEG", quality=95), RED),
        (encoded(Image.new("CMYK", (20, 10), (0, 216, 216, 55)), "JPEG", quality=95), RED),
        (encoded(palette_png(), "PNG"), RED),
        (encoded(Image.new("L", (20, 10), 77), "JPEG"), (77, 77, 77)),
        (encoded(Image.fromarray(np.full((10, 20), 77 << 8, np.uint16)), "PNG"), (77, 77, 77)),
        (encoded(Image.new("1", (20, 10), 1), "PNG"), (255, 255, 255)),
        (encoded(Image.new("RGB", (20, 10), RED), "WEBP", lossless=True), RED),
    ],
    ids=["rgb", "cmyk", "palette", "grey", "16 bit", "1 bit", "webp"],
)
def test_every_kind_becomes_rgb(data, expected):
    array = decoding.decode(data, "rgb")
    assert (array.shape, array.dtype) == ((10, 20, 3), np.uint8)
    assert np.abs(array.astype(int) - expected).max() <= 4


@pytest.mark.parametrize(
    ("values", "form", "expected"),
    [
        (np.array([[0.0, 0.5], [1.0, 0.25]], np.float32), "TIFF", [[0, 128], [255, 64]]),
        (np.array([[0, 32768], [65535, 256]], np.uint16), "TIFF", [[0, 128], [255, 1]]),
        (np.array([[0, 32768], [65535, 256]], np.uint16), "PNG", [[0, 128], [255, 1]]),
        (np.array([[0, 32768], [65535, 256]], np.uint16), "PPM", [[0, 128], [255, 1]]),
    ],
)
def test_what_has_more_than_eight_bits_keeps_its_brightness(values, form, expected):
    array = decoding.decode(encoded(Image.fromarray(values), form), "grayscale")
    assert array[..., 0].tolist() == expected


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.array([[0, 2**30]], np.int32), "32-bit integers, whose white is not known"),
        (np.array([[0, 200]], np.int32), "32-bit integers"),
        (np.array([[0, 200.0]], np.float32), "floating-point values outside 0 to 1"),
        (np.array([[0, np.nan]], np.float32), "floating-point values outside 0 to 1"),
    ],
)
def test_an_image_whose_white_is_not_known_is_refused(values, why):
    with pytest.raises(Broken, match=why):
        decoding.decode(encoded(Image.fromarray(values), "TIFF"), "rgb", 8)


def test_what_is_transparent_is_white():
    array = decoding.decode(encoded(alpha_png(), "PNG"), "rgb")
    assert tuple(array[5, 5]) == RED
    assert tuple(array[5, 15]) == (255, 255, 255)


def test_an_image_stands_upright_as_exif_says():
    # Stored lying on its side: the red half is above only after turning.
    lying = Image.new("RGB", (40, 20), "black")
    lying.paste(RED, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    array = decoding.decode(encoded(lying, "JPEG", exif=exif, quality=95), "rgb")
    assert array.shape == (40, 20, 3)
    assert array[5, 10, 0] > 150
    assert array[35, 10, 0] < 50


def test_large_and_small_images_get_one_size():
    noise = np.random.default_rng(0).integers(0, 256, (3024, 3024, 3), np.uint8)
    large = decoding.decode(encoded(Image.fromarray(noise), "JPEG"), "rgb", 64)
    small = decoding.decode(encoded(Image.new("L", (8, 3), 9), "PNG"), "grayscale", 64)
    assert large.shape == (64, 64, 3)
    assert small.shape == (64, 64, 1)
    # Averaged over thousands of pixels: bilinear without antialiasing would leave the noise.
    assert large.std() < 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a letter, not an image",
        encoded(Image.new("RGB", (400, 400), RED), "JPEG")[:900],
        encoded(Image.effect_noise((99, 99), 50), "PNG")[:900],
    ],
    ids=["empty", "text", "half a jpeg", "half a png"],
)
def test_what_is_not_a_whole_image_is_broken(data):
    with pytest.raises(Broken, match=r"\w"):
        decoding.decode(data, "rgb", 32)


def test_an_image_of_more_pixels_than_anybody_decodes_is_broken():
    data = encoded(Image.new("1", (10_000, 6_000)), "PNG")
    assert len(data) < 50_000
    with pytest.raises(Broken, match="10000 x 6000 pixels, more than 50 million; make it smaller"):
        decoding.decode(data, "rgb", 32)


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    at_work, most, inner = [], [], decoding._in_mode

    def counted(image, color_mode):
        at_work.append(image)
        most.append(len(at_work))
        try:
            return inner(image, color_mode)
        finally:
            at_work.pop()

    monkeypatch.setattr(decoding, "_in_mode", counted)
    data = encoded(Image.new("RGB", (2000, 1500)), "PNG")
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(lambda _: decoding.decode(data, "rgb", 32), range(8)))) == 8
    assert max(most) == 1


@pytest.mark.parametrize(
    "tag",
    [
        b"\0\x01\2\0\4\0\0\0abc\0",  # a width that is text
        b"\x1a\x01\2\0\4\0\0\0abc\0",  # a resolution that is text
        b"\x1a\x01\x09\0\1\0\0\0\xff\xff\xff\xff",  # a resolution below zero
    ],
)
def test_another_tag_of_a_wrong_type_leaves_a_photo_whole(tag):
    # The lie: "required argument is not an integer", of photos that every viewer turns and shows.
    head = b"Exif\0\0II*\0\x08\0\0\0\x02\0"
    exif = head + b"\x12\x01\x03\0\x01\0\0\0\6\0\0\0" + tag + bytes(4)
    image = Image.fromarray(np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3))
    array = decoding.decode(encoded(image, "JPEG", exif=exif), "rgb")
    assert array.shape == (24, 16, 3)


@pytest.mark.parametrize("suffix", data_folders.IMAGES)
def test_every_kind_that_a_name_may_say_is_read(suffix, tmp_path):
    Image.new("RGB", (20, 10), RED).save(tmp_path / f"image{suffix}")
    array = decoding.decode((tmp_path / f"image{suffix}").read_bytes(), "rgb", 8)
    assert np.abs(array.astype(int) - RED).max() <= 4


def test_a_camera_that_stores_two_pictures_in_a_jpeg_is_read():
    second = Image.new("RGB", (20, 10), "blue")
    data = encoded(Image.new("RGB", (20, 10), RED), "MPO", save_all=True, append_images=[second])
    assert np.abs(decoding.decode(data, "rgb", 8).astype(int) - RED).max() <= 4


def test_no_other_program_is_started_for_an_image(tmp_path, monkeypatch):
    # The danger: Ghostscript ran what a picture of the net, called .jpg, told it to.
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(Broken, match="not an image of a kind that is read"):
        decoding.decode(data, "rgb", 8)
    assert not (tmp_path / "started").exists()


def tiff(values, white_is_zero):
    """A grey TIFF in one strip; Pillow writes none whose zero is white."""
    kind = 3 if values.dtype.kind == "f" else 1  # floats, or unsigned integers
    height, width = values.shape
    tags = [
        *((256, width), (257, height), (258, 8 * values.itemsize), (259, 1)),
        *((262, 0 if white_is_zero else 1), (273, 8), (277, 1), (278, height)),
        *((279, values.nbytes), (339, kind)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + values.nbytes)
    return head + values.tobytes() + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[0, 128], [255, 64]], np.uint8),
        np.array([[0, 128 << 8], [65535, 64 << 8]], np.uint16),
        np.array([[0, 128 / 255], [1, 64 / 255]], np.float32),
    ],
    ids=["8 bits", "16 bits", "floats"],
)
def test_zero_is_white_where_a_tiff_says_so(values):
    # The lie: X-rays of one clinic black on white among those of others, white on black.
    upright = decoding.decode(tiff(values, white_is_zero=False), "grayscale")[..., 0]
    assert upright.tolist() == [[0, 128], [255, 64]]
    assert np.array_equal(
        decoding.decode(tiff(values, white_is_zero=True), "grayscale")[..., 0], 255 - upright
    )


def test_floats_whose_white_is_not_known_are_refused_even_if_zero_is_white():
    with pytest.raises(Broken, match="floating-point values outside 0 to 1"):
        decoding.decode(tiff(np.array([[0, 4095]], np.float32), white_is_zero=True), "rgb")


@pytest.mark.parametrize(("kind", "one"), [(np.uint8, 1), (np.uint16, 256)])
def test_what_is_transparent_is_white_in_grey_of_any_bits(kind, one):
    # The lie: a dark ground under cut-out pictures of 16 bits, a white one under those of 8.
    values = (np.array([[0, 7], [100, 7]]) * one).astype(kind)
    data = encoded(Image.fromarray(values), "PNG", transparency=7 * one)
    assert decoding.decode(data, "grayscale")[..., 0].tolist() == [[0, 255], [100, 255]]
