from pathlib import Path

import pandas as pd
import pytest
from builders import record, tables, three

from mptexp.records.sweep_dir import SweepDir
from mptexp.report.figures import device
from mptexp.report.figures.all_figures import FIGURES
from mptexp.report.measured_sweep import MeasuredSweep

CAPTIONS = {row.name: row.caption for row in device.FIGURES}
VALUES = {row.name: row.values for row in device.FIGURES}


def test_the_devices_memory_is_a_line_where_runs_come_near_it():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    for size, lines in ((3e9, 1), (3e12, 0)):
        made.records[0]["environment"] = {"kind": "gpu", "device_memory_bytes": size}
        assert len(device.memory_by_batch_size(made).axes[0].lines) == lines
    assert "1,024 MiB" in CAPTIONS["memory_by_batch_size"](made)


@pytest.mark.parametrize(
    ("environment", "limit_gb", "line"),
    [
        # The lies: "the device's memory" of a GPU was its host's; of a container, the machine's.
        ({"kind": "gpu", "memory_bytes": 3e9, "device_memory_bytes": None}, None, None),
        ({"kind": "cpu", "memory_bytes": 4e9, "container_memory_bytes": 3e9}, None, 3e9),
        ({"kind": "cpu", "memory_bytes": 4e9, "container_memory_bytes": None}, 2.0, 2e9),
    ],
)
def test_the_line_is_at_the_memory_that_a_run_may_use(environment, limit_gb, line):
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    for one in made.records:
        one["environment"] = environment
        one["parameters"]["memory_limit_gb"] = limit_gb
    (axis,) = device.memory_by_batch_size(made).axes
    drawn = [one.get_ydata()[0] * device.MIB for one in axis.lines]
    assert drawn == ([pytest.approx(line)] if line else [])
    assert [text.get_text() for text in axis.texts] == ["the memory that a run may use"] * len(
        drawn
    )


def test_a_figure_over_batch_sizes_has_the_panels_that_hold_several():
    # The puzzle: panels of one batch size, a column of dots each.
    rows = [record(policy, width=w) for w in (1.0, 2.0) for policy in ("float32", "mixed_float16")]
    larger, names = record(batch_size=64), ("step times", "throughput", "memory")
    for row in (row for row in FIGURES if row.section in names):
        if not row.name.startswith("tokens"):
            assert not row.cases(MeasuredSweep(SweepDir(Path("unused")), tables(rows)))
            cases = row.cases(MeasuredSweep(SweepDir(Path("unused")), tables([*rows, larger])))
            assert {run["width"] for run in map(asked(cases[""]), cases[""].ok.run_id)} == {1.0}


def asked(made):
    return lambda run_id: made.records_by_id[run_id]["parameters"]


def test_the_caption_of_memory_tells_its_two_points_apart():
    rows = [record(width=width) for width in (1.0, 2.0)]
    rows[1]["peak_memory_bytes"] *= 2
    assert "(float32, width 1) to 2,048 MiB (float32, width 2)" in CAPTIONS["memory_by_batch_size"](
        tables(rows)
    )


def test_readings_are_drawn_where_there_are_any():
    samples = pd.DataFrame(
        {
            "policy": "float32",
            "seconds": [0.0, 1.0],
            "utilization_frac": [0.5, 0.7],
            "power_w": None,
        }
    )
    figure = device.readings_by_time(samples)
    assert [axis.get_ylabel() for axis in figure.axes] == ["utilization, %"]
    assert list(figure.axes[0].lines[0].get_ydata()) == [50, 70]
    assert "70 % in float32" in CAPTIONS["readings_by_time"](samples)
    # The lie: the alternative text named power, where none was read.
    assert VALUES["readings_by_time"](samples) == "Utilization."
    both = samples.assign(power_w=[100.0, 200.0])
    figure = device.readings_by_time(both)
    assert [axis.get_ylabel() for axis in figure.axes] == ["utilization, %", "power, W"]
    assert VALUES["readings_by_time"](both) == "Utilization and power."


def test_a_caption_names_no_utilization_that_was_not_read():
    # The lie: "Utilization reaches nan % in float32 and 90 % in mixed_float16".
    read = {"seconds": [0.0, 1.0], "power_w": 200.0}
    samples = pd.concat(
        [
            pd.DataFrame({"policy": "float32", "utilization_frac": float("nan")} | read),
            pd.DataFrame({"policy": "mixed_float16", "utilization_frac": 0.9} | read),
        ]
    )
    caption = CAPTIONS["readings_by_time"](samples)
    assert caption.startswith("Utilization reaches 90 % in mixed_float16: ")


def test_the_least_and_the_most_memory_are_of_what_is_valid():
    rows = [record(width=width) for width in (1.0, 2.0, 3.0)]
    for row, times in zip(rows, (1, 2, 9), strict=True):
        row["peak_memory_bytes"] *= times
    rows[2]["changed"] = True
    caption = CAPTIONS["memory_by_batch_size"](tables(rows))
    assert caption.startswith(
        "From 1,024 MiB (float32, width 1) to 2,048 MiB (float32, width 2): medians over repeats, "
        "of what was measured at several batch sizes, where that is valid."
    )
    assert CAPTIONS["memory_by_batch_size"](tables(rows[2:])).startswith("On a CPU this is the")
