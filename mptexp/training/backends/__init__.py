"""What TensorFlow, JAX and PyTorch each do in a way of their own: a module each, the same verbs.

`backend(name)` gives the module. No other module of `training` asks which backend it has. A module
imports its framework inside its functions: it can say how to install one that is absent, and sets
the environment that a framework reads when it is imported.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from mptexp.spec.run import Run
from mptexp.training.backends.shared_verbs import Batch, Forward, Node, Products

if TYPE_CHECKING:
    import keras


class Backend(Protocol):
    """The verbs of a backend. Each module has all of them, with these signatures."""

    INSTALL: str  # how to install it, where the machine has no NVIDIA driver
    INSTALL_FOR_GPU: str  # how to install it so that it sees an NVIDIA GPU
    # What oneDNN computes on a CPU: convolutions and products, forward and backward, in the type
    # that the first argument names. Empty where XLA compiles all.
    ONEDNN_PROGRAM: str
    WITHOUT_ONEDNN: str  # what a user is told where `uses_onednn` is False
    READS_TF_DATA: bool  # whether `fit` takes a tf.data pipeline without copies of its own
    DRAWS_AS_TENSORFLOW: bool  # whether Keras draws the weights here as it does with TensorFlow
    INTEGER: str  # type of integers that are computed with and counted in
    LABELS: str  # type of labels that stay on the device
    SEEDS: str  # type of the state of a random seed

    # --- the device and its settings

    def gpu(self) -> dict[str, Any] | None:
        """Name, capability and libraries of the NVIDIA GPU in use; None where it uses the CPU.

        Raises:
            Unsupported: where it uses neither.
        """

    def unsupported(self, run: Run, kind: str, data_format: str) -> str:
        """Why it cannot do what the run asks on a device of this kind; empty where it can.

        Args:
            kind: cpu or gpu.
            data_format: channels_last or channels_first, as the run resolves it.
        """

    def prepare_environment(self, run: Run) -> None:
        """Sets the variables that the framework reads when it is imported."""

    def limit_memory(self, limit_bytes: int, replicas: int) -> None:
        """Lets its allocator have so much of each GPU; before it looks at its devices."""

    def set_tf32(self, enabled: bool) -> None:
        """Whether products of float32 may use TF32 on a GPU."""

    def tf32(self, products: bool = False) -> bool:
        """Whether products of float32 may use TF32 on a GPU that has it.

        Args:
            products: whether matrix products are meant alone, without convolutions.
        """

    def set_determinism(self) -> None:
        """Takes only operations that give the same result each time; most often slower."""

    def is_deterministic(self) -> bool:
        """Whether it was told to give the same result each time, by us or by the environment."""

    def is_eager(self, model: "keras.Model") -> bool:
        """Whether it was told to execute a model's steps, or all, operation by operation.

        False where that is the usual way.
        """

    def threads(self) -> dict[str, int]:
        """How many threads it was told to compute with, by pool; 0 leaves the number to it."""

    def uses_onednn(self) -> bool | None:
        """Whether this process leaves work of a CPU to oneDNN; None where it never does."""

    # --- computing and waiting

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled where that is the backend's way."""

    def fused_batch_norm(
        self,
        x: Any,
        scale: Any,
        offset: Any,
        moving: Sequence[Any],
        epsilon: float,
        channels_first: bool,
    ) -> tuple[Any, Any, Any]:
        """Batch normalization of images in one operation; where its row of `spec.backends` says so.

        Args:
            x: images in the compute dtype; all others are float32, shape (channels,).
            scale: gamma.
            offset: beta.
            moving: mean and variance to take; empty takes those of the batch.
            epsilon: is added to the variance.
            channels_first: whether x has its channels there, else last.

        Returns:
            The images in the compute dtype, and mean and variance of the batch as a sample's, n /
            (n - 1) times Keras's, where n counts the pixels of the batch.
        """

    def holds_new(self) -> bool:
        """Whether arrays are held that were not when last asked; true where it waits for all."""

    def synchronize(self, model: "keras.Model | None") -> None:
        """Returns once the device has done all steps that were dispatched for this model."""

    def wait(self, result: Any) -> None:
        """Returns once the device has computed the result of a function."""

    def event_seconds(self, function: Callable[[], Any]) -> float | None:
        """Seconds of a call between two events of the device itself; None where it has none."""

    def peak_memory_bytes(self) -> int | None:
        """Most that its allocator had of a GPU so far, of the fullest one where it uses several."""

    def sync_variables(self, model: "keras.Model") -> None:
        """Puts the weights of a training into the model's variables, where they lie elsewhere."""

    def set_seed(self, seed: int) -> None:
        """Seeds Python, numpy and the backend, without importing another framework."""

    def products(self, model: "keras.Model", batch: Batch, training: bool) -> Products:
        """Type and FLOPs of every matrix product and convolution of a pass, from its program.

        The program is traced, not executed, and nothing is built or changed. Without the optimizer,
        which has no products and takes most of the time of tracing a step. Of a loop each pass
        counts where their number is known beforehand, else one does; of a condition every branch
        counts. What the results of the pass do not depend on is left out.

        Args:
            model: compiled.
            batch: images and labels as `fit` takes them; of their values nothing is used.
            training: forward, loss and gradients; else the forward pass of an inference.
        """

    def compiled_program(self, model: "keras.Model", batch: Batch, training: bool) -> str:
        """The program of a pass as XLA has compiled it, as text; empty where XLA compiles none.

        Nothing is executed or changed; compiling takes as long as for a step. The arguments are
        those of `products`.
        """

    # --- gradients

    def differentiated(
        self,
        forward: Forward,
        trained: list[Any],
    ) -> tuple[Any, list[tuple[str, Any]], list[Any]]:
        """The loss, what every layer gave, and the gradients of both outputs and weights.

        Args:
            forward: (weights, tap) -> loss; it lets each float tensor that a layer gives pass
                through tap(name of the layer, tensor) and goes on with what comes back.
            trained: the weights.

        Returns:
            Loss; (layer, output) in the order of computing; gradients of the outputs, then of the
            weights: None where the backend knows that the loss does not depend on one, else zeros.
        """

    def layer_gradients(
        self,
        layer: "keras.Layer",
        call: Callable[..., Any],
        inputs: Sequence[Any],
        with_inputs: bool,
        jit: bool,
    ) -> tuple[Any, ...]:
        """A function that runs a built layer forward and backward, and its arguments.

        It gives the output too: of a linear layer no gradient needs it, and it would be left out.

        Args:
            call: calls the layer with the inputs.
            with_inputs: whether the gradients of the inputs are computed too.
            jit: whether XLA compiles it.
        """

    # --- the profiler

    def start_trace(self, folder: Path) -> None:
        """Starts the profiler, without Python's calls, which cost more than they tell."""

    def stop_trace(self) -> None:
        """Stops the profiler, which then writes its trace into the folder."""

    def graph(self, model: "keras.Model", batch: Batch) -> list[Node]:
        """The operations of a training step, before the optimizer.

        A trace names an operation, and neither what it takes nor its type. Nothing is executed or
        changed.

        Args:
            model: compiled.
            batch: images and labels as `fit` takes them; of their values nothing is used.

        Returns:
            Empty where the backend's traces tell themselves.
        """

    def step_marker(self, step: int) -> AbstractContextManager[Any]:
        """Marks a step in the trace: Keras's own callback leaves no mark that xprof knows."""

    def traced_input(self, batches: Any) -> Any:
        """The batches, with the wait for each of them shown in the trace."""

    # --- batches

    def batches(self, x: Any, y: np.ndarray, order: np.ndarray) -> Any:
        """Batches for `fit`, read ahead on the host.

        Args:
            x: images, uint8 of shape (n, height, width, channels), or something like an array.
            y: labels, shape (n,).
            order: indices of the images of each batch, shape (steps, batch).
        """

    def placeholders(self, batch_size: int, steps: int) -> Any:
        """What `fit` is given where a step reads its batch from the device: only a batch size."""

    # --- replicas: several devices that share a batch

    def split_cpu(self, parts: int) -> None:
        """Makes logical devices of the CPU where there is no GPU.

        Raises:
            RuntimeError: where the backend has looked at its devices already.
        """

    def device_count(self, kind: str) -> int:
        """How many devices of a kind (cpu or gpu) it sees, logical ones too."""

    def share_batches(self, kind: str, replicas: int) -> None:
        """Lets every model that is made from now on share its batches among so many devices."""

    def replicas(self) -> int:
        """How many devices share the batches of the models that are made now."""

    def copies(self, weight: "keras.Variable") -> int:
        """On how many devices a weight lies."""

    def shared(self, batch: np.ndarray) -> Any:
        """A batch as `predict_on_batch` takes it, which does not share it among replicas itself."""

    def variable(self, x: np.ndarray) -> Any:
        """A batch that stays on the device, or a part of it on each; `own` reads it."""

    def constant(self, x: np.ndarray) -> Any:
        """The same for a small array that is never assigned to."""

    def own(self, held: Any) -> Any:
        """In a step, the part of a batch that belongs to the replica that asks."""

    def dynamic_loss_scale(self, optimizer: "keras.Optimizer") -> "keras.Optimizer":
        """The optimizer with a dynamic loss scale that heeds the gradients of all replicas."""


@cache
def backend(name: str) -> Backend:
    """The module of a backend.

    Raises:
        TypeError: where it lacks a verb, or has one with another signature.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    if missing := list(faults(module)):
        raise TypeError(f"backend {name}: {'; '.join(missing)}")
    return cast(Backend, module)


def current() -> Backend:
    """The module of the backend that Keras runs on in this process."""
    import keras

    return backend(keras.backend.backend())


def faults(module: ModuleType) -> Iterator[str]:
    """What keeps a module from being a backend: constants and verbs that it lacks."""
    for name, kind in Backend.__annotations__.items():
        if not isinstance(getattr(module, name, None), kind):
            yield f"has no {name} of type {kind.__name__}"
    for name, verb in inspect.getmembers(Backend, inspect.isfunction):
        if not name.startswith("_") and _signature(getattr(module, name, None)) != _signature(verb):
            yield f"has no {name}{inspect.signature(verb)}"


def _signature(function: Any) -> tuple[list[inspect.Parameter], Any] | None:
    """Parameters, without `self`, and what is returned; None of what is no function."""
    if not inspect.isfunction(function):
        return None
    signature = inspect.signature(function)
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    return parameters, signature.return_annotation
