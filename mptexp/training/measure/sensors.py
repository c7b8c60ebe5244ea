"""Samples of the device's sensors while it is measured, taken by a thread of their own.

They come from NVML on a GPU and from the system on a CPU. What a device does not report is None.
"""

import contextlib
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pynvml

from mptexp.host import control_groups
from mptexp.host.devices import nvidia_handle, nvidia_handles
from mptexp.records.interference import OTHERS_MATTER
from mptexp.training import backends, machine_state

INTERVAL_S = 0.25
Sample = dict[str, Any]
Span = tuple[float, float]

# NVML's reasons for clocks below the highest that are no throttling: idleness, set clocks, sync
# boost, display clocks (nvml.h, nvmlClocksEventReasons). The others:
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# Between two samples that are a quarter of a second apart otherwise; and of that, the share in
# which a process that works has processor time, though one call may keep the sampler waiting.
STOPPED_S, WORKING = 2.0, 0.05
# A GPU's utilization is the driver's mean over a period before each reading, of a sixth of a second
# to a second (nvml.h, nvmlUtilization_t): the first readings hold what came before the steps.
BEFORE_S = 1.0
MOSTLY, LEAST_READ = 0.9 * BEFORE_S, 4
# Of what was timed, more than may lie beside the first and the last reading of a short run.
UNWATCHED_S = 1.0


