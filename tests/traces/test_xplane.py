"""Reading traces. Those of a GPU are synthetic protos, read through xprof as real ones are."""

import os

import pytest
from support import gpu_trace

from mptexp.diagnosis import breakdown
from mptexp.errors import ParamsError
from mptexp.traces import xplane

LAYER = "StatefulPartitionedCall/functional_1/{}.layer/{}"
CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"


def read(tmp_path, *events, steps=2):
    gpu_trace(tmp_path / "a.xplane.pb", events, steps)
    return xplane.read(tmp_path / "a.xplane.pb", ["adam"], scaled=True)


def rows(trace):
    return {(row.state, row.layer, row.op): row for row in trace.operations}


def test_a_gpu_step_with_layers_of_tensorflow_and_of_xla(tmp_path):
    name = LAYER.format("conv_1", "convolution/Conv2D:Conv2D")
    xla = "jit(train_step)/transpose(jvp(functional_1))/norm.layer/reduce_sum"
    trace = read(
        tmp_path,
        ("gpu", CONV, 100, 400, {"tf_op": name}),
        ("gpu", "input_reduce_fusion", 1100, 200, {"name": xla, "hlo_op": "input_reduce_fusion"}),
        ("gpu", "loop_multiply_fusion", 1400, 100, {"name": "jit(train_step)/adam/mul"}),
    )
    assert trace.device == "gpu"
    assert trace.steps == 2
    known = rows(trace)
    conv = known["op", "conv_1", "Conv2D"]
    assert conv.part == "forward"
    assert conv.kernel == CONV
    assert conv.seconds == pytest.approx(200e-6)
    assert known["op", "norm", "input_reduce_fusion"].part == "backward"
    assert known["op", "", "loop_multiply_fusion"].part == "optimizer"
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)


@pytest.mark.parametrize(
    "evaluation",
    [("test", {"step_num": 0, "_r": 1}), ("multi_step_on_iterator", {"tf_function_call": "x"})],
)
def test_an_evaluation_between_two_steps_is_of_neither(tmp_path, evaluation):
    # The lie: "a step of 301 ms" of 130, of Keras with a validation after each epoch.
    events = [
        ("gpu", CONV, at, 400, {"tf_op": LAYER.format("conv", "Conv2D:Conv2D")})
        for at in (0, 500, 1000, 1500, 2000, 2500)
    ]
    name, args = evaluation
    events += [("python", "multi_step_on_iterator", n * 1000 + 10, 900, {}) for n in range(3)]
    events = [e for e in events if e[2] not in (1010, 1500)] + [("python", name, 1450, 500, args)]
    events.append(("python", "multi_step_on_iterator", 1010, 390, {}))
    gpu_trace(tmp_path / "a.xplane.pb", events, 3, mark_us=440)
    trace = xplane.explain(xplane.of_file(tmp_path / "a.xplane.pb"))
    assert len(trace.step_times) == 3
    assert trace.step_times[1] < 500e-6 < trace.step_times[0]


# What XLA's profiler writes with a kernel: tf_op is the outermost annotation, name the path that
# all operations of the instruction have in common, prefix what all names of the module have.
XLA = {"tf_op": "XlaModule:", "hlo_module": "jit_train_step", "prefix": "jit(train_step)"}


