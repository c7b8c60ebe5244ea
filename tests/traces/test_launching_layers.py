"""What a kernel was launched for; whole traces are in test_kineto.py."""

import pytest

from mptexp.traces.launching_layers import Event, Host, reads


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


def test_an_optimizer_that_computes_on_the_cpu_beside_a_gpu_is_seen():
    # The lie: "the host bounds this training: 75 %", with CUDA graphs and torch.compile advised, of
    # an optimizer whose state was offloaded to the CPU.
    events = [
        event("op", "Optimizer.step#AdamW.step", 100, 9000),
        event("op", "aten::_foreach_add_", 200, 3000),
        event("op", "aten::add_", 210, 2000),
        event("op", "aten::_foreach_mul_", 4000, 4040),  # as short as a launch
        event("op", "aten::_foreach_sqrt", 5000, 8000),  # which launches a kernel
        event("op", "aten::rand", 9500, 9900),  # of nothing that is known
        LAUNCH,
        LAUNCH._replace(start=6000, end=6010),
    ]
    (found,) = Host(events).beside_gpu()
    assert (found.start, found.end) == (200, 3000)
    assert found.operation.part == "optimizer"
    assert found.operation.kernel == "(on the host)"


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


@pytest.mark.parametrize(
    ("module", "part"),
    [
        # The lie: "the loss bounds this training: 78 %", of a decoder of sign language.
        ("GlossDecoder_0", "forward"),
        ("LosslessCodec_0", "forward"),
        ("CrossEntropyLoss_0", "loss"),
        ("NLLLoss_0", "loss"),
        ("InfoNCELosses", "loss"),
    ],
)
def test_a_module_is_the_loss_by_a_whole_word_of_its_name(module, part):
    events = [event("python", f"nn.Module: {module}", 10, 30), event("op", "aten::mm", 12, 20)]
    assert Host([*events, LAUNCH]).span(KERNEL).operation.part == part


@pytest.mark.parametrize(
    ("op", "part"), [("aten::nll_loss_nd", "loss"), ("aten::my_gloss", "other")]
)
def test_an_operation_is_the_loss_by_a_whole_word_of_its_name(op, part):
    assert Host([event("op", op, 12, 20), LAUNCH]).span(KERNEL).operation.part == part


def test_a_copy_without_an_owner_is_certainly_a_batch_where_the_stack_was_recorded():
    copy = event("copy", "Memcpy HtoD (Pinned -> Device)", 50, 60, correlation=1)
    module = event("python", "nn.Module: Net_0", 100, 120)
    assert Host([LAUNCH]).span(copy).operation.part == ""
    assert Host([module, LAUNCH]).span(copy).operation.part == "batch"


def awaited(*frames):
    """The frames of Python beside a module and an optimizer's step in which a batch is awaited."""
    parts = [event("python", "nn.Module: Net_0", 100, 200),
             event("python", "nn.Module: Linear_0", 110, 120),
             event("op", "Optimizer.step#SGD.step", 300, 400)]  # fmt: skip
    known = [event("python", *frame) for frame in frames]
    return [found.name for found in reads([*parts, *known])]


@pytest.mark.parametrize(
    "name",
    [
        "nvidia/dali/plugin/pytorch.py(190): __next__",
        "my_loader.py(12): __next__",
        "queue.py(154): get",
        "multiprocessing/queues.py(97): get",
        "multiprocessing/pool.py(853): next",
    ],
)
def test_a_wait_in_anybody_s_loader_is_one_for_a_batch(name):
    # The lie: "the host bounds this training: for 84 % of a step the device has no work".
    assert awaited((name, 0, 90)) == [name]
    assert awaited((name, 210, 290)) == [name]


@pytest.mark.parametrize(
    "frame",
    [
        ("queue.py(154): get", 130, 190),  # in a module: of a pipeline of stages, say
        ("my_iterator.py(7): __next__", 310, 320),  # in the optimizer's step
        ("trainer.py(80): __next__", 50, 450),  # an iterator whose results are trained steps
        ("threading.py(288): wait", 0, 90),
        ("<built-in method acquire of _thread.lock object>", 0, 90),
        ("my_cache.py(3): get", 0, 90),
    ],
)
def test_other_locks_and_what_a_training_iterates_over_are_no_wait_for_a_batch(frame):
    assert awaited(frame) == []


def test_a_loader_of_pytorch_s_is_awaited_wherever_it_is_asked():
    loader = "torch/utils/data/dataloader.py(628): __next__"
    assert awaited((loader, 0, 90)) == [loader]
