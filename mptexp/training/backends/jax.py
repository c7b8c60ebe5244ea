"""JAX: XLA compiles everything; steps run asynchronously; arrays are sharded over devices."""

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mptexp.host import imports
from mptexp.spec.names import TRANSFORMERS
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.traces import xplane
from mptexp.training import capability
from mptexp.training.backends import shared_verbs
from mptexp.training.backends.shared_verbs import Batch, Forward, Products
from mptexp.training.backends.shared_verbs import batches as batches
from mptexp.training.backends.shared_verbs import dynamic_loss_scale as dynamic_loss_scale
from mptexp.training.backends.shared_verbs import event_seconds as event_seconds
from mptexp.training.backends.shared_verbs import graph as graph
from mptexp.training.backends.shared_verbs import own as own
from mptexp.training.backends.shared_verbs import placeholders as placeholders
from mptexp.training.backends.shared_verbs import set_seed as set_seed

if TYPE_CHECKING:
    import jax
    import keras
else:  # imported at first use
    jax, keras = imports.Lazy("jax"), imports.Lazy("keras")

INSTALL = "pip install jax"
INSTALL_FOR_GPU = "pip install 'jax[cuda12]'"  # without its plugin JAX runs on the CPU
ONEDNN_PROGRAM = ""
WITHOUT_ONEDNN = ""
READS_TF_DATA = False
DRAWS_AS_TENSORFLOW = False
INTEGER = "int32"  # JAX has 64 bits only where they are asked for
LABELS = "int32"
SEEDS = "uint32"
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"

# --- the device and its settings ------------------------------------------------------------------


def gpu() -> dict[str, Any] | None:
    """The first device that JAX would use.

    Raises:
        Unsupported: where it is neither a CPU nor an NVIDIA GPU.
    """
    first = jax.devices()[0]
    if first.platform == "cpu":
        return None
    if first.platform != "gpu":
        raise capability.Unsupported(f"{first.device_kind} is neither a CPU nor an NVIDIA GPU")
    version = getattr(first, "compute_capability", "")
    return {
        "device": first.device_kind,
        "kind": "gpu",
        "capability": [int(n) for n in version.split(".")] if version else None,
    }


def unsupported(run: Run, kind: str, data_format: str) -> str:
    """A limit on oneDNN, which computes next to nothing here, and attention in float16 on a CPU.

    JAX (0.10) asks for products that XLA has only on a GPU; without jit it takes others.
    """
    half = POLICY_ROWS[run.policy].compute_dtype == "float16" and run.jit != "off"
    if kind == "cpu" and half and run.model in TRANSFORMERS:
        return (
            f"model {run.model} has attention, which JAX does not compile in float16 on a CPU; "
            "take a policy with bfloat16, or another backend"
        )
    if run.cpu_isa == "default":
        return ""
    return (
        f"cpu_isa {run.cpu_isa} limits oneDNN, to which JAX leaves only some products; XLA "
        "compiles the rest"
    )


def prepare_environment(run: Run) -> None:
    """XLA's flags for determinism, and against command buffers, which hide kernels in a trace."""
    flags = [os.environ.get("XLA_FLAGS", "")]
    flags += [DETERMINISTIC] if run.deterministic else []
    flags += ["--xla_gpu_enable_command_buffer="] if run.profile else []
    if flags[1:]:
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()


def limit_memory(limit_bytes: int, replicas: int) -> None:
    """Read when JAX first looks at the GPU, which importing Keras does not do."""
    memory = capability.gpu_memory_bytes()
    if not memory:
        raise capability.Unsupported(
            "memory_limit_gb: JAX takes a share of the GPU's memory, and NVML does not say how "
            "much this one has; allowed: no limit, or another backend"
        )
    share = limit_bytes / memory
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(1.0, share):.4f}"


def set_tf32(enabled: bool) -> None:
    """As the precision of all products and convolutions."""
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if enabled else "float32")


def tf32(products: bool = False) -> bool:
    """On where no precision is set."""
    return jax.config.jax_default_matmul_precision in (None, "default", "tensorfloat32")


def set_determinism() -> None:
    """Nothing to do: see `prepare_environment`."""


def is_deterministic() -> bool:
    """XLA's flag."""
    return DETERMINISTIC in os.environ.get("XLA_FLAGS", "")


def is_eager(model: "keras.Model") -> bool:
    """By JAX's own setting, or by Keras's."""
    return bool(jax.config.jax_disable_jit or getattr(model, "run_eagerly", False))


def threads() -> dict[str, int]:
    """XLA's own pool has no setting."""
    return {}


