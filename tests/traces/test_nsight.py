"""Exports of Nsight Systems with the columns of two versions; their CUDA tables are made."""

import sqlite3

import pytest
from builders import NSIGHT, nsight_export

from mptexp.diagnosis import breakdown
from mptexp.errors import ParamsError
from mptexp.traces import nsight
from mptexp.traces.operations import CAPABILITY


@pytest.mark.parametrize("version", NSIGHT)
def test_an_export_is_read_as_a_trace(tmp_path, version):
    trace = nsight.read(nsight_export(tmp_path / "a.sqlite", steps=3, version=version))
    assert (trace.framework, trace.steps, trace.how) == ("PyTorch", 3, "ranges named as steps")
    assert trace.step_s == pytest.approx(1000e-6)
    assert trace.gpu == "GPU:0 NVIDIA H100"
    rows = {(row.state, row.op): row for row in trace.operations}
    assert rows["op", "conv2d"].seconds == pytest.approx(100e-6)
    assert rows["op", "conv2d"].kernel.startswith("sm80_xmma_fprop")
    assert rows["idle", ""].seconds == pytest.approx(50e-6)
    assert rows["input", ""].seconds == pytest.approx(50e-6)  # the copy of the batch
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


@pytest.mark.parametrize(
    "text",
    ["compute_loss", "RandomErasing+forward", "fft", "Trainer::loss", "compute_loss, op_id = 5"],
)
def test_what_people_call_a_range_is_no_operation(tmp_path, text):
    # The lies: "then loss 28 %", "random numbers 28 %", "sorting 28 %" of one training, by the
    # name of the user's range around its forward pass.
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'aten%'")
        plain = breakdown.by_cause_of(breakdown.of_trace(nsight.read(file)))
        for n in range(3):
            database.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                f"VALUES ({n * 10**6 + 1000}, {n * 10**6 + 700_000}, 59, ?, {(9 << 24) + 77})",
                [text],
            )
    named = breakdown.by_cause_of(breakdown.of_trace(nsight.read(file)))
    assert named["matrix"] == pytest.approx(200e-6)
    assert named.to_dict() == pytest.approx(plain.to_dict())


def test_an_export_without_ranges_has_the_steps_that_repeat(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=4)
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE NVTX_EVENTS")
        database.execute("DROP TABLE TARGET_INFO_GPU")
    trace = nsight.read(file)
    assert (trace.steps, trace.how) == (4, "the repetition of its operations")
    assert trace.framework == ""


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"])
def test_any_other_table_may_be_missing(tmp_path, table):
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN shortName")
    assert nsight.read(file).steps == 3


def test_of_several_processes_one_is_explained_with_its_own_launches(tmp_path):
    # Numbers that tie kernels to launches are those of a process: both have the same ones.
    file = nsight_export(tmp_path / "a.sqlite", steps=3, processes=(9, 10))
    with sqlite3.connect(file) as database:
        database.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 50000 WHERE globalPid = 10 << 24"
        )
        database.execute(
            "UPDATE NVTX_EVENTS SET text = 'aten::linear' "
            "WHERE globalTid >> 24 = 9 AND text LIKE 'aten%'"
        )
    trace = nsight.read(file)
    assert trace.steps == 3
    names = {row.op for row in trace.operations if row.state == "op"}
    assert "conv2d" in names
    assert "linear" not in names
    assert any("of several processes" in note and "60%" in note for note in trace.notes)


def test_a_cuda_graph_recorded_as_a_whole_is_unexplained_work_not_an_idle_device(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT start, end, deviceId, "
            "contextId, streamId, correlationId, globalPid, 1 AS graphId, 1 AS graphExecId "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL"
        )
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    trace = nsight.read(file)
    graphs = [row for row in trace.operations if "CUDA graph" in row.kernel]
    assert sum(row.seconds for row in graphs) == pytest.approx(200e-6)
    assert {row.op for row in graphs} == {""}  # not of the range that launched it
    assert any("--cuda-graph-trace=node" in note for note in trace.notes)


