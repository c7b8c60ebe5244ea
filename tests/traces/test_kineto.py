"""PyTorch's traces; those of real GPUs are in test_trace_files.py."""

import pytest
from builders import KINETO, device, gpu_steps, host, kineto_step, without

from mptexp.diagnosis import breakdown
from mptexp.errors import ParamsError
from mptexp.traces import kineto
from mptexp.traces.operations import CAPABILITY


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


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "input"),
        ("Memcpy DtoD (Device -> Device)", "casts"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("Memcpy DtoH (Device -> Pageable)", "copies"),
        ("Memcpy M2D", "input"),  # Intel's, whose M is the host's memory
        ("Memcpy D2M", "copies"),
        ("CopyDeviceToHost", "copies"),
        # The lie: memory-bound work, 60 % of a step that waits for its batch.
        ("Memcpy S2S", "unexplained"),
    ],
)
def test_a_copy_is_what_it_copies_between(name, cause):
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 1, "dur": 5}
    (row,) = read([copy]).operations
    assert breakdown.cause(row.state, row.part, row.op, row.kernel) == cause


def test_a_host_waits_for_intel_s_gpus_too():
    waits = [e | {"name": "zeEventHostSynchronize", "cat": "xpu_runtime"}
             if e["name"] == "cudaDeviceSynchronize" else e for e in gpu_steps(2)]  # fmt: skip
    assert rows(read(waits))["idle", ""] == rows(read(gpu_steps(2)))["idle", ""]
    assert rows(read(without(gpu_steps(2), "Synchronize"))).keys() != rows(read(waits)).keys()


def on_cpu(steps, *more):
    """The operations of such steps, without a GPU."""
    return [e for e in gpu_steps(steps, *more) if e["pid"] and not e["name"].startswith("cuda")]


def test_a_device_that_is_not_known_is_no_cpu_that_waits():
    # The lie, of an Ascend NPU that works for 90 % of a step: "the host bounds this training:
    # 98 % of a step", on a CPU.
    assert read(on_cpu(2)).device == "cpu"
    process = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Ascend Hardware"}}
    with pytest.raises(ParamsError, match="of an Ascend NPU"):
        read([*on_cpu(2), process])
    with pytest.raises(ParamsError, match=r"of a device \(npu\) whose work"):
        read(on_cpu(2, host("npu::npu_apply_adam_w", 620, 9)))
    unknown = [host("MatMulV2", n * 500 + 300, 90, "tpp_kernel", pid=7) for n in range(4)]
    with pytest.raises(ParamsError, match="4 timed events of kinds that are not read"):
        read(on_cpu(2, *unknown))
    assert read(on_cpu(2, *[e | {"cat": "Overhead"} for e in unknown])).device == "cpu"
    assert read(gpu_steps(2, *unknown)).device == "gpu"


def test_what_a_range_of_the_user_takes_itself_is_the_host_s():
    made = [
        host("step 0", 0, 100, "user_annotation"),
        host("preprocess", 10, 30, "user_annotation"),
        host("aten::mm", 50, 40),
    ]
    trace = read(made)
    assert rows(trace)["op", "mm"].seconds == pytest.approx(40e-6)
    assert rows(trace)["host", ""].seconds == pytest.approx(60e-6)


@pytest.mark.parametrize(
    ("name", "dims", "shape"),
    [
        ("aten::addmm", [[128], [64, 784], [784, 128], []], "64x784"),  # its first is the bias
        ("aten::addmm", [[128]], ""),
        ("aten::linear", [[8, 16, 784], [128, 784]], "8x16x784"),
        ("aten::mm", "text", ""),
        ("aten::mm", [7], ""),
    ],
)
def test_what_a_product_reads_is_its_input_and_not_its_bias(name, dims, shape):
    events = gpu_steps(2, host(name, 1, 5, **{"Input Dims": dims}))
    assert read(events).input_shape == shape


def test_kernels_that_end_before_they_begin_are_named_or_refused():
    events = gpu_steps(40)
    places = [n for n, e in enumerate(events) if e["cat"] == "kernel"]
    few = [e | ({"dur": -5} if n == places[0] else {}) for n, e in enumerate(events)]
    assert read(few).notes == (
        "1 of 160 events of the device end before they begin; they count as if they took no time",
    )
    many = [e | ({"dur": -5} if n in places[::4] else {}) for n, e in enumerate(events)]
    with pytest.raises(ParamsError, match="30 of 160 events of the device end before they begin"):
        read(many)


