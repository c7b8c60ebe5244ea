import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptexp.spec import run_order
from mptexp.spec.run import Run

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def points(policies=POLICIES, sizes=(32, 128), backends=("tensorflow",)):
    axes = itertools.product(backends, sizes, policies)
    return [Run(backend=b, batch_size=s, policy=p, gpu_model="cpu") for b, s, p in axes]


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**32))
def test_each_policy_has_each_place_equally_often(n, blocks, seed):
    grid = [Run(policy="float32", loss_scale=float(2**k), gpu_model="cpu") for k in range(n)]
    orders = run_order.by_block(grid, blocks, seed)
    assert all(sorted(map(repr, o)) == sorted(map(repr, grid)) for o in orders)
    for place in range(n):
        counts = Counter(o[place].loss_scale for o in orders)
        assert max(counts.values()) - min(counts.get(p.loss_scale, 0) for p in grid) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_what_a_ratio_compares_is_adjacent(seed):
    for runs in run_order.by_block(points(backends=("tensorflow", "jax")), 4, seed):
        sizes = [run.batch_size for run in runs]
        assert len(list(itertools.groupby(sizes))) == 2
        kinds = [(run.batch_size, run.backend) for run in runs]
        assert len(list(itertools.groupby(kinds))) == 4


def test_neither_of_two_policies_is_always_first():
    grid = points(("float32", "mixed_bfloat16"), (32,))
    first = [run_order.by_block(grid, 2, seed)[0][0].policy for seed in range(200)]
    # Of 200 fair coins fewer than 60 or more than 140 show heads once in 10^8 times.
    assert 60 < first.count("float32") < 140
    for seed in range(20):
        opening = [runs[0].policy for runs in run_order.by_block(grid, 4, seed)]
        assert Counter(opening) == {"float32": 2, "mixed_bfloat16": 2}


def test_groups_take_their_places_at_random():
    grid = points(sizes=(32, 64, 128))
    opening = {run_order.by_block(grid, 1, seed)[0][0].batch_size for seed in range(60)}
    assert opening == {32, 64, 128}


def test_a_seed_gives_the_same_orders_again():
    assert run_order.by_block(points(), 5, 7) == run_order.by_block(points(), 5, 7)
    assert run_order.by_block(points(), 5, 7) != run_order.by_block(points(), 5, 8)


def test_a_drift_within_blocks_cancels_in_the_mean():
    grid, drift = points(("float32", "mixed_bfloat16"), (32,)), 0.005
    for seed in range(10):
        ratios = []
        for runs in run_order.by_block(grid, 4, seed):
            time = {run.policy: 1 + drift * place for place, run in enumerate(runs)}
            ratios.append(time["float32"] - time["mixed_bfloat16"])
        assert sum(ratios) == pytest.approx(0)


def test_only_the_orders_that_are_wanted_are_made():
    chance = random.Random(0)
    assert len(run_order.balanced(range(10**5), 2, chance)) == 2  # a whole square has 10^10 places
