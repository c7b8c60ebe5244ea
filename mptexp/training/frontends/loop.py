"""A plain loop of training or inference under the step clock; a backend's module gives the step.

The loop counts nothing and calls nothing back but the clock: a batch, a step, the next batch. Loss
and hits are added up on the device and read once an epoch, as Keras does.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import keras
import numpy as np

from mptexp.spec import tasks
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.frontends import Scale
from mptexp.training.frontends.network import network
from mptexp.training.measure.step_clock import StepClock

Batch = tuple[Any, Any]  # images, uint8 of shape (batch, height, width, channels), or sequences of
# tokens, shape (batch, time); and labels, shape (batch,) or (batch, time)


class Native(Protocol):
    """A network with its weights; where it trains, with its optimizer and its loss scale too."""

    def put(self, x: np.ndarray, y: np.ndarray) -> Batch:
        """A batch on the device."""

    def examples(self, x: np.ndarray) -> Any:
        """The examples of a batch on the device, without labels."""

    def predict(self, x: Any) -> Any:
        """Probabilities in float32; may return before the device has done them."""

    def fetched(self, given: Any) -> np.ndarray:
        """What `predict` gave, on the host."""

    def step(self, x: Any, y: Any) -> None:
        """One step of training; may return before the device has done it."""

    def look(self, x: Any, y: Any) -> Any:
        """Adds the loss and hits of a batch to the totals, without training.

        Returns the class that each image is given, or the mean loss of each sequence.
        """

    def totals(self) -> tuple[float, float]:
        """Sum of the batches' mean losses times their size, and hits; both begin anew."""

    def gradients(self, x: Any, y: Any) -> tuple[float, list[np.ndarray]]:
        """Loss and gradients of a batch, in the order and shapes of Keras's trained weights."""

    def products(self, x: Any, y: Any) -> Products:
        """Type and FLOPs of the products of a step, from its program, which changes nothing.

        Where it does not train, those of the forward pass.
        """

    def scale(self) -> Scale | None:
        """The dynamic loss scale and the steps that were applied; None where there is none."""

    def settings(self) -> dict[str, Any]:
        """compute_dtype, variable_dtype and jit, as they are."""

    def weights(self) -> list[np.ndarray]:
        """In the order and shapes of the Keras model's weights that are floats."""

    def synchronize(self) -> None:
        """Returns once the device has done all steps."""


