"""Which steps, waits and updates PyTorch's traces show."""

import pytest
from builders import KINETO, device, gpu_steps, host, kineto_step, without

from mptexp.traces import kineto, steps_from_host
from mptexp.traces.step_bounds import WHOLE

CONV = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<f>>"


def read(events, **about):
    return kineto.read(events, about)


def rows(trace):
    return {(row.state, row.op): row for row in trace.operations}


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


@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_step_that_began_before_the_recording_is_no_step(part):
    # The lie: "44 % of a step of 129 ms", of steps of 175 ms; the first was the end of one.
    plain = [e for e in gpu_steps(4) if not e["name"].startswith("ProfilerStep")]
    small = [
        host(f"aten::view_{n}", 1000 * step + 20 * n, 5) for step in range(4) for n in range(40)
    ]
    begun = [e for e in [*plain, *small] if e["ts"] >= 1000 * part]
    trace = read(begun)
    assert trace.how == (
        "the optimizer's steps, without the first, of which the recording lacks the beginning"
    )
    assert trace.step_times == pytest.approx([1000e-6] * 3)


def test_layers_that_are_alike_are_no_steps():
    # The lie: "a step of 1.89 ms", "Steps 23", of one step of 114 ms with 24 layers.
    layers, events = 24, []
    for layer in range(layers):
        for e in without(kineto_step(KINETO[1], layer), "ProfilerStep", "DataLoader", "Memcpy"):
            backward = e["ts"] % 1000 >= 400
            if "Optimizer" not in e["name"]:
                events.append(e | {"ts": e["ts"] + 1000 * layers * backward})
    trace = read(events)
    assert {row.part for row in trace.operations if row.state == "op"} >= {"forward", "backward"}
    assert (trace.steps, trace.how) == (1, WHOLE)


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
    assert (trace.steps, trace.notes[1:]) == (4, (steps_from_host.ONE_OPTIMIZER,))
    assert trace.median_s == pytest.approx(1000e-6)


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
    assert "0.9 ms are left out of the first step, until it had waited" in trace.notes[0]
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


def test_an_optimizer_that_steps_several_times_in_a_step_or_never_is_told():
    # The lies: `profiler.step()` after every tenth iteration, and micro-batches of which none
    # ended in an optimizer's step, beside steps as they are.
    more = [host("Optimizer.step#SGD.step", n * 25 + 5, 9) for n in range(20)]
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


@pytest.mark.parametrize("outer", ["SGD", "ZeroRedundancyOptimizer"])
def test_an_optimizer_that_another_one_calls_is_no_second_step(outer):
    # The lies, of Horovod's and of one that shards: "the optimizer stepped 8 times in 4 steps", and
    # not compared with one that steps once.
    def nested(events):
        inner = [e | {"ts": e["ts"] + 2, "dur": e["dur"] - 4} for e in events if "Optimizer" in
                 e["name"]]  # fmt: skip
        return [e | {"name": e["name"].replace("SGD", outer)} for e in events] + inner

    marked = read(nested(gpu_steps(4)))
    assert (marked.updates, marked.notes) == (1, ())
    bare = [e for e in gpu_steps(4) if not e["name"].startswith("ProfilerStep")]
    assert read(nested(bare)).step_times == read(bare).step_times


def test_updates_that_a_loss_scaler_skipped_may_be_no_accumulated_gradients():
    events = [e for e in gpu_steps(6) if not (e["name"].startswith("Optimizer") and e["ts"] < 4000)]
    scaled = [*events, host("aten::_amp_foreach_non_finite_check_and_unscale_", 590, 5)]
    (note,) = read(scaled).notes
    assert "in 2 of 6 steps: the loss scaler skipped the others, or gradients" in note


def test_a_range_around_a_part_of_the_step_does_not_shorten_the_last_one():
    made = [host("step", n * 100, 10, "user_annotation") for n in range(3)]
    made += [host("aten::mm", n * 100 + 20, 60) for n in range(3)]
    trace = read(made)
    assert trace.step_times == pytest.approx((100e-6, 100e-6))


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
    reading, backward = [(0, 40), (100, 140), (200, 240)], [50, 150, 250]
    assert steps_from_host._of_one_name(ranges, []) == reading
    assert steps_from_host._of_one_name(ranges, backward) == reading


def named_epoch(begin, steps, batches):
    """Steps of a training of 1000 us, then batches of an evaluation of 300 us, in their ranges."""
    for event in gpu_steps(steps):
        args = {name: begin + at for name, at in event["args"].items()}
        name = event["name"].replace("ProfilerStep#", f"train step {begin}")
        yield event | {"name": name, "ts": event["ts"] + begin, "args": args}
    for n in range(batches):
        at = begin + 1000 * steps + 300 * n
        yield host(f"batch {n}", at, 300, "user_annotation")
        yield host("aten::conv2d", at + 10, 20, **{"External id": 10**6 + at})
        yield device("sm80_xmma_evaluation", at + 50, 200, **{"External id": 10**6 + at})


