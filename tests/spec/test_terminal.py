import io

import pytest
from rich.console import Console

from mptexp.spec import terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("12\u00a0ms", "12\u00a0ms"),
        ("résumé", "résumé"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\nb"),
    ],
)
def test_characters_that_move_a_terminal_are_shown_as_escapes(text, shown):
    assert terminal.visible(text) == shown


def test_markup_is_printed_as_it_is():
    screen = io.StringIO()
    Console(file=screen, width=80).print(terminal.plain("[bold]not bold[/bold]"))
    assert screen.getvalue() == "[bold]not bold[/bold]\n"
