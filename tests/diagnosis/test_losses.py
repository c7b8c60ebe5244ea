import dataclasses

import pandas as pd
import pytest

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations
from mptexp.diagnosis.causes import CAUSES, LABELS
from mptexp.diagnosis.effects import Effect
from mptexp.diagnosis.losses import Case
from mptexp.diagnosis.pairs import Pair
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32")
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)
PEAKS = {"work": {"ceilings": {"matmul_flops_per_s": 1e14}, "layers": []}}
NO_SECONDS = pd.Series(0.0, index=list(LABELS))


def by_op(seconds):
    """Seconds by layer and operation, as a case holds them."""
    index = pd.MultiIndex.from_tuples(list(seconds), names=["layer", "op"])
    return pd.Series(list(seconds.values()), index=index, dtype=float, name="share")


NO_MATRIX = by_op({("", ""): 0.0})
CASE = Case(PAIR, PEAKS, PEAKS, NO_SECONDS, NO_SECONDS, NO_MATRIX, NO_MATRIX, {}, ())


def loss(name, effects=(), before=None, after=None, **known):
    """What the cause of this name takes in a step of 10 ms."""
    (cause,) = (cause for cause in CAUSES if cause.name == name)
    seconds = {
        part: pd.Series({**NO_SECONDS, **(given or {})})
        for part, given in (("before", before), ("after", after))
    }
    case = dataclasses.replace(CASE, effects=tuple(effects), **seconds, **known)
    return cause.loss(case, cause)


@pytest.mark.parametrize(
    ("gain", "lost"),
    [
        (Contrast(1.2, 0.9, 1.6, 3), 0.0),
        (Contrast(2.0, 1.9, 2.1, 3), 0.005),
        (Contrast(2.0, n=1), 0.003),  # one block blames nobody: the time breakdown counts
        (None, 0.003),
    ],
)
def test_a_gain_counts_as_far_as_its_interval_shows_it(gain, lost):
    effects = [Effect(ablations.INPUT, {"mixed_bfloat16": gain})] if gain else []
    found = loss("input", effects, after={"input": 0.003})
    assert found.seconds == pytest.approx(lost)
    assert found.share == pytest.approx(lost / 0.01)
    assert list(found.effects) == [e for e in effects if gain.n > 1]


@pytest.mark.parametrize(("wait_s", "name"), [(0.004, "input"), (0.001, "pipeline")])
def test_input_is_waited_for_or_takes_processors_from_the_step(wait_s, name):
    gains = {"mixed_bfloat16": Contrast(2.0, 1.9, 2.1, 3)}
    effects = [Effect(ablations.INPUT, gains)]
    found = {n: loss(n, effects, after={"input": wait_s}) for n in ("input", "pipeline")}
    seconds = {n: one.seconds if one else 0.0 for n, one in found.items()}
    assert seconds == {"input": 0.0, "pipeline": 0.0} | {name: pytest.approx(0.005)}
    # Without a trace nothing tells the two apart, and the words are those of the wait.
    assert loss("input", effects).seconds == pytest.approx(0.005)
    assert loss("pipeline", effects) is None


def test_what_xla_makes_slower_is_lost_to_it():
    def off(*ends):
        return [Effect(ablations.XLA_OFF, {"mixed_bfloat16": Contrast(*ends)})]

    assert loss("compiled", off(10.0, 9.0, 11.0, 3)).share == pytest.approx(0.9)
    assert loss("compiled", off(1.1, 0.9, 1.3, 3)) is None
    assert loss("compiled", off(10.0, n := float("nan"), n, 1)) is None
    assert loss("compiled") is None


def test_a_gain_that_is_not_valid_replaces_no_measurement():
    gain = {"mixed_bfloat16": Contrast(2.0, 1.9, 2.1, 3)}
    effects = [Effect(ablations.INPUT, gain, flags="throttled")]
    found = loss("input", effects, after={"input": 0.001})
    assert (found.seconds, found.effects) == (pytest.approx(0.001), ())


def test_a_wait_is_lost_in_full_with_what_its_ablations_changed():
    batch = Effect(ablations.BATCH, {"float32": Contrast(1.1, n=1)})
    other = Effect(ablations.INPUT, {"float32": Contrast(1.1, n=1)})
    found = loss("host", [batch, other], after={"host": 0.004})
    assert (found.seconds, found.share) == (0.004, pytest.approx(0.4))
    assert found.effects == (batch,)


def test_memory_bound_work_is_lost_beyond_half_and_casts_in_full():
    before, after = {"memory": 0.004, "casts": 0.001}, {"memory": 0.003, "casts": 0.003}
    memory, casts = (loss(name, before=before, after=after) for name in ("memory", "casts"))
    assert memory.seconds == pytest.approx(0.001)
    assert (memory.spent_s, memory.baseline_s) == (0.003, 0.004)
    assert (casts.seconds, casts.baseline_s) == pytest.approx((0.003, 0.001))


def test_emulation_is_all_16_bit_work_beyond_the_baselines():
    found = loss("emulated", before={"matrix": 0.001, "casts": 0.001}, after={"matrix": 0.009})
    assert found.seconds == pytest.approx(0.007)
    assert (found.spent_s, found.baseline_s) == pytest.approx((0.009, 0.002))


def test_a_layer_kept_in_float32_loses_what_it_takes_longer_alone():
    layers = [{"layer": "conv", "alone_low_s": 1e-4, "alone_s": 4e-4},
              {"layer": "dense", "alone_low_s": None, "alone_s": 1e-4}]  # fmt: skip
    candidate = {"work": {"layers": layers}}
    found = loss("float32 fallback", candidate=candidate, matrix=by_op({("conv", "Conv2D"): 0.004}))
    assert found.seconds == pytest.approx(0.003)
    assert found.layers == ("conv",)
    assert loss("float32 fallback") is None
    gains = {"mixed_bfloat16": Contrast(2.0, 1.9, 2.1, 3)}
    proven = loss("float32 fallback", [Effect(ablations.NO_FALLBACK, gains)], candidate=candidate)
    assert proven.seconds == pytest.approx(0.005)


