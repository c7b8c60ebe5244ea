"""What a device ran and a host launched, of PyTorch's traces."""

import pytest
from builders import KINETO, device, gpu_steps, host, kineto_step, without

from mptexp.diagnosis import breakdown
from mptexp.errors import ParamsError
from mptexp.traces import kineto

CONV = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


def read(events, **about):
    return kineto.read(events, about)


def rows(trace):
    return {(row.state, row.op): row for row in trace.operations}


def test_missing_launches_are_found_by_the_external_id_or_counted():
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step)]
    bare = [e for e in events if e["cat"] != "cuda_runtime"]
    trace = read(bare)
    assert rows(trace)["op", "conv2d"].layer == "Conv2d_0"
    bare = [dict(e, args={k: v for k, v in e["args"].items() if k != "External id"}) for e in bare]
    trace = read(bare)
    assert trace.notes == ("the launches of 6 of 6 kernels are not in the trace",)
    products = [row for row in trace.operations if row.kernel == CONV]
    assert {breakdown.cause(r.state, r.part, r.op, r.kernel) for r in products} == {"matrix"}


def test_the_busiest_gpu_is_explained_and_the_others_are_named():
    names = KINETO[1]
    events = kineto_step(names, 0) + kineto_step(names, 1)
    idle = [{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1, "dur": 900,
             "pid": 0, "tid": 7, "args": {"device": 1, "correlation": 99}}]  # fmt: skip
    trace = read(events + idle, deviceProperties=[{"id": 0, "name": "A100"}, {"id": 1}])
    assert trace.gpu == "GPU:0 A100"
    assert trace.gpus == {"GPU:0 A100": pytest.approx(500e-6), "GPU:1": 0.0}


@pytest.mark.parametrize(
    ("second_us", "explained"), [(240, "GPU:0"), (260, "GPU:0"), (500, "GPU:1")]
)
def test_of_gpus_that_are_nearly_as_busy_the_first_is_explained(second_us, explained):
    # The lie: of the same two GPUs "matrix work fell by 1.95 ms", of the first in one trace and of
    # the second in the other, which was busier by 5 % there.
    other = [device("sm80_xmma_gemm", n * 1000 + 300, second_us, device=1) for n in range(2)]
    trace = read(gpu_steps(2, *other))
    assert trace.gpu == explained
    assert set(trace.gpus) == {"GPU:0", "GPU:1"}


def test_a_trace_of_a_cpu_counts_each_operation_without_what_is_in_it():
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step) if e["pid"] != 0]
    with pytest.raises(ParamsError, match="ran on a GPU and holds none of its kernels"):
        read(events)
    trace = read([e for e in events if not e["name"].startswith("cuda")])
    assert trace.device == "cpu"
    known = rows(trace)
    assert known["op", "conv2d"].layer == "Conv2d_0"
    assert known["op", "convolution_backward"].layer == "Conv2d_0"
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


