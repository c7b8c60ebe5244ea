from mptexp.execution import local_executor
from mptexp.execution.device_slots import Slot
from mptexp.execution.local_executor import Execution
from mptexp.execution.plan import Planned
from mptexp.spec.run import Run


def test_which_runs_can_start():
    slots = [Slot("NVIDIA H100", "a"), Slot("NVIDIA H100", "b"), Slot("NVIDIA A100", "c")]
    runs = [Run(gpu_model=m, replicas=n) for m, n in [("H100", 2), ("H100", 1), ("A100", 1)]]
    waiting = [Planned(str(n), run, "pending") for n, run in enumerate(runs)]
    startable = local_executor._startable(waiting, slots, slots)
    assert [(p.run_id, [s.uuid for s in taken]) for p, taken in startable] == [
        ("0", ["a", "b"]),
        ("2", ["c"]),
    ]
    # The first one needs what the second would take: it must not wait for ever.
    startable = local_executor._startable(waiting, slots[1:], slots)
    assert [p.run_id for p, _ in startable] == ["2"]
    assert local_executor._startable(waiting, [], slots) == []


def test_runs_that_share_a_processor_are_marked_and_others_are_not():
    assert Execution(60).marks == []
    (mark,) = Execution(60, parallel=3).marks
    assert "3 runs shared" in mark