def test_an_evaluation_with_more_ranges_of_another_name_is_not_explained_instead_of_a_training():
    # The lie: of five ranges "train step N" and twelve "batch N" of an evaluation "matrix work
    # bounds this inference: 94 % of a step of 2.13 ms".
    trace = read(list(named_epoch(0, 3, 8)))
    assert (trace.steps, trace.trains) == (3, True)
    assert trace.median_s == pytest.approx(1000e-6)
    # Nor where one follows each epoch, and training lies between two of its ranges.
    trace = read([*named_epoch(0, 3, 8), *named_epoch(5400, 3, 8)])
    assert (trace.trains, trace.median_s) == (True, pytest.approx(1000e-6))
    inference = read(list(named_epoch(0, 0, 8)))
    assert (inference.steps, inference.median_s) == (8, pytest.approx(300e-6))


def test_what_a_thread_awaits_that_does_not_train_keeps_no_step_waiting():
    # The lies: "waiting for input 78 %" of a training that its host bounds, as a thread beside it
    # reads ahead; "idle device 78 %", as such a thread waits for a stream.
    plain = read(gpu_steps(2)).operations
    batch = host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 1990)
    sync = host("cudaStreamSynchronize", 0, 1990, "cuda_runtime")
    assert read(gpu_steps(2, batch | {"tid": 5}, sync | {"tid": 6})).operations == plain
    assert read(gpu_steps(2, batch)).operations != plain
    assert read(gpu_steps(2, sync | {"tid": 2})).operations != plain  # the backward pass's thread
    # The lie: "waiting for input 64 %", as that thread prepares its batches on the GPU.
    launch = host("cudaLaunchKernel", 30, 1, "cuda_runtime", correlation=77_777) | {"tid": 5}
    kernel = device("upsample", 320, 10, correlation=77_777)
    plain = read(gpu_steps(2, launch, kernel)).operations
    ahead = batch | {"tid": 5, "ts": 40}
    assert read(gpu_steps(2, launch, kernel, ahead)).operations == plain


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


def compiled(first, number, backward):
    """Steps of compiled code, a CUDA graph for each pass: 1000 us, of evaluations 300 us."""
    at = first * 1000
    for n in range(number):
        length, numbers = 1000 if backward else 300, [20_000 + at, 20_001 + at]
        yield host(f"ProfilerStep#{first + n}", at, length)
        if backward:
            yield host("CompiledFunctionBackward", at + 30, 20)
            yield host("Optimizer.step#Adam.step", at + 900, 50)
        for place, launched in enumerate(numbers[: 1 + backward]):
            call = host("cudaGraphLaunch", at + 10 + 25 * place, 9, "cuda_runtime")
            yield call | {"args": {"correlation": launched}}
            yield device("sm80_xmma_gemm_a", at + 80 + 200 * place, 190, correlation=launched)
        at += length


def test_evaluations_that_replay_a_graph_are_none_of_the_steps_whose_backward_pass_is_named():
    # The lie: of five steps of a training and five of its validation, compiled, "93 % of a step of
    # 4.3 ms" of 6.43; "the optimizer stepped in 5 of 10 steps: gradients are accumulated".
    trace = read([*compiled(0, 5, True), *compiled(5, 6, False)])
    assert (trace.steps, trace.untrained, trace.accumulated) == (5, 6, False)
    assert trace.median_s == pytest.approx(1000e-6)
    assert not any("accumulated" in note for note in trace.notes)


def test_a_backward_pass_beside_graphs_of_whole_steps_makes_no_other_step_an_evaluation():
    # Such as a penalty that is computed now and then, or the step that captures the graph.
    penalty = host("autograd::engine::evaluate_function: MmBackward0", 120, 30)
    trace = read([*replays(0, 10, "sm80_xmma_gemm_b"), penalty])
    assert (trace.steps, trace.untrained) == (10, 0)


def test_a_step_with_kernels_of_gradients_is_no_evaluation():
    named = ("autograd", "Backward", "backward")
    bare = [e for e in gpu_steps(3) if e["ts"] < 1000 or not any(n in e["name"] for n in named)]
    assert sum("wgrad" in e["name"] for e in bare) == 3
    assert (read(bare).steps, read(bare).untrained) == (3, 0)


def upsampling(first, number):
    """Validation steps of 300 us after so many of 1000 us, with a transposed convolution each."""
    kernel = "sm80_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
    for n in range(number):
        begin, launched = first * 1000 + n * 300, 7000 + n
        yield host(f"ProfilerStep#{first + n}", begin, 300)
        yield host("aten::cudnn_convolution_transpose", begin + 10, 20)
        yield host("cudaLaunchKernel", begin + 12, 2, "cuda_runtime", correlation=launched)
        yield device(kernel, begin + 50, 200, correlation=launched)


def test_a_transposed_convolution_s_forward_pass_is_no_gradient():
    # The lies: of four steps of a U-Net's training and four of its validation "a step of 6.75 ms"
    # of 10; its inference, beside its training, 2.86 times faster. cuDNN computes a transposed
    # convolution as the gradient of a convolution.
    trace = read([*gpu_steps(4), *upsampling(4, 8)])
    assert (trace.steps, trace.untrained) == (4, 8)
    assert read(list(upsampling(0, 4))).trains is False
    bare = [e for e in upsampling(0, 4) if e["cat"] != "cpu_op" or "aten" not in e["name"]]
    assert read([*bare, host("aten::copy_", 1, 5)]).trains is None  # launched by nobody knows what


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
    assert (trace.steps, trace.notes) == (12, (steps_from_host.ONE_OPTIMIZER,))
