import re
from dataclasses import replace

import pytest
from builders import published
from verdicts import GAINS, PAIR, loss, verdict

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations, breakdown
from mptexp.diagnosis.effects import Effect
from mptexp.report.answers import why
from mptexp.report.tables import why_tables


def test_the_gain_to_expect_is_the_step_without_the_cause():
    (row,) = why_tables.cause_rows(verdict(loss("input", 0.5))).to_dict("records")
    assert row["Projected speedup of the step if fixed"] == "up to 2.00×"  # than now
    assert row["Share"] == "50 %"


@pytest.mark.parametrize("speedup", [0.5, 2.0])
def test_the_note_says_of_which_step_the_gain_to_expect_is(speedup):
    # The lie: "over the baseline as it is", above a column that the baseline has no part in.
    pair = replace(PAIR, speedup=Contrast(speedup, 0.9 * speedup, 1.1 * speedup, 5))
    found = replace(verdict(loss("input", 0.5)), pair=pair)
    name = "Projected speedup of the step if fixed"
    assert [row[name] for row in why_tables.cause_rows(found).to_dict("records")] == ["up to 2.00×"]
    assert f"*{name}*: the candidate's own step over that step without" in why.CAUSES.note
    assert "not over the baseline" in why.CAUSES.note


def test_an_ablation_that_failed_says_how():
    found = verdict(effects=[Effect(ablations.XLA_ON, failed="oom: no memory")])
    (row,) = why_tables.ablation_rows(found).to_dict("records")
    assert row["float32 with it"] == "oom: no memory"
    assert row["mixed_float16 against float32 with it"] == "–"


def test_an_ablation_that_is_not_valid_shows_nothing():
    gains = dict.fromkeys(("float32", "mixed_float16"), Contrast(2.0, 1.9, 2.1, 3))
    for flags, shows in (("", "faster"), ("interference", "nothing: not valid")):
        found = verdict(effects=[Effect(ablations.XLA_ON, gains=gains, flags=flags)])
        (row,) = why_tables.ablation_rows(found).to_dict("records")
        assert row["Shows"] == shows


def test_what_makes_steps_slower_is_said_above_one():
    # The puzzle: "makes tensorfloat32 faster by 0.25×".
    rows = [row for one in published("tf32-h200").verdicts for row in of(one)]
    strict = [row["TF32 with it"] for row in rows if row["Ablation"] == "strict float32"]
    assert strict == ["3.09× slower [2.73, 3.50] (n = 3)", "4.01× slower [3.73, 4.31] (n = 3)"]


def of(verdict):
    return why_tables.ablation_rows(verdict).to_dict("records")


def test_of_blocks_that_do_not_count_it_is_said_why():
    # The puzzle: "n = 2", of three blocks, the third of whose input modes ran in two calls.
    (row, *_) = of(published("tf32-h200").verdicts[0])
    two = "(no interval, n = 2 of 3: 1 block was measured in two calls)"
    assert row["mixed_float16 with it"] == f"1.46× as fast {two}"


@pytest.mark.parametrize(
    ("device", "replicas", "matrix", "copy"),
    [
        ("NVIDIA H200", 1, "790 TFLOP/s (80 % of the published)",
         "4,300 GB/s (90 % of the published)"),
        ("NVIDIA H200", 2, "790 TFLOP/s (40 % of the published)",
         "4,300 GB/s (45 % of the published)"),
        ("a GPU that nobody knows", 1, "790 TFLOP/s", "4,300 GB/s"),
    ],
)  # fmt: skip
def test_peaks_stand_beside_what_is_published(device, replicas, matrix, copy):
    ceilings = {"dtype": "float16", "matmul_flops_per_s": 790e12, "copy_bytes_per_s": 4.3e12}
    run = PAIR.candidate.model_copy(update={"replicas": replicas})
    record = {
        "parameters": run.model_dump(),
        "environment": {"device": device},
        "timing": {"step_s": 0.01},
        "work": {"flops_per_step": 1e12, "bytes_per_step": 1e9, "ceilings": ceilings},
        "profile": {},
    }
    (row,) = why_tables.peak_rows(replace(verdict(), candidate=record)).to_dict("records")
    assert row["Peak of a matrix product"] == matrix
    assert row["Peak of a copy"] == copy
    assert row["MFU"] == "13 %"


def test_a_step_of_fast_kernels_and_one_of_slow_ones_are_told_apart():
    # The lie: a step at 8 % of the peak, all of it on Tensor Cores, without a word that these
    # reach 28 %.
    (found,) = [one for one in published("tf32-h200").verdicts if one.traced]
    rows = why_tables.peak_rows(found)
    assert rows["MFU"].tolist() == ["13 %", "8 %"]
    assert rows["MFU of the matrix work"].tolist() == ["32 %", "28 %"]


def test_evidence_is_the_breakdown_of_both_policies_and_what_the_ablations_changed():
    proof = Effect(ablations.XLA_ON, GAINS, Contrast(2.4, 2.3, 2.5, 3))
    found = loss("memory", 0.2, proof, baseline_s=0.003)
    assert why_tables.evidence(found, verdict(found)) == (
        "time breakdown: 2 ms (float32: 3 ms); with XLA on: float32 1.20× faster "
        "[1.10, 1.30] and mixed_float16 2.50× faster [2.40, 2.60]"
    )
    kept = loss("no tensor cores", 0.2, layers=("conv", "dense"))
    said = why_tables.evidence(kept, verdict(kept))
    assert said == "time breakdown: 2 ms, mostly in conv and dense"


def test_an_ablation_of_the_sweep_itself_says_so():
    assert why_tables.reason(ablations.INPUT) == "in the sweep"


def test_the_types_that_xla_multiplies_in_stand_beside_the_policy():
    kept = {"profile": {"products": {"float32": 9, "bfloat16": 1}}}
    found = replace(verdict(), baseline={"profile": {}}, candidate=kept)
    assert why_tables.compiled_rows(found).to_dict("records") == [
        {"Policy": "mixed_float16", "Products in": "float32", "Number": "9"},
        {"Policy": "mixed_float16", "Products in": "bfloat16", "Number": "1"},
    ]


def test_the_layers_that_have_no_row_are_counted_with_their_time():
    sweep = published("sign-language-100px-cpu")
    traced = [v for v in sweep.verdicts if v.traced]
    found = max(traced, key=lambda v: len(breakdown.by_layer(v.candidate)))
    rows, policy = why_tables.layer_rows(found), found.pair.candidate.policy
    assert re.fullmatch(r"\d+ other layers", rows.Layer.iloc[-1])
    total = sum(float(ms) for ms in rows[f"{policy}, ms"])
    took = breakdown.by_layer(found.candidate).sum(axis=1).drop("(no operation)", errors="ignore")
    assert total == pytest.approx(took.sum() * 1e3, rel=1e-3)


def test_what_a_diagnosis_measured_is_not_said_to_be_the_sweeps():
    # Published once: "in the sweep", of runs of its diagnosis.
    gains = dict.fromkeys(("float32", "mixed_float16"), Contrast(2.0, 1.9, 2.1, 3))
    for of_sweep, place in ((True, "in the sweep"), (False, "in the diagnosis")):
        effect = Effect(ablations.INPUT, gains=gains, of_sweep=of_sweep)
        (row,) = of(verdict(effects=[effect]))
        assert row["Why"] == place
