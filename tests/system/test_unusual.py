"""Sweeps that are valid and unusual: what is said of them is true, and nothing breaks."""

from dataclasses import replace

import pandas as pd
import pytest
from builders import IDENTITY, MADE, tables

from mptexp.analysis import loss_scale, speedups, sweep_tables, two_sweeps
from mptexp.diagnosis import verdict as diagnose
from mptexp.records.schema import VOID
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import (
    comparisons,
    findings,
    loss_scales,
    published_claims,
    studies,
    why,
)
from mptexp.report.figures import speed
from mptexp.report.tables import text_tables
from mptexp.spec import tasks
from mptexp.spec.run import Run

BOTH = ("float32", "mixed_float16")


def made(policy="float32", step_s=0.1, accuracy=0.95, status="ok", default="float32", **more):
    """The records of three blocks of a point, or of so many as blocks says."""
    marks, memory, blocks = more.pop("marks", []), more.pop("memory", 2**30), more.pop("blocks", 3)
    records = []
    for k in range(blocks):
        run = Run(policy=policy, block=k, seed=k, **{"gpu_model": "GPU"} | more)
        one = _record(run, status) | {"marks": marks}
        one |= {"in_force": _in_force(default, k)} if status != "oom" else {}
        one["identity"] = IDENTITY | {"initial_weights": "w", "data_order": f"o{k}"}
        one |= _measured(step_s, run.batch_size, accuracy, memory) if status == "ok" else {}
        records.append(one)
    return records


def _record(run, status):
    error = "" if status == "ok" else f"{status} with {run.input_mode}"
    named = {"schema": 1, "notebook": "train", "run_id": run.run_id(), "parameters": None}
    environment = {"device": run.gpu_model, "capability": None, "packages": {}}
    ended = {"status": status, "error": error, "wall_s": 2.0, "environment": environment}
    return named | ended | {"parameters": run.model_dump()}


LABELS = {"validation_labels": [10**6]}


def _in_force(default, block):
    named = {"jit": False, "emulated": False, "default_policy": default}
    begun = {"initial_weights": "w", "data_order": f"o{block}"}
    return named | begun | {"variable_dtype": "float32", "validation_images": 10**6} | LABELS


def _measured(step_s, batch_size, accuracy, memory):
    times = {"step_s": step_s, "step_s_low": step_s, "step_s_high": step_s, "steps_timed": 9}
    times |= {"images_per_s": batch_size / step_s, "warmup_steps": 1}
    times["first_step_s"] = 1.0 + next(MADE) * 1e-9
    times |= {"step_ci": 0.01}
    epoch = {"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": accuracy, "elapsed_s": 1.0}
    return {"timing": times, "history": [epoch], "peak_memory_bytes": memory, "fit_s": 1.0}


def sweep(*groups):
    return tables([record for group in groups for record in group])


@pytest.fixture(scope="module")
def short():
    """float32 has no memory for batch size 512; a run that ends so does not tell its XLA."""
    fits = [made(policy, batch_size=256) for policy in BOTH]
    out = made(batch_size=512, status="oom")
    return sweep(*fits, made("mixed_float16", batch_size=512), out)


def test_a_cross_stands_where_memory_ran_out(short):
    figure = speed.rates_by_batch_size(short, tasks.IMAGES)
    axis = figure.axes[0]
    cross, entry = [line for line in axis.lines if line.get_marker() == "x"]
    assert (entry.get_label(), len(entry.get_xdata())) == ("out of memory", 0)
    assert "out of memory" in [text.get_text() for text in figure.legends[0].get_texts()]
    float32, dots = axis.lines[0], axis.collections[0].get_offsets()[:, 0]
    assert cross.get_xdata()[0] - 1 == pytest.approx(dots.compressed()[0])  # among its own dots
    # Set apart as these, a line to the right would look like one below, of what is faster.
    assert list(float32.get_xdata()) == [0]


