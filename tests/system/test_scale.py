"""What is done for every run is done once: twice the runs take twice the work, not four times."""

import cProfile
import io

import pytest
from builders import many, tables
from rich.console import Console

from mptexp.diagnosis import verdict
from mptexp.execution import plan
from mptexp.execution.progress import Progress
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import findings
from mptexp.report.tables import text_tables
from mptexp.spec import params


def counted(work, *given):
    """How many calls of functions something takes, unlike seconds always the same; its result."""
    profile = cProfile.Profile()
    made = profile.runcall(work, *given)
    return sum(entry.callcount for entry in profile.getstats()), made


def calls(work, *given):
    return counted(work, *given)[0]


def planned(folder, rates):
    path = folder / "x.yaml"
    axis = ", ".join(f"{k / 1e6:f}" for k in range(1, rates + 1))
    path.write_text(
        f"matrix: {{learning_rate: [{axis}], policy: [float32, mixed_float16]}}\n"
        "exclude: [{learning_rate: 0.000001}, {learning_rate: 0.000002, policy: float32}]\n"
        "include: [{batch_size: 64}]\nrepeats: 2\n"
    )
    sweep, _ = params.read(path)
    runs = plan.runs(sweep, SweepDir(folder / "out"))
    assert len(runs) == 2 * (2 * rates - 2)
    return sweep, runs


def executed(sweep, runs):
    """What a sweep shows of the runs, as they start and end."""
    costs = plan.Costs(runs, sweep)
    progress = Progress(Console(file=io.StringIO()), runs, sweep, costs)
    for run in runs[:20]:
        progress.show(run, None)
        progress.show(run, {"status": "failed", "error": "", "wall_s": 2.0})
    assert plan.remaining_s(runs, costs) is None


def test_planning_takes_time_in_proportion_to_the_runs(tmp_path):
    planned(tmp_path, 10)  # what is done once is done
    few, twice = (calls(planned, tmp_path, rates) for rates in (150, 300))
    assert twice < 2.2 * few


def test_estimating_takes_time_in_proportion_to_the_runs(tmp_path):
    few, twice = (calls(executed, *planned(tmp_path, rates)) for rates in (150, 300))
    assert twice < 2.2 * few


def sentences(place, measured):
    findings.answer(measured)
    text_tables.headline_rows(measured)
    text_tables.best_rows(measured)
    verdict.verdicts(place, measured)


@pytest.fixture(scope="module")
def grown():
    """The tables of some points, of more and of twice those, each behind the calls that it took."""
    return [counted(tables, many(2, widths)) for widths in (10, 35, 70)]


def test_tables_take_time_in_proportion_to_the_points(grown):
    (_, some), (few, _), (twice, _) = grown
    assert twice < 2.2 * few
    assert len(some.speedups) == 30


def test_sentences_take_time_in_proportion_to_the_points(grown, tmp_path):
    _, few, twice = (calls(sentences, SweepDir(tmp_path), made) for _, made in grown)
    assert twice < 2.2 * few
