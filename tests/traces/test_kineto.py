"""PyTorch's traces; those of real GPUs are in test_files.py."""

import pytest
from builders import KINETO, kineto_step, without

from mptexp.diagnosis import breakdown
from mptexp.spec.errors import ParamsError
from mptexp.traces import kineto

CONV = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<f>>"


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


def test_steps_without_marks_are_what_repeats():
    events = [
        event for step in range(4) for event in kineto_step(KINETO[1], step)
        if not event["name"].startswith(("ProfilerStep", "Optimizer"))
    ]  # fmt: skip
    trace = read(events)
    assert trace.steps == 4
    assert trace.how == "the repetition of its operations"


def test_an_evaluation_after_a_training_without_marks_is_in_no_step():
    # The lie: 6 steps of a training and 12 batches of an evaluation, "75 % of a step of 16.1 ms":
    # nearly all kernels ran a multiple of 6 times; a step took 12.1 ms.
    kept = [e for e in gpu_steps(6) if not e["name"].startswith("ProfilerStep")]
    again = [
        e | {"ts": e["ts"] % 1000 + 6000 + 300 * batch, "args": e["args"] | {"External id": 0}}
        for batch in range(12)
        for e in kept
        if e["ts"] < 320 and e["cat"] in ("cpu_op", "kernel") and "Loader" not in e["name"]
    ]
    trace = read(kept + again)
    assert (trace.steps, trace.how) == (6, "the optimizer's steps")
    assert trace.step_s == pytest.approx(1000e-6, rel=0.1)
    assert rows(trace)["op", "conv2d"].seconds == pytest.approx(100e-6, rel=0.1)


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
    with pytest.raises(ParamsError, match="ran on a GPU and holds none of its kernels"):
        read(events)
    trace = read([e for e in events if not e["name"].startswith("cuda")])
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


def gpu_steps(number, *more):
    return [e for step in range(number) for e in kineto_step(KINETO[1], step)] + list(more)


def device(name, start, length, **args):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": start,
            "dur": length, "args": {"device": 0, **args}}  # fmt: skip


def host(name, start, length, cat="cpu_op", pid=9, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": start, "dur": length,
            "args": args}  # fmt: skip


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


def test_a_step_with_an_evaluation_in_it_is_left_out_and_counted():
    slow = [dict(e, ts=e["ts"] + (9000 if e["ts"] >= 3000 else 0)) for e in gpu_steps(6)]
    for event in slow:
        if event["name"] == "ProfilerStep#2":
            event["dur"] += 9000
    slow.append(device("sm80_xmma_gemm_f32f32_f32f32_f32_evaluation", 3000, 8000))
    trace = read(slow)
    assert (trace.steps, trace.unusual) == (5, 1)
    (left,) = trace.left
    assert left["op"] == pytest.approx(8250e-6)
    assert sum(left.values()) == pytest.approx(10000e-6)
    assert trace.median_s == pytest.approx(1000e-6)
    assert not any("evaluation" in row.kernel for row in trace.operations)
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


def test_a_step_that_is_long_for_a_batch_that_it_awaits_is_a_step():
    slow = [dict(e, ts=e["ts"] + (9000 if e["ts"] >= 3000 else 0)) for e in gpu_steps(6)]
    for event in slow:
        if event["name"] == "ProfilerStep#2":
            event["dur"] += 9000
    batch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    trace = read([*slow, host(batch, 3000, 8500)])
    assert (trace.steps, trace.unusual) == (6, 0)
    assert rows(trace)["input", ""].seconds == pytest.approx((250e-6 * 6 + 8500e-6) / 6)


