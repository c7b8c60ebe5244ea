"""What measuring costs: stretches of one `fit` without instruments, and with them.

    python benchmarks/measuring_overhead.py [--backend tensorflow] [--pairs 120] [--every 100]

Instruments are clock and sampler, or exponents.ExponentHistograms (which compiles at its first
look; that is left out). Prints, for a small and a larger model, ratios measured / bare (above 1,
measuring costs time): of the wall time, and of the processor time of the whole process, which other
programs disturb less, each with a 95 % t interval over pairs of stretches. A pair is two stretches
of whole epochs, about a second each, in random order: what drifts more slowly than that cancels,
and so do compilation and what `fit` does once. A stretch pays for a sampler's start and end, for
which a run pays once.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import numpy as np

from mptexp.analysis import contrast
from mptexp.spec.backends import BACKENDS
from mptexp.spec.run import Run
from mptexp.training import precision
from mptexp.training.backends import backend

STRETCH_S = 1.0
WARM_UP = 3  # epochs; the last of them is timed, for how many make a stretch
MOST_EPOCHS = 5000


class Alternation:
    """Lets an instrument into `fit` for every other stretch, and times all stretches.

    Args:
        listed: the callbacks of `fit`, to which the instrument is added for its stretches.
        instrument: a callback.
        around: makes a context for each stretch in which the instrument works.
        pairs: how many stretches with it, and how many without.

    Attributes:
        times: by whether it worked: wall and processor seconds of its stretches.
    """

    def __init__(
        self,
        listed: list[Any],
        instrument: Any,
        around: Callable[[], AbstractContextManager],
        pairs: int,
    ) -> None:
        self.listed, self.instrument, self.around = listed, instrument, around
        self.times = {False: [], True: []}
        orders = (random.sample((False, True), 2) for _ in range(pairs))
        self.stretches: Iterator[bool] = chain.from_iterable(orders)
        self.ends = WARM_UP
        self.began = 0.0
        self.open: AbstractContextManager | None = None

    def begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Ends a stretch and begins the next where an epoch begins, a callback's on_epoch_begin."""
        if epoch < WARM_UP:
            self.began = time.perf_counter()
        if epoch < self.ends:
            return
        if self.open:
            self.open.__exit__(None, None, None)
        else:
            self.epochs = max(1, round(STRETCH_S / (time.perf_counter() - self.began)))
        works = next(self.stretches, None)
        if works is None:
            self.instrument.model.stop_training = True
            return
        self.ends = epoch + self.epochs
        self.open = self.stretch(works)
        self.open.__enter__()
        if works:
            self.instrument.on_epoch_begin(epoch)

    @contextmanager
    def stretch(self, works: bool) -> Iterator[None]:
        """Times what is done within, with or without the instrument."""
        wall, cpu = time.perf_counter(), time.process_time()
        with self.around() if works else nullcontext():
            self.listed.extend([self.instrument] * works)
            yield
            del self.listed[len(self.listed) - works :]
        self.times[works].append((time.perf_counter() - wall, time.process_time() - cpu))


def compare(name: str, run: Run, kind: str, options: argparse.Namespace) -> None:
    """Prints the ratios for one model."""
    import keras

    from mptexp.training import models
    from mptexp.training.data import batches, datasets
    from mptexp.training.measure import sensors, step_clock
    from mptexp.training.numerics import dynamic_range

    images = datasets.load(run)
    model = models.build(run, images.shape, len(images.classes))
    precision.compile_model(model, run)
    order = batches.order(images, run)[0]
    watch = dynamic_range.ExponentHistograms(
        lambda step: (images.train_x[order], images.train_y[order]), options.every
    )
    clock = step_clock.StepClock(backend(run.backend).synchronize)
    for what, instrument, around in (
        ("clock and sampler", clock, lambda: sensors.Sampler(kind)),
        (f"exponents every {options.every} steps", watch, nullcontext),
    ):
        steps = batches.steps_per_epoch(images, run)
        listed = keras.callbacks.CallbackList([], add_history=True, model=model)
        alternation = Alternation(listed.callbacks, instrument, around, options.pairs)
        listed.callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=alternation.begin))
        instrument.set_model(model)
        instrument.set_params({"steps": steps})
        if instrument is watch:
            watch.look(model, 0)  # compiles
        model.fit(
            batches.training(images, run.model_copy(update={"epochs": MOST_EPOCHS})),
            epochs=MOST_EPOCHS,
            steps_per_epoch=steps,
            callbacks=listed,
            shuffle=False,
            verbose=0,
        )
        times = [np.array(alternation.times[works]).T for works in (True, False)]
        wall, cpu = (text(*sides) for sides in zip(*times, strict=True))
        stretch = f"stretches of {alternation.epochs * steps} steps"
        print(f"{name}, {what}, {options.pairs} pairs of {stretch}: wall {wall}; processor {cpu}")
        sys.stdout.flush()


def text(measured: np.ndarray, bare: np.ndarray) -> str:
    """A ratio with its interval, and the median of the pairs' ratios."""
    over = contrast.paired(measured, bare)
    median = np.median(measured / bare)
    return f"{over.estimate:.4f} [{over.low:.4f}, {over.high:.4f}], median {median:.4f}"


def main() -> None:
    """Compares on both models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="tensorflow", choices=BACKENDS)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    small = Run(backend=options.backend, width=0.25, batch_size=32)
    kind = precision.use(small)["kind"]
    import keras

    print(f"Keras {keras.__version__} on {options.backend}, Python {sys.version.split()[0]}")
    compare("small model", small, kind, options)
    compare("larger model", small.model_copy(update={"width": 1.0}), kind, options)


if __name__ == "__main__":
    main()
