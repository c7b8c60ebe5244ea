"""What the device can do at best: short microbenchmarks, kept per device and version.

Each figure is the best of several tries: a ceiling is what was reached, not what is usual.
"""

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from mptexp.records import store
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import costs, precision
from mptexp.training.data import sources
from mptexp.training.measure import step_clock

RUNS = 3  # that measure a ceiling anew before the best so far stays
LEAST_S = 0.02  # a call that takes less is mostly overhead, so the matrices grow
TRIES, TRY_S = 3, 0.05
NOISE = 2**22  # different random numbers; more would take longer to draw than to multiply
METHOD = 2  # part of the cache's key: to be raised when the way of measuring changes
COPY_BYTES = {"cpu": 2**27, "gpu": 2**30}  # far beyond any cache


def measured(run: Run, card: dict[str, Any]) -> dict[str, float]:
    """The device's ceilings in the type that the run's matrix products compute in.

    Keys: dtype; matmul_flops_per_s (of a large matrix product); copy_bytes_per_s (read and written,
    of an array larger than the caches).

    Args:
        card: the environment card, which names device and versions.
    """
    dtype = precision.compute_dtype(run)
    return {
        "dtype": POLICY_ROWS[run.policy].arithmetic,
        "matmul_flops_per_s": _kept(
            run, card, ["matmul", dtype], lambda: _matmul(run.backend, card["kind"], dtype)
        ),
        "copy_bytes_per_s": _kept(run, card, ["copy"], lambda: _copy(run.backend, card["kind"])),
    }


def layer_seconds(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, float]:
    """Seconds that each layer with a kernel takes alone, forward and backward, at its own shapes.

    In the layer's compute dtype and the run's batch size, with XLA where the model has it. Layers
    with several inputs are left out, and so are those that cost no arithmetic. The gradient of the
    input is left out where no weights come before, as `costs.table` does. A layer that is used
    several times takes so many times what its first use does.
    """
    return {
        layer.name: uses * _alone(run, card, layer, shape, trained, bool(model.jit_compile))
        for layer, uses, shape, trained in _kernels(run, model)
    }


def low_seconds(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, float]:
    """What layer_seconds would be for the layers that compute in float32 under a 16-bit policy."""
    found = {}
    for layer, uses, shape, trained in _kernels(run, model):
        if precision.compute_dtype(run) != "float32" == layer.compute_dtype:
            low = type(layer).from_config(layer.get_config() | {"dtype": run.policy})
            low.build(shape)
            alone = _alone(run, card, low, shape, trained, bool(model.jit_compile))
            found[layer.name] = uses * alone
    return found


def _kernels(
    run: Run, model: keras.Model
) -> Iterator[tuple[keras.Layer, int, tuple[int, ...], bool]]:
    """Layers with a kernel and one input, how often each is used, the input's shape at first.

    And whether weights come before.
    """
    trained = False
    by_use = costs.table(model).flops_forward.groupby(level=0)
    flops, uses = by_use.sum(), by_use.size()
    for leaf in costs.leaves(model):
        layer = leaf.layer
        shape = (run.batch_size, *leaf.inputs[0].shape[1:])
        plain = len(leaf.inputs) == 1 and None not in shape
        if hasattr(layer, "kernel") and plain and flops[layer.name] > 0:
            yield layer, int(uses[layer.name]), shape, trained
        trained = trained or bool(layer.trainable_variables)


def _alone(
    run: Run,
    card: dict[str, Any],
    layer: keras.Layer,
    shape: tuple[int, ...],
    with_input: bool,
    jit: bool,
) -> float:
    what = ["layer", _settings(layer), shape, layer.compute_dtype, with_input, jit]

    def seconds() -> float:
        function, *args = _gradients(run.backend, layer, shape, with_input, jit)
        return _seconds(run.backend, card["kind"], function, *args)

    return _kept(run, card, what, seconds)


def _settings(layer: keras.Layer) -> str:
    """What decides how long the layer takes, without its name."""
    known = {k: v for k, v in layer.get_config().items() if k not in ("name", "dtype")}
    return json.dumps(known, sort_keys=True, default=str)


def _kept(run: Run, card: dict[str, Any], what: list[Any], figure: Callable[[], float]) -> float:
    """The best of what the cache has and, for the first RUNS runs, of what is measured now.

    Another program may have disturbed the run that measured first; figures are rates or, of
    layers, seconds, of which the least is the best.
    What changes it is in the key: device, processors in use, backend and version, TF32, limits.
    """
    versions = [card["packages"].get(name) for name in (run.backend, "jaxlib", "keras")]
    tf32 = run.policy if run.policy in ("float32", "tensorfloat32") else "default"
    where = [card["device"], card["cores"], run.backend, run.cpu_isa, versions, tf32, METHOD]
    key = hashlib.sha256(json.dumps([where, what], default=str).encode()).hexdigest()[:16]
    path = sources.cache_dir() / "ceilings" / f"{key}.json"
    known = _read(path)
    if len(known) >= RUNS:
        return _best(what, known)
    known.append(figure())
    with contextlib.suppress(OSError):  # without a cache, the next run takes a second longer
        store.write_text(path, json.dumps({"where": where, "what": what, "values": known}))
    return _best(what, known)


