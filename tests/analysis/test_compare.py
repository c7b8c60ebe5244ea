import json
import math
import shutil

import pytest
from builders import written_sweep
from support import mptexp

from mptexp.analysis import compare
from mptexp.records import store
from mptexp.report import comparisons


@pytest.fixture
def two(tmp_path):
    a = written_sweep(tmp_path / "a", "A100", 1.0, price=1.0)
    b = written_sweep(tmp_path / "b", "H100", 0.5, price=3.0, packages={"keras": "3.16"})
    return compare.load(a, b)


def test_the_same_points_are_joined_across_devices(two):
    found = compare.points(*two).set_index("policy")
    assert list(found.index) == ["float32", "mixed_float16"]
    row = found.loc["mixed_float16"]
    assert row.ratio == pytest.approx(2)
    # A session says nothing of how much a day matters: no interval is claimed.
    assert math.isnan(row.low)
    assert math.isnan(row.high)
    assert row.step_s_a == pytest.approx(2 * row.step_s_b)
    # Twice as fast at three times the price.
    assert row.cost_per_million_images_b == pytest.approx(1.5 * row.cost_per_million_images_a)


def test_what_else_differs_is_told(two):
    found = compare.differences(*two).set_index("what")
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
    assert compare.points(*compare.load(a, b)).empty
    done = mptexp("compare", "a", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert "no point was measured well in both: width 1.0 against 2.0" in done.stderr


def test_the_command(tmp_path):
    written_sweep(tmp_path / "a", "A100", 1.0)
    written_sweep(tmp_path / "b", "H100", 0.5)
    told = json.loads(mptexp("compare", "a", "b", "--format", "json", cwd=tmp_path).stdout)
    assert [round(p["ratio"], 3) for p in told["points"]] == [2, 2]
    shown = mptexp("compare", "a", "b", cwd=tmp_path, COLUMNS="200").stdout
    assert "A is a, B is b" in shown
    assert "2.00× (one" in shown
    text = mptexp("compare", "a", "b", "--format", "markdown", cwd=tmp_path).stdout
    assert "| what | a | b |" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a", "nothing"), "nothing: holds no record of a run"),
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
    found = compare.points(*compare.load(a, b)).query("policy == 'float32'")
    assert found.set_index("device_a").ratio.to_dict() == {
        "A100": pytest.approx(2),
        "V100": pytest.approx(8),
    }
    assert found.runs_a.tolist() == [3, 3]
    assert "Device, A | B" in comparisons.two_sweeps(found)
    # A device that both have is compared with itself.
    both = compare.points(*compare.load(a, a)).query("policy == 'float32'")
    assert both.device_a.tolist() == both.device_b.tolist() == ["A100", "V100"]
