"""A drawn figure as a file or as HTML."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from urllib.parse import quote

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from mptexp.report.figures import style
from mptexp.report.figures.style import INK

DPI = 200  # of images; in an SVG of what is drawn as one, see style.VECTORS
PHONE = 600  # pixels of width up to which a page shows the figures for phones
LIGHT = "#1d2430"  # ink on white ground
THEMES = f"svg{{color:{LIGHT}}}@media(prefers-color-scheme:dark){{svg{{color:#dfe5ee}}}}"


def svg(figure: Figure, themed: bool = True) -> str:
    """The figure as an SVG document.

    Args:
        themed: whether its ink follows the reader's light or dark theme, as the ground of our own
            pages does; else it is for white ground.
    """
    buffer = io.StringIO()
    with _styled(figure):
        # Not savefig, which draws everything once more to lay it out.
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    if not themed:
        return text.replace(INK, LIGHT)
    text = text.replace(INK, "currentColor")
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>{THEMES}</style>", text, count=1)


def png(figure: Figure) -> bytes:
    """The figure as a PNG image on white ground, for places that take no SVG."""
    buffer = io.BytesIO()
    with _styled(figure):
        FigureCanvasAgg(figure)
        figure.savefig(buffer, dpi=DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


@contextmanager
def _styled(figure: Figure) -> Iterator[None]:
    with style.ours():
        figure.set_dpi(DPI)
        yield


def as_html(documents: Sequence[str], alt: str, caption: str, title: str = "") -> str:
    """A figure as HTML, with a text alternative and a caption below its title.

    Args:
        documents: SVG, drawn wide and drawn for a phone.
    """
    wide, narrow = (f"data:image/svg+xml,{_quoted(document)}" for document in documents)
    image = f'<img src="{wide}" alt="{escape(alt)}">'
    # A blank ends an address in srcset, and a comma may.
    phone = narrow.replace(" ", "%20").replace(",", "%2C").replace("%2C", ",", 1)
    picture = f'<picture><source media="(max-width: {PHONE}px)" srcset="{phone}">{image}</picture>'
    head = f"<strong>{escape(title)}.</strong> " if title else ""
    return f"<figure>{picture}<figcaption>{head}{escape(caption)}</figcaption></figure>"


def _quoted(document: str) -> str:
    """A quarter less than in base64; with parentheses it would read as if it loaded something."""
    return quote(" ".join(document.split()), safe=" /:;,='!@$*+?")