@pytest.mark.parametrize(
    ("kernel", "args", "layer", "part", "op", "cause"),
    [
        (CONV, {"hlo_op": "cudnn-conv.1", "name": "jvp(conv2d.layer)/conv_general_dilated"},
         "conv2d", "forward", "conv_general_dilated", "matrix"),
        (CONV, {"hlo_op": "cudnn-conv-bw-filter.2.0", "name": "transpose(jvp(conv2d.layer))"},
         "conv2d", "backward", "cudnn-conv-bw-filter", "matrix"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float>(int)",
         {"hlo_op": "cudnn-conv.1", "name": "jvp(conv2d.layer)/conv_general_dilated"},
         "conv2d", "forward", "conv_general_dilated", "casts"),
        ("input_reduce_fusion_3", {"hlo_op": "input_reduce_fusion.3", "name": "jvp(bn_1.layer)"},
         "bn_1", "forward", "input_reduce_fusion", "memory"),
        ("loop_convert_fusion", {"hlo_op": "loop_convert_fusion", "name": "jvp(conv2d.layer)"},
         "conv2d", "forward", "loop_convert_fusion", "memory"),
        ("loop_convert_fusion", {"hlo_op": "loop_convert_fusion.5",
                                 "name": "jvp(conv2d.layer)/convert_element_type"},
         "conv2d", "forward", "convert_element_type", "casts"),
        ("wrapped_convert", {"hlo_op": "wrapped_convert", "name": "jvp(conv2d.layer)/mul"},
         "conv2d", "forward", "wrapped_convert", "casts"),
        ("input_reduce_fusion", {"hlo_op": "input_reduce_fusion",
                                 "name": "jvp(bn.layer)/convert_element_type"},
         "bn", "forward", "input_reduce_fusion", "memory"),
        ("loop_pad_fusion", {"hlo_op": "loop_pad_fusion.1",
                             "name": "transpose(jvp(conv2d.layer))/conv_general_dilated"},
         "conv2d", "backward", "loop_pad_fusion", "memory"),
        ("loop_add_fusion", {"hlo_op": "loop_add_fusion", "name": "jvp(functional)/conv_block"},
         "", "other", "loop_add_fusion", "memory"),
        ("gemm_fusion_dot_4", {"hlo_op": "gemm_fusion_dot.4", "name": "jvp(dense.layer)"},
         "dense", "forward", "gemm_fusion_dot", "matrix"),
        ("loop_add_fusion_2", {"hlo_op": "loop_add_fusion.2", "name": "transpose(jvp(functional))"},
         "", "other", "loop_add_fusion", "memory"),
        ("loop_add_fusion", {"hlo_op": "loop_add_fusion", "name": ""},
         "", "other", "loop_add_fusion", "memory"),
        ("loop_multiply_fusion", {"hlo_op": "loop_multiply_fusion",
                                  "name": "cond/branch_1_fun/adam/mul"},
         "", "optimizer", "loop_multiply_fusion", "optimizer"),
        ("wrapped_and", {"hlo_op": "wrapped_and", "name": "is_finite"},
         "", "loss scaling", "wrapped_and", "loss scaling"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         {"hlo_op": "all-reduce-start", "name": "psum"}, "", "other", "psum", "communication"),
        ("some_kernel", {"hlo_op": "command_buffer_14", "name": ""},
         "", "other", "command_buffer", "unexplained"),
        ("fusion_7", {"hlo_op": "fusion.7", "name": ""}, "", "other", "fusion", "unexplained"),
    ],
)  # fmt: skip
def test_a_kernel_of_jax_belongs_to_what_its_name_tells(
    tmp_path, kernel, args, layer, part, op, cause
):
    trace = read(tmp_path, ("gpu", kernel, 100, 400, XLA | args))
    (row,) = (row for row in trace.operations if row.state == "op")
    assert (row.layer, row.part, row.op) == (layer, part, op)
    assert breakdown.cause(row.state, row.part, row.op, row.kernel) == cause


def test_a_kernel_that_was_launched_for_nothing_known_is_told_by_its_own_name(tmp_path):
    gemm = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(T::Params)"
    trace = read(tmp_path, ("gpu", gemm, 0, 10, {}), ("gpu", "copy_66", 10, 10, {}))
    ran = [row for row in trace.operations if row.state == "op"]
    causes = {r.kernel: breakdown.cause(r.state, r.part, r.op, r.kernel) for r in ran}
    assert causes == {gemm: "matrix", "copy_66": "casts"}


def test_all_events_of_a_long_trace_are_read(tmp_path, monkeypatch):
    kernels = [("gpu", f"loop_add_fusion_{i}", i, 1, {}) for i in range(300)]
    monkeypatch.setenv("TF_PROFILER_TRACE_VIEWER_MAX_EVENTS", "50")
    cut = len(read(tmp_path, *kernels).operations)
    monkeypatch.delenv("TF_PROFILER_TRACE_VIEWER_MAX_EVENTS")
    whole = len(read(tmp_path, *kernels).operations)
    assert cut < 60
    assert whole > 300
    assert int(os.environ["TF_PROFILER_TRACE_VIEWER_MAX_EVENTS"]) > 10_000_000


def test_a_trace_without_marks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no marked step"):
        read(tmp_path, ("gpu", CONV, 0, 10, {}), steps=0)


def test_the_latest_trace_of_a_folder_is_taken(tmp_path):
    assert xplane.latest(tmp_path) is None
    for day in ("2026_01_02", "2026_01_03", "2026_01_01"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "host.xplane.pb").touch()
    assert xplane.latest(tmp_path).parent.name == "2026_01_03"


