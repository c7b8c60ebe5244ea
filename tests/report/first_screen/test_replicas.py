"""How sweeps of replicas open."""

from builders import LOGICAL_CPU, replicated, tables

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
