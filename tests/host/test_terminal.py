import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from mptexp.host import terminal
from mptexp.report.text import markdown


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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_escapes(encoding):
    code = "from mptexp.host import terminal; terminal.open_standard_streams(); print('1.5× − –')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    assert b"\\u2212 \\u2013" in done.stdout


def test_a_sentence_of_a_page_holds_no_entities_on_a_terminal():
    said = markdown.safe("but found '<stream end>' & **more**")
    assert "&lt;" in said
    assert terminal.without_markdown(said) == "but found '<stream end>' & **more**"