@pytest.mark.parametrize("thread", ["python", "host"])
def test_a_host_that_dispatches_ahead_does_not_shorten_the_steps(tmp_path, thread):
    # Marks of 100 us, for each of which the device works 900 us. What is launched on the thread of
    # the mark, xprof groups with it; what it cannot group repeats as often as there are marks.
    events = []
    for step in range(4):
        for place, (name, took) in enumerate(
            (("ampere_sgemm_32x32_tn", 700), ("relu_kernel", 200))
        ):
            stats = {"correlation_id": 10 * step + place + 1}
            path = {"tf_op": f"model/dense_{place}/MatMul:MatMul"}
            events.append((thread, "cuLaunchKernel", 100 * step + 10 + place, 1, stats))
            events.append(("gpu", name, 50 + 900 * step + 700 * place, took, stats | path))
    gpu_trace(tmp_path / "a.xplane.pb", events, steps=4, step_us=100)
    trace = xplane.explain(xplane.of_file(tmp_path / "a.xplane.pb"))
    assert trace.steps == 4
    assert trace.median_s == pytest.approx(900e-6)
    assert trace.outside_s == 0


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([("host", "cuLaunchKernel", 20, 5, {})], "holds none of its kernels"),
        ([("host", "ExecutorState::Process", 20, 5, {"id": 3})], "no operation of a training"),
    ],
)
def test_a_trace_of_the_host_alone_is_refused(tmp_path, events, why):
    gpu_trace(tmp_path / "a.xplane.pb", events, steps=2)
    with pytest.raises(ParamsError, match=why):
        xplane.explain(xplane.of_file(tmp_path / "a.xplane.pb"))


def gpu_events(*more, steps=3):
    """Steps of 1000 us in which a GPU computes from 700 on and a batch is awaited until 100."""
    known = (
        ("/host:CPU", "python", "train", 0, 1000, {"step_num": 1}),
        ("/host:CPU", "tf_Compute/1", "IteratorGetNext", 0, 100, {}),
        ("/device:GPU:0", "Stream #1", CONV, 700, 200, {"tf_op": "model/conv/Conv2D:Conv2D"}),
        ("/device:GPU:0", "Stream #1", CONV, 900, 100,
         {"tf_op": "gradient_tape/model/conv/Conv2D/Conv2DBackpropFilter:Conv2DBackpropFilter"}),
    )  # fmt: skip
    return [
        xplane.Event(process, thread, name, 1000 * step + start, 1000 * step + start + took, args)
        for step in range(steps)
        for process, thread, name, start, took, args in (*known, *more)
    ]


def states(*more, lacking=()):
    events = [event for event in gpu_events(*more) if event.name not in lacking]
    seconds = breakdown.by_cause_of(breakdown.of_trace(xplane.explain(events)))
    return (seconds[seconds > 0] * 1e6).round().to_dict()


# The function of tf.data that a thread of the executor runs, and that its pipeline called.
AHEAD = (
    ("/host:CPU", "tf_data_parallel_map/9", "InstantiatedCapturedFunction::RunAsync", 0, 30,
     {"id": "77"}),
    ("/host:CPU", "tf_Compute/7", "ExecutorState::Process", 50, 600, {"id": "77"}),
)  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        AHEAD,
        # Iterators that the pipeline itself asks.
        [("/host:CPU", "tf_data_prefetch/3", "Iterator::Root::Prefetch::ParallelMap", 50, 600, {})],
        [*AHEAD, ("/host:CPU", "tf_Compute/7", "IteratorGetNext", 60, 500, {})],
        [*AHEAD, ("/host:CPU", "tf_data_iterator_get_next/8", "IteratorGetNextOp::DoCompute",
                  60, 500, {"id": "77"})],
    ],
)  # fmt: skip
def test_batches_that_are_prepared_ahead_keep_no_step_waiting(more):
    # The lie: "waiting for input bounds this training: 79 %", of a host that launches slowly.
    assert states(*more) == {"matrix": 300, "input": 100, "host": 600}


def test_a_step_waits_as_long_as_it_asks_for_its_batch():
    asks = ("tf_data_iterator_get_next/8", "IteratorGetNextOp::DoCompute", 50, 500, {"id": "5"})
    assert states(*AHEAD, ("/host:CPU", *asks)) == {"matrix": 300, "input": 550, "host": 150}


