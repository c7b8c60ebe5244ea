"""How sweeps of replicas open."""

import pytest
from builders import LOGICAL_CPU, diverged, labels, published, replicated, tables, tables_of

from mptexp.report.first_screen import question


def test_replicas_open_with_their_scaling():
    found = [*replicated(1, 32, 0.1), *replicated(2, 64, 0.11)]
    for made in found:  # of a steady machine
        step_s = 0.1 if made["parameters"]["replicas"] == 1 else 0.11
        size = made["parameters"]["batch_size"]
        made["timing"] |= {"step_s": step_s, "images_per_s": size / step_s}
    answer = question.of(tables(found))
    assert answer.title.endswith("1.82× faster than 1 replica with the same batch size per replica")
    assert answer.bars[0].label.startswith("2 replicas, ")


def test_replicas_of_several_policies_are_labelled_with_them():
    sizes = {1: (32, 0.1), 2: (64, 0.11)}
    found = [
        made
        for policy in ("float32", "mixed_float16")
        for replicas, size in sizes.items()
        for made in replicated(replicas, *size, policy=policy)
    ]
    labels = [bar.label for bar in question.of(tables(found)).bars]
    assert len(set(labels)) == len(labels) == 2
    assert all(label.startswith(("float32, ", "mixed_float16, ")) for label in labels)


def test_one_global_batch_on_more_devices_is_an_answer_too():
    # The lie: "Nothing to compare", above a table that proves 2.50× faster.
    steps = {1: 0.1, 2: 0.06, 4: 0.04}
    rows = [made for n, step_s in steps.items() for made in replicated(n, 64, step_s)]
    answer = question.of(tables(rows))
    assert (
        answer.title == "4 replicas are 2.50× faster than 1 replica with the same global batch size"
    )
    assert {bar.label for bar in answer.bars} == {"2 replicas", "4 replicas"}
    assert "Logical" not in " ".join(answer.sentences)


def test_replicas_that_are_parts_of_one_cpu_are_called_so():
    # The lie: "2 replicas … 1.82× faster", of one CPU, without a word.
    sizes = {1: (32, 0.1), 2: (64, 0.11)}
    rows = [made for n, size in sizes.items() for made in replicated(n, *size, device=LOGICAL_CPU)]
    answer = question.of(tables(rows))
    assert answer.title.startswith("2 logical replicas, batch size 32 each are 1.82× faster")
    assert answer.sentences[-1].startswith("Logical replicas are parts of one CPU")


def steady(replicas, size, step_s, blocks=3, **parameters):
    """Runs of a machine that does not slow down: their ratios are claimed."""
    for made in replicated(replicas, size, 1.0, blocks=blocks, **parameters):
        own_s = step_s * (1 + made["parameters"]["block"] / 500)
        made["timing"] |= {"step_s": own_s, "images_per_s": size / own_s}
        made["timing"] |= {"step_s_low": own_s, "step_s_high": own_s}
        yield made