def _read(path: Path) -> list[float]:
    try:
        return [float(value) for value in json.loads(path.read_text())["values"]]
    except (OSError, ValueError, KeyError):
        return []


def _best(what: list[Any], values: list[float]) -> float:
    return min(values) if what[0] == "layer" else max(values)


# --- the measurements ---------------------------------------------------------------------------


def _compiled(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def _wait(backend: str, result: Any) -> None:
    """Returns once the device has computed the result."""
    if backend == "jax":
        import jax

        jax.block_until_ready(result)
    else:
        step_clock.synchronizer(backend)(None)  # waits for the device, whatever the model


def _seconds(backend: str, kind: str, function: Callable[..., Any], *args: Any) -> float:
    """Seconds of one call, the best of a few tries; the first calls compile and do not count.

    On a GPU calls follow one another as in a step, and the device is waited for after the last: to
    launch one takes its host tens of microseconds, which a short call would count as its own. On a
    CPU the device is waited for after each, lest some run beside one another.
    """

    def took(calls: int) -> float:
        began = time.perf_counter()
        for call in range(1, calls + 1):
            result = function(*args)
            if kind == "cpu" or call == calls:
                _wait(backend, result)
        return time.perf_counter() - began

    took(2)
    calls = max(1, round(TRY_S / took(1)))
    return min(took(calls) for _ in range(TRIES)) / calls


def _matmul(backend: str, kind: str, dtype: str) -> float:
    """FLOP/s of a matrix product, the best of growing sizes."""
    product = _compiled(backend, ops.matmul)
    size, best = 256, 0.0
    while size <= 16384:
        a = ops.cast(ops.convert_to_tensor(_noise((size, size))), dtype)
        seconds = _seconds(backend, kind, product, a, a)
        best = max(best, 2 * size**3 / seconds)
        if seconds > LEAST_S:
            break
        size *= 2
    return best


def _copy(backend: str, kind: str) -> float:
    """Bytes read and written per second when an array larger than the caches is scaled."""
    x = ops.ones((COPY_BYTES[kind] // 4,), "float32")
    seconds = _seconds(backend, kind, _compiled(backend, lambda x: x * 1.5), x)
    return 2 * COPY_BYTES[kind] / seconds


def _noise(shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers, which repeat after a while: a GPU multiplies zeros faster."""
    numbers = np.random.default_rng(0).standard_normal(min(math.prod(shape), NOISE), "float32")
    return np.resize(numbers, shape)


def _gradients(
    backend: str, layer: keras.Layer, shape: tuple[int, ...], with_input: bool, jit: bool
) -> tuple[Any, ...]:
    """A function that runs the layer forward and backward, and its arguments."""
    x = ops.cast(ops.convert_to_tensor(_noise(shape)), layer.compute_dtype)
    makers = {"tensorflow": _by_tape, "jax": _by_vjp, "torch": _by_autograd}
    return makers[backend](layer, x, with_input, jit)


def _by_tape(layer: keras.Layer, x: Any, with_input: bool, jit: bool) -> tuple[Any, ...]:
    import tensorflow as tf

    @tf.function(jit_compile=jit)
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x] if with_input else [])
            y = layer(x)
        return tape.gradient(y, [*([x] if with_input else []), *layer.trainable_variables])

    return both, x


def _by_vjp(layer: keras.Layer, x: Any, with_input: bool, jit: bool) -> tuple[Any, ...]:
    import jax

    weights = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def both(weights: Any, x: Any) -> Any:
        def forward(weights: Any, x: Any) -> Any:
            return layer.stateless_call(weights, others, x)[0]

        if with_input:
            y, back = jax.vjp(forward, weights, x)
        else:
            y, back = jax.vjp(lambda weights: forward(weights, x), weights)
        return back(ops.ones_like(y))

    return jax.jit(both) if jit else both, weights, x


def _by_autograd(layer: keras.Layer, x: Any, with_input: bool, _: bool) -> tuple[Any, ...]:
    def both(x: Any) -> Any:
        y = layer(x)
        y.backward(ops.ones_like(y))
        return y

    return both, x.detach().requires_grad_(with_input)
