"""How accuracy and perplexity are written."""

import math

import pandas as pd
import pytest

from mptexp.analysis import points
from mptexp.report.text import task_words
from mptexp.spec import tasks


def test_every_task_is_written():
    assert set(task_words.MEASURES) == set(tasks.TASKS)
    assert task_words.of("text:mine").name == "perplexity"
    assert task_words.of("folder:mine").name == "accuracy"


def found(verdict, difference=0.0):
    ends = {"low": -math.log(1.03), "high": 0.02}
    return {"verdict": verdict, "difference": difference, "margin": 0.01, **ends}


def test_a_higher_loss_is_a_higher_perplexity_in_percent():
    tokens, nats = task_words.of("hamlet"), [-math.log(1.02), -math.log(1.03), -math.log(1.01)]
    assert tokens.difference(*nats, 3) == "+2.0 [+1.0, +3.0] (n = 3)"
    assert tokens.between(pd.Series(nats)) == "+1.0 to +3.0 % of perplexity"
    assert tokens.finding(found("equal")) == "equal within 1 %"
    assert tokens.finding(found("lower", -0.1)) == "higher (worse)"
    assert tokens.finding(found("undecided", -0.1)) == "undecided"
    assert (
        tokens.finding(found("undecided")) == "about the same in the mean, at most 3.0 % either way"
    )
    assert tokens.mean(8.214, 8.1, 8.3, 3) == "8.21 (8.10–8.30)"
    assert tokens.level(8.214) == "8.21"


def test_a_perplexity_that_exploded_is_bounded_in_words():
    # The lie: "+7314840081342196866563016454444889722060800.0 %"; or no report at all.
    tokens = task_words.of("hamlet")
    assert (
        tokens.difference(-300.0, -5000.0, 40.0, 3) == "over +1,000 [−100.0, over +1,000] (n = 3)"
    )
    lags = pd.Series([-math.log(3), -98.0])
    assert tokens.between(lags) == "+200.0 to over +1,000 % of perplexity"
    assert tokens.level(tasks.perplexity(500.0)) == "over 1,000,000"
    assert tokens.mean(7.4e20, 8.1, 9e30, 3) == "over 1,000,000 (8.10–over 1,000,000)"


@pytest.mark.parametrize(("margin", "percent"), [(0.01, "1 %"), (0.05, "5.1 %"), (0.3, "35 %")])
def test_a_margin_of_losses_is_said_as_what_it_is_of_perplexity(margin, percent):
    assert task_words.of("hamlet").margin(margin) == percent


def test_accuracy_is_written_in_percentage_points():
    images = task_words.of("digits")
    assert images.difference(0.01, 0.005, 0.02, 3) == "+1.0 [+0.5, +2.0] (n = 3)"
    assert images.finding(found("equal")) == "equal within 1 percentage point"
    assert images.head == "Difference, percentage points [95 % interval]"


@pytest.mark.parametrize(
    ("datasets", "names"),
    [(["digits"], "accuracy"), (["hamlet", "digits"], "accuracy and perplexity"), ([], "")],
)
def test_the_tasks_of_a_table(datasets, names):
    table = pd.DataFrame({"dataset": pd.Series(datasets, dtype=object), "x": range(len(datasets))})
    if names:
        assert task_words.listed(table) == names
    assert len(points.of_task(table, task_words.of("hamlet").task)) == datasets.count("hamlet")


def test_a_difference_that_is_shown_does_not_read_as_none():
    # The lie: "accuracy is lower (+0.0 percentage points)", of −0.04.
    images = task_words.of("digits")
    lower = pd.Series([-0.0004, -0.0213])
    assert images.between(lower) == "\N{MINUS SIGN}2.1 to \N{MINUS SIGN}0.04 percentage points"
    assert images.between(pd.Series([-0.0004, 0.002])) == "+0.0 to +0.2 percentage points"
