import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, TINY, mptexp


def test_the_command_and_the_module_are_the_same():
    module = mptexp("--help", cwd=PROJECT)
    command = subprocess.run(
        [Path(sys.executable).with_name("mptexp"), "--help"],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert module.returncode == command.returncode == 0
    assert command.stdout == module.stdout
    for name in ("plan", "run", "report", "diagnose", "doctor", "Example"):
        assert name in module.stdout


@pytest.mark.parametrize("name", ["plan", "run", "report", "diagnose", "doctor"])
def test_every_command_has_help_with_an_example(name):
    done = mptexp(name, "--help", cwd=PROJECT)
    assert done.returncode == 0
    assert "Example: mptexp" in done.stdout


def test_plan_is_a_table_and_executes_nothing(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY + "expected_run_s: 40\n")
    done = mptexp("plan", "tiny.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("pending") == 3
    assert "about 2 min" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_plan_shows_what_was_done(tiny):
    runs = json.loads(mptexp("plan", "tiny.yaml", "--format", "json", cwd=tiny).stdout)["runs"]
    assert sorted(r["state"] for r in runs) == ["ok", "ok", "unsupported"]
    assert runs[0]["parameters"]["image_size"] == 8
    assert mptexp("plan", "tiny.yaml", cwd=tiny).stdout.count("unsupported") == 1


def test_run_tells_its_progress_in_plain_lines(tiny):
    lines = (tiny / "log.txt").read_text().splitlines()
    assert lines[0].startswith("3 runs of train into reports/tiny, unknown until")
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    assert sum("ms/step" in line for line in lines) == 2
    assert lines[-1] == "report: reports/tiny/index.html"
    assert "\x1b" not in "".join(lines)


def test_running_again_executes_nothing(tiny):
    before = {p: p.read_bytes() for p in (tiny / "reports").rglob("record.json")}
    done = mptexp("run", "tiny.yaml", "--no-report", cwd=tiny)
    assert done.returncode == 0
    assert "3 of 3 runs are done already" in done.stdout
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "absent.yaml"], "no such file"),
        (["run", "tiny.yaml", "--set", "batch_size=0"], "of at least 1"),
        (["run", "tiny.yaml", "--only", "policy=bfloat61"], "no run has it"),
        (["plan", "tiny.yaml", "--format", "xml"], "allowed: table, json"),
        (["plan"], "Missing argument"),
        (["report", "absent"], "holds no record"),
        (["diagnose", "absent.yaml"], "no such file"),
        (["diagnose", "."], "params.yaml: no such file"),
        (["doctor", "--backend", "numpy"], "allowed: tensorflow, jax, torch"),
        (["fly"], "No such command"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(tmp_path, words, expected):
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = mptexp(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_the_doctor_says_what_this_machine_has():
    done = mptexp("doctor", cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    for name in (
        "device",
        "Tensor Cores",
        "driver",
        "CUDA, cuDNN",
        "float16",
        "TF32",
        "tensorflow",
    ):
        assert name in done.stdout
    card = json.loads(mptexp("doctor", "--format", "json", cwd=PROJECT).stdout)
    assert card["default_policy"] in ("float32", "tensorfloat32")
    assert card["advice"] or card["kind"] == "gpu"
