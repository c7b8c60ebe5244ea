"""PyTorch: steps run eagerly, on one device."""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mptexp.host import imports
from mptexp.spec.run import Run
from mptexp.traces import kineto, launching_layers
from mptexp.training import capability
from mptexp.training.backends import shared_verbs
from mptexp.training.backends.shared_verbs import Batch, Forward, Products
from mptexp.training.backends.shared_verbs import batches as batches
from mptexp.training.backends.shared_verbs import constant as constant
from mptexp.training.backends.shared_verbs import dynamic_loss_scale as dynamic_loss_scale
from mptexp.training.backends.shared_verbs import graph as graph
from mptexp.training.backends.shared_verbs import holds_new as holds_new
from mptexp.training.backends.shared_verbs import own as own
from mptexp.training.backends.shared_verbs import placeholders as placeholders
from mptexp.training.backends.shared_verbs import set_seed as set_seed
from mptexp.training.backends.shared_verbs import sync_variables as sync_variables
from mptexp.training.backends.shared_verbs import variable as variable

if TYPE_CHECKING:
    import keras
    import torch
else:  # imported at first use
    keras, torch = imports.Lazy("keras"), imports.Lazy("torch")

INSTALL = "pip install torch"
INSTALL_FOR_GPU = "install a CUDA build of PyTorch"
# A convolution large enough for PyTorch to leave it to oneDNN.
ONEDNN_PROGRAM = """
import sys
import torch

x, kernel, matrix = [
    torch.ones(shape, dtype=getattr(torch, sys.argv[1]), requires_grad=True)
    for shape in ((4, 16, 32, 32), (16, 16, 3, 3), (64, 64))
]
convolved, product = torch.nn.functional.conv2d(x, kernel), matrix @ matrix
(convolved.sum() + product.sum()).backward()
"""
WITHOUT_ONEDNN = "PyTorch computes without oneDNN, which is turned off or missing in this build"
READS_TF_DATA = False
DRAWS_AS_TENSORFLOW = False
INTEGER = "int32"
LABELS = "int64"
SEEDS = "int64"

# --- the device and its settings ------------------------------------------------------------------


def gpu() -> dict[str, Any] | None:
    """CUDA's first device.

    Raises:
        Unsupported: where a script has chosen another one, of which no sensor is read; where Keras
            would take a device that is neither a CPU nor an NVIDIA GPU: its launches would be
            timed.
    """
    if not torch.cuda.is_available():
        if other := _other_device():
            raise capability.Unsupported(
                f"PyTorch's {other} is neither a CPU nor an NVIDIA GPU; KERAS_TORCH_DEVICE=cpu "
                "in the environment leaves it out"
            )
        return None
    if number := torch.cuda.current_device():
        raise capability.Unsupported(
            f"PyTorch's current device is cuda:{number}, and sensors are read of the first GPU "
            f"that is visible; CUDA_VISIBLE_DEVICES={number} makes it that"
        )
    return {
        "device": torch.cuda.get_device_name(0),
        "kind": "gpu",
        "capability": list(torch.cuda.get_device_capability(0)),
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
    }


def _other_device() -> str:
    """The device that Keras takes where there is no CUDA: Apple's, Intel's, or none but the CPU."""
    if os.environ.get("KERAS_TORCH_DEVICE", "").partition(":")[0] == "cpu":
        return ""
    known = {"mps": torch.backends.mps, "xpu": getattr(torch, "xpu", None)}
    return next((name for name, module in known.items() if module and module.is_available()), "")


def unsupported(run: Run, kind: str, data_format: str) -> str:
    """One device and one step at a time."""
    if run.replicas > 1:
        return (
            f"replicas {run.replicas} asked for; Keras shares no batch among devices under "
            "PyTorch: take backend tensorflow or jax"
        )
    if run.steps_per_execution > 1:
        return "steps_per_execution above 1 is asked for; PyTorch in Keras has only 1"
    if run.jit == "on" and (missing := _missing_compiler(kind)):
        return f"jit on is torch.compile under PyTorch, which needs {missing}; take jit auto or off"
    return ""


