import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from builders import CARD, published, record, tables, text, written_sweep
from support import PROJECT, mptexp

from mptexp import api
from mptexp.analysis import validity
from mptexp.analysis.completeness import Asked
from mptexp.records import instrument_checks, interference, schema, store, timed_windows
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import export, measured_sweep
from mptexp.report.answers import caveats, next_commands
from mptexp.report.figures import all_figures
from mptexp.report.pages import data_files
from mptexp.report.tables import text_tables
from mptexp.report.text import wording

QUICKSTART = PROJECT / "reports/published/quickstart-cpu"


def three(**changes):
    """Three blocks of two policies; changes are of mixed_float16's records."""
    for block in range(3):
        yield record(block=block)
        yield record("mixed_float16", block, 0.05) | changes


def test_a_sweep_that_is_valid_has_no_warning():
    assert caveats.sentences(tables(list(three()))) == []


def test_a_flag_says_how_many_runs_why_what_is_lost_and_what_to_do():
    marks = ["measured while other programs used the processor"]
    (sentence,) = caveats.sentences(tables(list(three(marks=marks))))
    assert sentence == (
        "**Not valid: times** of 3 of 6 runs, all of mixed_float16: other programs were at work "
        "(interference). Still valid: memory and accuracy; step times of the other 3 runs. End "
        "other programs, and `mptexp run params.yaml --out . --repair` in this report's folder "
        "measures the block again."
    )


def test_what_differs_is_named_with_both_values():
    identity = record()["identity"] | {"model_source": "1f2e", "versions": {"keras": "3.16"}}
    sentence, flag = caveats.sentences(tables(list(three(identity=identity))))
    assert "the source of the model (" in sentence
    assert "versions keras (" in sentence
    assert "They form no ratio." in sentence
    assert flag.startswith("**Not valid: all figures** of 3 of 6 runs, all of ")


def test_text_of_a_record_is_shown_not_obeyed():
    identity = record()["identity"] | {"cpu": "*bold* [x](http://y) <b>"}
    sentence, _ = caveats.sentences(tables(list(three(identity=identity))))
    assert "\\*bold\\*" in sentence
    assert "\\[x\\](http\\:" in sentence


@pytest.mark.parametrize("edited", [False, True])
def test_check_says_what_is_not_valid_and_fails(tmp_path, edited):
    place = tmp_path / "sweep"
    shutil.copytree(QUICKSTART, place)
    for path in place.glob("runs/*/record.json") if edited else ():
        path.write_text(path.read_text().replace('"identity"', '"other"'))
    done = mptexp("report", place, "--check", cwd=tmp_path)
    assert done.returncode == int(edited)
    assert ("identity not recorded" in done.stdout) == edited
    assert "Traceback" not in done.stderr


def test_what_was_not_asked_for_is_named_as_it_is(tmp_path):
    place = written_sweep(tmp_path / "sweep", "GPU", 1.0)
    done = mptexp("report", place.root, "--check", cwd=tmp_path)
    assert "were made with policy float32, mixed_float16 (params.yaml: float32)" in done.stdout
    (sentence,) = (s for s in api.checked(place.root).not_valid if "Not what was" in s)
    assert "mixed\\_float16" in sentence
    assert "\\\\" not in sentence


# --- every flag in every place ---------------------------------------------------------------

