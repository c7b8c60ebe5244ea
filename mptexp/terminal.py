"""Text of others for a terminal: markup and control characters are shown, not obeyed."""

from rich.markup import escape


def visible(text: str) -> str:
    """Text in which characters that are no signs on paper are written as escapes, such as \\x1b.

    Those that move a terminal's cursor, change its title or the direction of writing, and those
    that no file in UTF-8 can hold.
    """
    written = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(written)


def plain(text: str) -> str:
    """Text for rich to print as it is."""
    return escape(visible(text))
