"""Whether the settings that a record says were effective are those that its parameters name.

Policy, batch size and device stand in the parameters, by which runs are compared, and again in what
was read back from model and device. Where the two differ, one of them was edited: a run of float32
is shown as one of bfloat16, or one on a CPU as one on a GPU.
"""

import math
from collections.abc import Mapping
from typing import Any

from mptexp.host.devices import holds_words
from mptexp.records.schema import is_foreign
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.policies import ARITHMETICS, POLICY_ROWS

WITHOUT_STEPS = ("oom", "unsupported", "killed", "timeout")  # statuses of records without windows


def fault(record: Mapping[str, Any]) -> str:
    """Which setting contradicts another, in a sentence; empty where none does.

    What a record does not have is not asked for. It must have passed the check of the schema.
    """
    if is_foreign(record):
        return ""
    if record["status"] in WITHOUT_STEPS and record.get("windows"):
        return f"status is {record['status']}, but {len(record['windows'])} windows were timed"
    for name, (value, expected) in _pairs(record).items():
        if None not in (value, expected) and not _alike(value, expected):
            return f"{name} is {value}, but {expected} follows from the rest of the record"
    return ""


def _pairs(record: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings, each as it stands in a record and as it follows from what else stands there."""
    asked, card = record["parameters"], record.get("environment") or {}
    known, identity = record.get("in_force") or {}, record.get("identity") or {}
    device = card.get("device")
    fits = device is None or holds_words(asked["gpu_model"], device)
    return {
        "parameters.gpu_model": (asked["gpu_model"], asked["gpu_model"] if fits else device),
        **{f"identity.{n}": (identity.get(n), card.get(n)) for n in ("device", "cpu", "cores")},
        **{f"in_force.{n}": (known.get(n), v) for n, v in _expected(asked, card, known).items()},
    }


def _expected(
    asked: Mapping[str, Any], card: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """What must have been effective, by name; None where the record does not allow to say."""
    policy, replicas = POLICY_ROWS[asked["policy"]], known.get("replicas")
    own = ":" in asked["model"] or bool(asked["float32_layers"])
    share = (known.get("arithmetic") or {}).get(policy.promised, 0.0)
    native = _is_native(policy.arithmetic, asked, card)
    if native and policy.quantization:  # the compiled program decides
        native = None
    tf32 = _is_native("tensorfloat32", asked, card)
    return {
        "compute_dtype": None if own else policy.compute_dtype,
        "variable_dtype": None if own else policy.variable_dtype,
        "effective_share": share if known.get("arithmetic") else None,
        "batch_per_replica": asked["batch_size"] // replicas if replicas else None,
        "propagation": asked["propagation"],
        "weight_format": asked["weight_format"],
        "jit": {"on": True, "off": False}.get(asked["jit"]),
        "emulated": None if native is None else not native,
        "default_policy": _default_policy(tf32, asked["backend"]),
    }


def _default_policy(tf32: bool | None, backend: str) -> str | None:
    """What nothing set gives; None where the device, or what the model computes, decides."""
    if tf32 and not BACKEND_ROWS[backend].has_tf32_products:
        return None
    return None if tf32 is None else "tensorfloat32" if tf32 else "float32"


def _is_native(name: str, asked: Mapping[str, Any], card: Mapping[str, Any]) -> bool | None:
    """Whether a card's device computes in a type; None where the card does not say."""
    arithmetic, kind = ARITHMETICS[name], card.get("kind")
    if kind == "cpu" and card.get("instruction_sets"):
        return arithmetic.is_native_on_cpu(card["instruction_sets"], asked["cpu_isa"])
    if kind == "gpu" and card.get("capability"):
        return arithmetic.is_native_on_gpu(card["capability"])
    return None


def _alike(value: Any, expected: Any) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=1e-6)
    return bool(value == expected)
