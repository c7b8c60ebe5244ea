import pytest
from builders import record, tables
from support import mptexp

from mptexp.analysis import emulated
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir

PARAMS = """\
# Question: Does training in few bits work?
# Cost: under a minute
# Expected: it does
defaults:
  {model: mlp, image_size: 8, width: 0.02, epochs: 2, batch_size: 64, policy: float32}
include:
- {propagation: "<6,10>", weight_format: "<4,12>", rounding: stochastic}
"""


def runs(errors, policy="float32", status="ok", swallowed=None, **parameters):
    """A run per block with these validation errors, in percent."""
    for block, error in enumerate(errors):
        made = record(policy, block)
        made["parameters"] |= parameters
        made["run_id"] = f"{policy}-{block}-{sorted(parameters.items())}"
        made["status"] = status
        made["swallowed_updates_frac"] = swallowed
        made["history"] = [{"epoch": 1, "val_accuracy": 1 - error / 100}] if status == "ok" else []
        yield made


def section(*groups):
    (found,) = emulated.sections(tables([made for group in groups for made in group]))
    return found


FIXED = {"propagation": "<8,8>", "weight_format": "<8,8>"}
STOCHASTIC = FIXED | {"rounding": "stochastic"}
LOSS = "Difference from float32, percentage points [95 % interval]"


def test_without_emulated_formats_there_is_no_section():
    assert emulated.sections(tables(list(runs([1, 2, 3])))) == []


def test_errors_stand_beside_float32_of_the_same_block():
    found = section(runs([2, 4, 6]), runs([3, 5.5, 6.5], swallowed=0.25, **FIXED))
    first, second = found.rows.to_dict("records")
    assert first["Validation error, % (least to most)"] == "4.00 (2.00 to 6.00)"
    assert first[LOSS] == "0 (it is float32)"
    assert second["Validation error, % (least to most)"] == "5.00 (3.00 to 6.50)"
    # Differences 1, 1.5 and 0.5: their mean, and 4.303 standard errors to each side.
    assert second[LOSS] == "+1.00 [-0.24, +2.24] (n = 3)"
    assert (second["Passes"], second["Rounding"]) == ("<8,8>", "nearest")
    assert second["Swallowed updates"] == "25 %"


def test_networks_are_not_mixed():
    found = section(runs([1, 1, 1]), runs([9, 9, 9], model="lenet"), runs([3, 3, 3], **FIXED))
    told = found.rows.set_index(["Network", "Passes"])[LOSS]
    assert told["keydana_cnn", "<8,8>"].startswith("+2.00")
    found = section(runs([1, 1, 1]), runs([3, 3, 3], width=0.5, **FIXED))
    assert set(found.rows.Network) == {"keydana_cnn, width 1.0", "keydana_cnn, width 0.5"}
    assert found.rows[LOSS].tolist() == ["–", "0 (it is float32)"]


def test_runs_that_failed_are_counted():
    found = section(runs([1, 1, 1]), runs([0, 0, 0], status="diverged", **STOCHASTIC))
    assert found.rows.Runs.tolist() == ["3", "3 (3 diverged)"]
    assert found.rows[LOSS].tolist() == ["0 (it is float32)", "–"]
    assert found.sentences == []


@pytest.mark.parametrize(
    ("stochastic", "nearest", "said"),
    [
        ([1.1, 1.2, 1.3], [90, 91, 90], "this agrees, and nearest rounding is worse"),
        ([1.1, 1.2, 1.3], [1.2, 1.1, 1.3], "agrees; that nearest rounding is worse is not shown"),
        ([31, 32, 33], [90, 91, 90], "this does not agree"),
        ([1, 30, 1], [90, 91, 90], "whether this agrees is undecided"),
        ([1.1, 1.2], [90, 91], "too few repeats to say whether this agrees"),
    ],
)
def test_gupta_is_agreed_with_by_rule(stochastic, nearest, said):
    found = section(runs([1, 1, 1]), runs(stochastic, **STOCHASTIC), runs(nearest, **FIXED))
    (sentence,) = found.sentences
    assert sentence.startswith("Gupta et al. (2015)")
    assert sentence.endswith(f"{said}.")


@pytest.mark.parametrize(
    ("errors", "said"),
    [([1.1, 1.2, 1.3], "this agrees."), ([31, 32, 33], "this does not agree.")],
)
@pytest.mark.parametrize("name", ["binary", "dynamic<10>"])
def test_the_other_papers_on_formats(name, errors, said):
    found = section(runs([1, 1, 1]), runs(errors, propagation=name))
    (sentence,) = found.sentences
    assert sentence.endswith(said)


@pytest.mark.parametrize(
    ("errors", "said"),
    [([31, 32, 33], "this agrees"), ([1.1, 0.9, 1], "here they are not needed")],
)
def test_master_weights(errors, said):
    half = {"policy": "mixed_float16", "weight_format": "float16"}
    kept = runs([1, 1, 1.1], rounding="stochastic", **half)
    found = section(runs([1, 1, 1]), runs(errors, swallowed=0.9, **half), kept)
    (sentence,) = found.sentences
    assert sentence.startswith("Micikevicius et al. (2018)")
    assert "swallows 90 % of the updates" in sentence
    assert "+0.03 points [-0.11, +0.18] (n = 3) if it is rounded stochastically" in sentence
    assert sentence.endswith(f"{said}.")


def test_a_sweep_in_few_bits_is_run_and_reported(tmp_path):
    (tmp_path / "few.yaml").write_text(PARAMS)
    done = mptexp("run", "few.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = SweepDir(tmp_path / "reports/few")
    records, _ = store.read_records(folder)
    (fixed,) = records
    assert 0 < fixed["swallowed_updates_frac"] < 1
    assert fixed["in_force"]["propagation"] == "<6,10>"
    assert fixed["in_force"]["weight_format"] == "<4,12>"
    assert any("emulated" in mark for mark in fixed["marks"])
    assert fixed["work"]["flops_per_step"] > 0
    assert fixed["history"][-1]["val_accuracy"] > 0.2
    assert "swallowed_updates_frac" in (folder.root / "results.csv").read_text()
    page = folder.index.read_text()
    assert emulated.TITLE in page
    assert "&lt;6,10&gt;" in page
