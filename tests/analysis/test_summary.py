import numpy as np
import pytest
from builders import record, tables

from mptexp.analysis import summary


def test_strict_float32_is_the_baseline_where_the_default_was_not_measured():
    rows = [
        record(policy, block, step_s, default="tensorfloat32")
        for block in range(3)
        for policy, step_s in (("float32", 0.4), ("mixed_float16", 0.1))
    ]
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.baseline, row.speedup, row.blocks) == ("float32", pytest.approx(4), 3)


def test_n_is_the_number_of_pairs():
    rows = [record("mixed_float16", block, 0.05) for block in range(3)]
    rows += [record(block=block) for block in range(2)]
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.blocks, row.repeats) == (2, 3)
    assert np.isnan(row.low)


def test_other_starts_are_noticed():
    alike = [record(), record("mixed_float16"), record(block=1)]
    assert summary.starts_agree(tables(alike).results, alike)
    unlike = [record(), record("mixed_float16", initial_weights="other")]
    assert not summary.starts_agree(tables(unlike).results, unlike)
    pure = [record(), record("float16", initial_weights="other", variable_dtype="float16")]
    assert summary.starts_agree(tables(pure).results, pure)
