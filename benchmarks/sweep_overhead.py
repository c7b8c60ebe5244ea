"""What a sweep costs: `mptexp run` against the same trainings as plain scripts, one after another.

    python benchmarks/sweep_overhead.py [--rounds 3] [--epochs 4]

A plain script is what somebody would write without mptexp: Keras and NumPy, the model written out,
`fit` on arrays, the history to a file. Sweeps are made in two ways, with processes that are forked
(MPTEXP_FORK=1) and with processes that are each started anew. Prints ratios of whole wall times and
of processor times, which other programs disturb less, with a 95 % t interval over rounds (above 1,
what is named first takes longer); a round is scripts, forked, fresh and the same backwards, so that
drift cancels. The report is not made: scripts have
none. Then whether the two ways measure the same: the ratio of their step times and of their peak
memories, and how much step times scatter from run to run.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mptexp.analysis import contrast
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir

POLICIES = ("float32", "mixed_bfloat16")
BATCH_SIZES = (32, 128)
WAYS = ("forked", "fresh")

SCRIPT = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
policy, batch_size, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import keras, numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

keras.config.set_dtype_policy(policy)
keras.utils.set_random_seed(0)
digits = load_digits()
images = [Image.fromarray((p * 255 / 16).astype("uint8")).resize((32, 32)) for p in digits.images]
x = np.stack([np.asarray(p) for p in images])[..., None].astype("float32") / 255
train_x, val_x, train_y, val_y = train_test_split(
    x, digits.target, test_size=0.2, stratify=digits.target, random_state=0
)
model = keras.Sequential([keras.layers.Input((32, 32, 1))])
for filters, size in ((8, 5), (16, 7), (32, 11)):
    model.add(keras.layers.Conv2D(filters, size, 2, "same", activation="relu"))
    model.add(keras.layers.BatchNormalization(momentum=0.9))
model.add(keras.layers.GlobalAveragePooling2D())
model.add(keras.layers.Dense(10))
model.add(keras.layers.Activation("softmax", dtype="float32"))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
fitted = model.fit(
    train_x, train_y, batch_size, epochs, verbose=0, validation_data=(val_x, val_y)
)
json.dump(fitted.history, open(sys.argv[4], "w"))
"""


Spent = np.ndarray  # seconds by the clock, and of processors by what was started and has ended


def now() -> Spent:
    """Both as they are now."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def scripts(folder: Path, epochs: int) -> Spent:
    """What all trainings take as plain scripts."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    began = now()
    for batch_size in BATCH_SIZES:
        for policy in POLICIES:
            words = [policy, str(batch_size), str(epochs), str(folder / "history.json")]
            command = [sys.executable, str(path), *words]
            subprocess.run(command, check=True, capture_output=True)
    return now() - began


def sweep(folder: Path, epochs: int, way: str) -> Spent:
    """What the same trainings take as a sweep, whose records it leaves in the folder `way`."""
    matrix = {"batch_size": list(BATCH_SIZES), "policy": list(POLICIES)}
    defaults = {"batch_norm_momentum": 0.9, "epochs": epochs, "width": 0.25}
    path = folder / "sweep.yaml"
    path.write_text(json.dumps({"defaults": defaults, "matrix": matrix}))
    command = [sys.executable, "-m", "mptexp", "run", str(path), "--no-report", "--fresh"]
    began = now()
    environment = os.environ | {"MPTEXP_FORK": "0" if way == "fresh" else "1"}
    command += ["--out", str(folder / way)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return now() - began


def figures(folder: Path, way: str) -> list[tuple[float, float]]:
    """Step time and peak memory of each point of a sweep, always in the same order."""
    records, _ = store.read_records(SweepDir(folder / way))
    assert {record["identity"]["process"] for record in records} == {way}
    records.sort(key=lambda r: (r["parameters"]["policy"], r["parameters"]["batch_size"]))
    return [(record["timing"]["step_s"], record["peak_memory_bytes"]) for record in records]


def main() -> None:
    """Prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    sides = ("scripts", "forked", "fresh")
    took: dict[str, list[Spent]] = {side: [] for side in sides}
    read: dict[str, list[list[tuple[float, float]]]] = {side: [] for side in WAYS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for _ in range(options.rounds):
            spent = {side: np.zeros(2) for side in sides}
            for side in (*sides, *reversed(sides)):
                if side == "scripts":
                    spent[side] += scripts(folder, options.epochs)
                else:
                    spent[side] += sweep(folder, options.epochs, side)
                    read[side].append(figures(folder, side))
            for side, seconds in spent.items():
                took[side].append(seconds)
            both = [f"{side} {wall:.1f} s ({work:.1f} s)" for side, (wall, work) in spent.items()]
            print(f"wall (processor) time: {', '.join(both)}", flush=True)
    runs = len(POLICIES) * len(BATCH_SIZES)
    print(f"{runs} trainings of {options.epochs} epochs, n = {options.rounds} rounds")
    for first, second in (("forked", "scripts"), ("fresh", "scripts"), ("forked", "fresh")):
        for place, name in enumerate(("wall time", "processor time")):
            pair = [[seconds[place] for seconds in took[side]] for side in (first, second)]
            show(f"{name}, {first} / {second}", *pair)
    logs = {way: np.log(read[way]) for way in WAYS}  # sweep, point, figure
    for place, name in enumerate(("step time", "peak memory")):
        means = {way: np.exp(values[..., place].mean(1)) for way, values in logs.items()}
        show(f"{name}, forked / fresh", means["forked"], means["fresh"])
        scatter = [
            f"{way} {values[..., place].std(0, ddof=1).mean():.2%}" for way, values in logs.items()
        ]
        print(f"    SD from run to run of a point: {', '.join(scatter)}")


def show(name: str, numerators: Sequence[float], denominators: Sequence[float]) -> None:
    """Prints a ratio with its interval."""
    over = contrast.paired(numerators, denominators)
    print(f"{name}: {over.estimate:.3f} [{over.low:.3f}, {over.high:.3f}]")


if __name__ == "__main__":
    main()
