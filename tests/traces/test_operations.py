import pytest

from mptexp.traces import operations, step_bounds
from mptexp.traces.operations import Operation, Span

A, B, COPY = Operation("op", op="a"), Operation("op", op="b"), Operation("copy", op="MemcpyH2D")


def test_each_instant_belongs_to_what_is_active():
    spans = [Span(1, 5, A), Span(3, 7, B)]
    states = [Span(0, 2, Operation("input")), Span(6, 9, Operation("idle"))]
    (owned,) = operations.shares(spans, states, (0, 10))
    assert owned == {Operation("input"): 1, A: 3, B: 3, Operation("idle"): 2, Operation("host"): 1}
    assert sum(owned.values()) == 10


def test_a_copy_counts_only_where_no_kernel_runs():
    (owned,) = operations.shares([Span(0, 4, A), Span(2, 6, COPY)], [], (0, 8))
    assert owned == {A: 4, Operation("input"): 2, Operation("host"): 2}


def test_what_xla_computes_without_a_name_has_the_time_that_nothing_named_has():
    # The lie: "for 45 % of a step the device has no work", while XLA's threads were busy.
    unnamed = Operation("op", part="other", op=operations.UNNAMED)
    waits = [Span(1, 9, Operation("idle"))]
    (owned,) = operations.shares([Span(0, 8, unnamed), Span(2, 4, A)], waits, (0, 10))
    assert owned == {unnamed: 6, A: 2, Operation("idle"): 1, Operation("host"): 1}


def test_what_lies_outside_the_steps_does_not_count():
    (owned,) = operations.shares([Span(-5, 2, A), Span(9, 20, B)], [], (0, 10))
    assert owned[A] == 2


def test_what_lies_between_two_steps_is_outside_of_them_too():
    # The lie: "0.8 ms of the device's work lies outside the steps", of 1,600: evaluations between.
    spans = [Span(100 * n, 100 * n + 40, A) for n in range(5)]
    steps = step_bounds.Steps(((100, 200), (300, 400)), "marks")
    trace = operations.of_steps(spans, [], [], steps, "cpu")
    assert trace.outside_s == pytest.approx(120e-6)
    assert {row.op: row.count for row in trace.operations}["a"] == 1


def test_groups_of_steps_tell_how_much_they_differ():
    times = [1, 1, 1, 1, 1, 1, 9]
    spans = [Span(100 * n, 100 * n + time, A) for n, time in enumerate(times)]
    marks = [(100 * n, 100 * n + 100) for n in range(7)]
    trace = operations.of_steps(spans, [], [], step_bounds.adjoining(marks, "marks"), "cpu")
    rows = {row.op: row for row in trace.operations}
    assert rows["a"].groups == pytest.approx([1e-6, 1e-6, 1e-6, 1e-6, 5e-6])
    assert rows["a"].seconds == pytest.approx(sum(times) / 7 * 1e-6)
    for group in range(5):
        assert sum(row.groups[group] for row in trace.operations) == pytest.approx(100e-6)


def test_pauses_between_operations_of_a_loop_are_the_loop_s():
    looped = Operation("op", "lstm", "loop", "MatMul")
    spans = [Span(0, 10, looped), Span(30, 40, looped), Span(60, 70, A), Span(5000, 5010, looped)]
    trace = operations.of_steps(spans, [], [], step_bounds.whole(0, 6000), "cpu")
    rows = {(row.state, row.op): row.seconds for row in trace.operations}
    assert rows["loop", ""] == pytest.approx(20e-6)
    assert rows["host", ""] == pytest.approx((6000 - 60) * 1e-6)


def test_a_long_pause_is_a_loop_s_where_nothing_else_ran_meanwhile():
    looped = Operation("op", "map", "loop", "Sub")
    ends = looped._replace(part="forward", op="TensorListStack")
    for between, paused in ((Span(0, 5, A), 7990e-6), (Span(50, 60, A), 0.0)):
        spans = [Span(0, 10, looped), between, Span(8000, 8010, ends)]
        trace = operations.of_steps(spans, [], [], step_bounds.whole(0, 9000), "cpu")
        rows = {row.state: row.seconds for row in trace.operations}
        assert rows.get("loop", 0.0) == pytest.approx(paused)


