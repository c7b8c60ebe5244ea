import pytest
from builders import replicated, tables_of

from mptexp.analysis import scaling


def test_weak_and_strong_scaling_are_told_apart():
    # Two replicas need 0.1 s for 64 pictures; one needs 0.08 s for 32 and 0.15 s for 64.
    found = scaling.by_replicas(
        tables_of(replicated(1, 32, 0.08), replicated(1, 64, 0.15), replicated(2, 64, 0.1)).results
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
    found = scaling.by_replicas(tables_of(replicated(1, 48, 0.1), replicated(2, 64, 0.1)).results)
    assert found.speedup.isna().all()
    assert found.strong_speedup.isna().all()


def test_fewer_than_three_blocks_claim_no_interval():
    results = tables_of(replicated(1, 32, 0.1, blocks=2), replicated(2, 64, 0.1, blocks=2)).results
    two = scaling.by_replicas(results).iloc[1]
    assert two.speedup == pytest.approx(2)
    assert two.low != two.low


def test_frameworks_are_compared_with_tensorflow():
    both = [list(replicated(1, 32, 0.1)), list(replicated(1, 32, 0.05, jit=True, backend="jax"))]
    torch = replicated(1, 32, 0.4, backend="torch")
    found = scaling.by_backend(tables_of(*both, torch).results).set_index("backend")
    assert list(found.index) == ["tensorflow", "jax", "torch"]
    assert found.speedup["jax"] == pytest.approx(2)
    assert found.speedup["torch"] == pytest.approx(0.25)
