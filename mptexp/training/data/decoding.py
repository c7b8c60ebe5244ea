"""Decoding a picture as it comes in the wild into bytes for a model."""

import io

import numpy as np
from PIL import Image, ImageOps

# Case does not matter. What else lies in a folder is left out, and said.
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CHANNELS = {"rgb": 3, "grayscale": 1}


class Broken(ValueError):
    """A file that is not a picture, or not a whole one; the message says why."""


def decode(data: bytes, color_mode: str, image_size: int | None = None) -> np.ndarray:
    """An encoded picture as uint8 of shape (height, width, channels), upright.

    The orientation of EXIF is applied; what is transparent becomes white; CMYK, palettes and 16
    bits are converted. Of an animation the first frame is taken.

    Args:
        data: the bytes of the file.
        color_mode: rgb or grayscale.
        image_size: height and width to resize to, bilinear with antialiasing, not keeping the
            proportions; None keeps the picture's own size.

    Raises:
        Broken: where the bytes are not a whole picture.
    """
    try:
        picture = _opened(data, color_mode, image_size)
    # Damaged files make Pillow's parsers raise nearly anything, struct.error and KeyError included.
    except Exception as error:
        raise Broken(_reason(error)) from None
    if image_size is not None and picture.size != (image_size, image_size):
        picture = picture.resize((image_size, image_size), Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array if array.ndim == 3 else array[..., None]


def _opened(data: bytes, color_mode: str, image_size: int | None) -> Image.Image:
    picture: Image.Image = Image.open(io.BytesIO(data))
    if image_size is not None:
        picture.draft(None, (image_size, image_size))  # JPEG decodes a large picture in part
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        opaque = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    return picture.convert("L" if color_mode == "grayscale" else "RGB")


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not a picture"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