def test_communication_that_other_work_hides_costs_no_time():
    # In step 0 from 300 to 450: a convolution runs until 400, nothing does afterwards.
    trace = read(gpu_steps(2, device("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 300, 150)))
    rows = {row.kernel[:4]: row for row in trace.operations if row.kernel}
    assert rows["nccl"].seconds == pytest.approx(25e-6)  # 50 us in two steps
    assert rows["sm80"].seconds == pytest.approx(100e-6)
    assert trace.hidden_s == pytest.approx(50e-6)


def test_kernels_of_a_cuda_graph_have_neither_the_layer_nor_the_operation_of_its_launch():
    launch = host("cudaGraphLaunch", 235, 2, "cuda_runtime", correlation=7777)
    events = gpu_steps(2, launch, device("mystery", 450, 40, correlation=7777))
    trace = read(events)
    row = next(row for row in trace.operations if row.kernel == "mystery")
    assert (row.layer, row.part, row.op) == ("", "other", "")
    assert any("ran in CUDA graphs" in note for note in trace.notes)


def test_the_input_of_the_first_product_is_told():
    events = gpu_steps(2, host("aten::conv2d", 1, 5, **{"Input Dims": [[32, 3, 8, 8], []]}))
    assert read(events).input_shape == "32x3x8x8"
    assert read(gpu_steps(2)).input_shape == ""


def batches(lengths):
    """Steps whose first product reads sequences of these lengths, and a later one what is alike."""
    made = [
        host("aten::linear", n * 1000 + at, 5, **{"Input Dims": [[32, length, 768], [768, 768]]})
        for n, first in enumerate(lengths)
        for at, length in ((210, first), (220, 7))
    ]
    return gpu_steps(len(lengths), *made)


def test_batches_of_unequal_shape_are_told_of_every_step():
    # The lie: "mixed is 1.62× faster", of steps of which all but the first had half the length.
    trace = read(batches([512, 256, 256, 256, 256]))
    assert trace.input_shape == "32x256x768 in 4/5, 32x512x768 in 1/5"
    assert trace.notes == (
        "batches are of unequal shape, and steps so of unequal work: the first product reads "
        "32x256x768 in 4 and 32x512x768 in 1 of 5 steps",
    )
    (note,) = read(batches([16, 16, 32, 64, 128])).notes
    assert note.endswith(
        "32x16x768 in 2, 32x32x768 in 1, 32x64x768 in 1 and others in the rest of 5 steps"
    )
    even = read(batches([512] * 3))
    assert (even.input_shape, even.notes) == ("32x512x768", ())


def test_shares_of_the_steps_are_the_same_of_any_number_of_steps():
    few, many = read(batches([512, 256])), read(batches([512, 256, 256, 512]))
    assert few.input_shape == many.input_shape == "32x256x768 in 1/2, 32x512x768 in 1/2"


def test_without_marks_the_first_product_is_told():
    bare = without(batches([512, 256, 256, 256]), "ProfilerStep", "Optimizer")
    trace = read(bare)
    assert trace.how == "the repetition of its operations"
    assert trace.input_shape == "32x512x768"
    assert not any("unequal" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([host("aten::_mps_convolution", 0, 9)], "Apple GPU"),
        ([host("aten::cudnn_convolution", 0, 9)], "holds none of its kernels"),
        ([host("ProfilerStep#0", 0, 9), host("ProfilerStep#0", 0, 9, pid=10)], "of 2 processes"),
        ([host("aten::mm", 0, float("nan"))], "no number"),
        ([host("aten::mm", 0, 9), host("aten::add", 4e16, 9)], "clock of its events jumped"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_a_sentence(events, why):
    with pytest.raises(ParamsError, match=why):
        read(events)


def test_kernels_with_counters_instead_of_times_are_not_timed():
    counted = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 5}
    events = [device(f"sgemm_{n}", n * 10, 7, **counted) for n in range(4)]
    assert read(events).timed is False
    assert read([device(f"sgemm_{n}", n * 10, n + 1, **counted) for n in range(4)]).timed is True


def moved(events, us, kinds=("kernel", "gpu_memcpy")):
    return [dict(e, ts=e["ts"] + us) if e["cat"] in kinds else e for e in events]


def test_clocks_that_differ_are_said_or_refused():
    events = [event for step in range(3) for event in kineto_step(KINETO[1], step)]
    assert read(moved(events, -20)).notes == ()
    (note,) = read(moved(events, -200)).notes
    assert note.startswith("kernels begin 0.13 ms before the calls that launch them")
    with pytest.raises(ParamsError, match="the clocks of the two differ"):
        read(moved(events, -1e6))


@pytest.mark.parametrize(
    ("late", "said"), [(0, ""), (150, "0.09 ms after the calls"), (5000, None)]
)
def test_a_device_whose_clock_is_late_is_said_or_refused_by_what_was_awaited(late, said):
    events = [
        event | {"ts": event["ts"] + late} if event["pid"] == 0 else event for event in gpu_steps(8)
    ]
    if said is None:
        with pytest.raises(ParamsError, match="the clocks of the two differ"):
            read(events)
    else:
        notes = " ".join(read(events).notes)
        assert said in notes
        assert ("clocks" in notes) == bool(said)


def prefetched(host_us, behind_us):
    """Six steps of 1000 us on a device, copies of batches on a stream of their own."""
    for n in range(6):
        at, ran = n * host_us, behind_us + n * 1000
        yield host(f"ProfilerStep#{n}", at, host_us)
        for number, (name, begin, length) in enumerate(
            [("Memcpy HtoD (Pinned -> Device)", at + 15, 50), (CONV, ran, 900),
             ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ran + 200, 780)]
        ):  # fmt: skip
            tied = {"correlation": 10 * n + number}
            yield host("cudaLaunchKernel", at + 10 + number, 1, "cuda_runtime", **tied)
            stream = {"tid": 20 + number}
            cat = {"cat": "gpu_memcpy"} if number == 0 else {}
            yield device(name, begin, length, **tied) | stream | cat
    synchronized = behind_us + 6000 - 6 * host_us
    yield host("cudaDeviceSynchronize", 6 * host_us, synchronized, "cuda_runtime")


@pytest.mark.parametrize(("host_us", "behind_us"), [(400, 100), (1000, 1500)])
def test_batches_copied_ahead_on_another_stream_begin_no_step(host_us, behind_us):
    # The lies: "its device ran at another time than its host launched: the clocks of the two
    # differ"; "a step of 12.5 ms; host and launch overhead 20 %", of 10 without any.
    trace = read(list(prefetched(host_us, behind_us)))
    assert trace.how == "ProfilerStep#N, as the device ran them"
    assert trace.step_times[1:] == pytest.approx([1000e-6] * 5)
    # The first, before which the device may have had nothing to do, at most lacks the summing of
    # gradients of the one before.
    assert 900e-6 - 1e-9 <= trace.step_times[0] <= 1000e-6 + 1e-9
    assert rows(trace)["host", ""].seconds < 40e-6


def test_work_that_no_step_can_be_given_is_refused_and_no_clock_is_accused():
    late = [e | ({"ts": e["ts"] + 5000} if e["pid"] == 0 else {}) for e in gpu_steps(1)]
    alone = [e for e in late if e["name"] != "cudaDeviceSynchronize"]
    with pytest.raises(ParamsError, match="ran outside of them"):
        read(alone)


def test_the_work_of_several_processes_in_one_file_is_refused():
    marked = [event for step in range(2) for event in kineto_step(KINETO[1], step)]
    bare = [e for e in marked if not e["name"].startswith("ProfilerStep")]
    for events in (marked, bare):
        other = [e | {"pid": 10} if e["pid"] == 9 else e for e in events]
        with pytest.raises(ParamsError, match="the work of 2 processes in one file"):
            read(events + other)


def test_a_launch_with_a_number_that_is_no_process_s_does_not_make_two_of_one():
    events = [event for step in range(40) for event in kineto_step(KINETO[1], step)]
    stray = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventQuery", "pid": -1, "tid": 0,
             "ts": 5, "dur": 1, "args": {}}  # fmt: skip
    assert read([*events, stray]).steps == 40


def test_what_takes_no_time_is_refused():
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 0}
    with pytest.raises(ParamsError, match="takes no time"):
        read([kernel])


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])  # of later versions
def test_code_of_torch_compile_on_a_cpu_is_unexplained_and_that_is_said(category):
    # The lies: "the host bounds this training: for 64 % of a step the device has no work"; memory-
    # bound work, where the digest holds such a word.
    made = [
        host("Torch-Compiled Region: 0/0", 0, 100),
        host("CompiledFunction", 10, 80),
        host("## Call CompiledFxGraph fxcwrx2le7add ##", 20, 60, category),
        host("aten::mm", 30, 10),
    ]
    trace = read([*made, host("step 0", 0, 100, "user_annotation")])
    assert "torch.compile is recorded as a whole" in trace.notes[0]
    seconds = breakdown.by_cause_of(breakdown.of_trace(trace))
    assert seconds["unexplained"] == pytest.approx(50e-6)
    assert seconds["host"] == pytest.approx(40e-6)


