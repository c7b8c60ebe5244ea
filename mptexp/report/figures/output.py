"""A drawn figure as a file or as HTML."""

import io
import re
import warnings
from html import escape
from typing import Any
from urllib.parse import quote

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from mptexp.report.figures.style import INK, STYLE

THEMES = "svg{color:#1d2430}@media(prefers-color-scheme:dark){svg{color:#dfe5ee}}"


def svg(figure: Figure) -> str:
    """The figure as an SVG document whose ink follows the reader's light or dark theme.

    Closes the figure.
    """
    text = _saved(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    text = text.replace(INK, "currentColor")
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>{THEMES}</style>", text, count=1)


def png(figure: Figure) -> bytes:
    """The figure as a PNG image on white ground, for places that take no SVG.

    Closes the figure, which may be written again.
    """
    return _saved(figure, format="png", facecolor="white", metadata={"Software": None})


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in another script
        # In an SVG, the resolution is that of what is drawn as a raster image, see VECTORS.
        figure.savefig(buffer, dpi=200, **options)
    plt.close(figure)
    return buffer.getvalue()


def as_html(document: str, alt: str, caption: str, title: str = "") -> str:
    """An SVG document as an HTML figure with a text alternative and a caption below its title."""
    # A quarter less than in base64; with parentheses it would read as if it loaded something.
    data = quote(" ".join(document.split()), safe=" /:;,='!@$*+?")
    image = f'<img src="data:image/svg+xml,{data}" alt="{escape(alt)}">'
    head = f"<strong>{escape(title)}.</strong> " if title else ""
    return f"<figure>{image}<figcaption>{head}{escape(caption)}</figcaption></figure>"