def sent_at(*instants, fed=False, part=""):
    """Seconds by state and operation of two steps of 100 us with four products in each, from 30 on,
    in which 2 us are copied to the device at some instants."""
    product = Operation("op", op="linear", kernel="ampere_sgemm_128x64_tn")
    spans = [
        Span(100 * n + at, 100 * n + at + 5, product) for n in (0, 1) for at in (30, 40, 50, 60)
    ]
    copy = COPY._replace(part=part)
    spans += [Span(100 * n + at, 100 * n + at + 2, copy) for n in (0, 1) for at in instants]
    marks = step_bounds.adjoining([(0, 100), (100, 200)], "marks")
    trace = operations.of_steps(spans, [], [], marks, "gpu", fed=fed)
    return {(r.state, r.op): round(r.seconds * 1e6) for r in trace.operations if r.op != "linear"}


def test_what_is_copied_to_the_device_between_the_products_of_a_step_is_no_batch():
    # The lie, of weights that are sent layer by layer and no stack: "waiting for input: 62 %".
    host = ("host", "")
    layerwise = sent_at(20, 36, 46, 56)
    assert layerwise == {host: 72, ("input", ""): 2, ("op", "MemcpyH2D"): 6}
    assert sent_at(20, 36, 46, 56, fed=True) == {host: 72, ("input", ""): 8}
    assert sent_at(20, 36, 46, 56, part=operations.BATCH) == {host: 72, ("input", ""): 8}


@pytest.mark.parametrize("instants", [(20,), (20, 46), (20, 80), (36, 80)])
def test_what_is_copied_once_or_twice_a_step_is_a_batch(instants):
    # One that is copied ahead, or while the device is at work on the step before.
    assert sent_at(*instants)["input", ""] == 2 * len(instants)


def of_micro_batches(backward, labels=(), weights=(), waits=()):
    """Microseconds by state and operation of two steps of 200 us with four micro-batches in each.

    Every 50 us 2 us are copied, then four products run from 10 on, the last two of a part. Labels
    are copied at some instants of a micro-batch, and weights.
    """
    forward = Operation("op", "", "other", "linear", "ampere_sgemm_128x64_tn")
    spans = []
    for begin in range(0, 400, 50):
        spans += [Span(begin + at, begin + at + 2, COPY) for at in (0, *labels, *weights)]
        spans += [Span(begin + at, begin + at + 5, forward) for at in (10, 20)]
        later = forward._replace(part=backward)
        spans += [Span(begin + at, begin + at + 5, later) for at in (30, 40)]
    marks = step_bounds.adjoining([(0, 200), (200, 400)], "marks")
    trace = operations.of_steps(spans, waits, [], marks, "gpu")
    found = {(r.state, r.op): round(r.seconds * 1e6) for r in trace.operations}
    return {of: us for of, us in found.items() if of[0] == "input" or of[1] == COPY.op}


def test_the_batches_of_micro_batches_within_a_step_are_no_weights():
    # The lie, of gradients that are accumulated over four micro-batches in a step, each with a
    # batch that is awaited: "copies to the GPU within layers 48 %".
    assert of_micro_batches("backward") == {("input", ""): 8}
    assert of_micro_batches("backward", labels=(26,)) == {("input", ""): 16}
    # Beside weights that are sent layer by layer, each still is a batch.
    both = of_micro_batches("backward", weights=(16, 26, 36))
    assert both == {("input", ""): 8, ("op", "MemcpyH2D"): 24}


@pytest.mark.parametrize("part", ["other", "optimizer"])
def test_the_batches_of_micro_batches_are_told_by_the_waits_for_them_too(part):
    # As where a graph, or an inference, has no backward pass that is named.
    awaited = [Span(at - 4, at - 1, Operation("input")) for at in range(50, 400, 50)]
    nested = [Span(at - 3, at - 2, Operation("input")) for at in range(50, 400, 50)]
    assert of_micro_batches(part)["op", "MemcpyH2D"] == 6
    assert ("op", "MemcpyH2D") not in of_micro_batches(part, waits=[*awaited, *nested])


def test_frames_within_a_wait_for_a_batch_await_no_other_batch():
    # A host ahead of its device: while it awaits one batch, products of another run.
    outer = [Span(begin, begin + 40, Operation("input")) for begin in (5, 205)]
    inner = [Span(at, at + 1, Operation("input")) for begin in (5, 205)
             for at in (begin + 3, begin + 8, begin + 18, begin + 28)]  # fmt: skip
    assert of_micro_batches("other", waits=[*outer, *inner])["op", "MemcpyH2D"] == 6


