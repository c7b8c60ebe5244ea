import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pytest
from test_summary import record, tables
from test_wording import three

from mptexp.report import figures
from mptexp.spec.policies import POLICIES


@pytest.fixture(scope="module")
def found():
    return three("mixed_float16", [2.0, 2.1, 1.9])


def all_figures(found):
    return [
        figures.speedup_by_batch_size(found.speedups, "float32"),
        figures.step_time_by_batch_size(found.ok),
        figures.memory_by_batch_size(found.ok, {"GPU": 3e9}),
        figures.images_per_s_by_batch_size(found.ok, found.results[:0]),
        figures.accuracy_by_time(found.epochs),
        figures.accuracy_by_epoch(found.epochs),
        figures.loss_by_epoch(found.epochs),
        figures.latency_distribution(latencies(found)),
    ]


def latencies(found):
    for number, made in enumerate(found.records):
        made["latencies_s"] = [9.0, *(0.001 * (number + k) for k in range(1, 50))]
    return found.latencies


def test_every_policy_has_a_colour_and_a_marker_of_its_own():
    assert set(figures.COLOURS) == set(figures.MARKERS) == set(POLICIES)
    assert len(set(figures.COLOURS.values())) == len(set(figures.MARKERS.values())) == len(POLICIES)


def test_figures_show_every_run_and_label_their_axes(found):
    for figure in all_figures(found):
        assert all(axis.get_xlabel() and figure.axes[0].get_ylabel() for axis in figure.axes)
        assert figure.legends
    dots = figures.step_time_by_batch_size(found.ok).axes[0].collections
    assert sum(len(c.get_offsets()) for c in dots) == 6
    curves = figures.accuracy_by_epoch(found.epochs).axes[0]
    assert curves.get_ylabel() == "validation accuracy"
    # The first batch of each run is warm-up.
    assert latencies(found).latency_s.max() < 1
    assert len(latencies(found)) == 6 * 49
    lines = curves.lines
    assert len(lines) >= 6 + 2  # each repeat, and a mean per policy


def test_a_panels_title_says_what_no_other_panel_has():
    def titles(*rows):
        found = tables([record(policy, **row) for row in rows for policy in ("float32", "float16")])
        steps = figures.step_time_by_batch_size(found.ok)
        curves = figures.loss_by_epoch(found.epochs)
        found = [[axis.get_title() for axis in figure.axes] for figure in (steps, curves)]
        plt.close("all")
        return found

    assert titles({}) == [["GPU"], ["batch size 32"]]
    assert titles({}, {"batch_size": 64}) == [["GPU"], ["batch size 32", "batch size 64"]]
    assert titles({}, {"width": 2.0}) == [["width 1", "width 2"]] * 2
    both = {"batch_size": 64, "width": 2.0}
    assert titles({}, both)[1] == ["width 1, batch size 32", "width 2, batch size 64"]


def test_a_speedup_shows_its_interval(found):
    axis = figures.speedup_by_batch_size(found.speedups, "float32").axes[0]
    (bars,) = [c for c in axis.containers if c.has_yerr]
    (low, high) = bars.lines[2][0].get_segments()[0][:, 1]
    row = found.speedups.iloc[0]
    assert (low, high) == (pytest.approx(row.low), pytest.approx(row.high))


def test_svg_follows_the_theme_and_is_the_same_each_time(found):
    first, second = (figures.svg(figures.step_time_by_batch_size(found.ok)) for _ in range(2))
    assert first == second
    assert figures.INK not in first
    assert "currentColor" in first
    assert "prefers-color-scheme:dark" in first
    ElementTree.fromstring(first)
    assert not re.search(r"(href|src)=\"http", first)


def test_a_figure_has_a_text_alternative(found):
    page = figures.as_html("<svg></svg>", 'a "quoted" <alt>', "caption & more")
    assert 'alt="a &quot;quoted&quot; &lt;alt&gt;"' in page
    assert "<figcaption>caption &amp; more</figcaption>" in page
    assert 'src="data:image/svg+xml,%3Csvg%3E%3C/svg%3E"' in page
