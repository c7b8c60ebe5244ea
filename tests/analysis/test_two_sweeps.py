import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import diverged, written_sweep
from scipy import stats
from support import mptexp

from mptexp.analysis import two_sweeps
from mptexp.api import cells
from mptexp.errors import ParamsError
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import comparisons


@pytest.fixture
def two(tmp_path):
    a = written_sweep(tmp_path / "a", "A100", 1.0, price=1.0)
    b = written_sweep(tmp_path / "b", "H100", 0.5, price=3.0, packages={"keras": "3.16"})
    return two_sweeps.load([a], [b])


def test_the_same_points_are_joined_across_devices(two):
    found = two_sweeps.points(*two).set_index("policy")
    assert list(found.index) == ["float32", "mixed_float16"]
    row = found.loc["mixed_float16"]
    assert row.ratio == pytest.approx(2)
    # A session says nothing of how much a day matters: no interval is claimed.
    assert math.isnan(row.low)
    assert math.isnan(row.high)
    assert row.step_s_a == pytest.approx(2 * row.step_s_b)
    # Twice as fast at three times the price: costs are of the times beside them.
    assert row.cost_per_million_images_b == pytest.approx(1.5 * row.cost_per_million_images_a)


def test_costs_are_of_the_times_beside_them(two):
    # The lie: times whose quotient is the ratio, and costs of medians, with another quotient.
    for side, drift in zip(two, ([1.0, 1.1, 1.5], [1.0, 1.4, 1.5]), strict=True):
        side.results["step_s"] *= side.results.block.map(dict(enumerate(drift)))
        side.results["images_per_s"] = side.results.batch_size / side.results.step_s
    for row in two_sweeps.points(*two).to_dict("records"):
        costs = row["cost_per_million_images_a"] / row["cost_per_million_images_b"]
        assert costs == pytest.approx(row["ratio"] / 3)


def test_sessions_of_several_prices_have_no_cost_and_it_is_said(tmp_path):
    # The lie: "1.77 | 7.11", or "15.9 | 7.11": the price of the directory that was named first.
    a = [
        written_sweep(tmp_path / f"a{day}", "V100", 1 + day / 100, price=price)
        for day, price in enumerate((1.0, 9.0, None))
    ]
    b = [written_sweep(tmp_path / f"b{day}", "V100", 1.0, price=4.0) for day in range(3)]
    for sessions in (a[:2], a[1::-1], a[1:], a[:0:-1]):
        points = two_sweeps.points(*two_sweeps.load(sessions, b))
        assert not [name for name in points if "cost" in name]
        assert not [head for head in comparisons.side_by_side(points) if "Cost" in head]
        (said,) = [text for text in comparisons.advice(points, False) if "Costs" in text]
        assert "sessions of A differ in price_per_hour" in said
    priced, none = (two_sweeps.points(*two_sweeps.load(side, b)) for side in (a[:1], a[2:]))
    assert "Cost per million images, A | B" in comparisons.side_by_side(priced)
    for points in (priced, none):  # of a side without any price nothing is missing
        assert not [text for text in comparisons.advice(points, False) if "Costs" in text]


def test_memory_of_a_process_beside_that_of_an_allocator_is_told_apart(tmp_path):
    # The lie: "900 MiB | 300 MiB", of a whole process and of what a GPU's allocator gave out.
    cpu = written_sweep(tmp_path / "a", "AMD EPYC (CPU)", 10.0)
    gpu, other = (written_sweep(tmp_path / name, "H100", 1.0) for name in "bc")
    mixed = comparisons.side_by_side(two_sweeps.points(*two_sweeps.load([cpu], [gpu])))
    said = "1,024 MiB | 1,024 MiB (of the process | of the GPU's allocator)"
    assert mixed["Memory, A | B"].tolist() == [said] * 2
    alike = comparisons.side_by_side(two_sweeps.points(*two_sweeps.load([gpu], [other])))
    assert alike["Memory, A | B"].tolist() == ["1,024 MiB | 1,024 MiB"] * 2


def test_what_else_differs_is_told(two):
    found = two_sweeps.differences(*two).set_index("what")
    assert found.loc["keras"].tolist() == ["3.15", "3.16"]
    assert found.loc["device"].tolist() == ["A100", "H100"]
    assert "load" not in found.index
    assert "cores" not in found.index