def test_python_on_a_cpu_goes_before_what_runs_beside_it():
    python = Operation("op", "odd", "forward", "EagerPyFunc")
    (owned,) = operations.shares([Span(0, 8, python), Span(2, 10, A)], [], (0, 10))
    assert owned == {python: 8, A: 2}


@pytest.mark.parametrize("op", ["EagerPyFunc", "Digamma"])
def test_what_a_host_computes_beside_its_gpu_costs_no_time(op):
    # The lie: "operations that ran on the CPU instead of the GPU 49 %" of steps that kernels fill.
    kernel, sends = A._replace(kernel="k"), A._replace(kernel="ncclDevKernel_AllReduce_Sum_f32")
    on_host = Operation("op", "odd", "forward", op, operations.ON_HOST)
    spans = [Span(0, 9, on_host), Span(1, 4, kernel), Span(4, 6, sends), Span(7, 8, COPY)]
    (owned,) = operations.shares(spans, [], (0, 9))
    assert owned == {on_host: 4, kernel: 3, sends: 2}


def test_a_trace_is_told_per_step_and_sums_to_it():
    spans = [Span(0, 600, A), Span(1000, 1600, A), Span(600, 800, COPY), Span(-9, 0, B)]
    pipeline = [Span(500, 1500, Operation("input")), Span(700, 900, Operation("input"))]
    trace = operations.of_steps(spans, [], pipeline, step_bounds.whole(0, 2000), "gpu", 4)
    assert trace.step_s == pytest.approx(500e-6)
    assert trace.input_busy_s == pytest.approx(250e-6)
    rows = {(row.state, row.op): row for row in trace.operations}
    assert rows["op", "a"].seconds == pytest.approx(300e-6)
    assert rows["op", "a"].count == 0.5
    assert rows["input", ""].count == 0.25
    assert sum(row.seconds for row in trace.operations) == pytest.approx(trace.step_s)
    profile = trace.profile(250e-6)
    assert profile["slowdown"] == pytest.approx(2)
    assert profile["rows"][0] == trace.operations[0]._asdict()
    assert set(profile["rows"][0]) == set(Operation._fields)


def test_a_gradient_without_a_scope_is_of_the_layer_before_it_and_an_average_is_not():
    # The lie: the gradient of swish, which TensorFlow writes itself, was called clipping.
    loose = Operation("op", "", operations.LOOSE, "Mul")
    metric = loose._replace(op="ArgMax")
    forward, backward = (Operation("op", "swish", part) for part in ("forward", "backward"))
    step = [
        Span(0, 1, forward),
        Span(2, 3, loose),
        Span(2, 3, metric),
        Span(4, 5, backward),
        Span(6, 7, loose),
    ]
    steps = [*step, *(Span(s.start + 10, s.end + 10, s.operation) for s in step)]
    rows = [s.operation for s in operations.with_sources(steps) if s.operation.op]
    found = [(row.op, row.layer, row.part) for row in rows]
    assert found == 2 * [
        ("Mul", "swish", "forward"),
        ("ArgMax", "", "updates"),
        ("Mul", "", "updates"),
    ]


def test_what_autodiff_added_is_of_the_layer_before_it():
    added = Operation("op", "", operations.AUTODIFF, "AddN")
    layer, optimizer = Operation("op", "norm", "backward", "Mul"), Operation("op", "", "optimizer")
    first, _, _, last = operations.with_sources(
        [Span(0, 1, added), Span(1, 4, layer), Span(4, 5, optimizer), Span(5, 6, added)]
    )
    assert (first.operation.layer, first.operation.part) == ("", "other")
    assert last.operation == Operation("op", "norm", "backward", "AddN")


def test_what_is_known_to_be_the_backward_pass_s_is_of_a_layer_and_no_loss():
    anew, loss = Operation("op", "", "backward", "Sinh"), Operation("op", "", "loss", "Mul")
    layer = Operation("op", "norm", "backward", "Mul")
    spans = [Span(0, 1, anew), Span(1, 4, layer), Span(4, 5, loss), Span(6, 7, anew)]
    first, _, _, last = operations.with_sources(spans)
    assert (first.operation.layer, first.operation.part) == ("", "backward")
    assert (last.operation.layer, last.operation.part) == ("norm", "backward")
