"""The curated table of published numbers: which model here can meet them, and pairs of policies.

Only numbers that stand in their source; see published.csv beside this module.
"""

from collections.abc import Collection
from importlib import resources

import numpy as np
import pandas as pd

MIXED = "mixed_float16"
# Published name of a network -> the model here that has its structure.
MODELS = {
    "keydana-cnn-3conv": "keydana_cnn",
    "vector-cnn-3conv": "banerjee_cnn",
    "ResNet-50 (weights=None, GAP+Dropout0.25+Dense27)": "banerjee_resnet50",
    "ResNet-50 (Keras, from scratch)": "banerjee_resnet50",
    "ResNet-50": "resnet50",
    "ResNet-50 v1.5": "resnet50",
    "ResNet-50-v1.5": "resnet50",
    "AlexNet": "alexnet",
}
# Metrics of speed (of the last epoch, where a study has several) and of final accuracy.
METRICS = (
    r"step_time(_epoch20)?|(train_|inference_)?throughput(_median_of_\d+_hosts)?|"
    r"val_accuracy_epoch20(_approx)?|epoch20_val_accuracy|accuracy_after_5_epochs|test_accuracy|"
    r"top1_accuracy(_\d+_epochs(_mean)?)?"
)
CLAIM = r"(claimed|training)_speedup.*"
PAIR = ["study", "model_here", "dataset", "system", "device", "metric", "unit", "phase", "replicas"]
SIDE = ["policy", "batch_size", "value", "status", "source", "row"]


def table() -> pd.DataFrame:
    """The curated table, with what a row needs to be compared with a run.

    Columns: those of published.csv (batch_size is per device); model_here, empty where no model
    here has that structure; phase; replicas, how many devices share the work.
    """
    with (resources.files("mptexp.analysis") / "published.csv").open(encoding="utf-8") as file:
        rows = pd.read_csv(file)
    # A study that names the device of one policy alone means the pair all the same.
    devices = rows.groupby(["study", "model", "metric"], dropna=False).device.bfill()
    inference = rows.metric.str.startswith("inference")
    return rows.assign(
        model_here=rows.model.map(MODELS),
        device=devices,
        phase=np.where(inference, "inference", "train"),
        replicas=devices.str.extract(r"\b(\d+)x ?\D", expand=False).fillna("1").astype(int),
        row=range(len(rows)),
    )


def pairs(models: Collection[str], phases: Collection[str]) -> pd.DataFrame:
    """Times, throughputs and final accuracies (in %) of some models here, in the table's order.

    The baseline and the mixed_float16 number of a study stand in one row. They meet at a batch
    size, or each has its own where a study has one of each.

    Returns:
        PAIR; SIDE twice, with suffixes _baseline and _mixed, empty where there is no number; and
        speedup: of mixed_float16 over the baseline, by time or images/s; above 1 is faster.
    """
    rows = table()
    known = rows.model_here.isin(list(models)) & rows.phase.isin(list(phases))
    rows = rows[known & rows.metric.str.fullmatch(METRICS)]
    percent = rows.value.where(rows.unit != "fraction", rows.value * 100)
    rows = rows.assign(value=percent.round(2), unit=rows.unit.replace("fraction", "%"))
    many = rows.groupby(PAIR, dropna=False).policy.transform("size") > 2
    rows = rows.assign(at=rows.batch_size.where(many, 0.0))[[*PAIR, "at", *SIDE]]
    mixed = rows.policy.str.startswith(MIXED)
    both = rows[~mixed].merge(rows[mixed], "outer", [*PAIR, "at"], suffixes=("_baseline", "_mixed"))
    rates = (both.value_mixed / both.value_baseline).where(both.unit != "%")
    both["speedup"] = rates.where(both.unit == "img/s", 1 / rates)
    return both.iloc[both.row_baseline.fillna(both.row_mixed).argsort()].reset_index(drop=True)


def epochs(model: str, batch_size: int, value: str) -> pd.Series:
    """What a study printed of a network's training: value by epoch, mixed_float16; often empty.

    Args:
        model: a name of MODELS' values.
        batch_size: of the training.
        value: a column of history.csv, such as loss or val_accuracy (a fraction).
    """
    rows = table()
    rows = rows[(rows.model_here == model) & (rows.batch_size == batch_size)]
    number = rows.metric.str.extract(rf"^epoch(\d+)_{value}$", expand=False)
    known = rows.assign(epoch=number).dropna(subset="epoch")
    return known.set_index(known.epoch.astype(int)).value.sort_index()


def peak(device: str, dtype: str = "") -> float:
    """What a device can do by its published specifications: FLOP/s of dense matrix products.

    Args:
        device: its name as the driver gives it.
        dtype: float32, tensorfloat32, float16 or bfloat16; empty for bytes per second of memory.

    Returns:
        NaN where the table does not have it.
    """
    rows = table()
    rows = rows[(rows.study == "specifications") & (rows.device == device)]
    rows = rows[rows.policy == dtype] if dtype else rows[rows.metric == "bandwidth"]
    units = {"TFLOP/s": 1e12, "GB/s": 1e9}
    return float((rows.value * rows.unit.map(units)).squeeze()) if len(rows) == 1 else np.nan


def claims(models: Collection[str]) -> pd.DataFrame:
    """The rows of speedups of mixed_float16 that were claimed without a table."""
    rows = table()
    general = rows.model.isna() | (rows.model == "networks in general")
    rows = rows[general | rows.model_here.isin(list(models))]
    return rows[rows.metric.str.fullmatch(CLAIM)]
