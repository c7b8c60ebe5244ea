import math
from dataclasses import replace

import numpy as np
import pytest
from builders import diverged, record, replicated, tables, tables_of, trained_by
from support import PROJECT

from mptexp.analysis import rate_ratios, sweep_tables
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import caveats, comparisons
from mptexp.report.pages import notes
from mptexp.spec.run import Run


def test_weak_and_strong_scaling_are_told_apart():
    # Two replicas need 0.1 s for 64 pictures; one needs 0.08 s for 32 and 0.15 s for 64.
    found = rate_ratios.by_replicas(
        tables_of(replicated(1, 32, 0.08), replicated(1, 64, 0.15), replicated(2, 64, 0.1))
    )
    assert list(found.replicas) == [1, 1, 2]
    two = found[found.replicas == 2].iloc[0]
    assert two.batch_per_replica == 32
    assert two.speedup == pytest.approx(1.6)  # 640 over 400 images per second
    assert (two.low, two.high) == pytest.approx((1.6, 1.6), rel=2e-3)
    assert two.blocks == 3
    assert two.efficiency == pytest.approx(0.8)
    assert two.strong_speedup == pytest.approx(1.5)
    assert found[found.replicas == 1].speedup.isna().all()


def test_without_one_replica_at_that_batch_nothing_is_claimed():
    found = rate_ratios.by_replicas(tables_of(replicated(1, 48, 0.1), replicated(2, 64, 0.1)))
    assert found.speedup.isna().all()
    assert found.strong_speedup.isna().all()


def test_fewer_than_three_blocks_claim_no_interval():
    results = tables_of(replicated(1, 32, 0.1, blocks=2), replicated(2, 64, 0.1, blocks=2))
    two = rate_ratios.by_replicas(results).iloc[1]
    assert two.speedup == pytest.approx(2)
    assert two.low != two.low


def test_frameworks_are_compared_with_tensorflow():
    both = [list(replicated(1, 32, 0.1)), list(replicated(1, 32, 0.05, jit=True, backend="jax"))]
    torch = replicated(1, 32, 0.4, backend="torch")
    found = rate_ratios.by_backend(tables_of(*both, torch)).set_index("backend")
    assert list(found.index) == ["tensorflow", "jax", "torch"]
    assert found.speedup["jax"] == pytest.approx(2)
    assert found.speedup["torch"] == pytest.approx(0.25)


def test_keras_is_compared_with_the_plain_loop_of_its_backend_and_policy():
    tables = tables_of(
        trained_by("keras", 0.13),
        trained_by("native", 0.1),
        trained_by("keras", 0.4, "torch"),
        trained_by("native", 0.2, "torch"),
        trained_by("keras", 0.1, "tensorflow"),  # which has no plain loop
    )
    found = rate_ratios.by_frontend(tables)
    assert list(zip(found.backend, found.frontend, strict=True)) == [
        ("jax", "keras"), ("jax", "native"), ("torch", "keras"), ("torch", "native"),
    ]  # fmt: skip
    assert list(found.speedup.dropna()) == pytest.approx([1 / 1.3, 0.5])
    assert set(found.setting) == {""}
    said = comparisons.keras_costs(found)
    assert said[0].startswith("With float32 on JAX, a training step of Keras's is 1.30× slower [")
    assert said[0].endswith("(n = 3) than one of the plain loop.")
    assert comparisons.sections(tables)[-1].sentences == said
    assert rate_ratios.by_frontend(tables_of(replicated(1, 32, 0.1))).empty


def test_frameworks_are_said_to_be_used_through_what_they_are():
    def note(*frontends):
        sides = [trained_by(f, 0.1, name) for name in ("jax", "torch") for f in frontends]
        return comparisons.sections(tables_of(*sides))[0].note

    assert "in each framework, by a plain loop" in note("native")
    assert "through Keras but where the setting is *plain loop*" in note("keras", "native")


def test_keras_and_a_plain_loop_that_saw_other_data_form_no_ratio():
    plain = [m | {"identity": m["identity"] | {"data": "other"}} for m in trained_by("native", 0.1)]
    assert rate_ratios.by_frontend(tables_of(trained_by("keras", 0.13), plain)).speedup.isna().all()