class Sampler(threading.Thread):
    """Takes samples from `with` until its end.

    A sample is a dict of cumulative counters and of values now; its `time` is
    `time.perf_counter()`.
    """

    def __init__(self, kind: str, interval_s: float = INTERVAL_S) -> None:
        super().__init__(name="sensors", daemon=True)
        self.samples: list[Sample] = []
        self._read = reader(kind)
        self._interval_s = interval_s
        self._ended = threading.Event()

    def run(self) -> None:
        self._take()
        while not self._ended.wait(self._interval_s):
            self._take()
        self._take()

    def _take(self) -> None:
        state = {
            "asleep_s": _asleep_s(),
            "cores": machine_state.cores(),
            "nice": machine_state.nice(),
        }
        self.samples.append({"time": time.perf_counter(), **state, **self._read()})

    def __enter__(self) -> "Sampler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def _asleep_s() -> float:
    """Seconds that the machine has been suspended since it started: its other clock stands still.

    0 where the system does not say (macOS).
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def reader(kind: str) -> Callable[[], Sample]:
    """A function that reads the machine and, where the kind is gpu, the GPUs of this process."""
    if kind == "cpu":
        return lambda: {**processor(), **cpu()}
    if nvidia_handle() is None:
        return processor
    handles = nvidia_handles()
    return lambda: {**processor(), **gpu(*handles)}


def processor() -> Sample:
    """Processor seconds so far: of this process, of everything, and of how many processors.

    Of the processors that the process may use: what runs on others disturbs none of it. Time that
    a hypervisor took (steal) counts as used by others; that of the processes that load the data
    does not.
    """
    return {
        "own_cpu_s": time.process_time() + _of_loaders_s(),
        "busy_cpu_s": _asked(_busy_s),
        "processors": machine_state.cores(),
    }


# Processor seconds of each process that loads data, as last read: by its number and its beginning.
_LOADERS: dict[tuple[int, float], float] = {}


def _of_loaders_s() -> float:
    """Seconds of the processes that multiprocessing has started here, and of those they ended.

    Loaders of data start theirs with it (PyTorch's DataLoader, grain). Another program that was
    started from here, as from a cell of a notebook, is another one. Of a process that has ended
    the last fraction of an interval is missing.
    """
    for child in multiprocessing.active_children():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(child.pid)
            # The last two are of those that it has waited for itself.
            used = sum(process.cpu_times()[:4])
            _LOADERS[process.pid, process.create_time()] = used
    return sum(_LOADERS.values())


def _busy_s() -> float:
    """Seconds in which the processors that this process may use were busy.

    Raises:
        LookupError: where one of them is not listed.
    """
    every = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        every = _of_numbers(every, os.sched_getaffinity(0))
    # The ninth and tenth are parts of the first two.
    return sum(sum(t[:8]) - t.idle - getattr(t, "iowait", 0.0) for t in every)


def _of_numbers(every: Sequence[Any], numbers: set[int]) -> list[Any]:
    """The times of some processors: one that is offline has a number, and no line in /proc/stat.

    A container may number its own anew (lxcfs), and then it lists no others.
    """
    if len(every) == len(numbers):
        return [*every]
    listed = re.findall(r"^cpu(\d+)", Path(psutil.PROCFS_PATH, "stat").read_text(), re.MULTILINE)
    by_number = dict(zip(map(int, listed), every, strict=True))
    return [by_number[number] for number in numbers]


def cpu() -> Sample:
    """Clock in Hz, temperature, energy counter in J and throttle counters, as far as they exist."""
    return {
        "clock_hz": _asked(_cpu_clock),
        "temperature_c": _asked(_package_temperature),
        "energy_j": _asked(_rapl_j),
        "throttle_events": _asked(_throttle_events),
    }


def _cpu_clock() -> float | None:
    """In Hz; of a virtual machine nothing, whose system knows a nominal clock alone."""
    if machine_state.is_virtual():
        return None
    clock = psutil.cpu_freq()
    return clock.current * 1e6 if clock else None


def _package_temperature() -> float | None:
    chips = getattr(psutil, "sensors_temperatures", dict)()
    known = [chips[name] for name in ("coretemp", "k10temp", "zenpower") if chips.get(name)]
    return known[0][0].current if known else None


def _rapl_j(root: Path = Path("/sys/class/powercap")) -> float | None:
    """Energy of all packages so far; most systems let only root read it.

    Beside the packages a laptop may have a zone of the whole platform (psys), which holds them.
    """
    names = [z for z in root.glob("intel-rapl:*/name") if z.read_text().startswith("package")]
    zones = [name.parent for name in names]
    values = [int((zone / "energy_uj").read_text()) for zone in zones]
    return sum(values) / 1e6 if values else None


def _throttle_events(root: Path = Path("/")) -> dict[str, int]:
    """How often the CPU was too hot and the container used up its quota."""
    events = {}
    counters = list(root.glob("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"))
    if counters:
        events["too hot"] = sum(int(path.read_text()) for path in counters)
    places = [folder / "cpu.stat" for folder in control_groups.with_those_above("cpu", root)]
    # Of groups within one another any may have a limit that is met, and each counts its own.
    known = [
        dict(line.split() for line in path.read_text().splitlines())
        for path in places
        if path.exists()
    ]
    met = [int(counts["nr_throttled"]) for counts in known if "nr_throttled" in counts]
    if met:
        events["the container's processor limit"] = sum(met)
    return events


def gpu(handle: Any, *others: Any) -> Sample:
    """What NVML says of a GPU; None for what this one does not report.

    The causes of throttling and the most processes are of the others too: a step waits for the
    slowest replica.
    """
    every = handle, *others
    causes = [names for one in every if (names := _asked(partial(_throttled, one))) is not None]
    processes = [n for one in every if (n := _asked(partial(_processes, one))) is not None]
    return {
        "utilization": _asked(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        "memory_bytes": _asked(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)),
        "power_w": _asked(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
        "energy_j": _asked(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3),
        "clock_hz": _asked(
            lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6
        ),
        "temperature_c": _asked(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        "throttled": sorted({name for names in causes for name in names}) if causes else None,
        "processes": max(processes, default=None),
    }


def _throttled(handle: Any) -> list[str]:
    return throttles(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _processes(handle: Any) -> int:
    return len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _asked(question: Callable[[], Any]) -> Any:
    """The answer; None where the device or the system has none: no sensor may cost a run."""
    try:
        return question()
    except Exception:  # each system's files, psutil and NVML have exceptions of their own
        return None


def throttles(reasons: int) -> list[str]:
    """NVML's bits as words, without those that are no throttling."""
    return [name for bit, name in THROTTLES.items() if reasons & bit]


def begun(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of one sampler, of which the first says that none was taken right before it."""
    return [{**sample, "begins": True} if k == 0 else sample for k, sample in enumerate(samples)]


def between(samples: Sequence[Sample], spans: Sequence[Span]) -> list[Sample]:
    """The samples of the time from the first span to the last.

    One before and one after are kept where most of what lies between them and the next is of it:
    a process that was stopped in its last step was not stopped after it.
    """
    first, last = spans[0][0], spans[-1][1]
    pairs = [
        (a, b) for a, b in _neighbours(samples) if first <= (a["time"] + b["time"]) / 2 <= last
    ]
    kept = {id(sample) for pair in pairs for sample in pair}
    return [s for s in samples if id(s) in kept or first <= s["time"] <= last]


def _neighbours(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Samples that follow one another, of one sampler: between two of them nothing was read."""
    return [(a, b) for a, b in pairwise(samples) if not b.get("begins")]


# --- summary of the samples --------------------------------------------------------------------


def summary(samples: Sequence[Sample], spans: Sequence[Span], kind: str) -> dict[str, Any]:
    """Means, shares and causes over the timed windows; None for what no sample holds.

    Only samples within a span count, and of counters only differences between neighbours within
    one span: validation and warm-up are left out. Where the spans are too short for that (epochs
    shorter than the sampling interval), and what counts would be less than half of what was timed,
    everything from the first span to the last counts, validation included: enough to see what
    disturbed it, and to compare a CPU's utilization_frac among repeats. Power is None then: it
    would be of both, and energy per image is it over the rate of the steps alone.

    Args:
        samples: in order of time.
        spans: beginning and end of what was timed, seconds of the samples' clock.
        kind: cpu or gpu.

    Returns:
        readings (samples that count), utilization_frac (GPU: the mean share of time in which a
        kernel ran, by the readings before which steps were timed for most of BEFORE_S, None of
        fewer than LEAST_READ of them; CPU: processor time of this process over what all processors
        had), power_w (mean),
        clock_hz, temperature_c (means), device_memory_used_bytes (the most in use on the GPU,
        by anyone), other_load_frac (processor time of others, the hypervisor included, over what
        all processors had), other_processes (most at a time on one of the GPUs besides this one),
        throttled_frac (share of the samples or of their gaps), throttle_reasons, stopped_s (seconds
        of all samples in which the process was stopped, or the machine asleep), limits_changed
        (whether processors or priority of the process were changed in that time), unwatched
        (whether other programs could have been at work unseen for more than UNWATCHED_S of what was
        timed), gpu_unread (whether nothing was read of the GPU). Readings of one GPU of several are
        those of the first, but for other_processes and throttling, which are of them all.
    """
    timed, gaps = _within(samples, joined(spans))
    too_short = sum(b["time"] - a["time"] for a, b in gaps) < sum(b - a for a, b in spans) / 2
    if too_short:
        timed, gaps = _within(samples, [(spans[0][0], spans[-1][1])])
    used, others = _used_frac(gaps), _others_frac(gaps)
    if kind != "cpu":
        steps = [s for s in timed if _timed_s(spans, s["time"] - BEFORE_S, s["time"]) > MOSTLY]
        used = _mean(steps, "utilization") if len(steps) >= LEAST_READ else None
    throttled, reasons = _throttling(timed, gaps)
    processes = _values(timed, "processes")
    return {
        "readings": len(timed),
        "utilization_frac": used,
        "power_w": None if too_short else _power(timed, gaps),
        "clock_hz": _mean(timed, "clock_hz"),
        "temperature_c": _mean(timed, "temperature_c"),
        "device_memory_used_bytes": max(_values(timed, "memory_bytes"), default=None),
        "other_load_frac": others,
        # The process that is measured is one of them, though a container may hide which; where
        # even that one is not listed, nothing is known of others.
        "other_processes": max(processes) - 1 if max(processes, default=0) else None,
        "throttled_frac": throttled,
        "throttle_reasons": reasons,
        "stopped_s": sum(_stopped_s(a, b) for a, b in _neighbours(samples)),
        "limits_changed": any(len(set(_values(samples, n))) > 1 for n in ("cores", "nice")),
        "unwatched": _unwatched_s(samples, spans, others) > UNWATCHED_S,
        "gpu_unread": kind != "cpu" and not any("processes" in s for s in samples),
    }


def _used_frac(gaps: Sequence[tuple[Sample, Sample]]) -> float | None:
    """Processor time of this process over what its processors had; None where it used others too.

    Threads may be bound to other processors than the sampler's, which are the ones that it counts.
    """
    own, capacity = _grown(gaps, "own_cpu_s"), _capacity_s(gaps)
    return own / capacity if capacity and own <= (1 + OTHERS_MATTER) * capacity else None


def _others_frac(gaps: Sequence[tuple[Sample, Sample]]) -> float | None:
    """Processor time of others over what the processors had.

    None where the system's counters hold so much less than what this process used that they would
    hide others as well.
    """
    known = _both(gaps, "busy_cpu_s")
    capacity = _capacity_s(known)
    others = _grown(known, "busy_cpu_s") - _grown(known, "own_cpu_s")
    if not capacity or others < -OTHERS_MATTER * capacity:
        return None
    return max(0.0, others) / capacity


def _unwatched_s(
    samples: Sequence[Sample], spans: Sequence[Span], others_frac: float | None
) -> float:
    """Seconds of what was timed in which no reading tells of other programs.

    Such as those after a sampler's thread ended by an error.
    """
    known = _both(_neighbours(samples), "busy_cpu_s")
    watched = joined([(a["time"], b["time"]) for a, b in known]) if others_frac is not None else []
    timed = joined(spans)
    return sum(b - a for a, b in timed) - sum(_timed_s(timed, a, b) for a, b in watched)


def _capacity_s(gaps: Sequence[tuple[Sample, Sample]]) -> float:
    return sum((b["time"] - a["time"]) * b["processors"] for a, b in gaps)


def _timed_s(spans: Sequence[Span], begin: float, end: float) -> float:
    """Seconds between two moments in which steps were timed."""
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in spans)


def _stopped_s(before: Sample, after: Sample) -> float:
    """Seconds between two samples in which nothing ran, by the clocks."""
    asleep, between, worked = (
        after.get(name, 0.0) - before.get(name, 0.0) for name in ("asleep_s", "time", "own_cpu_s")
    )
    idle = between > STOPPED_S and worked < WORKING * between
    return float((asleep if asleep > INTERVAL_S else 0.0) + (between if idle else 0.0))


def _within(
    samples: Sequence[Sample], spans: Sequence[Span]
) -> tuple[list[Sample], list[tuple[Sample, Sample]]]:
    """The samples in the spans, and the pairs of neighbours that lie in one."""
    runs = [[s for s in samples if begin <= s["time"] <= end] for begin, end in spans]
    gaps = [pair for run in runs for pair in _neighbours(run)]
    return [sample for run in runs for sample in run], gaps


def joined(spans: Sequence[Span]) -> list[Span]:
    """Spans less than 10 ms apart as one: windows are shorter than samples are apart."""
    merged: list[Span] = []
    for begin, end in spans:
        if merged and begin - merged[-1][1] < 0.01:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def _values(samples: Sequence[Sample], name: str) -> list[Any]:
    return [s[name] for s in samples if s.get(name) is not None]


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    values = _values(samples, name)
    return fmean(values) if values else None


def _both(gaps: Sequence[tuple[Sample, Sample]], name: str) -> list[tuple[Sample, Sample]]:
    """The gaps with a reading on both sides."""
    return [(a, b) for a, b in gaps if None not in (a.get(name), b.get(name))]


def _grown(gaps: Sequence[tuple[Sample, Sample]], name: str) -> float:
    return sum(b[name] - a[name] for a, b in gaps)


def _power(timed: Sequence[Sample], gaps: Sequence[tuple[Sample, Sample]]) -> float | None:
    """From the energy counter where there is one, else the mean of the samples of power."""
    # A counter that wraps around falls; such a gap says nothing.
    known = [(a, b) for a, b in _both(gaps, "energy_j") if b["energy_j"] >= a["energy_j"]]
    seconds = sum(b["time"] - a["time"] for a, b in known)
    return _grown(known, "energy_j") / seconds if seconds else _mean(timed, "power_w")


def _throttling(
    timed: Sequence[Sample], gaps: Sequence[tuple[Sample, Sample]]
) -> tuple[float | None, list[str]]:
    causes = _values(timed, "throttled")
    if not causes:
        # A counter may come or go between two samples, as that of a control group does.
        events = [
            (a["throttle_events"], b["throttle_events"]) for a, b in _both(gaps, "throttle_events")
        ]
        shared = [(a, b, a.keys() & b.keys()) for a, b in events]
        causes = [[name for name in names if b[name] > a[name]] for a, b, names in shared if names]
    if not causes:
        return None, []
    reasons = sorted({reason for names in causes for reason in names})
    return sum(bool(names) for names in causes) / len(causes), reasons


# --- memory ----------------------------------------------------------------------------------


def peak_memory_bytes(kind: str) -> int | None:
    """Largest memory so far: of the backend's allocator on a GPU, of this process on a CPU."""
    if kind == "gpu":
        return backends.current().peak_memory_bytes()
    # VmHWM, not ru_maxrss, which keeps the size of the parent that the process came from.
    status = Path("/proc/self/status")
    if status.exists():
        peak = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(peak[0].split()[1]) * 1024
    info = psutil.Process().memory_info()
    return int(getattr(info, "peak_wset", info.rss))
