import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import mptexp

from mptexp.api import commands
from mptexp.execution import max_batch, supervisor, sweep
from mptexp.execution.local_executor import Execution
from mptexp.execution.progress import Output
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.run import Run

pytestmark = pytest.mark.usefixtures("forked_runs")

LARGEST = {"float32": 56, "mixed_float16": 80}
# A batch that is too large takes far more memory than a run may have, until the run is ended for
# it; one that fits takes next to none: what the process holds besides, and when, decides nothing.
GREEDY = f"""
import numpy as np
if run.batch_size > {LARGEST}[run.policy]:
    block = np.ones(900_000_000, np.uint8)
    time.sleep(600)
"""


@given(st.integers(1, 5000), st.integers(1, 512))
def test_the_largest_is_found_to_within_an_eighth_in_few_attempts(limit, start):
    tried = {}
    while size := max_batch.next_size(tried, start):
        assert size not in tried
        tried[size] = size <= limit
    found = max((size for size, fits in tried.items() if fits), default=0)
    assert found <= limit
    assert found == 0 or limit < found * 1.125 + 1
    assert found > 0 or start > limit
    assert len(tried) < 24


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 9))
def test_every_attempt_can_be_shared_by_the_replicas(limit, start, replicas):
    base, tried = Run(batch_size=start * replicas, replicas=replicas), {}
    while size := max_batch._next(tried, base):
        assert size % replicas == 0
        assert size not in tried
        tried[size] = size <= limit


def test_nothing_fits():
    assert max_batch.next_size({4: False, 2: False, 1: False}, 4) is None


def test_the_search_ends_at_the_most_that_a_run_may_have():
    assert max_batch.next_size({2**20: True}, 2**20) is None
    assert max_batch.next_size({}, 32) == 32


@pytest.fixture
def greedy(light):
    """A sweep in which a batch of more images than LARGEST takes more memory than it may."""
    path = light(
        "{policy: [float32, mixed_float16], batch_size: [16, 32]}",
        max_batch="true",
        defaults="{memory_limit_gb: 0.6}",
        expected_run_s="2",
    )
    notebook = path.parent / "light.py"
    text = notebook.read_text()
    notebook.write_text(text.replace("ending = [", f"{GREEDY}\nending = ["))
    return path


def test_a_search_measures_every_policy_at_its_largest_batch(greedy):
    folder = greedy.parent
    done = mptexp("run", greedy, "--out", "out", "--no-report", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    place = SweepDir(folder / "out")
    attempts, _ = store.read_records(place.search)
    by_status = {r["status"] for r in attempts}
    assert by_status == {"ok", "oom"}
    out = [r for r in attempts if r["status"] == "oom"]
    assert all("more than memory_limit_gb 0.6 allows" in r["error"] for r in out)
    found, _ = params.read(greedy)
    further = max_batch.points(found, place)
    assert {run.policy: run.batch_size for run in further} == LARGEST
    for policy, largest in LARGEST.items():
        too_large = [
            r["parameters"]["batch_size"] for r in out if r["parameters"]["policy"] == policy
        ]
        assert largest < min(too_large) <= largest * 9 / 8
    records, _ = store.read_records(place)
    assert {r["parameters"]["batch_size"] for r in records} == {16, 32} | {
        run.batch_size for run in further
    }
    # Again: nothing is left to do.
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("record.json")}
    again = mptexp("run", greedy, "--out", "out", "--no-report", cwd=folder)
    assert again.returncode == 0
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "out").rglob("record.json")}
    plan = mptexp("plan", greedy, "--out", "out", "--format", "json", cwd=folder)
    assert len(json.loads(plan.stdout)["runs"]) == 6


def test_an_attempt_that_fails_ends_its_search_and_is_tried_again(light):
    path = light("{seed: [1]}", max_batch="true", defaults="{memory_limit_gb: 4.0}")  # raises
    done = mptexp("run", path, "--out", "out", "--no-report", cwd=path.parent)
    assert done.returncode == 1
    assert "the search for the largest batch did not end" in done.stdout
    found, _ = params.read(path)
    assert max_batch.points(found, SweepDir(path.parent / "out")) == []


def test_attempts_are_short():
    run = max_batch.attempt(Run(target_ci=0.01, max_steps=500), 64)
    assert (run.batch_size, run.max_steps, run.target_ci) == (64, max_batch.STEPS, None)


def test_a_search_that_would_end_with_the_machines_memory_is_refused(light):
    path = light("{policy: [float32]}", max_batch="true")
    for command in ("plan", "run"):
        done = mptexp(command, path, cwd=path.parent)
        assert done.returncode == 2
        assert "max_batch: on a CPU" in done.stderr
        assert "memory_limit_gb" in done.stderr
    assert not (path.parent / "reports").exists()


def test_only_what_is_asked_for_is_searched_and_forgotten(greedy):
    folder = greedy.parent

    def searched():
        found, _ = store.read_records(SweepDir(folder / "out").search)
        return {r["parameters"]["policy"] for r in found}

    command = ("run", greedy, "--out", "out", "--no-report", "--only", "batch_size=16")
    assert mptexp(*command, "--only", "policy=float32", cwd=folder).returncode == 0
    assert searched() == {"float32"}
    found, _ = params.read(greedy)
    runs = [Run(**point).resolved() for point in found.points()]
    mixed = [run for run in runs if run.policy == "mixed_float16"]
    max_batch.forget(found, mixed, SweepDir(folder / "out"))
    assert searched() == {"float32"}
    max_batch.forget(found, runs, SweepDir(folder / "out"))
    assert searched() == set()


def test_what_is_not_supported_is_tried_once():
    lacks = {"status": "unsupported", "error": "tensorfloat32 needs an NVIDIA GPU"}
    assert max_batch.next_size(max_batch._result(128, lacks), 128) is None
    short = {"status": "unsupported", "error": "batch_size 128 and epochs 1 leave 3 steps"}
    assert max_batch.next_size(max_batch._result(128, short), 128) == 64
    assert max_batch._result(128, {"status": "killed", "error": ""}) == {128: None}


def test_an_attempt_has_the_time_limit_of_the_call(light, tmp_path, monkeypatch):
    # The lie: `run --timeout` ended no attempt of the search.
    path = light("{seed: [0]}", max_batch="true", defaults="{memory_limit_gb: 1.0}")
    limits = []

    def attempted(run, notebook, name, directory, timeout_s, *rest):
        limits.append(timeout_s)
        return {"status": "timeout", "error": "too long"}

    monkeypatch.setattr(supervisor, "execute", attempted)
    job = commands.open_sweep(path, tmp_path / "out")
    assert not sweep._search(job, commands.planned(job)[0], False, Execution(3.0), Output())
    assert limits == [3.0]
