"""Training and inference by Keras: `fit` and `predict`, with the clock as a callback."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mptexp.spec.run import Run
from mptexp.training import arithmetic, tasks
from mptexp.training.backends import backend
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.frontends import Scale
from mptexp.training.measure.step_clock import StepClock
from mptexp.training.numerics import exponents


class KerasFit:
    """Keras's own trainer: see `frontends.Trainer`."""

    def __init__(self, run: Run, model: keras.Model, images: Images) -> None:
        self.run, self.model, self.images = run, model, images
        if run.phase == "train":
            # Traced steps come after the timed ones, in an epoch of their own where need be; an
            # execution of several steps takes a few batches more than an epoch has.
            longer = run.model_copy(update={"epochs": run.epochs + 2 * run.profile})
            # Made before clock and sensors begin: the study's input fills its cache.
            self.stream = batches.training(images, longer)

    def settings(self) -> dict[str, Any]:
        return {}

    def products(self) -> list[tuple[str, float]]:
        return arithmetic.products(self.run, self.model)

    def scale(self, model: keras.Model) -> Scale | None:
        return exponents.scale_of(model)

    def synchronize(self, model: keras.Model) -> None:
        backend(self.run.backend).synchronize(model)

    def predicted(self, data: keras.utils.PyDataset) -> np.ndarray:
        task, shared = tasks.of(self.run), backend(self.run.backend).shared
        kept = []
        # Batch by batch: of all a text's places the probabilities would take gigabytes.
        for _, batch in zip(range(len(data)), data, strict=False):  # Keras's data has no end
            x, y = map(np.asarray, batch)
            kept.append(task.kept(self.model.predict_on_batch(shared(x)), y))
        return np.concatenate(kept)

    def fit(self, clock: StepClock, further: Sequence[Any] = ()) -> None:
        run, images = self.run, self.images
        self.model.fit(
            backend(run.backend).traced_input(self.stream) if run.profile else self.stream,
            epochs=run.epochs + run.profile,
            steps_per_epoch=batches.steps_per_epoch(images, run),
            **({} if run.profile else batches.validation(images, run)),
            callbacks=[clock, *further, StopWhenNotFinite()],
            shuffle=False,  # the stream is shuffled already, alike for every policy
            verbose=0,
        )

    def predict_on_batch(self, x: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(backend(self.run.backend).shared(x))

    def predict(self, clock: StepClock) -> np.ndarray:
        steps = len(batches.order(self.images, self.run))
        stream = batches.training(self.images, self.run)
        return self.model.predict(stream, steps=steps, callbacks=[clock], verbose=0)


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is not a finite number: it will not become one again.

    Not Keras's TerminateOnNaN, which looks at every step: see step_clock.py.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training = True
