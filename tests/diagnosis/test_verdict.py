"""Verdicts from the records of the published case."""

import json
import math
import shutil
from dataclasses import replace
from html import escape

import numpy as np
import pytest
from builders import IDENTITY, published
from support import PROJECT, mptexp
from verdicts import loss
from verdicts import verdict as made

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations, effects, proposals, roofline, verdict
from mptexp.diagnosis.effects import Effect
from mptexp.diagnosis.pairs import Pair, in_block, pairs
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.answers import why
from mptexp.report.tables import why_tables
from mptexp.spec.run import Run

WAITS = loss("host", 0.3)
SECONDS = {"seconds", "first_step_s", "step_s", "step_s_low", "step_s_high", "fit_s", "wall_s"}
DIAGNOSED = sorted(path.parent.name for path in PROJECT.glob("reports/published/*/diagnosis"))
WHY = SweepDir(PROJECT / "reports/published/why-cpu")


@pytest.fixture(scope="module")
def verdicts():
    return published(WHY.root.name).verdicts


def test_the_case_of_2020_on_a_cpu_is_emulation_not_input(verdicts):
    assert len(verdicts) == 4
    plain = [v for v in verdicts if v.pair.candidate.jit == "off"]
    assert [v.losses[0].cause.name for v in plain] == ["emulated", "emulated"]
    assert all(v.losses[0].share > 0.8 for v in plain)
    (piped,) = (v for v in plain if v.pair.candidate.input_mode == "keydana")
    resident = next(e for e in piped.effects if e.ablation.name == ablations.INPUT.name)
    gain = resident.gains["mixed_float16"]
    assert (gain.n, round(gain.estimate, 2)) == (3, 0.99)
    # float32's runs with the batch on the device lie apart: an interval was claimed of them.
    assert "repeats apart" in resident.flags_of("float32")
    assert np.isnan(resident.gains["float32"].low)
    assert np.isnan(resident.speedup.low)
    assert resident.is_valid("mixed_float16")  # none of its own runs do
    assert gain.low < 1 < gain.high
    assert not any(loss.cause.name == "input" for loss in piped.blamed)


@pytest.mark.parametrize("name", DIAGNOSED)
def test_what_a_step_lost_is_no_more_than_the_step(name):
    # The lie: "91 % of the step is lost to XLA's code; then 22 % is host and launch overhead".
    for found in published(name).verdicts:
        unexplained = 0.0 if math.isnan(found.unexplained) else found.unexplained
        assert sum(one.share for one in found.losses) + unexplained <= 1 + 1e-9
        assert found.losses == sorted(found.losses, key=lambda one: -one.seconds)
        for one in found.losses:
            if one.is_measured:
                gain = one.effects[0].gains[found.pair.candidate.policy]
                assert one.share == pytest.approx(1 - 1 / gain.estimate)


@pytest.mark.parametrize("name", DIAGNOSED)
def test_no_layer_takes_more_alone_than_it_took_in_the_step(name):
    for found in published(name).verdicts:
        for row in why_tables.layer_rows(found).to_dict("records"):
            for policy in found.records:
                best, took = row.get(f"{policy}, alone", "–"), row[f"{policy}, ms"]
                assert "–" in (best, took) or float(best) <= float(took)


def tried(batch_size, seed):
    """A pair with one ablation in three blocks that changes nothing; and its records."""
    base = Run(gpu_model="GPU", policy="float32", batch_size=batch_size)
    pair = Pair(base, base.model_copy(update={"policy": "mixed_float16"}), 0.01)
    runs = [*pair.controls, *ablations.INPUT.variants(*pair.controls)]
    noise = np.random.default_rng(seed).normal(0, 0.02, (len(runs), 3))
    return pair, {
        in_block(run, block).run_id(): {
            "status": "ok", "error": "", "identity": IDENTITY, "notebook": "train",
            "timing": {"images_per_s": float(np.exp(rate))},
        }
        for run, rates in zip(runs, noise, strict=True)
        for block, rate in enumerate(rates)
    }  # fmt: skip


def test_what_ablations_show_holds_for_all_pairs_of_a_report_together():
    made = [tried(2**size, size) for size in range(4, 10)]
    records = {run_id: record for _, known in made for run_id, record in known.items()}
    whole = verdict.of_pairs([pair for pair, _ in made], records)
    own = [effects.effect(pair, ablations.INPUT, records, "train") for pair, _ in made]
    together = [effect.gains for effect in effects.together(own)]
    assert [found.effects[0].gains for found in whole] == together
    assert together != [effects.together([effect])[0].gains for effect in own]