def reaching(accuracy, runs):
    """Runs that learn so much; by guessing a tenth is right."""
    for made in runs:
        own = accuracy + made["parameters"]["block"] / 1000
        made["history"] = [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": own}]
        made["in_force"] |= {"chance_accuracy": 0.1, "validation_labels": labels(0.1)}
        yield made


def failing(runs, blocks, status="diverged"):
    """Runs of which those of some blocks diverged, or ended before they said anything."""
    for made in runs:
        if made["parameters"]["block"] not in blocks:
            yield made
        elif status == "diverged":
            yield diverged(made)
        else:
            kept = {name: made[name] for name in ("schema", "run_id", "parameters")}
            yield kept | {"status": status, "error": "no room"}


@pytest.mark.parametrize(
    ("one", "sizes"), [(32, "64 against 32"), (64, "64")], ids=["same each", "same in all"]
)
def test_replicas_that_learn_less_are_not_praised_alone(one, sizes):
    # The lie: "2 replicas are 1.82× faster", of 35 % instead of 95 %, and no word of it.
    sides = [
        [*reaching(0.95, steady(1, one, 0.1))],
        [*reaching(0.35, steady(2, 64, 0.08))],
    ]
    answer = question.of(tables_of(*sides))
    assert "2 replicas, batch size" in answer.title
    assert answer.title.endswith("; 2 replicas' accuracy is lower")
    # Where, not why: with the batch of each kept, the global batch is another one.
    assert answer.sentences[0].startswith(
        "Validation accuracy is lower with 2 replicas than with 1 replica "
        f"(float32, global batch size {sizes}): −60.0 ["
    )
    assert answer.advice == "find out first why 2 replicas' accuracy is lower."
    # The lie: it is lower "with 2 replicas", where one with their batch loses as much.
    larger = reaching(0.35, steady(1, 64, 0.12)) if one == 32 else ()
    answer = question.of(tables_of(*sides, larger)) if one == 32 else answer
    assert answer.title.endswith("lower") == (one == 64)
    assert ("percentage points (+0.0 at the same global batch size)" in (answer.sentences[0])) == (
        one == 32
    )
    alike = reaching(0.95, steady(1, one, 0.1)), reaching(0.95, steady(2, 64, 0.08))
    answer = question.of(tables_of(*alike))
    assert "accuracy" not in " ".join([answer.title, *answer.sentences, answer.advice])


@pytest.mark.parametrize(
    ("status", "ended"),
    [("diverged", "diverged"), ("oom", "ran out of memory"), ("killed", "were killed")],
)
def test_replicas_of_which_runs_do_not_end_well_are_said_to(status, ended):
    # The lie: "1.82× faster", of two replicas that ended well in 3 of 6 runs.
    two = failing(steady(2, 64, 0.11, blocks=6), (1, 3, 5), status)
    answer = question.of(tables_of(steady(1, 32, 0.1, blocks=6), two))
    assert answer.title.endswith(f" batch size per replica; some runs of 2 replicas {ended}")
    said = f"3 of 6 runs of 2 replicas (float32, global batch size 64) {ended}."
    assert answer.sentences[0] == said
    assert answer.advice == f"find out first why some runs of 2 replicas {ended}."


def test_replicas_all_runs_of_which_diverge_are_named():
    # The lie: "2 replicas are 1.82× faster", and of the four that always diverged nothing.
    sides = steady(1, 32, 0.1), steady(2, 64, 0.11), failing(steady(4, 128, 0.12), range(3))
    answer = question.of(tables_of(*sides))
    assert answer.title.startswith("2 replicas, batch size 32 each are 1.82× faster")
    assert answer.title.endswith("; all runs of 4 replicas diverged")
    assert answer.advice == "find out first why all runs of 4 replicas diverged."


def test_a_batch_that_one_replica_has_no_memory_for_is_no_riddle():
    sides = steady(1, 32, 0.1), steady(4, 128, 0.12), failing(steady(1, 128, 1), range(3), "oom")
    answer = question.of(tables_of(*sides))
    assert answer.title.endswith("faster than 1 replica with the same batch size per replica")
    assert answer.sentences[0] == (
        "All 3 runs of 1 replica (float32, global batch size 128) ran out of memory."
    )
    # Once nothing: of what is proven to be faster, a reader was not told what to do.
    advice = "where time counts more than devices, use **4 replicas, batch size 32 each**."
    assert answer.advice == advice


def test_a_gain_at_the_same_global_batch_is_not_hidden_by_none_with_that_of_each():
    # The lie: "More replicas are not shown to train more images a second", "keep one replica".
    two, more = steady(2, 64, 0.2), (steady(1, 64, 0.3), steady(4, 64, 0.1))
    answer = question.of(tables_of(steady(1, 32, 0.1), two, *more))
    title = "4 replicas are 3.00× faster than 1 replica with the same global batch size"
    assert answer.title == title
    assert answer.advice == (
        "where time counts more than devices, use **4 replicas** with the same global batch size."
    )
    said = answer.sentences[0]
    assert said.startswith(
        "Against 1 replica with the same batch size per replica, inconclusive: "
        "**2 replicas, batch size 32 each** 1.00×"
    )
    assert "Faster than 1 replica with the same global batch size: **4 replicas** 3.00×" in said


def test_a_loss_at_the_same_global_batch_is_not_hidden_by_a_gain_with_that_of_each():
    # The lie: "1.11× faster", where a step of the same global batch takes three times as long.
    sides = steady(1, 32, 0.1), steady(2, 64, 0.18), steady(2, 32, 0.3)
    answer = question.of(tables_of(*sides))
    assert answer.title == (
        "2 replicas, batch size 32 each are 1.11× faster than 1 replica with the same batch size "
        "per replica; 2 replicas, batch size 32 in all are 3.00× slower than 1 replica with the "
        "same global batch size"
    )
    assert {bar.group: round(bar.value, 2) for bar in answer.bars} == {
        "Against 1 replica with the same batch size per replica": 1.11,
        "Against 1 replica with the same global batch size": 0.33,
    }


def test_of_replicas_that_policies_share_none_is_named():
    # The lie: "8 replicas in float32 or 8 replicas in mixed_float16", of which one is 2× faster.
    policies = [
        made
        for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.05))
        for n in (1, 4, 8)
        for made in steady(n, 32 * n, step_s, policy=policy)
    ]
    answer = question.of(tables(policies))
    assert answer.advice == (
        "where time counts more than devices, use **8 replicas** with the same batch size per "
        "replica."
    )
    assert answer.sentences[-1].startswith("**mixed_float16** trains 2.00× faster than float32")


