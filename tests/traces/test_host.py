"""What a kernel was launched for; whole traces are in test_kineto.py."""

from mptexp.traces.host import Event, Host


def event(kind, name, start, end, thread=1, **args):
    return Event(kind, name, thread, start, end, args)


LAUNCH = event("launch", "cudaLaunchKernel", 15, 16, correlation=1)
KERNEL = event("kernel", "mystery", 50, 60, correlation=1)


def test_a_kernel_belongs_to_the_innermost_operation_of_the_thread_that_launched_it():
    events = [event("op", "aten::linear", 10, 30), event("op", "aten::mm", 12, 20),
              event("op", "aten::relu", 10, 30, thread=2), LAUNCH]  # fmt: skip
    assert Host(events).span(KERNEL).operation.op == "mm"
    assert Host(events).launch(KERNEL) == LAUNCH
    assert Host(events[:3]).launch(KERNEL) is None
    assert Host([]).span(KERNEL).operation.op == ""


def test_a_range_around_kernels_of_one_s_own_is_no_operation():
    named = event("op", "compute_loss", 10, 30, range=True)
    assert Host([named, LAUNCH]).span(KERNEL).operation.op == ""
    assert Host([named, LAUNCH]).span(KERNEL).operation.part == "other"
    inner = event("op", "aten::nll_loss", 12, 20)
    assert Host([named, inner, LAUNCH]).span(KERNEL).operation.part == "loss"
    own = event("op", "mptexp loss", 10, 30, range=True)
    assert Host([own, LAUNCH]).span(KERNEL).operation.part == "loss"


def test_a_graph_s_launch_says_nothing_of_its_kernels():
    launch = LAUNCH._replace(name="cuGraphLaunch")
    host = Host([event("op", "aten::conv2d", 10, 30), launch])
    assert host.replays(KERNEL)
    assert host.span(KERNEL).operation.op == ""
    assert not host.replays(event("kernel", "other", 1, 2))


def test_what_an_optimizer_s_step_calls_forward_and_backward_is_not_the_optimizer_s():
    # The lie: "optimizer 34 %" of a step of which it takes 10 %, of PyTorch Lightning's, whose
    # `Optimizer.step` calls the forward and the backward pass.
    events = [
        event("op", "Optimizer.step#AdamW.step", 0, 100),
        event("op", "aten::mm", 10, 20),
        event("op", "Optimizer.zero_grad#AdamW.zero_grad", 22, 28),
        event("op", "autograd::engine::evaluate_function: MmBackward0", 30, 60, thread=2),
        event("op", "MmBackward0", 31, 50, thread=2),
        event("op", "aten::_foreach_add_", 70, 80),
        event("python", "nn.Module: Linear_0", 84, 96),  # a line search
        event("op", "aten::mm", 85, 90),
        *(event("launch", "cudaLaunchKernel", at, at + 1, thread, correlation=at)
          for at, thread in ((12, 1), (23, 1), (35, 2), (72, 1), (86, 1))),
    ]  # fmt: skip
    host = Host(events)
    parts = {at: host.span(KERNEL._replace(args={"correlation": at})).operation.part
             for at in (12, 23, 35, 72, 86)}  # fmt: skip
    assert parts == {12: "other", 23: "optimizer", 35: "backward", 72: "optimizer", 86: "forward"}


def test_an_optimizer_that_steps_within_the_backward_pass_is_one():
    events = [
        event("op", "autograd::engine::evaluate_function: AccumulateGrad", 0, 40),
        event("op", "Optimizer.step#SGD.step", 10, 30),
        LAUNCH,
    ]
    assert Host(events).span(KERNEL).operation.part == "optimizer"


def over_weights(*names, optimizer=True):
    """The parts of operations over many tensors before, in and after a backward pass, at 15, 35
    and 75, and after the optimizer, at 115; the next backward pass begins at 130."""
    events = [
        event("op", "autograd::engine::evaluate_function: MmBackward0", 30, 60, thread=2),
        event("op", "autograd::engine::evaluate_function: MmBackward0", 62, 70, thread=2),
        event("op", "autograd::engine::evaluate_function: MmBackward0", 130, 140, thread=2),
        *([event("op", "Optimizer.step#SGD.step", 90, 110)] if optimizer else []),
        *(event("launch", "cudaLaunchKernel", at, at + 1, correlation=at)
          for at in (15, 35, 75, 115)),
    ]  # fmt: skip
    for name in names:
        ops = [event("op", f"aten::{name}", at - 1, at + 2) for at in (15, 35, 75, 115)]
        host = Host([*events, *ops])
        kernels = (KERNEL._replace(args={"correlation": at}) for at in (15, 35, 75, 115))
        yield [host.span(kernel).operation.part for kernel in kernels]


def test_clipping_and_averages_are_what_stands_between_backward_pass_and_the_next():
    # The lie: "clipping of gradients 18 %" of a sharded training's copies into its buffers.
    beside = ["other", "other", "updates", "updates"]
    assert list(over_weights("_foreach_norm", "_foreach_lerp_")) == [beside, beside]
    assert list(over_weights("_foreach_copy_", "_foreach_add")) == [["other"] * 4] * 2
    (alone,) = over_weights("_foreach_norm", optimizer=False)
    assert alone == ["other"] * 4


def test_an_optimizer_of_one_s_own_is_told_by_what_it_computes():
    # The lie: "clipping of gradients, averages of weights".
    (own,) = over_weights("_foreach_addcdiv_", optimizer=False)
    assert own == ["other", *["optimizer"] * 3]  # it may step within the backward pass
    assert list(over_weights("_foreach_addcdiv_", "_foreach_sub_")) == [["other"] * 4] * 2
