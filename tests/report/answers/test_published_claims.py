"""The studies' claims: consistent or not by intervals, else not tested here."""

import pytest
from builders import diverged, emulated_runs, published, record, tables

from mptexp.report.answers import published_claims


def found(rows, claim):
    (told,) = [f for of, f in published_claims.table(tables(rows)) if claim in of.words]
    return told


def pairs(policy, speedups, gpu="V100", **more):
    rows = []
    for block, speedup in enumerate(speedups):
        for name, step_s in (("float32", 0.3), (policy, 0.3 / speedup)):
            made = record(name, block, step_s, **more)
            made["parameters"]["gpu_model"] = gpu
            made["environment"] = {"device": gpu, "capability": [7, 0]}
            made["run_id"] = f"{len(rows):012x}"
            rows.append(made)
    return rows


@pytest.mark.parametrize(
    ("speedups", "three", "v100"),
    [
        ([3.5, 3.6, 3.4], "consistent", "inconsistent"),
        ([1.08, 1.09, 1.10], "inconsistent", "consistent"),
        ([2.7, 3.0, 3.3], "inconclusive", "inconsistent"),
        ([1.1, 1.15, 1.2], "inconsistent", "inconclusive"),
        ([3.5, 3.6], "not tested here", "not tested here"),
    ],
)
def test_speed_is_decided_by_its_interval(speedups, three, v100):
    rows = pairs("mixed_float16", speedups)
    assert found(rows, "three times as fast").finding == three
    told = found(rows, "V100")
    assert told.finding == v100
    assert len(told.runs) == (0 if v100 == "not tested here" else 6)


def test_a_device_without_tensor_cores_tests_nothing_of_speed():
    rows = pairs("mixed_float16", [1.1, 1.1, 1.1], gpu="Titan")
    for made in rows:
        made["environment"]["capability"] = [6, 1]
    assert found(rows, "three times as fast").finding == "not tested here"


@pytest.mark.parametrize(
    ("policy", "claim", "accuracies", "finding"),
    [
        ("mixed_float16", "as accurate", [0.905, 0.906, 0.905], "consistent"),
        ("mixed_float16", "as accurate", [0.5, 0.51, 0.5], "inconsistent"),
        ("mixed_float16", "as accurate", [0.8, 0.95, 0.9], "inconclusive"),
        # Lower, but not shown to be so by more than the margin.
        ("mixed_float16", "as accurate", [0.895, 0.894, 0.896], "inconclusive"),
        ("float16", "Pure float16", [0.5, 0.51, 0.5], "consistent"),
        ("float16", "Pure float16", [0.905, 0.906, 0.905], "inconsistent"),
    ],
)
def test_accuracy_is_decided_by_equivalence(policy, claim, accuracies, finding):
    rows = pairs(policy, [1, 1, 1])
    for made in rows:
        accuracy = 0.905
        if made["parameters"]["policy"] == policy:
            accuracy = accuracies[made["parameters"]["block"]]
        made["history"][-1]["val_accuracy"] = accuracy
    told = found(rows, claim)
    assert told.finding == finding
    assert "percentage points" in told.evidence


def test_float16_that_diverges_has_failed():
    rows = pairs("float16", [1, 1, 1])
    rows[-1]["status"] = "diverged"
    told = found(rows, "Pure float16")
    assert told.finding == "consistent"
    assert told.runs == (rows[-1]["run_id"],)


def peaks(**devices):
    """Runs on devices that each multiply as fast as said in float32 and in float16."""
    rows = []
    for device, both in devices.items():
        made = pairs("float16", [1], gpu=device)
        for one, dtype, peak in zip(made, ("float32", "float16"), both, strict=True):
            one["work"] = {"ceilings": {"dtype": dtype, "matmul_flops_per_s": peak}}
            one["run_id"] = f"{len(rows):012x}"
            rows.append(one)
    return rows


def test_products_in_float16_are_held_against_those_of_the_same_device():
    told = found(peaks(V100=(14e12, 90e12)), "four times less work")
    assert told.finding == "consistent"
    assert "6.4× as fast as in float32 on V100" in told.evidence
    # An H100 in float16 over a V100 in float32 would be 40 times.
    fast, slow = peaks(V100=(14e12, 30e12), H100=(50e12, 600e12))[::3]
    assert found([fast, slow], "four times less work").finding == "not tested here"
    rows = peaks(V100=(14e12, 30e12), H100=(50e12, 600e12))
    assert found(rows, "four times less work").finding == "inconclusive"


def test_a_scale_of_ones_own_is_no_test_of_accuracy():
    rows = pairs("mixed_float16", [1, 1, 1])
    for made in rows:
        made["parameters"]["loss_scale"] = 2.0**-16
        if made["parameters"]["policy"] == "mixed_float16":
            made["history"][-1]["val_accuracy"] = 0.3
    assert found(rows, "as accurate").finding == "not tested here"


