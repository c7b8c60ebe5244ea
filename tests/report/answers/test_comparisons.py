import pandas as pd
from builders import LOGICAL_CPU, labels, replicated, tables, tables_of, written_sweep

from mptexp.analysis import two_sweeps
from mptexp.records import store
from mptexp.records.schema import VOID
from mptexp.report.answers import comparisons


def test_xla_that_differs_is_said_and_like_is_preferred():
    on_one, off_one = replicated(1, 32, 0.05, jit=True), replicated(1, 32, 0.1)
    two = list(replicated(2, 64, 0.1))
    (section,) = comparisons.sections(tables_of(on_one, two))
    assert section.rows.XLA.iloc[1] == "off (on in 1 replica, so this ratio is of XLA too)"
    (section,) = comparisons.sections(tables_of(replicated(1, 32, 0.05, jit=True), off_one, two))
    last = section.rows.iloc[-1]
    assert last.XLA == "off"
    head = "Speed against 1 replica, same batch per replica [95 % interval]"
    assert last[head] == "2.00× faster [2.00, 2.00] (n = 3)"


def test_logical_devices_are_said_to_be_no_hardware():
    groups = replicated(1, 32, 0.1, device=LOGICAL_CPU), replicated(2, 64, 0.2, device=LOGICAL_CPU)
    (section,) = comparisons.sections(tables_of(*groups))
    assert "says nothing of hardware" in section.note
    assert "GPU, float32: 2 replicas" in section.sentences[0]
    assert "efficiency 0.50" in section.sentences[0]
    (section,) = comparisons.sections(tables_of(replicated(1, 32, 0.1), replicated(2, 64, 0.2)))
    assert "says nothing of hardware" not in section.note
    # The lie: the same of GPUs, beside which a CPU was measured.
    both = [
        replicated(n, 32 * n, 0.1, device=device, gpu_model=device)
        for n in (1, 2)
        for device in ("NVIDIA H200", LOGICAL_CPU)
    ]
    (scaling,) = [s for s in comparisons.sections(tables_of(*both)) if s.title == "Scaling"]
    assert f"**Those on {LOGICAL_CPU} are logical devices of one CPU" in scaling.note


def test_a_sweep_without_replicas_or_frameworks_has_no_section():
    assert comparisons.sections(tables_of(replicated(1, 32, 0.1))) == []
    assert comparisons.sections(tables([])) == []


def test_frameworks_stand_beside_tensorflow():
    both = [list(replicated(1, 32, 0.1)), list(replicated(1, 32, 0.05, jit=True, backend="jax"))]
    (section,) = comparisons.sections(tables_of(*both))
    assert "All frameworks began from the same initial weights." in section.note
    rows = section.rows.set_index("Framework")
    assert rows.loc["JAX", "Speed against TensorFlow [95 % interval]"].startswith("2.00×")
    assert rows.loc["JAX", "XLA"] == "on (off in TensorFlow, so this ratio is of XLA too)"


def test_frameworks_that_began_otherwise_are_told():
    one, other = list(replicated(1, 32, 0.1)), list(replicated(1, 32, 0.1, backend="jax"))
    other[1]["in_force"]["initial_weights"] = "others"
    (section,) = comparisons.sections(tables_of(one, other))
    assert "did not begin from the same initial weights" in section.note


def test_what_failed_is_no_row():
    bad = list(replicated(2, 64, 0.1))
    for made in bad:
        made |= {"status": "failed", "in_force": {}, "timing": {}}
    assert comparisons.sections(tables_of(replicated(1, 32, 0.1), bad)) == []


def test_few_runs_have_no_interval(tmp_path):
    a, b = (written_sweep(tmp_path / n, "A100", 1.0, runs=2) for n in "ab")
    table = comparisons.side_by_side(two_sweeps.points(*two_sweeps.load([a], [b])))
    assert isinstance(table, pd.DataFrame)
    assert (
        table["A / B, above 1: B is faster"].tolist()
        == ["1.00× (no interval: one session each; n = 2, 2)"] * 2
    )


def test_flags_stand_in_the_cells_of_two_sweeps_that_they_invalidate(tmp_path):
    # The lie: accuracies and memory of runs that are not valid, without a word.
    a, b = (written_sweep(tmp_path / n, "A100", 1.0) for n in "ab")
    for path in a.runs.glob("*/record.json"):
        made = store.read_record(path)
        made["in_force"] |= {"chance_accuracy": 0.95, "validation_labels": labels(0.95)}
        made["marks"] = [f"{VOID}: 2 runs shared this machine"]
        store.write_record(path, made)
    row = comparisons.side_by_side(two_sweeps.points(*two_sweeps.load([a], [b]))).iloc[0]
    assert "(not valid: not trained)" in row["Accuracy, A | B"]
    assert "(not valid: in parallel)" in row["Memory, A | B"]


def test_what_compiles_pytorch_is_not_called_xla():
    both = [list(replicated(1, 32, 0.1)), list(replicated(1, 32, 0.05, jit=True, backend="torch"))]
    (section,) = comparisons.sections(tables_of(*both))
    (cell,) = section.rows["XLA or torch.compile"][section.rows.Framework == "PyTorch"]
    assert cell == "on (off in TensorFlow, so this ratio is of torch.compile too)"


def test_devices_with_and_without_a_compiler_are_told_apart():
    rows = [
        replicated(1, 32, step_s, jit=jit, gpu_model=gpu)
        for gpu, slow in (("A100", 1), ("P100", 2))
        for jit, step_s in ((False, 0.1 * slow), (True, 0.08 * slow))
    ]
    section = next(s for s in comparisons.sections(tables_of(*rows)) if "Device" in s.rows)
    assert not section.rows.duplicated(["Device", "XLA"]).any()
    two = [replicated(2, 64, 0.1, jit=jit) for jit in (False, True)]
    one = [replicated(1, 32, 0.1, jit=jit) for jit in (False, True)]
    (section,) = comparisons.sections(tables_of(*one, *two))
    assert len({sentence.partition(":")[0] for sentence in section.sentences}) == 2


def test_no_ratio_over_tensorflow_is_spoken_of_where_it_was_not_measured():
    both = [list(replicated(1, 32, 0.1, backend=name)) for name in ("jax", "torch")]
    (section,) = comparisons.sections(tables_of(*both))
    assert "over TensorFlow's" not in section.note


def test_of_two_sweeps_no_end_of_an_interval_reads_as_one():
    row = {"ratio": 1.012, "low": 1.0031, "high": 1.021, "flags": "", "runs_a": 3, "runs_b": 3}
    row |= {"sessions_a": 3, "sessions_b": 3}
    assert comparisons._ratio(row).startswith("1.01× [1.003, 1.02]")
    small = row | {"ratio": 0.0034, "low": 0.0031, "high": 0.0037}
    assert comparisons._ratio(small).startswith("0.0034× [0.0031, 0.0037]")


def test_results_that_were_measured_again_or_discarded_are_named(tmp_path):
    # The lie: "1.11× [1.10, 1.12] (3 and 3 sessions)", and nothing of twelve results thrown away.
    place = written_sweep(tmp_path / "a", "V100", 1.0, runs=1)
    assert comparisons.measured_again(place) == ""
    place.measured.write_text("0123456789ab\nfedcba987654\n")  # two that are here no longer
    assert ": 2 results discarded: what they were before is in no ratio here" in (
        comparisons.measured_again(place)
    )
