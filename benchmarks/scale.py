"""What a large sweep costs before its first kernel and after its last one.

    python benchmarks/scale.py [--runs 10000] [--shape blocks] [--notebooks] [--keep DIR]
    python benchmarks/scale.py --published [quickstart-cpu]

Makes records of a sweep from a real one (windows, history, samples, readings, work, environment,
identity; 13 kB each), in a temporary folder, with other numbers in each. Shapes: `blocks` are 8
networks, 25 batch sizes, 5 policies and as many blocks as give the runs; `points` are so many
points, each measured once, with several learning rates in place of blocks; `settings` are 2 batch
sizes and 5 policies at very many learning rates. Every step is a process of its own; printed are
its seconds and the most memory that it and its children held together (resident set sizes, every
50 ms).

    plan        `mptexp plan`, nothing executed yet
    plan, done  `mptexp plan`, every run but one executed
    resume      `mptexp run` from its start to that of the one kernel that is left to do
    nothing     `mptexp run --no-report` with nothing left to do
    collect     sweep_tables.load: all records into tables
    report      `mptexp report`; then the sizes of its page, and what a browser needs to open it

With --published it is a sweep as people have it: `mptexp --help`, `mptexp plan` of its params file,
and `mptexp report` of a copy, three times each.
"""

import argparse
import base64
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import psutil

from mptexp.execution import plan
from mptexp.records import store, timed_windows
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.timed_windows import Window
from mptexp.spec import params
from mptexp.spec.run import Run

PROJECT = Path(__file__).resolve().parent.parent
PUBLISHED = PROJECT / "reports/published"
REAL = PUBLISHED / "quickstart-cpu/runs/62f127fe999f/record.json"
NETWORKS = {"model": ["keydana_cnn", "banerjee_cnn", "mlp", "alexnet"], "width": [0.5, 1.0]}
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
SPEEDS = dict(zip(POLICIES, (1.0, 1.6, 1.3, 1.7, 1.4), strict=True))
SIZES = [size for k in range(3, 16) for size in (2**k, 3 * 2 ** (k - 1))][:25]
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const timing = performance.getEntriesByType("navigation")[0];
  const costs = {open_s: timing.loadEventEnd / 1000, nodes: document.querySelectorAll("*").length};
  const began = performance.now();
  for (let y = 0; y < document.body.scrollHeight; y += 2000) {
    scrollTo(0, y); document.body.getBoundingClientRect();
  }
  costs.scroll_s = (performance.now() - began) / 1000;
  costs.height = document.documentElement.scrollHeight;
  document.body.innerHTML = "<pre id=costs>" + JSON.stringify(costs) + "</pre>";
}))</script>"""


def matrix(runs: int, shape: str) -> dict[str, Any]:
    """A params file of about so many runs."""
    grid = {**NETWORKS, "batch_size": SIZES, "policy": POLICIES}
    if shape == "points":
        grid["learning_rate"] = [k / 1e4 for k in range(1, runs // 1000 + 1)]
    elif shape == "settings":
        rates = [k / 1e6 for k in range(1, runs // 10 + 1)]
        grid = {"policy": POLICIES, "batch_size": SIZES[:2], "learning_rate": rates}
    elif runs < 1000:
        grid["batch_size"] = SIZES[: max(1, runs // 40)]
    defaults = {"dataset": "digits", "epochs": 12, "input_mode": "pipeline"}
    repeats = max(1, runs // 1000) if shape == "blocks" else 1
    return {"defaults": defaults, "matrix": grid, "repeats": repeats}


def make(folder: Path, runs: int, shape: str, notebooks: bool) -> tuple[Path, SweepDir]:
    """The params file of a sweep and its directory with a record of every run."""
    file = folder / "scale.yaml"
    file.write_text(json.dumps(matrix(runs, shape)))
    place = SweepDir(folder / "reports" / "scale")
    asked, text = params.read(file)
    store.write_text(place.params, text)
    real = json.loads(REAL.read_text())
    executed = folder / "executed.ipynb"
    executed.write_text(_executed())
    for planned in plan.runs(asked, place):
        record = made(planned.run, real, random.Random(planned.run_id))
        record["run_id"] = planned.run_id
        path = place.record(planned.run_id)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record | {"digest": store.digest(record)}, indent=1))
        if notebooks:
            os.link(executed, path.with_name("notebook.ipynb"))
    return file, place


def made(run: Run, real: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A run's record: the real one's, with other numbers that agree with one another."""
    step_s = run.width * run.batch_size * 2e-5 * chance.gauss(1, 0.02) / SPEEDS[run.policy] + 1e-3
    slower = step_s / real["timing"]["step_s"]
    windows = [
        Window(w["first_step"], w["steps"], w["seconds"] * slower * chance.uniform(0.99, 1.01))
        for w in real["windows"]
    ]
    times = timed_windows.timing(windows)
    last = 0.9 + chance.gauss(0, 0.01) - (0.2 if run.policy == "float16" else 0)
    history = [
        epoch
        | {"val_accuracy": min(1.0, last * k / 12), "loss": 2.3 / k}
        | {"elapsed_s": epoch["elapsed_s"] * slower}
        for k, epoch in enumerate(real["history"], 1)
    ]
    ended = {"status": "ok", "error": ""}
    if run.batch_size == SIZES[-1] and run.width == 1:
        ended = {"status": "oom", "error": "ResourceExhaustedError: no room for so large a batch"}
    busy = ["measured while other programs used more than 10 % of the processors"]
    return {
        **{name: value for name, value in real.items() if name != "digest"},
        **ended,
        "parameters": run.model_dump(),
        "in_force": real["in_force"] | {"initial_weights": "w", "data_order": f"o{run.block}"},
        "identity": real["identity"] | {"initial_weights": "w", "data_order": f"o{run.block}"},
        "timing": real["timing"] | times | {"images_per_s": run.batch_size / times["step_s"]},
        "windows": [asdict(window) for window in windows],
        "history": history,
        "fit_s": real["fit_s"] * slower * 1.01,
        "peak_memory_bytes": int(5e8 + run.batch_size * 1e5 * run.width),
        "marks": busy if chance.random() < 0.02 else [],
        "wall_s": 20 + chance.random(),
    }