def scaled(outcomes):
    """Three blocks of float32 and of mixed_float16 with each loss scale; an accuracy, or None."""
    rows = []
    for block in range(3):
        for scale, accuracy in [("float32", 0.9), *outcomes.items()]:
            policy = "float32" if scale == "float32" else "mixed_float16"
            made = record(policy, block, 0.1)
            made["parameters"]["loss_scale"] = "none" if scale == "float32" else scale
            made["status"] = "ok" if accuracy else "diverged"
            made["history"][-1]["val_accuracy"] = (accuracy or 0) + block / 1000
            made["run_id"] = f"{len(rows):012x}"
            rows.append(made)
    return rows


@pytest.mark.parametrize(
    ("outcomes", "chosen", "large", "small"),
    [
        # An absurd scale fails, but none is needed: that shows nothing of the choice.
        ({"none": 0.9, 1024.0: 0.9, 2.0**24: None}, "inconsistent", "consistent", None),
        ({"none": 0.3, 1024.0: 0.9, 2.0**24: None}, "consistent", "consistent", "consistent"),
        ({1024.0: 0.9, 2.0**24: None}, "not tested here", "consistent", None),
        ({"none": 0.3, 1024.0: 0.3}, "not tested here", None, None),
    ],
)
def test_a_scale_must_be_chosen_where_training_fails_without_one(outcomes, chosen, large, small):
    rows = scaled(outcomes)
    assert found(rows, "must be chosen").finding == chosen
    assert found(rows, "Too large").finding == (large or "not tested here")
    assert found(rows, "Too small").finding == (small or "not tested here")


@pytest.mark.parametrize(
    ("sweep", "large", "small"),
    [  # What failed in every run stood under "what it does not test": no scale is shown to train.
        (
            "loss-scale-cpu",
            "mixed_float16 diverges with 2²⁴, not with 2⁻⁸, 1, 8, 128, 1024 and 2¹⁵",
            "mixed_float16 stalls with 2⁻¹⁶, not with 2⁻⁸, 1, 8, 128, 1024 and 2¹⁵",
        ),
        # One run of six proves no scale too large; nor was a scale of 1 ever measured here.
        (
            "loss-scale-gpt-cpu",
            "mixed_float16 diverges with 2¹⁵ in 1 of 6 runs, not with no scale, 32 and 1024",
            "",
        ),
        (
            "loss-scale-deep-cpu",
            "",
            "mixed_float16 stalls with no scale, trains with 1024 and 2¹⁵",
        ),
    ],
)
def test_scales_that_fail_are_told_with_their_runs(sweep, large, small):
    rows = {
        claim.words: finding for claim, finding in published_claims.table(published(sweep).tables)
    }
    told = [rows["Too large a loss scale gives Inf and NaN"]]
    told.append(rows["Too small a loss scale does not converge"])
    assert [finding.evidence for finding in told] == [large, small]
    known = [("inconclusive" if "in 1 of 6" in words else "consistent") for words in (large, small)]
    for finding, expected, words in zip(told, known, (large, small), strict=True):
        assert finding.finding == (expected if words else "not tested here")
        assert bool(finding.runs) == bool(words)


def test_every_claim_stands_once_over_all_sweeps_with_its_rule():
    fast = published_claims.table(tables(pairs("mixed_float16", [3.5, 3.6, 3.4])))
    slow = published_claims.table(tables(pairs("mixed_float16", [1.08, 1.09, 1.10])))
    rows = published_claims.over_all({"fast": fast, "slow": slow})
    assert [row["claim"] for row in rows] == list(published_claims.CLAIMS)
    assert all(row["claim"].rule for row in rows)
    (three,) = [row for row in rows if "three times" in row["claim"].words]
    assert [(n, f.finding) for n, f in three["findings"]] == [
        ("fast", "consistent"),
        ("slow", "inconsistent"),
    ]
    (binary,) = [row for row in rows if "Binary" in row["claim"].words]
    assert binary["findings"] == []


@pytest.mark.parametrize("float32", ["diverged", "chance"])
def test_float16_that_diverges_beside_float32_that_does_has_shown_nothing(float32):
    # The lie: at a learning rate of 10 "pure float16 fails to train: consistent".
    rows = pairs("float16", [1, 1, 1])
    for made in rows:
        if made["parameters"]["policy"] == "float16" or float32 == "diverged":
            made["status"] = "diverged"
        else:
            made["in_force"]["chance_accuracy"] = 0.95
    assert found(rows, "Pure float16").finding == published_claims.UNTESTED


