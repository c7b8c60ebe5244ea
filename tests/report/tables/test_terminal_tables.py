import io

import pandas as pd
import pytest
from rich.console import Console
from support import PROJECT

from mptexp.report.tables import terminal_tables
from mptexp.spec import params

ROW = {"run_id": "abc", "policy": "float32", "block": 0, "state": "pending", "cost_s": 12.4}


def printed(show, *given, width=100):
    console = Console(file=io.StringIO(), width=width)
    show(console, *given)
    return console.file.getvalue()


def test_a_plan_says_what_a_run_took_or_will_take():
    rows = [ROW, ROW | {"state": "ok"}, ROW | {"state": "failed"}, ROW | {"cost_s": None}]
    head, *lines = printed(terminal_tables.plan, rows).splitlines()
    assert head.split() == ["run", "policy", "block", "state", "cost"]
    assert [line.split(maxsplit=4)[4] for line in lines] == [
        "about 12 s",
        "12 s",
        "about 12 s",
        "?",
    ]


def test_a_plan_that_is_too_wide_is_without_ids_and_breaks_no_value():
    values = {"policy": "mixed_bfloat16", "weight_format": "bfloat16", "rounding": "stochastic"}
    row = {"run_id": "0123456789ab", **values, "block": 0, "state": "pending", "cost_s": 10.0}
    wide = printed(terminal_tables.plan, [row], width=100)
    narrow = printed(terminal_tables.plan, [row], width=70)
    assert row["run_id"] in wide
    assert row["run_id"] not in narrow
    *heads, line = narrow.splitlines()
    assert line.split() == [*values.values(), "0", "pending", "about", "10", "s"]
    assert [len(part) for part in heads] == [len(heads[0])] * len(heads)
    assert "".join(heads).split()[:2] == ["weight_", "policy"]


def test_a_large_plan_is_aligned_text_with_the_same_columns():
    plan = printed(terminal_tables.plan, [ROW] * (terminal_tables.MANY + 1))
    head, *lines = plan.splitlines()
    assert head.split() == ["run", "policy", "block", "state", "cost"]
    assert len(lines) == terminal_tables.MANY + 1
    assert {line.index("pending") for line in lines} == {head.index("state")}


def test_a_wide_tables_cells_are_stacked_and_no_interval_is_broken():
    table = pd.DataFrame(
        {"Point": ["[b]x[/]"], "Time, A | B": ["5.1 | 5.2"], "Ratio": ["1.0× [0.9, 1.1] (n = 3)"]}
    )
    wide = printed(terminal_tables.rows, "A and B", table)
    assert "5.1 | 5.2" in wide
    assert "[b]x[/]" in wide
    narrow = printed(terminal_tables.rows, "A and B", table, width=36)
    assert max(map(len, narrow.splitlines())) <= 36
    assert "[0.9, 1.1]" in narrow
    assert "5.1 |" not in narrow


def test_in_80_columns_headings_are_broken_and_no_unit_of_a_value():
    cells = {
        "Batch size": ["128"],
        "Policy": ["mixed_bfloat16"],
        "ms per step, A | B": ["14.33 | 14.20"],
        "A / B, above 1: B is faster": ["1.00× (no interval: one session each; n = 3, 3)"],
        "Accuracy, A | B": ["99.6 % | 99.6 %"],
        "Memory, A | B": ["815 MiB | 816 MiB"],
    }
    shown = printed(terminal_tables.rows, "A and B", pd.DataFrame(cells), width=80)
    for value in ("14.33", "99.6 %", "815 MiB", "816 MiB", "mixed_bfloat16"):
        assert value in shown
    assert "Batch " in shown.splitlines()[-4]


def test_a_machine_without_limits_or_driver_says_so():
    card = dict.fromkeys(["driver", "cuda", "cudnn", "capability", "governor"])
    card |= dict.fromkeys(["device", "tensor_cores", "cpu", "tf32", "determinism", "os"], "x")
    card |= {"cores": 2, "instruction_sets": [], "native": {"float16": False}, "load": 0.5}
    card |= {"default_policy": "float32", "memory_bytes": 2**33, "python": "3.11", "packages": {}}
    card |= {"variables": {}, "container_cpus": None, "container_memory_bytes": 2**30}
    lines = dict(terminal_tables.card_lines(card))
    assert lines["driver"] == "not found"
    assert lines["float16"] == "emulated or absent"
    assert lines["limits of the container"] == "1.0 GiB"
    assert lines["frequency governor"] == "unavailable"


@pytest.mark.parametrize("study", sorted(path.stem for path in (PROJECT / "params").glob("*.yaml")))
def test_each_line_of_a_plan_ends_in_its_whole_cost(study):
    # The lie: "about 9", of about 90 seconds: rich leaves out what has no room.
    sweep, _ = params.read(PROJECT / f"params/{study}.yaml")
    axes = list(sweep.matrix)
    rows = [
        {"run_id": "0123456789ab"}
        | {axis: point[axis] for axis in axes if axis in point}
        | {"block": 0, "state": "pending", "cost_s": 270.0}
        for point in sweep.points()
    ]
    rows = [row for row in rows if row.keys() == rows[0].keys()]
    lines = printed(terminal_tables.plan, rows, width=80).splitlines()
    ends = [line.rstrip().endswith(" pending  about 270 s") for line in lines]
    assert sum(ends) == len(rows)


def test_a_terminal_too_narrow_for_columns_leaves_nothing_out():
    table = pd.DataFrame(
        {
            "Policy": ["mixed_bfloat16"],
            "A / B, above 1: B is faster": ["0.94× (no interval: one session each; n = 3, 3)"],
            "Memory, A | B": ["875 MiB | 934 MiB"],
        }
    )
    said = " ".join(printed(terminal_tables.rows, "A and B", table, width=36).split())
    for name, (value,) in table.items():
        assert f"{name}: {value}" in said
