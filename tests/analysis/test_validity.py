import copy
from datetime import datetime, timedelta

import pytest
from builders import record, tables

from mptexp.analysis import accuracy, summary, validity
from mptexp.records.instrument_checks import PROVEN, check
from mptexp.records.schema import REPEATED, SEEN, VOID
from mptexp.report.answers import caveats, findings
from mptexp.spec.run import Run

ENDED = "2026-11-11T10:00"
RATIOS = (3.0, 3.1, 3.2)


def runs(**changes):
    """Three blocks in which mixed_float16 is three times as fast; changes are of its records."""
    for block, ratio in enumerate(RATIOS):
        yield record(block=block, step_s=0.3)
        made = record("mixed_float16", block, 0.3 / ratio)
        for name, value in changes.items():
            known = made.get(name)
            made[name] = (known or {}) | value if isinstance(value, dict) else value
        yield made


def compared(*records):
    made = tables(list(records))
    return made.speedups.iloc[0], " ".join(findings.answer(made))


def test_a_clean_comparison_claims():
    row, text = compared(*runs())
    assert row["flags"] == ""
    assert row.claim_low > 1
    assert "3.10× faster" in text


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"marks": ["measured while other programs used the processor"]}, "interference"),
        ({"marks": ["measured while other processes used the GPU"]}, "interference"),
        ({"marks": ["measured while the device was throttled (heat)"]}, "throttled"),
        ({"timing": {"step_ci": None}}, "too few windows"),
        ({"instruments": [check("clock", (0.9, 1.15), 1.5)]}, "clock not proven"),
        ({"identity": None}, "identity not recorded"),
        ({"changed": True}, "changed since it was written"),
    ],
)
def test_what_is_not_valid_is_shown_and_claims_nothing(changes, flag):
    row, text = compared(*runs(**changes))
    assert row["flags"] == flag
    assert row.speedup == pytest.approx(3.1, rel=1e-3)
    assert row.low > 1
    assert row[["claim_low", "claim_high"]].isna().all()
    assert "trains" not in text
    assert text.startswith("Measured, but not valid: 3.10× (")


def test_a_trace_that_cannot_be_believed_flags_what_was_traced_alone():
    failed = {"instruments": [check("trace", (0.9, 1.35), 1.5)]}
    assert validity.of_record(record() | failed) == []
    traced = record() | failed | {"profile": {"missing": "xprof"}}
    assert validity.of_record(traced) == ["trace not proven"]


def test_a_run_that_ended_once_its_time_was_known_need_not_have_learned():
    guessing = record(chance_accuracy=0.99)
    assert validity.of_record(guessing) == ["not trained"]
    guessing["timing"]["ended_by"] = "target_ci"
    assert validity.of_record(guessing) == []


def test_a_model_that_was_edited_halfway_forms_no_ratio_with_the_old_one():
    # The lie that was told: stopped, model.py edited, resumed: "3.12x faster" without a warning.
    records = list(runs())
    for made in records[3:]:
        made["identity"] = made["identity"] | {"model_source": "edited"}
    made = tables(records)
    assert made.speedups.blocks.tolist() == [1]
    unlike = validity.incomparable(made.results, records)
    assert len(unlike) == 3
    assert {d.name for found in unlike.values() for d in found} == {"model_source"}
    assert "trains" not in " ".join(findings.answer(made))


def test_one_side_edited_leaves_no_ratio():
    made = tables(list(runs(identity={"model_source": "edited"})))
    assert made.speedups.empty


@pytest.mark.parametrize("name", ["initial_weights", "data_order"])
def test_runs_of_a_block_that_began_otherwise_form_no_ratio(name):
    made = tables(list(runs(identity={name: "other"})))
    assert made.speedups.empty


def test_weights_of_16_bits_are_not_those_of_float32():
    changes = {
        "identity": {"initial_weights": "rounded"},
        "in_force": {"variable_dtype": "bfloat16"},
    }
    row, _ = compared(*runs(**changes))
    assert row["flags"] == ""


def test_timings_of_runs_in_parallel_are_flagged():
    made = tables(list(runs(marks=[f"{VOID}: 2 runs shared this machine"])))
    parallel = made.results[made.results.policy == "mixed_float16"]
    assert set(parallel["flags"]) == {"in parallel"}
    assert made.speedups.empty


@pytest.mark.parametrize(
    ("accuracy", "flag"), [(0.10, "not trained"), (0.13, "not trained"), (0.2, "")]
)
def test_an_accuracy_at_chance_level_is_not_trained(accuracy, flag):
    made = record()
    made["in_force"] |= {"chance_accuracy": 0.1, "validation_images": 500}
    made["history"] = [{"epoch": 1, "val_accuracy": accuracy}]
    assert tables([made]).results["flags"].tolist() == [flag]


