"""`doctor --check`: instruments of a run, on the records of runs whose answer is known.

The runs are those of `points` and `repeated`: a small network under each policy, traced; a batch
that needs more memory than is allowed; the same training twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from mptexp.diagnosis import breakdown, kernel_arithmetic
from mptexp.records.instrument_checks import Check, check, not_here
from mptexp.spec.policies import POLICY_ROWS

POLICIES = ("float32", "tensorfloat32", "mixed_float16", "mixed_bfloat16")
NETWORK = {"dataset": "synthetic", "model": "keydana_cnn", "input_mode": "resident", "epochs": 1}
# Traced steps must be far longer than what tracing costs each, and enough of them timed that the
# first ones, which are slower, do not decide.
TRACED = {**NETWORK, "profile": True, "image_size": 32, "width": 0.5}
TRACED |= {"batch_size": 64, "synthetic_length": 6400}
TOO_LARGE = {**NETWORK, "image_size": 256, "batch_size": 2048}
TOO_LARGE |= {"synthetic_length": 16384, "memory_limit_gb": 1.0}
REPEATED = {**NETWORK, "deterministic": True, "image_size": 32, "batch_size": 32}
REPEATED |= {"synthetic_length": 320, "width": 0.25}
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def points(backend: str) -> list[dict[str, Any]]:
    """The parameters of the runs that are made once, for a params file."""
    traced = [{**TRACED, "policy": policy} for policy in POLICIES]
    return [{"backend": backend, **point} for point in (*traced, TOO_LARGE)]


def repeated(backend: str) -> dict[str, Any]:
    """Those of the run that is made twice."""
    return {"backend": backend, **REPEATED}


def of_records(
    records: Sequence[Mapping[str, Any]], first: Mapping[str, Any], again: Mapping[str, Any]
) -> list[Check]:
    """The checks that records allow.

    Args:
        records: of the runs of `points`.
        first: the record of the run of `repeated`.
        again: of the same run, made anew.
    """
    checks: list[Check] = []
    for record in records:
        if record["parameters"].get("memory_limit_gb"):
            checks.append(check("memory_limit", "oom", record["status"]))
        else:
            checks += _of_policy(record)
    return [*checks, _determinism(first, again)]


def _of_policy(record: Mapping[str, Any]) -> Iterator[Check]:
    policy = record["parameters"]["policy"]
    if record["status"] == "unsupported" and policy == "tensorfloat32":
        yield not_here("product", str(record.get("error") or "the device has no TF32"), policy)
        return
    settings = record.get("in_force") or {}
    probe = settings.get("probe") or {}
    for name in ("product", "convolution"):
        yield check(
            name, POLICY_ROWS[policy].arithmetic, probe.get(name) or _status(record), policy
        )
    yield _kernels(record, policy)
    profile = record.get("profile") or {}
    timed = (record.get("timing") or {}).get("step_s")
    if profile.get("rows") and timed:
        yield check("trace", (0.9, 1.35), profile["step_s"] / timed, policy)
    else:
        yield not_here("trace", profile.get("missing") or _status(record), policy)


def _status(record: Mapping[str, Any]) -> str:
    return f"{record['status']}: {record.get('error', '')}".removesuffix(": ")


def _kernels(record: Mapping[str, Any], policy: str) -> Check:
    """The share of matrix work whose kernel is in the type asked for, per cent."""
    wanted = POLICY_ROWS[policy].arithmetic
    kernels = kernel_arithmetic.table(breakdown.rows(record))
    kernels = kernels[kernels.cause == "matrix"]
    if len(kernels):
        return _share(kernels.seconds, kernels.arithmetic == wanted, policy)
    primitives = kernel_arithmetic.instructions(record)
    matrix = primitives.primitive.str.contains("convolution|matmul|inner_product")
    primitives = primitives[matrix]
    if primitives.empty:
        return not_here("kernels", "neither GPU kernels nor primitives of oneDNN", policy)
    asked = DTYPES[POLICY_ROWS[policy].compute_dtype]
    return _share(
        primitives.seconds, primitives.dtype.map(lambda d: _computes_in(d, asked)), policy
    )


def _share(seconds: pd.Series, right: pd.Series, policy: str) -> Check:
    wrong = float(seconds[~right].sum() / seconds.sum())
    return check("kernels", (90, 100), 100 * (1 - wrong), policy)


def _computes_in(dtypes: str, asked: str) -> bool:
    """Whether a primitive reads a type: with a narrow one in it, its sums may still be float32."""
    named = set(dtypes.split(", "))
    return named == {asked} if asked == "f32" else asked in named


def _determinism(first: Mapping[str, Any], again: Mapping[str, Any]) -> Check:
    losses = [_losses(record) for record in (first, again)]
    for record, known in zip((first, again), losses, strict=True):
        if record["status"] != "ok" or not known:  # equal or different, it is no training
            return check("determinism", "equal", _status(record))
    return check("determinism", "equal", "equal" if losses[0] == losses[1] else "different")


def _losses(record: Mapping[str, Any]) -> list[Any]:
    epochs = record.get("history") or []
    return [(epoch.get("loss"), epoch.get("val_loss")) for epoch in epochs]
