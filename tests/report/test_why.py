import math
from dataclasses import replace

import pytest

from mptexp.diagnosis import ablations
from mptexp.diagnosis import verdict as verdicts
from mptexp.diagnosis.ablations import Pair
from mptexp.diagnosis.verdict import Cause, Effect, Verdict
from mptexp.report import why
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32", batch_size=128)
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_float16"}), 0.01)
NAN = math.nan


def cause(name, share):
    return Cause(name, 0.01 * share, share, "ledger: so much", verdicts.CHANGES[name])


def verdict(*causes, effects=(), possible=2.9, unexplained=0.01, missing=""):
    return Verdict(
        pair=PAIR,
        baseline=None,
        candidate={"any": "record"},
        speedup=(1.08, 1.06, 1.10, 5),
        step_s=0.01,
        possible=possible,
        causes=list(causes),
        effects=list(effects),
        unexplained=unexplained,
        missing=missing,
    )


def test_the_sentence_ranks_causes_with_their_proof():
    gains = {"float32": (1.2, 1.1, 1.3, 3), "mixed_float16": (2.5, 2.4, 2.6, 3)}
    proof = Effect(ablations.INPUT, gains, (2.4, 2.3, 2.5, 3))
    found = verdict(cause("input", 0.61), cause("memory", 0.14), cause("casts", 0.02),
                    effects=[proof])  # fmt: skip
    assert why.sentence(found) == (
        "Why: **mixed_float16** at batch size 128 is 1.08× [1.06, 1.10] as fast as float32, where "
        "the device would allow about 2.9×: 61 % of the step (6.1 ms) waits for input (with the "
        "batch on the device it is 2.40× [2.30, 2.50]); then 14 % (1.4 ms) is memory-bound work "
        "that 16 bits did not halve."
    )


def test_with_no_cause_of_weight_it_accuses_nothing_and_shows_the_remainder():
    told = why.sentence(verdict(cause("host", 0.05), unexplained=0.3))
    assert "nothing that was looked for takes 10 % of the step or more" in told
    assert told.endswith("30 % of the step is unexplained.")


def test_what_is_not_known_is_not_said():
    told = why.sentence(verdict(possible=NAN, unexplained=NAN, missing="xprof is missing"))
    assert "allow" not in told
    assert "(xprof is missing)" in told


def test_the_gain_to_expect_is_the_step_without_the_cause():
    (row,) = why.cause_rows(verdict(cause("input", 0.5))).to_dict("records")
    assert row["Speedup then"] == "up to 2.16×"
    assert row["Share"] == "50 %"


def test_an_experiment_that_failed_says_how():
    found = verdict(effects=[Effect(ablations.XLA_ON, failed="oom: no memory")])
    (row,) = why.effect_rows(found).to_dict("records")
    assert row["makes float32 faster by"] == "oom: no memory"
    assert row["Speedup with it"] == "–"


@pytest.mark.parametrize("name", list(verdicts.NAMES))
def test_every_cause_has_its_words(name):
    assert verdicts.CHANGES[name]
    assert why.REMARK[name]


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
def test_ceilings_stand_beside_what_is_published(device, replicas, matrix, copy):
    ceilings = {"dtype": "float16", "matmul_flops_per_s": 790e12, "copy_bytes_per_s": 4.3e12}
    run = PAIR.candidate.model_copy(update={"replicas": replicas})
    record = {
        "parameters": run.model_dump(),
        "environment": {"device": device},
        "timing": {"step_s": 0.01},
        "work": {"flops_per_step": 1e12, "bytes_per_step": 1e9, "ceilings": ceilings},
        "profile": {},
    }
    (row,) = why.ceiling_rows([replace(verdict(), candidate=record)]).to_dict("records")
    assert row["Matrix product at best"] == matrix
    assert row["Copy at best"] == copy
    assert row["MFU"] == "13 %"
