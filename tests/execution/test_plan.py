"""The state, the choice and the cost of runs."""

import io
import json
from importlib.util import find_spec

import pytest
from rich.console import Console
from support import mptexp

from mptexp.api import commands
from mptexp.errors import ParamsError
from mptexp.execution import directory, local_executor, plan
from mptexp.execution import sweep as sweep_execution
from mptexp.execution.local_executor import Execution
from mptexp.execution.progress import Output
from mptexp.host.devices import local_device
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.run import Run


def _plan(folder):
    sweep, _ = params.read(folder / "light.yaml")
    return plan.runs(sweep, SweepDir(folder / "reports/light"))


def _with_results(folder, planned, **more):
    """The directory of the sweep, with records of some of its runs."""
    place = SweepDir(folder / "reports/light")
    with directory.locked(place):
        directory.prepare(place, (folder / "light.yaml").read_text())
    for one in planned:
        known = {"schema": 1, "run_id": one.run_id, "parameters": one.run.model_dump()}
        store.write_record(place.record(one.run_id), known | {"error": ""} | more)
    return place


def _remaining_s(planned, sweep):
    return plan.remaining_s(planned, plan.Costs(planned, sweep))


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


def test_an_alternative_that_no_run_has_is_refused_beside_those_that_runs_have(light, tmp_path):
    # The lie: six float32 runs of `--only policy=float32 --only policy=int4`, and no word of int4.
    light({"batch_size": [8, 16]}, defaults={"policy": "float32"})
    planned = _plan(tmp_path)
    chosen = plan.select(planned, ["batch_size=8", "batch_size=0x8", "batch_size=16"])
    assert sorted(p.run.batch_size for p in chosen) == [8, 16]
    for absent in ("32", "None", "null"):
        with pytest.raises(ParamsError, match=f"^--only batch_size={absent}: no run has it; .*8$"):
            plan.select(planned, ["batch_size=8", f"batch_size={absent}"])


def test_an_alternative_that_the_other_filters_leave_no_run_of_is_refused():
    runs = [Run(policy="float32", batch_size=8), Run(policy="mixed_float16", batch_size=16)]
    planned = [plan.Planned(str(k), run, "pending") for k, run in enumerate(runs)]
    both = ["policy=float32", "policy=mixed_float16"]
    assert plan.select(planned, [*both, "batch_size=8", "batch_size=16"]) == planned
    for filters in ([*both, "batch_size=8"], ["batch_size=8", *both]):
        with pytest.raises(ParamsError, match="policy=mixed_float16: no run that the others leave"):
            plan.select(planned, filters)


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
    assert _remaining_s([first, second], sweep) == 80
    done = plan.Planned("r0", first.run, "ok", 5.0)
    assert _remaining_s([done, second], sweep) == 5.0
    assert _remaining_s([first], sweep.model_copy(update={"expected_run_s": None})) is None


def test_the_cost_of_an_unmeasured_point_is_not_that_of_the_first_run_alone(light, tmp_path):
    # "2.8 h left", after the first of a sweep of half an hour, which had its largest batch.
    light({"width": [1.0, 2.0, 4.0]}, expected_run_s=20)
    sweep, _ = params.read(tmp_path / "light.yaml")
    done = plan.Planned("r0", Run(width=4.0), "ok", 200.0)
    due = [plan.Planned(f"r{w}", Run(width=w), "pending") for w in (1.0, 2.0)]
    assert _remaining_s([done, *due], sweep) == 2 * (200 + 20) / 2


def test_the_cost_of_a_run_is_no_other_devices(light, tmp_path):
    # The lie: "about 54 s" of a CPU's runs, which were another machine's on its GPU.
    light({"width": [1.0]})
    sweep, _ = params.read(tmp_path / "light.yaml")
    there = plan.Planned("r0", Run(gpu_model="NVIDIA H200"), "ok", 9.0)
    here = plan.Planned("r1", Run(gpu_model="Some CPU (CPU)"), "pending")
    assert _remaining_s([there, here], sweep) is None
    usual = sweep.model_copy(update={"expected_run_s": 100})
    assert _remaining_s([there, here], usual) == 100


