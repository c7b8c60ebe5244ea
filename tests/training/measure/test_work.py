import math

import pandas as pd
import pytest

from mptexp.spec.run import Run
from mptexp.training.measure import work

LAYERS = pd.DataFrame({"flops": [4.0, 6.0], "bytes": [1.0, 2.0]}, index=["a", "b"])


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Costs and peaks that are known; the batch size for which costs were asked."""
    sizes = []

    def per_step(model, batch_size, training):
        sizes.append(batch_size)
        return LAYERS.copy()

    monkeypatch.setattr(work.costs, "per_step", per_step)
    monkeypatch.setattr(work.costs, "widths", lambda model: {"a": "8"})
    peaks = {"dtype": "float16", "matmul_flops_per_s": 10.0}
    monkeypatch.setattr(work.ceilings, "measured", lambda run, card: peaks)
    alone = {"a": work.ceilings.Alone(0.1)}
    monkeypatch.setattr(work.ceilings, "layers", lambda run, model, card: alone)
    monkeypatch.setattr(work.ceilings, "product_rate", lambda run, card, dtype: 3.0)
    return sizes


def test_gpus_that_share_a_batch_count_together(known):
    run = Run(replicas=2, batch_size=8)
    together = work.of_step(run, None, {"kind": "gpu"})
    assert known == [4]
    assert (together["flops_per_step"], together["bytes_per_step"]) == (20.0, 6.0)
    assert together["ceilings"] == {"dtype": "float16", "matmul_flops_per_s": 20.0}
    # Logical devices are parts of one CPU.
    assert work.of_step(run, None, {"kind": "cpu"})["flops_per_step"] == 10.0
    assert known == [4, 8]


@pytest.mark.parametrize(
    ("profile", "peak"),
    [
        ({}, None),
        ({"float64_layers": [], "wide_products": {"a": "float32"}}, None),
        ({"float64_layers": ["a"]}, 6.0),
        ({"float64_layers": [], "wide_products": {"a": "float64"}}, 6.0),
    ],
)
def test_where_layers_compute_in_64_bits_their_peak_is_measured(profile, peak):
    # Half of 32 bits' was taken for it: 70 % of a step that loses 84 %.
    run, card = Run(replicas=2, batch_size=8), {"kind": "gpu"}
    made = work.of_step(run, None, card)
    with_it = work.with_float64(made, run, card, profile)
    assert with_it["ceilings"].pop("float64_flops_per_s", None) == peak
    assert with_it == made


def test_a_profiled_run_has_a_row_per_layer():
    rows = work.of_step(Run(profile=True), None, {"kind": "cpu"})["layers"]
    assert [row["layer"] for row in rows] == ["a", "b"]
    assert [row["alone_s"] for row in rows] == [0.1, pytest.approx(math.nan, nan_ok=True)]
    assert "layers" not in work.of_step(Run(), None, {"kind": "cpu"})
