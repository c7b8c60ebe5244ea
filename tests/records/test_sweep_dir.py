import shutil

import pytest

from mptexp.records.sweep_dir import SweepDir, leads_out


def record(directory, text):
    path = directory.partial / "abc123abc123" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_publishing_replaces_an_earlier_attempt(tmp_path):
    directory = SweepDir(tmp_path)
    for status in ("failed", "ok"):
        record(directory, status)
        directory.publish("abc123abc123")
    assert directory.record("abc123abc123").read_text() == "ok"
    assert not (directory.partial / "abc123abc123").exists()


def test_an_earlier_attempt_that_came_to_an_end_is_kept(tmp_path):
    directory = SweepDir(tmp_path)
    for seconds in (1, 2, 3):
        record(directory, f'{{"status": "ok", "wall_s": {seconds}}}')
        directory.publish("abc123abc123")
    assert '"wall_s": 3' in directory.record("abc123abc123").read_text()
    assert directory.superseded_runs() == 2
    assert len(directory.of_run("abc123abc123")) == 3
    record(directory, '{"status": "failed"}')
    directory.publish("abc123abc123", keep=False)
    assert directory.superseded_runs() == 2
    directory.clear()
    assert directory.superseded_runs() == 0


def test_clearing_leaves_what_is_not_the_sweeps(tmp_path):
    directory = SweepDir(tmp_path)
    record(directory, "ok")
    directory.publish("abc123abc123")
    (tmp_path / "params.yaml").write_text("x")
    (tmp_path / "notes.txt").write_text("mine")
    directory.mark()
    directory.clear()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_clearing_follows_no_link_and_takes_only_runs(tmp_path):
    directory, other = SweepDir(tmp_path / "sweep"), SweepDir(tmp_path / "other")
    record(other, "ok")
    other.publish("abc123abc123")
    record(other, "ok")
    for name in ("runs", "search", "diagnosis/runs"):
        (directory.root / name).parent.mkdir(parents=True, exist_ok=True)
        (directory.root / name).symlink_to(other.root / name.partition("/")[2])
    (directory.partial / "def456def456").mkdir(parents=True)
    (directory.partial / "linked").symlink_to(other.runs)
    (directory.partial / "mine.txt").write_text("mine")
    directory.clear()
    assert other.record("abc123abc123").read_text() == "ok"
    assert (other.partial / "abc123abc123/record.json").is_file()
    assert {path.name for path in directory.partial.iterdir()} == {"linked", "mine.txt"}


@pytest.mark.parametrize(("target", "out"), [("runs/other", False), ("../elsewhere", True)])
def test_a_link_may_stay_within_the_sweep(tmp_path, target, out):
    place = SweepDir(tmp_path / "sweep")
    (place.root / target).mkdir(parents=True)
    place.runs.mkdir(exist_ok=True)
    (place.runs / "abc123abc123").symlink_to(place.root / target)
    assert leads_out(place.record("abc123abc123")) is out


def test_each_sweep_draws_its_own_order_once(tmp_path):
    places = [SweepDir(tmp_path / str(k)) for k in range(3)]
    for place in places:
        assert place.order_seed == 0
        place.root.mkdir()
        place.mark()
    seeds = [place.order_seed for place in places]
    assert len(set(seeds)) == 3
    places[0].mark()
    assert places[0].order_seed == seeds[0]


@pytest.mark.parametrize("text", ["", "[]", '{"order_seed": "x"}', "not JSON"])
def test_a_damaged_marker_has_no_seed(tmp_path, text):
    place = SweepDir(tmp_path)
    place.marker.write_text(text)
    assert place.order_seed == 0
    assert not place.is_marked
    place.mark()
    assert place.is_marked


def test_another_programs_marker_is_none(tmp_path):
    place = SweepDir(tmp_path)
    place.marker.write_text('{"method": "bayes", "order_seed": 1}')
    assert not place.is_marked


def test_results_that_were_thrown_away_are_counted(tmp_path):
    # The lie: measured again and again with --fresh, or rm, until the answer pleases.
    directory = SweepDir(tmp_path)
    run_id = "0123456789ab"

    def measure(digit):
        folder = directory.partial / run_id
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(f'{{"status": "ok", "wall_s": {digit}}}')
        directory.publish(run_id)

    measure(1)
    measure(2)
    assert (directory.superseded_runs(), directory.discarded_runs()) == (1, 0)
    shutil.rmtree(directory.runs / run_id)
    assert directory.discarded_runs() == 1
    measure(3)
    directory.clear()
    assert directory.discarded_runs() == 3
    measure(4)
    assert directory.discarded_runs() == 3
    directory.measured.write_text("no id\n../../etc\n")
    assert directory.discarded_runs() == 0


def test_a_result_that_lies_twice_counts_once(tmp_path):
    # The lie: what was thrown away was covered by a second copy of the current result.
    directory, run_id = SweepDir(tmp_path), "0123456789ab"
    for name in (f"runs/{run_id}", f"superseded/{run_id}-11111111"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "record.json").write_text('{"status": "ok"}')
    directory.measured.write_text(f"{run_id} 11111111\n{run_id} 22222222\n")
    assert (directory.superseded_runs(), directory.discarded_runs()) == (0, 1)
    (tmp_path / name / "record.json").write_text('{"status": "oom"}')
    assert (directory.superseded_runs(), directory.discarded_runs()) == (1, 0)


def test_a_published_copy_in_which_somebody_measures_is_none_any_more(tmp_path):
    place = SweepDir(tmp_path)
    place.mark(7, published=True)
    assert (place.is_marked, place.is_published, place.order_seed) == (True, True, 7)
    place.mark()
    assert (place.is_marked, place.is_published, place.order_seed) == (True, False, 7)
    place.mark()
    assert place.order_seed == 7


@pytest.mark.parametrize(("target", "out"), [("kept", False), ("../elsewhere", True)])
def test_a_diagnosis_that_lies_elsewhere_is_none_of_the_sweep(tmp_path, target, out):
    place = SweepDir(tmp_path / "sweep")
    place.root.mkdir()
    place.params.write_text("{}")
    (place.root / target / "runs/abc123abc123").mkdir(parents=True)
    place.diagnosis.root.symlink_to(place.root / target)
    assert leads_out(place.diagnosis.record("abc123abc123")) is out
    # A whole sweep may lie anywhere, whatever it is called.
    (tmp_path / "diagnosis").symlink_to(place.root)
    assert not leads_out(SweepDir(tmp_path / "diagnosis").record("abc123abc123"))
