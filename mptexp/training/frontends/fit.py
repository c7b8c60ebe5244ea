"""Training and inference by Keras: `fit` and `predict`, with the clock as a callback."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from mptexp.spec.run import Run
from mptexp.training import effective_arithmetic, task_models
from mptexp.training.backends import backend
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.frontends import Scale
from mptexp.training.measure.step_clock import StepClock
from mptexp.training.numerics import dynamic_range


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

    def products(self) -> Products:
        return effective_arithmetic.products(self.run, self.model)

    def scale(self, model: keras.Model) -> Scale | None:
        return dynamic_range.scale_of(model)

    def synchronize(self, model: keras.Model) -> None:
        backend(self.run.backend).synchronize(model)

    def predicted(self, data: keras.utils.PyDataset) -> np.ndarray:
        kept, shared = task_models.of(self.run).kept(self.model), backend(self.run.backend).shared
        values = []
        # Batch by batch: of all a text's places the probabilities would take gigabytes.
        for _, batch in zip(range(len(data)), data, strict=False):  # Keras's data has no end
            values.append(kept(*(shared(np.asarray(part)) for part in batch)))
        return np.concatenate(values)

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
        with _last_alone(self.model) as last:
            self.model.predict(stream, steps=steps, callbacks=[clock], verbose=0)
        return keras.ops.convert_to_numpy(last[0])


@contextmanager
def _last_alone(model: keras.Model) -> Iterator[list[Any]]:
    """Lets `predict` keep the outputs of its last step alone, which it gives.

    Keras keeps those of all steps, so that an inference would take the more memory the longer it
    is measured.
    """
    model.make_predict_function()
    step, last = model.predict_function, [None]

    def without_outputs(*given: Any) -> Any:
        result = step(*given)
        several = isinstance(result, tuple)  # JAX: outputs and the state of the model
        last[0] = result[0] if several else result
        return ((), *result[1:]) if several else ()

    model.predict_function = without_outputs
    try:
        yield last
    finally:
        model.predict_function = step


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is not a finite number: it will not become one again.

    Not Keras's TerminateOnNaN, which looks at every step: see step_clock.py.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training = True
