"""What a sweep costs: `mptexp run` against the same trainings as plain scripts, one after another.

    python benchmarks/sweep_overhead.py [--rounds 3] [--epochs 4]

A plain script is what somebody would write without mptexp: Keras and NumPy, the model written out,
`fit` on arrays, the history to a file. Prints the ratio of whole wall times, sweep over scripts
(above 1, the sweep costs time), with a 95 % t interval over rounds; a round is scripts, sweep,
sweep, scripts, so that drift cancels. The report is not made: scripts have none.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mptexp.analysis import contrast

POLICIES = ("float32", "mixed_bfloat16")
BATCH_SIZES = (32, 128)

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


def scripts(folder: Path, epochs: int) -> float:
    """Seconds of all trainings as plain scripts."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    began = time.perf_counter()
    for batch_size in BATCH_SIZES:
        for policy in POLICIES:
            words = [policy, str(batch_size), str(epochs), str(folder / "history.json")]
            command = [sys.executable, str(path), *words]
            subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def sweep(folder: Path, epochs: int) -> float:
    """Seconds of the same trainings as a sweep."""
    matrix = {"batch_size": list(BATCH_SIZES), "policy": list(POLICIES)}
    defaults = {"batch_norm_momentum": 0.9, "epochs": epochs, "width": 0.25}
    path = folder / "sweep.yaml"
    path.write_text(json.dumps({"defaults": defaults, "matrix": matrix}))
    command = [sys.executable, "-m", "mptexp", "run", str(path), "--no-report", "--fresh"]
    began = time.perf_counter()
    subprocess.run([*command, "--out", str(folder / "out")], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    swept, scripted = [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for _ in range(options.rounds):
            order = (scripts, sweep, sweep, scripts)
            first, second, third, fourth = (side(folder, options.epochs) for side in order)
            swept.append(second + third)
            scripted.append(first + fourth)
            print(
                f"scripts {first:.1f} and {fourth:.1f} s, sweep {second:.1f} and {third:.1f} s",
                flush=True,
            )
    runs = len(POLICIES) * len(BATCH_SIZES)
    over = contrast.paired(swept, scripted)
    print(
        f"{runs} trainings of {options.epochs} epochs, sweep / scripts: {over.estimate:.3f} "
        f"[{over.low:.3f}, {over.high:.3f}] (n = {options.rounds} rounds)"
    )


if __name__ == "__main__":
    main()
