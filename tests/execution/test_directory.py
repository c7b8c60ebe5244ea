"""The directory of a sweep belongs to one params file, and to one process at a time."""

from support import mptexp

from mptexp.execution import directory
from mptexp.records.sweep_dir import SweepDir


def test_two_sweeps_in_one_directory_do_not_meet(light, tmp_path):
    light({"seed": [0]})
    with directory.locked(SweepDir(tmp_path / "reports/light")):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "another mptexp run is at work" in done.stderr


def test_a_directory_of_another_params_file_is_refused(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, repeats=2)
    before = sorted((tmp_path / "reports").rglob("*"))
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert sorted((tmp_path / "reports").rglob("*")) == before
    done = mptexp("run", "light.yaml", "--no-report", "--fresh", cwd=tmp_path)
    assert done.returncode == 0
    assert len(list((tmp_path / "reports/light/runs").iterdir())) == 2


def test_a_comment_does_not_make_another_params_file(light, tmp_path):
    path = light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    path.write_text("# a thought\n" + path.read_text())
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0


def test_a_directory_with_other_things_is_refused(light, tmp_path):
    light({"seed": [0]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for out in ("mine", "light.yaml"):
        done = mptexp("run", "light.yaml", "--out", out, "--fresh", cwd=tmp_path)
        assert done.returncode == 2, done.stdout
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_what_a_report_says_may_change_without_running_again(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, price_per_hour=2.5, target_accuracy=0.9)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done already" in done.stdout
    assert "price_per_hour: 2.5" in (tmp_path / "reports/light/params.yaml").read_text()