def several(identities, device="GPU", **parameters):
    """Runs on one device with these identities, one for each block."""
    for made, identity in zip(replicated(1, 32, 0.1, **parameters), identities, strict=True):
        made["parameters"]["gpu_model"] = device
        made["run_id"] += device
        made["identity"] = made["identity"] | identity
        yield made


def test_devices_with_other_versions_form_no_ratio():
    # Another device has another processor and driver, and may; another Keras it may not.
    own = {"device": "H100", "cpu": "Xeon", "driver": "600"}
    like = tables_of(several([{}] * 3), several([own] * 3, "H100"))
    assert rate_ratios.by_device(like).speedup.notna().sum() == 1
    other = own | {"versions": {"keras": "3.16"}}
    unlike = tables_of(several([{}] * 3), several([other] * 3, "H100"))
    found = rate_ratios.by_device(unlike)
    assert found.speedup.isna().all()
    (sentence,) = caveats.not_compared(found)
    assert "versions keras" in sentence
    assert sentence in caveats.sentences(unlike)


def test_frameworks_may_differ_in_their_versions_and_not_in_the_data():
    jax = {"versions": {"jax": "0.7"}, "initial_weights": "drawn otherwise"}
    sides = several([{}] * 3), several([jax] * 3, backend="jax")
    assert rate_ratios.by_backend(tables_of(*sides)).speedup.notna().sum() == 1
    sides = several([{}] * 3), several([jax | {"data": "other"}] * 3, backend="jax")
    assert rate_ratios.by_backend(tables_of(*sides)).speedup.isna().all()


def test_runs_that_are_not_valid_claim_no_scaling():
    one, two = list(replicated(1, 32, 0.1)), list(replicated(2, 64, 0.1))
    for made in two:
        made["marks"] = ["measured while other programs used the processor"]
    found = rate_ratios.by_replicas(tables_of(one, two)).iloc[1]
    assert found["flags"] == "interference"
    # The lie: "all comparisons of instruction sets (7) together", of which one was not valid.
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    part = comparisons.sections(tables_of(one, two))[0]
    assert "(not valid: interference, n = 3)" in " ".join(map(str, part.rows.iloc[1]))
    assert "2.00× as fast (not valid: interference, n = 3)" in part.sentences[0]


def test_a_policy_under_the_default_instructions_has_one_interval():
    # The lie: 1.55x faster [1.43, 1.67] on the first screen, [1.42, 1.68] in the table.
    made = sweep_tables.load(SweepDir(PROJECT / "reports/published/cpu-isa"))
    found = rate_ratios.by_isa(made).set_index(["cpu_isa", "policy"])
    (claim,) = made.claims[made.claims.setting.str.endswith("default")].itertuples()
    row = found.loc["default", "mixed_bfloat16"]
    assert row.claimed
    assert (row.low, row.high) == (claim.low, claim.high)
    assert found.claimed.sum() == 1
    assert "instruction sets (5)" in notes.families(made)


def test_few_sweeps_of_noise_claim_a_difference_between_frameworks():
    random, lying = np.random.default_rng(3), 0
    quiet = tables_of(
        made
        for backend in ("tensorflow", "jax", "torch")
        for size in (8, 16, 32, 64)
        for made in replicated(1, size, 0.1, backend=backend)
    )
    runs = quiet.results
    for _ in range(30):
        drawn = {record["run_id"]: math.exp(random.normal(0, 0.02)) for record in quiet.records}
        noisy = runs.assign(images_per_s=runs.images_per_s * runs.run_id.map(drawn))
        found = rate_ratios.by_backend(replace(quiet, results=noisy))
        lying += ((found.low > 1) | (found.high < 1)).any()
    assert lying <= 3


def beside(change, **other):
    """Runs at two settings in three blocks, the second of which takes twice as long."""
    for block, step_s in enumerate((0.1, 0.101, 0.1005)):
        for changed in (False, True):
            made = record(step_s=step_s * (1 + changed), block=block)
            made["parameters"] |= change if changed else other
            made["run_id"] = Run(**made["parameters"]).run_id()
            made["environment"] = {"device": "GPU", "packages": {}, "kind": "gpu"}
            made |= {"invocation": "one", "boot": "b", "wall_s": 20.0}
            yield block, changed, made