# What makes the runs of mixed_float16 not valid: changes of a record, given its block.
PLANTED = {
    "not comparable": lambda made, block: made["identity"].update(model_source="edited"),
    "identity not recorded": lambda made, block: made.pop("identity"),
    "changed since it was written": lambda made, block: None,  # after it was written
    "same measurement": lambda made, block: made["timing"].update(first_step_s=1.2345),
    "measured apart": lambda made, block: made.update(invocation="another"),
    validity.CLOCK_SET: lambda made, block: made.update(
        ended_at=made["ended_at"].replace("T10:", "T14:")
    ),
    "in parallel": lambda made, block: made["marks"].append(f"{schema.VOID}: 2 runs shared it"),
    "sweeps at once": lambda made, block: made["marks"].append(schema.AT_ONCE),
    "interference": lambda made, block: made["marks"].append(
        "measured while other programs used the processor"
    ),
    "interrupted": lambda made, block: made["marks"].append(
        "measured while the process was stopped or the machine asleep (45 s)"
    ),
    "unwatched": lambda made, block: made["marks"].append(interference.UNWATCHED),
    "throttled": lambda made, block: made["marks"].append(
        "measured while the device was throttled (heat)"
    ),
    "repeats apart": lambda made, block: made["timing"].update(
        step_s=0.05 * 2**block, images_per_s=made["parameters"]["batch_size"] / 0.05 / 2**block
    ),
    "other clocks": lambda made, block: made["readings"].update(clock_hz=1.4e9),
    "uneven utilization": lambda made, block: made["readings"].update(
        utilization_frac=0.95 if block else 0.58
    ),
    "unequal steps": lambda made, block: made.update(
        marks=[f"{timed_windows.UNEQUAL_STEPS}: on average they take 1.46 times their median"]
    ),
    "too few windows": lambda made, block: made["timing"].update(step_ci=None),
    **{
        validity.unproven(row.proves): lambda made, block, row=row: made.update(
            instruments=[instrument_checks.check(row.name, (0.9, 1.1), 1.5)],
            **({"profile": {"missing": "xprof"}} if row.proves == "trace" else {}),
        )
        for row in instrument_checks.INSTRUMENTS.values()
        if row.proves
    },
    "seen in training": lambda made, block: made["marks"].append(
        f"90 of 90 validation images {schema.SEEN}"
    ),
    "copies in validation": lambda made, block: made["marks"].append(
        f"80 of 90 validation images {schema.REPEATED}"
    ),
    "not trained": lambda made, block: made["history"][-1].update(val_accuracy=0.1),
}


def test_every_flag_is_planted():
    # One is not of a run: tests/report/answers/test_why.py.
    apart = {validity.NOT_THE_STEPS}
    assert {*PLANTED, *apart} == set(validity.FLAGS)


def planted(root):
    """A sweep with a batch size for each flag, whose runs of mixed_float16 have it alone."""
    for k, (name, change) in enumerate(PLANTED.items()):
        for block in range(3):
            for policy in ("float32", "mixed_float16"):
                made = record(policy, block, batch_size=8 + k, chance_accuracy=0.1)
                made |= {"marks": [], "environment": CARD, "identity": dict(made["identity"])}
                made["ended_at"] = "2026-11-11T10:00:00+00:00"
                made |= {"readings": {"clock_hz": 2e9, "utilization_frac": 0.9}}
                made["history"][-1]["elapsed_s"] = 1.0
                if policy == "mixed_float16":
                    change(made, block)
                path = root / "runs" / made["run_id"] / "record.json"
                store.write_record(path, made)
                if name == validity.CHANGED and policy == "mixed_float16":
                    path.write_text(path.read_text().replace('"wall_s": 2.0', '"wall_s": 1.0'))
    (root / "params.yaml").write_text("matrix: {policy: [float32]}\n")
    return root


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The sweep, its tables, and the folders of its report's files and of its export."""
    root, folder = planted(tmp_path_factory.mktemp("planted")), tmp_path_factory.mktemp("export")
    sweep = measured_sweep.load(SweepDir(root))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(all_figures, "FIGURES", ())  # only files of text are looked at
        data_files.write(sweep)
        export.export(SweepDir(root), folder)
    return sweep.tables, root, folder


