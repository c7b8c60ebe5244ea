"""Whether a policy is effective: the types of a step's products and weights, and a numeric probe.

Layers do not say what is computed: a layer may hold others, and `call` may cast. What counts is the
traced program, from which `backends.Backend.products` gives each matrix product and convolution.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from mptexp.spec.policies import EFFECTIVE_SHARE, POLICY_ROWS, share_mark
from mptexp.spec.run import Run
from mptexp.training import costs, environment
from mptexp.training.backends import backend
from mptexp.training.capability import Unsupported
from mptexp.training.numerics import emulation, probe

NO_PRODUCTS = "no matrix product and no convolution in the model: a policy changes little"
UNSCALED = "products in float16 without a loss scale: small gradients become zero"
# A share of 0.001 of a square enters the second moment, and below 2^-25 it rounds to zero there;
# then epsilon, 1e-7, divides alone. Measured with Keras 3: a gradient of 0.005 moves a weight by
# 1.5 at a learning rate of 0.001.
FLOAT16_ADAM = (
    "Adam in pure float16: gradients below 0.0055 vanish from its second moment, and their weights "
    "move up to 1500 times too far"
)
# Variables of the environment that change what float32 computes in.
CHANGES_FLOAT32 = (
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_FLAGS",
    "TF_XLA_FLAGS",
)


def products(run: Run, model: keras.Model) -> list[tuple[str, float]]:
    """Type and FLOPs of every product of a step of a compiled model; see Backend.products."""
    return backend(run.backend).products(model, _batch(run, model), _trains(run))


def of_step(
    run: Run, model: keras.Model, traced: Sequence[tuple[str, float]] | None = None
) -> dict[str, Any]:
    """What a step of a compiled model computes in; changes neither weights nor random streams.

    The products are those that were `traced`, by default Keras's own.

    Keys: arithmetic (type -> share of the FLOPs of products), effective_share (of the policy's
    compute type; None without products), weights (type -> share of the trained parameters), probe
    (what a product and a convolution under this policy compute in, see probe.py); of a user's own
    model also network (see costs.structure) and products_flops (in all).

    Raises:
        Unsupported: where the policy has no effect on the products or weights of this model, or
            where the engine computes with fewer bits than the policy promises.
    """
    policy = POLICY_ROWS[run.policy]
    traced = products(run, model) if traced is None else traced
    arithmetic = _shares(traced)
    weights = _shares((w.dtype, math.prod(w.shape)) for w in emulation.trained_weights(model))
    _refuse_none(run, "products compute", policy.compute_dtype, arithmetic)
    _refuse_none(run, "weights are kept", policy.variable_dtype, weights)
    readings = probe.readings(run.policy, bool(model.jit_compile))
    _refuse_lossy(policy.arithmetic, readings)
    return {
        "arithmetic": arithmetic,
        "effective_share": arithmetic.get(policy.compute_dtype, 0.0) if arithmetic else None,
        "weights": weights,
        "probe": readings,
        **_of_users_own(run, model, traced),
    }


def _of_users_own(
    run: Run, model: keras.Model, traced: Sequence[tuple[str, float]]
) -> dict[str, Any]:
    """What a user's function made, which may be something else each time that it is called."""
    if ":" not in run.model:
        return {}
    flops = sum(amount for _, amount in traced)
    return {"network": costs.structure(model), "products_flops": round(flops)}


def flags(run: Run, settings: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a run with these settings, see `of_step`; a sentence part each."""
    policy = POLICY_ROWS[run.policy]
    promised = {"arithmetic": policy.compute_dtype, "weights": policy.variable_dtype}
    shares = [(settings[what].get(dtype, 0.0), what, dtype) for what, dtype in promised.items()]
    partly = [share_mark(*part) for part in shares if settings[part[1]] and not _is_all(part[0])]
    # Keras scales the loss by itself only where the policy of the whole model is mixed_float16.
    unscaled = (
        _trains(run)
        and "float16" in settings["arithmetic"]
        and policy.compute_dtype != "float16"
        and settings["loss_scale"] == "none"
    )
    adam = _trains(run) and run.optimizer == "adam" and policy.variable_dtype == "float16"
    none = not settings["arithmetic"]
    return partly + [NO_PRODUCTS] * none + [UNSCALED] * unscaled + [FLOAT16_ADAM] * adam


def _is_all(share: float) -> bool:
    return share >= EFFECTIVE_SHARE


def _trains(run: Run) -> bool:
    return run.phase == "train"


def _batch(run: Run, model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Of the shapes and types that `fit` gives the model; the values are not used."""
    entry, places = model.inputs[0], model.outputs[0].shape[1:-1]
    x = np.zeros((run.batch_size, *entry.shape[1:]), entry.dtype)
    return x, np.zeros((run.batch_size, *places), backend(run.backend).LABELS)


def _shares(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The share of each type, the largest first; empty where there is nothing."""
    totals: Counter[str] = Counter()
    for dtype, amount in amounts:
        totals[dtype] += amount
    return {dtype: amount / totals.total() for dtype, amount in totals.most_common()}


def _refuse_none(run: Run, what: str, dtype: str, shares: Mapping[str, float]) -> None:
    if shares and not shares.get(dtype):
        raise Unsupported(
            f"policy {run.policy} has no effect on this model: all of its {what} in "
            f"{' and '.join(shares)}, not in {dtype}"
        )


def _refuse_lossy(promised: str, readings: Mapping[str, str]) -> None:
    for what, reading in readings.items():
        if probe.bits(reading) < probe.bits(promised):
            names = [name for name in CHANGES_FLOAT32 if name in environment.GIVEN]
            given = ", ".join(f"{name}={environment.GIVEN[name]}" for name in names)
            because = f"the environment sets {given}" if given else "no variable is known to do so"
            raise Unsupported(
                f"{promised} is asked for, but a {what} here computes in {reading}: {because}"
            )
