"""Every figure that a report can hold: its parts, and what it says."""

import re
from dataclasses import replace
from typing import get_args

import pytest
from builders import published
from legible import faults

from mptexp.report.figures import all_figures, output, style
from mptexp.report.figures.all_figures import FIGURES
from mptexp.report.figures.row import FigureRow, Section


@pytest.fixture(scope="module", params=["quickstart-cpu", "why-cpu", "loss-scale-cpu"])
def sweep(request):
    return published(request.param)


@pytest.fixture(scope="module")
def drawn(sweep):
    """Each figure of a sweep, drawn for a wide page and for a phone: figure, caption, faults."""
    figures = []
    for figure in all_figures.figures(sweep):
        wide = style.LEAD_WIDTH if figure.row.section == "answer" else style.WIDTH
        both = style.on_both(figure.draw, wide)
        figures.append((figure, [(made, text, list(faults(made))) for made, text in both]))
        for made, _ in both:
            made.set_layout_engine("none")  # it is laid out now, which takes most of a drawing
    return figures


@pytest.mark.parametrize("part", ["name", "title", "alt", "section"])
def test_a_figure_without_one_of_its_texts_is_refused(part):
    with pytest.raises(ValueError, match=rf"{part}\b"):
        replace(FIGURES[0], **{part: ""})


@pytest.mark.parametrize("part", ["draw", "caption", "cases"])
def test_a_figure_without_one_of_its_functions_is_refused(part):
    with pytest.raises(ValueError, match=part):
        replace(FIGURES[0], **{part: None})
    rest = {name: value for name, value in vars(FIGURES[0]).items() if name != part}
    with pytest.raises(TypeError, match=part):
        FigureRow(**rest)


def test_two_figures_of_one_name_are_refused():
    with pytest.raises(ValueError, match="latency_distribution"):
        all_figures.check((*FIGURES, next(r for r in FIGURES if r.name == "latency_distribution")))


def test_every_section_has_a_figure_and_every_text_is_one_of_its_own():
    assert {row.section for row in FIGURES} == set(get_args(Section))
    for part in ("title", "alt"):
        assert len({getattr(row, part) for row in FIGURES}) == len(FIGURES)
    assert all(len(row.alt) > 20 and row.alt.endswith(".") for row in FIGURES)


def test_figures_hold_plain_words_and_numbers_alone(drawn):
    """No markup of matplotlib's: an SVG's comments hold the text that is drawn as shapes."""
    assert len({figure.name for figure, _ in drawn}) == len(drawn) >= 7
    for figure, both in drawn:
        for made, caption, _ in both:
            document = output.svg(made)
            labels = re.findall(r"<!-- (.*?) -->", document)
            assert len(labels) > 5, figure.name
            assert "mathdefault" not in document, figure.name
            for text in (*labels, caption, figure.alt, figure.title):
                assert not re.search(r"[$\\{}]|\bnan\b", text), (figure.name, text)
            assert caption.endswith(".")
        assert figure.title[0].isupper()


@pytest.mark.parametrize("phone", [False, True])
def test_every_figure_is_legible(drawn, phone):
    for figure, both in drawn:
        assert both[phone][2] == [], figure.name


def test_what_is_not_legible_is_named():
    figure, (axis,) = style.new(2)
    axis.plot([1, 2, 30], [1, 2, 3], "o")
    axis.set(xlim=(0, 3), title="$\\mathdefault{10^{2}}$")
    axis.set_xticks([1, 1.001], ["one tick", "another"])
    figure.text(0.99, 0.5, "far away")
    axis.set(yscale="log", ylim=(1, 5), yticks=[1, 4])
    named = " ".join(faults(figure))
    assert "'one tick' and 'another'" in named
    for words in ("raw markup", "outside the view", "outside the fig", "2 ticks"):
        assert words in named