def test_a_step_too_short_to_be_one_is_refused():
    # Its ratio to another step would be infinite, which is no JSON.
    short = [e | {"ts": e["ts"] * 1e-310, "dur": e["dur"] * 1e-310} for e in gpu_steps(3)]
    with pytest.raises(ParamsError, match="takes no time"):
        read(short)


def test_kernels_that_were_launched_and_not_recorded_are_said_or_refused():
    # The lie: of a V100's training whose profiler lost half of the kernels "the host bounds this
    # training: for 61 % of a step the device has no work".
    events = gpu_steps(50)
    places = [n for n, e in enumerate(events) if e["cat"] == "kernel"]
    kept = [e for n, e in enumerate(events) if n != places[0]]
    assert read(kept).notes == (
        "1 of 150 kernels that were launched in the steps were not recorded; "
        "their time counts as if the device had no work",
    )
    kept = [e for n, e in enumerate(events) if n not in places[::2]]
    with pytest.raises(ParamsError, match="75 of 150 kernels that were launched in the steps"):
        read(kept)
    # A launch that only makes a CUDA graph runs nothing then.
    more = [host("cudaStreamBeginCapture", 810, 1, "cuda_runtime"),
            host("cudaLaunchKernel", 820, 1, "cuda_runtime", correlation=77_777),
            host("cudaStreamEndCapture", 830, 1, "cuda_runtime")]  # fmt: skip
    assert read([*events, *more]).notes == ()


