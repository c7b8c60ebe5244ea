"""What measuring costs: bare `fit` against `fit` that is measured, in one process.

    python benchmarks/measuring_overhead.py [--backend tensorflow] [--rounds 30] [--every 100]

Measured is with clock and sampler, and with exponents.ExponentHistograms (which compiles at its
first look; that is left out). Prints, for a small and a larger model, ratios measured / bare (above
1, measuring costs time) of whole calls of `fit` without validation: of the wall time, with a 95 % t
interval over the rounds, and of the processor time of the whole process, which other programs
disturb less. Each round is four calls (bare, measured, measured, bare), so that drift cancels.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mptexp.analysis import contrast
from mptexp.spec.backends import BACKENDS
from mptexp.spec.run import Run
from mptexp.training import precision
from mptexp.training.backends import backend


def sides(run: Run, kind: str, every: int) -> tuple[dict[str, Callable[[], Any]], int]:
    """Calls of `fit` bare and measured on the same compiled model, and their steps."""
    import keras

    from mptexp.training import models
    from mptexp.training.data import batches, datasets
    from mptexp.training.measure import sensors, step_clock
    from mptexp.training.numerics import exponents

    images = datasets.load(run)
    model = models.build(run, images.shape, len(images.classes))
    precision.compile_model(model, run)
    steps = batches.steps_per_epoch(images, run)

    def fit(callbacks: list[keras.callbacks.Callback]) -> None:
        model.fit(
            batches.training(images, run),
            epochs=run.epochs,
            steps_per_epoch=steps,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )

    def measured() -> None:
        with sensors.Sampler(kind):
            fit([step_clock.StepClock(backend(run.backend).synchronize)])

    order = batches.order(images, run)[0]
    watch = exponents.ExponentHistograms(
        lambda step: (images.train_x[order], images.train_y[order]), every
    )
    named = {"bare": lambda: fit([]), "clock and sampler": measured}
    named[f"exponents every {every} steps"] = lambda: fit([watch])
    return named, steps * run.epochs


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall time and processor time of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(name: str, run: Run, kind: str, options: argparse.Namespace) -> None:
    """Prints the ratios for one model."""
    calls, steps = sides(run, kind, options.every)
    bare = calls.pop("bare")
    bare()
    for what, measured in calls.items():
        measured()
        ratios = ratio(bare, measured, options.rounds)
        print(f"{name}, {what}, {steps} steps a call, {ratios}", flush=True)


def ratio(bare: Callable[[], Any], measured: Callable[[], Any], rounds: int) -> str:
    """Measured over bare, as text."""
    times = []
    for _ in range(rounds):
        first, second, third, fourth = (
            np.array(seconds(c)) for c in (bare, measured, measured, bare)
        )
        times.append((second + third, first + fourth))
    wall, cpu = np.array(times).T
    return f"{rounds} rounds of 2 + 2 calls: wall {text(*wall)}; processor {text(*cpu)}"


def text(measured: np.ndarray, bare: np.ndarray) -> str:
    """A ratio with its interval, and the median of the rounds' ratios."""
    over = contrast.paired(measured, bare)
    median = np.median(measured / bare)
    return f"{over.estimate:.4f} [{over.low:.4f}, {over.high:.4f}], median {median:.4f}"


def main() -> None:
    """Compares on both models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="tensorflow", choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    small = Run(backend=options.backend, width=0.25, batch_size=32, epochs=8)
    kind = precision.use(small)["kind"]
    import keras

    print(f"Keras {keras.__version__} on {options.backend}, Python {sys.version.split()[0]}")
    compare("small model", small, kind, options)
    larger = small.model_copy(update={"width": 1.0, "epochs": 2})
    compare("larger model", larger, kind, options)


if __name__ == "__main__":
    main()
