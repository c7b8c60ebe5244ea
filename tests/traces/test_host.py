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


def test_a_graph_s_launch_says_nothing_of_its_kernels():
    launch = LAUNCH._replace(name="cuGraphLaunch")
    host = Host([event("op", "aten::conv2d", 10, 30), launch])
    assert host.replays(KERNEL)
    assert host.span(KERNEL).operation.op == ""
    assert not host.replays(event("kernel", "other", 1, 2))
