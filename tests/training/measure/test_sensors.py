"""Samples of this machine, and of GPUs through NVML's own binding over a library made here."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import ONE_GPU, PROJECT, nvml_library, until

from mptexp.records import interference
from mptexp.training.measure import sensors

SAMPLES = PROJECT / "tests/nvml"


def sample(at, own=0.0, busy=0.0, **more):
    return {"time": at, "own_cpu_s": own, "busy_cpu_s": busy, "processors": 2, **more}


def recorded(name):
    return json.loads((SAMPLES / f"{name}.json").read_text())


BUSY_S = 0.5  # of a processor: enough for the system's counters, which tick every 10 ms


def grown(samples, name):
    return samples[-1][name] - samples[0][name]


# In a process that has no children but those it starts itself: a test's has others.
SAMPLED = """
import json, multiprocessing, subprocess, sys, time
from mptexp.training.measure import sensors

def burn():
    end = time.process_time() + float(sys.argv[2])
    while time.process_time() < end:
        pass

if __name__ == "__main__":
    began = time.process_time()
    with sensors.Sampler("cpu", interval_s=0.05) as sampler:
        while not sampler.samples:
            time.sleep(0.01)
        if sys.argv[1] == "itself":
            burn()
        if sys.argv[1] == "loaders":
            working = [multiprocessing.Process(target=burn) for _ in range(2)]
            for one in working:
                one.start()
            for one in working:
                one.join()
        if sys.argv[1] == "programs":
            command = [sys.executable, sys.argv[0], "itself", sys.argv[2]]
            for one in [subprocess.Popen(command, stdout=-3) for _ in range(2)]:
                one.wait()
    print(json.dumps([sampler.samples, time.process_time() - began]))
