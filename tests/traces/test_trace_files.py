"""What a file is, by its content; the thirteen traces of real GPUs; and files that hold none."""

import gc
import gzip
import json
import os
import time
from pathlib import Path

import pytest
from builders import KINETO, kineto_step, nsight_export
from support import PROJECT, gpu_trace

from mptexp.diagnosis.foreign_traces import Comparison, Recording
from mptexp.errors import ParamsError
from mptexp.report import trace_report
from mptexp.report.answers import trace_answer
from mptexp.traces import json_events, trace_files, xplane

SHARED = PROJECT.parent / "shared/traces"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")


def kineto_file(path, steps=2):
    events = [event for step in range(steps) for event in kineto_step(KINETO[1], step)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def xplane_file(path):
    kernel = (
        "gpu",
        "ampere_sgemm_32x32_sliced1x4_tn",
        100,
        400,
        {"tf_op": "model/dense/MatMul:MatMul"},
    )
    gpu_trace(path, [kernel], steps=2)
    return path


# --- what a file is ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "no_ending", "a.xplane.pb"])
def test_pytorch_s_trace_is_known_by_its_content(tmp_path, name):
    path = kineto_file(tmp_path / ("packed.gz" if name.endswith("gz") else "plain"))
    path.rename(tmp_path / name)
    assert trace_files.read(tmp_path / name)[1].framework == "PyTorch"


def test_an_xplane_is_known_by_its_content_packed_or_not(tmp_path):
    plain = xplane_file(tmp_path / "some.file")
    (tmp_path / "some.gz").write_bytes(gzip.compress(plain.read_bytes()))
    for name in ("some.file", "some.gz"):
        trace = trace_files.read(tmp_path / name)[1]
        assert (trace.framework, trace.gpu, trace.steps) == ("TensorFlow", "GPU:0", 2)
        assert [row.layer for row in trace.operations if row.state == "op"] == ["dense"]


def test_what_tensorflow_and_jax_write_for_a_viewer_is_read_without_xprof(tmp_path):
    plain = xplane_file(tmp_path / "a.xplane.pb")
    viewer = tmp_path / "vm.trace.json.gz"
    viewer.write_bytes(gzip.compress(xplane._viewer(plain).encode()))
    assert trace_files.read(viewer)[1].operations == trace_files.read(plain)[1].operations


def test_a_file_for_a_viewer_that_is_cut_off_is_refused(tmp_path, monkeypatch):
    # TensorFlow and JAX write the first million events alone, without a word.
    text = xplane._viewer(xplane_file(tmp_path / "a.xplane.pb"))
    viewer = tmp_path / "vm.trace.json.gz"
    viewer.write_bytes(gzip.compress(text.encode()))
    timed = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    monkeypatch.setattr(trace_files, "MOST_FOR_VIEWER", len(timed))
    with pytest.raises(ParamsError, match="cut off at a million events"):
        trace_files.read(viewer)


def test_an_export_of_nsight_is_known_by_its_content(tmp_path):
    nsight_export(tmp_path / "profile", steps=2)
    assert trace_files.read(tmp_path / "profile")[1].steps == 2


def test_of_a_directory_the_newest_trace_is_read_and_named(tmp_path):
    import os

    run = tmp_path / "logs/plugins/profile/2026"
    run.mkdir(parents=True)
    xplane_file(run / "vm.xplane.pb")
    (run / "vm.trace.json.gz").write_bytes(b"the same in another form")
    (tmp_path / "logs/settings.json").write_text("{}")
    os.utime(run / "vm.xplane.pb", (10, 10))
    assert trace_files.read(tmp_path)[0] == run / "vm.xplane.pb"
    newer = kineto_file(tmp_path / "host.pt.trace.json.gz")
    file, trace = trace_files.read(tmp_path)
    assert file == newer
    assert trace.notes[-1].startswith("the newest of 2 traces")
    # The lie: another program's trace beside TensorFlow's was passed over, without a word.
    os.utime(newer, (20, 20))
    beside = kineto_file(run / "other.pt.trace.json.gz")
    file, trace = trace_files.read(tmp_path)
    assert file == beside
    assert trace.notes[-1].startswith("the newest of 3 traces")


# --- files that hold no trace --------------------------------------------------------------------


def sentence(path):
    with pytest.raises(ParamsError) as caught:
        trace_files.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"no trace at all", "cut off, or no trace"),
        (b"{}", "without traceEvents"),
        (b'{"traceEvents": []}', "no events"),
        (b'[{"ph": "X", "name": "a", "ts": 1}]', "neither PyTorch nor"),
        (
            b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "M"}]}',
            "holds no operation and no kernel",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "x"}]}', "no number"),
        (b"SQLite format 3\0 and nothing", "no export of Nsight"),
        (b"\x1f\x8b and nothing", "damaged or was cut off"),
        (b"\xff" * 5000, "cut off, or no trace"),
        (b"PK\x03\x04 and more", "a ZIP archive"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
        # Without a time: the processes of pytest must collect the same tests.
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "packed with gzip twice"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path, content, why):
    (tmp_path / "a").write_bytes(content)
    assert why in sentence(tmp_path / "a")