@pytest.mark.parametrize(
    ("mark", "flag"),
    [
        (f"90 of 90 validation images {SEEN}", "seen in training"),
        (f"2 of 90 validation images {SEEN}", ""),
        (f"all of the validation images {SEEN}", ""),
        (f"380 of 400 validation images {REPEATED}", "copies in validation"),
        (f"3 of 400 validation images {REPEATED}", ""),
    ],
)
def test_validation_images_that_are_not_new_claim_no_accuracy(mark, flag):
    # The lies: the validation folder is a copy of the training folder, and 100 % "equal"; twenty
    # images stored twenty times each, and "equal".
    assert tables([record() | {"marks": [mark]}]).results["flags"].tolist() == [flag]


def in_two_calls(*blocks):
    """Three blocks; in those given, one policy was measured in another call of `mptexp run`."""
    for made in runs():
        parameters = made["parameters"]
        later = parameters["block"] in blocks and parameters["policy"] == "float32"
        yield made | {
            "invocation": "second" if later else "first",
            "ended_at": f"{ENDED}:0{later:d}+00:00",
        }


def test_runs_measured_apart_form_no_ratio_but_their_accuracy_holds():
    made = tables(list(in_two_calls(1)))
    assert made.speedups.blocks.tolist() == [2]
    assert made.speedups["flags"].tolist() == [""]
    assert made.results["flags"].tolist().count("measured apart") == 1
    assert accuracy.differences(made).blocks.tolist() == [3]
    assert "measured apart" in " ".join(caveats.sentences(made))


def test_runs_of_a_block_on_two_machines_that_are_alike_form_no_ratio():
    # Two nodes of a cluster: the same names of device, CPU and driver, one invocation.
    records = [made | {"invocation": "one", "boot": "a"} for made in runs()]
    records[3]["boot"] = "b"
    made = tables(records)
    assert made.speedups.blocks.tolist() == [2]
    assert made.results["flags"].tolist().count("measured apart") == 1


@pytest.mark.parametrize("name", ["driver", "cuda", "cudnn", "device", "cpu", "nice"])
def test_another_device_or_library_of_one_run_forms_no_ratio(name):
    records = [made | {"invocation": "one"} for made in runs()]
    records[3]["identity"] = records[3]["identity"] | {name: "other"}
    made = tables(records)
    assert made.speedups.blocks.tolist() == [2]
    assert name in " ".join(caveats.sentences(made)) or caveats.NAMES[name] in " ".join(
        caveats.sentences(made)
    )


def test_other_numbers_of_threads_form_no_ratio():
    records = list(runs())
    records[3]["identity"] = records[3]["identity"] | {"threads": {"intra_op": 1}}
    made = tables(records)
    assert made.speedups.blocks.tolist() == [2]
    assert "(1 against none)" in " ".join(caveats.sentences(made))


@pytest.mark.parametrize(
    ("readings", "flag"),
    [
        ({"other_load_frac": 0.4}, "interference"),
        ({"other_processes": 1}, "interference"),
        ({"throttled_frac": 0.1}, "throttled"),
        ({"stopped_s": 3.0}, "interrupted"),
        ({"limits_changed": True}, "interrupted"),
        ({"other_load_frac": 0.05, "stopped_s": 0.0, "throttled_frac": None}, ""),
    ],
)
def test_a_mark_that_was_deleted_leaves_its_reading(readings, flag):
    made = tables([one | {"marks": [], "readings": readings} for one in runs()])
    assert set(made.results["flags"]) == {flag}
    assert made.speedups.claim_low.isna().all() == bool(flag)


def test_too_few_windows_say_how_long_a_run_must_be():
    made = tables(list(runs(timing={"step_ci": None, "ended_by": "epochs"})))
    (sentence,) = [text for text in caveats.sentences(made) if "too few windows" in text]
    # 9 steps of 0.1 s are 0.9 s, where 12 windows of 0.2 s are wanted.
    assert "4 times as many steps" in sentence
    assert "--out ../again --set epochs=80" in sentence
    # The lie: "--set max_steps=120" alone, of a training that its epochs would end before.
    rows = list(runs(timing={"step_ci": None, "ended_by": "max_steps"}))
    for row in rows:
        row["parameters"]["max_steps"] = 30
    (sentence,) = [t for t in caveats.sentences(tables(rows)) if "too few windows" in t]
    assert "--out ../again --set epochs=80 --set max_steps=120" in sentence