def test_accumulated_gradients_are_said():
    events = [e for e in gpu_steps(6) if not (e["name"].startswith("Optimizer") and e["ts"] < 4000)]
    assert any("in 2 of 6 steps" in note for note in read(events).notes)
    assert read(events).accumulated
    assert not read(gpu_steps(6)).accumulated


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ((1,), "the optimizer stepped in 1 of 2 steps: gradients are accumulated, and a step here "
         "is the work on one micro-batch, or the recording ends within the last one"),
        ((0,), "the optimizer stepped in 1 of 2 steps: gradients"),
        ((1, 2), "the optimizer stepped in 1 of 3 steps"),  # of three
        ((1, 3), "the optimizer stepped in 2 of 4 steps"),
    ],
)  # fmt: skip
def test_two_micro_batches_a_step_are_told_in_a_few_steps_too(lacking, said):
    steps = max(*lacking, 1) + 1
    trace = read([e for e in gpu_steps(steps) if not (
        e["name"].startswith("Optimizer") and e["ts"] // 1000 in lacking)])  # fmt: skip
    assert trace.accumulated
    assert trace.notes[0].startswith(said)


def test_one_step_of_several_whose_update_was_skipped_is_no_accumulation():
    for lacking in (0, 2):
        trace = read([e for e in gpu_steps(3) if not (
            e["name"].startswith("Optimizer") and e["ts"] // 1000 == lacking)])  # fmt: skip
        assert (trace.accumulated, trace.notes) == (False, ())


@pytest.mark.parametrize("phase", [0, 3])
def test_the_long_step_of_several_micro_batches_that_has_the_optimizer_is_a_step(phase):
    # The lie: "matrix work 90 % of a step of 10 ms; 1 step of 82 ms left out, as a single
    # evaluation, checkpoint or compilation in it would be": the optimizer's, of gradients that
    # are accumulated over four steps.
    events, at = [], 0
    for n in range(5):
        updates = n % 4 == phase
        made = [e | {"ts": e["ts"] - 1000 * n + at} for e in kineto_step(KINETO[1], n)
                if updates or not e["name"].startswith("Optimizer")]  # fmt: skip
        long = {"dur": 9000} if updates else {}
        events += [e | (long if e["name"].startswith("ProfilerStep") else {}) for e in made]
        if updates:
            events.append(device(ADAM, at + 1000, 7000))
        at += 9000 if updates else 1000
    trace = read(events)
    assert (trace.steps, trace.warm_up, trace.unusual) == (5, 0, 0)
    assert trace.accumulated
    assert any(f"stepped in {2 if phase == 0 else 1} of 5 steps" in note for note in trace.notes)


def test_an_inference_is_no_training():
    assert read(gpu_steps(2)).trains is True
    words = ("Backward", "backward", "Optimizer")
    kept = without(gpu_steps(2), *words)
    assert read(without(kept, "wgrad")).trains is False
    assert read(kept).trains is None  # a kernel of a gradient, and nothing else that tells
    assert read([e for e in kept if e["pid"] == 0]).trains is None


def test_the_input_of_the_first_product_is_told():
    events = gpu_steps(2, host("aten::conv2d", 1, 5, **{"Input Dims": [[32, 3, 8, 8], []]}))
    assert read(events).input_shape == "32x3x8x8"
    assert read(gpu_steps(2)).input_shape == ""


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


def test_a_host_that_is_far_ahead_does_not_shorten_the_steps():
    # Each step is launched in 100 us, and the device works 350 us for it.
    events = [e for e in gpu_steps(4) if "Synchronize" not in e["name"]]
    ahead = [e | {"ts": e["ts"] / 10, "dur": e["dur"] / 10} for e in events]
    late = [e | {"ts": e["ts"] + 200} if e["cat"] in ("kernel", "gpu_memcpy") else a
            for e, a in zip(events, ahead, strict=True)]  # fmt: skip
    trace = read(late)
    assert trace.how == "ProfilerStep#N, as the device ran them"
    assert trace.median_s == pytest.approx(1000e-6)
    assert trace.notes == ()  # nor does the optimizer seem to step less often


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


def test_layers_that_repeat_more_often_than_the_optimizer_steps_are_no_steps():
    events = []
    for step in range(4):
        begin = step * 1000
        names = ["gemm", "relu", "gelu", "tanh"] * 4
        events += [{"ph": "X", "cat": "kernel", "name": name, "ts": begin + 50 * place, "dur": 50}
                   for place, name in enumerate(names)]  # fmt: skip
        events += [
            {"ph": "X", "cat": "kernel", "name": "update", "ts": begin + 900, "dur": 9},
            {"ph": "X", "cat": "cpu_op", "name": "Optimizer.step#SGD.step", "pid": 9, "tid": 1,
             "ts": begin + 850, "dur": 100},
        ]  # fmt: skip
    trace = read(events)
    assert (trace.steps, trace.notes[1:]) == (4, (kineto.ONE_OPTIMIZER,))
    assert trace.median_s == pytest.approx(1000e-6)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "input"),
        ("Memcpy DtoD (Device -> Device)", "casts"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("Memcpy DtoH (Device -> Pageable)", "copies"),
    ],
)
def test_a_copy_is_what_it_copies_between(name, cause):
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 1, "dur": 5}
    (row,) = read([copy]).operations
    assert breakdown.cause(row.state, row.part, row.op, row.kernel) == cause


def test_what_a_range_of_the_user_takes_itself_is_the_host_s():
    made = [
        host("step 0", 0, 100, "user_annotation"),
        host("preprocess", 10, 30, "user_annotation"),
        host("aten::mm", 50, 40),
    ]
    trace = read(made)
    assert rows(trace)["op", "mm"].seconds == pytest.approx(40e-6)
    assert rows(trace)["host", ""].seconds == pytest.approx(60e-6)


def test_code_of_torch_compile_on_a_cpu_is_unexplained_and_that_is_said():
    made = [
        host("Torch-Compiled Region: 0/0", 0, 100),
        host("CompiledFunction", 10, 80),
        host("## Call CompiledFxGraph fxcwrx2fp7 ##", 20, 60),
        host("aten::mm", 30, 10),
    ]
    trace = read([*made, host("step 0", 0, 100, "user_annotation")])
    assert "torch.compile is recorded as a whole" in trace.notes[0]
    seconds = breakdown.by_cause_of(breakdown.of_trace(trace))
    assert seconds["unexplained"] == pytest.approx(50e-6)
    assert seconds["host"] == pytest.approx(40e-6)


def test_a_copy_that_waits_for_work_from_before_the_recording_is_no_launch_overhead():
    begin = [e for e in gpu_steps(2) if e["ts"] >= 1000]  # little is known of the first step
    begin.append(host("autograd::engine::evaluate_function: AddBackward0", 945, 9))
    begin.append(host("Optimizer.step#SGD.step", 960, 9))
    call = host("cudaMemcpyAsync", 300, 640, "cuda_runtime", correlation=77)
    copy = device("Memcpy HtoD (Pageable -> Device)", 900, 30, correlation=77) | {
        "cat": "gpu_memcpy"
    }
    trace = read([*begin, host("ProfilerStep#0", 0, 1000), call, copy])
    assert rows(trace)["idle", ""].seconds == pytest.approx(50e-6 / 2)
    assert trace.step_times[0] == pytest.approx(100e-6)  # what is left once the device is free
    assert "0.6 ms are left out of the first step, in which it waited" in trace.notes[0]
    # A copy from pinned memory begins when its call has returned.
    trace = read([*begin, host("ProfilerStep#0", 0, 1000), call | {"dur": 5}, copy])
    assert rows(trace)["idle", ""].seconds == pytest.approx(50e-6 / 2)
    assert trace.notes == ()


def test_evaluations_among_the_steps_are_left_out():
    # The lie: three steps of training "left out as warm-up", and the evaluations explained as them.
    events = gpu_steps(3)
    for n in range(8):
        events += [
            host(f"ProfilerStep#{3 + n}", 3000 + 200 * n, 200),
            host("aten::conv2d", 3010 + 200 * n, 20, **{"External id": 9000 + n}),
            device("sm80_xmma_evaluation", 3050 + 200 * n, 100, **{"External id": 9000 + n}),
        ]
    trace = read(events)
    assert (trace.steps, trace.untrained, trace.warm_up) == (3, 8, 0)
    assert trace.trains is True
    assert trace.median_s == pytest.approx(1000e-6)
    assert not any("evaluation" in row.kernel for row in trace.operations)


def test_an_inference_after_a_training_is_no_training():
    marked = [e for e in gpu_steps(4) if e["ts"] >= 2000 or "ProfilerStep" not in e["name"]]
    words = ("Backward", "backward", "Optimizer")
    kept = [e for e in marked if e["ts"] < 2000 or not any(word in e["name"] for word in words)]
    assert read(kept).trains is False or read(kept).trains is None
    assert read(marked).trains is True


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


def test_an_optimizer_that_steps_several_times_in_a_step_or_never_is_told():
    # The lies: `profiler.step()` after every tenth iteration, and micro-batches of which none
    # ended in an optimizer's step, beside steps as they are.
    more = [host("Optimizer.step#SGD.step", n * 100 + 5, 9) for n in range(20)]
    made = read(gpu_steps(2, *more))
    assert made.updates == 11
    assert "stepped 22 times in 2 steps: a step here is several" in made.notes[0]
    none = read([e for e in gpu_steps(3) if "Optimizer" not in e["name"]])
    assert (none.updates, none.accumulated) == (0, False)
    (note,) = none.notes  # The lie: none.
    assert "no step of an optimizer was recorded in 3 steps with a backward pass" in note
    fused = [e | {"name": e["name"].replace("CUDAFunctor_add", ADAM)} for e in gpu_steps(3)]
    assert read([e for e in fused if "Optimizer" not in e["name"]]).updates is None
    assert read(gpu_steps(3)).updates == 1
    kernels = [e for e in gpu_steps(3) if e["pid"] == 0]
    assert read(kernels).updates is None


def test_updates_that_a_loss_scaler_skipped_may_be_no_accumulated_gradients():
    events = [e for e in gpu_steps(6) if not (e["name"].startswith("Optimizer") and e["ts"] < 4000)]
    scaled = [*events, host("aten::_amp_foreach_non_finite_check_and_unscale_", 590, 5)]
    (note,) = read(scaled).notes
    assert "in 2 of 6 steps: the loss scaler skipped the others, or gradients" in note


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


def test_a_machine_with_a_gpu_of_which_nothing_was_recorded_is_named():
    made = [host("aten::addmm", 0, 9), host("aten::addmm", 10, 9)]
    (note,) = read(made, deviceProperties=[{"id": 0, "name": "A100"}]).notes
    assert "the machine has a GPU, A100, and no kernel of it was recorded" in note
    assert read(made).notes == ()


def test_a_range_around_a_part_of_the_step_does_not_shorten_the_last_one():
    made = [host("step", n * 100, 10, "user_annotation") for n in range(3)]
    made += [host("aten::mm", n * 100 + 20, 60) for n in range(3)]
    trace = read(made)
    assert trace.step_times == pytest.approx((100e-6, 100e-6))


def test_a_step_too_short_to_be_one_is_refused():
    # Its ratio to another step would be infinite, which is no JSON.
    short = [e | {"ts": e["ts"] * 1e-310, "dur": e["dur"] * 1e-310} for e in gpu_steps(3)]
    with pytest.raises(ParamsError, match="takes no time"):
        read(short)


def test_ranges_of_reading_and_of_the_step_are_one_step():
    # The lie: the wait for a batch "without a backward pass, as evaluations have none".
    class Range:
        def __init__(self, name, start, end):
            self.name, self.start, self.end = name, start, end

    ranges = [
        Range(f"{name} {n}", 100 * n + start, 100 * n + end)
        for n in range(3)
        for name, start, end in (("batch", 0, 40), ("step", 40, 100))
    ]
    assert kineto._of_one_name(ranges) == [(0, 40), (100, 140), (200, 240)]


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


def test_what_a_thread_awaits_that_does_not_train_keeps_no_step_waiting():
    # The lies: "waiting for input 78 %" of a training that its host bounds, as a thread beside it
    # reads ahead; "idle device 78 %", as such a thread waits for a stream.
    plain = read(gpu_steps(2)).operations
    batch = host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 1990)
    sync = host("cudaStreamSynchronize", 0, 1990, "cuda_runtime")
    assert read(gpu_steps(2, batch | {"tid": 5}, sync | {"tid": 6})).operations == plain
    assert read(gpu_steps(2, batch)).operations != plain
    assert read(gpu_steps(2, sync | {"tid": 2})).operations != plain  # the backward pass's thread


def graphed(last):
    """Two steps, each of which is one CUDA graph of three kernels."""
    made = [host("aten::copy_", 1, 5)]
    for n in range(2):
        begin, number = n * 1000, 50 + n
        made.append(host(f"ProfilerStep#{n}", begin, 1000))
        made.append(host("cudaGraphLaunch", begin + 5, 9, "cuda_runtime", correlation=number))
        for place, name in enumerate(("sm80_xmma_gemm_a", "sm80_xmma_gemm_b", last)):
            made.append(device(name, begin + 100 + 200 * place, 190, correlation=number))
    return made


def test_what_a_graph_replays_is_no_inference_because_the_host_names_no_backward_pass():
    # The lie: a training whose whole step is a CUDA graph, "this inference"; not compared with
    # itself without the graph, as "training against inference".
    assert read(graphed(ADAM)).trains is True
    assert read(graphed("sm80_xmma_gemm_c")).trains is None
    eager = [e for e in gpu_steps(2) if not any(
        word in e["name"] for word in ("Backward", "backward", "Optimizer"))]  # fmt: skip
    assert read([e | {"name": e["name"].replace("wgrad", "fprop")} for e in eager]).trains is False
    fused = [e | ({"name": ADAM} if "CUDAFunctor_add" in e["name"] else {}) for e in eager]
    assert read(fused).trains is True
    # In what was marked, not before it.
    marked = [e for e in fused if e["name"] != "ProfilerStep#0"]
    before = [e for e in marked if e["name"] != ADAM or e["ts"] < 1000]
    kept = [e for e in before if not (e["name"] == "cudaLaunchKernel" and e["ts"] == 1620)]
    assert read([e | {"name": e["name"].replace("wgrad", "fprop")} for e in kept]).trains is False


def replays(first, steps, kernel=ADAM):
    """Steps of 500 us after so many of 1000 us, each one CUDA graph."""
    for n in range(steps):
        begin, number = first * 1000 + n * 500, 9000 + n
        yield host(f"ProfilerStep#{first + n}", begin, 500)
        yield host("cudaGraphLaunch", begin + 5, 9, "cuda_runtime", correlation=number)
        yield device("sm80_xmma_gemm_a", begin + 100, 300, correlation=number)
        yield device(kernel, begin + 400, 50, correlation=number)


@pytest.mark.parametrize("kernel", [ADAM, "sm80_xmma_gemm_b"])
def test_replays_of_a_graph_are_no_evaluations(kernel):
    # The lie: of a training whose first three steps are eager and ten are replays of one CUDA
    # graph "the host bounds this training; 10 steps without a backward pass left out, as
    # evaluations have none".
    trace = read([*gpu_steps(3), *replays(3, 10, kernel)])
    assert (trace.steps, trace.untrained, trace.median_s) == (10, 0, pytest.approx(500e-6))
    left = "3 of 13 steps, which replay no CUDA graph, are left out, as most replay one"
    assert left in trace.notes
    assert (trace.updates, trace.accumulated) == (None, False)
    trace = read([*gpu_steps(4), *replays(4, 2, kernel)])
    assert (trace.steps, trace.median_s) == (4, pytest.approx(1000e-6))
    left = "2 of 6 steps, which replay a CUDA graph, are left out, as most replay none"
    assert left in trace.notes


def test_a_step_with_kernels_of_gradients_is_no_evaluation():
    named = ("autograd", "Backward", "backward")
    bare = [e for e in gpu_steps(3) if e["ts"] < 1000 or not any(n in e["name"] for n in named)]
    assert sum("wgrad" in e["name"] for e in bare) == 3
    assert (read(bare).steps, read(bare).untrained) == (3, 0)


def gan(rounds, *more):
    """Unmarked steps of two optimizers of one class, one of which takes twice as long."""
    events, at = list(more), 0
    for n in range(2 * rounds):
        length = 1000 * (1 + n % 2)
        events += [
            host("aten::mm", at + 10, 10),
            *(host("autograd::engine::evaluate_function: MmBackward0", at + 50 * k, 40)
              for k in range(1, 2 + n % 2)),
            host("cudaLaunchKernel", at + 12, 2, "cuda_runtime", correlation=500 + n),
            device(CONV, at + 20, length - 200, correlation=500 + n),
            host("cudaDeviceSynchronize", at + 200, length - 350, "cuda_runtime"),
            host("Optimizer.step#Adam.step", at + length - 100, 100),
        ]  # fmt: skip
        at += length
    return events


def test_two_optimizers_of_one_class_are_told_by_backward_passes_that_alternate():
    # The lie: a GAN whose both optimizers are Adams, "12 steps of 39.8 ms": each half of a step.
    trace = read(gan(6))
    assert (trace.steps, trace.how) == (6, "every 2 steps of the optimizer")
    assert trace.median_s == pytest.approx(3000e-6)
    assert "stepped 12 times in 6 steps" in trace.notes[0]
    # A recording that begins between the two.
    later = [e for e in gan(6) if e["ts"] >= 1000]
    assert read(later).step_times == pytest.approx((3000e-6,) * 5)
    # Where nothing alternates, nothing tells.
    alike = [e | {"name": e["name"].replace("evaluate_function", "other")} for e in gan(6)]
    trace = read([e for e in alike if not e["name"].startswith("autograd")])
    assert (trace.steps, trace.notes) == (12, (kineto.ONE_OPTIMIZER,))
