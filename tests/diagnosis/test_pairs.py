from pathlib import Path

import pytest
from builders import published, record, tables
from support import PROJECT

from mptexp.analysis import sweep_tables
from mptexp.api import diagnosing
from mptexp.diagnosis import pairs
from mptexp.errors import ParamsError
from mptexp.execution.job import Job
from mptexp.execution.progress import Output
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32", seed=7, block=2)
PAIR = pairs.Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)


def test_every_point_is_paired_at_the_largest_batch_size_of_both():
    tables = published("quickstart-cpu").tables
    (pair, other) = pairs.pairs(tables)
    assert {pair.candidate.policy, other.candidate.policy} == {"mixed_float16", "mixed_bfloat16"}
    assert pair.baseline.policy == other.baseline.policy == "float32"
    assert pair.candidate.batch_size == tables.ok.batch_size.max()
    own = tables.speedups[tables.speedups.batch_size == pair.candidate.batch_size]
    own = own[(own.candidate == pair.candidate.policy) & (own.baseline == "float32")].iloc[0]
    assert (pair.speedup.estimate, pair.speedup.n) == pytest.approx((own.speedup, own.blocks))


def test_a_pair_of_which_a_block_is_missing_is_of_the_others():
    # The traceback: "cannot convert float NaN to integer", of a sweep that lost one record.
    made = published("quickstart-cpu").tables
    whole = {pair.candidate.policy: pair for pair in pairs.pairs(made)}
    largest = made.ok[made.ok.batch_size == made.ok.batch_size.max()]
    lost = largest[(largest.policy == "mixed_float16") & (largest.block == 1)].run_id.item()
    kept = [run_id for run_id in made.ok.run_id if run_id != lost]
    pair = {p.candidate.policy: p for p in pairs.pairs(made, kept)}["mixed_float16"]
    assert pair.speedup.n == whole["mixed_float16"].speedup.n - 1
    assert pair.step_s == pytest.approx(whole["mixed_float16"].step_s, rel=0.5)
    assert pair.controls[0].max_steps > 0


def test_only_chosen_runs_are_paired():
    tables = published("quickstart-cpu").tables
    small = tables.ok[tables.ok.batch_size == tables.ok.batch_size.min()].run_id
    assert {pair.candidate.batch_size for pair in pairs.pairs(tables, small)} == {
        tables.ok.batch_size.min()
    }
    assert pairs.pairs(tables, ["no such run"]) == []


def test_plain_loops_are_not_diagnosed():
    tables = sweep_tables.load(SweepDir(PROJECT / "reports/published/quickstart-cpu"))
    for made in tables.records:
        made["parameters"]["frontend"] = "native"
    assert pairs.pairs(tables) == []


def test_a_sweep_of_plain_loops_is_told_that_they_are_not_traced(monkeypatch):
    place = SweepDir(PROJECT / "reports/published/quickstart-cpu")
    tables = sweep_tables.load(place)
    for made in tables.records:
        made["parameters"]["frontend"] = "native"
    monkeypatch.setattr(sweep_tables, "load", lambda place: tables)
    job = Job(None, "", Path("train.py"), place)
    with pytest.raises(ParamsError, match="plain loops and inference are not traced"):
        next(diagnosing._diagnosis(job, [], False, Output()))


@pytest.mark.parametrize(("step_s", "steps"), [(1e-4, 1024), (0.01, 512), (1.0, 128)])
def test_controls_are_as_long_as_about_four_seconds(step_s, steps):
    pair = pairs.Pair(*PAIR.policies, step_s)
    for run, of in zip(pair.controls, pair.policies, strict=True):
        assert (run.max_steps, run.block, run.seed) == (steps, 0, 5)
        assert run.policy == of.policy
    assert [run.profile for run in (*pair.controls, *pair.traced)] == [False, False, True, True]


def test_another_block_has_another_seed():
    assert pairs.in_block(BASE, 5).seed == 10


def test_strict_float32_beside_tf32_is_no_pair():
    # The lie: 81 % of strict float32's step "is matrix work, in which this device is no faster in
    # 16 bits", of a pair of which neither is in 16 bits.
    policies = (("tensorfloat32", 0.05), ("float32", 0.1), ("mixed_bfloat16", 0.04))
    rows = [
        record(policy, block, step_s, default="tensorfloat32")
        for policy, step_s in policies
        for block in range(3)
    ]
    (pair,) = pairs.pairs(tables(rows))
    assert [run.policy for run in pair.policies] == ["tensorfloat32", "mixed_bfloat16"]


def test_policies_that_share_no_block_are_no_pair():
    # Entitled once: "mixed_bfloat16 is nan× slower than float32".
    assert pairs.pairs(tables([record(block=0), record("mixed_bfloat16", 1)])) == []
