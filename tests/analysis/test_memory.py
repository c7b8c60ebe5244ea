import pytest
from builders import record, tables

from mptexp.analysis import memory


def runs(*sizes, policy="mixed_float16", **more):
    """A block for each size; float32 takes 1 GiB."""
    for block, size in enumerate(sizes):
        yield record(block=block)
        yield record(policy, block) | {"peak_memory_bytes": size * 2**30} | more


def test_a_ratio_is_formed_within_a_block_and_below_one_is_less():
    (row,) = memory.ratios(tables(list(runs(0.5, 0.51, 0.49)))).to_dict("records")
    assert (row["baseline"], row["candidate"], row["blocks"]) == ("float32", "mixed_float16", 3)
    assert row["ratio"] == pytest.approx(0.5, rel=1e-3)
    assert 0.4 < row["low"] < 0.5 < row["high"] < 0.6


@pytest.mark.parametrize("lie", [{"changed": True}, {"identity": None}])
def test_what_is_not_valid_of_memory_forms_no_ratio(lie):
    assert memory.ratios(tables(list(runs(0.5, 0.5, 0.5, **lie)))).empty


def test_disturbed_runs_take_the_memory_that_they_take():
    busy = runs(0.5, 0.5, 0.5, marks=["measured while other programs used the processor"])
    assert len(memory.ratios(tables(list(busy)))) == 1


@pytest.mark.parametrize(
    ("sizes", "finding"),
    [
        ((0.5, 0.51, 0.49), "less"),
        ((2, 2.1, 1.9), "more"),
        ((1, 1.001, 0.999), "same"),
        ((0.8, 1.1, 0.95), "inconclusive"),
        ((0.5, 0.5), "no interval"),
    ],
)
def test_only_an_interval_shows_a_difference(sizes, finding):
    (row,) = memory.ratios(tables(list(runs(*sizes)))).itertuples()
    assert memory.finding(row.ratio, row.low, row.high, same=0.02) == finding
