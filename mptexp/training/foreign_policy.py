"""The policy of a training that mptexp does not run: of Keras's model read, of a loop as said.

Keras is imported only where there is a model of its: a loop may have been written without it.
"""

import math
from collections.abc import Mapping
from typing import Any

from mptexp.errors import ParamsError
from mptexp.spec.policies import EFFECTIVE_SHARE, POLICY_ROWS, Policy, share_mark
from mptexp.spec.run import Run
from mptexp.training import capability
from mptexp.training.backends import backend

EAGER = "its steps were executed operation by operation (eagerly), which takes longer"
INTEGERS = {name for name, row in POLICY_ROWS.items() if row.inference_only}


def named(said: str | None, model: Any, framework: str, card: Mapping[str, Any]) -> str:
    """The policy of a record: of Keras's model read, whatever was said; of a loop as it was said.

    Raises:
        ParamsError: where nothing tells it, or the model's is another.
    """
    if model is None and said is None:
        raise ParamsError(
            "policy is None, and of a loop nothing tells it; a record needs it: "
            f"StepTimer(policy='mixed_float16'), or one of {', '.join(POLICY_ROWS)}"
        )
    if model is None:
        return str(said)
    read = _read(model, framework, card)
    if said not in (None, read):
        raise ParamsError(
            f"policy is {said}, but the model's is {read}; allowed: the model's, or none, as it "
            "is read of a model"
        )
    return read


def _read(model: Any, framework: str, card: Mapping[str, Any]) -> str:
    """The policy of the layers that do most of the model's arithmetic, see `foreign_model`."""
    from mptexp.training import foreign_model

    counts = foreign_model.policies(model)
    most = max(counts, key=lambda name: counts[name], default="float32")
    if most not in POLICY_ROWS:
        raise ParamsError(f"the model's policy is {most}; allowed: {', '.join(POLICY_ROWS)}")
    # Their integers are no weights that train, by which the others would be all of the model.
    integers = {str(getattr(x, "quantization_mode", "")) for x in model._flatten_layers()}
    if (met := integers & INTEGERS) and not POLICY_ROWS[most].inference_only:
        raise ParamsError(
            f"layers of the model are quantized to {' and '.join(sorted(met))}, the policy of the "
            f"others is {most}; allowed: a model without quantized layers, or `mptexp run` with "
            "phase inference"
        )
    return _usual(model, framework, card) if most == "float32" else most


def _usual(model: Any, framework: str, card: Mapping[str, Any]) -> str:
    """What Keras's float32 is here: TF32, where the backend has it on for most of the model."""
    has_tf32 = card["kind"] == "gpu" and capability.is_native("tensorfloat32", card)
    on = has_tf32 and backend(framework).tf32(_convolutions_frac(model) < 0.5)
    return "tensorfloat32" if on else "float32"


def _convolutions_frac(model: Any) -> float:
    """NaN of a loop, of which nothing tells whether it computes convolutions."""
    if model is None:
        return math.nan
    from mptexp.training import costs

    return costs.convolutions_frac(model)


def effective(run: Run, model: Any, card: Mapping[str, Any]) -> dict[str, Any]:
    """What precision was effective: of Keras's model read back, of a loop as it was said."""
    policy = POLICY_ROWS[run.policy]
    native = capability.is_native(policy.arithmetic, card)
    known: dict[str, Any] = {
        "default_policy": capability.default_policy(card, run.backend, _convolutions_frac(model)),
        # Of products in float8 only the compiled program says whether they are native.
        "emulated": None if native and policy.quantization else not native,
    }
    return known | (_read_model(run, model, policy) if model is not None else {})


def _read_model(run: Run, model: Any, policy: Policy) -> dict[str, Any]:
    """What layers compute in, those in other layers too, and how much of it the policy is.

    Also what of it oneDNN computes by reference code, where it does any.
    """
    from mptexp.training import effective_arithmetic, foreign_model

    slow = effective_arithmetic.by_reference(run, model)
    layers, (what, shares) = foreign_model.holders(model), foreign_model.shares(model)
    known = foreign_model.traced_shares(model, run.batch_size)
    known = known or (shares if what == "arithmetic" else {})
    return {
        "compute_dtype": ", ".join(sorted({x.compute_dtype for x in layers})),
        "variable_dtype": ", ".join(sorted({x.variable_dtype for x in layers})),
        "jit": bool(getattr(model, "jit_compile", False)),
        "effective_share": known.get(policy.promised, 0.0) if known else None,
        **({"reference": slow} if slow else {}),
    }


def partly(model: Any, policy: Policy, known: Mapping[str, Any]) -> list[str]:
    """How much of the model the policy holds for, where its arithmetic is not known.

    Also that its steps are executed operation by operation, where others are compiled. What is
    known is as `effective` gives it.
    """
    if model is None:
        return []
    import keras

    from mptexp.training import foreign_model

    eager = [EAGER] * backend(keras.backend.backend()).is_eager(model)

    what, shares = foreign_model.shares(model)
    share = shares.get(policy.promised, 0.0)
    unsaid = what == "parameters" and share < EFFECTIVE_SHARE
    unsaid &= known["effective_share"] is None
    return [share_mark(share, what, policy.promised)] * unsaid + eager
