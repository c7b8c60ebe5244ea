"""Several devices that share a batch: set on the backend, read back, and a batch in parts.

TensorFlow through tf.distribute.MirroredStrategy, JAX through keras.distribution.DataParallel, one
process in both. On a GPU machine replicas are GPUs; on a CPU they are logical devices of that CPU.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from mptexp.spec.run import Run
from mptexp.training.environment import Unsupported

if TYPE_CHECKING:
    import keras

LOGICAL = "replicas are logical devices of one CPU: their scaling says nothing of hardware"


def prepare(run: Run) -> None:
    """Makes logical devices of the CPU; before the backend looks at its devices.

    Raises:
        RuntimeError: where the backend has looked already.
    """
    if run.replicas == 1 or _in_use(run.backend) == run.replicas:
        return
    if run.backend == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", run.replicas)  # GPUs are what they are
    elif run.backend == "tensorflow":
        import tensorflow as tf

        parts = [tf.config.LogicalDeviceConfiguration()] * run.replicas
        cpu = tf.config.list_physical_devices("CPU")[0]
        if not tf.config.list_physical_devices("GPU"):
            tf.config.set_logical_device_configuration(cpu, parts)


def use(run: Run, where: dict[str, Any]) -> None:
    """Lets every model that is made from now on share its batches among the run's replicas.

    Raises:
        Unsupported: where the backend cannot, or there are too few GPUs.
    """
    if run.replicas == 1 or _in_use(run.backend) == run.replicas:
        return
    _check(run, where)
    if run.backend == "tensorflow":
        import tensorflow as tf

        names = [f"{where['kind'].upper()}:{i}" for i in range(run.replicas)]
        tf.distribute.experimental_set_strategy(tf.distribute.MirroredStrategy(names))
    else:
        import keras

        devices = keras.distribution.list_devices()[: run.replicas]
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))


def _check(run: Run, where: dict[str, Any]) -> None:
    asked = f"replicas {run.replicas} asked for"
    if run.backend == "torch":
        raise Unsupported(
            f"{asked}; Keras shares no batch among devices under PyTorch: take backend tensorflow "
            "or jax"
        )
    if run.backend == "tensorflow" and run.jit == "on":
        raise Unsupported(
            f"{asked} with jit on; under TensorFlow Keras compiles a step for one device alone: "
            "take jit auto or off, or backend jax"
        )
    if run.backend == "tensorflow" and run.steps_per_execution > 1:
        raise Unsupported(
            f"{asked} with steps_per_execution {run.steps_per_execution}; TensorFlow executes one "
            "step at a time for several replicas: take 1, or backend jax"
        )
    seen = device_count(run.backend, where["kind"])
    if seen < run.replicas:
        devices = "1 device" if seen == 1 else f"{seen} devices"
        raise Unsupported(f"{asked}; {run.backend} sees {devices} here")


def device_count(backend: str, kind: str) -> int:
    """How many devices of a kind (cpu or gpu), logical ones too, the backend sees."""
    if backend == "tensorflow":
        import tensorflow as tf

        return len(tf.config.list_logical_devices(kind.upper()))
    import jax

    return jax.device_count()


def _in_use(backend: str) -> int:
    """How many devices share the batches of the models that are made now."""
    if backend == "tensorflow":
        import tensorflow as tf

        return int(tf.distribute.get_strategy().num_replicas_in_sync)
    import keras

    shared = keras.distribution.distribution()
    return shared.num_model_replicas if shared else 1


def in_force(model: "keras.Model", backend: str) -> int:
    """How many devices share a batch of this model.

    Each of them holds the weights: a model that was made before `use` has them on one device.
    """
    if backend == "torch":
        return 1
    return min([_in_use(backend), *(_copies(weight, backend) for weight in model.weights)])


def _copies(weight: "keras.Variable", backend: str) -> int:
    """On how many devices a weight lies."""
    if backend == "jax":
        return len(weight.value.sharding.device_set)
    import tensorflow as tf

    return len(tf.distribute.get_strategy().experimental_local_results(weight.value))


# --- a batch in parts -----------------------------------------------------------------------------


def shared(batch: np.ndarray, run: Run) -> Any:
    """A batch as `predict_on_batch` must have it, which does not share it among replicas itself."""
    if run.replicas == 1:
        return batch
    if run.backend == "jax":
        return placed(batch)
    import tensorflow as tf

    parts = Parts(batch).tensors
    strategy = tf.distribute.get_strategy()
    return strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )


def placed(x: np.ndarray) -> Any:
    """An array on JAX's devices, a part of its first axis on each."""
    import jax

    return jax.device_put(x, _layout(x).backend_layout)


def _layout(x: np.ndarray) -> Any:
    import keras

    return keras.distribution.distribution().get_data_layout(x.shape)


class Parts:
    """A batch on TensorFlow's devices, a part on each. Not a variable: its copies are all alike."""

    def __init__(self, x: np.ndarray) -> None:
        import tensorflow as tf

        devices = tf.distribute.get_strategy().extended.worker_devices
        self.tensors = []
        for device, part in zip(devices, np.split(x, len(devices)), strict=True):
            with tf.device(device):
                self.tensors.append(tf.identity(part))

    def own(self) -> Any:
        """In a step the part of the replica that asks, elsewhere the first."""
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        here = tf.get_static_value(context.replica_id_in_sync_group) if context else 0
        return self.tensors[here]


def variable(x: np.ndarray) -> Any:
    """A batch that stays on the device, or a part of it on each; `own` reads it."""
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow" and _in_use(backend) > 1:
        return Parts(x)
    layout = {"layout": _layout(x)} if backend == "jax" and _in_use(backend) > 1 else {}
    return keras.Variable(x, dtype=str(x.dtype), trainable=False, **layout)


def constant(x: np.ndarray) -> Any:
    """The same for a small array that is never assigned to."""
    import keras

    backend = keras.backend.backend()
    if _in_use(backend) == 1:
        return keras.ops.convert_to_tensor(x)
    return Parts(x) if backend == "tensorflow" else placed(x)


def own(held: Any) -> Any:
    """In a step, the part of a batch that belongs to the replica that asks."""
    import keras

    return held.own() if isinstance(held, Parts) else keras.ops.convert_to_tensor(held)


# --- loss scale -----------------------------------------------------------------------------------


def dynamic_loss_scale(optimizer: "keras.Optimizer") -> "keras.Optimizer":
    """The optimizer with a dynamic loss scale that heeds the gradients of all replicas.

    Under MirroredStrategy Keras 3.15 asks the first replica alone whether its gradients are
    finite, before they are summed; an overflow on another one would enter the weights.
    """
    import keras
    from keras import ops

    class AllFinite(keras.optimizers.LossScaleOptimizer):
        def check_finite(self, grads: Any) -> Any:
            import tensorflow as tf

            found = tf.cast(super().check_finite(grads), "float32")
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, found)
            return ops.equal(total, context.num_replicas_in_sync)

    mirrored = keras.backend.backend() == "tensorflow" and _in_use("tensorflow") > 1
    return (AllFinite if mirrored else keras.optimizers.LossScaleOptimizer)(optimizer)