def test_a_profilers_own_report_is_one_sentence_that_says_what_to_do(tmp_path):
    for name, why in (("run.nsys-rep", "nsys export"), ("run.ncu-rep", "no steps of a training")):
        (tmp_path / name).write_bytes(b"\x01\x02")
        assert why in sentence(tmp_path / name)


def test_a_damaged_file_of_a_directory_matters_only_where_it_is_the_newest(tmp_path):
    good, damaged = kineto_file(tmp_path / "a.json"), tmp_path / "b.json.gz"
    damaged.write_bytes(b"\x1f\x8b and nothing")
    os.utime(damaged, (1, 1))
    assert trace_files.read(tmp_path)[0] == good
    os.utime(good, (0, 0))
    with pytest.raises(ParamsError, match=r"b\.json\.gz: cannot be read: it is damaged"):
        trace_files.read(tmp_path)


def test_a_trace_of_a_directory_may_begin_with_other_things(tmp_path):
    content = {"about": ["x" * 2**21], "traceEvents": kineto_step(KINETO[1], 0)}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert trace_files.read(tmp_path)[1].steps == 1


def test_what_is_not_there_and_what_is_no_file_is_one_sentence(tmp_path):
    assert "no such file" in sentence(tmp_path / "missing")
    assert "holds no trace; allowed" in sentence(tmp_path)
    assert "it is no file" in sentence(Path("/dev/null"))


