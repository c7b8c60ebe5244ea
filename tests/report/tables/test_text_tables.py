from dataclasses import replace

import pytest
from builders import diverged, record, tables, three

from mptexp.analysis.sweep_tables import Options
from mptexp.report.pages import notes
from mptexp.report.tables import text_tables


def test_what_varies_stands_in_the_table():
    rows = text_tables.headline_rows(tables([record(), record(width=2.0)]))
    assert rows.Setting.tolist() == ["width 1", "width 2"]


def test_a_memory_that_is_not_known_is_not_made_up():
    rows = text_tables.headline_rows(tables([record() | {"peak_memory_bytes": None}]))
    assert "Peak memory" not in rows
    both = tables([record(), record("mixed_float16") | {"peak_memory_bytes": None}])
    assert text_tables.headline_rows(both)["Peak memory"].tolist() == ["1,024 MiB", "–"]


def test_the_baseline_is_named_in_the_column_head():
    rows = text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9]))
    assert "Speed against float32 (the default) [95 % interval]" in rows
    both = tables(
        [record(default="tensorfloat32"), record("tensorfloat32", default="tensorfloat32")]
    )
    rows = text_tables.headline_rows(both)
    assert "Speed against TF32 (the default) [95 % interval]" in rows
    assert "Speed against strict float32" in rows


def test_no_ratio_stands_without_its_interval_and_n():
    text = text_tables.markdown(text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9])))
    for line in text.splitlines():
        if "×" in line:
            assert "[" in line
            assert "(n = 3)" in line


BUSY = {"marks": ["measured while other programs used the processors"]}


def asked(runs, **options):
    return replace(tables(runs), options=Options(**options))


@pytest.mark.parametrize(
    ("parameters", "ended_by"),
    [({"phase": "inference"}, "epochs"), ({"input_mode": "resident"}, "epochs"), ({}, "target_ci")],
)
def test_runs_none_of_which_counts_as_trained_have_a_price_and_no_target(parameters, ended_by):
    # The lie: no report at all, but a TypeError: of no run pandas makes text, with no median.
    runs = [record(policy, step_s=0.32) for policy in ("float32", "mixed_float16")]
    for one in runs:
        one["parameters"] |= parameters
        one["timing"]["ended_by"] = ended_by
    made = asked(runs, price_per_hour=3.6, target_accuracy=0.5)
    rows = text_tables.detail_rows(made)
    assert rows["Cost per million images"].tolist() == ["10", "10"]
    assert not [name for name in rows if "accuracy" in name or "training" in name]
    assert "accuracy" not in notes.details(made)


def test_what_is_computed_of_times_that_are_not_valid_says_so():
    # The lie: 20.0 s, 0.869 and 0.0111 of runs beside other programs, without any mark.
    runs = [record(block=b, step_s=0.32) for b in range(3)]
    runs += [record("mixed_float16", b, 0.16) | BUSY for b in range(3)]
    for one in runs:
        one["history"][-1]["elapsed_s"] = 1.0
    made = asked(runs, price_per_hour=3.6, target_accuracy=0.5)
    rows = text_tables.detail_rows(made).set_index("Policy")
    mark = " (not valid: interference)"
    assert not [cell for cell in rows.loc["float32"] if "valid" in str(cell)]
    assert rows.loc["mixed_float16"].drop("Batch size").to_dict() == {
        "ms per step, 5–95 %": f"160.00–160.00{mark}",
        "Time to 50 % accuracy": f"1.0 s{mark}",
        "Cost per million images": f"5{mark}",
        "Cost per training": f"0.001{mark}",
    }


def ended_by_max_steps(made, steps=24, elapsed_s=20.0):
    """The record of a training that max_steps ended."""
    made["parameters"]["max_steps"] = steps
    made["timing"]["ended_by"] = "max_steps"
    made["history"][-1]["elapsed_s"] = elapsed_s
    return made


def test_what_max_steps_ended_is_no_whole_training_without_a_word():
    # The lie: "Cost per training 0.0158", of 24 steps; "not reached", of an accuracy that a whole
    # training was not given the time to reach.
    runs = [ended_by_max_steps(record(p, step_s=0.32)) for p in ("float32", "mixed_float16")]
    runs[1]["history"][-1]["val_accuracy"] = 0.97
    made = asked(runs, price_per_hour=3.6, target_accuracy=0.95)
    rows = text_tables.detail_rows(made)
    assert rows["Cost per training"].tolist() == ["0.02 (ended by max_steps 24)"] * 2
    (head,) = [name for name in rows if "accuracy" in name]
    assert rows[head].tolist() == ["not reached (ended by max_steps 24)", "20.0 s"]
    # What each image costs does not depend on how many there were.
    assert rows["Cost per million images"].tolist() == ["10", "10"]
    for one in runs:
        one["timing"]["ended_by"] = "epochs"
    rows = text_tables.detail_rows(asked(runs, price_per_hour=3.6, target_accuracy=0.95))
    assert rows["Cost per training"].tolist() == ["0.02", "0.02"]
    assert rows[head].tolist() == ["not reached", "20.0 s"]


