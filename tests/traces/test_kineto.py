"""PyTorch's traces; those of real GPUs are in test_files.py."""

import pytest
from builders import KINETO, kineto_step

from mptexp.diagnosis import breakdown
from mptexp.spec.errors import ParamsError
from mptexp.traces import kineto

CONV = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


def read(events, **about):
    return kineto.read(events, about)


def rows(trace):
    return {(row.state, row.op): row for row in trace.operations}


@pytest.mark.parametrize("names", KINETO)
def test_a_step_of_both_sets_of_categories(names):
    trace = read([event for step in range(3) for event in kineto_step(names, step)])
    assert (trace.framework, trace.device, trace.steps) == ("PyTorch", "gpu", 3)
    assert trace.how == "ProfilerStep#N"
    assert trace.step_s == pytest.approx(1000e-6)
    known = rows(trace)
    forward = known["op", "conv2d"]
    assert (forward.layer, forward.part) == ("Conv2d_0", "forward")
    assert forward.seconds == pytest.approx(100e-6)
    backward = known["op", "convolution_backward"]
    assert (backward.layer, backward.part) == ("Conv2d_0", "backward")
    assert known["op", "add_"].part == "optimizer"
    # The wait for a batch, but for what the device does meanwhile, and the copy of the batch.
    assert known["input", ""].seconds == pytest.approx(250e-6)
    assert known["idle", ""].seconds == pytest.approx(50e-6)
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


def test_a_layer_is_the_path_of_its_modules_without_what_all_have_in_common():
    first, second = (kineto_step(KINETO[1], step) for step in range(2))
    for event in second:
        event["name"] = event["name"].replace("nn.Module: Conv2d_0", "nn.Module: Linear_0")
    layers = {row.layer for row in read(first + second).operations if row.part == "forward"}
    assert layers == {"Conv2d_0", "Linear_0"}


def test_missing_launches_are_found_by_the_external_id_or_counted():
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step)]
    without = [e for e in events if e["cat"] != "cuda_runtime"]
    trace = read(without)
    assert rows(trace)["op", "conv2d"].layer == "Conv2d_0"
    bare = [
        dict(e, args={k: v for k, v in e["args"].items() if k != "External id"}) for e in without
    ]
    trace = read(bare)
    assert trace.notes == ("the launches of 6 of 6 kernels are not in the trace",)
    assert {breakdown.cause(r._asdict()) for r in trace.operations if r.kernel == CONV} == {
        "matrix"
    }


def test_the_busiest_gpu_is_explained_and_the_others_are_named():
    names = KINETO[1]
    events = kineto_step(names, 0) + kineto_step(names, 1)
    idle = [{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1, "dur": 900,
             "pid": 0, "tid": 7, "args": {"device": 1, "correlation": 99}}]  # fmt: skip
    trace = read(events + idle, deviceProperties=[{"id": 0, "name": "A100"}, {"id": 1}])
    assert trace.gpu == "GPU:0 A100"
    assert trace.gpus == {"GPU:0 A100": pytest.approx(500e-6), "GPU:1": 0.0}


def test_steps_without_marks_are_what_repeats():
    events = [
        event for step in range(4) for event in kineto_step(KINETO[1], step)
        if not event["name"].startswith("ProfilerStep")
    ]  # fmt: skip
    trace = read(events)
    assert trace.steps == 4
    assert trace.how == "the repetition of its operations"


def test_steps_end_with_the_optimizer_s_where_kernels_do_not_repeat():
    events = []
    for step in range(3):
        made = [e for e in kineto_step(KINETO[1], step) if "ProfilerStep" not in e["name"]]
        events += [e | ({"name": f"{e['name']}{step}"} if e["pid"] == 0 else {}) for e in made]
    trace = read(events)
    assert (trace.steps, trace.how) == (3, "the optimizer's steps")
    assert trace.step_times[1] == pytest.approx(1000e-6)


def test_a_trace_of_a_cpu_counts_each_operation_without_what_is_in_it():
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step) if e["pid"] != 0]
    trace = read(events)
    assert trace.device == "cpu"
    known = rows(trace)
    assert known["op", "conv2d"].layer == "Conv2d_0"
    assert known["op", "convolution_backward"].layer == "Conv2d_0"
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


def test_what_an_operation_does_after_another_within_it_is_its_own():
    def op(name, start, length):
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start,
                "dur": length, "args": {}}  # fmt: skip

    made = [op("aten::mkldnn_convolution", 0, 100), op("aten::fill_", 10, 20)]
    known = rows(read(made))
    assert known["op", "mkldnn_convolution"].seconds == pytest.approx(80e-6)
    assert known["op", "fill_"].seconds == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([], "no operation and no kernel"),
        ([{"cat": "cpu_op", "ph": "X", "name": "a", "ts": "soon"}], "no number"),
    ],
)
def test_what_holds_no_training_is_one_sentence(events, sentence):
    with pytest.raises(ParamsError, match=sentence):
        read(events)