def uses_onednn() -> bool | None:
    """XLA compiles all but some products."""
    return None


# --- computing and waiting ------------------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """By XLA."""
    return jax.jit(function)


def fused_batch_norm(
    x: Any, scale: Any, offset: Any, moving: Sequence[Any], epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """None: XLA fuses what it can by itself."""
    raise NotImplementedError("JAX has none; see spec.backends")


_held: dict[int, weakref.ref[Any]] = {}  # by their ids, which others have once they are gone


def holds_new() -> bool:
    """Of what JAX itself lists, without what was made and dropped meanwhile."""
    before = {place for place, array in _held.items() if array() is not None}
    _held.clear()
    _held.update((id(array), weakref.ref(array)) for array in jax.live_arrays())
    return not _held.keys() <= before


def synchronize(model: "keras.Model | None") -> None:
    """Waits for the state of Keras's trainer: a step's outputs are ready together.

    Keras keeps them in a dict and lists of its own, which JAX takes for leaves and would not wait
    for. Without a model for every array that the process holds; JAX has no means to wait for
    work whose results nothing holds.
    """
    if model is None:
        _wait_for_live()
    state = getattr(model, "_jax_state", None) or {}
    jax.block_until_ready([variable for variables in state.values() for variable in variables])


def _wait_for_live() -> None:
    """What is donated to a step, or deleted by another thread meanwhile, is passed over."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except RuntimeError:
            if not array.is_deleted():
                raise


def wait(result: Any) -> None:
    """Waits for its arrays."""
    jax.block_until_ready(result)


def peak_memory_bytes() -> int | None:
    """Of the allocator of each device; None where none of them keeps statistics."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    return max((s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s), default=None)


def sync_variables(model: "keras.Model") -> None:
    """During `fit` the weights live in the state of Keras's trainer."""
    if getattr(model, "_jax_state", None):
        model.jax_state_sync()


def products(model: "keras.Model", batch: Batch, training: bool) -> Products:
    """From the jaxpr of the pass, without what is computed for nothing."""
    return traced_products(_pass(model, training), *_state(model), *batch)


def compiled_program(model: "keras.Model", batch: Batch, training: bool) -> str:
    """XLA compiles every step."""
    lowered = jax.jit(_pass(model, training)).lower(*_state(model), *batch)
    return str(lowered.compile().as_text())


def _state(model: "keras.Model") -> Any:
    return model._get_jax_state(trainable_variables=True, non_trainable_variables=True)


def _pass(model: "keras.Model", training: bool) -> Callable[..., Any]:
    """The gradients of a step, or what an inference gives, of weights, other variables, x and y."""

    def loss(trained: list[Any], others: list[Any], x: Any, y: Any) -> Any:
        updated = model.compute_loss_and_updates(
            trained, others, [], x, y, None, training=True, optimizer_variables=[]
        )
        return updated[0]

    def forward(trained: list[Any], others: list[Any], x: Any, y: Any) -> Any:
        return model.stateless_call(trained, others, x, training=False)[0]

    return jax.grad(loss) if training else forward


def traced_products(passes: Callable[..., Any], *values: Any) -> Products:
    """Type and FLOPs of the products that the results of a function of these values depend on."""
    from jax.interpreters import partial_eval

    jaxpr = jax.make_jaxpr(passes)(*values).jaxpr
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return [*_products(used)]


def _products(jaxpr: Any) -> Iterator[tuple[str, float]]:
    """Of a jaxpr and those within it; a scan does its own as many times as it is long."""
    for equation in jaxpr.eqns:
        if flops := FLOPS.get(equation.primitive.name):
            operands = [v.aval for v in equation.invars[:2]]
            dtype = shared_verbs.widest(operand.dtype.name for operand in operands)
            yield dtype, flops(equation.params, *operands, equation.outvars[0].aval)
        for inner in _inner(equation.params.values()):
            for dtype, count in _products(inner):
                yield dtype, count * equation.params.get("length", 1)


def _inner(values: Iterable[Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation, closed ones opened."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner(value)
        elif hasattr(value, "eqns"):
            yield getattr(value, "jaxpr", value)


def _dot_flops(params: dict[str, Any], x: Any, y: Any, out: Any) -> float:
    (summed, _), _ = params["dimension_numbers"]
    return 2.0 * out.size * math.prod(x.shape[axis] for axis in summed)


def _conv_flops(params: dict[str, Any], x: Any, y: Any, out: Any) -> float:
    """Without the zeros that the gradient of a strided convolution puts between its inputs."""
    filters = y.shape[params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * out.size * y.size / filters / math.prod(params["lhs_dilation"])


FLOPS = {"dot_general": _dot_flops, "conv_general_dilated": _conv_flops}

# --- gradients ------------------------------------------------------------------------------------


def differentiated(
    forward: Forward, trained: list[Any]
) -> tuple[Any, list[tuple[str, Any]], list[Any]]:
    """The gradient of what a layer gives is that of a zero that is added to it."""
    names: list[str] = []

    def loss_and_outputs(trained: list[Any], zeros: list[Any] | None) -> tuple[Any, list[Any]]:
        outputs: list[Any] = []
        names.clear()

        def tap(layer: str, output: Any) -> Any:
            names.append(layer)
            outputs.append(output if zeros is None else output + zeros[len(outputs)])
            return outputs[-1]

        return forward(trained, tap), outputs

    _, shapes = jax.eval_shape(lambda values: loss_and_outputs(values, None), trained)
    zeros = [jax.numpy.zeros(output.shape, output.dtype) for output in shapes]
    gradient = jax.value_and_grad(loss_and_outputs, argnums=(0, 1), has_aux=True)
    (loss, outputs), (of_trained, of_outputs) = gradient(trained, zeros)
    return loss, list(zip(names, outputs, strict=True)), [*of_outputs, *of_trained]


def layer_gradients(
    layer: "keras.Layer",
    call: Callable[..., Any],
    inputs: Sequence[Any],
    with_inputs: bool,
    jit: bool,
) -> tuple[Any, ...]:
    """By a vector-Jacobian product of the layer as a function of its weights."""
    weights = [v.value for v in layer.trainable_variables]

    def both(weights: Any, *inputs: Any) -> Any:
        def forward(weights: Any, *inputs: Any) -> Any:
            # Not Keras's stateless_call, which does not cast weights to the compute dtype.
            values = zip(layer.trainable_variables, weights, strict=True)
            with keras.StatelessScope(state_mapping=values):
                return call(*inputs)

        if not with_inputs and not weights:
            return forward(weights, *inputs)
        if with_inputs:
            y, back = jax.vjp(forward, weights, *inputs)
        else:
            y, back = jax.vjp(lambda weights: forward(weights, *inputs), weights)
        return y, back(jax.tree.map(jax.numpy.ones_like, y))

    return jax.jit(both) if jit else both, weights, *inputs


# --- the profiler ---------------------------------------------------------------------------------


def start_trace(folder: Path) -> None:
    """XLA's operations, on the host and on the device."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder), profiler_options=options)


def stop_trace() -> None:
    """Writes plugins/profile/*/*.xplane.pb."""
    jax.profiler.stop_trace()


def step_marker(step: int) -> AbstractContextManager[Any]:
    """An annotation that xprof knows."""
    return jax.profiler.StepTraceAnnotation(xplane.MARK, step_num=step)


def traced_input(batches: Any) -> Any:
    """Each wait for a batch as an annotation."""
    return shared_verbs.shown(batches, lambda: jax.profiler.TraceAnnotation(xplane.INPUT))


# --- replicas -------------------------------------------------------------------------------------


def split_cpu(parts: int) -> None:
    """Logical devices of the CPU; GPUs are what they are."""
    jax.config.update("jax_num_cpu_devices", parts)


def device_count(kind: str) -> int:
    """JAX counts the devices of the kind that it uses."""
    return jax.device_count()


def share_batches(kind: str, replicas: int) -> None:
    """By keras.distribution.DataParallel, in one process."""
    devices = keras.distribution.list_devices()[:replicas]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))


def replicas() -> int:
    """Those of Keras's distribution in use."""
    distribution = keras.distribution.distribution()
    return distribution.num_model_replicas if distribution else 1


def copies(weight: "keras.Variable") -> int:
    """The devices of its sharding."""
    return len(weight.value.sharding.device_set)


def shared(batch: np.ndarray) -> Any:
    """A part of its first axis on each device."""
    return _placed(batch) if replicas() > 1 else batch


def _placed(x: np.ndarray) -> Any:
    return jax.device_put(x, _layout(x).backend_layout)


def _layout(x: np.ndarray) -> Any:
    return keras.distribution.distribution().get_data_layout(x.shape)


def variable(x: np.ndarray) -> Any:
    """A Keras variable, sharded by its first axis."""
    if replicas() == 1:
        return shared_verbs.variable(x)
    return keras.Variable(x, dtype=str(x.dtype), trainable=False, layout=_layout(x))


def constant(x: np.ndarray) -> Any:
    """An array, sharded by its first axis."""
    return _placed(x) if replicas() > 1 else shared_verbs.constant(x)
