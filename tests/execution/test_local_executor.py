import json
import os
import subprocess
import sys

from support import PATIENCE_S, PROJECT, TINY, interrupt, started, until

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


# In a notebook the process lives on, and the cell is executed again.
TWICE = """
import json, os, signal, threading, time
from pathlib import Path
import mptexp

def press():
    while not list(Path(os.environ["MPTEXP_TEST_GATE"]).glob("*.here")):
        time.sleep(0.05)
    for _ in range(2):
        if not ended:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

ended = working = []
presses = threading.Thread(target=press)
presses.start()
try:
    try:
        mptexp.run("light.yaml")
    finally:
        ended = [True]
        working = [t.name for t in threading.enumerate() if t.name.startswith("ThreadPool")]
except KeyboardInterrupt:
    presses.join()
Path(os.environ["MPTEXP_TEST_GATE"], "leave-1").touch()
mptexp.run("light.yaml")
(record,) = Path("reports/light/runs").glob("*/record.json")
record = json.loads(record.read_text())
print(json.dumps([working, record["status"], record.get("marks", [])]))
"""


def test_a_second_interrupt_of_a_cell_leaves_no_run_at_work(light, gate, tmp_path):
    # The lie: "killed", and "another sweep measures on this device", of the cell executed again.
    light({"seed": [13]})
    command, environ = [sys.executable, "-c", TWICE], {**os.environ, "PYTHONPATH": str(PROJECT)}
    told = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1]) == [[], "ok", []]
    assert "another sweep" not in told.stdout


def test_a_sweep_made_anew_and_interrupted_goes_on_without_fresh(light, gate, tmp_path):
    # The lie: "the same command goes on", which discards what this one has finished.
    light({"seed": [13, 0]})
    command = ("run", "light.yaml", "--fresh", "--no-report")
    with started(*command, cwd=tmp_path) as sweep:
        until(gate.waiting, of=sweep)
        interrupt(sweep)
        said, errors = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130
    assert "(Ctrl-C stops; the same command without --fresh goes on)" in said
    assert errors.endswith("finished and kept; the same command without --fresh goes on\n")


def test_advice_that_is_interrupted_promises_to_go_on_with_nothing(tmp_path):
    # The lie: "the same command, without --fresh, goes on": it has no --fresh, and begins anew.
    (tmp_path / "tiny.yaml").write_text(TINY)
    with started("advise", "tiny.yaml", "--steps", "100000", cwd=tmp_path) as advice:
        until(lambda: "Ctrl-C" in advice.stdout.readline(), of=advice)
        interrupt(advice)
        _, errors = advice.communicate(timeout=PATIENCE_S)
    assert advice.returncode == 130
    assert errors.endswith("stopped; the same command can be given again\n")
