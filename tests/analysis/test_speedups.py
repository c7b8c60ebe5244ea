import json
from dataclasses import replace

import numpy as np
import pytest
from builders import record, tables

from mptexp.analysis import contrast, speedups, summary, sweep_tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.pages import notes
from mptexp.report.tables import text_tables
from mptexp.report.text import wording


def test_a_speedup_is_baseline_over_candidate_within_blocks():
    # The machine slows down by half from block to block; the ratio is 2 throughout.
    rows = [
        record(policy, block, step_s * 1.5**block)
        for block in range(3)
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
    ]
    (row,) = tables(rows).speedups.to_dict("records")
    assert (row["baseline"], row["candidate"], row["blocks"]) == ("float32", "mixed_float16", 3)
    assert row["speedup"] == pytest.approx(2)
    assert row["low"] == pytest.approx(2, rel=2e-3)
    assert row["high"] == pytest.approx(2, rel=2e-3)


def test_both_baselines_where_the_default_is_tf32():
    rows = [
        record(policy, 0, step_s, default="tensorfloat32")
        for policy, step_s in (("float32", 0.4), ("tensorfloat32", 0.2), ("mixed_float16", 0.1))
    ]
    found = tables(rows).speedups.set_index(["baseline", "candidate"]).speedup
    assert found["tensorfloat32", "mixed_float16"] == pytest.approx(2)
    assert found["float32", "mixed_float16"] == pytest.approx(4)
    assert found["tensorfloat32", "float32"] == pytest.approx(0.5)
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.speedup, row.strict_speedup) == (pytest.approx(2), pytest.approx(4))


def test_only_pairs_count_and_failures_do_not():
    rows = [record(), record("mixed_float16", 1, 0.05), record("bfloat16") | {"status": "failed"}]
    assert tables(rows).speedups.empty
    both = tables([*rows, record("mixed_float16", 0, 0.05)]).speedups
    assert both.blocks.tolist() == [1]


def test_runs_that_differ_in_anything_else_are_not_repeats():
    rows = [
        record(policy, block, step_s, width=width)
        for block in range(3)
        for width, half in ((1.0, 0.2), (8.0, 0.05))
        for policy, step_s in (("float32", 0.1), ("mixed_float16", half))
    ]
    found = tables(rows).speedups.set_index("setting").speedup
    assert found["width 1"] == pytest.approx(0.5)
    assert found["width 8"] == pytest.approx(2)
    assert summary.starts_agree(tables(rows).results, rows)


def test_devices_that_share_a_batch_are_another_point():
    rows = [record(p, b, s) for b in range(3) for p, s in (("float32", 0.2), ("float16", 0.1))]
    rows += [record(p, b, 0.05) for b in range(3) for p in ("float32", "float16")]
    for made in rows[6:]:
        made["parameters"]["replicas"] = 2
        made["run_id"] += " on two"
    found = tables(rows).speedups.set_index("replicas").speedup
    assert found[1] == pytest.approx(2)
    assert found[2] == pytest.approx(1)
    assert set(wording.panels(tables(rows).results)) == {"GPU, 1 replica", "GPU, 2 replicas"}


def test_nothing_at_all_is_an_empty_table():
    failed = record() | {"status": "failed", "in_force": {}, "timing": {}}
    assert tables([failed]).speedups.empty
    assert "speedup" in tables([failed]).speedups


def sizes(*points):
    """Records of (policy, batch size, images per second in each block, or oom)."""
    rows = []
    for policy, size, rates in points:
        if rates == "oom":
            out = {"status": "oom", "timing": {}, "in_force": {}, "history": []}
            rows.append(record(policy, 0, batch_size=size) | out)
        else:
            rows += [record(policy, k, size / r, batch_size=size) for k, r in enumerate(rates)]
    return tables(rows)


def test_every_policy_has_its_best_batch():
    found = sizes(
        ("float32", 32, [100, 110, 120]),
        ("float32", 64, [200, 220, 240]),
        ("float32", 128, "oom"),
        ("mixed_float16", 32, [90, 99, 108]),
        ("mixed_float16", 64, [300, 330, 360]),
        ("mixed_float16", 128, [600, 660, 720]),
    )
    rows = speedups.at_best_batch(found).set_index("policy")
    base, mixed = rows.loc["float32"], rows.loc["mixed_float16"]
    assert (base.batch_size, base.largest, base.too_large) == (64, 64, 128)
    assert (mixed.batch_size, mixed.largest) == (128, 128)
    assert np.isnan(mixed.too_large)
    assert mixed.speedup == pytest.approx(3)
    assert (mixed.low, mixed.high) == pytest.approx((3, 3), rel=2e-3)
    assert np.isnan(base.speedup)
    shown = text_tables.best_rows(found)
    assert shown["Smallest that ran out of memory"].tolist() == ["128", "–"]
    assert (
        shown["Images/s against the baseline's best [95 % interval]"].tolist()[0] == "1 (float32)"
    )