@pytest.mark.parametrize("lost", [1, 3])
def test_a_policy_that_diverges_does_not_converge_as_float32_does(lost):
    # The lie: consistent, by the points and the runs that are left.
    rows = pairs("mixed_bfloat16", [1.0, 1.1, 0.9])
    other = pairs("mixed_bfloat16", [1.0, 1.1, 0.9], batch_size=128)
    for number, made in enumerate(other):
        made["run_id"] = f"b{number:011x}"
        if made["parameters"]["policy"] != "float32" and made["parameters"]["block"] < lost:
            other[number] = diverged(made)
    told = found(rows + other, "converges as float32")
    assert told.finding == "inconsistent"
    assert told.evidence.startswith("runs diverged at 1 point; differences from the baseline")


def test_a_format_that_diverged_in_all_runs_decides():
    binary = {"propagation": "binary", "weight_format": "binary"}
    runs = [*emulated_runs([1, 1, 1]), *emulated_runs([1.1, 1.2, 1.0], **binary)]
    more = [*emulated_runs([1, 1, 1], width=2.0)]
    more += emulated_runs([1, 1, 1], status="diverged", width=2.0, **binary)
    assert found(runs, "Binary weights").finding == "consistent"
    assert found(runs + more, "Binary weights").finding == "inconsistent"


@pytest.mark.parametrize(
    ("name", "finding"), [("<6,10>", "consistent"), ("<2,14>", published_claims.UNTESTED)]
)
def test_rounding_to_nearest_is_claimed_to_fail_with_fewer_than_14_bits_of_fraction(name, finding):
    # The lie: a <2,14> that fails confirmed Gupta et al., whose claim is of shorter fractions.
    chosen = {"propagation": name, "weight_format": name}
    runs = [*emulated_runs([1, 1, 1]), *emulated_runs([90, 91, 90], **chosen)]
    assert found(runs, "rounding to nearest").finding == finding


@pytest.mark.parametrize(
    ("device", "has"),
    [
        ("NVIDIA GeForce GTX 1650", False),
        ("NVIDIA GeForce GTX 1660 Ti", False),
        ("NVIDIA GeForce MX450", False),
        ("NVIDIA T1000 8GB", False),
        ("NVIDIA GeForce RTX 2060", True),
        ("Tesla T4", True),
    ],
)
def test_a_gpu_without_tensor_cores_decides_nothing_about_them(device, has):
    # The lie: "3 to 4 times as fast on Tensor Cores: inconsistent", by a GTX 1650, which has none.
    rows = pairs("mixed_float16", [1.05, 1.06, 1.04], gpu=device)
    rows += peaks(**{device: (3e12, 6e12)})
    for number, made in enumerate(rows):
        made["run_id"] = f"{number:012x}"
        made["environment"]["capability"] = [7, 5]
    decided = "inconsistent" if has else published_claims.UNTESTED
    assert found(rows, "three times as fast").finding == decided
    assert found(rows, "four times less work").finding == decided


def test_master_weights_without_which_some_runs_diverged_are_not_called_unneeded():
    kept = {"policy": "mixed_float16", "weight_format": "float16"}
    good = [*emulated_runs([1.1, 1.2, 1.0], **kept)]
    bad = [*emulated_runs([1] * 5, status="diverged", **kept)][3:]
    runs = [*emulated_runs([1, 1, 1]), *good]
    assert found(runs, "without a float32 copy").finding == "inconsistent"
    assert found(runs + bad, "without a float32 copy").finding == "inconclusive"


def test_the_runs_of_a_claim_are_of_the_setting_that_says_so_most():
    # Published once: "fails with rounding to nearest: consistent", and the runs that trained.
    chosen = {"propagation": "<8,8>", "weight_format": "<8,8>"}
    runs = [*emulated_runs([2.0, 2.1, 1.9]), *emulated_runs([90.0, 90.1, 89.9], **chosen)]
    runs[3:3] = emulated_runs([6.0, 6.1, 5.9], loss_scale=128.0, **chosen)
    told = found(runs, "rounding to nearest")
    assert told.finding == "consistent"
    assert told.evidence == "2 settings: loss large, +4.0 to +88.0 points"
    assert len(told.runs) == 3
    assert not any("128.0" in run_id for run_id in told.runs)


def test_a_claim_on_accuracy_that_too_few_images_leave_open_was_tested():
    # "It is as accurate as float32" stood under what the sweep does not test.
    rows = {
        claim.words: f for claim, f in published_claims.table(published("quickstart-cpu").tables)
    }
    told = rows["It is as accurate as float32"]
    assert told.finding == "inconclusive"
    assert "at 1 point, margin 1 percentage point" in told.evidence
    assert told.runs
