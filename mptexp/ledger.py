"""The ledger: where the time of a step went, by layer and by cause, from a record's profile."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

# What the time of a step can go to, in the order in which a ledger shows it.
CAUSES = {
    "matrix": "matrix work (convolutions, matrix products)",
    "memory": "memory-bound work (normalization, activations, pooling, sums)",
    "casts": "casts and layout changes",
    "optimizer": "optimizer",
    "loss scaling": "loss scaling",
    "on the host": "operations that ran on the host instead of the GPU",
    "input": "wait for input",
    "host": "host and launch overhead",
    "idle": "idle",
    "unexplained": "unexplained",
}
ON_HOST = "(on the host)"  # as trace writes it

MATRIX = re.compile(
    r"conv(?!ert)|matmul|dot_general|^dot|gemm|einsum|cublas|cudnn|xmma|cutlass|nvjet",
    re.IGNORECASE,
)
CASTS = re.compile(
    r"^(cast|convert|transpose|bitcast|reshape|copy|layout|memcpyd2d|.*nchwtonhwc|.*nhwctonchw)"
    r"|convert_element_type|tomkl|mkltotf",
    re.IGNORECASE,
)
# XLA names a fusion after the operations in it; one whose name tells nothing stays unexplained.
TELLING = re.compile(
    r"add|sub|mul|div|max|min|reduce|broadcast|select|compare|exp|log|sqrt|tanh|pad|slice|scatter"
    r"|gather|concatenate|iota|and|or|power|negate|sum|mean|bias|relu|softmax|pool|norm|assign|read"
    r"|square|equal|argmax|memset|range|shape|fill|tile|random|stateless|const",
    re.IGNORECASE,
)


PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}  # Python called from a graph


def cause(row: Mapping[str, Any]) -> str:
    """To which of CAUSES a row of a record's profile belongs; unexplained where no rule knows."""
    if row["state"] != "op":
        return row["state"]
    if row["kernel"] == ON_HOST:
        return "on the host"
    if row["op"] in PYTHON:
        return "host"
    if row["part"] in ("optimizer", "loss scaling"):
        return row["part"]
    if MATRIX.search(row["op"]) or MATRIX.search(row["kernel"]):
        return "matrix"
    if CASTS.search(row["op"]):
        return "casts"
    known = row["layer"] or row["part"] == "loss" or TELLING.search(row["op"])
    return "memory" if known else "unexplained"


def rows(record: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a record's profile with their cause, as seconds of a timed step.

    Traced steps are slower than timed ones; every row is scaled alike, so that the rows sum to the
    run's median step.

    Returns:
        Columns: cause, layer, part, op, kernel, seconds, share (of the step), count; empty where
        the record has no profile.
    """
    columns = ["cause", "layer", "part", "op", "kernel", "seconds", "share", "count"]
    profile = record.get("profile") or {}
    if profile.get("missing", "none"):
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(profile["rows"])
    table["cause"] = [cause(row) for row in profile["rows"]]
    table["share"] = table.seconds / profile["step_s"]
    table["seconds"] = table.share * record["timing"]["step_s"]
    return table[columns]


def by_cause(record: Mapping[str, Any]) -> pd.Series:
    """Seconds of a step by cause, every one of CAUSES; empty without a profile."""
    table = rows(record)
    if table.empty:
        return pd.Series(dtype=float)
    return table.groupby("cause").seconds.sum().reindex(list(CAUSES), fill_value=0.0)


def by_layer(record: Mapping[str, Any]) -> pd.DataFrame:
    """Seconds of a step by layer (index) and cause (columns), what no layer owns last."""
    table = rows(record)
    named = table.assign(layer=table.layer.where(table.layer != "", table.part))
    named["layer"] = named.layer.where(named.layer != "", "(no operation)")
    wide = named.pivot_table(
        index="layer", columns="cause", values="seconds", aggfunc="sum", fill_value=0.0, sort=False
    )
    order = [layer["layer"] for layer in record["work"]["layers"] if layer["layer"] in wide.index]
    rest = [name for name in wide.index if name not in order]
    return wide.reindex(index=order + rest, columns=[c for c in CAUSES if c in wide])


def joined(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> pd.DataFrame:
    """Two policies' ledgers joined on layer, part and cause, never on kernel names.

    Returns:
        Columns: layer, part, cause, baseline_s, candidate_s, difference_s (candidate minus
        baseline: above 0 is slower); the largest difference first.
    """
    keys = ["layer", "part", "cause"]
    left, right = (
        rows(record).groupby(keys, as_index=False).seconds.sum() for record in (baseline, candidate)
    )
    both = left.merge(right, "outer", keys, suffixes=("_b", "_c")).fillna({"seconds_b": 0.0})
    both = both.fillna({"seconds_c": 0.0})
    both = both.rename(columns={"seconds_b": "baseline_s", "seconds_c": "candidate_s"})
    both["difference_s"] = both.candidate_s - both.baseline_s
    return both.sort_values("difference_s", key=abs, ascending=False, ignore_index=True)