@pytest.fixture(scope="module")
def checked(everything):
    """What `mptexp report --check` says of the sweep."""
    return api.checked(everything[1]).not_valid


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_flag_is_given_to_the_runs_that_have_it_and_to_no_others(everything, name):
    results = everything[0].results
    own = results[results.batch_size == 8 + list(PLANTED).index(name)]
    assert set(own["flags"]) <= {name, ""}
    assert name in set(own["flags"])
    # Of two sides, nothing says which one is odd.
    unsure = ("measured apart", validity.CLOCK_SET, "other clocks", "repeats apart")
    if name not in ("not comparable", *unsure):
        assert set(own["flags"][own.policy == "mixed_float16"]) == {name}
        assert set(own["flags"][own.policy == "float32"]) == {""}


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_flag_travels_with_the_figures_wherever_they_go(everything, checked, name):
    tables, root, folder = everything
    size, flag = 8 + list(PLANTED).index(name), validity.FLAGS[name]
    # The head of the page, the terminal, report --check: what it is, what is lost, what to do.
    (said,) = [text for text in checked if f" ({name})." in text]
    assert flag.meaning in said
    repair = next_commands.command(tables, "run", options="--repair")
    assert wording.capitalized(flag.remedy.replace(validity.REPAIR, repair)) in said
    lost = said.partition("** of ")[0]
    for what in ["all figures"] if flag.invalidates == validity.ALL else flag.invalidates:
        assert ("times" if what in ("time", "training time") else what) in lost
    assert said in caveats.sentences(tables)
    # The table of the page, beside the numbers of its row, and as a file.
    rows = text_tables.headline_rows(tables)
    what = "all" if flag.invalidates == validity.ALL else ", ".join(flag.invalidates)
    assert f"{name} ({what})" in set(rows["Not valid"][rows["Batch size"] == size])
    for table in (root / "table.md", folder / "table.md"):
        assert any(
            f"| {size} |" in line and name in line for line in table.read_text().splitlines()
        )
    # CSV and export.
    for place in (root, folder):
        runs = pd.read_csv(place / "results.csv")
        assert name in set(runs["flags"][runs.batch_size == size].dropna())
        ratios = pd.read_csv(place / "speedups.csv")
        ratios = ratios[ratios.batch_size == size]
        if "time" in flag.invalidates:  # what is not comparable forms no ratio
            assert ratios.claim_low.isna().all()
            assert set(ratios["flags"].dropna()) <= {name}
    numbers = pd.read_csv(folder / "table.csv")
    assert name in set(numbers.run_flags[numbers.batch_size == size].dropna())
    assert said in (folder / "draft.md").read_text()
    if "accuracy" in flag.invalidates and name != "not comparable":
        differences = pd.read_csv(folder / "accuracy.csv")
        assert name in set(differences["flags"][differences.batch_size == size])


def test_flags_are_in_json_too(everything):
    _, root, _ = everything
    done = mptexp("compare", root, root, "--format", "json", cwd=root)
    points = json.loads(done.stdout)["points"]
    for k, name in enumerate(PLANTED):
        flags = [p["flags"] for p in points if p["batch_size"] == 8 + k]
        assert any(name in text.split("; ") for text in flags)


def test_marks_that_are_not_of_timing_are_remarks():
    flags = ["measured while throttled", "the tree held changes"]
    made = tables([record() | {"marks": flags}, record(block=1)])
    assert caveats.remarks(made) == ["the tree held changes"]


def test_runs_of_two_versions_are_warned_of():
    cards = [{"packages": {"mptexp": version}, "commit": None} for version in ("1", "2")]
    made = tables([record(block=b) | {"environment": card} for b, card in enumerate(cards)])
    (warning,) = caveats.remarks(made)
    assert warning == "the runs were made by different versions of mptexp: 1, 2"


def test_runs_without_a_result_are_in_the_banner():
    rows = [record(), record("float16") | {"status": "diverged"}, record("float16", 1)]
    assert caveats.banner(tables(rows)) == [
        "**Without a result**: 1 of 2 runs of float16 (diverged)."
    ]


def test_runs_without_a_result_are_placed_where_not_all_of_a_policy_ended_so():
    # The lie: "3 of 6 runs of float32 (diverged)", all with one learning rate of two.
    lost = {"status": "diverged", "history": [], "timing": {}}
    sizes = [record(block=b, batch_size=size) for size in (32, 64) for b in range(2)]
    sizes[-1] |= lost
    said = "**Without a result**: 1 of 4 runs of float32 (diverged at batch size 64)."
    assert caveats.left_out(tables(sizes)) == [said]
    rates = [record(block=b, width=w) for w in (1.0, 2.0, 3.0, 4.0) for b in range(2)]
    said = "**Without a result**: 3 of 8 runs of float32 (diverged in 3 of 4 settings)."
    found = [run | lost if k in (1, 3, 5) else run for k, run in enumerate(rates)]
    assert caveats.left_out(tables(found)) == [said]


