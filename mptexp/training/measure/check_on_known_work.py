"""`doctor --check`: clock, memory, utilization and energy, on work whose answer is known.

`python -m mptexp.training.measure.check_on_known_work BACKEND` prints the checks as JSON: a
process of its own, since its peak of memory would count in any other.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import psutil

from mptexp.records import timed_windows
from mptexp.records.instrument_checks import QUIET, Check, check, not_here
from mptexp.records.interference import OTHERS_MATTER
from mptexp.spec.run import Run
from mptexp.training import backends, precision
from mptexp.training.measure import sensors

CHAIN_S = 0.1  # a step of a chain: long against what `predict` itself takes, a millisecond or two
SIZE = {"cpu": 768, "gpu": 4096}  # of the matrices
STEPS, ALONE, ROUNDS = 24, 9, 3
LOAD_S = 3.0
LEAST_BYTES = 2**29
NO_EVENTS = "this backend gives none on this device"


def checks(run: Run) -> Iterator[Check]:
    """The checks of one backend on this machine's device."""
    kind = precision.use(run)["kind"]
    with sensors.Sampler(kind) as sampler:
        began = time.perf_counter()
        of_clock = list(clock(kind))
        span = (began, time.perf_counter())
    others = sensors.summary(sampler.samples, [span], kind)["other_load_frac"]
    yield check(QUIET, (0, 100 * OTHERS_MATTER), None if others is None else 100 * others)
    yield from of_clock
    yield from load(kind)
    yield memory(kind)  # the last: its peak would hide others


# --- the step clock -----------------------------------------------------------------------------


def clock(kind: str) -> Iterator[Check]:
    """The step clock against a chain of products timed alone, and against one twice as long."""
    import keras
    from keras import ops

    class Chain(keras.Layer):
        """Multiplies a matrix with itself so many times; one number per image goes on."""

        def __init__(self, length: int) -> None:
            super().__init__()
            self.length = length

        def build(self, shape: Sequence[int | None]) -> None:
            # Its powers neither grow nor vanish, and are not known beforehand.
            size = SIZE[kind]
            values = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0]
            self.matrix = self.add_weight(shape=(size, size), trainable=False)
            self.matrix.assign(values)

        def call(self, x: Any) -> Any:
            return x * ops.max(product(self.matrix, self.length))

    def product(matrix: Any, length: int) -> Any:
        matrix = ops.convert_to_tensor(matrix)
        result = matrix
        for _ in range(length):
            result = ops.matmul(result, matrix)
        return result

    def model(length: int) -> keras.Model:
        made = keras.Sequential([keras.Input((1,)), Chain(length)])
        made.compile(jit_compile=False)
        return made

    def chain(length: int) -> Callable[[], Any]:
        function = current.compiled(lambda matrix: ops.max(product(matrix, length)))
        matrix = ops.convert_to_tensor(model(length).layers[0].matrix)
        current.wait(function(matrix))
        return lambda: function(matrix)

    def alone(function: Callable[[], Any]) -> float:
        return min(_seconds(lambda: current.wait(function())) for _ in range(ALONE))

    current = backends.current()
    length = max(2, round(CHAIN_S / alone(chain(1))))
    single, double, reference = model(length), model(2 * length), chain(length)
    # In turns, and the least of each: what else the machine does adds to any of them.
    rounds = [(alone(reference), _clocked(single), _clocked(double)) for _ in range(ROUNDS)]
    alone_s, once_s, twice_s = (min(column) for column in zip(*rounds, strict=True))
    yield check("clock", (0.9, 1.15), once_s / alone_s)
    yield check("clock_twice", (1.85, 2.15), twice_s / once_s)
    events_s = current.event_seconds(reference)
    if events_s is None:
        yield not_here("device_events", NO_EVENTS)
    else:
        yield check("device_events", (0.9, 1.1), events_s / alone_s)