"""


@pytest.fixture
def sampled(tmp_path):
    (tmp_path / "sampled.py").write_text(SAMPLED)

    def of(who):
        command = [sys.executable, str(tmp_path / "sampled.py"), who, str(BUSY_S)]
        return json.loads(subprocess.check_output(command))

    return of


def test_a_busy_process_is_seen_as_this_one(sampled):
    # Seconds of a processor, which are the same however many others want it too.
    samples, used = sampled("itself")
    assert BUSY_S <= grown(samples, "own_cpu_s") <= used
    assert grown(samples, "busy_cpu_s") > 0.5 * BUSY_S
    found = sensors.summary(samples, [(samples[0]["time"], samples[-1]["time"])], "cpu")
    assert found["readings"] == len(samples)
    capacity = grown(samples, "time") * (os.cpu_count() or 1)
    assert found["utilization_frac"] == pytest.approx(grown(samples, "own_cpu_s") / capacity)
    for name in ("power_w", "device_memory_used_bytes", "other_processes"):
        assert found[name] is None or found[name] > 0


def test_another_program_is_seen_as_another_though_it_was_started_from_here(sampled):
    samples, used = sampled("programs")
    assert grown(samples, "own_cpu_s") <= used
    others = grown(samples, "busy_cpu_s") - grown(samples, "own_cpu_s")
    assert others > 0.5 * 2 * BUSY_S
    found = sensors.summary(samples, [(samples[0]["time"], samples[-1]["time"])], "cpu")
    capacity = grown(samples, "time") * (os.cpu_count() or 1)
    assert found["other_load_frac"] == pytest.approx(others / capacity)


def test_the_processes_that_load_the_data_are_no_other_program(sampled):
    # The lie: "measured while other programs used the processor", of a script's own loaders.
    samples, used = sampled("loaders")
    own = [sample["own_cpu_s"] for sample in samples]
    assert own == sorted(own)
    # What they did after they were last read, 0.05 s before they ended, is not known.
    assert own[-1] - own[0] - used > 0.5 * 2 * BUSY_S
    assert any(0.1 < value - own[0] < 0.5 * (own[-1] - own[0]) for value in own)  # as they work


def test_only_what_was_timed_counts():
    # Idle until 1 and from 3; a validation between.
    own = {0.0: 0.0, 1.0: 0.0, 1.5: 0.5, 2.0: 1.0, 2.5: 9.0, 3.0: 9.0, 3.5: 9.5}
    samples = [sample(at, value, value) for at, value in own.items()]
    found = sensors.summary(samples, [(1.0, 1.6), (1.6, 2.0), (3.0, 3.6)], "cpu")
    assert found["readings"] == 5
    assert found["utilization_frac"] == pytest.approx(1.5 / (1.5 * 2))
    assert found["other_load_frac"] == 0


def test_epochs_shorter_than_the_interval_are_not_left_unread():
    # Another program holds one of two processors; each epoch is 0.2 s, a sample every 0.25 s.
    samples = [sample(0.25 * k, 0.2 * k, 0.45 * k) for k in range(20)]
    spans = [(0.01 + 0.3 * k, 0.21 + 0.3 * k) for k in range(15)]
    found = sensors.summary(samples, spans, "cpu")
    assert found["other_load_frac"] == pytest.approx(0.5)
    assert interference.marks(found) == ["measured while other programs used the processor"]


def test_power_of_epochs_shorter_than_the_interval_is_not_that_of_their_validation():
    # 600 W in steps of 0.2 s, 150 W in the 0.3 s of validation after each: 330 W was said, and
    # energy per image was that over the rate of the steps alone.
    def joules(at):
        epochs, rest = divmod(at, 0.5)
        return epochs * (0.2 * 600 + 0.3 * 150) + 600 * min(rest, 0.2) + 150 * max(0.0, rest - 0.2)

    spans = [(0.5 * k, 0.5 * k + 0.2) for k in range(40)]
    samples = [
        sample(0.25 * k, 0.2 * k, 0.2 * k, energy_j=joules(0.25 * k), throttled=["power cap"])
        for k in range(80)
    ]
    for kind in ("cpu", "gpu"):
        found = sensors.summary(samples, spans, kind)
        assert found["power_w"] is None
        assert found["throttle_reasons"] == ["power cap"]
        assert found["other_load_frac"] == pytest.approx(0)
    long = sensors.summary(samples, [(0.0, 19.75)], "cpu")
    assert long["power_w"] == pytest.approx(330, rel=0.05)


def test_one_gap_within_a_window_does_not_stand_for_all_that_was_timed():
    # A run was refused as edited: its one gap was quiet, and its samples showed 0.32 of others.
    spans = [(0.0, 0.3), *((0.315 + 0.255 * k, 0.555 + 0.255 * k) for k in range(22))]
    samples = [sample(0.01 + 0.25 * k, 0.25 * k, 0.25 * k + 0.2 * max(0, k - 1)) for k in range(24)]
    found = sensors.summary(samples, spans, "cpu")
    assert found["other_load_frac"] > 0.3


STOPPED = """
import json, sys, time
from mptexp.records import interference
from mptexp.training.measure import sensors
with sensors.Sampler("cpu", interval_s=0.05) as sampler:
    while not sampler.samples:
        time.sleep(0.01)
    print("ready", flush=True)
    end = time.process_time() + 1.0
    while time.process_time() < end:
        pass
