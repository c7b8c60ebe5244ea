"""Who trains and predicts: Keras, or a plain loop as the backend's own users write it.

A run's `frontend` says which. A native one builds the same network, from the Keras model layer by
layer, takes its weights, and trains it or predicts with it on the same batches in the same order,
under the same clock: what differs is Keras. `trainer` is all that a run needs.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mptexp.spec.run import Run
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.data.datasets import Images

if TYPE_CHECKING:
    import keras

    from mptexp.training.measure.step_clock import StepClock

Scale = tuple[float, int]  # the loss scale now, and how many steps were not skipped


class Trainer(Protocol):
    """Trains a run's model, or predicts with it, as the run's phase says.

    Its Keras model holds the weights before and after.
    """

    model: "keras.Model"

    def settings(self) -> dict[str, Any]:
        """What it sets itself of `effective_settings`' keys; nothing where Keras does."""

    def products(self) -> Products:
        """Type and FLOPs of every product of a step, from its program; see Backend.products.

        A step is one of the run's phase: of an inference it is a forward pass.
        """

    def scale(self, model: "keras.Model") -> Scale | None:
        """The dynamic loss scale; None where there is none, or none yet."""

    def synchronize(self, model: "keras.Model") -> None:
        """Returns once the device has done all steps that were dispatched."""

    def predicted(self, data: "keras.utils.PyDataset") -> np.ndarray:
        """What is kept of each example's prediction, such as its class: see tasks.Task."""

    def fit(self, clock: "StepClock", further: Sequence[Any] = ()) -> None:
        """Trains, timed by the clock; the Keras model has the weights when it returns.

        Args:
            clock: see step_clock; `model.stop_training` ends the training.
            further: Keras's callbacks, which a native loop does not have.
        """

    def predict_on_batch(self, x: np.ndarray) -> np.ndarray:
        """The probabilities of a batch, from the host to the host.

        Args:
            x: examples; with input_mode resident a placeholder for those on the device.
        """

    def predict(self, clock: "StepClock") -> np.ndarray:
        """Predicts the run's batches in a row, timed by the clock; the last one's probabilities.

        Those of a batch before it are not kept: peak memory is that of a step.

        Args:
            clock: see step_clock; `model.stop_predicting` ends it.
        """


def trainer(run: Run, model: "keras.Model", images: Images) -> Trainer:
    """What the run's frontend trains the compiled model with, or predicts.

    Raises:
        ModelError: where a native loop has no counterpart of a layer.
    """
    if run.frontend == "keras":
        from mptexp.training.frontends.fit import KerasFit

        return KerasFit(run, model, images)
    from mptexp.training.frontends.loop import NativeLoop

    # Of a backend that has a plain loop: `spec.run` refuses the others.
    module = importlib.import_module(f"{__name__}.native_{run.backend}")
    return NativeLoop(run, model, images, module)
