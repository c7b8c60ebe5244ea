import math

import pytest

from mptexp.diagnosis import roofline
from mptexp.records.tables import valid_peak


def record(peak, layers, variable_dtype="float32", rows=()):
    rows = [{"state": "op", "layer": name, "part": "forward", "op": "Conv2D", "kernel": "",
             "seconds": seconds, "count": 1} for name, seconds in rows]  # fmt: skip
    return {
        "timing": {"step_s": 1.0},
        "profile": {"missing": "", "step_s": 1.0, "rows": rows, "device": "cpu"},
        "in_force": {"variable_dtype": variable_dtype},
        "work": {
            "ceilings": {"matmul_flops_per_s": peak, "copy_bytes_per_s": 1e9},
            "layers": layers,
        },
    }


def layer(name, flops, moved, alone_s=None, alone_low_s=None, parameters=0):
    return {"layer": name, "flops": flops, "bytes": moved, "alone_s": alone_s,
            "alone_low_s": alone_low_s, "parameters": parameters}  # fmt: skip


LAYERS = [layer("conv", 1e9, 1e6, alone_s=0.4, parameters=1000), layer("relu", 1e3, 1e8)]
ROWS = [("conv", 0.3), ("relu", 0.2)]


def test_a_layer_needs_what_it_takes_alone_or_its_bytes():
    table = roofline.layers(record(1e10, LAYERS, rows=ROWS), 1e9)
    assert table.seconds["conv"] == pytest.approx(0.3)  # in the step, where that was less
    assert table.seconds["relu"] == pytest.approx(0.1)
    assert table.bound.to_dict() == {"conv": "arithmetic", "relu": "memory", "optimizer": "memory"}
    assert table.bytes["optimizer"] == 7 * 1000 * 4
    low = roofline.layers(record(1e10, LAYERS, "bfloat16", rows=ROWS), 1e9)
    assert low.bytes["optimizer"] == 7 * 1000 * 2
    unknown = record(1e10, LAYERS, rows=ROWS) | {"in_force": {}}  # the usual size, no traceback
    assert roofline.layers(unknown, 1e9).bytes["optimizer"] == 7 * 1000 * 4


def test_no_layer_needs_more_than_it_took():
    # The lie: 0.100 ms "at best, no more than it took in the step", of a layer that took 0.02.
    table = roofline.layers(record(1e10, LAYERS, rows=[("conv", 0.3), ("relu", 0.02)]), 1e9)
    assert table.seconds["relu"] == pytest.approx(0.02)
    assert table.least_s["relu"] == pytest.approx(0.1)  # what the peaks say stays what it was
    absent = roofline.layers(record(1e10, LAYERS, rows=ROWS[:1]), 1e9)  # fused with another
    assert absent.seconds["relu"] == pytest.approx(0.1)
    assert absent.seconds["optimizer"] == pytest.approx(7 * 1000 * 4 / 1e9)


@pytest.mark.parametrize(("took_s", "seconds"), [(1e-5, 1e-5), (1e-4, 2.8e-5)])
def test_the_optimizer_needs_no_more_than_it_took(took_s, seconds):
    updated = record(1e10, LAYERS, rows=ROWS)
    row = {**updated["profile"]["rows"][0], "layer": "", "part": "optimizer", "seconds": took_s}
    updated["profile"]["rows"].append(row)
    assert roofline.layers(updated, 1e9).seconds["optimizer"] == pytest.approx(seconds)


def test_a_layer_kept_in_float32_needs_what_it_takes_in_16_bits():
    kept = [layer("conv", 1e9, 1e6, alone_s=0.4, alone_low_s=0.1)]
    assert roofline.layers(record(1e10, kept, rows=ROWS), 1e9).seconds["conv"] == 0.1


def test_the_possible_speedup_is_the_ratio_of_the_needs():
    after = [layer("conv", 1e9, 5e5, alone_s=0.1), layer("relu", 1e3, 1e8)]
    before = [layer("conv", 1e9, 1e6, alone_s=0.3), layer("relu", 1e3, 1e8)]
    baseline, candidate = (record(1e10, layers, rows=ROWS) for layers in (before, after))
    assert roofline.possible_speedup(baseline, candidate) == pytest.approx(0.4 / 0.2)


def test_a_layer_that_no_rule_knows_needs_what_it_took():
    # The lie: "where its layers alone would be about 1.8× faster", of layers with a sixth of the
    # step's time: the rest was an Einsum of somebody's own, counted as a copy of its arrays.
    own = [*LAYERS, layer("einsum", None, 1e6)]
    both = [record(1e10, own, rows=[("conv", 0.1), ("einsum", took)]) for took in (0.9, 0.8)]
    assert [roofline.layers(one, 1e9).seconds["einsum"] for one in both] == [0.9, 0.8]
    assert 1 < roofline.possible_speedup(*both) < 0.9 / 0.8
    # Nor is it bound by memory, as was said of 80 ms of matrix work.
    assert roofline.layers(both[0], 1e9).bound["einsum"] == "unknown"
    unnamed = record(1e10, own, rows=[("conv", 0.1)])  # by a trace that does not tell it
    assert roofline.layers(unnamed, 1e9).seconds["einsum"] == 1e-3


def test_a_peak_that_a_step_exceeds_bounds_nothing():
    # The lie: "the device would allow 1.8×", by a peak of which the step did 255 %.
    baseline, candidate = (record(1e10, LAYERS, rows=ROWS) for _ in range(2))
    assert valid_peak(baseline, candidate)
    candidate["work"]["flops_per_step"] = 1.1e10  # in a step of a second
    assert not valid_peak(baseline, candidate)
    assert math.isnan(roofline.possible_speedup(baseline, candidate))
    assert roofline.least_s(baseline, candidate).empty