AXES = (
    ({"backend": "jax"}, {}, rate_ratios.by_backend),
    ({"backend": "jax"}, {"backend": "jax", "frontend": "native"}, rate_ratios.by_frontend),
    ({"cpu_isa": "sse41"}, {}, rate_ratios.by_isa),
)


@pytest.mark.parametrize(("change", "other", "table"), AXES)
@pytest.mark.parametrize("how", ["one call", "two calls", "a pause"])
def test_settings_that_were_not_measured_beside_one_another_claim_nothing(
    change, other, table, how
):
    # The lie: one backend last week, the other today, or five hours later in one call: 0.50
    # [0.499, 0.501].
    records = []
    for block, changed, made in beside(change, **other):
        hour = 5 * changed if how == "a pause" else 0
        made["ended_at"] = f"2026-11-1{block}T0{hour}:0{int(changed)}:00+00:00"
        made["invocation"] = f"call {changed}" if how == "two calls" else "one"
        records.append(made)
    (row,) = (
        table(tables(records)).dropna(subset="speedup").query("speedup != 1").to_dict("records")
    )
    flags = {"one call": "", "two calls": "measured apart", "a pause": "pause or clock set"}
    assert row["flags"] == flags[how]
    assert math.isnan(row["low"]) is (how != "one call")


def test_replicas_that_another_call_measured_claim_no_scaling():
    # The lie: one replica measured last week, two today, "1.60× faster [1.60, 1.60]".
    def called(runs, name):
        return [made | {"invocation": name} for made in runs]

    one, two = list(replicated(1, 32, 0.1)), list(replicated(2, 64, 0.1))
    together = rate_ratios.by_replicas(tables_of(called(one, "a"), called(two, "a"))).iloc[1]
    assert (together["flags"], together.blocks) == ("", 3)
    assert together.low > 1.9
    found = rate_ratios.by_replicas(tables_of(called(one, "a"), called(two, "b"))).iloc[1]
    assert (found["flags"], found.speedup) == ("measured apart", pytest.approx(2))
    # Of blocks of which one call measured both, the others say nothing.
    part = called(two[:2], "b") + called(two[2:], "a")
    mixed = rate_ratios.by_replicas(tables_of(called(one, "a"), part)).iloc[1]
    assert (mixed["flags"], mixed.blocks) == ("", 1)


def test_what_diverged_is_neither_equal_nor_lower():
    # The lie: no run of either side counted as diverged, whatever its record said.
    def found(keras=(), native=()):
        sides = ((trained_by("keras", 0.2), keras), (trained_by("native", 0.1), native))
        runs = [diverged(m) if k in lost else m for own, lost in sides for k, m in enumerate(own)]
        (row,) = rate_ratios.learned(tables(runs), "frontend").to_dict("records")
        return row

    assert found()["verdict"] == "equal"
    row = found(native=[1])
    assert (row["candidate"], row["verdict"]) == ("native", "diverged")
    row = found(keras=[1])
    assert (row["candidate"], row["verdict"]) == ("keras", "diverged")
    assert found([1], [1])["verdict"] == "baseline diverged"


def test_replicas_learn_beside_one_with_the_batch_of_each_and_one_with_that_of_all():
    two = [*replicated(2, 64, 0.1)]
    for made in two:
        made["history"] = [{"epoch": 1, "val_accuracy": 0.5}]
    sides = replicated(1, 32, 0.1), replicated(1, 64, 0.15), two
    found = rate_ratios.learned(tables_of(*sides), "replicas")
    assert list(found.sizes) == [(64, 32), (64, 64)]
    assert list(found.candidate) == [2, 2]
    assert list(found.faster) == [True, True]


def test_how_runs_ended_is_told_of_each_side():
    four = [diverged(made) for made in replicated(4, 128, 0.1)]
    two = [made | {"status": "oom", "timing": {}} for made in replicated(2, 64, 0.1)]
    found = rate_ratios.endings(tables_of(replicated(1, 32, 0.1), two, four), "replicas")
    assert list(found.replicas) == [1, 2, 4]
    assert list(found.runs) == [3, 3, 3]
    assert list(found.lost) == [{}, {"oom": 3}, {"diverged": 3}]
    assert list(found.gains) == [False, False, True]
