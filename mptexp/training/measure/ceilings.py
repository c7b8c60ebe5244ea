"""Measured peaks of the device, and what layers take alone, forward and backward.

Short microbenchmarks, cached per device and versions. Each figure is the best of several tries: a
peak is what was reached, not what is usual.
"""

import contextlib
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from mptexp.host.project import keyed
from mptexp.records import store
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import backends, costs
from mptexp.training.data import sources

WIDE = ("float32", "float64")
RUNS = 3  # that measure a peak anew before the best so far stays
LEAST_S = 0.02  # a call that takes less is mostly overhead, so the matrices grow
TRIES, TRY_S = 3, 0.05
NOISE = 2**22  # different random numbers; more would take longer to draw than to multiply
METHOD = 3  # part of the cache's key: to be raised when the way of measuring changes
COPY_BYTES = {"cpu": 2**27, "gpu": 2**30}  # far beyond any cache


def measured(run: Run, card: dict[str, Any]) -> dict[str, float]:
    """The device's peaks in the type that the run's matrix products compute in.

    Keys: dtype (of a quantized policy that in which Keras multiplies); matmul_flops_per_s (of a
    large matrix product); copy_bytes_per_s (read and written, of an array larger than the caches).
    """
    policy, kind = POLICY_ROWS[run.policy], card["kind"]
    return {
        "dtype": policy.compute_dtype if policy.quantization else policy.arithmetic,
        "matmul_flops_per_s": product_rate(run, card, policy.compute_dtype),
        "copy_bytes_per_s": _cached(run, card, ["copy"], lambda: _copy_bytes(kind)),
    }


def product_rate(run: Run, card: dict[str, Any], dtype: str) -> float:
    """FLOP/s of a large matrix product in a type."""
    return _cached(run, card, ["matmul", dtype], lambda: _matmul_flops(card["kind"], dtype))


# --- layers alone ---------------------------------------------------------------------------------


class Alone(NamedTuple):
    """Seconds that a layer takes alone, forward and backward, at its own shapes.

    Attributes:
        seconds: in the layer's own compute dtype; None where it is not measured.
        low_s: under the run's 16-bit policy, of a layer that this leaves in 32 or 64 bits.
    """

    seconds: float | None = None
    low_s: float | None = None


