import dataclasses
import math

import pandas as pd
import pytest

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations, cause_times
from mptexp.diagnosis.cause_times import Case, left, within_the_step
from mptexp.diagnosis.causes import CAUSES
from mptexp.diagnosis.effects import Effect
from mptexp.diagnosis.pairs import Pair
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32")
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)
PEAKS = {"work": {"ceilings": {"matmul_flops_per_s": 1e14}, "layers": []}}


def by_op(cause, seconds):
    """Seconds by cause, layer and op, of one side of a case."""
    index = ["cause", "layer", "op"]
    keys = [(cause, *key) if isinstance(key, tuple) else (cause, key, "") for key in seconds]
    return pd.Series(list(seconds.values()), pd.MultiIndex.from_tuples(keys, names=index), float)


def side(of, matrix):
    """Seconds of a step: of causes, or of layers of a cause; and of operations of matrix work."""
    parts = [by_op("matrix", matrix or {"": 0.0})]
    for cause, seconds in (of or {}).items():
        parts.append(by_op(cause, seconds if isinstance(seconds, dict) else {"": seconds}))
    return pd.concat(parts)


CASE = Case(PAIR, PEAKS, PEAKS, pd.DataFrame(), {}, ())


def loss(name, effects=(), before=None, after=None, matrix=None, matrix_before=None, **known):
    """What the cause of this name takes in a step of 10 ms."""
    (cause,) = (cause for cause in CAUSES if cause.name == name)
    sides = {"baseline_s": side(before, matrix_before), "candidate_s": side(after, matrix)}
    table = pd.DataFrame({n: s.groupby(level=s.index.names).sum() for n, s in sides.items()})
    table = table.fillna(0.0) if before or after or matrix else table[:0]  # was anything traced?
    case = dataclasses.replace(CASE, effects=tuple(effects), seconds=table, **known)
    return cause.loss(case, cause)


