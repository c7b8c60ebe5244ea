import pytest
from builders import record, tables

from mptexp.analysis import scaling

LOGICAL_CPU = "Some CPU (CPU)"


def measured(replicas, batch_size, step_s, jit=False, blocks=3, device="GPU", **parameters):
    """Runs whose machine slows down from block to block: ratios within blocks do not notice."""
    for block in range(blocks):
        made = record(step_s=step_s * 1.5**block, block=block, batch_size=batch_size, jit=jit)
        made["parameters"] |= {"replicas": replicas, **parameters}
        made["environment"] = {"device": device, "packages": {}}
        made["run_id"] = f"{replicas}-{batch_size}-{block}-{jit}-{parameters}"
        yield made


def study(*groups):
    return tables([made for group in groups for made in group])


def test_weak_and_strong_scaling_are_told_apart():
    # Two replicas need 0.1 s for 64 pictures; one needs 0.08 s for 32 and 0.15 s for 64.
    found = scaling.by_replicas(
        study(measured(1, 32, 0.08), measured(1, 64, 0.15), measured(2, 64, 0.1)).results
    )
    assert list(found.replicas) == [1, 1, 2]
    two = found[found.replicas == 2].iloc[0]
    assert two.batch_per_replica == 32
    assert two.speedup == pytest.approx(1.6)  # 640 over 400 images per second
    assert (two.low, two.high) == pytest.approx((1.6, 1.6))
    assert two.blocks == 3
    assert two.efficiency == pytest.approx(0.8)
    assert two.strong_speedup == pytest.approx(1.5)
    assert found[found.replicas == 1].speedup.isna().all()


def test_without_one_replica_at_that_batch_nothing_is_claimed():
    found = scaling.by_replicas(study(measured(1, 48, 0.1), measured(2, 64, 0.1)).results)
    assert found.speedup.isna().all()
    assert found.strong_speedup.isna().all()


def test_fewer_than_three_blocks_claim_no_interval():
    results = study(measured(1, 32, 0.1, blocks=2), measured(2, 64, 0.1, blocks=2)).results
    two = scaling.by_replicas(results).iloc[1]
    assert two.speedup == pytest.approx(2)
    assert two.low != two.low


def test_xla_that_differs_is_said_and_like_is_preferred():
    on_one, off_one = measured(1, 32, 0.05, jit=True), measured(1, 32, 0.1)
    two = list(measured(2, 64, 0.1))
    (section,) = scaling.sections(study(on_one, two))
    assert section.rows.XLA.iloc[1] == "off (on in 1 replica, so this ratio is of XLA too)"
    (section,) = scaling.sections(study(measured(1, 32, 0.05, jit=True), off_one, two))
    last = section.rows.iloc[-1]
    assert last.XLA == "off"
    head = "Speedup over 1 replica, same batch per replica [95 % interval]"
    assert last[head] == "2.00× [2.00, 2.00] (n = 3)"


def test_logical_devices_are_said_to_be_no_hardware():
    groups = measured(1, 32, 0.1, device=LOGICAL_CPU), measured(2, 64, 0.2, device=LOGICAL_CPU)
    (section,) = scaling.sections(study(*groups))
    assert "says nothing of hardware" in section.note
    assert "GPU, float32: 2 replicas" in section.sentences[0]
    assert "efficiency 0.50" in section.sentences[0]
    (section,) = scaling.sections(study(measured(1, 32, 0.1), measured(2, 64, 0.2)))
    assert "says nothing of hardware" not in section.note


def test_a_sweep_without_replicas_or_frameworks_has_no_section():
    assert scaling.sections(study(measured(1, 32, 0.1))) == []
    assert scaling.sections(tables([])) == []


def test_frameworks_stand_beside_tensorflow():
    both = [list(measured(1, 32, 0.1)), list(measured(1, 32, 0.05, jit=True, backend="jax"))]
    torch = measured(1, 32, 0.4, backend="torch")
    found = scaling.by_backend(study(*both, torch).results).set_index("backend")
    assert list(found.index) == ["tensorflow", "jax", "torch"]
    assert found.speedup["jax"] == pytest.approx(2)
    assert found.speedup["torch"] == pytest.approx(0.25)
    (section,) = scaling.sections(study(*both))
    assert "All frameworks began from the same initial weights." in section.note
    rows = section.rows.set_index("Framework")
    assert rows.loc["JAX", "Images/s over TensorFlow's [95 % interval]"].startswith("2.00×")
    assert rows.loc["JAX", "XLA"] == "on (off in TensorFlow, so this ratio is of XLA too)"


def test_frameworks_that_began_otherwise_are_told():
    one, other = list(measured(1, 32, 0.1)), list(measured(1, 32, 0.1, backend="jax"))
    other[1]["in_force"]["initial_weights"] = "others"
    (section,) = scaling.sections(study(one, other))
    assert "did not begin from the same initial weights" in section.note


def test_what_failed_is_no_row():
    bad = list(measured(2, 64, 0.1))
    for made in bad:
        made |= {"status": "failed", "in_force": {}, "timing": {}}
    assert scaling.sections(study(measured(1, 32, 0.1), bad)) == []
