"""TensorFlow: tf.function with or without XLA, tf.data, oneDNN on a CPU, MirroredStrategy."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mptexp.host import imports
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.traces import xplane
from mptexp.training import capability
from mptexp.training.backends import shared_verbs
from mptexp.training.backends.shared_verbs import Batch, Forward, Node, Products
from mptexp.training.backends.shared_verbs import event_seconds as event_seconds
from mptexp.training.backends.shared_verbs import holds_new as holds_new
from mptexp.training.backends.shared_verbs import sync_variables as sync_variables

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:  # imported at first use
    keras, tf = imports.Lazy("keras"), imports.Lazy("tensorflow")

INSTALL = "pip install tensorflow"
INSTALL_FOR_GPU = "pip install 'tensorflow[and-cuda]>=2.21,<2.22'"
ONEDNN_PROGRAM = """
import gc, sys
gc.disable()  # see host.imports.uncollected
import tensorflow as tf
gc.freeze()

x, kernel, matrix = [
    tf.Variable(tf.ones(shape, sys.argv[1]))
    for shape in ((4, 32, 32, 16), (3, 3, 16, 16), (64, 64))
]
with tf.GradientTape() as tape:
    convolved, product = tf.nn.conv2d(x, kernel, 1, "SAME"), matrix @ matrix
    sums = tf.reduce_sum(convolved) + tf.reduce_sum(product)
tape.gradient(sums, [x, kernel, matrix])
"""
WITHOUT_ONEDNN = (
    "TensorFlow computes without oneDNN on this CPU; TF_ENABLE_ONEDNN_OPTS=1 in the environment "
    "turns it on, which may be faster"
)
READS_TF_DATA = True
DRAWS_AS_TENSORFLOW = True
INTEGER = "int64"
LABELS = "int64"  # int32 would live on the host
SEEDS = "int64"

# --- the device and its settings ------------------------------------------------------------------


def gpu() -> dict[str, Any] | None:
    """The first GPU that a script has not hidden, with the CUDA and cuDNN of this build."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    details = tf.config.experimental.get_device_details(gpus[0])
    build = tf.sysconfig.get_build_info()
    return {
        "device": details.get("device_name", "unknown GPU"),
        "kind": "gpu",
        "capability": list(details.get("compute_capability", ())) or None,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }


def unsupported(run: Run, kind: str, data_format: str) -> str:
    """Limits of XLA under MirroredStrategy, and of oneDNN beside XLA."""
    limit = f"cpu_isa {run.cpu_isa} limits oneDNN"
    limited = run.cpu_isa != "default"
    several = f"replicas {run.replicas} asked for"
    compute_dtype = POLICY_ROWS[run.policy].compute_dtype
    float16 = compute_dtype == "float16"
    cases = {
        # It would end the process: of products oneDNN throws what TensorFlow does not catch.
        f"{limit} to instructions in which it has no bfloat16; take avx512_core or a later one": (
            limited and compute_dtype == "bfloat16" and not run.cpu_isa.startswith("avx512")
        ),
        f"{limit}, to which XLA leaves only some products; take jit auto or off": (
            limited and run.jit == "on"
        ),
        f"{limit}, which TF_ENABLE_ONEDNN_OPTS=0 turns off": (
            limited and os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
        ),
        f"{limit}, which TensorFlow was imported without before the run could turn it on; restart "
        "the kernel": limited and not uses_onednn(),
        "TensorFlow has no channels_first convolution in float16 for a CPU without XLA; take jit "
        "on, channels_last or another policy": (
            kind == "cpu" and run.jit != "on" and float16 and data_format == "channels_first"
        ),
        f"{several} with jit on; under TensorFlow Keras compiles a step for one device alone: take "
        "jit auto or off, or backend jax": run.replicas > 1 and run.jit == "on",
        f"{several} with steps_per_execution {run.steps_per_execution}; TensorFlow executes one "
        "step at a time for several replicas: take 1, or backend jax": (
            run.replicas > 1 and run.steps_per_execution > 1
        ),
    }
    return next((sentence for sentence, holds in cases.items() if holds), "")


def prepare_environment(run: Run) -> None:
    """Turns oneDNN on where a run needs it, and command buffers off where a trace is wanted."""
    first = run.data_format == "channels_first" and capability.driver() is None
    if run.cpu_isa != "default" or first:  # of CPUs it alone computes channels_first
        # TensorFlow turns it on by itself only where the CPU has AVX512_VNNI, AVX_VNNI or later.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if run.profile:  # XLA would launch kernels as one buffer, which hides them from a trace
        before = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{before} --xla_gpu_enable_command_buffer=".strip()


