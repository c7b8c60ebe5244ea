import json
import shutil

import pytest
from builders import published
from support import PROJECT

from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.answers import why
from mptexp.report.figures import all_figures, diagnosis
from mptexp.report.tables import why_tables


@pytest.fixture(scope="module")
def sweep():
    return published("why-cpu")


def test_a_bar_is_as_long_as_the_step(sweep):
    verdict = sweep.verdicts[0]
    axis = diagnosis.time_by_cause(verdict).axes[0]
    for place, seconds in enumerate(why_tables.seconds_by_cause(verdict).values()):
        widths = [bars[place].get_width() for bars in axis.containers]
        assert sum(widths) == pytest.approx(seconds.sum() * 1e3)


def test_no_layer_is_drawn_far_above_its_roof(sweep):
    figure = diagnosis.roofline_by_layer(sweep.verdicts[0])
    (axis,) = figure.axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert len(axis.lines) == 2
    assert sum(len(dots.get_offsets()) for dots in axis.collections) > 10


def test_the_caption_counts_what_took_time_alone():
    # The lie: "10 of 12" bound by memory, where the table of layers has 9 of 11.
    (found,) = [one for one in published("tf32-h200").verdicts if one.traced]
    (caption,) = {
        figure.draw()[1] for figure in all_figures.figures(published("tf32-h200"), "roofline")
    }
    layers = why_tables.layer_rows(found)
    bound = layers["Bound by"].value_counts()
    of = bound["memory"] + bound["arithmetic"]
    assert f"Bound by memory: {bound['memory']} of {of} under tensorfloat32" in caption


def test_a_layer_stands_on_the_side_of_its_ridge_that_the_caption_counts(sweep):
    # The lie: conv2d counted as bound by arithmetic, its dot left of the ridge of its roof.
    for found in (one for one in sweep.verdicts if one.traced and why_tables.names_layers(one)):
        (axis,) = diagnosis.roofline_by_layer(found).axes
        needs = why_tables.needs_by_layer(found).values()
        for line, dots, table in zip(axis.lines, axis.collections, needs, strict=True):
            intensity, roof = line.get_data()
            ridge = roof.max() / (roof[0] / intensity[0])
            drawn = table[(table.flops > 0) & (table.took_s > 0)]
            left = [x < ridge for x, _ in dots.get_offsets()]
            assert left == list(drawn.bound == "memory")


def test_a_pair_that_was_not_traced_has_no_figure(sweep):
    names = [figure.name for figure in all_figures.figures(sweep)]
    traced = [f"time_by_cause_{n}" for n, v in enumerate(sweep.verdicts, 1) if v.traced]
    assert [name for name in names if name.startswith("time_by_cause")] == traced
    assert len(traced) > 0
    (largest,) = [f.draw()[1] for f in all_figures.figures(sweep) if f.name == "time_by_cause_1"]
    assert "under float32: matrix work" in largest


def test_without_a_valid_peak_there_is_no_roof(tmp_path):
    # The lie: 31 of 44 layers above the "measured roof", by "padding, which shapes count".
    place = SweepDir(shutil.copytree(PROJECT / "reports/published/float8-gpt-cpu", tmp_path / "f"))
    for file in place.root.rglob("record.json"):
        record = json.loads(file.read_text())
        record["work"]["ceilings"]["matmul_flops_per_s"] = 1e9  # as where other programs ran
        file.write_text(json.dumps(record))
    float8 = measured_sweep.load(place)
    names = [figure.name for figure in all_figures.figures(float8)]
    assert any(name.startswith("time_by_cause") for name in names)
    assert not [name for name in names if name.startswith("roofline")]
    for found in float8.verdicts:
        assert set(why_tables.peak_rows(found)["Peak of a matrix product"]) == {"no valid peak"}
        assert "Bound by" not in why_tables.layer_rows(found)
        assert "would allow" not in why.sentence(found, float8.verdicts)
