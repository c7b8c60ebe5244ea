"""A real virtual environment in which TensorFlow is not installed, nor xprof."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import PROJECT, mptexp

from mptexp.diagnosis import breakdown
from mptexp.execution import read_traces
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.traces import xplane

pytestmark = pytest.mark.kernel
LACKING = ("tensorflow", "tensorboard", "xprof")
TINY = """\
# Question: Does it run without TensorFlow?
defaults: {backend: jax, model: mlp, width: 0.125, batch_size: 64, epochs: 2}
matrix: {policy: [float32, mixed_bfloat16]}
include:
  - {dataset: "folder:pictures", input_mode: resident, policy: mixed_float16, epochs: 4}
  - {backend: tensorflow}
"""


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """Runs mptexp in an environment that holds what this one does, but for LACKING."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    names = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", vars=names))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(LACKING):
            (site / entry.name).symlink_to(entry)
    (home / "share").symlink_to(Path(sys.prefix, "share"))  # nbconvert's templates

    def run(*words, cwd):
        return subprocess.run(
            [home / "bin/python", "-m", "mptexp", *words],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(PROJECT), "MPTEXP_FORK": "1"},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture(scope="module")
def swept(lacking, tmp_path_factory):
    """A folder in which the sweep was run and its steps were traced, and what was said."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("sweep")
    noise = np.random.default_rng(0)
    for label in ("left", "right"):
        (folder / "pictures" / label).mkdir(parents=True)
        for i in range(128):
            pixels = noise.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / label / f"{i}.png")
    (folder / "tiny.yaml").write_text(TINY)
    return folder, lacking("diagnose", "tiny.yaml", "--traces-only", cwd=folder)


def _records(folder):
    records, damaged = store.read_records(SweepDir(folder / "reports/tiny"))
    assert not damaged
    return records


def test_a_sweep_runs_to_its_report(swept):
    folder, done = swept
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    records = _records(folder)
    ended = {(r["parameters"]["backend"], r["status"]) for r in records}
    assert len(records) == 4
    assert ended == {("jax", "ok"), ("tensorflow", "unsupported")}
    for record in records:
        if record["status"] == "ok":
            assert "tensorflow" not in record["environment"]["packages"]
            assert record["timing"]["images_per_s"] > 0
        else:
            assert "tensorflow" in record["error"]
    assert (folder / "reports/tiny/index.html").stat().st_size > 100_000


def test_its_traces_are_kept_and_read_where_xprof_is(swept):
    pytest.importorskip("xprof")
    folder, _ = swept
    place = SweepDir(folder / "reports/tiny")
    kept = sorted(place.diagnosis.runs.glob(f"*/{xplane.FILE}"))
    assert len(kept) == 2
    before = [store.read_record(file.with_name("record.json")) for file in kept]
    assert all("mptexp traces" in record["profile"]["missing"] for record in before)
    assert read_traces.read(place) == (2, [])
    done = mptexp("traces", "reports/tiny", cwd=folder)  # a trace can be read again
    assert done.returncode == 0, done.stderr
    assert "2 traces read" in done.stdout
    assert done.stderr == ""
    for file, old in zip(kept, before, strict=True):
        record = store.read_record(file.with_name("record.json"))
        assert record["profile"]["missing"] == ""
        assert breakdown.by_cause(record).sum() == pytest.approx(record["timing"]["step_s"])
        assert record | {"profile": ""} == old | {"profile": ""}
    assert "Where the time" in place.index.read_text()


HOUR = ("model=mlp", "width=0.0625", "image_size=16", "synthetic_length=1024", "epochs=8")
HOUR += ("repeats=1", "max_steps=40", "target_ci=null")


@pytest.mark.soak  # how far it gets in the time
def test_a_rented_hour_without_tensorflow_is_opened_where_it_is(lacking, tmp_path):
    words = [word for text in HOUR for word in ("--set", text)]
    for _ in range(2):  # given again it goes on
        done = lacking("gpu-hour", "--minutes", "2", "--out", "hour", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    done = mptexp("open", "hour.tar.gz", "--to", "here", cwd=tmp_path)
    assert "report: here/hour/tf32/index.html" in done.stdout
    records = store.read_records(SweepDir(tmp_path / "here/hour/tf32"))[0]
    assert {r["parameters"]["backend"] for r in records} == {"jax"}
    assert "ok" in {r["status"] for r in records}


def test_reading_traces_without_xprof_is_a_sentence(lacking, swept):
    folder, _ = swept
    done = lacking("traces", "reports/tiny", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("error xprof, which reads traces, is not installed")


def test_a_set_of_tensorflow_datasets_is_refused_in_a_sentence(lacking, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "tiny.yaml").write_text(TINY.partition("include")[0])
    done = lacking("run", "tiny.yaml", "--set", "dataset=mnist", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "tensorflow" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_the_doctor_says_what_is_missing(lacking, tmp_path):
    pytest.importorskip("jax")
    assert "keras" in lacking("doctor", "--backend", "jax", cwd=tmp_path).stdout
    # The lie: without the backend, an error about TensorFlow on a rented GPU that has none.
    assert "keras" in lacking("doctor", cwd=tmp_path).stdout
    done = lacking("doctor", "--backend", "tensorflow", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error doctor: tensorflow could not be asked")