def test_the_banner_names_further_flags_only_where_they_take_more():
    marks = ["measured while other programs used the processor"]
    made = [each | {"marks": list(marks)} for each in three()]
    made[0]["marks"] += ["measured while the device was throttled (heat)"]
    (full,) = caveats.banner(tables(made))
    assert full.startswith("**Not valid: times** of all runs: other programs were at work (inter")
    assert "throttled" not in full
    assert "[Details](#Environment)" in full
    for each in made:
        each["in_force"] = each["in_force"] | {"chance_accuracy": 0.1}
    made[0]["history"] = [made[0]["history"][-1] | {"val_accuracy": 0.1}]
    (full,) = caveats.banner(tables(made))
    assert "Still valid: memory; accuracy of the other 5 runs." in full
    assert "Also accuracy of 1 of 6 runs (not trained)." in full


def test_further_flags_that_take_the_same_are_named_together():
    made = list(three())
    for each in made[:3]:
        each["marks"] = [
            "measured while other programs used the processor",
            "measured while the device was throttled (heat)",
        ]
    for each in made:
        each["in_force"] = each["in_force"] | {"chance_accuracy": 0.1}
        each["history"] = [each["history"][-1] | {"val_accuracy": 0.1}]
    (full,) = caveats.banner(tables(made), "accuracy")
    assert "Also times of 3 of 6 runs (interference, throttled)." in full


def test_the_banner_begins_with_what_the_answer_is_about():
    marks = ["measured while other programs used the processor"]
    made = [each | {"marks": marks} for each in three()]
    for each in made:
        each["in_force"] = each["in_force"] | {"chance_accuracy": 0.1}
    made[0]["history"] = [made[0]["history"][-1] | {"val_accuracy": 0.1}]
    (full,) = caveats.banner(tables(made), "accuracy")
    assert full.startswith(
        "**Not valid: accuracy** of 1 of 6 runs, of float32: validation at chance "
    )
    assert "Also times of all runs (interference)." in full


def test_what_the_answer_speaks_of_is_no_warning():
    made = list(three())
    for each in made:
        each["in_force"] = each["in_force"] | {"chance_accuracy": 0.1}
    made[1]["history"] = [made[1]["history"][-1] | {"val_accuracy": 0.1}]
    assert "(not trained)" in caveats.banner(tables(made), "accuracy")[0]
    assert caveats.banner(tables(made), "accuracy", findings=("not trained",)) == []


def test_a_warning_is_minor_only_where_it_takes_nothing_from_the_answer():
    busy = tables(list(three(marks=["measured while other programs used the processor"])))
    assert caveats.is_minor(busy, "accuracy")
    assert not caveats.is_minor(busy, "time")
    assert caveats.is_minor(tables(list(three())), "time")
    lost = [record(), record("float16") | {"status": "diverged"}, record("float16", 1)]
    assert caveats.is_minor(tables(lost), "time")  # what diverged takes nothing from the others


def test_what_holds_is_what_no_flag_takes_from_any_run():
    marks = ["measured while other programs used the processor"]
    made = list(three(marks=marks))
    for one in made:
        one["in_force"] = one["in_force"] | {"chance_accuracy": one["history"][-1]["val_accuracy"]}
    busy, untrained = caveats.sentences(tables(made))
    assert "were at work (interference). Still valid: memory; step times of the" in busy
    assert "(not trained)" in untrained
    assert "Still valid: memory; step times of 3 of 6 runs." in untrained


def test_what_is_not_valid_of_one_run_is_a_doubt_of_all():
    marks = ["measured while other programs used the processor"]
    made = tables(list(three(marks=marks)))
    assert caveats.doubts(made, "time") == "not valid: interference"
    assert caveats.doubts(made, "accuracy") == ""
    assert caveats.remedies(made, "time").startswith("for a claim, end other programs; then run `")


