"""Text of others for a terminal: markup and control characters are shown, not obeyed."""

from rich.markup import escape


def visible(text: str) -> str:
    """Text with its unprintable characters written as escapes, such as \\x1b.

    They would move a terminal's cursor, change its title or the direction of writing, or cannot be
    written to a file in UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == NARROW else _escaped(c) for c in text)


NARROW = "\u00a0"  # the space between a number and its unit


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def plain(text: str) -> str:
    """Text for rich to print as it is."""
    return escape(visible(text))