def test_how_it_was_recorded_is_told():
    about = {"distributedInfo": {"world_size": 8}, "cuda_runtime_version": 12040}
    assert read(gpu_steps(2), **about).recorded == {
        "Python's stack": "recorded", "ranks": "8", "CUDA": "12.4",
    }  # fmt: skip
    bare = [e for e in gpu_steps(2) if e["cat"] != "python_function"]
    strange = {"distributedInfo": [], "cuda_runtime_version": {"x": 1}}
    assert read(bare, **strange).recorded == {"Python's stack": "not recorded"}


def test_the_compute_capability_is_that_of_the_gpu_that_is_explained():
    gpus = [{"id": 1, "computeMajor": 9, "computeMinor": 0}, {"id": 0, "computeMajor": "x"}]
    assert CAPABILITY not in read(gpu_steps(2), deviceProperties=gpus).recorded
    gpus[1] = {"id": 0, "name": "Quadro GV100", "computeMajor": 7, "computeMinor": 0}
    assert read(gpu_steps(2), deviceProperties=gpus).recorded[CAPABILITY] == "7.0"


def test_a_machine_with_a_gpu_of_which_nothing_was_recorded_is_named():
    made = [host("aten::addmm", 0, 9), host("aten::addmm", 10, 9)]
    (note,) = read(made, deviceProperties=[{"id": 0, "name": "A100"}]).notes
    assert "the machine has a GPU, A100, and no kernel of it was recorded" in note
    assert read(made).notes == ()


def sent(at, number, thread=1):
    """A copy to the device of 40 us that a thread launches at an instant."""
    call = host("cudaMemcpyAsync", at, 2, "cuda_runtime", correlation=number) | {"tid": thread}
    copy = device("Memcpy HtoD (Pinned -> Device)", at + 5, 40, correlation=number)
    return [call, copy | {"cat": "gpu_memcpy"}]


@pytest.mark.parametrize(
    ("at", "thread", "cause"),
    [
        (250, 1, "loads"),  # in a layer
        (440, 2, "loads"),  # in the backward pass
        (655, 1, "loads"),  # in the optimizer's step
        (830, 1, "input"),
    ],
)
def test_only_a_copy_that_no_part_of_the_training_makes_is_a_batch(at, thread, cause):
    # The lie: weights that are kept on the host, "waiting for input bounds this training".
    plain = breakdown.by_cause_of(breakdown.of_trace(read(gpu_steps(2))))
    made = read(gpu_steps(2, *sent(at, 7777, thread)))
    after = breakdown.by_cause_of(breakdown.of_trace(made))
    assert after[cause] - plain[cause] == pytest.approx(40e-6 / 2)
    assert after.sum() == pytest.approx(plain.sum())


def test_a_module_that_only_wraps_the_model_copies_a_batch():
    events = gpu_steps(2, *sent(215, 7777))
    for name, cause in (("DistributedDataParallel_0", "input"), ("Net_0", "loads")):
        named = [e | {"name": e["name"].replace("Net_0", name)} for e in events]
        seconds = breakdown.by_cause_of(breakdown.of_trace(read(named)))
        assert (seconds["loads"] > 0) == (cause == "loads")


def test_a_step_waits_for_a_loader_that_is_none_of_pytorch_s():
    batch = [host("my_loader.py(12): __next__", 1000 * n, 200, "python_function") for n in (0, 1)]
    frames = [e for e in gpu_steps(2, *batch) if "enumerate(DataLoader)" not in e["name"]]
    assert rows(read(frames))["input", ""] == rows(read(gpu_steps(2)))["input", ""]
    other = [e | {"tid": 5} if "__next__" in e["name"] else e for e in frames]
    assert rows(read(other))["input", ""].seconds == pytest.approx(50e-6)  # the copy alone


def test_what_gloo_sends_between_cpus_is_communication():
    # The lie: "the host bounds this training: for 82 % of a step the device has no work", of CPUs
    # that wait for one another's gradients.
    events = [event for n in range(3) for event in (
        host(f"ProfilerStep#{n}", n * 1000, 1000),
        host("aten::mm", n * 1000 + 100, 200),
        host("gloo:all_reduce", n * 1000 + 400, 500, "user_annotation"))]  # fmt: skip
    took = {row.op: row.seconds for row in kineto.read(events, {}).operations}
    assert took["gloo:all_reduce"] == pytest.approx(500e-6)
    assert breakdown.cause("op", "other", "gloo:all_reduce", "") == "communication"
