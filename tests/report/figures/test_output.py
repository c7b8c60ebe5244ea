import re
from xml.etree import ElementTree

import pytest
from builders import three

from mptexp.report.figures import output, speed, style


@pytest.fixture(scope="module")
def tables():
    return three("mixed_float16", [2.0, 2.1, 1.9])


def test_svg_follows_the_theme_and_is_the_same_each_time(tables):
    first, second = (output.svg(speed.step_time_by_batch_size(tables)) for _ in range(2))
    assert first == second
    assert style.INK not in first
    assert "currentColor" in first
    assert "prefers-color-scheme:dark" in first
    ElementTree.fromstring(first)
    assert not re.search(r"(href|src)=\"http", first)


def test_svg_for_white_ground_has_ink_of_its_own(tables):
    # Once pale on white for a reader whose system is dark.
    made = output.svg(speed.step_time_by_batch_size(tables), themed=False)
    assert "prefers-color-scheme" not in made
    assert "currentColor" not in made
    assert output.LIGHT in made
    assert style.INK not in made


def test_a_figure_has_a_text_alternative_a_title_and_a_caption():
    page = output.as_html(
        ["<svg></svg>", "<svg a,b />"], 'a "quoted" <alt>', "caption & more", "A & b"
    )
    assert 'alt="a &quot;quoted&quot; &lt;alt&gt;"' in page
    assert "<figcaption><strong>A &amp; b.</strong> caption &amp; more</figcaption>" in page
    assert 'src="data:image/svg+xml,%3Csvg%3E%3C/svg%3E"' in page
    assert 'srcset="data:image/svg+xml,%3Csvg%20a%2Cb%20/%3E"' in page