def limit_memory(limit_bytes: int, replicas: int) -> None:
    """As one logical device of that size on each physical GPU."""
    for device in tf.config.list_physical_devices("GPU")[:replicas]:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes / 2**20)
        tf.config.set_logical_device_configuration(device, [part])


def set_tf32(enabled: bool) -> None:
    """For matrix products and convolutions alike."""
    tf.config.experimental.enable_tensor_float_32_execution(enabled)


def tf32(products: bool = False) -> bool:
    """TensorFlow's own flag, on by default."""
    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def set_determinism() -> None:
    """Keras turns XLA off then."""
    tf.config.experimental.enable_op_determinism()


def is_deterministic() -> bool:
    """As Keras asks: TensorFlow has no public function for it."""
    from tensorflow.python.framework import config

    by_environment = os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true")
    return bool(config.is_op_determinism_enabled()) or by_environment


def is_eager(model: "keras.Model") -> bool:
    """By TensorFlow's own setting, or by Keras's."""
    return bool(tf.config.functions_run_eagerly() or getattr(model, "run_eagerly", False))


def threads() -> dict[str, int]:
    """Within an operation, and operations beside one another."""
    pools = tf.config.threading
    return {
        "intra_op": pools.get_intra_op_parallelism_threads(),
        "inter_op": pools.get_inter_op_parallelism_threads(),
    }


def uses_onednn() -> bool | None:
    """As it was decided when TensorFlow was imported: it has no public function for it."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


# --- computing and waiting ------------------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a graph, without XLA."""
    return tf.function(function, autograph=False)


def fused_batch_norm(
    x: Any, scale: Any, offset: Any, moving: Sequence[Any], epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """Channels first runs on a GPU alone, as TensorFlow's convolutions do."""
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        x,
        scale,
        offset,
        *moving,
        epsilon=epsilon,
        data_format="NCHW" if channels_first else "NHWC",
        is_training=not moving,
    )
    return y, mean, variance


def synchronize(model: "keras.Model | None") -> None:
    """Waits for all devices, whatever the model."""
    tf.test.experimental.sync_devices()


def wait(result: Any) -> None:
    """Waits for all devices, whatever the result."""
    synchronize(None)


def peak_memory_bytes() -> int | None:
    """Of the allocator of each logical GPU."""
    gpus = range(len(tf.config.list_logical_devices("GPU")))
    info = tf.config.experimental.get_memory_info
    return max((int(info(f"GPU:{i}")["peak"]) for i in gpus), default=None)


def set_seed(seed: int) -> None:
    """Keras seeds TensorFlow itself."""
    keras.utils.set_random_seed(seed)


def products(model: "keras.Model", batch: Batch, training: bool) -> Products:
    """From the graph of the pass, of one replica where several share a batch."""
    function = tf.function(_pass(model, training), autograph=False)
    return [*_products(function.get_concrete_function(*_specs(batch)).graph, len(batch[0]))]


def compiled_program(model: "keras.Model", batch: Batch, training: bool) -> str:
    """Of what XLA is asked to compile."""
    if not model.jit_compile:
        return ""
    function = tf.function(_pass(model, training), autograph=False, jit_compile=True)
    return str(function.experimental_get_compiler_ir(*_specs(batch))(stage="optimized_hlo"))


def _specs(batch: Batch) -> list[Any]:
    return [tf.TensorSpec(part.shape, part.dtype) for part in batch]


def _pass(model: "keras.Model", training: bool) -> Callable[..., Any]:
    """The gradients of a step, or what an inference gives, of x and y."""

    def both(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            given = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=given, training=True)
        return tape.gradient(loss, model.trainable_weights)

    def forward(x: Any, y: Any) -> Any:
        return model(x, training=False)

    passes = both if training else forward
    return lambda *data: model.distribute_strategy.run(passes, args=data)


def _products(graph: Any, batch: int) -> Iterator[tuple[str, float]]:
    """Of a graph and the functions that it calls; a size that it leaves open is the batch's."""
    for op in _used(graph):
        if flops := _flops(op, batch):
            yield shared_verbs.widest(x.dtype.name for x in op.inputs), flops
        for inner in _functions(op):
            for dtype, count in _products(inner, batch):
                yield dtype, count * (_passes(op) if "While" in op.type else 1)


def _used(graph: Any) -> Iterator[Any]:
    """The operations that a result or a variable of the graph depends on."""
    waiting = [*(output.op for output in graph.outputs), *graph.control_outputs]
    met = set()
    while waiting:
        op = waiting.pop()
        if op not in met:
            met.add(op)
            waiting += [*(x.op for x in op.inputs), *op.control_inputs]
            yield op


