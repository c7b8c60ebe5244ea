"""Runs that are not those of the params file that lies beside them."""

import json
import shutil

import pytest
from builders import published, record, tables, written_sweep
from support import PROJECT, mptexp

from mptexp.analysis import completeness, sweep_tables
from mptexp.execution import merge
from mptexp.records.schema import FOREIGN
from mptexp.report.answers import caveats

TEXT = """
defaults: {batch_size: 32}
matrix: {policy: [float32, mixed_float16]}
repeats: 2
"""
POLICIES = "matrix: {policy: [float32, mixed_float16]}\n"
PUBLISHED = PROJECT / "reports/published"


def runs(**more):
    return [record(p, b, **more) for p in ("float32", "mixed_float16") for b in range(2)]


def said(records, text):
    found = tables(records)
    object.__setattr__(found, "asked", completeness.of(records, text))
    return " ".join([*caveats.banner(found), *caveats.remarks(found)])


def test_the_runs_of_a_params_file_are_those_it_asks_for():
    assert completeness.of(runs(), TEXT) == completeness.Asked(planned=4, points=2)
    assert said(runs(), TEXT) == ""


@pytest.mark.parametrize(
    ("edited", "text"),
    [
        ("batch_size: 64", "batch_size 32 (params.yaml: 64)"),
        ("batch_size: 32, epochs: 3", "epochs 20 (params.yaml: 3)"),
        ("batch_size: 32, seed: 7", "seed 0 (params.yaml: 7)"),
    ],
)
def test_a_params_file_that_was_edited_after_its_runs_says_so(edited, text):
    told = said(runs(), TEXT.replace("batch_size: 32", edited))
    assert "does not ask for 4 of 4 runs, which were made with" in told
    assert text in told
    assert "4 of 4 runs that params.yaml asks for have no record yet" in told


def test_fewer_repeats_than_were_made_and_runs_that_are_missing_are_named():
    assert "1 of 4 runs that params.yaml asks for have no record yet" in said(runs()[:3], TEXT)
    told = said(runs(), TEXT.replace("repeats: 2", "repeats: 1"))
    assert "2 of 4 runs, which were made with block 1 (params.yaml: 0)" in told


def test_a_record_that_cannot_be_read_is_not_one_that_is_still_to_come(tmp_path):
    # The lie: "1 of 2 runs have no record yet" of a sweep whose every run ended.
    place = written_sweep(tmp_path / "sweep", "A100", 1.0, runs=2)
    place.params.write_text("repeats: 2\ndefaults: {gpu_model: A100}\n" + POLICIES)
    next(place.runs.glob("*/record.json")).write_text("{")
    assert caveats.missing(sweep_tables.load(place)) == [
        "1 of 4 runs that params.yaml asks for have no record (1 record cannot be read): 1 on A100"
    ]


def test_batch_sizes_that_were_searched_and_other_devices_are_asked_for():
    searched = completeness.of([*runs(), *runs(batch_size=48)], TEXT + "max_batch: true\n")
    assert (searched.other, searched.missing) == (0, {})


def test_runs_are_missing_on_each_device_that_the_file_names(tmp_path):
    # The lie: "every comparison is valid" of three devices, of which one was never measured.
    place = written_sweep(tmp_path / "sweep", "V100", 1.0)
    half = written_sweep(tmp_path / "half", "A100", 0.5, runs=2)
    shutil.copytree(half.runs, place.runs, dirs_exist_ok=True)
    matrix = "policy: [float32, mixed_float16], gpu_model: [V100, A100, H100]"
    place.params.write_text(f"repeats: 3\nmatrix: {{{matrix}}}\n")
    told = "8 of 18 runs that params.yaml asks for have no record yet: 2 on A100, 6 on H100"
    done = mptexp("report", "sweep", "--check", cwd=tmp_path)
    assert told in done.stdout
    assert f"**Incomplete**: {told}." in caveats.banner(sweep_tables.load(place))
    # As a merge counts them.
    assert merge.merge([place.root], tmp_path / "all").missing == {"A100": 2, "H100": 6}
    # A point of `local` may be of any machine.
    place.params.write_text("repeats: 3\nmatrix: {policy: [float32, mixed_float16]}\n")
    assert sweep_tables.load(place).asked.missing == {}