def _clocked(model: Any) -> float:
    """Seconds of a step of `predict` by the step clock."""
    from mptexp.training.measure import step_clock

    timed = step_clock.StepClock(backends.current().synchronize)
    model.predict(np.ones((STEPS, 1), "float32"), batch_size=1, callbacks=[timed], verbose=0)
    return float(timed_windows.timing(timed.windows)["step_s"])


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


# --- utilization and energy ---------------------------------------------------------------------


def load(kind: str) -> Iterator[Check]:
    """Utilization under a load and without it; energy against the integral of power."""
    busy = _sampled(kind, _multiply if kind == "gpu" else _count)
    idle = _sampled(kind, lambda: time.sleep(LOAD_S))
    shares = [_utilization(samples, kind) for samples in (busy, idle)]
    # A GPU is filled; of a CPU one processor is kept busy, by a thread's own time, so that other
    # programs do not matter.
    yield check("busy", (80, 100) if kind == "gpu" else (90, 110), shares[0])
    yield check("idle", (0, 20) if kind == "gpu" else (0, 10), shares[1])
    yield energy(busy)


def energy(samples: Sequence[sensors.Sample]) -> Check:
    """The counter of energy against the integral of power over the same samples."""
    known = [s for s in samples if None not in (s.get("energy_j"), s.get("power_w"))]
    if len(known) < 3:
        return not_here("energy", "no counter of energy with a sensor of power beside it")
    joules = sum(
        (b["time"] - a["time"]) * (a["power_w"] + b["power_w"]) / 2 for a, b in pairwise(known)
    )
    read = known[-1]["energy_j"] - known[0]["energy_j"]
    return check("energy", (0.85, 1.15), read / joules if joules > 0 else None)


def _sampled(kind: str, work: Callable[[], None]) -> list[sensors.Sample]:
    with sensors.Sampler(kind) as sampler:
        work()
    return sampler.samples


def _utilization(samples: Sequence[sensors.Sample], kind: str) -> float | None:
    """Per cent: of the GPU, without the edges; of the processor time that the load is to take."""
    if kind == "gpu":
        values = [s["utilization"] for s in samples[4:-1] if s.get("utilization") is not None]
        return 100 * median(values) if values else None
    return 100 * (samples[-1]["own_cpu_s"] - samples[0]["own_cpu_s"]) / LOAD_S


def _multiply() -> None:
    """Keeps a GPU busy."""
    from keras import ops

    function = backends.current().compiled(ops.matmul)
    matrix = ops.ones((SIZE["gpu"], SIZE["gpu"]))
    ends = time.perf_counter() + LOAD_S
    while time.perf_counter() < ends:
        for _ in range(20):
            result = function(matrix, matrix)
        backends.current().wait(result)


def _count() -> None:
    """Uses LOAD_S of processor time in this thread, however long that takes."""
    ends = time.thread_time() + LOAD_S
    while time.thread_time() < ends:
        pass


# --- memory -------------------------------------------------------------------------------------


def memory(kind: str) -> Check:
    """The peak of memory after an array larger than all that was there before."""
    from keras import ops

    before = sensors.peak_memory_bytes(kind)
    if before is None:
        return not_here("memory", "this device does not report it")
    size = max(LEAST_BYTES, 2 * before)
    if kind == "gpu":
        # What is in use now lies somewhere between nothing and the peak.
        array = ops.zeros((size,), "uint8")
        expected, least = size, (0.98, 1 + before / size + 0.02)
    else:
        in_use = psutil.Process().memory_info().rss
        array = np.ones(size, np.uint8)
        expected, least = in_use + size, (0.97, 1.03)
    read = sensors.peak_memory_bytes(kind)
    del array
    return check("memory", least, None if read is None else read / expected)


def main() -> None:
    """Prints the checks of the backend named on the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else "tensorflow"
    print(json.dumps(list(checks(Run(backend=name)))))


if __name__ == "__main__":
    main()
