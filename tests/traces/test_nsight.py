"""Exports of Nsight Systems: made after NVIDIA's schema, for no real one could be had."""

import sqlite3

import pytest
from builders import nsight_export

from mptexp.spec.errors import ParamsError
from mptexp.traces import nsight


def test_an_export_is_read_as_a_trace(tmp_path):
    trace = nsight.read(nsight_export(tmp_path / "a.sqlite", steps=3))
    assert (trace.framework, trace.steps, trace.how) == ("PyTorch", 3, "ranges named as steps")
    assert trace.step_s == pytest.approx(1000e-6)
    assert trace.gpu == "GPU:0 NVIDIA H100"
    rows = {(row.state, row.op): row for row in trace.operations}
    assert rows["op", "conv2d"].seconds == pytest.approx(100e-6)
    assert rows["op", "conv2d"].kernel.startswith("sm80_xmma_fprop")
    assert rows["idle", ""].seconds == pytest.approx(50e-6)
    assert rows["input", ""].seconds == pytest.approx(50e-6)  # the copy of the batch
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


def test_an_export_without_ranges_has_the_steps_that_repeat(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=4)
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE NVTX_EVENTS")
        database.execute("DROP TABLE TARGET_INFO_GPU")
    trace = nsight.read(file)
    assert (trace.steps, trace.how) == (4, "the repetition of its operations")
    assert trace.framework == ""


def test_a_database_of_something_else_is_one_sentence(tmp_path):
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute("CREATE TABLE pets (name)")
    with pytest.raises(ParamsError, match="without CUDA kernels"):
        nsight.read(tmp_path / "a.sqlite")