samples = sampler.samples
lasted, worked = (samples[-1][name] - samples[0][name] for name in ("time", "own_cpu_s"))
summary = sensors.summary(sampler.samples, [(sampler.samples[0]["time"], 1e9)], "cpu")
print(json.dumps([summary["stopped_s"], interference.marks(summary), lasted - worked]))
"""


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_process_that_was_stopped_says_so(seconds):
    # The lie: 45 s of nothing in a training, explained by an input pipeline that closes.
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        if seconds:
            child.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            child.send_signal(signal.SIGCONT)
        stopped_s, marks, waited_s = json.loads(child.stdout.read())
    named = [mark for mark in marks if "was stopped" in mark]
    assert bool(named) == (stopped_s > 0)
    # Other programs may keep it from its processor, too: it is never said to be stopped for longer
    # than it did not work, but for the share that a process that is stopped may work between.
    assert seconds <= stopped_s <= max(0, waited_s) * (1 + 2 * sensors.WORKING)
    assert waited_s > sensors.STOPPED_S or stopped_s == 0


def test_a_machine_that_slept_says_so():
    # Its clock for intervals stands still meanwhile, that since the start does not.
    samples = [sample(0.25 * k, 0.2 * k, asleep_s=45.0 * (k > 3)) for k in range(8)]
    found = sensors.summary(samples, [(0.0, 2.0)], "cpu")
    assert found["stopped_s"] == 45.0
    assert "machine asleep (45 s)" in " ".join(interference.marks(found))


def test_a_sampler_that_was_off_is_no_process_that_was_stopped():
    # The lie: "measured while the process was stopped (60 s)", between two trainings of a timer.
    first = [sample(0.25 * k, 0.2 * k) for k in range(8)]
    second = [sample(60 + 0.25 * k, 2 + 0.2 * k) for k in range(8)]
    spans = [(0.0, 1.75), (60.0, 61.75)]
    assert sensors.summary([*first, *second], spans, "cpu")["stopped_s"] > 58
    apart = [*sensors.begun(first), *sensors.begun(second)]
    assert sensors.summary(apart, spans, "cpu")["stopped_s"] == 0


def test_samples_are_of_the_time_between_the_first_step_and_the_last():
    samples = [sample(time) for time in (0.0, 0.9, 1.1, 2.0, 5.0, 5.2, 9.0)]
    kept = sensors.between(samples, [(1.0, 2.0), (3.0, 5.05)])
    assert [s["time"] for s in kept] == [0.9, 1.1, 2.0, 5.0]
    stopped = sensors.between([sample(t) for t in (1.0, 1.2, 5.1, 5.2)], [(0.0, 5.0)])
    assert [s["time"] for s in stopped] == [1.0, 1.2, 5.1]  # in the last step


def test_other_processors_or_another_priority_halfway_are_said():
    samples = [sample(0.25 * k, 0.2 * k, cores=2 if k < 4 else 1, nice=0) for k in range(8)]
    found = sensors.summary(samples, [(0.0, 2.0)], "cpu")
    assert "were changed" in " ".join(interference.marks(found))


def test_a_reading_that_fails_costs_nothing(monkeypatch):
    def fails():
        raise NotImplementedError("can't find current frequency file")

    monkeypatch.setattr(sensors.psutil, "cpu_freq", fails)
    with sensors.Sampler("cpu", interval_s=0.01) as sampler:
        time.sleep(0.05)
    assert len(sampler.samples) >= 2
    assert sampler.samples[0]["clock_hz"] is None


def test_a_sensor_that_fails_as_nobody_foresaw_leaves_the_others_and_no_quiet_machine(monkeypatch):
    def fails(percpu):
        raise IndexError("list index out of range")

    monkeypatch.setattr(sensors.psutil, "cpu_times", fails)
    with sensors.Sampler("cpu", interval_s=0.01) as sampler:
        until(lambda: len(sampler.samples) > 3)
    assert sampler.samples[-1]["busy_cpu_s"] is None
    assert sampler.samples[-1]["own_cpu_s"] > 0
    samples = [{**read, "time": float(at)} for at, read in enumerate(sampler.samples)]
    found = sensors.summary(samples, [(0.0, samples[-1]["time"])], "cpu")
    assert found["other_load_frac"] is None
    assert "nothing watched for other programs" in " ".join(interference.marks(found))


def test_a_sampler_that_died_is_no_quiet_machine():
    samples = [sample(0.25 * k, 0.2 * k, 0.2 * k) for k in range(40)]
    assert interference.marks(sensors.summary(samples, [(0.0, 9.75)], "cpu")) == []
    assert interference.marks(sensors.summary(samples[:38], [(0.0, 9.75)], "cpu")) == []
    for last in (1, 2, 20):
        found = sensors.summary(samples[:last], [(0.0, 5.0), (5.2, 9.75)], "cpu")
        marks = interference.marks(found)
        assert marks == ["measured while nothing watched for other programs"], last


def test_counters_that_lack_the_measured_process_tell_nothing_of_others():
    # The sampler was bound to two processors, the training to four; nought was said of others.
    samples = [sample(0.25 * k, k, 0.5 * k) for k in range(20)]
    found = sensors.summary(samples, [(0.0, 4.75)], "cpu")
    assert (found["other_load_frac"], found["utilization_frac"]) == (None, None)
    assert interference.marks(found) == ["measured while nothing watched for other programs"]


def test_nothing_is_made_up():
    found = sensors.summary([sample(0.0)], [(5.0, 6.0)], "gpu")
    assert (found.pop("unwatched"), found.pop("gpu_unread")) == (False, True)
    assert found.pop("readings") == 0
    assert found.pop("throttle_reasons") == []
    stopped = {name: found.pop(name) for name in ("stopped_s", "limits_changed")}
    assert stopped == {"stopped_s": 0, "limits_changed": False}
    assert set(found.values()) == {None}
    assert interference.marks(found | stopped | {"throttle_reasons": []}) == []


def test_power_comes_from_the_energy_counter():
    joules = {0.0: 100.0, 1.0: 400.0, 2.0: 10.0, 3.0: 310.0}  # the counter wraps around once
    samples = [sample(at, energy_j=j, power_w=1.0) for at, j in joules.items()]
    assert sensors.summary(samples, [(0, 3)], "gpu")["power_w"] == pytest.approx(300)
    without = [sample(at, energy_j=None, power_w=70.0) for at in joules]
    assert sensors.summary(without, [(0, 3)], "gpu")["power_w"] == pytest.approx(70)


@pytest.mark.parametrize(
    ("reasons", "names"),
    [
        (0x1, []),  # idle
        (0x2, []),  # clocks that somebody set
        (0x4, ["power cap"]),
        (0x60, ["software thermal slowdown", "hardware thermal slowdown"]),
    ],
)
def test_reasons_that_are_throttling(reasons, names):
    assert sensors.throttles(reasons) == names


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("quiet", []),
        ("throttled", ["measured while the device was throttled (power cap)"]),
        ("shared", ["measured while other processes used the GPU"]),
    ],
)
def test_samples_of_a_gpu(name, marks):
    samples = recorded(name)
    span = [(samples[0]["time"], samples[-1]["time"])]
    found = sensors.summary(samples, span, "gpu")
    assert interference.marks(found) == marks
    assert found["utilization_frac"] == pytest.approx(0.9, abs=0.1)
    assert found["power_w"] > 100
    assert found["device_memory_used_bytes"] > 2**30


def test_what_a_gpu_did_before_the_steps_is_not_its_utilization_while_timed():
    # As an H200 was read: each reading is the driver's mean of up to a second before it.
    shares = [0.01, 0.3, 0.81, 0.81, 0.83, 0.83, 0.83, 0.83]
    samples = [sample(0.25 * k, utilization=share) for k, share in enumerate(shares)]
    found = sensors.summary(samples, [(0.0, 2.0)], "gpu")
    assert found["utilization_frac"] == pytest.approx(0.83)
    short = sensors.summary(samples, [(0.2, 1.0)], "gpu")
    assert (short["readings"], short["utilization_frac"]) == (4, None)


def test_nor_is_what_it_did_in_validation():
    # Ten epochs of 2 s, each followed by 2 s in which it waits: 0.46 was said of steps at 0.85.
    def share(at):
        steps = [max(0.0, min(at, 4.0 * k + 2) - max(at - 1, 4.0 * k)) for k in range(10)]
        return 0.05 + 0.8 * sum(steps)

    samples = [sample(0.25 * k, utilization=share(0.25 * k)) for k in range(160)]
    spans = [(4.0 * k, 4.0 * k + 2) for k in range(10)]
    assert sensors.summary(samples, spans, "gpu")["utilization_frac"] == pytest.approx(0.85)


def test_a_throttled_processor_is_marked():
    before, after = ({"too hot": n, "the container's processor limit": 5} for n in (3, 4))
    samples = [sample(0.0, throttle_events=before), sample(1.0, throttle_events=after)]
    found = sensors.summary(samples, [(0, 1)], "cpu")
    assert found["throttled_frac"] == 1
    assert interference.marks(found) == ["measured while the device was throttled (too hot)"]


@pytest.mark.parametrize(
    ("counters", "share", "reasons"),
    [
        # Each of these cost a run its record, after the training.
        ([{"too hot": 0}, {"too hot": 0}, None, {"too hot": 1}, {"too hot": 2}], 0.5, ["too hot"]),
        ([{"too hot": 0}, {"too hot": 0, "limit": 3}, {"too hot": 0, "limit": 4}], 0.5, ["limit"]),
        ([{"too hot": 0, "limit": 3}, {"too hot": 0}, {"too hot": 0}], 0, []),
        ([None, {"too hot": 0}, {"too hot": 1}], 1, ["too hot"]),
        ([None, {}, {}], None, []),
    ],
)
def test_a_throttle_counter_that_comes_or_goes_costs_nothing(counters, share, reasons):
    samples = [sample(float(at), throttle_events=events) for at, events in enumerate(counters)]
    found = sensors.summary(samples, [(0, len(counters))], "cpu")
    assert (found["throttled_frac"], found["throttle_reasons"]) == (share, reasons)


def test_energy_and_throttle_counters_of_a_cpu(tmp_path):
    zones = [("0", "package-0", 5_000_000), ("0:0", "core", 7), ("1", "package-1", 1)]
    for number, name, joules in [*zones, ("2", "psys", 9_000_000)]:
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "energy_uj").write_text(f"{joules}\n")
        (zone / "name").write_text(f"{name}\n")
    assert sensors._rapl_j(tmp_path) == pytest.approx(5.000001)
    assert sensors._rapl_j(tmp_path / "absent") is None
    (tmp_path / "intel-rapl:1/energy_uj").write_text("not a number")
    assert sensors._asked(lambda: sensors._rapl_j(tmp_path)) is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 1\nnr_throttled 12\n")
    found = sensors._throttle_events(tmp_path)
    assert found == {"the container's processor limit": 12}


def ask(nvml, program):
    known = os.environ | {"LD_LIBRARY_PATH": str(nvml)}
    command = [
        sys.executable,
        "-c",
        f"import json; from mptexp.training.measure import sensors; {program}",
    ]
    return subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout


def test_nvml_is_read_through_its_own_binding(nvml):
    told = json.loads(ask(nvml, "print(json.dumps(sensors.reader('gpu')()))"))
    assert told["utilization"] == 0.87
    assert told["memory_bytes"] == 2**30
    assert told["power_w"] is None  # not supported
    assert told["energy_j"] == pytest.approx(123.456)
    assert told["clock_hz"] == 1.98e9
    assert told["temperature_c"] == 61
    assert told["throttled"] == ["power cap"]
    assert told["processes"] == 0
    assert told["own_cpu_s"] > 0


# Of two GPUs the second is too hot, and two programs run on it beside this one.
TWO_GPUS = (
    ONE_GPU.replace("*n = 1; return 0;", "*n = 2; return 0;")
    .replace("*h = (void *)1; return i ? 2 : 0;", "*h = (char *)1 + i; return i > 1 ? 2 : 0;")
    .replace("*r = 0x4; return 0;", "*r = h == (void *)2 ? 0x40 : 0; return 0;")
    .replace(
        "*n = 0; return 0;",
        "if (!*n) { *n = 3; return 7; /* too small */ } *n = h == (void *)2 ? 3 : 1; return 0;",
    )
)


@pytest.mark.parametrize(
    ("visible", "throttled", "processes"),
    [("0,1", ["hardware thermal slowdown"], 3), ("0", [], 1)],
)
def test_what_disturbs_any_gpu_of_a_run_is_seen(
    tmp_path, monkeypatch, visible, throttled, processes
):
    nvml = nvml_library(tmp_path, TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told = json.loads(ask(nvml, "print(json.dumps(sensors.reader('gpu')()))"))
    assert (told["throttled"], told["processes"]) == (throttled, processes)


def test_a_gpu_that_is_not_known_is_not_read(tmp_path):
    # CUDA's first is the fastest; the readings were those of NVML's first.
    named = 'name = h == (void *)2 ? "NVIDIA T400" : "NVIDIA H100"'
    nvml = nvml_library(tmp_path, TWO_GPUS.replace('name = "NVIDIA H100"', named))
    program = "print(json.dumps(sensors.summary([sensors.reader('gpu')()] * 2, [(0, 1)], 'gpu')))"
    found = json.loads(ask(nvml, program.replace("[sensors", "[{'time': 0.5} | sensors")))
    assert found["device_memory_used_bytes"] is None
    assert "measured without any reading of its GPU" in " ".join(interference.marks(found))


def test_a_gpu_that_does_not_exist_is_refused_in_a_sentence(nvml):
    folder = nvml / "user"
    folder.mkdir()
    (folder / "x.yaml").write_text("matrix: {policy: [float32]}\n")
    command = [sys.executable, "-m", "mptexp", "plan", "x.yaml"]
    known = os.environ | {"LD_LIBRARY_PATH": str(nvml), "CUDA_VISIBLE_DEVICES": "7"}
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True)
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES is 7; allowed: numbers below 1" in done.stderr
    assert "Traceback" not in done.stderr
    known["CUDA_VISIBLE_DEVICES"] = "0"
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PEAK = """
import numpy as np
from mptexp.training.measure import sensors
before = sensors.peak_memory_bytes("cpu")
block = np.ones(2**25)
print(sensors.peak_memory_bytes("cpu") - before)
"""


def test_peak_memory_is_of_this_process():
    parents = np.ones(2**26)  # which a process that came from this one must not count as its own
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 2**27 <= int(done.stdout) <= 2**29 <= parents.nbytes


def test_other_programs_are_counted_on_the_processors_that_a_run_may_use():
    # 6 % of 64 processors, of a program that holds the four that a run is bound to.
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        one = sensors.processor()
    finally:
        os.sched_setaffinity(0, allowed)
    assert (one["processors"], sensors.processor()["processors"]) == (1, len(allowed))
    assert one["busy_cpu_s"] <= sensors.processor()["busy_cpu_s"]


def proc_stat(root, busy_s):
    """A /proc/stat that lists these processors alone, each with its seconds of work."""
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{k} {int(s * ticks)} 0 0 9 0 0 0 0 0 0\n" for k, s in busy_s.items()]
    (root / "stat").write_text(f"cpu  1 0 0 9 0 0 0 0 0 0\n{''.join(lines)}intr 9 0\n")


def test_a_processor_that_is_offline_shifts_no_other(tmp_path, monkeypatch):
    # With the siblings 1, 3, 5 and 7 off, a run on 4 and 6 was told of all four, one on 0 and 2
    # of 0 and 4, and one on all of them of two.
    proc_stat(tmp_path, {0: 1, 2: 20, 4: 300, 6: 4000})
    monkeypatch.setattr(sensors.psutil, "PROCFS_PATH", str(tmp_path))
    for allowed, busy_s in (({4, 6}, 4300), ({0, 2}, 21), ({0, 2, 4, 6}, 4321), ({2}, 20)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, allowed=allowed: allowed)
        read = sensors.processor()
        assert (read["busy_cpu_s"], read["processors"]) == (busy_s, len(allowed))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert sensors.processor()["busy_cpu_s"] is None


def test_processors_that_a_container_numbers_anew_are_all_its_own(tmp_path, monkeypatch):
    proc_stat(tmp_path, {0: 1, 1: 20})
    monkeypatch.setattr(sensors.psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 6})
    assert sensors.processor()["busy_cpu_s"] == 21


def test_a_list_without_even_the_measured_process_tells_nothing_of_others():
    samples = [sample(at, processes=0) for at in (0.0, 1.0)]
    assert sensors.summary(samples, [(0.0, 1.0)], "gpu")["other_processes"] is None
    samples = [sample(at, processes=3) for at in (0.0, 1.0)]
    assert sensors.summary(samples, [(0.0, 1.0)], "gpu")["other_processes"] == 2


def test_a_quota_of_the_first_kind_of_control_groups_is_read(tmp_path):
    place = tmp_path / "sys/fs/cgroup/cpu"
    place.mkdir(parents=True)
    (place / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\n")
    assert sensors._throttle_events(tmp_path) == {"the container's processor limit": 4}
    # A group within it has a limit of its own, of which the one above counts nothing.
    (place / "job").mkdir()
    (place / "job/cpu.stat").write_text("nr_periods 9\nnr_throttled 3\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("2:cpu:/job\n")
    assert sensors._throttle_events(tmp_path) == {"the container's processor limit": 7}