def test_where_no_file_says_what_was_asked_for_that_is_said(tmp_path):
    # The lie: without params.yaml, or with a word too many in it, no run was missing any more.
    place = written_sweep(tmp_path / "sweep", "A100", 1.0, runs=2)
    text = "repeats: 4\ndefaults: {gpu_model: A100}\n" + POLICIES
    for content, why in (
        (text + "nonsense: 1\n", "params.yaml:4: unknown key nonsense"),
        ("matrix: [", "params.yaml:1: is not valid YAML"),
        (None, "there is no params.yaml"),
    ):
        place.params.unlink() if content is None else place.params.write_text(content)
        done = mptexp("report", "sweep", "--check", "--format", "json", cwd=tmp_path)
        assert done.returncode == 1
        (sentence,) = json.loads(done.stdout)["not_valid"]
        assert sentence.startswith(f"What was asked for is not known: {why}")
        made = sweep_tables.load(place)
        assert "**What was asked for is not known**" in " ".join(caveats.banner(made))
        assert not caveats.is_minor(made, "time")


def test_what_a_step_timer_recorded_was_asked_for_by_no_file():
    assert (
        completeness.of([run | {"notebook": FOREIGN} for run in runs()], "") == completeness.Asked()
    )


@pytest.mark.parametrize("name", sorted(p.parent.name for p in PUBLISHED.glob("*/runs")))
def test_published_runs_are_those_of_their_params_files(name):
    found = published(name).tables.asked
    assert (found.other, found.unknown) == (0, "")


def test_a_check_says_what_is_missing_and_fails_where_the_file_is_another(tmp_path):
    # The lie: "every comparison is valid" of 18 runs whose params file asks for others.
    place = written_sweep(tmp_path / "sweep", "A100", 1.0, runs=2)
    place.params.write_text("repeats: 4\ndefaults: {gpu_model: A100}\n" + POLICIES)
    done = mptexp("report", "sweep", "--check", cwd=tmp_path)
    assert done.returncode == 0
    assert "4 of 8 runs that params.yaml asks for have no record yet" in done.stdout
    assert "sweep: no comparison has an interval" in done.stdout
    place.params.write_text("repeats: 2\ndefaults: {epochs: 3}\n" + POLICIES)
    done = mptexp("report", "sweep", "--check", "--format", "json", cwd=tmp_path)
    assert done.returncode == 1
    (sentence,) = json.loads(done.stdout)["not_valid"]
    assert "params.yaml does not ask for 4 of 4 runs, which were made with epochs 20" in sentence


def test_points_that_the_file_excludes_are_named(tmp_path):
    # The lie: the points at which float32 is faster are excluded, and the page says nothing.
    text = TEXT.replace("[float32, mixed_float16]", "[float32, mixed_float16], batch_size: [32, 8]")
    text += "exclude: [{policy: mixed_float16, batch_size: 8}, {batch_size: 8}]\n"
    told = said(runs(), text)
    assert "2 of 4 points of its matrix are left out by params.yaml (exclude)" in told
    assert "policy mixed\\_float16 with batch\\_size 8; batch\\_size 8" in told
    place = written_sweep(tmp_path / "sweep", "A100", 1.0, runs=2)
    place.params.write_text("repeats: 2\n" + POLICIES + "exclude: [{policy: float32}]\n")
    done = mptexp("report", "sweep", "--check", cwd=tmp_path)
    assert "1 of 2 points of its matrix are left out by params.yaml (exclude): policy float32" in (
        done.stdout
    )


def test_batch_sizes_that_were_asked_for_are_missing_beside_those_that_were_searched():
    # The lie: "Every comparison is valid", with 12 of 18 runs not made.
    text = "max_batch: true\nmatrix: {batch_size: [32, 64], policy: [float32, mixed_float16]}\n"
    found = completeness.of(runs(), text + "repeats: 2\n")
    assert (found.missing, found.planned) == ({"local": 4}, 8)
    whole = [*runs(), *runs(batch_size=64), *runs(batch_size=96)]
    found = completeness.of(whole, text + "repeats: 2\n")
    assert (found.missing, found.other) == ({}, 0)