def _functions(op: Any) -> Iterator[Any]:
    """The graphs of the functions that an operation calls.

    What was made by TensorFlow 1's `Defun` keeps none: in Keras the loop of the CTC loss, which
    holds no products.
    """
    for attribute in op.node_def.attr.values():
        for function in (attribute.func, *attribute.list.func):
            called = op.graph._get_function(function.name) if function.name else None
            if graph := getattr(called, "graph", None):
                yield graph


def _passes(loop: Any) -> int:
    """The most passes of a loop, where they are a constant; else 1."""
    limit = loop.inputs[1]
    while limit.op.type in ("Max", "Identity"):  # Keras's recurrent layers take a maximum
        limit = limit.op.inputs[0]
    known = tf.get_static_value(limit)
    return max(1, int(known)) if known is not None and known.size == 1 else 1


def _flops(op: Any, batch: int) -> float:
    """Of a product; zero of any other operation."""

    def sizes(tensor: Any) -> list[int]:
        return [size or batch for size in tensor.shape.as_list()] if tensor.shape.rank else []

    if "Backprop" in op.type and "Conv" in op.type:
        kernel = op.outputs[0] if "Filter" in op.type else op.inputs[1]
        large = op.inputs[2]
    elif op.type in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
        kernel, large = op.inputs[1], op.outputs[0]
    elif "MatMul" in op.type:
        turned = any(op.node_def.attr[name].b for name in ("transpose_a", "adj_x"))
        return 2.0 * math.prod(sizes(op.outputs[0])) * sizes(op.inputs[0])[-2 if turned else -1]
    elif op.type.startswith("CudnnRNN") and len(op.inputs) > 3:
        # Every weight meets every step of every sequence, in the gradient of both operands.
        steps, sequences, *_ = sizes(op.inputs[0])
        passes = 4.0 if "Backprop" in op.type else 2.0
        return passes * steps * sequences * math.prod(sizes(op.inputs[3]))
    elif op.type == "Einsum" and len(op.inputs) > 1:
        summed = _summed(op.get_attr("equation").decode(), [sizes(x) for x in op.inputs])
        return 2.0 * math.prod(sizes(op.outputs[0])) * summed
    else:
        return 0.0
    window = sizes(kernel)[: -2 if "Depthwise" in op.type else -1]
    return 2.0 * math.prod(sizes(large)) * math.prod(window)


def _summed(equation: str, shapes: list[list[int]]) -> int:
    """Over how many products an element of an einsum is summed."""
    terms, result = equation.split("->")
    by_label: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        head, _, tail = term.partition("...")
        ends = shape[: len(head)] + shape[len(shape) - len(tail) :]
        by_label |= zip(head + tail, ends, strict=True)
    return math.prod(size for label, size in by_label.items() if label not in result)


# --- gradients ------------------------------------------------------------------------------------


def differentiated(
    forward: Forward, trained: list[Any]
) -> tuple[Any, list[tuple[str, Any]], list[Any]]:
    """By a tape, which differentiates by outputs as it does by weights."""
    outputs: list[tuple[str, Any]] = []

    def tap(layer: str, output: Any) -> Any:
        outputs.append((layer, output))
        return output

    with tf.GradientTape() as tape:
        trained = [tf.identity(value) for value in trained]
        tape.watch(trained)
        loss = forward(trained, tap)
    ends = [output for _, output in outputs] + trained
    return loss, outputs, tape.gradient(loss, ends)


def layer_gradients(
    layer: "keras.Layer",
    call: Callable[..., Any],
    inputs: Sequence[Any],
    with_inputs: bool,
    jit: bool,
) -> tuple[Any, ...]:
    """By a tape within a graph."""

    @tf.function(jit_compile=jit)
    def both(*inputs: Any) -> Any:
        watched = inputs * with_inputs
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = call(*inputs)
        return y, tape.gradient(y, [*watched, *layer.trainable_variables])

    return both, *inputs


# --- the profiler ---------------------------------------------------------------------------------