class _Use(NamedTuple):
    """A layer as a model uses it.

    Attributes:
        count: how often.
        shapes: of its inputs, at first.
        arguments: positional and named ones of its first call, the inputs among them.
        with_inputs: whether weights come before, so that its inputs have gradients.
    """

    layer: keras.Layer
    count: int
    shapes: tuple[tuple[int, ...], ...]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    with_inputs: bool

    def call(self, layer: keras.Layer, *inputs: Any) -> Any:
        """What a layer like it gives of inputs in a training step."""
        args, named = self._filled(iter(inputs))
        return layer(*args, **{"training": True} | named)

    def constants(self) -> str:
        """The arguments that are no inputs, as a text."""
        return repr(self._filled(itertools.repeat(None)))

    def _filled(self, inputs: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with inputs in place of those of the model."""
        args, named = keras.tree.map_structure(
            lambda one: next(inputs) if isinstance(one, keras.KerasTensor) else one,
            self.arguments,
        )
        return args, {name: value for name, value in named.items() if value is not None}

    def inputs(self, dtype: str) -> list[Any]:
        """Random numbers of its shapes."""
        return [ops.cast(ops.convert_to_tensor(_noise(shape)), dtype) for shape in self.shapes]


def layers(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, Alone]:
    """What layers take alone, at the run's batch size, with XLA where the model has it.

    Those with a kernel and one input, if they cost arithmetic; and of a 16-bit policy all with
    matrices that it leaves in more bits, such as attention, if they can be made anew in 16. They
    are called as in a training step. The gradient of the inputs is left out where no weights come
    before, as `costs.table` does. A layer that is used several times takes so many times what its
    first use does.
    """
    jit = bool(model.jit_compile)
    known = ((use.layer.name, _alone(run, card, use, jit)) for use in _uses(run, model))
    return {name: alone for name, alone in known if alone}


def _uses(run: Run, model: keras.Model) -> Iterator[_Use]:
    """The layers that may be measured alone."""
    trained = False
    by_use = costs.table(model).flops_forward.groupby(level=0)
    flops, counts = by_use.sum(skipna=False), by_use.size()
    for leaf in costs.leaves(model):
        layer = leaf.layer
        shapes = tuple((run.batch_size, *each.shape[1:]) for each in leaf.inputs)
        fixed = not any(None in shape for shape in shapes)
        numbers = all("float" in each.dtype for each in leaf.inputs)
        plain = hasattr(layer, "kernel") and len(shapes) == 1 and flops[layer.name] > 0
        wide = _is_wide(run, layer) and numbers and flops[layer.name] != 0
        if fixed and (plain or wide):
            yield _Use(layer, int(counts[layer.name]), shapes, leaf.arguments, trained)
        trained = trained or bool(layer.trainable_variables)


def _is_wide(run: Run, layer: keras.Layer) -> bool:
    """Whether a layer with matrices computes in more than 16 bits under a 16-bit policy."""
    low = POLICY_ROWS[run.policy].keras_name != "float32"
    matrices = any(len(weight.shape) > 1 for weight in layer.weights)
    return low and matrices and layer.compute_dtype in WIDE


def _alone(run: Run, card: dict[str, Any], use: _Use, jit: bool) -> Alone | None:
    """What a layer takes alone; None of one of which no other can be made, or that fails."""
    if not _is_wide(run, use.layer):
        return Alone(use.count * _layer_s(run, card, use.layer, use, jit))
    try:
        policies = use.layer.compute_dtype, POLICY_ROWS[run.policy].keras_name
        twins = [_twin(use, policy) for policy in policies]
        return Alone(*(use.count * _layer_s(run, card, twin, use, jit) for twin in twins))
    except Exception:  # a layer of somebody's own may fail in any way
        if hasattr(use.layer, "kernel") and costs.is_known(use.layer):
            raise
        return None


def _twin(use: _Use, policy: str) -> keras.Layer:
    """A layer like the model's under a policy: a call may change what a layer keeps.

    Raises:
        ValueError: of somebody's own whose `get_config` does not tell all that it was made with.
    """
    twin = type(use.layer).from_config(use.layer.get_config() | {"dtype": policy})
    use.call(twin, *use.inputs(twin.compute_dtype))  # builds it
    if not costs.is_known(twin) and _own(twin) != _own(use.layer):
        raise ValueError(f"{use.layer.name}: get_config does not tell all of it")
    return twin


def _own(layer: keras.Layer) -> dict[str, Any]:
    """The numbers and words that a layer of somebody's own keeps."""
    known = vars(keras.layers.Layer())
    plain = (bool, int, float, str, tuple)
    return {n: v for n, v in vars(layer).items() if n not in known and isinstance(v, plain)}


def _layer_s(run: Run, card: dict[str, Any], layer: keras.Layer, use: _Use, jit: bool) -> float:
    """Seconds of one layer, forward and backward."""
    dtype = layer.quantization_mode or layer.compute_dtype
    kind = type(layer).__name__
    what = ["layer", kind, _settings(layer), use.constants(), use.shapes, dtype]
    what += [use.with_inputs, jit]

    def seconds() -> float:
        inputs, call = use.inputs(layer.compute_dtype), functools.partial(use.call, layer)
        each = backends.current().layer_gradients(layer, call, inputs, use.with_inputs, jit)
        return _seconds(card["kind"], *each)

    # What somebody's own layer does, its settings do not tell.
    return _cached(run, card, what, seconds) if costs.is_known(layer) else seconds()


def _settings(layer: keras.Layer) -> str:
    """What decides how long the layer takes, without its name."""
    known = {k: v for k, v in layer.get_config().items() if k not in ("name", "dtype")}
    return json.dumps(known, sort_keys=True, default=str)


def _cached(run: Run, card: dict[str, Any], what: list[Any], figure: Callable[[], float]) -> float:
    """The best of what the cache has and, for the first RUNS runs, of what is measured now.

    Another program may have disturbed the run that measured first; figures are rates or, of
    layers, seconds, of which the least is the best.
    What changes it is in the key: device, instructions, processors in use, threads, a container's
    limit, backend and version, TF32, limits.
    """
    versions = [card["packages"].get(name) for name in (run.backend, "jaxlib", "keras")]
    tf32 = run.policy if run.policy in ("float32", "tensorfloat32") else "default"
    where = [card["device"], card.get("cpu_version"), card["cores"], run.backend, run.cpu_isa]
    where += [versions, tf32, METHOD, card.get("threads"), card.get("container_cpus")]
    where += [card.get("instruction_sets")]  # a virtual machine may lack some
    path = keyed(sources.cache_dir() / "ceilings", [where, what])
    known = _read(path)
    if len(known) < RUNS:
        known.append(figure())
        with contextlib.suppress(OSError):  # without a cache, the next run takes a second longer
            store.write_text(path, json.dumps({"where": where, "what": what, "values": known}))
    return min(known) if what[0] == "layer" else max(known)


def _read(path: Path) -> list[float]:
    try:
        return [float(value) for value in json.loads(path.read_text())["values"]]
    except (OSError, ValueError, KeyError, TypeError):  # damaged, it is measured anew
        return []


# --- the measurements ---------------------------------------------------------------------------


def _seconds(kind: str, function: Callable[..., Any], *args: Any) -> float:
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
                backends.current().wait(result)
        return time.perf_counter() - began

    took(2)
    calls = max(1, round(TRY_S / took(1)))
    return min(took(calls) for _ in range(TRIES)) / calls


def _matmul_flops(kind: str, dtype: str) -> float:
    """FLOP/s of a matrix product, the best of growing sizes."""
    product = backends.current().compiled(ops.matmul)
    size, best = 256, 0.0
    while size <= 16384:
        a = ops.cast(ops.convert_to_tensor(_noise((size, size))), dtype)
        seconds = _seconds(kind, product, a, a)
        best = max(best, 2 * size**3 / seconds)
        if seconds > LEAST_S:
            break
        size *= 2
    return best


def _copy_bytes(kind: str) -> float:
    """Bytes read and written per second when an array larger than the caches is scaled."""
    x = ops.ones((COPY_BYTES[kind] // 4,), "float32")
    seconds = _seconds(kind, backends.current().compiled(lambda x: x * 1.5), x)
    return 2 * COPY_BYTES[kind] / seconds


def _noise(shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers, which repeat after a while: a GPU multiplies zeros faster."""
    numbers = np.random.default_rng(0).standard_normal(min(math.prod(shape), NOISE), "float32")
    return np.resize(numbers, shape)
