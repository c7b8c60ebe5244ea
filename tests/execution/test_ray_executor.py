"""Sweeps on real Ray clusters of several nodes, whose devices are pretended."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import PATIENCE_S, PROJECT, Gate, mptexp, processes_of, records, started, until

from mptexp.errors import ParamsError
from mptexp.execution import plan, ray_cluster, ray_executor
from mptexp.execution.plan import Planned
from mptexp.execution.ray_cluster import Place
from mptexp.host.devices import cpu_name
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.run import Run

pytest.importorskip("ray")

# Ray takes 127.0.0.1 as it stands only with this switch: see ray_cluster.OWN.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}


class Nodes:
    """A cluster in a child process: two nodes with a V100, one with an A100."""

    def __init__(self, folder):
        self.folder = folder  # where its nodes keep their temporary files
        self.gate = Gate(folder / "gate")
        own = {"TMPDIR": str(folder), "MPTEXP_TEST_GATE": str(self.gate.folder)}
        own["PYTHONPATH"] = ray_cluster.HIDING
        self.child = subprocess.Popen(
            [sys.executable, str(PROJECT / "tests/ray_cluster.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **LOOPBACK, **own, "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
        for line in ("add A100 a1", "add V100 v1", "add V100 v2"):
            self.tell(line)

    def tell(self, line):
        print(line, file=self.child.stdin, flush=True)
        self.address = self.child.stdout.readline().strip()
        assert self.address

    def words(self, *words):
        how = ["--executor", "ray", "--address", self.address, "--no-report"]
        return ["run", "light.yaml", *how, *words]

    def run(self, *words, cwd):
        return mptexp(*self.words(*words), cwd=cwd, **LOOPBACK)

    def start(self, *words, cwd):
        return started(*self.words(*words), cwd=cwd, **LOOPBACK)

    def at_work(self):
        """Names of the nodes on which runs wait at the gate."""
        names = set()
        for pid in self.gate.waiting():
            with suppress(psutil.Error):  # its node was killed meanwhile
                names.add(psutil.Process(pid).environ()["NODE"])
        return names

    def end(self):
        self.child.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def nodes():
    # A short path: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="mpt", dir="/tmp", ignore_cleanup_errors=True) as short:
        made = Nodes(Path(short))
        yield made
        made.end()


@pytest.fixture
def noted(light, tmp_path):
    """The light notebook, which also notes on which node it ran."""
    path = tmp_path / "light.py"
    text = path.read_text()
    path.write_text(text.replace('"history": [],', '"history": [], "on": os.environ.get("NODE"),'))
    assert path.read_text() != text
    return light


def content(folder):
    return {p: p.read_bytes() for p in (folder / "reports/light/runs").rglob("*") if p.is_file()}


def test_each_run_goes_to_a_node_of_its_model(noted, nodes, tmp_path):
    where = {"gpu_model": "A100", "dataset": "folder:/no/such/folder"}
    noted({"gpu_model": ["V100", "A100"]}, repeats=2, include=[where])
    done = nodes.run("--retries", "1", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1 + 6 + 1  # nothing of Ray's own
    sweep, _ = params.read(tmp_path / "light.yaml")
    assert {r["run_id"] for r in records(tmp_path)} == {r.run_id("light.py") for r in sweep.runs()}
    for record in records(tmp_path):
        if record["parameters"]["dataset"] != "digits":  # no node has it
            assert record["status"] == "failed"
            assert "/no/such/folder" in record["error"]
            assert record["marks"] == ["attempt 2, after others had failed"]
            continue
        assert record["status"] == "ok"
        assert record["on"][0] == ("v" if record["parameters"]["gpu_model"] == "V100" else "a")
        assert record["seen"] == "0"  # the one GPU that Ray has given it
        folder = tmp_path / "reports/light/runs" / record["run_id"]
        assert {p.name for p in folder.iterdir()} == {"record.json", "notebook.ipynb"}
    # What is finished needs no cluster.
    nowhere = ["--executor", "ray", "--address", "127.0.0.1:1", "--no-report"]
    again = mptexp("run", "light.yaml", "--only", "dataset=digits", *nowhere, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "4 of 4 runs are done already" in again.stdout


def test_the_same_runs_end_as_locally(light, nodes, tmp_path):
    light({"seed": [0, 1]})  # ok, failed; on this machine's CPU
    here = mptexp("run", "light.yaml", "--no-report", "--out", "reports/local", cwd=tmp_path)
    there = nodes.run(cwd=tmp_path)
    assert (here.returncode, there.returncode) == (1, 1)
    local, brought = records(tmp_path, "local"), records(tmp_path)
    same = ("run_id", "parameters", "status", "error")
    assert [[r[n] for n in same] for r in brought] == [[r[n] for n in same] for r in local]
    assert [set(r) for r in brought] == [set(r) for r in local]


def test_what_the_cluster_cannot_do_is_refused_at_once(light, nodes, tmp_path):
    light({"gpu_model": ["V100", "T4", "H200"]})
    done = nodes.run(cwd=tmp_path)
    assert done.returncode == 2
    assert "gpu_model H200, T4: the Ray cluster" in done.stderr
    assert f"allowed: {', '.join(sorted(['A100', 'V100', cpu_name()]))}" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_runs_outlive_their_nodes(noted, nodes, tmp_path):
    noted({"gpu_model": ["V100"], "seed": [13]}, repeats=3)
    with nodes.start(cwd=tmp_path) as sweep:
        until(lambda: nodes.at_work() == {"v1", "v2"})
        nodes.tell("kill v1")
        until(lambda: nodes.at_work() == {"v2"})
        nodes.gate.let(2)
        while "[2/3]" not in (line := sweep.stdout.readline()):
            assert line
        until(lambda: nodes.at_work() == {"v2"})
        nodes.tell("kill v2")
        assert sweep.wait(PATIENCE_S) == 1
        message = "no node with V100 is left in the Ray cluster: 1 run not executed"
        assert message in sweep.stderr.read()
    assert [(r["status"], r["on"]) for r in records(tmp_path)] == [("ok", "v2")] * 2
    marks = [mark for r in records(tmp_path) for mark in r["marks"]]
    assert marks == ["started 2 times: its node was lost"]
    until(lambda: not processes_of(nodes.folder))


def test_a_driver_that_ends_leaves_no_process_and_the_next_goes_on(light, nodes, tmp_path):
    light({"gpu_model": ["A100"], "seed": [13, 14]})
    nodes.gate.let(1)
    with nodes.start(cwd=tmp_path) as sweep:
        while "[1/2]" not in (line := sweep.stdout.readline()):
            assert line
        until(nodes.at_work)
        sweep.send_signal(signal.SIGTERM)
        assert sweep.wait(PATIENCE_S) == 130
        said = sweep.stderr.read()
    assert said == "stopped: 1 of 2 runs finished and kept; the same command goes on\n"
    until(lambda: not processes_of(nodes.folder))
    before = content(tmp_path)
    order = [p.run.seed for p in _plan(tmp_path)]  # the sweep has drawn it
    assert [r["parameters"]["seed"] for r in records(tmp_path)] == order[:1]

    with nodes.start(cwd=tmp_path) as sweep:
        until(nodes.at_work)
        sweep.kill()
    until(lambda: not processes_of(nodes.folder))
    assert content(tmp_path) == before
    nodes.gate.let(1)
    done = nodes.run(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are done already" in done.stdout
    assert {r["status"] for r in records(tmp_path)} == {"ok"}
    assert before.items() <= content(tmp_path).items()


WAITING = """\
import os, sys, time
from mptexp.execution import ray_cluster
ray_cluster.connect(sys.argv[1], ["V100"])
try:
    ray_cluster.answer(lambda: [print("asked", flush=True), time.sleep(3600)])
