import math
from dataclasses import replace

from builders import published, record, tables

from mptexp.report.pages import notes


def test_notes_name_what_a_sweep_has_and_nothing_else():
    plain = tables([record()])
    assert notes.headline(plain).startswith("ms per step: geometric mean over repeats")
    assert "Emulated" not in notes.headline(plain)
    assert "Emulated" in notes.headline(tables([record(emulated=True)]))
    quantized = notes.headline(tables([record(), record("float8", emulated=True)]))
    assert quantized.endswith(
        "*Emulated* float8: Keras rounds what Dense and EinsumDense layers multiply and then "
        "multiplies in bfloat16, so slower is expected."
    )
    assert "16-bit type" not in quantized
    assert notes.details(plain) == (
        "5–95 %: percentiles of a run's windows, geometric means over repeats as the step's. Time "
        "to 90 % accuracy (the level is what every run reached): from the first step to the end of "
        "the first epoch that reached it, compilation and validation included."
    )


def test_a_difference_in_initial_weights_is_a_warning():
    alike = [record(), record("mixed_bfloat16")]
    assert notes.starting_points(tables(alike)).startswith("All policies of a block")
    alike[1]["in_force"]["initial_weights"] = "others"
    assert notes.starting_points(tables(alike)).startswith("**Warning**")
    assert notes.starting_points(tables([record() | {"status": "failed"}])) == ""


def test_interference_is_counted():
    flags = ["measured while throttled", "the tree held changes"]
    made = tables([record() | {"marks": flags}, record(block=1)])
    assert "**1 of 2 runs** was measured while throttled." in notes.sensors(made)
    assert "were" in notes.sensors(tables([record(block=b) | {"marks": flags} for b in (0, 1)]))


def test_ablations_are_a_family_of_their_own():
    sweep = published("why-cpu")
    effects = [effect for verdict in sweep.verdicts for effect in verdict.effects]
    own = [o for e in effects for o in e.contrasts.values() if o.low == o.low]
    known = sum(not math.isnan(e.contrasts[name].low) for e in effects for name in e.claimed)
    assert len(own) > known
    # The lie: "meets a false claim in up to 10 %", of pages with families that it did not count.
    said = notes.families(sweep.tables, sweep.verdicts)
    assert f"ablations ({len(own) - known})" in said
    assert "memory (" in said


def test_the_peak_of_integers_is_of_the_type_that_was_measured():
    # Published once: "in the same type", of int4, beside a product of float32.
    rows = [record(), record("float32", 1)]
    rows[1]["parameters"] |= {"policy": "int8", "phase": "inference"}
    for one in rows:
        one["work"] = {"flops_per_step": 1e9, "bytes_per_step": 1e9}
        one["work"]["ceilings"] = {"dtype": "float32", "matmul_flops_per_s": 1e12}
    made = tables(rows)
    assert "in the same type (int8: in float32), through the same" in notes.details(made)


def test_the_power_of_several_gpus_is_said_to_be_that_of_the_first():
    # The puzzle: 300 W, of four GPUs of which each takes as much.
    made = tables([record()])
    for replicas, device, said in ((4, "GPU", True), (1, "GPU", False), (4, "EPYC (CPU)", False)):
        results = made.results.assign(replicas=replicas, power_w=300.0, device=device)
        told = notes.sensors(replace(made, results=results))
        assert ("the power is that of the first" in told) is said