def _missing_compiler(kind: str) -> str:
    """What torch.compile lacks for a device of this kind; empty where it lacks nothing."""
    if kind == "gpu":
        has_triton = importlib.util.find_spec("triton") is not None
        return "" if has_triton else "Triton (pip install triton)"
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "a C++ compiler (g++, or the one that CXX names), which is not installed"
    return ""


def prepare_environment(run: Run) -> None:
    """The workspace that deterministic cuBLAS needs; the CPU where there is no NVIDIA driver."""
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if capability.driver() is None:
        # PyTorch would take a Mac's GPU, which is not supported here.
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")


def limit_memory(limit_bytes: int, replicas: int) -> None:
    """As a share of the first GPU's memory."""
    if torch.cuda.is_available():
        share = limit_bytes / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))


def set_tf32(enabled: bool) -> None:
    """For matrix products and convolutions, which have a flag each."""
    torch.backends.cuda.matmul.allow_tf32 = enabled
    torch.backends.cudnn.allow_tf32 = enabled


def tf32(products: bool = False) -> bool:
    """Either flag: by default convolutions may use TF32 and matrix products may not."""
    convolutions = torch.backends.cudnn.allow_tf32 and not products
    return bool(torch.backends.cuda.matmul.allow_tf32 or convolutions)


def set_determinism() -> None:
    """Without cuDNN's benchmark, which may choose another algorithm each time."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def is_deterministic() -> bool:
    """PyTorch's own flag."""
    return bool(torch.are_deterministic_algorithms_enabled())


def is_eager(model: "keras.Model") -> bool:
    """Keras compiles nothing here: it is the usual way."""
    return False


def threads() -> dict[str, int]:
    """Within an operation, and operations beside one another; a number even where none was set."""
    return {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}


def uses_onednn() -> bool | None:
    """Where it was built with it and it is not turned off."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


# --- computing and waiting ------------------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As it is: steps of Keras run eagerly here too."""
    return function