class NativeLoop:
    """Trains a backend's `Native`, or predicts with it: see `frontends.Trainer`.

    The optimizer of the model, which is compiled, has the settings of the loop's. The module is
    that of the backend, with a class `Trained`.
    """

    def __init__(self, run: Run, model: keras.Model, images: Images, module: ModuleType) -> None:
        self.run, self.model, self.images = run, model, images
        steps = batches.steps_per_epoch(images, run) * run.epochs
        self.native: Native = module.Trained(Recipe(run, model, steps))
        self.resident = self._first() if run.input_mode == "resident" else None

    def settings(self) -> dict[str, Any]:
        scale = self.native.scale()
        return self.native.settings() | {"loss_scale": scale[0] if scale else "none"}

    def products(self) -> Products:
        return self.native.products(*self._first())

    def scale(self, model: keras.Model) -> Scale | None:
        return self.native.scale()

    def synchronize(self, model: keras.Model) -> None:
        self.native.synchronize()

    def predicted(self, data: keras.utils.PyDataset) -> np.ndarray:
        looks = [self.native.look(*self.native.put(*data[k])) for k in range(len(data))]
        self.native.totals()
        return np.concatenate([np.asarray(kept) for kept in looks])

    def fit(self, clock: StepClock, further: Sequence[Any] = ()) -> None:
        steps, batch = batches.steps_per_epoch(self.images, self.run), self.run.batch_size
        clock.set_model(self.model)
        clock.set_params({"steps": steps, "epochs": self.run.epochs})
        self.model.stop_training = False
        stream = self._stream()
        for epoch in range(self.run.epochs):
            clock.on_epoch_begin(epoch)
            done = 0
            while done < steps and not self.model.stop_training:
                clock.on_train_batch_begin(done)
                self.native.step(*next(stream))
                done += 1
            logs = self._means(done * batch) | self._validated()
            clock.on_epoch_end(epoch, logs)
            if self.model.stop_training or not math.isfinite(logs["loss"]):
                break
        for variable, value in zip(floats(self.model), self.native.weights(), strict=True):
            variable.assign(value)

    def predict_on_batch(self, x: np.ndarray) -> np.ndarray:
        given = self.resident[0] if self.resident else self.native.examples(x)
        return self.native.fetched(self.native.predict(given))

    def predict(self, clock: StepClock) -> np.ndarray:
        steps = len(batches.order(self.images, self.run))
        clock.set_model(self.model)
        clock.set_params({"steps": steps, "epochs": 1})
        self.model.stop_predicting = False
        stream = self._examples()
        for step in range(steps):
            clock.on_predict_batch_begin(step)
            given = self.native.predict(next(stream))
            if self.model.stop_predicting:
                break
        return self.native.fetched(given)

    def _examples(self) -> Iterator[Any]:
        if self.resident:
            return itertools.repeat(self.resident[0])
        return (self.native.examples(x) for x, _ in batches.training(self.images, self.run))

    def _stream(self) -> Iterator[Batch]:
        if self.resident:
            return itertools.repeat(self.resident)
        return (self.native.put(*batch) for batch in batches.training(self.images, self.run))

    def _first(self) -> Batch:
        chosen = batches.order(self.images, self.run)[0]
        return self.native.put(self.images.train_x[chosen], self.images.train_y[chosen])

    def _means(self, examples: int, prefix: str = "") -> dict[str, float]:
        loss, hits = self.native.totals()
        labels = examples * math.prod(self.images.train_y.shape[1:])
        return {f"{prefix}loss": loss / examples, f"{prefix}accuracy": hits / labels}

    def _validated(self) -> dict[str, float]:
        data = batches.validation(self.images, self.run).get("validation_data")
        for k in range(len(data) if data else 0):
            self.native.look(*self.native.put(*data[k]))
        return self._means(len(self.images.val_y), "val_") if data else {}


class Recipe:
    """What a `Native` is made from, all of it read from the run and the compiled Keras model.

    Args:
        steps: for how many the model is trained, where it is.

    Attributes:
        run: for its optimizer's settings, jit and the seed of dropout.
        network: the layers in order, see network.py.
        compute_dtype: of the run's policy.
        sequences: whether examples are sequences of tokens, with a label for each place.
        trains: whether it trains, for which optimizer and loss scale are made, or predicts.
        decay_steps: after how many steps the learning rate has decayed to zero, by half a cosine;
            None: never.
        optimizer: Keras's, of which only the settings are used.
        dynamic: Keras's optimizer of a dynamic loss scale, for its settings; None without one.
        trained: the variables that are trained, in Keras's order.
        weights: all that are floats, in Keras's order.

    Raises:
        ModelError: where a native loop has no counterpart of a layer.
    """

    def __init__(self, run: Run, model: keras.Model, steps: int) -> None:
        outer = model.optimizer
        self.run = run
        self.network = network(run, model)
        self.compute_dtype = POLICY_ROWS[run.policy].compute_dtype
        self.sequences = tasks.of(run.dataset) is tasks.TOKENS
        self.trains = run.phase == "train"
        self.decay_steps = steps if run.learning_rate_decay == "cosine" else None
        self.optimizer: keras.Optimizer = getattr(outer, "inner_optimizer", outer)
        self.dynamic: Any = outer if self.trains and self.optimizer is not outer else None
        self.trained: list[keras.Variable] = model.trainable_variables
        self.weights = floats(model)

    def rate_at(self, step: Any, xp: ModuleType) -> Any:
        """The learning rate of the step with this number, from 0, by numpy or jax.numpy."""
        rate = self.run.learning_rate
        if self.decay_steps is None:
            return rate
        return rate * 0.5 * (1 + xp.cos(xp.pi * xp.minimum(step / self.decay_steps, 1)))


def floats(model: keras.Model) -> list[keras.Variable]:
    """The weights of a model, moving averages among them, without seeds and counters."""
    return [weight for weight in model.weights if "float" in weight.dtype]
