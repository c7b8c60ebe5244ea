"""What a device needs for a model at best, by layer, and the speedup that this would allow.

The roofline model: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009. The peaks
are those that the runs measured on their device.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.diagnosis import breakdown
from mptexp.records.tables import valid_peak

ADAM_TOUCHES = 7  # arrays of the parameters' size that Adam reads or writes in a step
TOUCHES = {"sgd": 3}  # without a moment; with one it is 5, and the bound is a little too low
BYTES = {"float16": 2, "bfloat16": 2}  # of a variable; 4 in any other type


def possible_speedup(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> float:
    """What the device needs under the baseline's policy over what it needs under the candidate's.

    NaN without a valid peak.

    Amdahl's law over layers: a layer with a kernel takes what it took alone, one whose arithmetic
    no rule knows what it took in the step, any other its bytes at the copy bandwidth (or what it
    took in the step, where that was less: small arrays stay in a cache); the optimizer its
    variables' bytes.
    """
    if not valid_peak(baseline, candidate):
        return math.nan
    before, after = of_pair(baseline, candidate)
    return before.seconds.sum() / after.seconds.sum()


def of_pair(*records: Mapping[str, Any]) -> list[pd.DataFrame]:
    """`layers` of records of the same device, at the best bandwidth that any of them measured."""
    bandwidth = best_bandwidth(*records)
    return [layers(record, bandwidth) for record in records]


def least_s(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> pd.Series:
    """The column of that name of the candidate's `layers`, which no trace has a part in.

    Empty without a valid peak.
    """
    if not valid_peak(baseline, candidate):
        return pd.Series(dtype=float)
    bandwidth = best_bandwidth(baseline, candidate)
    peak = candidate["work"]["ceilings"]["matmul_flops_per_s"]
    least = {x["layer"]: _least_s(x, bandwidth, peak) for x in candidate["work"]["layers"]}
    return pd.Series(least, dtype=float)


def best_bandwidth(*records: Mapping[str, Any]) -> float:
    """Bytes/s of a copy, as any of the records of a device measured it: no policy changes it."""
    return max(record["work"]["ceilings"]["copy_bytes_per_s"] for record in records)


def _least_s(layer: Mapping[str, Any], bandwidth: float, peak: float) -> float:
    """What the peaks allow; NaN where no rule knows the layer's arithmetic."""
    flops, moved = layer["flops"] or 0.0, layer["bytes"] or 0.0
    return max(moved / bandwidth, flops / peak) if flops > 0 else math.nan


def layers(record: Mapping[str, Any], bandwidth: float) -> pd.DataFrame:
    """What the device needs for each layer of a step, and for the optimizer.

    Args:
        bandwidth: of a copy on the device, in bytes/s.

    Returns:
        Index: layer. Columns: seconds (no more than took_s), bound (arithmetic or memory), least_s
        (what the peaks of arithmetic and copies allow), flops, bytes, took_s (in the step, by the
        time breakdown; NaN where that does not tell the layer). Of a layer whose arithmetic no rule
        knows bound is unknown and least_s NaN.
    """
    traced = breakdown.rows(record)
    took = traced.groupby("layer").seconds.sum()
    updating = traced[(traced.layer == "") & (traced.part == "optimizer")].seconds.sum()
    peak = record["work"]["ceilings"]["matmul_flops_per_s"]
    rows = []
    for layer in record["work"]["layers"]:
        name, flops, moved = layer["layer"], layer["flops"] or 0.0, layer["bytes"] or 0.0
        by_memory, by_arithmetic = moved / bandwidth, flops / peak
        bound = "arithmetic" if by_arithmetic > by_memory else "memory"
        alone = layer["alone_low_s"] or layer["alone_s"]  # in 16 bits, where that is possible
        if layer["flops"] is None and not alone:
            alone = took.get(name)
        rows.append(
            {
                "layer": name,
                "seconds": min(by_memory if pd.isna(alone) else alone, took.get(name, math.inf)),
                "bound": bound if layer["flops"] is not None else "unknown",
                "least_s": _least_s(layer, bandwidth, peak),
                "flops": flops,
                "bytes": moved,
                "took_s": took.get(name, math.nan),
            }
        )
    table = pd.DataFrame(rows).set_index("layer")
    parameters = sum(layer["parameters"] for layer in record["work"]["layers"])
    # Gradient, variable and moments: each read, all but the gradient written.
    touches = TOUCHES.get(record.get("parameters", {}).get("optimizer", ""), ADAM_TOUCHES)
    moved = touches * parameters * BYTES.get(record["in_force"].get("variable_dtype"), 4)
    least, took_s = moved / bandwidth, updating or math.nan
    seconds = min(least, updating or math.inf)
    table.loc["optimizer"] = [seconds, "memory", least, 0.0, moved, took_s]
    return table
