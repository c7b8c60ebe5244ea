"""Which arithmetic the kernels of a traced step used, and whether they ran on Tensor Cores.

On a GPU from the kernels' names (`mptexp.traces.kernel_names`), on a CPU from what oneDNN said of
its primitives.
"""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.host import devices
from mptexp.traces import kernel_names
from mptexp.traces.operations import ON_HOST

# Kernels that multiply by vectors, for which Tensor Cores have no use.
BY_VECTORS = re.compile("depthwise|gemv|dot_kernel", re.IGNORECASE)
REFERENCE = "reference code"  # what oneDNN calls `ref:any`: a loop over single numbers


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Every kernel of a traced GPU step.

    Args:
        rows: as `breakdown.rows` or `breakdown.of_trace` gives them.

    Returns:
        Columns: kernel, arithmetic, tensor_cores (yes, no, unknown), cause, layer, seconds, share;
        the longest first; empty where no GPU was traced.
    """
    rows = rows[(rows.kernel != "") & (rows.kernel != ON_HOST)]
    classes = [kernel_names.kernel(name) for name in rows.kernel]
    words = {True: "yes", False: "no", None: "unknown"}
    rows = rows.assign(
        arithmetic=[c.arithmetic for c in classes],
        tensor_cores=[words[c.tensor_cores] for c in classes],
    )
    columns = ["kernel", "arithmetic", "tensor_cores", "cause", "layer", "seconds", "share"]
    return rows[columns].sort_values("seconds", ascending=False, ignore_index=True)


def tensor_core_seconds(ran: pd.DataFrame) -> pd.DataFrame:
    """Matrix work of a `table` by whether it ran on Tensor Cores, by layer.

    Returns:
        Index: layer. Columns: yes, no, unknown: seconds of a step.
    """
    eligible = ran[ran.cause == "matrix"]
    wide = eligible.pivot_table("seconds", "layer", "tensor_cores", "sum", 0.0)
    return wide.reindex(columns=["yes", "no", "unknown"], fill_value=0.0)


def missed(record: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, float]:
    """Seconds of matrix work by layer that could have run on Tensor Cores and surely did not.

    Empty under float32, where a CPU was traced, and of a GPU that has none. Nor could products of
    a vector and convolutions of each channel alone, of which no library has such kernels.

    Args:
        rows: the record's, see `breakdown.rows`.
    """
    ran = table(rows)
    has_any = devices.has_tensor_cores(record.get("environment") or {})
    if record["parameters"]["policy"] == "float32" or ran.empty or has_any is False:
        return {}
    without = tensor_core_seconds(ran[~ran.kernel.str.contains(BY_VECTORS)]).no
    return {str(layer): float(s) for layer, s in without.items() if s > 0}


def instructions(record: Mapping[str, Any]) -> pd.DataFrame:
    """What oneDNN ran on a CPU, from its verbose log.

    Returns:
        Columns: primitive, instructions (the widest set that the implementation names, REFERENCE,
        or its name), dtype (of source, weights, destination), seconds, share (of oneDNN's time),
        count; the longest first; empty where oneDNN said nothing.
    """
    columns = ["primitive", "instructions", "dtype", "seconds", "share", "count"]
    rows = pd.DataFrame((record.get("profile") or {}).get("primitives", []))
    if rows.empty:
        return pd.DataFrame(columns=columns)
    rows["instructions"] = [
        REFERENCE if name.startswith("ref:") else name.rpartition(":")[2] or name
        for name in rows.implementation
    ]
    keys = ["primitive", "instructions", "dtype"]
    table = rows.groupby(keys, as_index=False)[["seconds", "count"]].sum()
    table["share"] = table.seconds / table.seconds.sum()
    return table[columns].sort_values("seconds", ascending=False, ignore_index=True)
