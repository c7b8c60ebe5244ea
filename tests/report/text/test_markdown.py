"""The hostile cases are in tests/system/test_security.py."""

from mptexp.report.text import markdown


def test_values_of_others_are_shown_as_they_are():
    assert markdown.sentence("**bold** <b>") == "**bold** &lt;b&gt;"
    assert "<strong>" not in markdown.to_html(markdown.safe("**bold** <b>"))
    assert markdown.bullets(["a <b>", "c"]) == "- a &lt;b&gt;\n- c"
    assert markdown.bullets([]) == ""


def test_markdown_becomes_html():
    assert markdown.to_html("On x, **y** is faster") == "<p>On x, <strong>y</strong> is faster</p>"
