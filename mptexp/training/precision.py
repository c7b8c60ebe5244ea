"""Precision: policy, TF32, XLA, loss scale and all that goes with them, set for this process.

Keras reads its backend once, when it is imported, and layers take the dtype policy when they are
made; so `use` comes before anything that imports Keras, and a process serves one run.
`effective_settings` reads back what was set here.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from mptexp.host import imports
from mptexp.host.devices import same_model
from mptexp.spec import tasks
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import capability, environment, onednn
from mptexp.training.backends import Backend, backend
from mptexp.training.capability import SettingNotApplied, Unsupported

if TYPE_CHECKING:
    import keras

# Parameters that cannot change within a process.
ONCE = ("backend", "policy", "cpu_isa", "deterministic", "memory_limit_gb", "replicas")
_used: dict[str, str] = {}


def use(run: Run) -> dict[str, Any]:
    """Selects backend, dtype policy, TF32, determinism, replicas and CPU instructions.

    Returns:
        The device, see `environment.device`.

    Raises:
        Unsupported: where the backend is not installed, or it or the device lacks what is asked.
        SettingNotApplied: where this process has used another value of one of ONCE, or runs on
            another device than the run names.
    """
    for name in ONCE:
        value = str(getattr(run, name))
        _refuse_change(name, _used.setdefault(name, value), value)
    framework = prepare(run)
    if run.normalization == "fused" and not BACKEND_ROWS[run.backend].fuses_batch_norm:
        raise Unsupported(
            f"normalization fused is an operation of TensorFlow's and PyTorch's, and backend "
            f"{run.backend} has none; take normalization batch"
        )
    load(run.backend)
    import keras

    with imports.quiet():
        if run.memory_limit_gb and capability.driver():  # on a CPU the sweep watches the run
            framework.limit_memory(int(run.memory_limit_gb * 1e9), run.replicas)
        _split_cpu(run, framework)
        device = environment.device(run.backend)
    _refuse_change("backend", keras.backend.backend(), run.backend)
    _check_device(run, device)
    data_format = run.data_format
    if data_format == "auto":
        data_format = keras.config.image_data_format()
    if reason := framework.unsupported(run, device["kind"], data_format):
        raise Unsupported(reason)
    _share_batches(run, framework, device["kind"])
    _set_arithmetic(run, framework, device["kind"])
    return device


def prepare(run: Run) -> Backend:
    """Sets what Keras and the run's backend read from the environment when they are imported.

    Raises:
        Unsupported: where the CPU lacks what is asked.
    """
    framework = backend(run.backend)
    os.environ["KERAS_BACKEND"] = run.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    onednn.limit(run)
    framework.prepare_environment(run)
    return framework


def load(name: str) -> None:
    """Imports Keras with a backend.

    Raises:
        Unsupported: where the backend is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise Unsupported(f"{name} is not installed; {environment.install_hint(name)}")
    with imports.framework("keras"):
        importlib.import_module("keras")


def _refuse_change(name: str, before: str, value: str) -> None:
    if before != value:
        raise SettingNotApplied(
            f"{name} {value} was asked for in a kernel that has already used {before}; "
            "restart the kernel"
        )


def _split_cpu(run: Run, framework: Backend) -> None:
    """On a CPU replicas are logical devices, made before the backend looks at its devices."""
    if run.replicas == 1 or framework.replicas() == run.replicas:
        return
    try:
        framework.split_cpu(run.replicas)
    except RuntimeError:
        raise SettingNotApplied(
            f"replicas {run.replicas} was asked for in a kernel whose {run.backend} has already "
            "counted its devices; restart the kernel"
        ) from None


def _check_device(run: Run, device: dict[str, Any]) -> None:
    asked = run.resolved().gpu_model
    if not same_model(asked, device["device"]):
        raise SettingNotApplied(
            f"gpu_model is {asked}, but {run.backend} runs on {device['device']}; mptexp doctor "
            "says what is missing"
        )
    if run.policy == "tensorfloat32" and not capability.is_native("tensorfloat32", device):
        raise Unsupported(
            "tensorfloat32 needs an NVIDIA GPU of compute capability 8.0 or later; "
            f"this device is {device['device']}"
        )
    if device["kind"] != "cpu" and run.cpu_isa != "default":
        raise Unsupported(
            f"cpu_isa {run.cpu_isa} limits a CPU, but this run's device is {device['device']}"
        )


def _share_batches(run: Run, framework: Backend, kind: str) -> None:
    if run.replicas == 1 or framework.replicas() == run.replicas:
        return
    count = framework.device_count(kind)
    if count < run.replicas:
        devices = "1 device" if count == 1 else f"{count} devices"
        raise Unsupported(f"replicas {run.replicas} asked for; {run.backend} sees {devices} here")
    framework.share_batches(kind, run.replicas)


def _set_arithmetic(run: Run, framework: Backend, kind: str) -> None:
    import keras

    # A configuration file of the user's may say otherwise; with floatx float16 strict float32 would
    # compute its loss in float16.
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    policy = POLICY_ROWS[run.policy]
    keras.config.set_dtype_policy(policy.keras_name)
    if kind == "gpu" and policy.tf32 is not None:
        framework.set_tf32(policy.tf32)
    if run.deterministic:
        framework.set_determinism()


def compile_model(model: "keras.Model", run: Run, steps_per_epoch: int = 1) -> None:
    """Compiles the model with the run's optimizer, loss scale and XLA choice.

    The steps of an epoch matter where the learning rate decays.

    Keras wraps the optimizer in a LossScaleOptimizer by itself only where the model's own policy
    is mixed_float16; under any other `dynamic` must be asked for. A fixed scale is silently
    dropped unless `auto_scale_loss` is off.
    """
    optimizer = _optimizer(run, steps_per_epoch)
    auto = run.loss_scale == "auto"
    if run.loss_scale == "dynamic" or (auto and model.dtype_policy.name == "mixed_float16"):
        optimizer = backend(run.backend).dynamic_loss_scale(optimizer)
    elif isinstance(run.loss_scale, float):
        optimizer.loss_scale_factor = run.loss_scale
    task = tasks.of(run.dataset)
    # A model of the user's may have losses of its own, which the sum holds too: see tasks.recorded.
    own = task is tasks.TOKENS and ":" in run.model
    model.compile(
        optimizer,
        task.loss,
        metrics=[*task.metrics, *[task.loss] * own],
        auto_scale_loss=auto,
        steps_per_execution=run.steps_per_execution,
        jit_compile={"auto": "auto", "on": True, "off": False}[run.jit],
    )


def _optimizer(run: Run, steps_per_epoch: int) -> "keras.Optimizer":
    import keras

    from mptexp.training.numerics import emulation

    rate = run.learning_rate
    if run.learning_rate_decay == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(rate, run.epochs * steps_per_epoch)
    kind, settings = keras.optimizers.Adam, {}
    if run.optimizer == "sgd":
        kind, settings = keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}
    # Keras clips what is left once the loss scale was divided out.
    return emulation.optimizer(kind, run)(rate, global_clipnorm=run.clip_norm, **settings)
