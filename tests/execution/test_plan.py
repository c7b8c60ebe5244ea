"""The state, the choice and the cost of runs."""

import json

import pytest
from support import mptexp

from mptexp.errors import ParamsError
from mptexp.execution import directory, plan
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.run import Run


def _plan(folder):
    sweep, _ = params.read(folder / "light.yaml")
    return plan.runs(sweep, SweepDir(folder / "reports/light"))


def test_another_machines_points_are_elsewhere_and_get_no_record(light, tmp_path):
    light({"gpu_model": ["local", "Tesla V100"]})
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0
    states = {p.run.gpu_model: p.state for p in _plan(tmp_path)}
    assert states["Tesla V100"] == "elsewhere"
    assert sorted(states.values()) == ["elsewhere", "ok"]
    assert len(list((tmp_path / "reports/light/runs").iterdir())) == 1


def test_another_machines_failed_run_stays_that_machines(light, tmp_path):
    light({"gpu_model": ["Tesla V100"]})
    (planned,) = _plan(tmp_path)
    place = SweepDir(tmp_path / "reports/light")
    parameters = planned.run.model_dump()
    record = {"schema": 1, "run_id": planned.run_id, "parameters": parameters, "error": ""}
    for status, state in (("timeout", "elsewhere"), ("ok", "ok")):
        store.write_record(place.record(planned.run_id), record | {"status": status})
        assert [(p.state, p.due) for p in _plan(tmp_path)] == [(state, False)]
    directory.discard(_plan(tmp_path), place)
    assert place.record(planned.run_id).exists()


def test_a_damaged_record_is_due_again(light, tmp_path):
    light({"seed": [0]})
    (planned,) = _plan(tmp_path)
    path = SweepDir(tmp_path / "reports/light").record(planned.run_id)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (planned,) = _plan(tmp_path)
    assert (planned.state, planned.due, planned.wall_s) == ("damaged", True, None)


def test_state_and_seconds_are_those_of_the_record(light, tmp_path):
    light({"seed": [0, 1, 2]})
    place = SweepDir(tmp_path / "reports/light")
    failed, good, pending = (p.run_id for p in _plan(tmp_path))
    for planned in _plan(tmp_path)[:2]:
        known = {"schema": 1, "run_id": planned.run_id, "parameters": planned.run.model_dump()}
        known |= {"status": "ok", "error": "", "wall_s": 2.0}
        store.write_record(place.record(planned.run_id), known)
    changed = store.read_record(place.record(failed))
    changed |= {"status": "failed", "wall_s": 7.0, "invocation": "a"}
    store.write_record(place.record(failed), changed)
    states = {p.run_id: (p.state, p.wall_s, p.invocation) for p in _plan(tmp_path)}
    assert states[failed] == ("failed", 7.0, "a")
    assert states[good] == ("ok", 2.0, "")
    assert states[pending] == ("pending", None, "")


@pytest.mark.parametrize(
    ("filters", "words"),
    [(["epochs=9"], "its values here: 20"), (["epoch=9"], "allowed names"), (["x"], "key=value")],
)
def test_filters_that_match_nothing_are_refused(light, tmp_path, filters, words):
    light({"seed": [0]})
    with pytest.raises(ParamsError, match=words):
        plan.select(_plan(tmp_path), filters)


def test_filters_read_values_as_the_file_does(light, tmp_path):
    light({"learning_rate": [0.001, 0.01], "loss_scale": [128, "none"]})
    kept = plan.select(_plan(tmp_path), ["learning_rate=1e-3", "loss_scale=128"])
    assert [(p.run.learning_rate, p.run.loss_scale) for p in kept] == [(0.001, 128.0)]


def test_a_filter_needs_no_value_of_another_parameter(light, tmp_path):
    # The lie: --only tied_head=false was told "no run has it; its values here: False, True".
    light({"model": ["gpt"], "dataset": ["hamlet"], "tied_head": [True, False]})
    kept = plan.select(_plan(tmp_path), ["tied_head=false"])
    assert [p.run.tied_head for p in kept] == [False]
    runs = [Run(model="my_models:build", from_logits=True), Run(batch_size=33, replicas=3)]
    planned = [plan.Planned(str(k), run, "pending") for k, run in enumerate(runs)]
    assert [p.run_id for p in plan.select(planned, ["from_logits=true"])] == ["0"]
    assert [p.run_id for p in plan.select(planned, ["replicas=0x3"])] == ["1"]


def test_a_filter_knows_a_folder_by_all_its_names_and_by_no_part_of_one(tmp_path, monkeypatch):
    # The lie: --only 'dataset=folder:pics #2' measured folder:pics.
    monkeypatch.setenv("HOME", str(tmp_path))
    places = ("~/pics", "~/pics #2", "~/pics ")
    planned = [plan.Planned(p, Run(dataset=f"folder:{p}"), "pending") for p in places]
    for given, meant in zip((f"{tmp_path}/pics", *places), ("~/pics", *places), strict=True):
        assert [p.run_id for p in plan.select(planned, [f"dataset=folder:{given}"])] == [meant]
    with pytest.raises(ParamsError, match=r"--only dataset=folder:~/x: no run .* folder:~/pics,"):
        plan.select(planned, ["dataset=folder:~/x"])


def test_the_cost_of_a_run_is_that_of_its_point(light, tmp_path):
    light({"seed": [0]}, repeats=2, expected_run_s=40)
    sweep, _ = params.read(tmp_path / "light.yaml")
    first, second = (plan.Planned(f"r{k}", Run(block=k, seed=k), "pending") for k in (0, 1))
    assert plan.remaining_s([first, second], sweep) == 80
    done = plan.Planned("r0", first.run, "ok", 5.0)
    assert plan.remaining_s([done, second], sweep) == 5.0
    assert plan.remaining_s([first], sweep.model_copy(update={"expected_run_s": None})) is None


def test_the_cost_of_an_unmeasured_point_is_not_that_of_the_first_run_alone(light, tmp_path):
    # "2.8 h left", after the first of a sweep of half an hour, which had its largest batch.
    light({"width": [1.0, 2.0, 4.0]}, expected_run_s=20)
    sweep, _ = params.read(tmp_path / "light.yaml")
    done = plan.Planned("r0", Run(width=4.0), "ok", 200.0)
    due = [plan.Planned(f"r{w}", Run(width=w), "pending") for w in (1.0, 2.0)]
    assert plan.remaining_s([done, *due], sweep) == 2 * (200 + 20) / 2


def test_the_cost_of_a_run_is_no_other_devices(light, tmp_path):
    # The lie: "about 54 s" of a CPU's runs, which were another machine's on its GPU.
    light({"width": [1.0]})
    sweep, _ = params.read(tmp_path / "light.yaml")
    there = plan.Planned("r0", Run(gpu_model="NVIDIA H200"), "ok", 9.0)
    here = plan.Planned("r1", Run(gpu_model="Some CPU (CPU)"), "pending")
    assert plan.remaining_s([there, here], sweep) is None
    usual = sweep.model_copy(update={"expected_run_s": 100})
    assert plan.remaining_s([there, here], usual) == 100


def test_runs_of_other_devices_are_due_everywhere(light, tmp_path):
    light({"gpu_model": ["local", "V100"]})
    sweep, _ = params.read(tmp_path / "light.yaml")
    place = SweepDir(tmp_path / "reports/light")
    assert sorted(p.state for p in plan.runs(sweep, place)) == ["elsewhere", "pending"]
    assert [p.state for p in plan.runs(sweep, place, everywhere=True)] == ["pending", "pending"]
    assert json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)
