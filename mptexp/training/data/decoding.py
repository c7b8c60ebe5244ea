"""Decodes image files of any origin into arrays for a model."""

import io
import threading
from contextlib import nullcontext

import numpy as np
from PIL import Image, ImageOps

CHANNELS = {"rgb": 3, "grayscale": 1}
# Decoding takes up to 16 bytes a pixel for a while: below a GB for the largest that is decoded, of
# which one is at a time, whatever the number of threads.
MOST_PIXELS, LARGE_PIXELS = 50_000_000, 2_000_000
# Those of `file_trees.IMAGES`, whatever the file is called. Of Pillow's others EPS is a program for
# Ghostscript, which it starts, and some take nearly any bytes for an image.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a tag of TIFF
_large = threading.Lock()


class Broken(ValueError):
    """A file that is no image, or not a whole one; the message says why."""


def decode(data: bytes, color_mode: str, image_size: int | None = None) -> np.ndarray:
    """An encoded image as uint8 of shape (height, width, channels), upright.

    The orientation of EXIF is applied; what is transparent becomes white; CMYK, palettes, 16
    bits and floats from 0 to 1 are converted. Of an animation the first frame is taken.

    Args:
        color_mode: rgb or grayscale.
        image_size: height and width to resize to, bilinear with antialiasing, not keeping the
            proportions; None keeps the image's own size.

    Raises:
        Broken: where the bytes are not a whole image.
        MemoryError: where there is no memory for it.
    """
    try:
        image = _opened(data, image_size)
        with _large if image.width * image.height > LARGE_PIXELS else nullcontext():
            return _decoded(image, color_mode, image_size)
    except MemoryError:
        raise
    # Damaged files make Pillow's parsers raise nearly anything, struct.error and KeyError included.
    except Exception as error:
        raise Broken(_reason(error)) from None


def _opened(data: bytes, image_size: int | None) -> Image.Image:
    """The image, of which only the head is read so far."""
    image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image_size is not None:
        image.draft(None, (image_size, image_size))  # JPEG decodes a large image in part
    if image.width * image.height > MOST_PIXELS:
        most = f"{MOST_PIXELS / 1e6:g} million"
        raise Broken(f"{image.width} x {image.height} pixels, more than {most}; make it smaller")
    return image


def _decoded(image: Image.Image, color_mode: str, image_size: int | None) -> np.ndarray:
    image = _in_mode(image, color_mode)
    if image_size is not None and image.size != (image_size, image_size):
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]


def _in_mode(image: Image.Image, color_mode: str) -> Image.Image:
    form = image.format
    image.load()
    image.getexif()  # is kept; without its bytes it is not written anew, which fails of odd tags
    image.info.pop("exif", None)
    ImageOps.exif_transpose(image, in_place=True)  # what is upright is not copied
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_grey(image, form))
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    mode = "L" if color_mode == "grayscale" else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _grey(image: Image.Image, form: str | None) -> np.ndarray:
    """What has more than eight bits as uint8, white where it is transparent.

    Pillow inverts what says that zero is white, and knows what is transparent, of eight bits alone.

    Raises:
        Broken: where it is not known which number is white.
    """
    values = np.asarray(image)
    grey = _in_eight_bits(values, form)
    if getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO:
        grey = 255 - grey
    if (transparent := image.info.get("transparency")) is not None:
        grey[values == transparent] = 255
    return grey


SIXTEEN_BITS = ("PNG", "PPM")  # in which Pillow has 16 bits in integers of 32


def _in_eight_bits(values: np.ndarray, form: str | None) -> np.ndarray:
    """Values of 16 bits, or floats from 0 to 1, as uint8.

    Raises:
        Broken: where it is not known which number is white.
    """
    if values.dtype.kind == "f":
        if not (values.min() >= 0 and values.max() <= 1):  # nor NaN
            raise Broken("floating-point values outside 0 to 1; save it with 8 or 16 bits")
        return np.rint(values * 255).astype(np.uint8)
    if values.dtype.itemsize > 2 and form not in SIXTEEN_BITS:
        raise Broken("32-bit integers, whose white is not known; save it with 8 or 16 bits")
    return (values >> 8).clip(0, 255).astype(np.uint8)


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image of a kind that is read"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