def test_one_replica_is_kept_where_all_are_slower():
    answer = question.of(tables_of(steady(1, 32, 0.1), steady(2, 32, 0.3)))
    assert "3.00× slower than 1 replica" in answer.title
    assert answer.advice == "keep one replica."


def test_parts_of_one_cpu_are_advised_to_nobody():
    rows = [made for n in (1, 2) for made in steady(n, 32 * n, 0.1, device=LOGICAL_CPU)]
    for made in rows:
        made["environment"] = {"device": LOGICAL_CPU, "packages": {}}
    answer = question.of(tables(rows))
    assert "2.00× faster" in answer.title
    assert answer.advice == ""


def test_one_replica_is_kept_where_neither_kind_shows_a_gain():
    answer = published("scaling-cpu").subject
    assert answer.title.startswith("More replicas are not shown to be faster than one")
    assert answer.advice.startswith("keep one replica; ")
    assert len({bar.group for bar in answer.bars}) == 2
    # Of one CPU's parts, whose accuracy at the larger global batch nobody was told of.
    assert "accuracy is lower with 2 replicas than with 1 replica" in answer.sentences[0]
    assert answer.sentences[-1].startswith("Logical replicas are parts of one CPU")


def test_what_is_not_valid_of_both_kinds_is_provisional_once():
    busy = {"marks": ["measured while other programs used the processor"]}
    several = [made | busy for n in (32, 64) for made in steady(2, n, 0.08)]
    answer = question.of(tables_of(steady(1, 32, 0.1), several))
    said = "2 replicas, batch size 32 each are 2.50× as fast as 1 replica with the same batch size"
    assert answer.title.startswith(f"Provisional (not valid): {said}")
    assert answer.title.count("Provisional") == 1
    assert "; 2 replicas, batch size 32 in all are 1.25× as fast as" in answer.title


def test_who_keeps_one_replica_is_advised_no_repeats_to_prove_a_loss():
    # The lie: "keep one replica; about 5 repeats should show whether 0.79× is real".
    advice = question.of(published("scaling-cpu").tables).advice
    assert advice.startswith("keep one replica; about ")
    assert "whether 1.15×" in advice
