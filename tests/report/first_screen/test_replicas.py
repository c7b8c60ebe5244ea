"""How sweeps of replicas open."""

from builders import replicated, tables

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
