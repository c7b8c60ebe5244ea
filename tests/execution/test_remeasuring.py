"""What is compared is measured in one go: an interrupted block is begun anew, as a whole."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from support import PATIENCE_S, mptexp, processes_of, started, until

from mptexp.execution import remeasuring
from mptexp.execution.plan import Planned
from mptexp.host.devices import local_device
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

pytestmark = pytest.mark.usefixtures("forked_runs")


def planned(policy, state="ok", invocation="first", wall_s=5.0, block=0, **parameters):
    device = parameters.pop("gpu_model", local_device())
    run = Run(policy=policy, gpu_model=device, block=block, seed=block, **parameters)
    ended = state not in ("pending", "elsewhere")
    return Planned(run.run_id(), run, state, *((wall_s, invocation) if ended else ()))


def states(*runs, **how):
    return [p.state for p in remeasuring.begun_anew(runs, **how)]


AGAIN = "interrupted"


@pytest.mark.parametrize("left", ["pending", "damaged"])
def test_a_run_whose_partner_was_not_measured_is_measured_again(left):
    assert states(planned("float32"), planned("bfloat16", left)) == [AGAIN, left]
    # Another block, another batch size, another base seed: not compared with it.
    for others in ({"block": 1}, {"batch_size": 64}, {"learning_rate": 0.1}):
        assert states(planned("float32", **others), planned("bfloat16", left)) == ["ok", left]
    apart = planned("float32"), planned("bfloat16", left, backend="jax", jit="on")
    assert states(*apart) == [AGAIN, left]


def test_a_block_of_two_calls_is_not_whole():
    assert states(planned("float32"), planned("bfloat16", invocation="second")) == [AGAIN] * 2
    assert states(planned("float32"), planned("bfloat16")) == ["ok", "ok"]
    # Neither forms a ratio: it matters not when the second was tried.
    for ending in ("oom", "unsupported", "diverged"):
        other = planned("bfloat16", ending, invocation="second")
        assert states(planned("float32"), other) == ["ok", ending]


@pytest.mark.parametrize("ending", ["failed", "killed", "timeout"])
def test_a_run_that_failed_is_tried_first_alone(ending):
    assert states(planned("float32"), planned("bfloat16", ending)) == ["ok", ending]
    three = planned("float32"), planned("bfloat16", ending), planned("mixed_float16", "pending")
    assert states(*three) == [AGAIN, ending, "pending"]


def test_a_long_run_is_not_measured_again_unasked():
    long = planned("float32", wall_s=2400.0)
    assert states(long, planned("bfloat16", "pending")) == ["ok", "pending"]
    assert states(long, planned("bfloat16", "pending"), repair={long.run_id}) == [
        "flagged",
        "pending",
    ]


def test_another_machines_runs_are_not_ours_to_measure_again():
    theirs = [planned(p, gpu_model="V100", invocation=p) for p in ("float32", "bfloat16")]
    assert states(*theirs) == ["ok", "ok"]
    assert states(*theirs, everywhere=True) == [AGAIN, AGAIN]


def test_the_whole_comparison_is_repaired_and_no_other():
    one = [planned(p) for p in ("float32", "bfloat16")]
    other = [planned(p, block=1) for p in ("float32", "bfloat16")]
    again = states(*one, *other, repair={one[0].run_id})
    assert again == ["flagged", "flagged", "ok", "ok"]


# --- real runs -------------------------------------------------------------------------------

RUN = ("run", "light.yaml", "--no-report")


def run(folder, *words):
    return mptexp("run", *RUN[1:], *words, cwd=folder)


def measured(folder):
    place = SweepDir(folder / "reports/light")
    return store.read_records(place)[0], [
        store.read_record(path) for path in place.superseded.glob("*/record.json")
    ]


def contents(records):
    return sorted(store.digest(record) for record in records)


def test_an_interrupted_block_is_begun_anew_and_what_it_had_is_kept(light, gate, tmp_path):
    light({"policy": ["float32", "bfloat16"], "seed": [13]}, repeats=2)
    gate.let(3)
    with started(*RUN, cwd=tmp_path) as sweep:
        while "[3/4]" not in (line := sweep.stdout.readline()):
            assert line
        until(gate.waiting)
        # The lie: of the block that is being measured at this moment, that it was interrupted.
        done = mptexp("plan", "light.yaml", cwd=tmp_path)
        assert "light: another mptexp command is at work here" in done.stdout + done.stderr
        assert [r["state"] for r in planned_runs(tmp_path)] == ["ok"] * 3 + ["pending"]
        sweep.send_signal(signal.SIGKILL)
    until(lambda: not processes_of(tmp_path))
    assert "at work" not in mptexp("plan", "light.yaml", cwd=tmp_path).stderr
    before, none = measured(tmp_path)
    assert (len(before), none) == (3, [])
    states = [r["state"] for r in planned_runs(tmp_path)]
    assert sorted(states) == ["interrupted", "ok", "ok", "pending"]

    # Stopped again, after one of the two: then that one's turn is lost as well.
    gate.let(1)
    with started(*RUN, cwd=tmp_path) as sweep:
        output = [sweep.stdout.readline() for _ in range(4)]
        until(gate.waiting)
        sweep.send_signal(signal.SIGINT)
        sweep.communicate(timeout=PATIENCE_S)
    assert "1 of them is measured again: the block was interrupted" in "".join(output)
    gate.let(2)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    after, superseded = measured(tmp_path)
    calls = {(r["parameters"]["block"], r["invocation"]) for r in after}
    assert len(after) == 4
    assert len(calls) == 2  # a call for each block
    kept = {r["parameters"]["block"] for r in superseded}
    assert len(kept) == 1
    assert set(contents(before)) <= set(contents([*after, *superseded]))
    assert "4 of 4 runs are done already" in run(tmp_path).stdout


def planned_runs(folder, *words):
    done = mptexp("plan", "light.yaml", "--format", "json", *words, cwd=folder)
    return json.loads(done.stdout)["runs"]


def test_a_run_that_failed_and_then_ends_well_brings_its_block_with_it(light, gate, tmp_path):
    light({"policy": ["float32", "bfloat16"], "seed": [13]})
    gate.let(1)
    with started(*RUN, cwd=tmp_path) as sweep:
        while "[1/2]" not in (line := sweep.stdout.readline()):
            assert line
        until(gate.waiting)
        for pid in gate.waiting():
            os.kill(pid, signal.SIGKILL)
        assert sweep.wait(PATIENCE_S) == 1
    before, _ = measured(tmp_path)
    assert sorted(r["status"] for r in before) == ["killed", "ok"]
    gate.let(3)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    after, superseded = measured(tmp_path)
    assert [r["status"] for r in after] == ["ok", "ok"]
    assert len({r["invocation"] for r in after}) == 1
    assert len(superseded) == 2  # the finished partner, and the run that was tried alone


def test_repair_measures_a_flagged_comparison_again_as_a_whole(light, tmp_path):
    light({"policy": ["float32", "bfloat16"]}, repeats=2)
    assert run(tmp_path).returncode == 0
    place = SweepDir(tmp_path / "reports/light")
    before, _ = measured(tmp_path)
    assert {r["state"] for r in planned_runs(tmp_path, "--repair")} == {"ok"}
    flagged = before[0]
    marks = ["measured while other programs used the processor"]
    store.amend_record(place.record(flagged["run_id"]), flagged, marks=marks)
    block = flagged["parameters"]["block"]
    again = [r for r in planned_runs(tmp_path, "--repair") if r["state"] == "flagged"]
    assert [r["parameters"]["block"] for r in again] == [block, block]
    assert {r["state"] for r in planned_runs(tmp_path)} == {"ok"}

    # Of one policy alone, the comparison is measured as a whole nevertheless.
    done = run(tmp_path, "--repair", "--only", "policy=float32")
    assert done.returncode == 0, done.stderr
    assert "2 of them are measured again: the comparison is not valid" in done.stdout
    after, superseded = measured(tmp_path)
    assert {r["run_id"] for r in superseded} == {r["run_id"] for r in again}
    assert not any(r.get("marks") for r in after)
    others = [r for r in before if r["parameters"]["block"] != block]
    assert set(contents(others)) <= set(contents(after))
    done = run(tmp_path, "--repair")
    assert "no run has a flag that another measurement could cure" in done.stdout
    assert run(tmp_path, "--repair", "--fresh").returncode == 2


def test_what_changed_since_the_runs_that_are_there_is_named_before_others_run(
    light, tree, tmp_path, monkeypatch
):
    # Of images of one's own: records name their folder by its last part alone.
    dataset = [f"folder:{tree}"]
    light({"policy": ["float32", "bfloat16"], "batch_size": [2, 4], "dataset": dataset})
    assert run(tmp_path, "--only", "batch_size=2").returncode == 0
    place = SweepDir(tmp_path / "reports/light")
    below_home = str(Path.home() / "malloc")  # of which a record has no home
    monkeypatch.setenv("MALLOC_CONF", below_home)
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # of the tests themselves
    for record in measured(tmp_path)[0]:
        variables = {"XLA_FLAGS": "--xla_cpu_fast", "MALLOC_CONF": below_home}
        known = {"code": "older", "cores": 999, "variables": variables}
        store.amend_record(place.record(record["run_id"]), record, identity=known)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    named = [line for line in done.stdout.splitlines() if "is not what it was" in line]
    for words in ("the code of mptexp (older against ", "the number of cores (999 against "):
        assert sum(words in line for line in named) == 1
    assert any("XLA_FLAGS (--xla_cpu_fast against none)" in line for line in named)
    assert len(named) == 3
    assert done.stdout.index("is not what it was") < done.stdout.index("[1/2]")
    assert "is not what it was" not in run(tmp_path).stdout  # nothing is due
    assert "is not what it was" not in run(tmp_path, "--fresh").stdout


def test_a_model_and_images_that_changed_after_a_sweep_are_named_though_no_run_is_due(
    light, tmp_path
):
    # "2 of 2 runs are done already", beside another model, and other images.
    for number in range(20):
        file = tmp_path / f"data/{'ab'[number % 2]}/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((9, 9, 3), 10 * number, "uint8")).save(file)
    images = {"dataset": ["folder:data"], "image_size": [9], "batch_size": [1]}
    own = tmp_path / "own.py"
    layers = "keras.layers.Flatten(), keras.layers.Dense(classes)"
    built = f"keras.Sequential([keras.Input(shape), {layers}])"
    own.write_text(f"import keras\n\n\ndef build(shape, classes):\n    return {built}\n")
    asked = {"policy": ["float32", "bfloat16"], "model": ["own:build"], "from_logits": [True]}
    light(asked | images)
    assert run(tmp_path).returncode == 0
    assert "is not what it was" not in run(tmp_path).stdout
    place = SweepDir(tmp_path / "reports/light")
    for record in measured(tmp_path)[0]:
        known = {"model_source": "another", "data": "others"}
        earlier = record | {"ended_at": "2020-01-01T00:00:00+00:00"}
        store.amend_record(place.record(record["run_id"]), earlier, identity=known)
    done = run(tmp_path)
    assert "the source of the model (another against " in done.stdout
    assert "the content of the data (others against " in done.stdout
    assert "2 of 2 runs are done already" in done.stdout
    own.unlink()  # as of a sweep of somebody else's
    done = run(tmp_path)
    assert (done.returncode, "is not what it was" in done.stdout) == (0, False)


def test_what_a_kill_left_between_two_renamings_is_not_lost(light, tmp_path):
    light({"seed": [0]})
    assert run(tmp_path).returncode == 0
    before, _ = measured(tmp_path)
    place = SweepDir(tmp_path / "reports/light")
    place.partial.mkdir(exist_ok=True)
    (place.runs / before[0]["run_id"]).rename(place.partial / before[0]["run_id"])
    done = run(tmp_path)
    assert "1 of 1 runs are done already" in done.stdout
    assert contents(measured(tmp_path)[0]) == contents(before)


def test_discarding_takes_the_superseded_runs_too(light, tmp_path):
    light({"seed": [0]})
    assert run(tmp_path).returncode == 0
    place = SweepDir(tmp_path / "reports/light")
    (folder,) = place.runs.iterdir()
    (place.superseded / f"{folder.name}-12345678").mkdir(parents=True)
    assert run(tmp_path, "--fresh").returncode == 0
    assert not any(place.superseded.iterdir())