def test_the_price_of_a_training_says_how_many_runs_it_is_of():
    # The lie: "1", as float32's, of the one of six runs that did not diverge.
    runs = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(6)]
    runs[7:] = map(diverged, runs[7:])
    rows = text_tables.detail_rows(asked(runs, price_per_hour=3600.0))
    assert rows["Cost per training"].tolist() == ["1", "1 (1 of 6 runs)"]
    for one in runs:
        one["parameters"]["max_steps"] = 24
        one["timing"] |= {"ended_by": "max_steps"} if one["history"] else {}
    rows = text_tables.detail_rows(asked(runs, price_per_hour=3600.0))
    said = "1 (1 of 6 runs; ended by max_steps 24)"
    assert rows["Cost per training"].tolist() == ["1 (ended by max_steps 24)", said]


def test_an_accuracy_that_was_reached_nobody_knows_when_is_not_called_not_reached():
    # The lie: "Time to 85 % accuracy: not reached", of 90 %: the record lacks elapsed_s.
    runs = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(2)]
    for one in runs[:3]:
        one["history"][-1]["elapsed_s"] = 20.0
    rows = text_tables.detail_rows(asked(runs, target_accuracy=0.85))
    assert rows["Time to 85 % accuracy"].tolist() == ["20.0 s", "–"]


def inferred(policy, block, latencies_s):
    """The record of an inference whose first batch is no latency."""
    made = record(policy, block)
    made["parameters"]["phase"] = "inference"
    made["timing"] |= {"latency_p50_s": 0.007, "latency_p99_s": 0.009, "latency_warmup": 1}
    return made | {"latencies_s": [9.0, *latencies_s]}


def test_few_latencies_have_a_slowest_and_no_99th_percentile():
    # The lie: "7.00 ms (9.00)" as the 99 %, of 38 batches a run, whose largest that is.
    few = [inferred("float32", block, [0.007] * 37 + [0.009]) for block in range(3)]
    many = [inferred("mixed_float16", block, [0.007] * 99 + [0.008] * 2) for block in range(3)]
    rows = text_tables.headline_rows(tables([*few, *many]))
    shown = ["7.00 ms (slowest of 114: 9.00)", "7.00 ms (8.00)"]
    assert rows["Latency, median (99 %)"].tolist() == shown
    rows = text_tables.headline_rows(tables(few))
    assert rows["Latency, median (slowest)"].tolist() == shown[:1]
    assert "99 %" not in rows.to_string()
    # A record without them still has its median, and a training has none.
    silent = [{name: v for name, v in run.items() if name != "latencies_s"} for run in few]
    rows = text_tables.headline_rows(tables(silent))
    assert rows.filter(like="Latency").iloc[0].tolist() == ["7.00 ms"]
    assert not [head for head in text_tables.headline_rows(tables([record()])) if "Latency" in head]


def test_energy_per_image_is_not_valid_where_times_are_not():
    # The lie: "156 mJ", of power over images per second of a run beside other programs.
    reading = {"readings": 40, "power_w": 100.0, "energy_per_image_j": 0.2, "utilization_frac": 0.5}
    runs = [record() | {"readings": reading}, record("mixed_float16") | BUSY]
    runs[1] |= {"readings": reading}
    rows = text_tables.sensor_rows(tables(runs))
    assert rows["Energy per image"].tolist() == ["200 mJ", "200 mJ (not valid: interference)"]
    assert rows["Power"].tolist() == ["100 W", "100 W"]


def test_readings_of_some_repeats_say_of_how_many():
    # The lie: "medians over repeats", of the one of three in which the device was read.
    runs = [record(block=block) for block in range(3)]
    runs[1] |= {"readings": {"readings": 4, "power_w": 100.0, "utilization_frac": 0.5}}
    (row,) = text_tables.sensor_rows(tables(runs)).to_dict("records")
    assert (row["Power"], row["Utilization"]) == ("100 W (1 of 3 runs)", "50 % (1 of 3 runs)")


def test_what_disturbed_one_repeat_is_not_hidden_by_the_others():
    # The lie: "Throttled 0 % of readings" beside "(not valid: throttled)", a median of three.
    runs = [record(block=block) for block in range(3)]
    for one, frac in zip(runs, (0.0, 0.5, 0.0), strict=True):
        one["readings"] = {"throttled_frac": frac, "other_load_frac": frac / 100}
        one["readings"] |= {"other_processes": int(frac > 0), "power_w": 100 + frac}
    (row,) = text_tables.sensor_rows(tables(runs)).to_dict("records")
    assert row["Throttled, at most"] == "50 % of readings"
    assert row["Others on the GPU, at most"] == "1"
    assert row["Processor used by others, at most"] == "0.5 %"  # never 0 % of what there was
    assert row["Power"] == "100 W"


def test_a_run_that_diverged_has_not_reached_the_accuracy():
    # The lie: "20.0 s (what every run reached)", of one run beside two that diverged.
    runs = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(3)]
    for one in runs:
        one["history"][-1]["elapsed_s"] = 20.0
    lost = [diverged(one) for one in runs[4:]]
    for one in lost:
        one["in_force"].pop("jit")  # not known of a run that ended early
    made = tables([*runs[:4], *lost])
    rows = text_tables.detail_rows(made)
    assert rows["Time to 90 % accuracy"].tolist() == ["20.0 s", "20.0 s (1 of 3 runs)"]
    assert "(the level is what every run that ended well reached)" in notes.details(made)