def test_points_that_differ_in_a_setting_are_not_joined(tmp_path):
    a, b = written_sweep(tmp_path / "a", "A100", 1.0), written_sweep(tmp_path / "b", "A100", 1.0)
    for path in b.runs.glob("*/record.json"):
        made = store.read_record(path)
        made["parameters"]["width"] = 2.0
        store.write_record(path, made)
    assert two_sweeps.points(*two_sweeps.load([a], [b])).empty
    done = mptexp("compare", "a", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert "no point was measured well in both: width 1.0 against 2.0" in done.stderr


def change(place, made_of, policy="mixed_float16", blocks=(0, 1, 2)):
    """Writes a directory's records of a policy in some blocks again, as a function makes them."""
    for path in place.runs.glob("*/record.json"):
        made = store.read_record(path)
        if made["parameters"]["policy"] == policy and made["parameters"]["block"] in blocks:
            store.write_record(path, made_of(made))


def failed(made):
    """The record as of a run that ended before anything was known of it."""
    made |= {"status": "failed", "error": "killed", "timing": {}, "history": []}
    known = ("in_force", "identity", "samples", "peak_memory_bytes", "fit_s")
    return {name: value for name, value in made.items() if name not in known}


def shown(directory, *words):
    return mptexp("compare", *words, cwd=directory, COLUMNS="300").stdout


def test_how_runs_ended_is_compared_too(tmp_path):
    # The lie: "1.51× … accuracy 91 % | 90 %" and "Nothing else differs", where two of three runs
    # of one side had diverged.
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    assert "Nothing else differs" in shown(tmp_path, "a", "b")
    assert "Runs, A | B" not in shown(tmp_path, "a", "b")
    change(b, diverged, blocks=(1, 2))
    found = two_sweeps.points(*two_sweeps.load([a], [b])).set_index("policy")
    row = found.loc["mixed_float16"]
    assert (row.ended_a, row.ended_b, row.lost) == ("3 ok", "1 ok, 2 diverged", "diverged")
    assert (row.runs_a, row.runs_b) == (3, 1)
    assert math.isnan(row.val_accuracy_a)
    assert math.isnan(row.val_accuracy_b)
    assert found.loc["float32", "val_accuracy_b"] == pytest.approx(0.91)
    told = shown(tmp_path, "a", "b")
    assert "3 ok | 1 ok, 2 diverged" in told
    assert "not compared (some of the runs diverged)" in told
    assert "Nothing else differs" not in told
    change(b, failed, blocks=(1, 2))
    assert "not compared (some of the runs did not end well)" in shown(tmp_path, "a", "b")


def test_accuracies_side_by_side_are_of_the_same_blocks(tmp_path):
    # The lie: "92.5 % | 91.0 %" of six blocks and of three, which agree in each that both have.
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    for path in b.runs.glob("*/record.json"):
        if store.read_record(path)["parameters"]["block"] == 2:
            shutil.rmtree(path.parent)
    found = two_sweeps.points(*two_sweeps.load([a], [b]))
    assert set(found.runs_a) == {3}
    assert set(found.runs_b) == {2}
    assert (found.val_accuracy_a == found.val_accuracy_b).all()
    assert found.val_accuracy_a.tolist() == pytest.approx([0.905] * len(found))


def test_a_policy_of_which_no_run_ended_well_is_listed(tmp_path):
    # The lie: its row was missing, and "Nothing else differs".
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    for made_of, ended in ((diverged, "3 diverged"), (failed, "3 failed")):
        change(b, made_of)
        sides = two_sweeps.load([a], [b])
        assert two_sweeps.points(*sides).policy.tolist() == ["float32"]
        (row,) = two_sweeps.not_compared(*sides).to_dict("records")
        assert (row["policy"], row["ended_a"], row["ended_b"]) == ("mixed_float16", "3 ok", ended)
        told = shown(tmp_path, "a", "b")
        assert f"3 ok | {ended}" in told.partition("Not compared")[2]
        assert "Nothing else differs" not in told
    said = r"1 point not compared, .*: batch size 32, policy mixed_float16: 3 ok \| 3 failed"
    with pytest.warns(UserWarning, match=said):
        cells.compare(a.root, b.root)
    for path in b.runs.glob("*/record.json"):
        if store.read_record(path)["status"] != "ok":
            path.unlink()
    (row,) = two_sweeps.not_compared(*two_sweeps.load([a], [b])).to_dict("records")
    assert (row["ended_b"], row["device_b"]) == ("no run", "")
    assert "3 ok | no run" in shown(tmp_path, "a", "b")
    # The same ending on both sides is no difference.
    change(a, failed)
    more = written_sweep(tmp_path / "c", "A100", 1.0)
    change(more, failed)
    told = shown(tmp_path, "a", "c")
    assert "3 failed | 3 failed" in told
    assert "Nothing else differs" in told


def test_what_tells_a_point_that_is_not_compared_from_the_others_is_said(tmp_path):
    a = written_sweep(tmp_path / "a", "A100", 1.0)
    written_sweep(tmp_path / "b", "A100", 1.0)
    more = written_sweep(tmp_path / "v", "V100", 4.0)
    shutil.copytree(more.runs, a.runs, dirs_exist_ok=True)
    assert "V100 | –" in shown(tmp_path, "a", "b").partition("Not compared")[2]


def test_why_no_point_is_in_both_is_said(tmp_path):
    # The puzzle: "see their results.csv", of sweeps that had none.
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    for policy in ("float32", "mixed_float16"):
        change(b, failed, policy)
    done = mptexp("compare", "a", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert "no point was measured well in both: runs of A: 6 ok; of B: 6 failed" in done.stderr
    c = written_sweep(tmp_path / "c", "A100", 1.0)
    for path in c.runs.glob("*/record.json"):
        made = store.read_record(path)
        made["parameters"]["seed"] += 100
        store.write_record(path, made)
    done = mptexp("compare", "a", "c", cwd=tmp_path)
    assert "no point was measured well in both: seed 0 against 100" in done.stderr
    assert two_sweeps.disjoint(*two_sweeps.load([a], [c])) == {"seed": (["0"], ["100"])}


def test_the_command(tmp_path):
    written_sweep(tmp_path / "a", "A100", 1.0)
    written_sweep(tmp_path / "b", "H100", 0.5)
    told = json.loads(mptexp("compare", "a", "b", "--format", "json", cwd=tmp_path).stdout)
    assert [round(p["ratio"], 3) for p in told["points"]] == [2, 2]
    shown = mptexp("compare", "a", "b", cwd=tmp_path, COLUMNS="200").stdout
    assert "A is a, B is b" in shown
    assert "2.00× (no" in shown
    text = mptexp("compare", "a", "b", "--format", "markdown", cwd=tmp_path).stdout
    assert "| what | a | b |" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a", "nothing"), "nothing: there is no such directory"),
        (("a", "a", "--format", "xml"), "--format xml: unknown; allowed: table, markdown, json"),
    ],
)
def test_wrong_input_is_a_sentence(tmp_path, words, sentence):
    written_sweep(tmp_path / "a", "A100", 1.0)
    done = mptexp("compare", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_devices_are_never_pooled(tmp_path):
    a, b = written_sweep(tmp_path / "a", "A100", 1.0), written_sweep(tmp_path / "b", "H100", 0.5)
    more = written_sweep(tmp_path / "v", "V100", 4.0)
    shutil.copytree(more.runs, a.runs, dirs_exist_ok=True)
    found = two_sweeps.points(*two_sweeps.load([a], [b])).query("policy == 'float32'")
    assert found.set_index("device_a").ratio.to_dict() == {
        "A100": pytest.approx(2),
        "V100": pytest.approx(8),
    }
    assert found.runs_a.tolist() == [3, 3]
    assert "Device, A | B" in comparisons.side_by_side(found)
    # A device that both have is compared with itself.
    both = two_sweeps.points(*two_sweeps.load([a], [a])).query("policy == 'float32'")
    assert both.device_a.tolist() == both.device_b.tolist() == ["A100", "V100"]


def sessions(root, name, scales, **card):
    return [written_sweep(root / f"{name}{k}", "A100", s, **card) for k, s in enumerate(scales)]


def test_from_three_sessions_a_side_sessions_are_the_unit(tmp_path):
    # Days vary by 2 %: the runs of one say nothing of that, three of them do.
    a, b = sessions(tmp_path, "a", (1, 1.02, 0.98)), sessions(tmp_path, "b", (0.5, 0.49, 0.51))
    found = two_sweeps.points(*two_sweeps.load(a, b)).set_index("policy").loc["float32"]
    assert (found.sessions_a, found.sessions_b, found.runs_a) == (3, 3, 9)
    assert found.ratio == pytest.approx(2, rel=0.01)
    assert 1.8 < found.low < 1.95
    assert 2.05 < found.high < 2.2
    two = two_sweeps.points(*two_sweeps.load(a[:2], b))
    assert two.low.isna().all()


def test_few_comparisons_of_like_sessions_claim_a_difference(tmp_path):
    # Each session has a drift of its own, of 3 %; by runs, most of these would differ.
    random, by_runs, lying = np.random.default_rng(0), 0, 0
    (place,) = sessions(tmp_path, "a", (1,))
    side, _ = two_sweeps.load([place], [place])
    for _ in range(150):
        tables = []
        for _ in "ab":
            frames = [
                side.results.assign(step_s=side.results.step_s * drift, session=k)
                for k, drift in enumerate(np.exp(random.normal(0, 0.03, 3)))
            ]
            tables.append(replace(side, results=pd.concat(frames, ignore_index=True)))
        found = two_sweeps.points(*tables)
        lying += ((found.low > 1) | (found.high < 1)).any()
        steps = [np.log(t.ok[t.ok.policy == "float32"].step_s) for t in tables]
        by_runs += stats.ttest_ind(*steps).pvalue < 0.05
    assert by_runs > 30
    assert lying <= 12  # 5 % of 150 are 7.5


def test_sessions_of_a_side_that_differ_are_no_repeats(tmp_path):
    a, b = sessions(tmp_path, "a", (1, 1.02, 0.98)), sessions(tmp_path, "b", (0.5, 0.49, 0.51))
    for path in a[1].runs.glob("*/record.json"):
        made = store.read_record(path)
        made["identity"] |= {"model_source": "edited"}
        store.write_record(path, made)
    sides = two_sweeps.load(a, b)
    found = two_sweeps.points(*sides)
    assert set(found["flags"]) == {"not comparable"}
    assert found.low.isna().all()
    assert "not valid: not comparable" in " ".join(comparisons.side_by_side(found).iloc[0].map(str))
    assert "model source" in set(two_sweeps.differences(*sides).what)


def test_runs_that_are_not_valid_claim_nothing(tmp_path):
    a, b = sessions(tmp_path, "a", (1, 1.02, 0.98)), sessions(tmp_path, "b", (0.5, 0.49, 0.51))
    for path in b[0].runs.glob("*/record.json"):
        made = store.read_record(path)
        made["marks"] = ["measured while other programs used the processor"]
        store.write_record(path, made)
    found = two_sweeps.points(*two_sweeps.load(a, b))
    assert set(found["flags"]) == {"interference"}
    assert found.low.isna().all()


def test_a_copy_of_a_session_is_no_other_session(tmp_path):
    # The lie that was told: three copies of one day, "from three sessions", an interval of nought.
    a, b = sessions(tmp_path, "a", (1, 1.02, 0.98)), sessions(tmp_path, "b", (0.5, 0.49, 0.51))
    for k, path in enumerate(sorted(tmp_path.glob("*/runs/*/record.json"))):
        made = store.read_record(path)
        store.write_record(path, made | {"readings": {"cpu_s": 5 + k / 1e9}})
    assert two_sweeps.points(*two_sweeps.load(a, b)).low.notna().all()
    copied = tmp_path / "copied"
    shutil.copytree(a[0].root, copied)
    with pytest.raises(ParamsError, match=r"copied: holds the same measurement as .*a0 \(run "):
        two_sweeps.load([*a, SweepDir(copied)], b)
    # Both sides may share one, which is said: a sweep beside itself, three sessions beside copies.
    for sides in (([a[0]], [SweepDir(copied)]), ([*a], [SweepDir(copied), *b[1:]]), (a, a)):
        found = two_sweeps.points(*two_sweeps.load(*sides))
        assert set(found["flags"]) == {"same measurement"}
        assert found.low.isna().all()
    done = mptexp("compare", "a0", "copied", cwd=tmp_path, COLUMNS="200")
    assert "1.00× (not valid: same measurement; n = 3, 3)" in done.stdout
    assert "Both sides hold the same measurement" in done.stdout


def test_what_one_side_alone_was_is_part_of_what_differs(tmp_path):
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    for path in b.runs.glob("*/record.json"):
        made = store.read_record(path)
        changes = {"variables": {"XLA_FLAGS": "--fast"}, "data_order": "other"}
        made["identity"] |= changes
        store.write_record(path, made)
    found = two_sweeps.differences(*two_sweeps.load([a], [b])).set_index("what")
    assert found.loc["XLA FLAGS"].tolist() == ["–", "--fast"]
    assert found.loc["data order", "b"] == "other"


def test_damaged_and_changed_records_are_named(tmp_path):
    for name in "ab":
        written_sweep(tmp_path / name, "A100", 1.0)
    first, second, *_ = sorted((tmp_path / "b/runs").glob("*/record.json"))
    first.write_text("{")
    second.write_text(second.read_text().replace('"wall_s": 2.0', '"wall_s": 1.0'))
    done = mptexp("compare", "a", "b", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{first.parent.name}/record.json: not a readable record" in done.stderr
    assert f"{second.parent.name}/record.json: changed since it was written" in done.stderr
    assert "not valid" in done.stdout


def test_what_to_do_instead_is_said(tmp_path):
    places = [*sessions(tmp_path, "a", (1, 1.02, 0.98)), *sessions(tmp_path, "b", (0.5, 0.49, 0.5))]
    one = mptexp("compare", "a0", "b0", cwd=tmp_path, COLUMNS="400").stdout
    assert "Two settings are best measured interleaved" in one
    for place, hour in zip(places, range(10, 16), strict=True):
        for path in place.runs.glob("*/record.json"):
            made = store.read_record(path) | {"ended_at": f"2026-01-01T{hour}:00:00+00:00"}
            store.write_record(path, made)
    more = ["--a", "a1", "--a", "a2", "--b", "b1", "--b", "b2"]
    three = mptexp("compare", "a0", "b0", *more, cwd=tmp_path, COLUMNS="400").stdout
    assert "(3 and 3 sessions)" in three
    assert "interleaved" not in three
    assert "All runs of one side came before the other's" in three
    twice = mptexp("compare", "a0", "b0", "--a", "a0", cwd=tmp_path)
    assert twice.returncode == 2
    assert "given twice" in twice.stderr


def test_accuracies_of_runs_that_ended_early_are_not_shown_side_by_side(tmp_path):
    # The lie: "accuracy 90 % | 60 %" of one training and of one that target_ci ended.
    a, b = (written_sweep(tmp_path / name, "A100", 1.0) for name in "ab")
    for path in b.runs.glob("*/record.json"):
        made = store.read_record(path)
        made["timing"]["ended_by"] = "target_ci"
        store.write_record(path, made)
    found = two_sweeps.points(*two_sweeps.load([a], [b]))
    assert found.val_accuracy_a.notna().all()
    assert found.val_accuracy_b.isna().all()
    assert found.ratio.notna().all()


def test_runs_of_one_call_are_one_session(tmp_path):
    # The lie: "0.95× [0.95, 0.96] (3 and 3 sessions)", of one call spread over six directories.
    a, b = (
        [written_sweep(tmp_path / f"{side}{n}", "V100", scale + n / 100, runs=1) for n in range(3)]
        for side, scale in (("a", 1.0), ("b", 1.2))
    )
    assert set(two_sweeps.points(*two_sweeps.load(a, b)).sessions_a) == {3}
    for place in a:
        for policy in ("float32", "mixed_float16"):
            change(place, lambda made: made | {"boot": "b", "invocation": "20261130"}, policy)
    points = two_sweeps.points(*two_sweeps.load(a, b))
    assert set(points.sessions_a) == {1}
    assert points.low.isna().all()


def test_what_differs_at_a_point_is_told_though_both_sweeps_have_it(tmp_path):
    # The lie: "nothing else differs", of two sweeps whose policies had each other's version, or of
    # which one emulated what the other computed.
    a, b = (written_sweep(tmp_path / side, "V100", 1.0, runs=1) for side in "ab")
    sides = ((a, ("3.15", "3.16")), (b, ("3.16", "3.15")))
    for place, versions in sides:
        for policy, version in zip(("float32", "mixed_float16"), versions, strict=True):
            for file in place.runs.glob("*/record.json"):
                made = json.loads(file.read_text())
                if made["parameters"]["policy"] == policy:
                    made["environment"]["packages"] = {"keras": version}
                    made["in_force"]["emulated"] = place is b and policy == "mixed_float16"
                    made["marks"] = ["eagerly"] * (place is b)
                    store.write_record(file, made)
    found = two_sweeps.differences(*two_sweeps.load([a], [b])).set_index("what")
    assert found.loc["keras (keydana_cnn, batch size 32, float32)"].tolist() == ["3.15", "3.16"]
    assert found.loc["emulated"].tolist() == ["False", "False · True"]
    assert found.loc["marks"].tolist() == ["–", "eagerly"]