@pytest.mark.parametrize(
    ("gain", "lost"),
    [
        # Not significant is not none: what the trace shows is not refuted, as far as it goes.
        (Contrast(1.2, 0.9, 1.6, 3), 0.003),
        (Contrast(1.0, 0.9, 1.25, 3), 0.002),
        (Contrast(0.5, 0.4, 0.6, 3), 0.0),
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
    # Without a trace nothing tells the two apart, and the words hold for both.
    assert loss("pipeline", effects).seconds == pytest.approx(0.005)


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
    candidate = {"work": PEAKS["work"] | {"layers": layers}}
    found = loss("float32 fallback", candidate=candidate, matrix={("conv", "Conv2D"): 0.004})
    assert found.seconds == pytest.approx(0.003)
    assert found.layers == ("conv",)
    assert loss("float32 fallback") is None
    gains = {"mixed_bfloat16": Contrast(2.0, 1.9, 2.1, 3)}
    proven = loss("float32 fallback", [Effect(ablations.NO_FALLBACK, gains)], candidate=candidate)
    assert proven.seconds == pytest.approx(0.005)


def test_work_without_tensor_cores_loses_by_the_ratio_of_the_peaks():
    faster = {"work": {"ceilings": {"matmul_flops_per_s": 8e14}, "layers": []}}
    found = loss("no tensor cores", candidate=faster, missed={"conv": 0.004})
    assert found.seconds == pytest.approx(0.0035)
    assert loss("no tensor cores") is None


def test_a_peak_beside_other_programs_makes_no_device_slow():
    steady = loss("no faster type", before={"matrix": 0.005}, after={"matrix": 0.005})
    assert steady.seconds == 0.005
    assert loss("slower type", before={"matrix": 0.005}, after={"matrix": 0.005}) is None
    assert loss("no faster type", before={"matrix": 0.008}, after={"matrix": 0.005}) is None


def test_what_64_bits_cost_is_not_laid_to_a_device_that_is_no_faster_in_16():
    # Planted 67 % of the step, a convolution in 64 bits: "88 % … this device is no faster".
    layers = [{"layer": "conv", "compute_dtype": "float64"}]
    ceilings = {"matmul_flops_per_s": 1e14, "float64_flops_per_s": 2.5e13}
    candidate = {"work": PEAKS["work"] | {"layers": layers, "ceilings": ceilings}}
    seconds = {("conv", "Conv2D"): 0.008, ("dense", "MatMul"): 0.001}
    sides = {"matrix": seconds, "matrix_before": seconds, "candidate": candidate}
    assert loss("float32 fallback", **sides).seconds == pytest.approx(0.006)
    assert loss("no faster type", **sides).seconds == pytest.approx(0.003)


def test_a_program_that_xla_widened_is_bound_by_no_peak_in_16_bits():
    # The lie: "a device that is slower in 16 bits, 104 ms", of products that are all in float32.
    ceilings = {"matmul_flops_per_s": 5e13, "dtype": "bfloat16"}
    half = {"work": {"ceilings": ceilings, "layers": []}}
    sides = {"before": {"matrix": 0.005}, "after": {"matrix": 0.006}}
    for products, named in (
        ({"float32": 11}, False),
        ({"float32": 1, "bfloat16": 10}, True),
        ({}, True),
    ):
        found = loss("slower type", candidate=half | {"profile": {"products": products}}, **sides)
        assert (found is not None) == named
        assert cause_times.widened(half | {"profile": {"products": products}}) != named
    float32 = {"work": {"ceilings": ceilings | {"dtype": "float32"}, "layers": []}}
    assert not cause_times.widened(float32 | {"profile": {"products": {"float32": 11}}})


def test_what_all_matrix_work_takes_longer_is_the_devices_and_no_layers():
    # Measured peak 0.5 times float32's: "30 % is what layers take longer in 16 bits (conv)".
    before = {("conv", "Conv2D"): 0.004, ("other", "Conv2D"): 0.001}
    after = {("conv", "Conv2D"): 0.006, ("other", "Conv2D"): 0.003}
    half = {"work": {"ceilings": {"matmul_flops_per_s": 5e13}, "layers": []}}
    sides = {"matrix": after, "matrix_before": before, "candidate": half}
    # Twice as long as the baseline's are all; what one takes beyond that is its own.
    assert loss("slow layer", **sides).seconds == pytest.approx(0.001)
    assert loss("slow layer", **sides).layers == ("other",)
    assert loss("slower type", **sides).seconds == pytest.approx(0.008)
    assert loss("no faster type", **sides) is None
    alone = [{"layer": "conv", "alone_s": 4e-4}, {"layer": "other", "alone_s": 1e-4}]
    longer = [{"layer": "conv", "alone_s": 5e-4}, {"layer": "other", "alone_s": 2e-4}]
    sides["baseline"] = {"work": PEAKS["work"] | {"layers": alone}}
    sides["candidate"] = {"work": half["work"] | {"layers": longer}}
    assert loss("slow layer", **sides).seconds == pytest.approx(0.001 + 0.001)


def test_a_peak_that_the_step_refutes_excuses_no_layer():
    before = {("conv", "Conv2D"): 0.006, ("other", "Conv2D"): 0.001}
    after = {("conv", "Conv2D"): 0.002, ("other", "Conv2D"): 0.002}
    half = {"work": {"ceilings": {"matmul_flops_per_s": 5e13}, "layers": []}}
    sides = {"matrix": after, "matrix_before": before, "candidate": half}
    assert loss("slow layer", **sides).seconds == pytest.approx(0.001)
    assert loss("slower type", **sides) is None


@pytest.mark.parametrize("peak", [2.05e13, 1.95e13])
def test_a_device_is_slower_by_whatever_ratio(peak):
    before, after = {("conv", "Conv2D"): 0.001}, {("conv", "Conv2D"): 0.0049}
    low = {"work": {"ceilings": {"matmul_flops_per_s": peak}, "layers": []}}
    sides = {"matrix": after, "matrix_before": before, "candidate": low}
    assert loss("slower type", **sides).seconds == pytest.approx(0.0049, rel=0.01)


def test_reference_code_is_no_slower_device_too():
    before = {("deep", "Filter"): 0.001, ("conv", "Conv2D"): 0.001}
    after = {("deep", "Filter"): 0.007, ("conv", "Conv2D"): 0.002}
    half = {"work": {"ceilings": {"matmul_flops_per_s": 5e13}, "layers": []}}
    half["in_force"] = {"reference": ["gradients of the weights of convolutions"]}
    sides = {"matrix": after, "matrix_before": before, "candidate": half}
    assert loss("reference code", **sides).seconds == pytest.approx(0.006)
    assert loss("slower type", **sides).seconds == pytest.approx(0.003)


def test_a_layer_kept_in_float32_loses_nothing_where_16_bits_are_slower():
    # Planted: −11 %, of products kept in float32 by a layer; 12 % was blamed, for its casts.
    layers = [{"layer": "own", "compute_dtype": "float32"}]
    half = {"work": {"ceilings": {"matmul_flops_per_s": 5e13}, "layers": layers}}
    sides = {"before": {"matrix": {"own": 0.005}}, "candidate": half}
    after = {"matrix": {"own": 0.005}, "casts": {"own": 0.001}}
    assert loss("float32 fallback", after=after, **sides).seconds == 0
    # All of it is the device's, and no more than all of it.
    assert loss("slower type", after=after, **sides).seconds == pytest.approx(0.005)


FLOAT32 = {("deep", "Filter"): 0.002, ("deep", "Forward"): 0.004, ("conv", "Conv2D"): 0.002}


def test_an_operation_that_is_slower_in_16_bits_is_named_with_its_layer():
    slower = {("deep", "Filter"): 0.006, ("deep", "Forward"): 0.002, ("conv", "Conv2D"): 0.001}
    lost = loss("slow layer", matrix=slower, matrix_before=FLOAT32)
    assert lost.seconds == pytest.approx(0.004)  # not made up for by what is faster
    assert (lost.layers, lost.baseline_s) == (("deep",), pytest.approx(0.002))


def test_what_reference_code_computes_is_a_cause_of_its_own():
    slower = {("deep", "Filter"): 0.6, ("deep", "Forward"): 0.005, ("conv", "Conv2D"): 0.001}
    sides = {"matrix": slower, "matrix_before": FLOAT32}
    assert loss("reference code", **sides) is None
    known = {"in_force": {"reference": ["gradients of the weights of convolutions"]}}
    sides["candidate"] = PEAKS | known
    lost = loss("reference code", **sides)
    assert (lost.seconds, lost.layers) == (pytest.approx(0.598), ("deep",))
    # What is a little slower has a kernel.
    assert loss("slow layer", **sides).seconds == pytest.approx(0.001)
    # Once "91 % of the step is matrix work, in which this device is no faster" beside 90 % of this.
    assert loss("no faster type", **sides).seconds == pytest.approx(0.606 - 0.598 - 0.001)


def test_a_layer_kept_in_float32_is_no_slow_layer_too():
    slower = {("deep", "Filter"): 0.006, ("conv", "Conv2D"): 0.003}
    layers = [{"layer": "deep", "alone_low_s": 1e-4, "alone_s": 4e-4}]
    kept = {"work": PEAKS["work"] | {"layers": layers}}
    sides = {"matrix": slower, "matrix_before": FLOAT32, "candidate": kept}
    assert loss("slow layer", **sides).layers == ("conv",)


def test_a_layer_whose_operations_have_other_names_is_compared_as_a_whole():
    fused = {("deep", "FusedForward"): 0.003, ("deep", "Filter"): 0.002}
    assert loss("slow layer", matrix=fused, matrix_before=FLOAT32) is None
    slower = {("deep", "FusedForward"): 0.007, ("deep", "Filter"): 0.002}
    lost = loss("slow layer", matrix=slower, matrix_before=FLOAT32)
    assert lost.seconds == pytest.approx(0.003)


def test_a_layer_that_is_not_faster_though_it_is_alone_lost_the_difference():
    def record(alone_s):
        return {"work": PEAKS["work"] | {"layers": [{"layer": "conv", "alone_s": alone_s}]}}

    sides = {"baseline": record(2e-3), "candidate": record(1e-3)}
    same = {("conv", "Conv2D"): 0.002}
    lost = loss("slow layer", matrix=same, matrix_before=same, **sides)
    assert lost.seconds == pytest.approx(0.001)
    # Short of its best, but faster than before: not slow.
    less = {("conv", "Conv2D"): 0.0015}
    assert loss("slow layer", matrix=less, matrix_before=same, **sides) is None


def memory(**layers):
    """Memory-bound work by layer, of both sides."""
    both = zip(("before", "after"), zip(*layers.values(), strict=True), strict=True)
    return {name: {"memory": dict(zip(layers, seconds, strict=True))} for name, seconds in both}


def test_memory_bound_work_that_is_slower_in_16_bits_is_told_from_what_is_not_halved():
    sides = memory(gelu=[0.001, 0.003], norm=[0.003, 0.002])
    slow, other = (loss(name, **sides) for name in ("slow operations", "memory"))
    assert slow.seconds == pytest.approx(0.0025)
    assert (slow.spent_s, slow.baseline_s) == (0.003, 0.001)
    assert slow.layers == ("gelu",)
    assert other.seconds == pytest.approx(0.0005)
    assert (other.spent_s, other.baseline_s) == pytest.approx((0.002, 0.003))


@pytest.mark.parametrize(
    ("after", "is_slow"),
    [
        ({"Erfc": 0.0030, "Mul": 0.0025}, True),
        ({"Erfc": 0.0030, "Mul": 0.0010}, False),  # as a whole it is faster
        ({"Erfc": 0.0014, "Mul": 0.0040}, False),  # no operation is much slower
        ({"Erfc": 0.0018, "Mul": 0.0044}, False),  # nor does the one that is explain the rest
    ],
)
def test_an_operation_that_is_slower_tells_why_its_layer_is(after, is_slow):
    # GELU in bfloat16: its error function took six times as long, and "memory-bound work that 16
    # bits did not halve" was named, as the layer took 1.4 times as long.
    before = {"memory": {("gelu", "Erfc"): 0.001, ("gelu", "Mul"): 0.003}}
    sides = {"before": before, "after": {"memory": {("gelu", op): s for op, s in after.items()}}}
    lost = sum(after.values()) - 0.002
    name, other = ("slow operations", "memory")[:: 1 if is_slow else -1]
    assert loss(name, **sides).seconds == pytest.approx(lost)
    assert not (found := loss(other, **sides)) or not found.seconds


def test_what_is_little_slower_or_in_no_layer_is_memory_bound():
    # Of a layer that the baseline's trace does not name nobody knows whether it became slower.
    sides = memory(norm=[0.001, 0.0015], new=[0.0, 0.002], **{"": [0.001, 0.002]})
    assert loss("slow operations", **sides) is None
    assert loss("slow operations") is None


def program(flops, *layers, **arithmetic):
    """A record whose program multiplies in these types, 1e12 FLOP in all; peaks are four times."""
    known = [{"layer": "known", "flops": flops, "compute_dtype": "bfloat16", "alone_s": 1e-3}]
    return {
        "in_force": {"arithmetic": arithmetic, "products_flops": 1e12},
        "work": {"ceilings": {"matmul_flops_per_s": 4e14}, "layers": [*known, *layers]},
    }


OWN = {"layer": "own", "flops": None, "compute_dtype": "bfloat16"}
OWN_STEP = {
    "before": {"memory": {"own": 0.001}},
    "after": {"memory": {"own": 0.001}, "casts": {"own": 0.0005, "known": 0.0001}},
    "matrix_before": {("own", "MatMul"): 0.008, ("known", "MatMul"): 0.001},
}


def all_of(candidate, took_s=0.008):
    """What the causes lose in OWN_STEP, with so much matrix work in own."""
    matrix = {("own", "MatMul"): took_s, ("known", "MatMul"): 0.001}
    names = [cause.name for cause in CAUSES]
    lost = {n: loss(n, candidate=candidate, matrix=matrix, **OWN_STEP) for n in names}
    return {name: one for name, one in lost.items() if one and one.seconds > 0}


@pytest.mark.parametrize(
    ("wide", "part_s"), [("float32", 0.006 + 0.0005), ("float64", 0.007 + 0.00075)]
)
def test_a_layer_that_casts_within_loses_all_that_16_bits_would_save(wide, part_s):
    # Matrix work by peaks of 1 and 4, memory-bound work by bytes, casts in full; nothing twice.
    lost = all_of(program(2e11, OWN, **{wide: 0.8, "bfloat16": 0.2}))
    found = lost["float32 fallback"]
    assert (found.layers, found.spent_s) == (("own",), pytest.approx(0.0095))
    assert found.seconds == pytest.approx(part_s + 0.0005)
    assert lost["casts"].seconds == pytest.approx(0.0001)
    assert lost["casts"].layers == ("known",)
    assert not lost.keys() & {"slow layer", "memory", "slow operations"}


def test_of_64_bits_the_measured_peak_counts():
    known = program(2e11, OWN, float64=0.8, bfloat16=0.2)
    by_32_bits = all_of(known)["float32 fallback"].seconds
    known["work"]["ceilings"]["float64_flops_per_s"] = 1e13
    # A fortieth of the peak in 16 bits; an eighth, were it half of that in 32.
    more_s = all_of(known)["float32 fallback"].seconds - by_32_bits
    assert more_s == pytest.approx(0.008 * (1 / 8 - 1 / 40))


KEPT = {"layer": "kept", "compute_dtype": "float32"}


@pytest.mark.parametrize(
    ("candidate", "took_s"),
    [
        (program(2e11, OWN, float32=0.8, bfloat16=0.2), 0.002),  # four times as fast
        (program(1e12, OWN, bfloat16=1.0), 0.008),
        (program(2e11, OWN, KEPT | {"flops": 8e11}, float32=0.8, bfloat16=0.2), 0.008),
        (program(2e11, OWN, KEPT | {"flops": None}, float32=0.8, bfloat16=0.2), 0.008),
        (program(1e12, OWN), 0.008),
    ],
)
def test_no_layer_casts_within_whose_products_nothing_else_lacks(candidate, took_s, monkeypatch):
    monkeypatch.setitem(OWN_STEP["matrix_before"], ("kept", "MatMul"), 0.001)
    assert "float32 fallback" not in all_of(candidate, took_s)


@pytest.mark.parametrize(("own", "took_s", "part_s"), [
    ({"own": "float32"}, 0.008, 0.006),
    ({"own": "float64"}, 0.008, 0.007),
    ({"own": "float32"}, 0.002, 0.0),  # four times as fast: not what takes its time
    ({"known": "float32"}, 0.008, 0.0),  # measured alone
    ({}, 0.008, 0.0),
])  # fmt: skip
def test_a_layer_that_casts_within_is_known_by_the_graph_however_few_its_flops(own, took_s, part_s):
    few = program(1e12, OWN, float32=0.003, bfloat16=0.997)
    lost = all_of(few | {"profile": {"wide_products": own}}, took_s)
    fallback = lost.get("float32 fallback")
    beside = 0.0005 + 0.0005  # memory-bound work by bytes, and casts
    if part_s:
        beside += 0.00025 * (own["own"] == "float64")
        assert (fallback.layers, fallback.seconds) == (("own",), pytest.approx(part_s + beside))
    else:
        assert fallback is None
    # The graph goes before what FLOPs let suppose.
    many = program(2e11, OWN, float32=0.8, bfloat16=0.2) | {"profile": {"wide_products": {}}}
    assert "float32 fallback" not in all_of(many)


def test_a_layer_of_statistics_in_float64_loses_what_their_bytes_cost():
    # It has no matrix work, and 16 bits did not halve it: it was called memory-bound.
    own = {"profile": {"float64_layers": ["stats", "another"]}}
    sides = {
        "candidate": program(1e12, bfloat16=1.0) | own,
        "before": {"memory": {"stats": 0.004}},
        "after": {"memory": {"stats": 0.004}, "casts": {"stats": 0.001}},
    }
    found = loss("float32 fallback", **sides)
    assert (found.layers, found.seconds) == (("stats",), pytest.approx(0.75 * 0.004 + 0.001))
    assert loss("memory", **sides).seconds == loss("casts", **sides).seconds == 0


@pytest.mark.parametrize(
    ("others_s", "saved"),
    [(99e-3, 0.005), (1e-3, 0.25), (1e-5, 0.495)],  # it was 0 of each: of 10 us in pooling, too
)
def test_memory_bound_work_kept_in_float32_gains_as_that_of_others_if_there_is_much(
    monkeypatch, others_s, saved
):
    # On a CPU that converts number by number, 16 bits halve the bytes and none of the time.
    for side in ("before", "after"):
        memory = {"memory": {"own": 1e-3, "known": others_s}}
        monkeypatch.setitem(OWN_STEP, side, OWN_STEP[side] | memory)
    own = OWN | {"compute_dtype": "float32"}
    lost = all_of(program(2e11, own, float32=0.8, bfloat16=0.2))
    expected = 0.006 + saved * 1e-3 + 0.0005
    assert lost["float32 fallback"].seconds == pytest.approx(expected, rel=1e-3)


def test_a_layer_of_its_own_that_is_kept_in_float32_loses_by_peaks_and_bytes():
    own = OWN | {"compute_dtype": "float32"}
    lost = all_of(program(2e11, own, float32=0.8, bfloat16=0.2))
    assert lost["float32 fallback"].seconds == pytest.approx(0.006 + 0.0005 + 0.0005)
    # On a GPU its kernels have no Tensor Cores, for that reason.
    kept = program(2e11, own, float32=0.8, bfloat16=0.2)
    sides = {"candidate": kept, "matrix": {("own", "MatMul"): 0.008}}
    assert loss("no tensor cores", missed={"own": 0.008}, **sides) is None
    assert loss("no tensor cores", missed={"known": 0.008}, **sides).layers == ("known",)


def test_without_a_trace_what_the_ablation_saved_is_the_pipelines():
    # The lie: "no known cause", beside an ablation that doubles the speed.
    gain = {"mixed_bfloat16": Contrast(2.0, 1.9, 2.1, 3)}
    effects = [Effect(ablations.INPUT, gain)]
    found = loss("pipeline", effects)
    assert (found.seconds, math.isnan(found.spent_s)) == (pytest.approx(0.005), True)
    # With one, what is a wait is not the pipeline's too.
    assert loss("pipeline", effects, after={"input": 0.005}) is None


def together(effects=(), step_s=0.01, **of):
    """Shares of causes beside each other, by name, in a step of which a trace has these rows."""
    table = pd.DataFrame({"baseline_s": 0.0, "candidate_s": side(of, None)})
    pair = dataclasses.replace(PAIR, step_s=step_s)
    case = dataclasses.replace(CASE, pair=pair, effects=tuple(effects), seconds=table)
    causes = [cause for cause in CAUSES if cause.name in (*of, "compiled", "pipeline")]
    made = [found for cause in causes if (found := cause.loss(case, cause))]
    kept = within_the_step(case, made)
    return {one.cause.name: one.share for one in kept}, left(kept)


def saves(ablation, gain):
    return Effect(ablation, {"mixed_bfloat16": Contrast(gain, gain - 0.1, gain + 0.1, 3)})


def test_of_what_a_trace_shows_as_much_counts_as_an_ablation_leaves_of_the_step():
    # The lie: 91 % of the step is lost to XLA's code, then 22 % is the host's.
    shares, part = together([saves(ablations.XLA_OFF, 10.0)], host=0.002, unexplained=0.005)
    assert shares == pytest.approx({"compiled": 0.9, "host": 0.02})
    assert part == pytest.approx(0.1)  # of what is unexplained, too
    assert together(host=0.002, unexplained=0.005) == ({"host": pytest.approx(0.2)}, 1.0)


def test_the_wait_that_an_ablation_measured_takes_the_place_of_the_traced_wait():
    effects = [saves(ablations.INPUT, 2.0)]
    assert together(effects, input=0.005, host=0.005)[0] == pytest.approx(
        {"input": 0.5, "host": 0.5}
    )
    assert together(effects, input=0.006, host=0.004)[0] == pytest.approx(
        {"input": 0.5, "host": 0.4}
    )
    assert together(effects, input=0.004, host=0.006)[0] == pytest.approx(
        {"input": 0.5, "host": 0.5}
    )


def test_what_two_ablations_save_is_saved_once():
    effects = [saves(ablations.XLA_OFF, 4.0), saves(ablations.INPUT, 2.0)]
    shares, part = together(effects, host=0.002)
    assert shares == pytest.approx({"compiled": 0.75, "pipeline": 0.25})
    assert part == 0.0


def test_work_that_two_causes_are_cut_out_of_counts_with_the_larger():
    lost = {"slow layer": 0.007, "bad kernel": 0.006, "host": 0.002}
    of = {cause.name: cause for cause in CAUSES}
    empty = dataclasses.replace(CASE, seconds=by_op("matrix", {"": 0.0}).to_frame("candidate_s"))
    made = [empty.loss(of[name], seconds, seconds) for name, seconds in lost.items()]
    shares = {one.cause.name: one.share for one in within_the_step(empty, made)}
    assert shares == pytest.approx({"host": 0.2, "slow layer": 0.7, "bad kernel": 0.1})