def test_what_is_chosen_costs_what_all_runs_tell(light, tmp_path, monkeypatch):
    # The lie: "2 runs, 2 to execute; time: unknown", below rows of "about 3 s" each.
    light({"policy": ["float32", "mixed_bfloat16"]}, repeats=2)
    baseline = [p for p in _plan(tmp_path) if p.run.policy == "float32"]
    place = _with_results(tmp_path, baseline, status="ok", wall_s=3.0)
    words = ("plan", "light.yaml", "--only", "policy=mixed_bfloat16")
    done = mptexp(*words, cwd=tmp_path)
    assert "2 runs, 2 to execute; about 6 s" in done.stdout
    told = json.loads(mptexp(*words, "--format", "json", cwd=tmp_path).stdout)
    assert told["expected_s"] == sum(run["cost_s"] for run in told["runs"]) == 6.0
    # What `run` announces of them, before it executes any.
    said, job = io.StringIO(), commands.open_sweep(tmp_path / "light.yaml", place.root)
    chosen = plan.select(_plan(tmp_path), words[3:])
    monkeypatch.setattr(local_executor, "execute", lambda due, job, how: iter(()))
    sweep_execution.execute_due(chosen, job, Execution(9.0), Output(Console(file=said)))
    assert "about 6 s" in said.getvalue()


def test_runs_that_no_device_here_can_execute_are_no_success(light, tmp_path):
    # The lie: "2 of 2 runs are done already or belong elsewhere", "due": 0 and exit status 0.
    path = light({"gpu_model": ["A100", "V100"]})
    done = mptexp("run", path, "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "error gpu_model A100, V100: this machine has no such device, and none of the" in (
        done.stderr
    )
    assert local_device() in done.stderr
    assert not (tmp_path / "reports").exists()
    done = mptexp("plan", path, cwd=tmp_path)  # which may be asked wherever one sits
    assert done.returncode == 0
    assert "this machine has no such device" in done.stdout
    assert "2 runs, 0 to execute, 2 for other devices\n" in done.stdout


def test_one_result_of_another_machine_makes_a_call_a_success(light, tmp_path):
    path = light({"gpu_model": ["A100", "V100"]})
    planned, _ = _plan(tmp_path)
    _with_results(tmp_path, [planned], status="oom", wall_s=2.0)
    done = mptexp("run", path, "--no-report", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"runs": 2, "done": 1, "due": 0, "elsewhere": 1, "searched": True}
    (other,) = {"A100", "V100"} - {planned.run.gpu_model}
    assert f"1 of 2 runs are for devices that this machine lacks ({other})" in done.stderr
    none = mptexp("run", path, "--no-report", "--only", f"gpu_model={other}", cwd=tmp_path)
    assert none.returncode == 2


def test_runs_of_other_devices_are_due_everywhere(light, tmp_path):
    light({"gpu_model": ["local", "V100"]})
    sweep, _ = params.read(tmp_path / "light.yaml")
    place = SweepDir(tmp_path / "reports/light")
    assert sorted(p.state for p in plan.runs(sweep, place)) == ["elsewhere", "pending"]
    assert [p.state for p in plan.runs(sweep, place, everywhere=True)] == ["pending", "pending"]
    assert json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)


def test_a_run_that_lacked_its_backend_is_tried_again_where_that_was_installed(
    light, tmp_path, monkeypatch
):
    if find_spec("torch") is not None:
        pytest.skip("PyTorch is installed here")
    light({"backend": ["torch"], "jit": ["auto", "on"]})
    lacked, refused = _plan(tmp_path)
    why = "torch is not installed; pip install torch"
    _with_results(tmp_path, [lacked], status="unsupported", error=why)
    why = "jit on is torch.compile under PyTorch, which needs Triton; take jit auto or off"
    _with_results(tmp_path, [refused], status="unsupported", error=why)
    assert [p.state for p in _plan(tmp_path)] == ["unsupported", "unsupported"]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert {p.run_id: p.due for p in _plan(tmp_path)} == {
        lacked.run_id: True,
        refused.run_id: False,
    }