def test_a_database_without_kernels_is_one_sentence(tmp_path):
    file = nsight_export(tmp_path / "cpu.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    with sqlite3.connect(tmp_path / "pets.sqlite") as database:
        database.execute("CREATE TABLE pets (name)")
    for name in ("cpu.sqlite", "pets.sqlite"):
        with pytest.raises(ParamsError, match="without CUDA kernels"):
            nsight.read(tmp_path / name)


def test_a_range_may_be_named_by_any_bytes(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute(
            "UPDATE NVTX_EVENTS SET text = CAST(x'ff00fe' AS TEXT) WHERE text LIKE 'aten%'"
        )
    assert nsight.read(file).steps == 3


def test_steps_may_bear_the_names_of_pytorchs_profiler(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute(
            "UPDATE NVTX_EVENTS SET text = replace(text, 'step ', 'ProfilerStep#') "
            "WHERE text LIKE 'step %'"
        )
    assert nsight.read(file).how == "ProfilerStep#N"


def test_a_view_that_computes_without_end_is_no_table(tmp_path):
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
            "(SELECT 0 UNION ALL SELECT start + 1 FROM n) SELECT start, start + 1 AS end, "
            "0 AS globalPid FROM n"
        )
    with pytest.raises(ParamsError, match="a database without CUDA kernels"):
        nsight.read(tmp_path / "a.sqlite")


@pytest.mark.parametrize(("kind", "cause"), [(1, "input"), (11, "loads"), (12, "copies")])
def test_pages_of_unified_memory_that_move_are_no_batch(tmp_path, kind, cause):
    # The lie: "wait for input 28 %", of weights that do not fit the device.
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    plain = breakdown.by_cause_of(breakdown.of_trace(nsight.read(file)))
    with sqlite3.connect(file) as database:
        for step in range(3):
            begin = step * 10**6 + 850_000
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, copyKind) "
                f"VALUES ({begin}, {begin + 60_000}, 0, {kind})"
            )
    found = breakdown.by_cause_of(breakdown.of_trace(nsight.read(file)))
    assert found[cause] - plain[cause] == pytest.approx(60e-6)


@pytest.fixture
def two_gpus(tmp_path):
    """An export of a machine with two, of which CUDA numbers the one that Nsight calls 1 first."""
    file = nsight_export(tmp_path / "a.sqlite", steps=3)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA T400', computeMajor = 7")
        database.execute("INSERT INTO TARGET_INFO_GPU (id, name) VALUES (1, 'NVIDIA RTX 4090')")
        database.execute("ALTER TABLE TARGET_INFO_GPU ADD COLUMN smMajor")
        database.execute("ALTER TABLE TARGET_INFO_GPU ADD COLUMN smMinor")
        database.execute("UPDATE TARGET_INFO_GPU SET smMajor = 8, smMinor = 9 WHERE id = 1")
    return file


@pytest.mark.parametrize("machine", [0, 1 << 24])  # above the number of a process
def test_a_gpu_has_the_name_of_the_one_that_cuda_numbers_so(two_gpus, machine):
    # The lie: "GPU:0 NVIDIA T400", of a training on the RTX 4090, which CUDA numbers first.
    with sqlite3.connect(two_gpus) as database:
        database.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid)")
        rows = [(1, 0, 9), (0, 1, 9), (0, 0, 8)]  # the last of another process
        database.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", rows)
        for table in ("KERNEL", "MEMCPY"):
            database.execute(
                f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET globalPid = {machine + 9} << 24"
            )
    trace = nsight.read(two_gpus)
    assert trace.gpu == "GPU:0 NVIDIA RTX 4090"
    assert trace.recorded == {CAPABILITY: "8.9"}


def test_a_gpu_has_no_name_where_it_may_be_either(two_gpus):
    trace = nsight.read(two_gpus)
    assert (trace.gpu, trace.recorded) == ("GPU:0", {})
    with sqlite3.connect(two_gpus) as database:
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA H100'")
    assert nsight.read(two_gpus).gpu == "GPU:0 NVIDIA H100"
