"""Who trains: Keras's `fit`, or a plain loop as the backend's own users write it.

A run's `frontend` says which. A native one builds the same network, from the Keras model layer by
layer, copies its weights, and trains it on the same batches in the same order, under the same
clock: what differs is Keras. `native` gives the module of a backend that has one; `trainer` is all
that a run needs.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mptexp.spec.run import Run
from mptexp.training.data.datasets import Images

if TYPE_CHECKING:
    import keras

    from mptexp.training.measure.step_clock import StepClock

Scale = tuple[float, int]  # the loss scale now, and how many steps were not skipped


class Trainer(Protocol):
    """Trains a run's model. Its Keras model holds the weights before and after the training."""

    model: "keras.Model"

    def settings(self) -> dict[str, Any]:
        """What it sets itself of `effective.effective`'s keys; nothing where Keras does."""

    def products(self) -> list[tuple[str, float]]:
        """Type and FLOPs of every product of a step, from its program; see Backend.products."""

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


def trainer(run: Run, model: "keras.Model", images: Images) -> Trainer:
    """What the run's frontend trains the compiled model with.

    Raises:
        ModelError: where a native loop has no counterpart of a layer.
    """
    if run.frontend == "keras":
        from mptexp.training.frontends.fit import KerasFit

        return KerasFit(run, model, images)
    from mptexp.training.frontends.loop import NativeLoop

    return NativeLoop(run, model, images, native(run.backend))


def native(name: str) -> ModuleType:
    """The module of a backend's plain loop; `spec.run` refuses backends without one."""
    return importlib.import_module(f"{__name__}.native_{name}")
