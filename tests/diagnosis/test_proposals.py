import dataclasses

import pytest

from mptexp.diagnosis import ablations, proposals
from mptexp.diagnosis.pairs import Pair, in_block
from mptexp.report.tables import why_tables
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32", seed=3, block=0)
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)


def record(layers=(), jit=False, emulated=False, busy=0.0, **causes):
    """A record whose step of 10 ms is what the causes say, in shares; the rest is matrix work."""
    states = {"input", "host", "idle"}
    ops = {"memory": ("Mul", ""), "casts": ("Cast", ""), "matrix": ("Conv2D", "")}
    causes["matrix"] = 1 - sum(causes.values())
    rows = [
        {"state": name if name in states else "op", "layer": layer, "part": "other",
         "op": ops.get(name, ("", ""))[0], "kernel": "", "seconds": 0.01 * share, "count": 1}
        for name, share in causes.items()
        for layer in [""]
    ]  # fmt: skip
    return {
        "timing": {"step_s": 0.01},
        "in_force": {"jit": jit, "emulated": emulated},
        "profile": {
            "missing": "",
            "step_s": 0.01,
            "rows": rows,
            "input_busy_s": 0.01 * busy,
            "device": "cpu",
        },
        "work": {"layers": list(layers)},
    }


def names(candidate, pair=PAIR):
    return [a.name for a in proposals.worthwhile(pair, record(), candidate)]


def test_a_step_of_matrix_work_alone_asks_for_nothing():
    assert names(record(memory=0.04, host=0.04)) == []


def test_a_record_that_does_not_tell_the_kinds_of_its_layers_asks_for_what_it_shows():
    bare = {"layer": "conv", "channels": 8, "alone_s": None}
    assert names(record([bare], memory=0.2)) == ["XLA on"]


@pytest.mark.parametrize(
    ("candidate", "asked"),
    [
        (record(input=0.3), ["the batch on the device"]),
        (record(busy=0.5), ["the batch on the device"]),
        (record(memory=0.2), ["XLA on"]),
        (record(jit=True), ["XLA off"]),
        (record(host=0.2), ["XLA on", "the batch doubled", "16 steps per execution"]),
    ],
)
def test_the_time_breakdown_says_what_is_worth_trying(candidate, asked):
    assert names(candidate) == asked


@pytest.mark.parametrize(
    ("backend", "jit", "asked"),
    [
        ("tensorflow", False, ["no normalization", "fused normalization"]),
        ("torch", False, ["no normalization", "fused normalization"]),
        ("tensorflow", True, ["no normalization"]),  # XLA takes the one operation apart
        ("jax", False, ["no normalization"]),
    ],
)
def test_batch_normalization_is_tried_in_one_operation_where_there_is_one(backend, jit, asked):
    slow = record([{"layer": "bn", "kind": "BatchNormalization", "alone_s": None}], jit, memory=0.2)
    for row in slow["profile"]["rows"]:
        row["layer"] = "bn" if row["op"] == "Mul" else ""
    runs = [run.model_copy(update={"backend": backend}) for run in PAIR.policies]
    pair = Pair(*runs, 0.01)
    made = [a for a in proposals.worthwhile(pair, record(), slow) if "normalization" in a.name]
    assert [ablation.name for ablation in made] == asked
    for ablation in made:  # the lie: proposed with jit auto, which refuses it
        for run in ablation.variants(*pair.policies):
            assert Run(**run.model_dump()) == run


def test_every_ablation_says_why():
    asked = proposals.worthwhile(PAIR, record(), record(host=0.2))
    assert asked[0].share == pytest.approx(0.2)
    assert (
        why_tables.reason(asked[0]) == "20 % of the step is memory-bound work, casts and launches"
    )


def test_without_a_time_breakdown_input_and_xla_are_tried():
    blind = record() | {"profile": {"missing": "xprof is not installed"}}
    assert names(blind) == ["the batch on the device", "XLA on"]
    (asked, _) = proposals.worthwhile(PAIR, record(), blind)
    assert why_tables.reason(asked) == "there is no time breakdown"


