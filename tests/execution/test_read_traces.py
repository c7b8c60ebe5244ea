import gzip
import shutil

import pytest
from builders import CARD
from support import gpu_trace

from mptexp.diagnosis import breakdown
from mptexp.errors import ParamsError
from mptexp.execution import merge, read_traces
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run
from mptexp.traces import xplane

PACKED = gzip.compress(bytes(range(256)) * 9)
LAYER = {"layer": "conv", "kind": "Conv2D", "parameters": 9, "channels": 1, "flops": 1e9}
WORK = {
    "flops_per_step": 1e9,
    "bytes_per_step": 1e6,
    "ceilings": {"dtype": "float32", "matmul_flops_per_s": 1e13, "copy_bytes_per_s": 1e12},
    "layers": [LAYER | {"bytes": 1e6, "alone_s": None, "alone_low_s": None}],
}
HOW = {"optimizers": ["adam"], "scaled": False, "every": 2}


@pytest.fixture
def place(tmp_path):
    """A sweep of one run whose record says that a trace was kept."""
    place = SweepDir(tmp_path / "sweep")
    run = Run(gpu_model="some GPU", profile=True)
    made = {
        "schema": schema.SCHEMA,
        "run_id": run.run_id("train"),
        "notebook": "train",
        "status": "ok",
        "parameters": run.model_dump(),
        "in_force": {"emulated": False, "jit": True},
        "environment": CARD | {"device": "some GPU"},
        "timing": {"step_s": 4e-4, "images_per_s": 8e4},
        "work": WORK,
        "profile": {"missing": "not read", "trace": HOW},
    }
    store.write_record(place.record(made["run_id"]), made)
    return place


def _trace(place):
    (path,) = place.runs.glob("*/record.json")
    return path.with_name(xplane.FILE)


def test_a_gpus_trace_becomes_the_breakdown_of_its_record(place, tmp_path):
    pytest.importorskip("xprof")
    name = "jit(train_step)/jvp(conv.layer)/conv_general_dilated"
    kernels = [("gpu", "nvjet_hsh_64x8", step * 1000, 700, {"tf_op": name}) for step in range(3)]
    gpu_trace(tmp_path / "t.xplane.pb", kernels, steps=3)
    _trace(place).write_bytes(xplane.pack(tmp_path / "t.xplane.pb"))
    assert read_traces.read(place) == (1, [])
    record = store.read_record(_trace(place).with_name("record.json"))
    profile = record["profile"]
    assert profile["missing"] == ""
    assert profile["device"] == "gpu"
    assert profile["steps"] == 6  # each marker spans two
    assert profile["step_s"] == pytest.approx(5e-4)
    assert profile["slowdown"] == pytest.approx(1.25)
    (row,) = (row for row in profile["rows"] if row["layer"])
    assert (row["layer"], row["part"], row["kernel"]) == ("conv", "forward", "nvjet_hsh_64x8")
    assert row["seconds"] == pytest.approx(3.5e-4)
    assert breakdown.by_cause(record)["matrix"] == pytest.approx(3.5e-4)  # a kernel keeps its time


@pytest.mark.parametrize("order", [("sweep", "read"), ("read", "sweep")])
def test_a_merge_prefers_the_record_whose_trace_was_read(place, tmp_path, order):
    pytest.importorskip("xprof")
    place.params.write_text("matrix: {policy: [float32]}\ndefaults: {gpu_model: some GPU}\n")
    kernels = [("gpu", "nvjet_hsh_64x8", step * 1000, 700, {}) for step in range(3)]
    gpu_trace(tmp_path / "t.xplane.pb", kernels, steps=3)
    _trace(place).write_bytes(xplane.pack(tmp_path / "t.xplane.pb"))
    read = SweepDir(shutil.copytree(place.root, tmp_path / "read"))
    assert read_traces.read(read) == (1, [])
    merge.merge([tmp_path / name for name in order], tmp_path / "all")
    (record,) = (tmp_path / "all").glob("runs/*/record.json")
    assert not store.read_record(record)["profile"]["missing"]
    # The loss: merged in place, the notebook went, which the copy that was read does not have.
    notebook = _trace(place).with_name("notebook.ipynb")
    notebook.write_text('{"cells": []}')
    merge.merge([place.root, read.root], place.root)
    assert not store.read_record(notebook.with_name("record.json"))["profile"]["missing"]
    assert notebook.read_text() == '{"cells": []}'
    # What differs otherwise is another result.
    changed = store.read_record(_trace(place).with_name("record.json")) | {"marks": ["throttled"]}
    store.write_record(_trace(place).with_name("record.json"), changed)
    with pytest.raises(ParamsError, match="differs between"):
        merge.merge([place.root, read.root], tmp_path / "again")


def test_a_sweep_without_traces_is_refused(place):
    with pytest.raises(ParamsError, match="holds no trace; runs with profile true"):
        read_traces.read(place)
    with pytest.raises(ParamsError, match="there is no such directory"):
        read_traces.read(SweepDir(place.root / "nothing"))
    assert not (place.root / "nothing").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"no protobuf"),
        gzip.compress(b"x" * 99)[:9],
    ],
    ids=["empty", "not packed", "packed nothing", "no trace", "cut off"],
)
def test_what_is_no_trace_is_named_and_its_record_stays(place, content):
    pytest.importorskip("xprof")
    file = _trace(place)
    file.write_bytes(content)
    before = file.with_name("record.json").read_bytes()
    number, faults = read_traces.read(place)
    assert number == 0
    assert len(faults) == 1
    assert str(file) in faults[0]
    assert "\n" not in faults[0]
    assert file.with_name("record.json").read_bytes() == before


def test_a_trace_beyond_the_sweep_is_not_read(place, tmp_path):
    pytest.importorskip("xprof")
    (tmp_path / "elsewhere").write_bytes(b"private")
    _trace(place).symlink_to(tmp_path / "elsewhere")
    before = _trace(place).with_name("record.json").read_bytes()
    assert "leads out" in read_traces.read(place)[1][0]
    assert _trace(place).with_name("record.json").read_bytes() == before


def test_a_trace_that_unpacks_to_too_much_is_not_read(place, monkeypatch):
    pytest.importorskip("xprof")
    monkeypatch.setattr(xplane, "MOST_BYTES", 1000)
    _trace(place).write_bytes(gzip.compress(bytes(2000)))
    assert "larger than" in read_traces.read(place)[1][0]