def test_panels_keep_their_width_where_no_memory_ran_out():
    devices = sweep(*(made(p, gpu_model=device) for p in BOTH for device in ("A100", "V100")))
    figure = speed.rates_by_batch_size(devices, tasks.IMAGES)
    figure.draw_without_rendering()
    assert all(axis.get_position().width > 0.35 for axis in figure.axes)


def test_larger_batches_fit_where_the_baseline_had_no_memory(short):
    assert published_claims._larger_batches(short).finding == published_claims.CONSISTENT
    (none,) = {published_claims._larger_batches(sweep(made(), made("mixed_float16"))).finding}
    assert none == published_claims.NOTHING.finding


def test_every_point_without_memory_is_listed():
    modes = ("pipeline", "resident")
    rows = text_tables.without_memory(sweep(*(made(input_mode=m, status="oom") for m in modes)))
    assert rows["Input mode"].tolist() == ["prefetched input", "one batch kept on the device"]


@pytest.fixture(scope="module")
def void():
    """Two runs at a time: there is no timing."""
    marks = ["timings are void: 2 runs shared this machine's processors"]
    points = [(p, size, k) for p in BOTH for size in (32, 64) for k in ("tensorflow", "jax")]
    groups = [made(p, batch_size=size, backend=k, marks=marks) for p, size, k in points]
    return replace(sweep(*groups), options=sweep_tables.Options(price_per_hour=2.5))


def test_without_timings_nothing_is_nan(void):
    parts = [text_tables.detail_rows(void), text_tables.best_rows(void)]
    parts += [section.rows for section in comparisons.sections(void)]
    parts += [comparisons.side_by_side(two_sweeps.points(void, void))]
    assert all("nan" not in part.to_string() for part in parts)
    assert len(parts[-1]) == 8


def test_one_batch_size_without_timings_leaves_the_other(void):
    rows = sweep(made(), made(batch_size=64)).results
    both = pd.concat([rows, void.results[void.results.backend == "tensorflow"]])
    assert speedups.at_best_batch(replace(void, results=both)).policy.tolist() == ["float32"]


def test_a_scale_is_behind_nothing_where_float32_was_not_run():
    found = sweep(*(made("mixed_float16", loss_scale=s) for s in ("none", 128, "dynamic")))
    assert not any("behind" in sentence for sentence in findings.answer(found))


def test_two_networks_loss_scales_are_told_apart():
    points = [(p, s, m) for p in BOTH for s in (1, 128) for m in ("mlp", "lenet")]
    found = sweep(*(made(p, loss_scale=s, model=m) for p, s, m in points))
    (title, rows), (other, _) = loss_scales.by_point(loss_scale.table(found))
    assert (title, other) == ("model lenet", "model mlp")
    assert loss_scales.sentences(rows, title)[0].startswith("With model lenet: **mixed_float16** ")


def test_rounding_that_diverged_was_tried():
    few = {"propagation": "<2,14>", "weight_format": "<2,14>"}
    stochastic = made(accuracy=0.945, rounding="stochastic", **few)
    found = sweep(made(), stochastic, made(status="diverged", **few))
    claims = {claim.words: f.finding for claim, f in published_claims.table(found)}
    stochastic_trains = "16-bit fixed point trains with stochastic rounding"
    assert claims[stochastic_trains] == published_claims.CONSISTENT
    four = made(accuracy=0.945, rounding="stochastic", blocks=4, **few)
    four[3] |= {"status": "diverged", "history": []}
    claims = published_claims.table(sweep(made(blocks=4), four))
    (told,) = [f for claim, f in claims if claim.words == stochastic_trains]
    assert told.finding == "inconclusive"


def test_pure_float16_is_judged_at_its_usual_scale():
    far = made("float16", status="diverged", loss_scale=2**24)
    found = sweep(made(), made("float16"), far)
    assert published_claims._float16_fails(found).finding == published_claims.INCONSISTENT