def _executed() -> str:
    """The text of an executed notebook of real size: its images are noise."""
    notebook = jupytext.read(PROJECT / "notebooks" / "train.py")
    cell = next(c for c in reversed(notebook.cells) if c.cell_type == "code")
    noise = base64.b64encode(random.Random(0).randbytes(75_000)).decode()
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/png": noise})]
    return str(nbformat.writes(notebook))


def measured(name: str, command: list[str], folder: Path, until: Callable[[], bool]) -> None:
    """Runs a command, to its end or until something is so, and prints what it took."""
    began, most, before = time.perf_counter(), 0, _processor_s()
    with (folder / "log.txt").open("w") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while child.poll() is None and not until():
            most = max(most, _resident(child.pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - began
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        elif child.returncode:
            raise SystemExit(f"{name}: exit status {child.returncode}, see {log.name}")
        child.wait()
    worked = _processor_s() - before
    memory = f"{most / 2**20:8,.0f} MiB"
    print(f"{name:12} {seconds:7.1f} s, of processors {worked:6.1f} s {memory}", flush=True)


def _processor_s() -> float:
    """Seconds that processors worked for the children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident(pid: int) -> int:
    total = 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def opened(page: Path) -> None:
    """Prints the size of a page, and what a browser needs to open it and to scroll through it."""
    text = page.read_text()
    print(f"the page     {len(text.encode()) / 2**20:7.1f} MiB, {text.count('<tr'):,} table rows")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return
    probed = page.with_name("probed.html")
    probed.write_text(text.replace("<meta charset", PROBE + "<meta charset", 1))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [browser, *words, profile, "--dump-dom", probed.as_uri()], capture_output=True, text=True
    )
    probed.unlink()
    shutil.rmtree(page.parent / "profile", ignore_errors=True)
    costs = json.loads(done.stdout.split('<pre id="costs">')[1].split("</pre>")[0])
    print(
        f"in a browser {costs['open_s']:7.1f} s to open, {costs['scroll_s']:.1f} s through all "
        f"{costs['height']:,} pixels, {costs['nodes']:,} elements"
    )


def measure(file: Path, place: SweepDir) -> None:
    """Measures every step on a made sweep and prints a line for each."""
    folder, program = file.parent, [sys.executable, "-m", "mptexp"]
    never = bool  # bool() is False
    runs = place.runs.rename(folder / "made")
    measured("plan", [*program, "plan", file.name], folder, never)
    runs.rename(place.runs)
    left = next(place.runs.iterdir()).rename(folder / "left")
    measured("plan, done", [*program, "plan", file.name], folder, never)
    started = lambda: any(place.partial.glob("*"))  # noqa: E731
    measured("resume", [*program, "run", file.name, "--no-report"], folder, started)
    left.rename(place.runs / json.loads((left / "record.json").read_text())["run_id"])
    measured("nothing", [*program, "run", file.name, "--no-report"], folder, never)
    load = "from mptexp.analysis import sweep_tables; from mptexp.records import sweep_dir; "
    load += "from pathlib import Path; import sys; "
    load += "sweep_tables.load(sweep_dir.SweepDir(Path(sys.argv[1])))"
    measured("collect", [sys.executable, "-c", load, str(place.root)], folder, never)
    measured("report", [*program, "report", str(place.root)], folder, never)
    opened(place.index)


def usual(name: str, folder: Path) -> None:
    """Prints what commands on a published sweep cost; the first time reads files from the disk."""
    shutil.copytree(PUBLISHED / name, folder / name)
    program = [sys.executable, "-m", "mptexp"]
    for words in (["--help"], ["plan", f"{name}/params.yaml"], ["report", name]):
        for _ in range(3):
            measured(words[0], [*program, *words], folder, bool)


def main() -> None:
    """Makes a sweep and prints what each step on it costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--shape", choices=("blocks", "points", "settings"), default="blocks")
    parser.add_argument("--notebooks", action="store_true", help="with executed notebooks")
    parser.add_argument("--keep", type=Path, help="make the sweep here and leave it")
    parser.add_argument("--published", nargs="?", const="quickstart-cpu", metavar="SWEEP")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made_in:
        if options.published:
            return usual(options.published, Path(made_in))
        folder = options.keep or Path(made_in)
        folder.mkdir(parents=True, exist_ok=True)
        file, place = make(folder, options.runs, options.shape, options.notebooks)
        sizes = [path.stat().st_size for path in place.runs.glob("*/record.json")]
        print(f"{len(sizes):,} records of {sum(sizes) / len(sizes) / 1000:.0f} kB", flush=True)
        measure(file, place)


if __name__ == "__main__":
    main()
