"""Markdown that holds values of others: what looks like markup in them is shown, not obeyed."""

from collections.abc import Iterable
from html import escape

from mptexp.report.text import wording


def sentence(text: str) -> str:
    """A sentence in Markdown that holds values of others: what looks like a tag is shown."""
    return escape(text, quote=False)


def safe(text: str) -> str:
    """A text of others for Markdown: what looks like a tag or a link is shown, not obeyed."""
    return escape(wording.verbatim(text), quote=False)


def bullets(sentences: Iterable[str]) -> str:
    """Sentences in Markdown, whose tags are shown, as a list."""
    return "\n".join(f"- {sentence(text)}" for text in sentences)


def to_html(text: str) -> str:
    """Markdown as HTML."""
    from nbconvert.filters.markdown import markdown2html

    return str(markdown2html(text)).strip()