def start_trace(folder: Path) -> None:
    """Host events of level 2: TensorFlow's operations, but no details of them."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    tf.profiler.experimental.start(str(folder), options)


def stop_trace() -> None:
    """Writes plugins/profile/*/*.xplane.pb."""
    tf.profiler.experimental.stop()


def graph(model: "keras.Model", batch: Batch) -> list[Node]:
    """The graph of the pass."""
    function = tf.function(_pass(model, training=True), autograph=False)
    traced = function.get_concrete_function(*_specs(batch)).graph
    return [
        Node(
            op.name,
            op.type,
            op.outputs[0].dtype.name if op.outputs else "",
            tuple(term.op.name for term in op.inputs),
        )
        for op in traced.get_operations()
    ]


def step_marker(step: int) -> AbstractContextManager[Any]:
    """`_r=1` is how xprof knows the root event of a step."""
    return tf.profiler.experimental.Trace(xplane.MARK, step_num=step, _r=1)


def traced_input(batches: Any) -> Any:
    """As they are: tf.data leaves events of its own."""
    return batches


# --- batches --------------------------------------------------------------------------------------


def batches(x: Any, y: np.ndarray, order: np.ndarray) -> Any:
    """As a tf.data pipeline on the host: gathered there and copied, as in real training.

    A call of Python for each batch: several in one would be faster where they are small, but what a
    step waits for would fall on the first of them, and a trace of few steps would miss it.
    """

    def read(i: Any) -> tuple[Any, Any]:
        both = tf.numpy_function(lambda i: (x[i], y[i]), [i], (x.dtype, y.dtype))
        shapes = [(order.shape[1], *values.shape[1:]) for values in (x, y)]
        return tuple(map(tf.ensure_shape, both, shapes))

    with tf.device("CPU"):
        chosen = tf.data.Dataset.from_tensor_slices(order)
    return chosen.map(read, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def placeholders(batch_size: int, steps: int) -> Any:
    """As a tf.data pipeline of one element."""
    nothing = tf.zeros(batch_size, tf.uint8)
    return tf.data.Dataset.from_tensors((nothing, nothing)).repeat(steps)


# --- replicas -------------------------------------------------------------------------------------


def split_cpu(parts: int) -> None:
    """Logical devices of the first CPU."""
    if not tf.config.list_physical_devices("GPU"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * parts
        tf.config.set_logical_device_configuration(cpu, devices)


def device_count(kind: str) -> int:
    """TensorFlow counts each kind for itself."""
    return len(tf.config.list_logical_devices(kind.upper()))


def share_batches(kind: str, replicas: int) -> None:
    """By tf.distribute.MirroredStrategy, which Keras heeds where it is set for all."""
    names = [f"{kind.upper()}:{i}" for i in range(replicas)]
    tf.distribute.experimental_set_strategy(tf.distribute.MirroredStrategy(names))


def replicas() -> int:
    """Those of the strategy in use."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def copies(weight: "keras.Variable") -> int:
    """A variable made before the strategy was set has one."""
    return len(tf.distribute.get_strategy().experimental_local_results(weight.value))


def shared(batch: np.ndarray) -> Any:
    """As a distributed value."""
    if replicas() == 1:
        return batch
    parts = Parts(batch).tensors
    return tf.distribute.get_strategy().experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )


class Parts:
    """A batch in parts, one on each device. Not a variable, whose copies are all alike."""

    def __init__(self, x: np.ndarray) -> None:
        devices = tf.distribute.get_strategy().extended.worker_devices
        self.tensors = []
        for device, part in zip(devices, np.split(x, len(devices)), strict=True):
            with tf.device(device):
                self.tensors.append(tf.identity(part))


def variable(x: np.ndarray) -> Any:
    """A Keras variable, or parts of the batch."""
    return Parts(x) if replicas() > 1 else shared_verbs.variable(x)


def constant(x: np.ndarray) -> Any:
    """A tensor, or parts of the array."""
    return Parts(x) if replicas() > 1 else shared_verbs.constant(x)


def own(held: Any) -> Any:
    """Outside a step, such as when a model is built, the first part."""
    if not isinstance(held, Parts):
        return shared_verbs.own(held)
    context = tf.distribute.get_replica_context()
    here = tf.get_static_value(context.replica_id_in_sync_group) if context else 0
    return held.tensors[here]


def dynamic_loss_scale(optimizer: "keras.Optimizer") -> "keras.Optimizer":
    """Keras's own for one replica; for several, one that asks all of them.

    Under MirroredStrategy Keras 3.15 asks the first replica alone whether its gradients are
    finite, before they are summed; an overflow on another one would enter the weights.
    """

    class AllFinite(keras.optimizers.LossScaleOptimizer):
        def check_finite(self, grads: Any) -> Any:
            finite = tf.cast(super().check_finite(grads), "float32")
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, finite)
            return keras.ops.equal(total, context.num_replicas_in_sync)

    return (AllFinite if replicas() > 1 else keras.optimizers.LossScaleOptimizer)(optimizer)
