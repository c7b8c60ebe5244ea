"""How fast each input mode delivers batches, and how much host memory it takes.

    python benchmarks/input_pipeline.py FOLDER [--image-size 256] [--rounds 5]

FOLDER is a tree of class folders with real images. Variants, each in a process of its own, in
alternating order, nothing trained:

- pipeline: mptexp's own, from prepared uint8 images (made anew in each round: first epoch cold)
- keydana: the pipeline of the study that mptexp starts from
- tfdata: a straightforward tf.data pipeline: parallel decode and resize, cache, shuffle, batch,
  prefetch, float32
- uint8: the same, but what is cached and delivered is uint8, as mptexp's own
- dataloader, grain: PyTorch's and Google's loaders, where they are installed: Pillow decodes an
  image in its first epoch, and a uint8 array in (shared) memory holds it for later ones

Printed: images/s in the first epoch (from nothing; mptexp's own also prepares the images to
validate with, which count) and in later ones, peak memory above that of the process before it
touches data (not that of a loader's own processes), and ratios with a 95 % t interval over rounds.
Direction: pipeline's images/s over the other's, above 1 is faster; pipeline's memory over
keydana's, below 1 is less.
"""

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPOCHS = 4
BATCH = 32
WORKERS = os.cpu_count() or 1
NEEDS = {"dataloader": "torch", "grain": "grain"}
ARMS = [
    arm
    for arm in ("pipeline", "keydana", "tfdata", "uint8", "dataloader", "grain")
    if arm not in NEEDS or importlib.util.find_spec(NEEDS[arm])
]


def measure(arm, folder, image_size):
    """One arm in this process: seconds of each epoch, of a second start, bytes above baseline."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    from mptexp.spec.run import Run
    from mptexp.training.data import batches, datasets

    mode = "keydana" if arm == "keydana" else "pipeline"
    if arm in NEEDS:
        importlib.import_module(NEEDS[arm])
    run = Run(
        dataset=f"folder:{folder}",
        image_size=image_size,
        batch_size=BATCH,
        epochs=EPOCHS,
        input_mode=mode,
    )
    sum(1 for _ in tf.data.Dataset.range(9).map(lambda i: i).prefetch(1))  # start its threads
    if arm != "pipeline":
        images = datasets.load(run)  # keydana needs the listing; its preparing is not its cost
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    began = time.perf_counter()
    if arm == "pipeline":
        images = datasets.load(run)
    made = STREAMS.get(arm)
    stream = made(folder, run) if made else batches.training(images, run)
    marks = [began, *epoch_ends(stream, len(images.train_x), arm)]
    peak = memory("VmHWM")
    began = time.perf_counter()
    next(iter(batches.training(datasets.load(run), run)))
    again_s = time.perf_counter() - began
    n = len(images.train_x)
    decoded = n + len(images.val_x) if arm == "pipeline" else n
    return {
        "first": decoded / (marks[1] - marks[0]),
        "later": (EPOCHS - 1) * n / (marks[-1] - marks[1]),
        "bytes": peak - before,
        "again_s": again_s if arm == "pipeline" else None,
    }


def epoch_ends(stream, n, arm):
    """When each epoch's images had all been delivered.

    tf.data's batches are taken within a graph, as `fit` takes them: Python's own loop costs more
    than to deliver a small batch, and holds the lock that a pipeline's Python waits for.
    """
    import tensorflow as tf

    @tf.function
    def take(batches, steps):
        for _ in tf.range(steps):
            next(batches)

    batches = iter(stream) if arm == "pipeline" else None  # one stream for all epochs
    for _ in range(EPOCHS):
        if arm in NEEDS:
            for _ in stream:
                pass
        else:
            steps = n // BATCH if arm == "pipeline" else -(-n // BATCH)
            take(batches or iter(stream), tf.constant(steps))
        yield time.perf_counter()


def listed(folder):
    """Paths of the training images and the numbers of their classes."""
    root = Path(folder) / "train" if (Path(folder) / "train").is_dir() else Path(folder)
    classes = sorted(p.name for p in root.iterdir() if p.is_dir())
    files = [p for p in sorted(root.rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg")]
    return [str(p) for p in files], [classes.index(p.parent.name) for p in files]


def straightforward(folder, run, kept="float32"):
    """What a careful reader of TensorFlow's guide would write."""
    import tensorflow as tf

    def decoded(path, label):
        x = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        x = tf.image.resize(x, (run.image_size, run.image_size))
        return (x / 255 if kept == "float32" else tf.cast(x, kept)), label

    stream = tf.data.Dataset.from_tensor_slices(listed(folder))
    stream = stream.map(decoded, tf.data.AUTOTUNE).cache().shuffle(1000, seed=0)
    return stream.batch(run.batch_size).prefetch(tf.data.AUTOTUNE)


