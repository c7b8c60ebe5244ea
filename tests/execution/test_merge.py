import json
import shutil

import pandas as pd
import pytest
from builders import written_sweep
from support import mptexp

from mptexp.analysis import sweep_tables
from mptexp.errors import ParamsError
from mptexp.execution import directory, merge, plan
from mptexp.host.devices import local_device
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_machines_give_what_one_directory_with_all_runs_gives(light, tmp_path, nvml):
    # The second machine is this one with a library that answers as NVML does: it has an H100.
    light({"gpu_model": [local_device(), "H100"], "policy": ["float32", "bfloat16"]})

    def run(**environment):
        done = mptexp(
            "run", "light.yaml", "--no-report", "--out", "one", cwd=tmp_path, **environment
        )
        assert done.returncode == 0, done.stderr

    # One directory with all runs, and what either machine has in a directory of its own.
    one = SweepDir(tmp_path / "one")
    run()
    shutil.copytree(one.root, tmp_path / "a")
    run(LD_LIBRARY_PATH=str(nvml))
    shutil.copytree(one.root, tmp_path / "b")
    for path in (tmp_path / "a/runs").iterdir():
        shutil.rmtree(tmp_path / "b/runs" / path.name)

    (tmp_path / "only").mkdir()
    done = mptexp("merge", "a", "--out", "only", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "only: 2 runs: 2 from a",
        "2 runs without a result yet: 2 on H100",
    ]
    done = mptexp("merge", "a", "b", "--out", "all", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["all: 4 runs: 2 from a, 2 from b"]
    before = content(tmp_path / "all")
    assert {p.name for p in before} == {
        "params.yaml",
        "sweep.json",
        "measured.txt",
        "record.json",
        "notebook.ipynb",
    }
    done = mptexp("merge", "a", "b", "--out", "all", cwd=tmp_path)
    assert done.stdout.splitlines() == ["all: 4 runs: 4 were there"]
    assert content(tmp_path / "all") == before

    done = mptexp("report", "all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"index.html", "results.csv"} <= {p.name for p in (tmp_path / "all").iterdir()}
    merged, whole = sweep_tables.load(SweepDir(tmp_path / "all")), sweep_tables.load(one)
    pd.testing.assert_frame_equal(merged.results.assign(sweep="one"), whole.results)
    pd.testing.assert_frame_equal(merged.speedups, whole.speedups)
    assert set(merged.results.status) == {"ok"}
    assert len(merged.speedups) == 2
    page = (tmp_path / "all/index.html").read_text()
    assert "H100" in page
    assert local_device() in page


@pytest.fixture
def made(light, tmp_path):
    """A function that makes a directory with a record of each status given, in the same order."""
    path = light({"seed": [0, 1, 2], "gpu_model": ["V100"]})
    sweep, _ = params.read(path)
    runs = [p.run for p in plan.runs(sweep, SweepDir(tmp_path / "none"))]

    def make(name, *statuses, part=lambda place: place, wall_s=1.0, notebook=True):
        place = SweepDir(tmp_path / name)
        place.root.mkdir(exist_ok=True)
        shutil.copy(path, place.params)
        for run, status in zip(runs, statuses, strict=False):
            run_id = run.run_id("light.py")
            record = {"schema": 1, "run_id": run_id, "parameters": run.model_dump(), "error": ""}
            target = part(place).record(run_id)
            if status == "damaged":
                target.parent.mkdir(parents=True)
                target.write_text("{")
            elif status:
                store.write_record(target, record | {"status": status, "wall_s": wall_s})
                if notebook:
                    target.with_name("notebook.ipynb").write_text('{"cells": []}')
        return place

    return make


def statuses(place):
    records, damaged = store.read_records(place)
    assert not damaged
    return sorted(record["status"] for record in records)


def test_a_run_that_came_to_an_end_goes_before_one_that_runs_again(made, tmp_path):
    a, b = made("a", "failed", "ok", "oom"), made("b", "ok", "timeout", "oom")
    done = merge.merge([a.root, b.root], tmp_path / "all")
    assert statuses(SweepDir(tmp_path / "all")) == ["ok", "ok", "oom"]
    assert done.copied == {str(b.root): 1, str(a.root): 2}
    assert not (tmp_path / "all/partial").exists() or not any((tmp_path / "all/partial").iterdir())


def test_the_result_may_be_one_of_the_directories(made, tmp_path):
    a, b = made("a", "failed", "ok"), made("b", "ok", None, "oom")
    (a.runs / "notes.txt").write_text("mine")
    done = merge.merge([a.root, b.root], a.root)
    assert (done.copied, done.present) == ({str(b.root): 2}, 1)
    assert statuses(a) == ["ok", "ok", "oom"]
    assert (a.runs / "notes.txt").exists()
    assert merge.merge([a.root, b.root], a.root).copied == {}


def test_different_records_of_a_run_are_named_and_nothing_is_written(made, tmp_path):
    a, b = made("a", "ok", "diverged"), made("b", "oom", "unsupported")
    before = content(tmp_path)
    done = mptexp("merge", "a", "b", "--out", "new/all", cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert "gpu_model V100" in lines[0]
    assert "differs between a (ok), b (oom)" in done.stderr
    assert "differs between a (diverged), b (unsupported)" in done.stderr
    assert "--prefer DIR" in lines[2]
    assert content(tmp_path) == before
    assert not (tmp_path / "new").exists()
    done = mptexp("merge", "a", "b", "--out", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert content(tmp_path) == before

    for prefer, expected in (("a", ["diverged", "ok"]), ("b", ["oom", "unsupported"])):
        done = mptexp("merge", "a", "b", "--out", "new", "--prefer", prefer, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert statuses(SweepDir(tmp_path / "new")) == expected
        assert "without a result yet" in done.stdout
    with pytest.raises(ParamsError, match="elsewhere: is none of"):
        merge.merge([a.root, b.root], tmp_path / "new", tmp_path / "elsewhere")


def test_the_result_that_is_not_preferred_is_kept_and_counted(made, tmp_path):
    # The lie: each sweep is measured in two directories, and the pleasing one preferred.
    a, b = made("a", "ok", "ok"), made("b", "ok", "ok", wall_s=2.0)
    for out in (tmp_path / "all", a.root):  # a new directory, and one of them
        for _ in range(2):
            done = merge.merge([a.root, b.root], out, prefer=b.root)
            assert {r["wall_s"] for r in store.read_records(SweepDir(out))[0]} == {2.0}
            assert SweepDir(out).superseded_runs() == 2
        if out != a.root:
            assert (done.unused, len(done.copied)) == (2, 1)
    (kept,) = {p.read_bytes() for p in a.superseded.glob("*/notebook.ipynb")}
    assert kept == b'{"cells": []}'


def test_what_was_discarded_is_counted_after_a_merge(made, tmp_path):
    # The lie: results are thrown away until one pleases, and the directory is merged into another.
    a, b = made("a", "ok"), made("b", None, "ok")
    (run_id,) = (path.name for path in a.runs.iterdir())
    a.measured.write_text(f"{run_id} 11111111\n{run_id} 22222222\n{run_id} 33333333\n")
    b.measured.write_text(f"{run_id}\n")
    for _ in range(2):
        merge.merge([a.root, b.root], tmp_path / "all")
        assert SweepDir(tmp_path / "all").discarded_runs() == 3
    assert SweepDir(tmp_path / "all").diagnosis.discarded_runs() == 0


def test_two_results_that_differ_in_a_number_conflict(made, tmp_path):
    a, b = made("a", "ok"), made("b", "ok", wall_s=2.0)
    with pytest.raises(ParamsError, match="differs between"):
        merge.merge([a.root, b.root], tmp_path / "all")


def test_a_record_is_taken_with_its_notebook(made, tmp_path):
    a, b = made("a", "ok", notebook=False), made("b", "ok")
    merge.merge([a.root, b.root], tmp_path / "all")
    (run,) = SweepDir(tmp_path / "all").runs.iterdir()
    assert {p.name for p in run.iterdir()} == {"record.json", "notebook.ipynb"}


def test_a_damaged_record_is_named_and_left_out(made, tmp_path):
    made("a", "damaged", "damaged"), made("b", "ok")
    done = mptexp("merge", "a", "b", "--out", "all", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("not merged") == 2
    assert done.stderr.count("record.json: not a readable record") == 2
    assert statuses(SweepDir(tmp_path / "all")) == ["ok"]


def alter(place, **changes):
    """Changes the first record of a directory as an editor would."""
    path = min(place.runs.glob("*/record.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_record_that_was_changed_is_named_and_goes_behind_the_one_that_was_written(
    made, tmp_path
):
    a, b = made("a", "ok", "ok"), made("b", "ok", "ok")
    path = alter(a, wall_s=9.0)
    done = merge.merge([a.root, b.root], tmp_path / "all")
    (said,) = done.faults  # the lie: "1 run: 1 from b", exit status 0
    assert said.startswith(f"{path}: changed since it was written; left out, for {b.root}")
    assert {r["wall_s"] for r in store.read_records(SweepDir(tmp_path / "all"))[0]} == {1.0}
    shutil.rmtree(b.runs / path.parent.name)
    done = mptexp("merge", "a", "b", "--out", "new", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{path.relative_to(tmp_path)}: changed since it was written; merged as it is" in (
        done.stderr
    )


def test_the_search_and_the_diagnosis_are_merged_too(made, tmp_path):
    for name, part in (("a", lambda p: p.search), ("b", lambda p: p.diagnosis)):
        made(name, "ok")
        made(name, "ok", "failed", part=part)
    merge.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    place = SweepDir(tmp_path / "all")
    assert statuses(place) == ["ok"]
    assert statuses(place.search) == statuses(place.diagnosis) == ["failed", "ok"]


def test_runs_that_were_measured_again_are_merged_too(made, tmp_path):
    # The lie: a page of merged directories counts none of the blocks that were measured again.
    a, b = made("a", "ok", None), made("b", None, "ok")
    for place, part in ((a, a), (b, b.diagnosis)):
        (folder,) = place.runs.iterdir()
        record = store.read_record(folder / "record.json") | {"wall_s": 9.0}
        store.write_record(part.superseded / f"{folder.name}-12345678/record.json", record)
    outside = tmp_path / "outside"
    shutil.copytree(folder, outside)
    (a.superseded / f"{folder.name}-87654321").symlink_to(outside)
    for _ in range(2):
        merge.merge([a.root, b.root], tmp_path / "all")
        merged = SweepDir(tmp_path / "all")
        assert (merged.superseded_runs(), merged.diagnosis.superseded_runs()) == (1, 1)


def test_a_superseded_record_that_is_damaged_or_changed_is_named(made, tmp_path):
    a, b = made("a", "ok", None), made("b", None, "ok")
    for place, text in ((a, None), (b, "{")):
        (folder,) = place.runs.iterdir()
        kept = place.superseded / f"{folder.name}-12345678"
        shutil.copytree(folder, kept)
        if text:
            (kept / "record.json").write_text(text)
    faults = merge.merge([a.root, b.root], tmp_path / "all").faults
    changed, damaged = sorted(faults)
    assert changed.startswith(f"{a.superseded}/")
    assert changed.endswith("record.json: changed since it was written; kept as it is")
    assert damaged.startswith(f"{b.superseded}/")
    assert "not a readable record" in damaged


def test_a_backups_result_is_not_superseded_by_itself(made, tmp_path):
    # The lie: a run was measured three times, one result was thrown away, and the merge with a
    # backup, in which the first is current, counted none as discarded.
    backup, now = made("backup", "ok"), made("now", "ok", wall_s=3.0)
    (run,) = backup.runs.iterdir()
    shutil.copytree(run, now.superseded / f"{run.name}-11111111")
    now.measured.write_text("".join(f"{run.name} {str(k) * 8}\n" for k in (1, 2, 3)))
    assert (now.superseded_runs(), now.discarded_runs()) == (1, 1)
    for out in (tmp_path / "all", now.root):
        merge.merge([backup.root, now.root], out, prefer=backup.root)
        merged = SweepDir(out)
        assert {r["wall_s"] for r in store.read_records(merged)[0]} == {1.0}
        assert (merged.superseded_runs(), merged.discarded_runs()) == (1, 1)
    (kept,) = SweepDir(tmp_path / "all").superseded.iterdir()
    assert store.read_record(kept / "record.json")["wall_s"] == 3.0


def test_what_the_directories_differ_in_is_named(made, tmp_path):
    a, b = made("a", "ok"), made("b", None, "ok")
    for place, code in ((a, "aaaa"), (b, "bbbb")):
        (path,) = place.runs.glob("*/record.json")
        store.amend_record(path, store.read_record(path), identity={"code": code})
    done = mptexp("merge", "a", "b", "--out", "all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert "a and b differ in the code of mptexp (aaaa against bbbb)" in last
    # Merged one by one, they were not named.
    assert mptexp("merge", "a", "--out", "other", cwd=tmp_path).returncode == 0
    done = mptexp("merge", "b", "--out", "other", cwd=tmp_path)
    assert "other and b differ in the code of mptexp (aaaa against bbbb)" in done.stdout


def test_only_directories_of_one_params_file_are_merged(made, light, tmp_path):
    a, b = made("a", "ok"), made("b", None, "ok")
    b.params.write_text("# a thought\n" + b.params.read_text() + "timeout_min: 2\n")
    merge.merge([a.root, b.root], tmp_path / "all")
    assert (tmp_path / "all/params.yaml").read_text() == a.params.read_text()
    b.params.write_text(b.params.read_text() + "repeats: 2\n")
    with pytest.raises(ParamsError, match=r"b/params\.yaml: asks for other runs than .*a/params"):
        merge.merge([a.root, b.root], tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_reports_that_differ_are_named_and_only_prefer_decides(made, tmp_path):
    # The lie: a margin of 0.01 or of 0.2, and so "equal", by the order of the directories.
    a, b = made("a", "ok"), made("b", None, "ok")
    text = a.params.read_text()
    a.params.write_text(f"# Question: Is it A?\n{text}equivalence_margin: 0.01\n")  # the default
    b.params.write_text(f"# Question: Is it B?\n{text}price_per_hour: 9\n")
    for order in (("a", "b"), ("b", "a")):
        done = mptexp("merge", *order, "--out", "all", cwd=tmp_path)
        assert done.returncode == 2
        assert "equivalence_margin" not in done.stderr
        for name, values in (
            ("question", {"a": "Is it A?", "b": "Is it B?"}),
            ("price_per_hour", {"a": "none", "b": "9.0"}),
        ):
            said = ", ".join(f"{values[place]} in {place}/params.yaml" for place in order)
            assert f"{name} differs: {said}" in done.stderr
        assert "nothing was merged; --prefer DIR says whose params file is taken" in done.stderr
        assert not (tmp_path / "all").exists()
    for out in (tmp_path / "all", a.root):
        merge.merge([a.root, b.root], out, prefer=b.root)
        assert SweepDir(out).params_text == b.params_text
    # Of files that differ in the question alone, too.
    a.params.write_text(b.params_text.replace("Is it B?", "Is it A?"))
    with pytest.raises(ParamsError, match="question differs"):
        merge.merge([a.root, b.root], a.root)
    merge.merge([a.root, b.root], a.root, prefer=b.root)
    assert a.params_text == b.params_text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "nothing", "--out", "all"], "nothing: holds no params.yaml"),
        (["a", "--out", "mine"], "mine: is neither empty nor a sweep's directory"),
        (["a", "--out", "light.yaml"], "light.yaml: cannot hold results"),
        (["a", "--out", "all", "--prefer", "mine"], "--prefer mine: is none of the directories"),
        # Once the merged runs became the diagnosis of the sweep that they were copied from.
        (["a", "--out", "a/diagnosis"], "a/diagnosis: lies in a, which is merged"),
    ],
)
def test_wrong_input_is_a_sentence_and_nothing_is_written(made, tmp_path, words, sentence):
    made("a", "ok")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    before = content(tmp_path)
    done = mptexp("merge", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert content(tmp_path) == before


def test_a_directory_at_work_is_left_alone(made, tmp_path):
    a, b = made("a", "ok"), made("b", None, "ok")
    with directory.locked(b), pytest.raises(ParamsError, match="another mptexp command is at work"):
        merge.merge([a.root, b.root], b.root)
    assert len(list(b.runs.iterdir())) == 1


def test_what_leads_out_of_a_directory_is_not_followed(made, tmp_path):
    a = made("a", "ok", "ok")
    secret = tmp_path / "secret.ipynb"
    secret.write_text('{"cells": ["secret"]}')
    first, second = sorted(a.runs.iterdir())
    (first / "notebook.ipynb").unlink()
    (first / "notebook.ipynb").symlink_to(secret)
    shutil.move(second, tmp_path / second.name)
    second.symlink_to(tmp_path / second.name)
    done = merge.merge([a.root], tmp_path / "all")
    assert "a link that leads out" in done.faults[0]
    files = content(tmp_path / "all")
    assert sorted(p.name for p in files) == ["params.yaml", "record.json", "sweep.json"]
    assert not any(b"secret" in text for text in files.values())


def test_a_record_of_the_results_own_that_was_changed_or_damaged_is_kept(made, tmp_path):
    # The loss: merged in place, both were deleted where the other directory had the original.
    a, b = made("a", "ok", "ok", "ok"), made("b", "ok", "ok", "ok")
    changed = alter(a, wall_s=9.0)
    damaged = sorted(a.runs.glob("*/record.json"))[1]
    damaged.write_text("{")
    linked = sorted(a.runs.iterdir())[2]
    shutil.move(linked, tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    texts = [changed.read_text(), "{"]
    done = merge.merge([a.root, b.root], a.root)
    assert statuses(a) == ["ok", "ok", "ok"]
    assert {r["wall_s"] for r in store.read_records(a)[0]} == {1.0}
    kept = {path.name.partition("-")[0]: path for path in a.replaced.iterdir()}
    assert [(kept[p.parent.name] / "record.json").read_text() for p in (changed, damaged)] == texts
    assert kept[linked.name].is_symlink()
    assert (tmp_path / "elsewhere/record.json").is_file()
    assert sum(f"kept as {a.replaced}" in fault for fault in done.faults) == 3
    assert f"{changed}: changed since it was written; replaced by that of {b.root}" in str(
        done.faults
    )
    assert a.superseded_runs() == 0  # nothing was measured again
    again = merge.merge([a.root, b.root], a.root)
    assert (again.faults, again.copied) == ([], {})
    alter(a, wall_s=9.0)  # once more, and the same
    merge.merge([a.root, b.root], a.root)
    assert len(list(a.replaced.iterdir())) == 4


def test_one_run_of_two_machines_is_kept_by_neither_as_the_others(tmp_path):
    # The loss: two machines whose CPUs have one name, of other cores, and one was "superseded".
    name = "AMD EPYC (CPU)"
    for place, cores in (("a", 2), ("b", 32)):
        written_sweep(tmp_path / place, name, 1.0, cpu="AMD EPYC", cores=cores)
    for prefer in (None, tmp_path / "a"):
        with pytest.raises(ParamsError) as refused:
            merge.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all", prefer)
        assert "was measured on several devices: AMD EPYC (2 cores) in" in str(refused.value)
        assert "AMD EPYC (32 cores) in" in str(refused.value)
        assert "mptexp compare" in str(refused.value)
        assert not (tmp_path / "all").exists()


def test_runs_of_the_machine_that_merges_are_not_missed(tmp_path):
    # The lie: merged on a third machine, "6 runs without a result yet" that nobody asked for.
    place = written_sweep(tmp_path / "a", "AMD EPYC-Elsewhere (CPU)", 1.0)
    place.params.write_text("matrix: {policy: [float32, mixed_float16]}\nrepeats: 3\n")
    assert merge.merge([place.root], tmp_path / "all").missing == {}
    run = next(place.runs.iterdir())
    shutil.rmtree(run)
    done = merge.merge([place.root], tmp_path / "less")
    assert done.missing == {"AMD EPYC-Elsewhere (CPU)": 1}


def test_of_attempts_that_are_no_results_the_latest_is_taken(made, tmp_path):
    # The refusal: "differs between a (timeout), b (timeout)", though both would run again.
    a, b = made("a", "timeout", "failed"), made("b", "failed", "timeout")
    for place, second in ((a, "1"), (b, "2")):
        for path in place.runs.glob("*/record.json"):
            ended = {"ended_at": f"2026-01-01T00:00:0{second}+00:00"}
            store.write_record(path, store.read_record(path) | ended)
    merge.merge([a.root, b.root], tmp_path / "all")
    taken = SweepDir(tmp_path / "all").runs.glob("*/record.json")
    assert {p.read_bytes() for p in taken} == {p.read_bytes() for p in b.runs.glob("*/record.json")}


def test_what_an_earlier_merge_left_cut_is_made_whole(made, tmp_path):
    # The loss: a full disk cut a superseded record, and the merge repeated left it so.
    a = made("a", "ok")
    (folder,) = a.runs.iterdir()
    shutil.copytree(folder, a.superseded_as(folder.name, (folder / "record.json").read_bytes()))
    record = store.read_record(folder / "record.json")
    store.write_record(folder / "record.json", record | {"wall_s": 2.0})
    merge.merge([a.root], tmp_path / "all")
    merged = SweepDir(tmp_path / "all")
    before = content(merged.root)
    (kept,) = merged.superseded.iterdir()
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:9])
    merge.merge([a.root], merged.root)
    assert content(merged.root) == before
    assert not (merged.partial / "superseded").exists()