def test_what_autograd_s_thread_captures_is_not_lost():
    # The lie: "75 of 150 kernels … the profiler lost them", of a graph that was captured meanwhile.
    events = gpu_steps(50)
    begin, *_ = sorted(e["ts"] for e in events if e["name"] == "cudaLaunchKernel")
    captured = [host("cudaLaunchKernel", begin + 3 + n, 0.5, "cuda_runtime", tid=7,
                     correlation=80_000 + n) for n in range(20)]  # fmt: skip
    with pytest.raises(ParamsError, match="20 of 170 kernels"):
        read([*events, *captured])
    around = [host("cudaStreamBeginCapture", begin + 2, 0.5, "cuda_runtime"),
              host("cudaStreamEndCapture", begin + 40, 0.5, "cuda_runtime")]  # fmt: skip
    assert read([*events, *captured, *around]).notes == ()


@pytest.mark.parametrize("name", ["ForwardBackward", "Forward and backward"])
def test_a_range_of_one_s_own_is_no_backward_pass_whatever_it_is_called(name):
    # The lie: "Copies to the GPU within layers", of batches copied in a range "ForwardBackward".
    own = [host(name, e["ts"] - 1, 5, "user_annotation")
           for e in gpu_steps(3) if e["name"] == "cudaLaunchKernel"]  # fmt: skip
    made, plain = read([*gpu_steps(3), *own]), read(gpu_steps(3))
    assert rows(made) == rows(plain)
    assert made.trains == plain.trains


def test_time_in_which_another_gpu_of_the_process_works_is_not_the_host_s():
    # The lie: of a model spread over four GPUs, one of which worked at nearly every instant, "the
    # host bounds this training: for 75 % of a step the device has no work".
    events = gpu_steps(2, *(device("sm80_xmma_gemm", n * 1000 + 750, 240, device=1)
                            for n in range(2)))  # fmt: skip
    copies = [device("Memcpy DtoD (Device -> Device)", 410, 80, device=2) | {"cat": "gpu_memcpy"},
              device("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 410, 80, device=2)]  # fmt: skip
    plain, made = rows(read(gpu_steps(2))), rows(read([*events, *copies]))
    assert made["another GPU", ""].seconds == pytest.approx(240e-6)
    waits = [("host", ""), ("idle", "")]
    before, after = (sum(t[key].seconds for key in waits if key in t) for t in (plain, made))
    assert before - after == pytest.approx(240e-6)
    assert made["input", ""] == plain["input", ""]