def test_where_some_runs_had_memory_and_others_not_no_best_batch_is_compared():
    # The lie: "16.2× faster" of policies that are equally fast at both sizes.
    rows = [
        record(policy, block, size / 3200, size)
        for policy in ("float32", "mixed_float16")
        for size in (32, 512)
        for block in range(3)
    ]
    lost = next(made for made in rows if made["parameters"]["batch_size"] == 512)
    lost |= {"status": "oom", "timing": {}, "in_force": {}, "history": []}
    found = tables(rows)
    best = speedups.at_best_batch(found).set_index("policy")
    assert best.loc["mixed_float16", ["speedup", "low", "high"]].isna().all()
    assert "others had not, that is open" in notes.best_batches(found)
    assert "open" not in notes.best_batches(sizes(("float32", 32, [100]), ("float32", 64, [90])))


def test_one_batch_size_is_no_comparison_of_batches():
    assert text_tables.best_rows(sizes(("float32", 32, [100]), ("float16", 32, [90]))).empty


def test_a_larger_batch_is_not_always_better():
    found = sizes(("float32", 32, [100]), ("float32", 64, [90]), ("float16", 64, [300]))
    assert speedups.at_best_batch(found).batch_size.tolist() == [32, 64]
    largest = text_tables.best_rows(found)["Largest batch that ran"].tolist()
    assert largest == ["64", "64 (the only one measured)"]
    out_everywhere = sizes(("float32", 32, "oom"), ("float32", 64, "oom"))
    assert speedups.at_best_batch(out_everywhere).empty


def test_backends_keep_their_own_limits():
    rows = []
    for backend, jit in (("tensorflow", False), ("jax", True)):
        for made in sizes(("float32", 32, [100]), ("float32", 64, "oom")).records:
            made["parameters"]["backend"] = backend
            made["run_id"] += backend
            made["in_force"] = made["in_force"] and made["in_force"] | {"jit": jit}
            rows.append(made)
    found = speedups.at_best_batch(tables(rows)).set_index("backend")
    assert found.too_large.to_dict() == {"tensorflow": 64, "jax": 64}


def measured_again(place, sets):
    """A sweep of three blocks that was measured so often, each set by the runs' step times."""
    for call, made in enumerate(sets):
        for policy, times in made.items():
            for block, step_s in enumerate(times):
                one = record(policy, block, step_s) | {"invocation": f"call {call}", "boot": "b"}
                folder = place.partial / one["run_id"]
                store.write_record(folder / "record.json", one)
                place.publish(one["run_id"])
    return sweep_tables.load(place)


SLOW = {"float32": (0.10, 0.151, 0.1), "mixed_float16": (0.1, 0.1, 0.15)}
AGREE = {"float32": (0.15, 0.151, 0.152), "mixed_float16": (0.1, 0.1, 0.101)}


def test_what_was_measured_until_repeats_agreed_claims_no_more_than_all_of_it(tmp_path):
    # The lie: where runs are slow by half at random, a set that agrees is often one in which one
    # policy was slow in all blocks.
    made = measured_again(SweepDir(tmp_path / "again"), [SLOW, SLOW, AGREE])
    (row,) = made.speedups.itertuples()
    assert (row.flags, row.blocks) == ("", 3)
    assert row.claim_low < 1 < row.low < row.speedup < row.claim_high
    once = measured_again(SweepDir(tmp_path / "once"), [AGREE]).speedups
    assert once.claim_low.item() > 1.4


@pytest.mark.parametrize("signed", [False, True])
def test_whoever_edits_what_was_measured_before_narrows_no_claim(tmp_path, signed):
    # The lie: "1.5x faster", claimed, once the earlier sets say that others disturbed them.
    place = SweepDir(tmp_path)
    measured_again(place, [SLOW, SLOW, AGREE])
    paths = [*place.superseded.glob("*/record.json")]
    for path in paths:
        disturbed = {**store.read_record(path), "readings": {"other_load_frac": 0.5}}
        text = json.dumps(disturbed)
        store.write_record(path, disturbed) if signed else path.write_text(text)
    made = sweep_tables.load(place)
    assert made.speedups.claim_low.item() < 1 < made.speedups.claim_high.item()
    assert sorted(made.changed) == [f"{path}: {store.CHANGED}" for path in sorted(paths)]
    paths[0].write_text("{")
    (fault,) = sweep_tables.load(place).damaged
    assert fault.startswith(str(paths[0]))


def test_repeats_that_were_flagged_or_of_another_model_widen_nothing(tmp_path):
    place = SweepDir(tmp_path)
    measured_again(place, [SLOW])
    for path in place.runs.glob("*/record.json"):
        one = store.read_record(path)
        if one["parameters"]["policy"] == "float32":
            one["identity"] |= {"code": "older"}
        one["readings"] = {"other_load_frac": 0.5}
        store.write_record(path, one)
    made = measured_again(place, [AGREE])
    assert len(list(place.superseded.glob("*/record.json"))) == 6
    assert made.superseded.empty
    assert made.speedups.claim_low.item() > 1.4