def on_two_machines():
    """Blocks 0 and 1 on a CPU with 2 cores, 2 and 3 on one of the same name with 32."""
    for block in range(4):
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
            cores = 2 if block < 2 else 32
            made = record(policy, block, step_s * 2 / cores)
            made["parameters"] |= {"gpu_model": "AMD EPYC (CPU)"}
            made["environment"] = {"device": "AMD EPYC (CPU)", "cores": cores, "packages": {}}
            made["identity"] |= {"cores": cores}
            yield made | {"invocation": f"on {cores}"}


def test_two_machines_with_a_cpu_of_one_name_are_two_devices():
    made = tables(list(on_two_machines()))
    names = ["AMD EPYC (2 cores)", "AMD EPYC (32 cores)"]
    assert sorted(set(made.results.gpu_model)) == names
    assert set(made.results["flags"]) == {""}  # each is whole
    assert sorted(zip(made.speedups.gpu_model, made.speedups.blocks, strict=True)) == [
        (names[0], 2),
        (names[1], 2),
    ]
    headline = summary.headline(made)
    assert headline.groupby("gpu_model").step_s.min().round(6).tolist() == [0.1, 0.00625]


def test_a_sweep_measured_policy_by_policy_claims_nothing_of_time():
    # float32 today, the other tomorrow: every ratio spans a night.
    made = tables(list(in_two_calls(0, 1, 2)))
    assert made.speedups.empty
    assert "trains" not in " ".join(findings.answer(made))
    # The lie: "a speedup needs two policies at the same point", which it had.
    assert findings.answer(made)[0] == (
        "No times are compared: float32 and mixed_float16 were measured apart."
    )


def test_of_a_block_measured_apart_the_larger_part_is_compared():
    records = [r | {"invocation": "first"} for r in (record(), record("mixed_float16"))]
    records.append(
        record("mixed_bfloat16") | {"invocation": "second", "ended_at": f"{ENDED}:09+00:00"}
    )
    assert validity.apart(records) == {records[2]["run_id"]: "measured apart"}
    assert tables(records).speedups.candidate.tolist() == ["mixed_float16"]
    assert validity.apart([record(), record("mixed_float16")]) == {}  # of earlier versions


def test_policies_of_one_input_mode_need_not_have_been_measured_beside_another():
    # On a rented H200 a sweep was interrupted between the two input modes of a block: the policies
    # of each were measured in one call, and formed no ratio.
    records = list(runs())
    for made in list(records):
        made["invocation"] = "first"
        again = copy.deepcopy(made)
        again["parameters"]["input_mode"] = "resident"
        again["run_id"] = Run(**again["parameters"]).run_id()
        again["invocation"] = "second" if again["parameters"]["block"] == 2 else "first"
        records.append(again)
    assert validity.apart(records) == {}
    assert tables(records).speedups.blocks.tolist() == [3, 3]


def test_what_more_steps_alone_would_cure_is_not_measured_again():
    assert validity.curable("interference")
    assert validity.curable("too few windows; throttled")
    assert not validity.curable("too few windows; not trained")
    assert not validity.curable("")


def test_flags_of_a_comparison_are_those_of_its_runs_in_a_fixed_order():
    assert validity.together(["throttled", "", "interference; throttled"]) == (
        "interference; throttled"
    )
    assert [f.name for f in validity.invalid("throttled; not trained", "time")] == ["throttled"]
    assert [f.name for f in validity.invalid("throttled; not trained", "accuracy")] == [
        "not trained"
    ]


def test_energy_is_not_valid_where_time_is_not():
    # The lie: joules per image, which are power over images per second, of throttled runs.
    for flag in ("throttled", "interference", "in parallel", "sweeps at once", "interrupted"):
        assert [f.name for f in validity.invalid(flag, "energy")] == [flag]
    assert not validity.invalid("not trained", "energy")
    assert not validity.invalid("energy not proven", "time")


def test_every_flag_says_what_it_invalidates_and_what_to_do():
    known = {*validity.ALL, *(what for several in PROVEN.values() for what in several)}
    for flag in validity.FLAGS.values():
        assert set(flag.invalidates) <= known
        assert flag.invalidates
        assert flag.meaning
        assert flag.remedy


def sweep_at(began, call, **more):
    """A block of both policies; each is measured for ten seconds from then on."""
    for number, policy in enumerate(("float32", "mixed_float16")):
        span = [began + 20.0 * number, began + 20.0 * number + 10]
        made = record(policy) | {"boot": "b", "invocation": call, "measured_at": span}
        yield made | {"environment": {"kind": "cpu", "packages": {}}} | more