def test_a_text_has_no_accuracy():
    rows = [text(policy, b, 3.0) for policy in ("float32", "mixed_float16") for b in range(3)]
    (said,) = caveats.sentences(tables(rows))
    assert said.startswith("**Not valid: perplexity** of all runs")
    assert "Still valid: step times and memory." in said
    assert not any("accuracy" in words for words in caveats.banner(tables(rows)))
    found = text_tables.headline_rows(tables(rows))
    assert found["Not valid"].tolist() == ["not trained (perplexity)"] * 2


@pytest.mark.parametrize("known", [True, False])
def test_nobody_looks_for_what_is_known_to_have_been_at_work(known):
    # The puzzle: "end other programs; then find out what else the machine does; then find out what
    # these runs waited for", of repeats that these programs drove apart.
    marks = ["measured while other programs used the processor"] * known
    rows = [record(block=block, step_s=0.1) | {"marks": marks} for block in range(3)]
    rows += [record("mixed_float16", block, 0.05 * 2**block) for block in range(3)]
    made = tables(rows)
    assert "repeats apart" in validity.together(made.ok["flags"])
    said = caveats.remedies(made, "time")
    assert ("end other programs; then run" in said) is known
    assert ("find out what else the machine does" in said) is not known


def test_what_measuring_all_again_costs_counts_runs_that_were_never_made():
    # The lie: "measures 9 runs", of three policies in four blocks, where two of nine had no record.
    made = [record(policy, block) for policy in ("float32", "bfloat16") for block in (0, 1)]
    said = caveats.remedies(tables(made[:-1]), "time", 1)
    assert "--set repeats=4`" in said
    assert "which measures 8 runs" in said


def test_what_is_missing_of_enough_repeats_is_advised_alone():
    # Once "--set repeats=4 …, which measures 12 runs", of nine of which two had no record.
    made = [record(policy, block) for policy in ("float32", "bfloat16") for block in range(3)]
    some = replace(tables(made[:-1]), asked=Asked(missing={"local": 1}, planned=6))
    said = caveats.remedies(some, "time", 2)
    assert "`mptexp run params.yaml --out .` in this report's folder, which measures 1 mis" in said
    assert "repeats=" not in said


def test_a_repair_tries_those_again_that_did_not_come_to_an_end():
    # The lie: "measures 2 runs again", of which the command planned three.
    rows = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(3)]
    rows[3] |= {"marks": ["measured while other programs used the processor"]}
    before = caveats.remedies(tables(rows), "time")
    assert "which measures 2 runs again" in before
    ended = {"status": "killed", "error": "by SIGKILL", "history": [], "timing": {}}
    after = caveats.remedies(tables([*rows, record("bfloat16", 0) | ended]), "time")
    assert "which measures 3 runs again" in after


def test_what_still_holds_is_of_the_runs_that_have_it():
    # Published once: "accuracy of the other 21 runs", 12 of which kept one batch and have none.
    rows = [record(block=block, chance_accuracy=0.1) for block in range(6)]
    rows[0]["history"][-1]["val_accuracy"] = 0.1
    for one in rows[3:]:
        del one["history"][-1]["val_accuracy"]
        del one["peak_memory_bytes"]
    (said,) = caveats.sentences(tables(rows))
    assert "Still valid: step times and memory; accuracy of the other 2 runs." in said
    for one in rows:
        one.pop("peak_memory_bytes", None)
    (said,) = caveats.sentences(tables(rows))
    assert "Still valid: step times; accuracy of the other 2 runs." in said
    (said,) = caveats.sentences(tables(rows), ["not trained"])
    assert said.startswith("**At chance level: accuracy** of 1 of 6 runs: ")
    assert said.endswith(" Here that is no fault, and nothing to repair.")
    # The lie: --check called not valid what the page says is valid.
    assert caveats.faults(tables(rows), ["not trained"]) == []


def test_what_tables_mark_is_not_called_still_valid():
    # The contradiction: "Still valid: accuracy", above a row marked "not trained (accuracy)".
    made = published("master-weights-cpu").tables
    (said,) = [text for text in caveats.banner(made, "accuracy", findings=("not trained",)) if text]
    assert said.startswith("**Not valid: ")
    assert "Still valid: accuracy (that runs learned nothing is a finding)." in said