def test_a_trace_that_was_cut_off_is_one_sentence(tmp_path):
    made = [
        kineto_file(tmp_path / "a.json"),
        kineto_file(tmp_path / "b.json.gz"),
        xplane_file(tmp_path / "c.xplane.pb"),
        nsight_export(tmp_path / "d.sqlite", steps=2),
    ]
    cut = tmp_path / "cut"
    for path in made:
        content = path.read_bytes()
        for length in range(0, len(content) - 1, max(len(content) // 40, 1)):
            cut.write_bytes(content[:length])
            assert "cut" in sentence(cut) or length == 0


def test_the_collector_of_cycles_works_on_after_a_trace_was_read_or_refused(tmp_path):
    trace_files.read(kineto_file(tmp_path / "a.json"))
    sentence(tmp_path / "missing")
    assert gc.isenabled()


def test_a_bomb_is_refused_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(json_events, "MOST_TEXT", 50 * 2**20)
    monkeypatch.setattr(xplane, "MOST_BYTES", 50 * 2**20)
    began = time.monotonic()
    for name, head, filler in (("a", b'{"traceEvents": [', b" "), ("b", b"\x0a", b"\0")):
        with gzip.open(tmp_path / name, "wb", compresslevel=1) as packed:
            packed.write(head)
            for _ in range(60):
                packed.write(filler * 2**20)
        assert "when unpacked" in sentence(tmp_path / name)
    assert time.monotonic() - began < 60


# --- real GPUs -----------------------------------------------------------------------------------

# Steps, how they are recognized, the GPU, and the least share of the layers in what can have one.
EXPECTED = {
    "a100_alexnet_counters.json.gz": (2, "repetition", "A100", 0),
    "a100_alexnet_tf32.json.gz": (1, "repetition", "A100", 0),
    "a100_part_fp16.json.gz": (1, "whole trace", "A100", 0),
    "cc75_keras_cnn.xplane.pb.gz": (1, "xprof's Steps", "GPU:0", 0.95),
    "colab_keras_alexnet.xplane.pb.gz": (1, "xprof's Steps", "GPU:0", 0.95),
    "colab_keras_alexnet_gather.xplane.pb.gz": (1, "xprof's Steps", "GPU:0", 0.95),
    "gfx950_jax_te_attention.xplane.pb.gz": (5, "repetition", "GPU:0", 0),
    "h100_bert_bf16.json.gz": (1, "ProfilerStep", "H100", 0.95),
    "h100_vit_bf16.json.gz": (1, "ProfilerStep", "H100", 0.95),
    "mi300x_jax_conv.xplane.pb.gz": (5, "repetition", "GPU:2", 0),
    "v100_resnet50_workers0.json.gz": (2, "ProfilerStep", "V100", 0),
    "v100_resnet50_workers4.json.gz": (2, "ProfilerStep", "V100", 0),
    "v100x8_tf_bert.xplane.pb.gz": (1, "xprof's Steps", "GPU:6", 0.95),
}


def recording(name):
    file, trace = trace_files.read(SHARED / name)
    return Recording(file.name, trace)


@real
@pytest.mark.parametrize("name", EXPECTED)
def test_a_trace_of_a_real_gpu(name):
    steps, how, gpu, layers = EXPECTED[name]
    made = recording(name)
    assert made.trace.steps == steps
    assert how in made.trace.how
    assert gpu in made.trace.gpu
    assert made.named_layer_share >= layers
    assert made.share("unexplained") < 0.03
    assert made.share("on the host") < 0.01
    assert sum(made.by_cause) == pytest.approx(made.trace.step_s)


@real
def test_every_shared_trace_is_expected_to_be_something():
    assert {path.name for path in SHARED.glob("*.gz")} == set(EXPECTED)


@real
def test_the_workers_of_a_dataloader_explain_the_v100_pair():
    names = (f"v100_resnet50_workers{n}.json.gz" for n in (0, 4))
    pair = Comparison(*map(recording, names))
    assert pair.baseline.share("input") == pytest.approx(0.35, abs=0.03)
    assert pair.candidate.share("input") == pytest.approx(0.03, abs=0.015)
    # What the device was given before the recording is no part of its first step.
    assert pair.speedup == pytest.approx(1.34, abs=0.03)
    assert pair.candidate.share("idle") < 0.03
    assert any("left out of the first step" in note for note in pair.candidate.trace.notes)
    assert pair.by_cause.difference_s.idxmin() == "input"


@real
@pytest.mark.parametrize("every", [2, 10])
def test_a_real_trace_of_which_kernels_were_lost_is_refused(tmp_path, every):
    # The lie: "the host bounds this training: for 61 % of a step the device has no work".
    content = json.loads(gzip.decompress((SHARED / "v100_resnet50_workers4.json.gz").read_bytes()))
    kernels = [n for n, e in enumerate(content["traceEvents"]) if e.get("cat") == "Kernel"]
    lost = {*kernels[::every]}
    events = [e for n, e in enumerate(content["traceEvents"]) if n not in lost]
    (tmp_path / "lost.json").write_text(json.dumps({"traceEvents": events}))
    assert "kernels that were launched in the steps were not recorded" in (
        sentence(tmp_path / "lost.json")
    )


@real
@pytest.mark.parametrize(
    ("left_out", "how"), [(1, "the optimizer's steps"), (2, "the repetition of its operations")]
)
def test_steps_without_marks_are_those_that_were_marked(tmp_path, left_out, how):
    name = "v100_resnet50_workers0.json.gz"
    content = json.loads(gzip.decompress((SHARED / name).read_bytes()))
    marks = ("ProfilerStep", "Optimizer")[:left_out]
    events = [
        e for e in content["traceEvents"] if not any(mark in str(e.get("name")) for mark in marks)
    ]
    (tmp_path / "bare.json").write_text(json.dumps({"traceEvents": events}))
    bare = Recording("bare", trace_files.read(tmp_path / "bare.json")[1])
    assert bare.trace.how == how
    assert bare.trace.step_times == pytest.approx(recording(name).trace.step_times, rel=0.02)
    assert bare.share("input") == pytest.approx(recording(name).share("input"), abs=0.05)


@real
def test_counters_of_an_a100_agree_with_the_kernels_names():
    counters = recording("a100_alexnet_counters.json.gz").trace.counters
    assert counters.kernels == 77
    assert counters.disagreements == ()


@real
def test_of_eight_gpus_that_with_the_kernels_is_explained():
    trace = recording("v100x8_tf_bert.xplane.pb.gz").trace
    assert set(trace.gpus) == {"GPU:1", "GPU:4", "GPU:6"}
    assert trace.gpus["GPU:1"] == 0


@real
def test_a_real_trace_that_ends_within_its_first_step_has_no_verdict():
    # The lie: of BERT's dropout masks, before its first product, "memory-bound work bounds this
    # training: 39 % of a step of 21.3 ms; then random numbers 31 %", with advice.
    made = recording("v100x8_tf_bert.xplane.pb.gz")
    assert made.cut_short
    assert trace_answer.verdict([made]).startswith("This recording ends within its first step")
    assert trace_report.content([made])["traces"][0]["rows"] == []
    assert set(trace_report.tables([made])) == {"The recording"}
    others = [recording(name) for name in EXPECTED if name != made.file]
    assert not any(other.cut_short for other in others)
    assert "ends within its first step" in trace_answer.not_compared(Comparison(made, made))


@real
def test_time_in_which_another_of_eight_gpus_works_is_not_the_host_s():
    made = recording("mi300x_jax_conv.xplane.pb.gz")
    assert made.share("another GPU") == pytest.approx(0.053, abs=0.01)
    assert made.share("host") == pytest.approx(0.34, abs=0.03)


@real
def test_what_tf_data_does_on_a_thread_of_the_executor_is_input():
    made = recording("colab_keras_alexnet_gather.xplane.pb.gz")
    assert made.trace.in_use == ("num_parallel_calls",)
    assert "GatherV2" not in set(made.rows.op)
    assert made.share("input") > 0.15
    assert made.trace.input_busy_s > 0.018


@real
def test_arithmetic_is_that_of_the_networks():
    types = {
        "h100_vit_bf16.json.gz": ("bfloat16", True),
        "a100_part_fp16.json.gz": ("float16", True),
        "v100_resnet50_workers0.json.gz": ("float32", False),
    }
    for name, first in types.items():
        row = recording(name).arithmetic.iloc[0]
        assert (row.type, row.tensor_cores) == first
    attention = recording("gfx950_jax_te_attention.xplane.pb.gz").rows
    fused = attention[attention.op.str.startswith("te_fused_attn")]
    assert fused.share.sum() == pytest.approx(0.52, abs=0.03)


@real
def test_a_real_trace_that_was_cut_off_is_one_sentence(tmp_path):
    for name in ("h100_bert_bf16.json.gz", "cc75_keras_cnn.xplane.pb.gz"):
        content = gzip.decompress((SHARED / name).read_bytes())
        for length in range(0, len(content), len(content) // 60):
            (tmp_path / "cut").write_bytes(content[:length])
            assert "cut" in sentence(tmp_path / "cut") or length == 0


def test_a_directory_with_a_damaged_database_is_one_sentence(tmp_path):
    file = nsight_export(tmp_path / "a.sqlite", steps=2)
    content = bytearray(file.read_bytes())
    content[4096:8192] = bytes(4096)
    file.write_bytes(content)
    with pytest.raises(ParamsError, match="no export of Nsight"):
        trace_files.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": NaN}]}', "no number"),
        (b'[{"ph": "X", "cat": "devtools.timeline", "args": "text"}]', "neither PyTorch nor"),
        (b'[{"ph": "M", "name": "process_name", "args": ["/host:CPU"]}]', "neither PyTorch nor"),
        (b'[{"ph": "B", "cat": "cpu_op", "name": "aten::mm", "ts": 1}]', "neither PyTorch nor"),
        ("{\"traceEvents\": []}".encode("utf-16"), "cannot be read"),
        (b'[{"ph":"M","name":"process_name","pid":1,"args":{"name":"/device:TPU:0"}},'
         b'{"ph":"X","name":"fusion.1","pid":1,"ts":1,"dur":9}]', "no GPU, TPU:0"),
        (b'[{"ph":"M","name":"process_name","pid":1,"args":{"name":"/host:CPU"}},'
         b'{"ph":"X","name":"a","pid":1,"ts":"x","dur":9}]', "no number"),
    ],
)  # fmt: skip
def test_json_that_is_no_trace_of_a_gpu_or_cpu_is_one_sentence(tmp_path, content, why):
    (tmp_path / "a").write_bytes(content)
    assert why in sentence(tmp_path / "a")


def test_a_byte_order_mark_does_not_matter(tmp_path):
    plain = kineto_file(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert trace_files.read(tmp_path / "b.json")[1] == trace_files.read(plain)[1]


def other_s(*rows):
    return [{"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": 100 * n, "dur": 90,
             "args": {}} for n, (category, name) in enumerate(rows)]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        {  # PaddlePaddle's profiler
            "schemaVersion": "1.0.2",
            "deviceProperties": [{"id": 0, "name": "A100"}],
            "traceEvents": other_s(
                ("ProfileStep", "ProfileStep#0"), ("Dataloader", "MultiprocessDataLoaderIter"),
                ("Operator", "conv2d dygraph"), ("CudaRuntime", "cudaLaunchKernel"),
                ("Kernel", "volta_sgemm_128x64_nn"), ("Memcpy", "MEMCPY_HtoD"),
            ),
        },
        other_s(  # ONNX Runtime's
            ("Session", "model_run"), ("Node", "MatMul_1_kernel_time"),
            ("Kernel", "ampere_sgemm_128x64_tn"),
        ),
        {"traceEvents": other_s(("operator", "Convolution"))},  # MXNet's
        {"traceEvents": other_s((["kernel"], "a"))},
    ],
)  # fmt: skip
def test_other_writers_of_categories_that_pytorch_has_too_are_refused(tmp_path, content):
    # The lie: of a PaddlePaddle training that waits 70 of 100 ms for its loader "the host bounds
    # this recording", with PyTorch's remedies.
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert "neither PyTorch nor TensorFlow or JAX writes" in sentence(tmp_path / "a.json")