@pytest.mark.parametrize(
    ("other", "flagged"),
    [
        (sweep_at(5.0, "second"), 2),
        (sweep_at(25.0, "second"), 1),  # beside the last run of the first sweep alone
        (sweep_at(500.0, "second"), 0),
        (sweep_at(5.0, "first"), 0),  # one call: its GPUs work beside one another
        (sweep_at(5.0, "second", boot="c"), 0),
        (sweep_at(5.0, "second", environment={"kind": "gpu", "packages": {}}), 0),
        (sweep_at(5.0, "second", gpus=["1234"]), 0),
    ],
)
def test_sweeps_whose_measurements_overlap_on_one_machine_are_not_valid(other, flagged):
    # The lie: two sweeps at once, each below the share of the processor that sensors notice.
    own = list(sweep_at(0.0, "first"))
    results = tables(own).results
    flags = validity.of_runs(results, own, list(other))
    assert flags.tolist().count("sweeps at once") == flagged


def test_sweeps_at_once_on_one_gpu_are_not_valid_and_on_two_they_are():
    gpu = {"kind": "gpu", "packages": {}}
    own = list(sweep_at(0.0, "first", environment=gpu, gpus=["1", "2"]))
    for gpus, flagged in ((["2"], 2), (["3"], 0)):
        other = list(sweep_at(5.0, "second", environment=gpu, gpus=gpus))
        assert len(validity.at_once([*own, *other])) == 2 * flagged


def test_one_policys_chance_level_is_that_of_the_others():
    # The lie: the baseline's chance level is edited, so that it counts as trained.
    made = list(runs())
    made[1]["in_force"]["chance_accuracy"] = 0.1
    told = " ".join(caveats.sentences(tables(made)))
    assert "the validation data (1,000,000 images, 10.0000% by guessing against" in told


def test_runs_of_one_call_between_which_the_machine_slept_form_no_ratio():
    # The lie: a laptop that sleeps between two runs of a block; to its own clock no time passed.
    records = [
        made | {"invocation": "one", "ended_at": f"2026-11-{10 + k // 2:02d}T10:0{k % 2}:10+00:00"}
        for k, made in enumerate(runs())
    ]
    assert validity.apart(records) == {}
    records[3]["ended_at"] = "2026-11-11T23:00:00+00:00"
    assert validity.apart(records) == {records[2]["run_id"]: validity.CLOCK_SET}
    assert tables(records).speedups.blocks.tolist() == [2]


def by_two_clocks(dated=0.0, counted=0.0):
    """Runs of one call; before the last of block 1 either clock goes on by so many seconds."""
    first = datetime.fromisoformat("2026-11-10T10:00:00+00:00")
    for k, made in enumerate(runs()):
        later = dated * (k >= 3), counted * (k >= 3)
        moment, began = 30.0 * k + later[0], 1000 + 30.0 * k + later[1]
        made |= {"invocation": "one", "boot": "b", "measured_at": [began, began + 5]}
        yield made | {"ended_at": (first + timedelta(seconds=moment)).isoformat()}


@pytest.mark.parametrize(
    ("dated", "counted", "flag"),
    [
        (0.0, 0.0, ""),
        (10_800.0, 10_800.0, "measured apart"),
        # The lie: three hours lay between two runs, and the clock was set back by as much: no flag.
        (0.0, 10_800.0, "measured apart"),
        (-10_800.0, 10_800.0, "measured apart"),
        # The lie: "measured in another call, or elsewhere", as the clock was set by 40 minutes.
        (2_400.0, 0.0, validity.CLOCK_SET),
        (-2_400.0, 0.0, ""),
    ],
)
def test_a_pause_is_what_the_clock_shows_that_nobody_sets(dated, counted, flag):
    records = list(by_two_clocks(dated, counted))
    assert list(validity.apart(records).values()) == [flag] * bool(flag)
    made = tables(records)
    assert made.speedups.blocks.tolist() == [2 if flag else 3]
    said = " ".join(caveats.sentences(made))
    assert (validity.FLAGS[flag].meaning in said) if flag else ("before or after" not in said)


@pytest.mark.parametrize("flag", ["measured apart", validity.CLOCK_SET, ""])
def test_sides_between_which_a_pause_lies_say_by_which_clock(flag):
    moved = {"measured apart": (0.0, 5000.0), validity.CLOCK_SET: (5000.0, 0.0), "": (0.0, 0.0)}
    records = list(by_two_clocks(*moved[flag]))[2:4]  # of block 1
    sides = [{1: one} for one in records]
    assert validity.in_one_call(*sides, validity.parts(records)) == ([1], flag)