def test_a_point_is_one_point_beside_two_baselines():
    policies = ("float32", "tensorfloat32", "mixed_float16")
    found = sweep(*(made(policy, default="tensorfloat32") for policy in policies))
    assert " at 1 point," in published_claims._equal_accuracy(found).evidence


def test_policies_without_a_baseline_lack_the_baseline_alone():
    found = sweep(made("mixed_float16"), made("mixed_bfloat16"))
    assert "one of them float32 or the device's default" in findings.answer(found)[0]


def test_more_memory_at_one_batch_size_and_less_at_another():
    groups = [made(batch_size=size) for size in (32, 64)]
    groups += [made(BOTH[1], batch_size=32, memory=2**30 * 1.05)]
    groups += [made(BOTH[1], batch_size=64, memory=2**30 * 0.95)]
    # The lie: "from 5 % less to 5 % more with mixed_float16 in 2 of 2 settings".
    more, less = (
        f"5 % {word} with **mixed_float16** in 1 of 2 settings" for word in ("more", "less")
    )
    assert f"Memory: {more} and {less}." in findings.answer(sweep(*groups))[1]


def test_memory_is_claimed_only_where_its_records_may():
    # The lie that was told: "50 % less memory" beside "nothing is claimed of their memory".
    half = made("mixed_float16", memory=2**29)
    assert "Memory: 50 % less" in findings.answer(sweep(made(), half))[1]
    for lie in ({"changed": True}, {"identity": None}, {"marks": [f"{VOID}: 2 runs shared it"]}):
        text = " ".join(findings.answer(sweep(made(), [r | lie for r in half])))
        assert "memory" not in text.lower()


def test_memory_that_varies_from_run_to_run_is_inconclusive():
    sizes = [2**30 * share for share in (0.8, 1.1, 0.95)]
    other = [r | {"peak_memory_bytes": n} for r, n in zip(made(BOTH[1]), sizes, strict=True)]
    assert "Memory: inconclusive." in findings.answer(sweep(made(), other))[1]
    few = sweep(made(blocks=2), made(BOTH[1], blocks=2, memory=2**29))
    assert "Memory: inconclusive with fewer than three repeats" in findings.answer(few)[1]
    # No difference at one point does not become the other's.
    points = made(batch_size=8), made(BOTH[1], batch_size=8, memory=2**29)
    text = findings.answer(sweep(made(), other, *points))[1]
    assert "50 % less with **mixed_float16** in 1 of 2 settings" in text


def test_a_device_that_shares_no_block_with_the_slowest_is_not_the_slowest():
    fast, slow = made(gpu_model="A100"), made(gpu_model="V100", step_s=0.4)
    failed = {"status": "failed", "timing": {}}
    fast, slow = [fast[0], *(r | failed for r in fast[1:])], [slow[0] | failed, *slow[1:]]
    (section,) = comparisons.sections(sweep(fast, slow))
    assert section.rows.iloc[:, -1].tolist() == ["–", "1"]


def test_replicas_are_repeats_of_their_own():
    points = [(p, k) for p in BOTH for k in (1, 2)]
    groups = [made(p, model="banerjee_resnet50", replicas=k) for p, k in points]
    told = [s for s in studies.section(sweep(*groups)).sentences if "Measured on" in s]
    assert ["(2 replicas)" in sentence for sentence in told] == [False, True]


def test_verdicts_on_two_devices_name_them(tmp_path):
    points = [(p, m, d) for p in BOTH for m in ("keydana", "resident") for d in ("A100", "V100")]
    found = sweep(*(made(p, input_mode=m, gpu_model=d) for p, m, d in points))
    verdicts = diagnose.verdicts(SweepDir(tmp_path), found)
    for told in (why.sentence, why.title):
        assert len({told(verdict, verdicts) for verdict in verdicts}) == len(verdicts) == 2
    named = "**mixed_float16** (input as in Keydana 2020, device A100)"
    assert named in why.sentence(verdicts[0], verdicts)