def test_ablations_that_the_sweep_itself_holds_are_not_made_again(verdicts):
    tables = published(WHY.root.name).tables
    for found in verdicts:
        asked = proposals.proposed(found.pair, WHY, tables)
        assert not {ablation.name for ablation in asked} & {
            "the batch on the device",
            "XLA on",
            "XLA off",
        }


def test_the_published_page_holds_its_verdicts(verdicts):
    page = WHY.index.read_text().replace("\xa0", " ")  # a number and its unit stand in one line
    for found in verdicts:
        assert escape(why.title(found, verdicts), quote=False) in page
        for row in why_tables.cause_rows(found).itertuples():
            assert escape(row.Cause, quote=False) in page
            assert f">{row.Share}</td>" in page


@pytest.mark.parametrize("unread", [["float32"], ["mixed_float16"], ["float32", "mixed_float16"]])
def test_without_a_trace_the_rest_works_and_what_is_missing_is_said(unread):
    tables = published(WHY.root.name).tables
    records = {run_id: {**record} for run_id, record in verdict.known(WHY, tables).items()}
    for record in records.values():
        if "profile" in record and record["parameters"]["policy"] in unread:
            record["profile"] = {"missing": "xprof is not installed; pip install it"}
    (found,) = verdict.of_pairs(pairs(tables)[:1], records)
    assert found.missing.startswith("xprof is not installed")
    assert "xprof is not installed" in why.sentence(found)
    shown = set(why.tables(found)) - {why.ARITHMETIC}  # of the one that was read
    assert shown == {why.ABLATIONS, why.PEAKS}
    assert not found.traced
    assert roofline.possible_speedup(found.baseline, found.candidate) > 0


