"""What the step clock costs: bare `fit` against `fit` with the clock, alternating in one process.

Prints the ratio of step times (with the clock / without it: above 1, the clock costs time) with a
95 % t interval over the rounds. Run it with `make bench`; a quiet machine gives a narrow interval.
"""

import sys
import time

import numpy as np

from mptexp import precision
from mptexp.spec import Run

ROUNDS = 12
run = Run(width=0.25, batch_size=32, epochs=4)
precision.use(run)

import keras  # noqa: E402

from mptexp import analysis, data, measure, models  # noqa: E402

images = data.load(run)
model = models.build(run, images.shape, len(images.classes))
precision.compile_model(model, run)


def epoch_s(callbacks: list[keras.callbacks.Callback]) -> float:
    """Seconds of one call of `fit`, the same number of steps each time."""
    began = time.perf_counter()
    model.fit(
        data.batches(images, run),
        epochs=run.epochs,
        steps_per_epoch=data.steps_per_epoch(images, run),
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
    )
    return time.perf_counter() - began


epoch_s([])
ratios = []
for k in range(ROUNDS):
    arms = {"bare": [], "clock": [measure.StepClock(measure.synchronizer(run.backend))]}
    order = list(arms) if k % 2 else list(arms)[::-1]
    seconds = {name: epoch_s(arms[name]) for name in order}
    ratios.append(seconds["clock"] / seconds["bare"])
ratio, low, high = analysis.interval(ratios)
print(
    f"with the clock / without it: {ratio:.4f} [{low:.4f}, {high:.4f}] (n = {ROUNDS} rounds, "
    f"median {np.median(ratios):.4f}, Keras {keras.__version__}, Python {sys.version.split()[0]})"
)
