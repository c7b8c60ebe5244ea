import json
import math
from dataclasses import replace

import pytest

from mptexp.records.sweep_dir import SweepDir
from mptexp.records.timed_windows import Window
from mptexp.spec.run import Run
from mptexp.traces import xplane
from mptexp.training import record
from mptexp.training.numerics import emulation
from mptexp.training.outcome import Outcome

OUTCOME = Outcome(
    Run(),
    {},
    [],
    [{"epoch": 1, "loss": 0.5}],
    {"images_per_s": 100.0},
    None,
    1.0,
    card={"kind": "gpu", "clean": True},
    sensors={"power_w": 50.0},
    samples=[{"own_cpu_s": 1.0}, {"own_cpu_s": 3.5}],
)


def test_an_error_says_in_which_epoch_and_where():
    assert record._error(OUTCOME) == ""
    epochs = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": math.nan}]
    diverged = replace(OUTCOME, epochs=epochs, diverged={"sentence": "in step 3", "step": 3})
    assert record._error(diverged) == "the loss was not finite in epoch 2; in step 3"


def test_an_error_names_the_layer_whose_weights_broke():
    broken = replace(OUTCOME, broken_layer="dense", diverged={"sentence": "in step 3"})
    assert record._error(broken) == (
        "the weights of dense were not finite after the training, though the loss was; in step 3"
    )


def test_energy_per_image_is_of_one_gpu_only():
    assert record._sensors(OUTCOME)["energy_per_image_j"] == pytest.approx(0.5)
    assert record._sensors(OUTCOME)["cpu_s"] == pytest.approx(2.5)
    several = replace(OUTCOME, run=Run(replicas=2))
    assert record._sensors(several)["energy_per_image_j"] is None
    silent = replace(OUTCOME, samples=[], sensors={"power_w": None})
    assert record._sensors(silent)["energy_per_image_j"] is None
    assert math.isnan(record._sensors(silent)["cpu_s"])


def test_flags_say_how_the_run_was_made():
    assert record._flags(OUTCOME) == []
    unclean = replace(OUTCOME, run=Run(replicas=2), card={"kind": "cpu", "clean": False})
    assert record._flags(unclean)[0].startswith("made from a tree")
    assert record._flags(unclean)[1] == record.LOGICAL
    slower = replace(OUTCOME, card={"kind": "cpu", "clean": True, "onednn": False})
    assert "TF_ENABLE_ONEDNN_OPTS=1 in the environment turns it on" in record._flags(slower)[0]
    emulated = replace(OUTCOME, run=Run(weight_format="<4,8>"))
    assert record._flags(emulated) == [emulation.NOTE]


def test_a_trace_lies_beside_its_record_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(record, "record", lambda outcome, notebook: {"notebook": notebook})
    traced = replace(OUTCOME, trace=b"trace")
    assert record.save(traced) == tmp_path / "record.json"
    assert (tmp_path / xplane.FILE).read_bytes() == b"trace"
    record.save(OUTCOME)
    assert not (tmp_path / xplane.FILE).exists()


def test_by_hand_a_record_goes_into_the_project(monkeypatch):
    monkeypatch.delenv("MPTEXP_RUN_DIR", raising=False)
    assert record._interactive().parts[-2:] == ("reports", "interactive")


def test_a_run_by_hand_says_when_it_ended_and_keeps_what_was_there(monkeypatch, tmp_path):
    # Days apart, and measured until it pleased: nothing said so.
    monkeypatch.delenv("MPTEXP_RUN_DIR", raising=False)
    monkeypatch.setattr(record, "_interactive", lambda: tmp_path)
    run = Run().resolved()
    times = iter((1.0, 2.0))
    monkeypatch.setattr(
        record,
        "record",
        lambda outcome, notebook: {
            "run_id": run.run_id(),
            "status": "ok",
            "parameters": run.model_dump(),
            "timing": {"step_s": next(times)},
            "fit_s": 3.0,
        },
    )
    place = SweepDir(tmp_path)
    for _ in range(2):
        path = record.save(OUTCOME)
        assert path == place.record(run.run_id())
        assert {"ended_at", "wall_s"} <= json.loads(path.read_text()).keys()
    assert place.superseded_runs() == 1
    assert not place.partial.exists()


def test_steps_of_which_every_fourth_stalls_are_marked():
    # The lie: 563 mJ an image, by the median step, of a training that took 1266.
    def marks(*seconds):
        windows = [Window(k, 1, s) for k, s in enumerate(seconds)]
        return record._unequal(replace(OUTCOME, windows=windows))

    assert marks(*[0.1] * 40) == []
    (said,) = marks(*[0.1, 0.1, 0.1, 0.4] * 10)
    assert said.startswith("its steps are unequal: on average they take ")
    assert record._unequal(replace(OUTCOME, windows=[])) == []
