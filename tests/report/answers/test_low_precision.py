from builders import FIXED, STOCHASTIC, emulated_runs, tables, tables_of
from support import mptexp

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import low_precision

PARAMS = """\
# Question: Does training in few bits work?
# Cost: under a minute
# Expected: it does
defaults:
  {model: mlp, image_size: 8, width: 0.02, epochs: 2, batch_size: 64, policy: float32}
include:
- {propagation: "<6,10>", weight_format: "<4,12>", rounding: stochastic}
"""


def section(*groups):
    (found,) = low_precision.sections(tables_of(*groups))
    return found


LOSS = "Difference from float32, percentage points [95 % interval]"


def test_without_emulated_formats_there_is_no_section():
    assert low_precision.sections(tables(list(emulated_runs([1, 2, 3])))) == []


def test_errors_stand_beside_float32_of_the_same_block():
    found = section(emulated_runs([2, 4, 6]), emulated_runs([3, 5.5, 6.5], lost=0.25, **FIXED))
    first, second = found.rows.to_dict("records")
    assert first["Validation error, %, mean (min–max)"] == "4.00 (2.00–6.00)"
    assert first[LOSS] == "0 (it is float32)"
    assert second["Validation error, %, mean (min–max)"] == "5.00 (3.00–6.50)"
    # Differences 1, 1.5 and 0.5: their mean, and 4.303 standard errors to each side.
    assert second[LOSS] == "+1.00 [−0.24, +2.24] (n = 3)"
    assert (second["Activation format"], second["Rounding"]) == ("<8,8>", "nearest")
    assert second["Updates lost to rounding"] == "25 %"


def test_networks_are_not_mixed():
    found = section(
        emulated_runs([1, 1, 1]),
        emulated_runs([9, 9, 9], model="lenet"),
        emulated_runs([3, 3, 3], **FIXED),
    )
    told = found.rows.set_index(["Network", "Activation format"])[LOSS]
    assert told["keydana_cnn", "<8,8>"].startswith("+2.00")
    found = section(emulated_runs([1, 1, 1]), emulated_runs([3, 3, 3], width=0.5, **FIXED))
    assert set(found.rows.Network) == {"keydana_cnn, width 1.0", "keydana_cnn, width 0.5"}
    assert found.rows[LOSS].tolist() == ["–", "0 (it is float32)"]


def test_runs_that_failed_are_counted():
    found = section(
        emulated_runs([1, 1, 1]), emulated_runs([0, 0, 0], status="diverged", **STOCHASTIC)
    )
    assert found.rows.Runs.tolist() == ["3", "3 (3 diverged)"]
    assert found.rows[LOSS].tolist() == ["0 (it is float32)", "–"]


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
    assert low_precision.TITLE in page
    assert "&lt;6,10&gt;" in page


def test_a_reason_that_all_differences_share_is_said_once():
    groups = [emulated_runs([2, 4, 6]), emulated_runs([3, 5, 7], **FIXED)]
    groups.append(emulated_runs([3, 5, 7], **STOCHASTIC))
    unknown = [made | {"identity": None} for group in groups for made in group]
    (found,) = low_precision.sections(tables(unknown))
    (head,) = [name for name in found.rows if name.startswith(LOSS)]
    assert head == f"{LOSS} (not valid: identity not recorded)"
    assert found.rows[head].tolist() == ["0 (it is float32)", "+1.00 (n = 3)", "+1.00 (n = 3)"]