except ray_cluster.HeadLost:
    print("lost", flush=True)
os._exit(0)
"""


def test_a_lost_head_is_a_sentence_at_once(light, nodes, tmp_path):  # no test has nodes after it
    light({"gpu_model": ["V100"], "seed": [13, 14]})
    nodes.tell("add V100 v3")
    waiting = subprocess.Popen(  # a call that the loss of the head finds on its way
        [sys.executable, "-c", WAITING, nodes.address],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **LOOPBACK},
    )  # fmt: skip
    assert waiting.stdout.readline() == "asked\n"
    with nodes.start(cwd=tmp_path) as sweep:
        until(nodes.at_work, of=sweep)
        nodes.tell("kill a1")
        _, said = sweep.communicate(timeout=PATIENCE_S)
        assert sweep.returncode == 1, said
    assert waiting.communicate(timeout=PATIENCE_S)[0] == "lost\n"
    lines = said.splitlines()
    assert len(lines) == 1, lines
    assert "the head of the Ray cluster does not answer any more: 2 runs not executed" in lines[0]
    assert "the same command goes on" in lines[0]


def _plan(folder):
    sweep, _ = params.read(folder / "light.yaml")
    return plan.runs(sweep, SweepDir(folder / "reports/light"), everywhere=True)


def test_a_real_training_on_a_ray_of_its_own(tmp_path):
    # No address: Ray is started for this sweep and ends with it.
    (tmp_path / "x.yaml").write_text(
        "defaults: {dataset: digits, image_size: 8, width: 0.125}\nmatrix: {max_steps: [7]}\n"
    )
    words = ("run", "x.yaml", "--executor", "ray", "--no-report")
    token = Path.home() / ".ray/auth_token"
    had = token.exists()
    with started(*words, cwd=tmp_path) as sweep:
        until(lambda: _named(sweep, "raylet"))
        children = psutil.Process(sweep.pid).children(recursive=True)
        until(lambda: _listening(children))
        assert {place.ip.removeprefix("::ffff:") for place in _listening(children)} == {"127.0.0.1"}
        assert (sweep.wait(PATIENCE_S), sweep.stderr.read()) == (0, "")
    assert token.exists() == had
    (record,) = records(tmp_path, "x")
    assert record["status"] == "ok", record["error"]
    assert record["environment"]["device"] == cpu_name()
    assert "OMP_NUM_THREADS" not in record["environment"]["variables"]
    assert not psutil.wait_procs(children, PATIENCE_S)[1]


def _named(sweep, name):
    names = []
    for child in psutil.Process(sweep.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            names.append(child.name())
    return any(name in other for other in names)


def _listening(children):
    connections = []
    for child in children:
        with suppress(psutil.Error):  # it has ended meanwhile
            connections += child.net_connections("inet")
    return [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]


def test_data_is_prepared_once_per_node(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = Run(dataset=f"folder:{tree}", image_size=8)
    ray_executor._prepare(run, None, "call")
    shutil.rmtree(tree)
    ray_executor._prepare(run, None, "call")
    for _ in range(2):
        with pytest.raises(ParamsError, match="dataset folder:"):
            ray_executor._prepare(run, None, "another call")


def test_which_runs_can_start():
    gpus, cpu = Place("A100", 8, 4), Place("AMD EPYC (CPU)", 1, 1, "n1", 16)
    runs = [Run(gpu_model=m, replicas=n) for m, n in [("A100", 4), ("A100", 16), ("A100", 1)]]
    runs += [Run(gpu_model="AMD EPYC (CPU)"), Run(gpu_model="AMD EPYC (CPU)", seed=1)]
    waiting = [Planned(str(n), run, "pending") for n, run in enumerate(runs)]
    startable = ray_executor._startable(waiting, [], [gpus, cpu])
    assert [(p.run_id, place.takes(p.run)) for p, place in startable] == [
        ("0", 4),
        ("1", 4),
        ("3", 1),
    ]
    # The second one needs what the third would take: it must not wait for ever.
    busy = [(waiting[0], gpus)]
    left = ray_executor._startable(waiting[1:], [*busy, (waiting[3], cpu)], [gpus, cpu])
    assert [p.run_id for p, _ in left] == ["1"]
    assert cpu.fits("AMD EPYC (CPU)")
    assert not cpu.fits("AMD EPYC 9B45 (CPU)")
    assert gpus.fits("NVIDIA A100-SXM4-40GB")
    assert not gpus.fits("NVIDIA A10")