def test_strict_float32_is_tried_where_the_baseline_is_tf32():
    tf32 = dataclasses.replace(PAIR, baseline=BASE.model_copy(update={"policy": "tensorfloat32"}))
    assert names(record(), tf32) == ["strict float32"]
    (asked,) = proposals.worthwhile(tf32, record(), record())
    assert why_tables.reason(asked) == "the step is compared with one in TF32"


def test_odd_widths_are_padded_but_not_the_classes():
    kernels = [{"layer": n, "kind": "Conv2D", "alone_s": 1.0,
                "channels": c}
               for n, c in (("a", 12), ("b", 16), ("out", 10))]  # fmt: skip
    assert names(record(kernels)) == ["widths padded to multiples of 8"]
    assert names(record(kernels[1:])) == []
    for model in ("resnet50", "mine:build"):  # which refuse another width
        runs = [run.model_copy(update={"model": model}) for run in PAIR.policies]
        assert names(record(kernels), Pair(*runs, 0.01)) == []


def test_the_layer_that_lost_most_is_tried_in_float32():
    def lost(seconds):
        made = record()
        made["profile"]["rows"][0] |= {"layer": "depthwise", "seconds": seconds}
        made["profile"]["step_s"] = made["timing"]["step_s"] = seconds
        return made

    asked = proposals.worthwhile(PAIR, lost(0.01), lost(0.03))
    assert asked[-1].change == {"float32_layers": "depthwise"}
    assert asked[-1].variants(*PAIR.policies)[0] == BASE
    unread = lost(0.01) | {"profile": {"missing": "its trace was not read"}}
    asked = [ablation.name for ablation in proposals.worthwhile(PAIR, unread, lost(0.03))]
    assert "depthwise in float32" not in asked


def test_controls_and_ablations_share_length_block_and_seed():
    made = proposals.runs(PAIR, [ablations.INPUT, ablations.BATCH], 2, blocks=3)
    assert len(made) == 6
    assert {(r.block, r.seed, r.max_steps, r.target_ci) for r in made} == {(2, 5, 512, 0.02)}
    assert sorted(r.batch_size for r in made) == [32, 32, 32, 32, 64, 64]
    assert proposals.runs(PAIR, [], 0) == []


@pytest.mark.parametrize("seed", range(10))
def test_controls_stand_among_the_ablations_that_are_compared_with_them(seed):
    asked = [ablations.INPUT, ablations.BATCH, ablations.XLA_ON]
    blocks = [proposals.runs(PAIR, asked, block, blocks=4, seed=seed) for block in range(4)]
    controls = [in_block(PAIR.controls[0], 0), in_block(PAIR.controls[1], 0)]
    places = [[in_block(run, 0) for run in runs].index(controls[0]) // 2 for runs in blocks]
    assert sorted(places) == [0, 1, 2, 3]
    for runs in blocks:  # both policies of a change follow one another
        assert all({a.policy, b.policy} == {"float32", "mixed_bfloat16"} for a, b in pairs(runs))
    assert sorted(runs[0].policy for runs in blocks) == ["float32"] * 2 + ["mixed_bfloat16"] * 2


def pairs(runs):
    return zip(runs[::2], runs[1::2], strict=True)


@pytest.mark.parametrize(("size", "without"), [(32, True), (8, False)])
def test_what_leaves_no_steps_to_time_is_not_proposed(size, without):
    # "16 steps per execution" of an epoch of 44 steps: two runs that ended as unsupported.
    run = Run(dataset="digits", batch_size=size, epochs=1)
    several = run.model_copy(update=ablations.EXECUTION.change)
    assert proposals._cannot_be_timed(several) is without
    assert not proposals._cannot_be_timed(run)
    assert not proposals._cannot_be_timed(several.model_copy(update={"dataset": "mnist"}))