def test_times_that_are_equal_to_the_digit_are_known_no_better_than_the_clock():
    # The lie: "1.0005x faster [1.00, 1.00]" from three equal ratios.
    rows = [record(block=b, step_s=0.1) for b in range(3)]
    rows += [record("mixed_float16", b, 0.1 / 1.0005) for b in range(3)]
    (row,) = tables(rows).speedups.itertuples()
    assert row.low < 1 < row.high
    assert row.claim_low < 1 < row.claim_high
    assert contrast.unpaired([0.1] * 3, [0.1 / 1.0005] * 3).low < 1
    assert contrast.unpaired([0.1] * 3, [0.1 / 1.02] * 3).low > 1


def at_two_sizes():
    """Records of float32, best at 32, and of mixed_float16, best at 64, which is 3 times faster."""
    rows = []
    for block in range(3):
        for size, step_s in ((32, 0.32), (64, 0.9)):
            rows.append(record("float32", block, step_s, size) | {"invocation": "a", "boot": "b"})
        for size, step_s in ((32, 0.30), (64, 0.213)):
            rows.append(record("mixed_float16", block, step_s, size))
            rows[-1] |= {"invocation": "a", "boot": "b"}
    return rows


def best_of(rows):
    table = speedups.at_best_batch(tables(rows)).set_index("policy")
    assert table.batch_size.to_dict() == {"float32": 32, "mixed_float16": 64}
    return table.loc["mixed_float16"]


def test_best_batches_are_compared_within_a_call_and_a_model():
    # The lies: a model edited between two batch sizes, or one of them measured days later, are
    # "3.00x faster at each policy's best batch size".
    assert best_of(at_two_sizes()).low > 2.9
    edited, later = at_two_sizes(), at_two_sizes()
    for one, other in zip(edited, later, strict=True):
        if one["parameters"]["batch_size"] == 64:
            one["identity"] = one["identity"] | {"model_source": "other"}
            other["invocation"] = "another"
    row = best_of(edited)
    assert row["flags"] == "not comparable"
    assert np.isnan([row.speedup, row.low, row.high]).all()
    row = best_of(later)
    assert row["flags"] == "measured apart"
    assert np.isnan([row.low, row.high]).all()
    assert wording.ratio_of(row).endswith("(not valid: measured apart, n = 3)")
    for one in later:
        one["invocation"] = "a" if one["parameters"]["block"] else one["invocation"]
    row = best_of(later)
    assert (row["flags"], row.blocks) == ("", 2)  # those in which one call measured both


def test_one_batch_that_is_best_for_both_is_one_comparison():
    # The lie: 2.00x faster [1.32, 3.05] at the same batch size, [1.21, 3.31] at the best ones, of
    # the same runs; and a second family of them.
    noisy = ([100, 112, 119], [200, 228, 231])
    points = [(p, s, [r * s / 32 for r in rates]) for s in (32, 64)
              for p, rates in zip(("float32", "mixed_float16"), noisy, strict=True)]  # fmt: skip
    found = sizes(*points)
    (claim,) = found.claims[found.claims.batch_size == 64].itertuples()
    best = speedups.at_best_batch(found).set_index("policy").loc["mixed_float16"]
    assert (best.low, best.high) == (claim.low, claim.high)
    assert "claimed" not in best
    assert notes.families(found).startswith(
        "Intervals hold together within each of 3 families of comparisons: time at the same batch "
        "size (2), accuracy (2) and memory (2)."
    )
    apart = tables(at_two_sizes())
    assert "time at each policy's best batch size (1)" in notes.families(apart)


def test_ratios_are_known_by_their_runs_both_ways():
    found = tables(at_two_sizes())
    ok = found.ok[found.ok.batch_size == 32]
    left, right = (frozenset(ok.run_id[ok.policy == p]) for p in ("mixed_float16", "float32"))
    (claim,) = found.claims[found.claims.batch_size == 32].itertuples()
    assert found.ends_by_runs[left, right] == (claim.low, claim.high)
    assert found.ends_by_runs[right, left] == (1 / claim.high, 1 / claim.low)
    fewer = speedups.sides_of({0: "a", 1: "b"}, {1: "c", 2: "d"})
    assert fewer == (frozenset("b"), frozenset("c"))
    assert fewer not in found.ends_by_runs


def test_a_best_batch_that_the_other_policy_was_not_measured_at_is_no_gain():
    # The lie: float32 timed out at 64, or was left out there, and "is 3.00x slower".
    rows = at_two_sizes()
    lost = [m for m in rows if (m["parameters"]["policy"], m["parameters"]["batch_size"])
            == ("float32", 64)]  # fmt: skip
    for made in lost:
        made |= {"status": "timeout", "timing": {}, "in_force": {}, "history": []}
    assert np.isnan(best_of(rows).speedup)
    assert np.isnan(best_of([made for made in rows if made not in lost]).speedup)
    for made in lost:
        made["status"] = "oom"
    assert best_of(rows).low > 2.9
    found = tables([made for made in rows if made not in lost])
    found = replace(found, attempts=tables(lost).results)
    assert speedups.at_best_batch(found).speedup.iloc[1] == pytest.approx(3, rel=0.01)
