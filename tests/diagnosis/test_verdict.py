"""Verdicts from records: those of the published case, and effects made by hand."""

import math
import shutil

import jupytext
import pytest
from support import PROJECT, mptexp

from mptexp.analysis import sweep_tables
from mptexp.diagnosis import ablations, verdict
from mptexp.diagnosis.ablations import Pair
from mptexp.execution import kernel
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import why
from mptexp.spec.run import Run

WHY = SweepDir(PROJECT / "reports/published/why-cpu")


@pytest.fixture(scope="module")
def verdicts():
    return verdict.verdicts(WHY, sweep_tables.load(WHY))


def test_the_case_of_2020_on_a_cpu_is_emulation_not_input(verdicts):
    assert len(verdicts) == 4
    plain = [found for found in verdicts if found.pair.candidate.jit == "off"]
    assert [found.causes[0].name for found in plain] == ["emulated", "emulated"]
    assert all(found.causes[0].share > 0.8 for found in plain)
    (piped,) = (found for found in plain if found.pair.candidate.input_mode == "keydana")
    resident = next(e for e in piped.effects if e.experiment.name == ablations.INPUT.name)
    gain, low, high, blocks = resident.gains["mixed_float16"]
    assert low < 1 < high
    assert (blocks, round(gain, 2)) == (3, 1.05)
    assert not any(cause.name == "input" for cause in piped.accused)


def test_experiments_are_found_in_the_sweep_itself_and_not_made_again(verdicts):
    tables = sweep_tables.load(WHY)
    for found in verdicts:
        asked = ablations.asked(found.pair, WHY, tables)
        assert not {e.name for e in asked} & {"the batch on the device", "XLA on", "XLA off"}


def test_the_published_page_holds_its_verdicts(verdicts):
    page = WHY.index.read_text()
    for found in verdicts:
        assert why.sentence(found).replace("**", "").split(": ")[-1] in page


def test_the_notebook_of_a_diagnosis_runs_on_it(tmp_path):
    path = tmp_path / "executed.ipynb"
    parameters = {"sweep_dir": str(WHY.root), "pair": 2}
    kernel.execute(PROJECT / "notebooks/diagnose.py", path, parameters, tmp_path)
    text = path.read_text()
    assert "beyond what float32 takes" in text
    assert jupytext.read(path).cells


@pytest.mark.parametrize("unread", [["float32"], ["mixed_float16"], ["float32", "mixed_float16"]])
def test_without_a_trace_the_rest_works_and_what_is_missing_is_said(unread):
    tables = sweep_tables.load(WHY)
    records = verdict.known(WHY, tables)
    for record in records.values():
        if "profile" in record and record["parameters"]["policy"] in unread:
            record["profile"] = {"missing": "xprof is not installed; pip install it"}
    found = verdict.verdict(ablations.pairs(tables)[0], tables, records)
    assert found.missing.startswith("xprof is not installed")
    assert "xprof is not installed" in why.sentence(found)
    told = set(why.tables(found)) - {why.CENSUS}  # of the one that was read
    assert told == {why.EXPERIMENTS, why.CEILINGS}
    assert not found.traced
    assert found.possible > 0


# --- effects ------------------------------------------------------------------------------------

BASE = Run(gpu_model="GPU", policy="float32")
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)


def made(run, rates, status="ok"):
    """A record of each block: pictures per second."""
    found = {}
    for block, rate in enumerate(rates):
        again = run.model_copy(update={"block": block, "seed": block})
        found[again.run_id()] = {
            "status": status, "error": "why", "timing": {"images_per_s": rate}
        }  # fmt: skip
    return found


def known(experiment, before, after):
    bases = [ablations.control(PAIR, run) for run in PAIR.policies]
    records = {}
    for base, rates in zip(bases, before, strict=True):
        records |= made(base, rates)
    for arm, rates in zip(experiment.arms(*bases), after, strict=True):
        records |= made(arm, rates)
    return records


def test_an_effect_is_formed_within_blocks():
    # The machine is half as fast in the third block: the ratios do not notice.
    records = known(
        ablations.INPUT,
        [[100, 100, 50], [110, 110, 55]],
        [[120, 120, 60], [240, 240, 120]],
    )
    found = verdict.effect(PAIR, ablations.INPUT, records, "train")
    assert found.gains["float32"] == pytest.approx((1.2, 1.2, 1.2, 3))
    assert found.gains["mixed_bfloat16"][0] == pytest.approx(240 / 110)
    assert found.speedup == pytest.approx((2, 2, 2, 3))


def test_one_block_claims_no_interval():
    records = known(ablations.INPUT, [[100], [110]], [[120], [240]])
    found = verdict.effect(PAIR, ablations.INPUT, records, "train")
    assert found.speedup[0] == pytest.approx(2)
    assert math.isnan(found.speedup[1])


def test_an_experiment_that_was_not_made_or_failed_has_no_effect():
    assert verdict.effect(PAIR, ablations.INPUT, {}, "train") is None
    bases = [ablations.control(PAIR, run) for run in PAIR.policies]
    arms = ablations.XLA_ON.arms(*bases)
    records = made(bases[0], [1]) | made(bases[1], [1]) | made(arms[0], [1], "oom")
    assert verdict.effect(PAIR, ablations.XLA_ON, records, "train").failed == "oom: why"


def test_a_gain_that_the_interval_does_not_show_is_no_cause():
    unsure = {"mixed_bfloat16": (1.2, 0.9, 1.6, 3)}
    sure = {"mixed_bfloat16": (2.0, 1.9, 2.1, 3)}
    for gains, lost in ((unsure, 0.0), (sure, 0.005)):
        effect = verdict.Effect(ablations.INPUT, gains)
        assert verdict._input(PAIR, 0.001, effect).seconds == pytest.approx(lost)
    assert verdict._input(PAIR, 0.001, None).seconds == 0.001


def test_the_command_diagnoses_a_finished_sweep(tiny, tmp_path):
    shutil.copytree(tiny / "reports/tiny", tmp_path / "reports/small")
    done = mptexp("diagnose", "reports/small", "--traces-only", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "diagnosis: 2 runs whose steps are traced, about" in done.stdout
    page = (tmp_path / "reports/small/index.html").read_text()
    assert "Where the time of a step goes" in page
    assert "What the device does at best" in page
    again = mptexp("diagnose", "reports/small", "--traces-only", "--no-report", cwd=tmp_path)
    assert again.returncode == 0
    assert "diagnosis:" not in again.stdout
