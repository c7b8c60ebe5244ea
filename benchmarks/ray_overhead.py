"""What Ray costs: `mptexp run --executor ray` against `mptexp run`, with a notebook of no work.

    python benchmarks/ray_overhead.py [--rounds 5] [--runs 6]

The cluster is this machine as one node, and runs before the sweeps begin. Sweeps of one run and of
several are timed, which separates what a run costs from what a sweep costs. A round is local,
Ray, Ray, local, so that drift cancels. Prints seconds per run and per sweep, and the ratio of the
seconds per run, Ray over local (above 1, Ray costs time), each with a 95 % t interval over rounds.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from mptexp.analysis import contrast
from mptexp.execution.ray_cluster import OWN
from mptexp.spec.run import Run

NOTEBOOK = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% tags=["parameters"]
{parameters}
# %%
import os
from pathlib import Path
from mptexp.records import schema, store
from mptexp.spec.run import Run
run = Run.read(globals())
store.write_record(Path(os.environ["MPTEXP_RUN_DIR"]) / "record.json", {{
    "schema": schema.SCHEMA, "run_id": run.run_id(os.environ["MPTEXP_NOTEBOOK"]), "history": [],
    "parameters": run.model_dump(), "status": "ok", "error": "", "timing": {{"step_s": 0.001}},
}})
"""


def seconds(folder: Path, runs: int, *words: str) -> float:
    """Wall time of a sweep of so many runs."""
    path = folder / "light.yaml"
    path.write_text(f"notebook: light.py\nmatrix: {{seed: {list(range(runs))}}}\n")
    command = [sys.executable, "-m", "mptexp", "run", str(path), "--fresh", "--no-report"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--out", str(folder / "out"), *words], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def costs(folder: Path, runs: int, *words: str) -> tuple[float, float]:
    """Seconds that each run takes, and each sweep besides."""
    one, many = seconds(folder, 1, *words), seconds(folder, runs, *words)
    each = (many - one) / (runs - 1)
    return each, one - each


def in_words(values: Sequence[float]) -> str:
    """The mean and its 95 % t interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.2f} [{np.mean(values) - half:.2f}, {np.mean(values) + half:.2f}] s"


def main() -> None:
    """Prints what is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=6)
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: pip install 'ray>=2.60'")
        return
    os.environ.update(OWN)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": os.cpu_count(), "node_ip_address": "127.0.0.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    on_ray = ("--executor", "ray", "--address", cluster.address)
    seconds: dict[str, list[tuple[float, float]]] = {"local": [], "Ray": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lines = [f"{name} = {field.default!r}" for name, field in Run.model_fields.items()]
        (folder / "light.py").write_text(NOTEBOOK.format(parameters="\n".join(lines)))
        for _ in range(options.rounds):
            order = ((), on_ray, on_ray, ())
            each = [costs(folder, options.runs, *words) for words in order]
            seconds["local"].append(tuple(np.mean([each[0], each[3]], axis=0)))
            seconds["Ray"].append(tuple(np.mean([each[1], each[2]], axis=0)))
            print(", ".join(f"{a:.2f} + {b:.2f}" for a, b in each), "s per run, sweep", flush=True)
    cluster.shutdown()
    for name, values in seconds.items():
        run, sweep = zip(*values, strict=True)
        print(f"{name}: {in_words(run)} per run, {in_words(sweep)} per sweep")
    pairs = [(a, b) for (a, _), (b, _) in zip(seconds["local"], seconds["Ray"], strict=True)]
    local, ray = zip(*pairs, strict=True)
    over = contrast.paired(ray, local)
    print(
        f"Ray - local: {in_words(np.subtract(ray, local))} per run; Ray / local: "
        f"{over.estimate:.3f} [{over.low:.3f}, {over.high:.3f}] (n = {options.rounds} rounds)"
    )


if __name__ == "__main__":
    main()