@pytest.mark.usefixtures("forked_runs")
def test_the_command_diagnoses_a_finished_sweep(tiny, tmp_path):
    shutil.copytree(tiny / "reports/tiny", tmp_path / "reports/small")
    done = mptexp("diagnose", "reports/small", "--traces-only", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "diagnosis: 2 runs whose steps are traced, about" in done.stdout
    page = (tmp_path / "reports/small/index.html").read_text()
    assert "Where the time of a step goes" in page
    assert "Measured peak" in page
    again = mptexp("diagnose", "reports/small", "--traces-only", "--no-report", cwd=tmp_path)
    assert again.returncode == 0
    assert "diagnosis:" not in again.stdout


def made_with(name, policy, gain, *losses):
    """A verdict that rests on one ablation."""
    (ablation,) = (a for a in (*verdict.ALWAYS, ablations.BATCH) if a.name == name)
    return made(*losses, effects=[Effect(ablation, {policy: gain})])


def test_a_remedy_that_was_measured_to_hurt_is_not_advised():
    slow = Contrast(0.1, 0.08, 0.12, 3)
    texts = [text for text, _ in made_with("XLA on", "mixed_float16", slow).remedies(WAITS)]
    assert "compile the step (jit on)" not in texts
    once = made_with("XLA on", "mixed_float16", Contrast(0.5, n=1)).remedies(WAITS)
    assert "compile the step (jit on)" not in [text for text, _ in once]
    fine = Contrast(1.3, 1.2, 1.4, 3)
    assert ("compile the step (jit on)", fine) in made_with(
        "XLA on", "mixed_float16", fine
    ).remedies(WAITS)


def test_what_hurt_at_another_point_of_the_model_is_not_advised():
    # As if XLA had been tried with the batch on the device alone: steps were ten times as long.
    sweep = published("why-imagenette-64px-cpu")
    records = {
        run_id: one
        for run_id, one in verdict.known(sweep.directory, sweep.tables).items()
        if one["parameters"]["jit"] == "off" or one["parameters"]["input_mode"] == "resident"
    }
    made = verdict.of_pairs([each.pair for each in sweep.verdicts], records)
    tried = [found for found in made if any(e.ablation.name == "XLA on" for e in found.effects)]
    assert len(tried) == 1
    assert len(made) == 4
    for found in made:
        texts = [text for loss in found.losses for text, _ in found.remedies(loss)]
        assert texts
        assert "compile the step (jit on)" not in texts


def test_a_remedy_that_was_tried_and_failed_or_that_the_backend_refuses_is_not_advised():
    # "To go faster: a larger batch", of one that did not fit.
    failed = Effect(ablations.BATCH, failed="oom: the device is out of memory")
    assert "a larger batch" in {text for text, _ in made().remedies(WAITS)}
    assert "a larger batch" not in {text for text, _ in made(effects=[failed]).remedies(WAITS)}
    for changes, refused in (
        ({"backend": "torch"}, {"steps_per_execution"}),
        ({"replicas": 2}, {"steps_per_execution", "compile the step (jit on)"}),
    ):
        run = made().pair.candidate.model_copy(update=changes)
        found = replace(made(), pair=replace(made().pair, candidate=run))
        assert not refused & {text for text, _ in found.remedies(WAITS)}


@pytest.mark.parametrize(("ends", "advised"), [(["oom", "oom"], False), (["oom", "ok"], True)])
def test_a_change_with_which_no_run_of_the_sweep_ended_well_is_not_advised(ends, advised):
    # "To go faster: a larger batch", where the sweep's own runs at twice the batch had no memory.
    pair, records = tried(32, 0)
    larger = ablations.BATCH.variants(*pair.policies)[1]
    for block, status in enumerate(ends):
        records[in_block(larger, block).run_id()] = {
            "status": status, "error": "the device is out of memory", "identity": IDENTITY,
            "notebook": "train", "timing": {"images_per_s": 1.0},
        }  # fmt: skip
    (found,) = verdict.of_pairs([pair], records)
    assert ("a larger batch" in {text for text, _ in found.remedies(WAITS)}) is advised


def test_what_a_run_has_already_is_not_advised():
    # "To go faster: a fixed loss_scale, which costs less", to a run with one.
    scaling = loss("loss scaling", 0.3)
    for scale, advised in (("dynamic", True), (1024.0, False)):
        run = made().pair.candidate.model_copy(update={"loss_scale": scale})
        found = replace(made(), pair=replace(made().pair, candidate=run))
        texts = {text for text, _ in found.remedies(scaling)}
        assert ("a fixed loss_scale, which costs less" in texts) is advised
        assert "mixed_bfloat16, which needs none" in texts


def test_a_step_that_gains_what_its_layers_gain_alone_has_that_for_a_reason():
    # Once "1.55× faster: no known cause exceeds 10 % of the step", of layers that gain no more.
    found = published("why-imagenette-64px-cpu").verdicts[0]
    assert math.isnan(found.possible)
    assert found.as_layers == pytest.approx(1.52, abs=0.01)
    said = (
        ", as its layers alone are (about 1.5× faster; the measured peak is 1.91× the baseline's)"
    )
    assert said in why.sentence(found)
    # A seventh as fast, where the layers alone are an eighth: the bound says nothing of the step.
    emulated = published(WHY.root.name).verdicts[0]
    assert math.isnan(emulated.as_layers)
    assert "alone" not in why.sentence(emulated)


def test_a_traced_run_of_another_model_than_the_sweeps_is_known():
    pair, _ = tried(16, 0)
    own, traced = (
        {run.run_id(): {"identity": IDENTITY, "in_force": {}} for run in runs}
        for runs in (pair.policies, pair.traced)
    )
    both = [*traced.values()]
    assert not verdict._differ(pair, both, own | traced, "train")
    both[1] = both[1] | {"identity": IDENTITY | {"model_source": "edited"}}
    assert verdict._differ(pair, both, own | traced, "train")


def test_a_traced_run_that_took_longer_than_the_sweeps_is_of_other_steps():
    # The lie: shares of a float32 step of 233 ms, whose runs in the sweep took 174 to 177.
    pair = Pair(*tried(16, 0)[0].policies, 0.1, Contrast(2.0, 1.9, 2.1, 3))
    for steps, longer in (
        ((0.2, 0.1), False),
        ((0.24, 0.12), False),
        ((0.27, 0.1), True),
        ((0.2, 0.07), True),
        ((0.27, None), True),
    ):
        traced = [{"timing": {"step_s": step_s, "step_ci": 0.01}} for step_s in steps]
        assert verdict._take_longer(pair, traced) is longer
    assert not verdict._take_longer(pair, [None, None])
    assert not verdict._take_longer(replace(pair, speedup=Contrast()), [traced[0], None])
    found = published("sign-language-100px-cpu").verdicts[1]
    assert found.flags == "trace not of these steps"
    assert "time breakdown not valid: trace not of these steps" in why.sentence(found)
    # The lie: "every comparison is valid", by `report --check`.
    (said,) = why.not_valid(published("sign-language-100px-cpu").verdicts)
    assert said.endswith("(1 of 2 time breakdowns): trace not of these steps.")


def test_repeats_of_a_diagnosis_that_lie_apart_prove_no_effect(tmp_path):
    # A policy took far longer in one block of a diagnosis than in others: "with XLA on it is ...".
    place = SweepDir(shutil.copytree(PROJECT / "reports/published/float8-gpt-cpu", tmp_path / "f"))
    for file in place.diagnosis.runs.glob("*/record.json"):
        made = json.loads(file.read_text())
        known = made["parameters"]
        if (known["policy"], known["jit"], known["block"]) == ("mixed_bfloat16", "on", 1):
            for times in (*made["windows"], made["timing"], made):
                slowed = {*times} & SECONDS
                times |= {name: 2 * times[name] for name in slowed}
            made["timing"]["tokens_per_s"] /= 2
            store.write_record(file, made)  # with a digest of its own
    found = measured_sweep.load(place).verdicts[1]
    assert [effect.flags for effect in found.effects] == ["repeats apart"]
    assert "(not valid: repeats apart)" in why.sentence(found)
    # The sweep's own runs have what is said of them everywhere else.
    apart = published("why-cpu").verdicts[-1]
    assert [effect.flags for effect in apart.effects] == ["repeats apart"]


@pytest.mark.parametrize(("report", "advised"), [("tf32-h200", True), ("gpt-cpu", False)])
def test_batch_normalization_is_mended_only_where_there_is_some(report, advised):
    # The lie: "fewer or cheaper normalizations" to a GPT, which has no batch normalization.
    texts = {
        text
        for found in published(report).verdicts
        for loss in found.losses
        if loss.cause.name == "memory"
        for text, _ in replace(found, effects=[], hurtful=frozenset()).remedies(loss)
    }
    assert texts  # had nothing been tried
    assert any("normalization fused" in text for text in texts) is advised
    assert any("cheaper normalizations" in text for text in texts) is advised


def test_a_remedy_that_is_done_already_is_not_advised():
    def texts(jit):
        candidate = {"in_force": {"jit": jit}}
        return [text for text, _ in replace(made(), candidate=candidate).remedies(WAITS)]

    assert "compile the step (jit on)" in texts(False)
    assert "compile the step (jit on)" not in texts(True)


def test_what_an_ablation_shows_of_the_baseline_is_said():
    gain = Contrast(9.85, 8.28, 11.71, 3)
    found = made_with("XLA off", "float32", gain)
    assert "; XLA off makes float32 9.85× faster [8.28, 11.7]" in why.sentence(found)
    for weak in (Contrast(1.2, 0.9, 1.5, 3), Contrast(9.0, n=1), Contrast(1.05, 1.02, 1.08, 5)):
        assert made_with("XLA off", "float32", weak).further_effects == []


def test_what_an_ablation_shows_that_was_disturbed_is_not_said():
    # The lie: "XLA off makes float32 9.85× faster [8.28, 11.7]", beside another program.
    gains = {"float32": Contrast(9.85, 8.28, 11.71, 3), "mixed_float16": Contrast(2.0, 1.9, 2.1, 3)}
    for flags in ("", "interference"):
        effect = Effect(ablations.XLA_ON, gains, flags=flags)
        found = made(effects=[effect])
        assert ("XLA on makes" in why.sentence(found)) is not bool(flags)
        gained = {gain for _, gain in found.remedies(WAITS)}
        assert (gains["mixed_float16"] in gained) is not bool(flags)


def test_the_same_work_has_one_bound_which_no_measurement_exceeds():
    # The lie: "would allow 1.3×" with one input, 1.5× with another, beside a measured 1.46×.
    found = published("why-imagenette-64px-amx-cpu").verdicts
    plain = [v for v in found if v.pair.candidate.jit == "off"]
    assert len(plain) == 3
    assert len({v.possible for v in plain}) == 1
    assert plain[0].possible > max(v.speedup.estimate for v in plain)
    # On an EPYC, and of digits, a step was faster than what its layers take alone.
    for name in ("why-imagenette-64px-cpu", WHY.root.name):
        exceeded = [v for v in published(name).verdicts if v.pair.candidate.jit == "off"]
        assert all(math.isnan(v.possible) for v in exceeded)


SLOWER = Contrast(0.8, 0.79, 0.81, 5)  # the baseline takes 8 of 10 ms


def test_what_both_policies_pay_makes_neither_slower():
    # The lie: "1.20× slower, because 42 % of its step is host and launch overhead", as float32's.
    host, casts = loss("host", 0.42, baseline_s=0.0042), loss("casts", 0.17, baseline_s=0.0)
    found = made(host, casts)
    assert found.main is host
    found = replace(found, pair=replace(found.pair, speedup=SLOWER))
    assert found.main is casts
    assert found.speedup_without(host) == pytest.approx((8 - 4.2) / 5.8)
    assert found.speedup_without(casts) == pytest.approx(8 / 8.3)
    # As an ablation measured it, which took the cause from both.
    both = Effect(ablations.XLA_OFF, {"mixed_float16": GAINED}, Contrast(0.83, 0.8, 0.86, 5))
    measured = loss("compiled", 0.5, both, replaces=0.0)
    assert found.speedup_without(measured) == 0.83


GAINED = Contrast(2.0, 1.9, 2.1, 5)


def test_what_a_larger_batch_does_not_share_out_is_no_cause():
    # The lie: "because 60 % of its step is host and launch overhead", of which a doubled batch
    # took nothing.
    sweep = published("tf32-h200")
    (found,) = [one for one in sweep.verdicts if one.traced]
    policy = found.pair.candidate.policy
    row = {"state": "host", "layer": "", "part": "", "op": "", "kernel": "", "count": 1.0}
    candidate = json.loads(json.dumps(found.candidate))
    waits_s = 1.5 * sum(one["seconds"] for one in candidate["profile"]["rows"])
    candidate["profile"]["rows"].append(row | {"seconds": waits_s})
    candidate["profile"]["rows"] = [
        {k: v for k, v in one.items() if k != "groups"} for one in candidate["profile"]["rows"]
    ]
    for gain, share in ((Contrast(1.0, 0.99, 1.01, 3), 0.02), (Contrast(1.4, 1.3, 1.5, 3), 0.1)):
        effect = Effect(ablations.BATCH, {policy: gain})
        losses = verdict.losses(found.pair, found.baseline, candidate, [effect])
        host = {one.cause.name: one.share for one in losses}["host"]
        assert host <= 0.02 if share == 0.02 else host > share


def test_a_compiler_hurts_where_its_absence_helps():
    # The advice: "compile the step, not tried yet", where without it steps were half as long.
    elsewhere = made_with("XLA off", "mixed_float16", GAINED)
    assert "XLA on" in verdict._hurtful(made(), [elsewhere])
    assert "XLA on" not in verdict._hurtful(made(), [made()])


def test_operations_that_take_longer_than_the_step_are_not_the_steps():
    # The lie: 48 % of a step of 35 ms, by kernels that took 68 ms where they were traced.
    (found,) = [one for one in published("tf32-h200").verdicts if one.traced]
    records = [found.baseline, json.loads(json.dumps(found.candidate))]
    assert not verdict._take_longer(found.pair, records)
    for row in records[1]["profile"]["rows"]:
        row["seconds"] *= 2
    assert verdict._take_longer(found.pair, records)


def test_a_smaller_batch_that_was_traced_alone_is_shown(tmp_path):
    # Made by `diagnose --only batch_size=32`, and never shown beside a batch of 128.
    place = SweepDir(shutil.copytree(PROJECT / "reports/published/tf32-h200", tmp_path / "larger"))
    before = measured_sweep.load(place).verdicts
    for file in place.runs.glob("*/record.json"):
        larger = json.loads(file.read_text())
        larger["parameters"]["batch_size"] *= 2
        larger["run_id"] = Run(**larger["parameters"]).run_id(larger["notebook"])
        store.write_record(place.runs / larger["run_id"] / "record.json", larger)
    after = measured_sweep.load(place).verdicts
    assert [v.pair.candidate.run_id() for v in after] == [v.pair.candidate.run_id() for v in before]


def test_pairs_that_another_base_seed_tells_apart_stay_two():
    base = Run(gpu_model="GPU", policy="float32")
    of = [Pair(base, base.model_copy(update={"seed": seed, "block": block}), 0.01)
          for seed, block in ((0, 0), (1, 1), (7, 0))]  # fmt: skip
    first, same, other = map(verdict._but_for_the_batch, of)
    assert first == same != other
