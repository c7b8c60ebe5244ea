"""Figures that do not follow from a record's own samples: made anew, with a digest that fits."""

import json
import shutil

import pytest
from support import PROJECT, mptexp

from mptexp.analysis import accuracy, sweep_tables
from mptexp.records import consistency, store, timed_windows
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import run_id

PUBLISHED = PROJECT / "reports/published/imagenette-64px-cpu"


def trained():
    """A real run that validated and learned something."""
    records = (json.loads(p.read_text()) for p in sorted(PUBLISHED.glob("runs/*/record.json")))
    return next(r for r in records if r.get("validated") and r["history"][-1]["accuracy"] > 0.2)


def signed(path, record):
    """Writes a record with a digest of its own, as whoever wants to deceive would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record["digest"] = store.digest(record)
    path.write_text(json.dumps(record))
    return path


def published():
    return sorted((PROJECT / "reports/published").glob("**/record.json"))


def test_what_runs_wrote_agrees_with_their_samples():
    records = [json.loads(path.read_text()) for path in published()]
    assert len(records) > 300
    assert [consistency.fault(record) for record in records if consistency.fault(record)] == []


def test_a_machine_with_next_to_no_processor_is_no_division_by_zero():
    record = trained()
    for sample in record["samples"]:
        sample["processors"] = 5e-324
    assert "other_load_frac" not in consistency.fault(record)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["timing"].update(step_s=1e-12), "timing.step_s is 1e-12, but"),
        (
            lambda r: r["timing"].update(
                step_s=r["timing"]["step_s"] / 2, images_per_s=r["timing"]["images_per_s"] * 2
            ),
            "follows from the record's samples",
        ),
        (lambda r: r["timing"].update(images_per_s=1e6), "timing.images_per_s is 1e+06, but"),
        (lambda r: [w.update(seconds=w["seconds"] / 2) for w in r["windows"]], "timing.step_s is"),
        (lambda r: r.update(fit_s=1.0), "fit_s is 1, but its windows took"),
        (lambda r: r["history"][-1].update(val_accuracy=0.9), "val_accuracy is 0.9, but"),
        (lambda r: r["history"][-1].update(val_accuracy=1.7), "val_accuracy: Input should be less"),
        (lambda r: r["timing"].update(step_ci=0.001), "timing.step_ci is 0.001, but"),
        (lambda r: r.update(windows=r["windows"][:8]), "follows from the record's samples"),
        (lambda r: r["timing"].update(warmup_steps=40), "timing.warmup_steps is 40, but"),
        (lambda r: r["timing"].update(steps_timed=10**6), "timing.steps_timed is 1e+06, but"),
        (
            lambda r: r["in_force"].update(validation_images=10**6),
            "validation_images is 1,000,000, but 3,925 images are listed",
        ),
        (lambda r: r["history"][-1].update(elapsed_s=-5.0), "history: -5 s follow 0 s"),
        (lambda r: r["history"][-1].update(elapsed_s=1e6), "s follow 1e"),
        (lambda r: r["windows"][3].update(seconds=-1.0), "windows.3.seconds: Input should be"),
        (lambda r: r["windows"][3].update(steps=0), "windows.3.steps: Input should be"),
    ],
)
def test_a_figure_that_the_samples_contradict_is_a_damaged_record(tmp_path, change, said):
    made = trained()
    path = SweepDir(tmp_path).record(made["run_id"])
    assert "changed" not in store.read_record(signed(path, made))
    change(made)
    with pytest.raises(RecordError, match=said.replace("+", r"\+")):
        store.read_record(signed(path, made))


def test_few_windows_do_not_pass_for_many():
    # The lie that was told: two windows were left of each run, with the interval of all of them.
    made = trained()
    warmup = made["timing"]["warmup_steps"]
    made["windows"] = made["windows"][: warmup + 2]
    windows = [timed_windows.Window(**window) for window in made["windows"]]
    again = timed_windows.timing(windows) | {"step_ci": made["timing"]["step_ci"]}
    again["images_per_s"] = made["parameters"]["batch_size"] / again["step_s"]
    made["timing"] |= again
    assert f"timing.step_ci is {again['step_ci']:.6g}" in consistency.fault(made)


def test_a_training_has_all_its_epochs():
    # The lie that was told: a policy that trained for fewer epochs, its time and accuracy compared.
    paths = (PROJECT / "reports/published/quickstart-cpu").glob("runs/*/record.json")
    made = json.loads(min(paths).read_text())
    assert consistency.fault(made) == ""
    del made["history"][1:-1]
    assert consistency.fault(made) == "history holds 2 epochs, but the run had 16"


def test_a_latency_is_the_median_of_the_latencies():
    made = {"parameters": {}, "latencies_s": [9.0, 0.1, 0.2, 0.3]}
    timing = {"latency_warmup": 1, "latency_p50_s": 0.2}
    assert consistency.fault(made | {"timing": timing}) == ""
    timing["latency_p50_s"] = 0.02
    assert "latency_p50_s is 0.02, but 0.2 follows" in consistency.fault(made | {"timing": timing})


def test_a_model_with_noise_of_its_own_gets_other_images_right_when_asked_again():
    made = trained()
    n = made["validated"]["images"]
    right = round(made["history"][-1]["val_accuracy"] * n)
    for off, contradicts in ((0, False), (int(0.02 * n), False), (int(0.2 * n), True)):
        bits = (1 << right + off) - 1 << (8 * -(-n // 8) - (right + off))
        made["validated"]["correct"] = f"{bits:0{2 * -(-n // 8)}x}"
        assert bool(consistency.fault(made)) == contradicts


def quantized_record(losses, **listed):
    """A published record of int4 whose quantized model has these losses of its sequences."""
    place = PROJECT / "reports/published/quantized-inference-gpt-cpu"
    records = (json.loads(p.read_text()) for p in sorted(place.glob("runs/*/record.json")))
    made = next(r for r in records if r["parameters"]["policy"] == "int4")
    images = made["in_force"]["validation_images"]
    for part, lost in zip(("before", "after"), losses, strict=True):
        own = made["quantized"][part]
        known = {"images": images, "digest": "a" * 12, "losses": [own["val_loss"] + lost] * images}
        own["validated"] = known | listed
    return made


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((0.0, 0.0), ""),
        ((0.0, 0.5), "quantized.after.val_loss is "),
        ((-0.5, 0.0), "quantized.before.val_loss is "),
    ],
)
def test_a_quantized_model_is_held_against_its_own_losses(losses, said):
    # The lie: "equal", beside lists of losses that are half a nat worse.
    found = consistency.fault(quantized_record(losses))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_second_list_hides_no_losses():
    made = quantized_record((0.0, 0.5), correct="ff" * 68)
    made["quantized"]["before"].pop("validated")
    assert consistency.fault(made).startswith("quantized.after.val_loss is ")


def test_a_quantized_model_is_held_against_its_own_images():
    made = trained()
    known, last = made["validated"], made["history"][-1]
    side = {"val_accuracy": last["val_accuracy"], "validated": known}
    made["quantized"] = {"before": side, "after": dict(side)}
    assert consistency.fault(made) == ""
    made["quantized"]["after"]["val_accuracy"] = 0.9
    assert consistency.fault(made).startswith("quantized.after.val_accuracy is 0.9, but ")
    made["quantized"]["after"] = side | {"validated": known | {"images": known["images"] - 1}}
    assert consistency.fault(made).startswith("quantized.after.validation_images is 3,925, but")


def test_losses_are_held_against_their_list_without_an_accuracy_too():
    made = {
        "parameters": {},
        "status": "ok",
        "history": [{"val_loss": 1.0}],
        "validated": {"images": 3, "digest": "a" * 12, "losses": [2.0] * 3},
    }
    assert consistency.fault(made) == "val_loss is 1, but the listed sequences have 2"


def test_a_report_leaves_out_times_that_were_made_up(tmp_path):
    # The lie that was told: "trains up to 1360612987934.79x faster", confirmed by --check.
    place = shutil.copytree(PUBLISHED, tmp_path / "made-up")
    for path in place.glob("runs/*/record.json"):
        made = json.loads(path.read_text())
        if made["parameters"]["policy"] == "mixed_bfloat16":
            made["timing"]["step_s"] = 1e-12
            signed(path, made)
    done = mptexp("report", "made-up", "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert "timing.step_s is 1e-12, but" in done.stdout


def test_a_block_that_was_copied_is_no_repeat(tmp_path):
    # The lie that was told: "1.07x faster [1.07, 1.07] (n = 3)" from one block under three ids.
    place = shutil.copytree(PROJECT / "reports/published/quickstart-cpu", tmp_path / "copied")
    records = [json.loads(path.read_text()) for path in place.glob("runs/*/record.json")]
    shutil.rmtree(place / "runs")
    for number, made in enumerate(r for r in records if r["parameters"]["block"] == 0):
        if number % 2:  # a time that is not recorded hides no copy
            made["readings"]["cpu_s"] = None
        for block in range(3):
            again = json.loads(json.dumps(made))
            again["parameters"] |= {"block": block, "seed": made["parameters"]["seed"] + block}
            again["run_id"] = run_id(again["parameters"], again["notebook"])
            signed(SweepDir(place).record(again["run_id"]), again)
    done = mptexp("report", "copied", "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert "Not valid: all figures of all runs: " in done.stdout
    assert sweep_tables.load(SweepDir(place)).speedups.claim_low.isna().all()


@pytest.mark.parametrize(
    ("labels", "change", "said"),
    [
        (None, {"chance_accuracy": 0.0}, "chance_accuracy is 0, which no class"),
        (None, {"chance_accuracy": 0.05002}, "chance_accuracy is 0.05002, which no class"),
        ([2000, 1925], {"chance_accuracy": 1 / 3925}, "chance_accuracy is 0.000254777, which no"),
        ([2000, 1925], {"chance_accuracy": 2000 / 3925}, ""),
        ([2000, 1000], {}, "validation_images is 3925, but 3,000 labels are counted"),
    ],
)
def test_the_accuracy_of_guessing_is_that_of_a_class(labels, change, said):
    # The lie: chance_accuracy 0, signed anew, and two policies at chance level are "equal".
    made = trained()
    made["in_force"] |= change | ({"validation_labels": labels} if labels else {})
    assert consistency.fault(made).startswith(said)
    assert bool(consistency.fault(made)) == bool(said)


def test_a_number_of_images_that_nothing_supports_claims_nothing(tmp_path):
    # The lie: 360 validation images of the quickstart said to be 36,000, of which no list is kept.
    place = shutil.copytree(PROJECT / "reports/published/quickstart-cpu", tmp_path / "many")
    for path in place.glob("runs/*/record.json"):
        made = json.loads(path.read_text())
        made["in_force"]["validation_images"] = 36000
        for part, name in ((made, "validated"), (made["in_force"], "validation_labels")):
            part.pop(name, None)
        signed(path, made)
    found = accuracy.differences(sweep_tables.load(SweepDir(place)))
    assert set(found.verdict) == {"images not recorded"}


def test_windows_that_were_picked_are_noticed():
    # The lie that was told: the slower half of one policy's windows is gone, 1.41x for 1.36x.
    made = trained()
    first, second, *others = made["windows"]
    made["windows"] = [first, *others]
    assert consistency._missing_windows(made) == "windows: step 2 follows step 0"
    made["windows"] = [first, *others, second]
    assert "follows step" in consistency._missing_windows(made)
    foreign = made | {"notebook": "foreign", "identity": None}  # a script may rest where it likes
    assert consistency._missing_windows(foreign) == ""


def test_what_the_sensors_saw_is_held_against_their_samples():
    # The lies that were told: the load of other programs set to nought, or the samples deleted.
    made = trained()
    assert consistency.fault(made) == ""
    known = made["readings"]["other_load_frac"]
    for place, sample in enumerate(made["samples"]):
        sample["busy_cpu_s"] += 0.25 * place
    assert f"other_load_frac is {known:.6g}, but the samples show 0." in consistency.fault(made)
    assert consistency.fault(made | {"samples": []}).startswith("samples: none of its sensors")


def test_a_load_beside_what_was_timed_is_no_contradiction():
    # An honest record of a short training was called damaged: the load lay in its compilation.
    made = trained()
    timed_s = sum(window["seconds"] for window in made["windows"])
    first = made["samples"][0]
    busy = 0.0
    made["samples"] = []
    for place in range(9):  # a second each; others compute in all gaps but those that were timed
        busy += 0.0 if place <= 1 + timed_s else first["processors"]
        made["samples"].append(first | {"time": float(place), "busy_cpu_s": busy, "own_cpu_s": 0.0})
    made["readings"]["other_load_frac"] = 0.0
    assert "other_load_frac" not in consistency.fault(made)
    for sample in made["samples"]:  # but not where they do in every gap
        sample["busy_cpu_s"] = sample["time"] * first["processors"]
    assert "other_load_frac is 0, but the samples show 1" in consistency.fault(made)


def test_a_copy_with_other_times_or_moments_is_no_repeat():
    # The lie that was told: one block as three, its times off by a percent: "[1.65, 1.72]".
    made = trained()
    made["measured_at"] = consistency.measured_at(made)
    made["history"] = [{"epoch": k, "loss": 1.0 / k, "val_loss": 2.0 / k} for k in (1, 2)]
    copy = json.loads(json.dumps(made)) | {"run_id": "another", "fit_s": 1.01 * made["fit_s"]}
    copy["timing"]["step_s"] *= 1.01
    copy["parameters"] |= {"block": 9, "seed": 9}
    assert consistency.repeated([made, copy]) == {made["run_id"], "another"}
    copy["measured_at"] = [time + 1000 for time in copy["measured_at"]]
    assert consistency.repeated([made, copy]) == {made["run_id"], "another"}
    copy["history"][0]["loss"] += 1e-7
    assert consistency.repeated([made, copy]) == set()


def test_when_a_run_was_measured_counts_the_sleep_of_the_machine():
    # The lie: to the clock that sensors are read by, no time passes while the machine sleeps.
    samples = [{"time": 100.0, "asleep_s": 3600.0}, {"time": 105.0, "asleep_s": 3600.0}]
    assert consistency.measured_at({"samples": samples}) == [3700.0, 3705.0]
    assert consistency.measured_at({"samples": [{"time": 100.0}, {"time": 5.0}]}) == [5.0, 100.0]
    assert consistency.measured_at({"samples": [{"time": "x"}, {}]}) == []