def test_work_without_tensor_cores_loses_by_the_ratio_of_the_peaks():
    faster = {"work": {"ceilings": {"matmul_flops_per_s": 8e14}}}
    found = loss("no tensor cores", candidate=faster, missed={"conv": 0.004})
    assert found.seconds == pytest.approx(0.0035)
    assert loss("no tensor cores") is None


def test_a_peak_beside_other_programs_makes_no_device_slow():
    steady = loss("no faster type", before={"matrix": 0.005}, after={"matrix": 0.005})
    assert steady.seconds == 0.005
    assert loss("no faster type", before={"matrix": 0.008}, after={"matrix": 0.005}) is None


FLOAT32 = {("deep", "Filter"): 0.002, ("deep", "Forward"): 0.004, ("conv", "Conv2D"): 0.002}


def test_an_operation_that_is_slower_in_16_bits_is_named_with_its_layer():
    slower = {("deep", "Filter"): 0.006, ("deep", "Forward"): 0.002, ("conv", "Conv2D"): 0.001}
    lost = loss("slow layer", matrix=by_op(slower), matrix_before=by_op(FLOAT32))
    assert lost.seconds == pytest.approx(0.004)  # not made up for by what is faster
    assert (lost.layers, lost.baseline_s) == (("deep",), pytest.approx(0.002))


def test_a_layer_kept_in_float32_is_no_slow_layer_too():
    slower = {("deep", "Filter"): 0.006, ("conv", "Conv2D"): 0.003}
    kept = {"work": {"layers": [{"layer": "deep", "alone_low_s": 1e-4, "alone_s": 4e-4}]}}
    sides = {"matrix": by_op(slower), "matrix_before": by_op(FLOAT32), "candidate": kept}
    assert loss("slow layer", **sides).layers == ("conv",)


def test_a_layer_whose_operations_have_other_names_is_compared_as_a_whole():
    fused = {("deep", "FusedForward"): 0.003, ("deep", "Filter"): 0.002}
    assert loss("slow layer", matrix=by_op(fused), matrix_before=by_op(FLOAT32)) is None
    slower = {("deep", "FusedForward"): 0.007, ("deep", "Filter"): 0.002}
    lost = loss("slow layer", matrix=by_op(slower), matrix_before=by_op(FLOAT32))
    assert lost.seconds == pytest.approx(0.003)


def test_a_layer_that_is_not_faster_though_it_is_alone_lost_the_difference():
    def record(alone_s):
        return {"work": {"layers": [{"layer": "conv", "alone_s": alone_s}]}}

    sides = {"baseline": record(2e-3), "candidate": record(1e-3)}
    same = by_op({("conv", "Conv2D"): 0.002})
    lost = loss("slow layer", matrix=same, matrix_before=same, **sides)
    assert lost.seconds == pytest.approx(0.001)
    # Short of its best, but faster than before: not slow.
    less = by_op({("conv", "Conv2D"): 0.0015})
    assert loss("slow layer", matrix=less, matrix_before=same, **sides) is None


def by_layer(**seconds):
    return pd.DataFrame(seconds, index=["baseline_s", "candidate_s"]).T


def test_memory_bound_work_that_is_slower_in_16_bits_is_told_from_what_is_not_halved():
    memory = by_layer(gelu=[0.001, 0.003], norm=[0.003, 0.002])
    sides = {"before": {"memory": 0.004}, "after": {"memory": 0.005}, "memory": memory}
    slow, other = (loss(name, **sides) for name in ("slow operations", "memory"))
    assert slow.seconds == pytest.approx(0.0025)
    assert (slow.spent_s, slow.baseline_s) == (0.003, 0.001)
    assert slow.layers == ("gelu",)
    assert other.seconds == pytest.approx(0.0005)
    assert (other.spent_s, other.baseline_s) == pytest.approx((0.002, 0.003))


def test_what_is_little_slower_or_in_no_layer_is_memory_bound():
    # Of a layer that the baseline's trace does not name nobody knows whether it became slower.
    memory = by_layer(norm=[0.001, 0.0015], new=[0.0, 0.002], none=[0.001, 0.002])
    memory = memory.rename(index={"none": ""})
    assert loss("slow operations", memory=memory) is None
    assert loss("slow operations") is None


@pytest.mark.parametrize(
    ("effective", "after_s", "layers"),
    [(0.2, 0.008, ("own",)), (0.2, 0.002, ()), (1.0, 0.008, ()), (None, 0.008, ())],
)
def test_a_layer_that_casts_to_float32_within_is_kept_in_it(effective, after_s, layers):
    # Products in wider types, and matrix work that is no faster: together they tell of the cast.
    candidate = {
        "in_force": {"effective_share": effective},
        "work": {
            "ceilings": {"matmul_flops_per_s": 4e14},
            "layers": [{"layer": "own", "alone_low_s": None}],
        },
    }
    sides = {
        "candidate": candidate,
        "matrix": by_op({("own", "MatMul"): after_s}),
        "matrix_before": by_op({("own", "MatMul"): 0.008}),
    }
    found = loss("float32 fallback", **sides)
    assert (found.layers if found else ()) == layers
    if layers:
        assert found.seconds == pytest.approx(0.006)  # of peaks of 1 and 4
        assert loss("slow layer", **sides) is None  # nothing twice
