"""Trainings on text, from records to verdicts: throughput, perplexity, chance."""

import math

import numpy as np
import pytest
from builders import record, tables, text

from mptexp.analysis import accuracy, points, summary, validation_variance
from mptexp.records import consistency, schema
from mptexp.spec import tasks


def pair(change, sequences=40, blocks=3, noise=0.0005):
    """Two policies whose losses differ by so many nats, in pairs of sequences a little more."""
    random = np.random.default_rng(0)
    shape = random.normal(0, 0.3, sequences)
    for block in range(blocks):
        for policy, more in (("float32", 0.0), ("mixed_float16", change)):
            own = shape - shape.mean() + random.normal(0, noise, sequences)
            loss = 2.0 + more + random.normal(0, noise)
            yield text(policy, block, loss, sequences=own - own.mean())


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "equal"), (0.1, "lower"), (-0.1, "higher")])
def test_a_percent_of_perplexity_is_a_hundredth_of_a_nat(change, verdict):
    (row,) = accuracy.differences(tables([*pair(change)])).to_dict("records")
    assert row["difference"] == pytest.approx(-change, abs=0.002)
    assert row["verdict"] == verdict
    assert row["images"] == 40


def test_sequences_that_differ_widen_the_interval_though_the_blocks_agree():
    widths = []
    for noise in (0.0005, 0.05):
        row = accuracy.differences(tables([*pair(0.0, noise=noise)])).iloc[0]
        widths.append(row.high - row.low)
    assert widths[1] > 5 * widths[0]


def test_sequences_are_paired_only_where_they_are_the_same():
    left, right = text(), text("mixed_float16")
    paired = validation_variance.spread({0: left}, {0: right}, 0.01)
    right["validated"] |= {"digest": "0" * 12}
    apart = validation_variance.spread({0: left}, {0: right}, 0.01)
    assert paired.variance < apart.variance / 4
    assert apart.variance == pytest.approx(2 * 0.01 / 3)


@pytest.mark.parametrize(
    ("loss", "flag"), [(3.1, "not trained"), (2.995, "not trained"), (2.9, "")]
)
def test_what_knows_no_more_than_frequencies_is_not_trained(loss, flag):
    assert tables([text(loss=loss)]).results["flags"].tolist() == [flag]


def test_each_task_has_figures_of_its_own():
    both = tables([record(), text()])
    rows = summary.headline(both).set_index("dataset")
    assert rows.throughput.to_dict() == pytest.approx({"digits": 320.0, "hamlet": 40960.0})
    assert rows.val_perplexity["hamlet"] == pytest.approx(math.exp(2))
    assert rows.val_accuracy.isna().to_dict() == {"digits": False, "hamlet": True}
    assert points.quality(both.results).tolist() == pytest.approx([0.9, -2.0])
    assert "tokens_per_s" not in tables([record()]).results


def test_figures_that_do_not_follow_from_the_sequences_are_a_fault():
    assert consistency.fault(text()) == ""
    assert schema.fault(text()) == ""
    other = text()
    other["history"][-1]["val_loss"] = 1.5
    assert consistency.fault(other) == "val_loss is 1.5, but the listed sequences have 2"
    other["timing"]["tokens_per_s"] *= 2
    assert consistency.fault(other).startswith("timing.tokens_per_s is 81920, but 40960 follows")
    short = text()
    short["validated"]["losses"].pop()
    assert "a loss for each of 3 sequences" in schema.fault(short)


def test_means_of_perplexity_are_as_far_apart_as_their_ratio_says():
    # The lie: means 52 % apart beside a difference of +48 %: perplexities are compared by
    # ratios, and the means were arithmetic.
    losses = {"float32": (2.0, 2.1, 2.2), "mixed_float16": (2.1, 2.4, 3.0)}
    made = tables(
        [
            text(policy, block, loss)
            for policy, of in losses.items()
            for block, loss in enumerate(of)
        ]
    )
    rows = summary.headline(made).set_index("policy")
    ratio = rows.val_perplexity["mixed_float16"] / rows.val_perplexity["float32"]
    (row,) = accuracy.differences(made).itertuples()
    assert math.log(ratio) == pytest.approx(-row.difference) == pytest.approx(0.4)
    assert math.isnan(tasks.TOKENS.mean([math.nan]))
    assert tasks.IMAGES.mean([0.5, math.nan, 1.0]) == 0.75