def fused_batch_norm(
    x: Any, scale: Any, offset: Any, moving: Sequence[Any], epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """With momentum 1 the averages that PyTorch moves become the batch's own."""
    mean, variance = moving or (torch.zeros_like(scale), torch.ones_like(scale))
    images = x if channels_first else x.movedim(-1, 1)
    y = torch.nn.functional.batch_norm(
        images, mean, variance, scale, offset, training=not moving, momentum=1.0, eps=epsilon
    )
    return y if channels_first else y.movedim(1, -1), mean, variance


def synchronize(model: "keras.Model | None") -> None:
    """Waits for the GPU; a CPU computes while it is called."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wait(result: Any) -> None:
    """Waits for the GPU, whatever the result."""
    synchronize(None)


def event_seconds(function: Callable[[], Any]) -> float | None:
    """By CUDA's events, which the GPU itself stamps."""
    if not torch.cuda.is_available():
        return None
    function()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    function()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def peak_memory_bytes() -> int | None:
    """Of the caching allocator, tensors alone."""
    return int(torch.cuda.max_memory_allocated())


def products(model: "keras.Model", batch: Batch, training: bool) -> Products:
    """From a pass that is executed, since there is no graph; what it changes is put back."""
    before = [(v, v.value.detach().clone()) for v in model.variables]
    x, y = batch
    with torch.random.fork_rng(), torch.set_grad_enabled(training), counted_products() as counted:
        given = model(x, training=training)
        if training:
            model.compute_loss(x=x, y=y, y_pred=given, training=True).backward()
    model.zero_grad()
    for changed, value in before:
        changed.assign(value)
    del before, given
    if torch.cuda.is_available():  # the pass is mptexp's, and no step of the run
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    return counted


def compiled_program(model: "keras.Model", batch: Batch, training: bool) -> str:
    """No step is a program of XLA's."""
    return ""


@contextmanager
def counted_products() -> Iterator[Products]:
    """Type and FLOPs of the products that are executed within, in a list that is filled then."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    counted: Products = []

    class Count(TorchDispatchMode):
        """PyTorch's own count of an operation's FLOPs, and the type of its operands."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if rule := flop_registry.get(func._overloadpacket):
                operands = [value for value in args if isinstance(value, torch.Tensor)]
                dtype = shared_verbs.widest(str(x.dtype).removeprefix("torch.") for x in operands)
                counted.append((dtype, float(rule(*args, **(kwargs or {}), out_val=result))))
            return result

    with Count():
        yield counted


# --- gradients ------------------------------------------------------------------------------------


def differentiated(
    forward: Forward, trained: list[Any]
) -> tuple[Any, list[tuple[str, Any]], list[Any]]:
    """By autograd, which knows nothing of tensors that no weight comes before."""
    outputs: list[tuple[str, Any]] = []

    def tap(layer: str, output: Any) -> Any:
        outputs.append((layer, output))
        return output

    trained = [value.detach().clone().requires_grad_() for value in trained]
    # Dropout without a seed of its own draws from the global stream.
    with torch.random.fork_rng(), torch.enable_grad():
        loss = forward(trained, tap)
    ends = [output for _, output in outputs] + trained
    learning = [end for end in ends if end.requires_grad]
    known = torch.autograd.grad(loss, learning, allow_unused=True)
    by_end = {id(end): gradient for end, gradient in zip(learning, known, strict=True)}
    gradients = [by_end.get(id(end)) for end in ends]
    return loss.detach(), [(layer, output.detach()) for layer, output in outputs], gradients


def layer_gradients(
    layer: "keras.Layer",
    call: Callable[..., Any],
    inputs: Sequence[Any],
    with_inputs: bool,
    jit: bool,
) -> tuple[Any, ...]:
    """By autograd; XLA is not asked."""

    def both(*inputs: Any) -> Any:
        y = call(*inputs)
        if y.requires_grad:  # not that of a frozen layer whose input asks for no gradient
            y.backward(keras.ops.ones_like(y))
        return y

    return both, *(x.detach().requires_grad_(with_inputs) for x in inputs)


# --- the profiler ---------------------------------------------------------------------------------


_tracing = ExitStack()  # what the profiler that runs is to end with


def start_trace(folder: Path) -> None:
    """Layers, the optimizer and the loss get ranges of their own, as PyTorch gives its modules."""
    _tracing.enter_context(_ranges(keras.layers.Layer, "__call__", _module))
    _tracing.enter_context(_ranges(keras.optimizers.Optimizer, "apply", lambda _: kineto.OWN_STEP))
    _tracing.enter_context(
        _ranges(keras.Model, "compute_loss", lambda _: launching_layers.OWN_LOSS)
    )
    # Without acc_events it warns that it clears events between cycles, of which there is one here.
    profiler = torch.profiler.profile(acc_events=True)
    _tracing.callback(lambda: profiler.export_chrome_trace(str(folder / kineto.OWN_FILE)))
    _tracing.callback(profiler.stop)
    profiler.start()


def _module(layer: "keras.layers.Layer") -> str:
    return f"{launching_layers.MODULE}{layer.name}"


@contextmanager
def _ranges(owner: Any, method: str, name: Callable[[Any], str]) -> Iterator[None]:
    """Shows each call of a method in the trace."""
    original = getattr(owner, method)

    def shown(self: Any, *words: Any, **options: Any) -> Any:
        with torch.profiler.record_function(name(self)):
            return original(self, *words, **options)

    setattr(owner, method, shown)
    try:
        yield
    finally:
        setattr(owner, method, original)


def stop_trace() -> None:
    """Writes the trace, and takes the ranges back."""
    _tracing.close()


def step_marker(step: int) -> AbstractContextManager[Any]:
    """As PyTorch's own schedule marks a step."""
    return torch.profiler.record_function(f"ProfilerStep#{step}")


def traced_input(batches: Any) -> Any:
    """The batches, each fetched in a range of its own."""
    return shared_verbs.shown(batches, lambda: torch.profiler.record_function(kineto.OWN_INPUT))


# --- replicas: always one -------------------------------------------------------------------------


def split_cpu(parts: int) -> None:
    """Nothing to do: Keras shares no batch here."""


def device_count(kind: str) -> int:
    """One is used, however many there are."""
    return 1


def share_batches(kind: str, replicas: int) -> None:
    """Nothing to do: `unsupported` refuses several replicas."""


def replicas() -> int:
    """One, always."""
    return 1


def copies(weight: "keras.Variable") -> int:
    """One, always."""
    return 1


def shared(batch: np.ndarray) -> Any:
    """The batch itself."""
    return batch