class Decoded:
    """Images that are decoded at their first use: a source for PyTorch and for Grain."""

    def __init__(self, folder, size, zeros=np.zeros):
        self.files, self.labels = listed(folder)
        self.size, n = size, len(self.files)
        self.pixels, self.known = zeros((n, size, size, 3), np.uint8), zeros(n, bool)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        if not self.known[i]:
            from PIL import Image

            with Image.open(self.files[i]) as image:
                shape = (self.size, self.size)
                resized = image.convert("RGB").resize(shape, Image.Resampling.BILINEAR)
            self.pixels[i] = np.asarray(resized)
            self.known[i] = True
        return self.pixels[i], self.labels[i]


def dataloader(folder, run):
    """A process for each processor, which decode into memory that they share."""
    import torch

    def shared(shape, dtype):
        return torch.from_numpy(np.zeros(shape, dtype)).share_memory_().numpy()

    source = Decoded(folder, run.image_size, shared)
    return torch.utils.data.DataLoader(
        source, run.batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )


def grain(folder, run):
    """A thread for each processor, which decode into memory of this process."""
    import grain

    shuffled = grain.MapDataset.source(Decoded(folder, run.image_size)).seed(0).shuffle()
    ahead = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=4 * run.batch_size)
    return shuffled.to_iter_dataset(ahead).batch(run.batch_size)


STREAMS = {
    "tfdata": straightforward,
    "uint8": functools.partial(straightforward, kept="uint8"),
    "dataloader": dataloader,
    "grain": grain,
}


def memory(name):
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {name}")


def child(arm, options):
    """The arm's figures, measured in a process and a cache of their own."""
    words = ["--arm", arm, "--image-size", str(options.image_size)]
    with tempfile.TemporaryDirectory() as cache:
        said = subprocess.run(
            [sys.executable, __file__, options.folder, *words],
            env={**os.environ, "MPTEXP_DATA_DIR": cache},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
    return json.loads(said.stdout.splitlines()[-1])


def main():
    """Measures all arms round by round and prints the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(measure(options.arm, options.folder, options.image_size)))
        return
    rounds = []
    for k in range(options.rounds):
        turn = ARMS[k % len(ARMS) :] + ARMS[: k % len(ARMS)]
        rounds.append({arm: child(arm, options) for arm in turn})
        print(f"round {k + 1} of {options.rounds}", file=sys.stderr)
    show(rounds)


def show(rounds):
    """The medians, then the ratios that the project claims."""
    from mptexp.analysis.contrast import paired

    print(f"{'':10}{'first epoch':>14}{'later epochs':>14}{'memory':>12}   (n = {len(rounds)})")
    for arm in ARMS:
        first, later, size = (
            np.median([r[arm][name] for r in rounds]) for name in ("first", "later", "bytes")
        )
        print(f"{arm:10}{first:10,.0f} i/s{later:10,.0f} i/s{size / 2**20:8,.0f} MiB")
    for name in ("first", "later"):
        for other in ARMS[1:]:
            ratio = paired(*([r[arm][name] for r in rounds] for arm in ("pipeline", other)))
            print(f"{name} epoch(s), pipeline / {other}: {text(ratio)}")
    ratio = paired(*([r[arm]["bytes"] for r in rounds] for arm in ("pipeline", "keydana")))
    print(f"memory, pipeline / keydana: {text(ratio)}")
    again = np.median([r["pipeline"]["again_s"] for r in rounds])
    print(f"second start, until the first batch: {again:.2f} s")


def text(ratio):
    """A ratio with its interval."""
    return f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    main()
