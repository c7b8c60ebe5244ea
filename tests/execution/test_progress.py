import io
import time

import pytest
from rich.console import Console

from mptexp.execution import device_slots, plan, progress
from mptexp.execution.plan import Planned
from mptexp.execution.progress import CellBar, Output, Progress, duration, expected
from mptexp.spec.grid import Sweep

SWEEP = Sweep(matrix={"policy": ["float32", "bfloat16"]}, defaults={"epochs": 3})


def planned(*states):
    runs = SWEEP.runs()
    return [Planned(f"r{n}", run, s) for n, (run, s) in enumerate(zip(runs, states, strict=True))]


@pytest.mark.parametrize(
    ("seconds", "words"), [(40, "40 s"), (200, "3 min"), (9000, "2.5 h"), (89.6, "90 s")]
)
def test_a_duration_in_words(seconds, words):
    assert duration(seconds) == words


def test_a_line_per_run_says_what_tells_it_apart_and_what_is_left():
    console = Console(file=io.StringIO(), width=200)
    due = planned("pending", "pending")
    shown = Progress(console, due, SWEEP, plan.Costs(due, SWEEP))
    for one, status in zip(due, ("ok", "failed"), strict=True):
        shown.show(one, None)
        record = {"status": status, "error": "[red]odd[/]\x1b", "wall_s": 30.0}
        shown.show(one, record | {"timing": {"step_s": 0.002}})
    first, second = console.file.getvalue().splitlines()
    assert first.startswith(f"[1/2] policy {due[0].run.policy}")
    assert "2.00 ms/step   30.0 s, about 30 s left" in first
    assert second.endswith("failed: [red]odd[/]\\x1b")
    assert "epochs" not in first
    assert shown.ended == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_half_of_the_runs_have_is_named_of_all(order):
    # The lie: "block 0  155.74 ms" with XLA, and in the next block "block 1  172.12 ms" without.
    runs = [run.model_copy(update={"jit": jit}) for jit in ("on", "auto") for run in SWEEP.runs()]
    halves = [runs[:2], runs[2:]]
    shuffled = [*halves[order[0]], *halves[order[1]]]
    due = [Planned(f"r{n}", run, "pending") for n, run in enumerate(shuffled)]
    shown = Progress(Console(file=io.StringIO()), due, SWEEP, plan.Costs(due, SWEEP))
    assert all(f"jit {each.run.jit}" in shown._label(each) for each in due)


@pytest.mark.parametrize(("gpus", "replicas", "words"), [(1, 1, "20"), (4, 1, "10"), (4, 2, "20")])
def test_what_runs_side_by_side_is_announced_so(monkeypatch, gpus, replicas, words):
    # The lie: "about 80 min" on four devices, and then "about 20 min left".
    slots = [device_slots.Slot("A100", f"GPU-{k}") for k in range(gpus)]
    monkeypatch.setattr(device_slots, "slots", lambda: slots)
    sweep = SWEEP.model_copy(update={"expected_run_s": 600.0})
    due = [
        Planned(
            p.run_id,
            p.run.model_copy(update={"replicas": replicas, "gpu_model": "A100"}),
            "pending",
        )
        for p in planned("pending", "pending")
    ]
    costs = plan.Costs(due, sweep)
    assert expected(due, costs) == f"about {words} min"
    slots.append(device_slots.Slot("T4", "GPU-9"))  # which takes none of them
    assert expected(due, costs) == f"about {words} min"


def test_the_time_of_a_long_run_goes_on_while_it_works(monkeypatch):
    # The lie: "about 60 min left", until the last run of an hour had ended.
    clock, shown = [1000.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    due = planned("pending", "pending")
    hourly = SWEEP.model_copy(update={"expected_run_s": 3600.0})
    bar = Progress(Console(file=io.StringIO()), due, hourly, plan.Costs(due, hourly))
    bar.bar = lambda n, said: shown.append(said)
    bar.show(due[0], None)
    said = shown[-1]
    assert said().startswith("about 2.0 h left · policy")
    clock[0] += 1920
    assert said().startswith("about 88 min left")
    clock[0] += 3600  # longer than expected: the other still takes its own
    assert said().startswith("about 60 min left")


def test_what_is_done_and_what_is_elsewhere_are_said_apart():
    # The lie: "2 of 2 runs are done already or belong elsewhere", of which none was done.
    runs = [p.run.model_copy(update={"gpu_model": "A100"}) for p in planned("ok", "ok")]
    both = [Planned("r0", runs[0], "ok"), Planned("r1", runs[1], "elsewhere")]
    console = Console(file=io.StringIO(), width=20)
    Output(console).announce(both, None, plan.Costs(both, SWEEP))
    assert console.file.getvalue().splitlines() == [
        "1 of 2 runs are done already",
        "1 of 2 runs are for devices that this machine lacks (A100)",
    ]


def test_a_sweep_that_goes_on_knows_what_its_runs_cost():
    # The lie: "unknown time left", of a point whose other repeats had ended.
    done, due = planned("ok", "pending")
    done = Planned(done.run_id, due.run.model_copy(update={"block": 7, "seed": 7}), "ok", 45.0)
    shown = Progress(Console(file=io.StringIO()), [due], SWEEP, plan.Costs([done, due], SWEEP))
    shown.show(due, None)
    assert shown.shown.left() == "about 45 s"


@pytest.mark.parametrize("width", [40, 200])
def test_the_bar_on_a_terminal_says_what_holds_by_now(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    texts = iter(["about 60 min left [red]", *["about 59 min left"] * 99])
    with progress.bar(console, 3) as update:
        update(1, lambda: next(texts))
        time.sleep(1.5)
    drawn = console.file.getvalue()
    assert "about 60 min left [red]"[: width - 30] in drawn
    assert "about 59" in drawn


def test_a_cells_bar_is_text():
    assert repr(CellBar(4, 1, "waiting")) == "1/4 █████░░░░░░░░░░░░░░░ waiting"


def test_a_line_is_not_wrapped_and_shows_markup():
    console = Console(file=io.StringIO(), width=20)
    Output(console).say("a [bold]long[/] line that is wider than the terminal")
    assert console.file.getvalue().count("\n") == 1
    assert "[bold]" in console.file.getvalue()