def test_where_no_question_for_a_batch_is_recorded_a_step_waits_while_tf_data_works():
    found = states(*AHEAD, lacking=("IteratorGetNext",))
    assert found == {"matrix": 300, "input": 600, "host": 100}


@pytest.mark.parametrize("op", ["_XlaRun", "XlaLaunch", "_XlaCompile"])
def test_what_launches_a_cluster_of_xla_is_no_work_of_the_host(op):
    # The lie: "operations that ran on the CPU instead of the GPU 49 %".
    path = f"cluster_1_1/xla_run:{op}"
    launches = ("/host:CPU", "tf_Compute/1", op, 150, 800, {"long_name": path})
    assert states(launches) == states()


@pytest.mark.parametrize(("args", "cause"), [({"hlo_op": "copy-start.1"}, "loads"), ({}, "input")])
def test_what_a_program_of_xla_sends_to_its_device_is_no_batch(args, cause):
    # The lie, of weights that JAX keeps on the host: "waiting for input bounds this: 64 %".
    sent = ("/device:GPU:0", "Stream #2", "MemcpyH2D", 200, 300, args)
    plain, found = states(), states(sent)
    assert found[cause] - plain.get(cause, 0) == 300


def test_marks_of_evaluations_are_no_steps_of_training():
    # The lie: 30 steps of 20 ms, "this inference", of ten steps of training and an evaluation.
    def marked(name, number, begin, length):
        marks = [(begin + k * length, begin + (k + 1) * length) for k in range(number)]
        return [
            xplane.Event("/host:CPU", "main", name, *ends, {"step_num": k})
            for k, ends in enumerate(marks)
        ]

    trained = marked("train", 10, 0, 100)
    evaluated = marked("test", 30, 1000, 20)
    found = xplane._steps(trained + evaluated, {}, None)
    assert (len(found.intervals), found.seconds()[0]) == (10, pytest.approx(100e-6))
    alone = xplane._steps(evaluated, {}, None)
    assert len(alone.intervals) == 30


def test_a_keras_prediction_on_a_cpu_has_the_steps_of_its_function():
    # The lie: "the host bounds this recording: for 100 % of a step", of one step without any work,
    # found by what repeats: the eager operations that make a batch's constants.
    begins = [1000 * k for k in range(16)]
    calls = [
        xplane.Event("/host:CPU", "main", "one_step_on_data_distributed", at, at + 900, {})
        for at in begins
    ]
    found = xplane._steps(calls, {}, None)
    assert len(found.intervals) == 16
    assert found.how == "one_step_on_data_distributed"


def test_an_eager_training_on_a_cpu_says_why_nothing_is_read():
    eager = [xplane.Event("/host:CPU", "main", "EagerExecute: Conv2D", 0, 9, {})]
    with pytest.raises(ValueError, match="but eager ones"):
        xplane.explain(eager)


def test_what_xla_waits_for_on_a_cpu_is_unexplained():
    marked = {"step_num": 1}
    events = [
        xplane.Event("/host:CPU", *event)
        for at in (0, 1000, 2000)
        for event in (
            ("main", "train", at, at + 1000, marked),
            ("main", "BlockUntilReady", at + 100, at + 1000, {}),
            ("main", "convolution.1", at + 150, at + 250, {"hlo_op": "convolution.1"}),
        )
    ]
    seconds = breakdown.by_cause_of(breakdown.of_trace(xplane.explain(events)))
    shares = (seconds[seconds > 0] * 1e6).round().to_dict()
    assert shares == {"matrix": 100, "host": 100, "unexplained": 800}


@pytest.mark.parametrize(
    ("names", "trains"),
    [
        (("jvp()/dot_general", "transpose(jvp())/dot_general"), True),
        (("dot_general", "dot_general"), False),
        (("dot_general", ""), None),  # of one nothing is known
    ],
)
def test_programs_of_jax_tell_whether_they_train(names, trains):
    # The lie: a training beside an inference, "4.00x as fast", "this recording" of both.
    known = [{"hlo_op": "dot", "name": name} if name else {} for name in names]
    events = [
        xplane.Event("/device:GPU:0", "Stream #1", CONV, 1000 * step + at, 1000 * step + at + 90, k)
        for step in range(3)
        for at, k in zip((100, 500), known, strict=True)
    ]
    marks = [
        xplane.Event("/host:CPU", "main", "step", 1000 * k, 1000 * k + 1000, {"step_num": k})
        for k in range(3)
    ]
    assert xplane.explain(marks + events).trains is trains
