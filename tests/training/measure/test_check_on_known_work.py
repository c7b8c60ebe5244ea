import json

import pytest
from forked import python

from mptexp.records.instrument_checks import check
from mptexp.training.measure import check_on_known_work

# Faults are planted in what the checks read, each by itself; the work is shorter than a user's.
PROGRAM = """\
import json, sys, types
from mptexp.spec.run import Run
from mptexp.training.measure import check_on_known_work, sensors, step_clock
from mptexp.training import precision
check_on_known_work.CHAIN_S, check_on_known_work.STEPS, check_on_known_work.LOAD_S = 0.02, 12, 0.3
check_on_known_work.ROUNDS, check_on_known_work.LEAST_BYTES = 2, 2**20
precision.use(Run())

def passed(checks):
    return {check["instrument"]: check["passed"] for check in checks}

import time
slow = types.SimpleNamespace(perf_counter=lambda: 3 * time.perf_counter())
true_time, step_clock.time = step_clock.time, slow
results = [passed(check_on_known_work.clock("cpu"))]

# A clock that adds a second to every step, and events of the device that count half of the work.
from mptexp.training import backends
calls = iter(range(10**9))
late = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + next(calls))
step_clock.time, of_events = late, backends.current().event_seconds
backends.current().event_seconds = lambda work: (check_on_known_work._seconds(work), 1e-6)[1]
results.append(passed(check_on_known_work.clock("cpu")))
step_clock.time, backends.current().event_seconds = true_time, of_events

of_processor = sensors.processor
sensors.processor = lambda: {**of_processor(), "own_cpu_s": 2 * of_processor()["own_cpu_s"]}
results.append(passed(check_on_known_work.load("cpu")))
sensors.processor = lambda: {**of_processor(), "own_cpu_s": time.perf_counter()}
results.append(passed(check_on_known_work.load("cpu")))
sensors.processor = of_processor
results.append(passed(check_on_known_work.load("cpu")))

peak = sensors.peak_memory_bytes
sensors.peak_memory_bytes = lambda kind: peak(kind) // 1024
results.append(passed([check_on_known_work.memory("cpu")]))
sensors.peak_memory_bytes = peak
results.append(passed([check_on_known_work.memory("cpu")]))
print(json.dumps(results))
"""


def test_a_planted_fault_in_each_instrument_is_caught():
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr[-2000:]
    clock, late, doubled, never_idle, true, halved, whole = json.loads(done.stdout.splitlines()[-1])
    assert clock["clock"] is False  # it runs fast, so that twice the work still takes twice as long
    assert clock["device_events"] is None
    assert (late["clock_twice"], late["device_events"]) == (False, False)
    assert doubled["busy"] is False
    assert never_idle["idle"] is False
    assert (true["busy"], true["idle"], true["energy"]) == (True, True, None)
    assert (halved["memory"], whole["memory"]) == (False, True)


@pytest.mark.parametrize(
    ("joules", "watts", "passed"),
    [
        (100.0, 100.0, True),
        (50.0, 100.0, False),
        (100.0, 100e3, False),  # milliwatts taken for watts
        (100.0, 0.0, False),
        (0.0, 100.0, False),
        (0.0, 0.0, False),
        (None, 100.0, None),
        (100.0, None, None),
    ],
)
def test_energy_is_compared_with_the_integral_of_power(joules, watts, passed):
    def sample(second):
        counter = None if joules is None else 7 + joules * second
        return {"time": float(second), "power_w": watts, "energy_j": counter}

    assert check_on_known_work.energy([sample(second) for second in range(5)])["passed"] is passed


def test_a_gpu_that_is_lost_while_it_is_loaded_is_no_pass():
    nothing = {"power_w": None, "energy_j": None, "utilization": None}
    lost = [{"time": float(second), **nothing} for second in range(12)]
    busy = check("busy", (80, 100), check_on_known_work._utilization(lost, "gpu"))
    assert (busy["passed"], busy["read"]) == (False, "nothing")
    assert check_on_known_work._utilization([{"time": 0.0}] * 12, "gpu") is None  # no NVML at all
    assert check_on_known_work.energy(lost)["passed"] is None
