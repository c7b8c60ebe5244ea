"""How sweeps of frameworks and of plain loops open."""

from builders import diverged, published, record, replicated, tables, tables_of, trained_by

from mptexp.analysis import rate_ratios
from mptexp.report.answers import comparisons
from mptexp.report.figures.answer import FIGURES
from mptexp.report.first_screen import question


def test_compiled_steps_are_compared_with_compiled_ones():
    tables = tables_of(
        trained_by("keras", 0.4, "torch"),
        trained_by("native", 0.2, "torch"),
        trained_by("keras", 0.15, "torch", jit=True),
        trained_by("native", 0.1, "torch", jit=True),
    )
    answer = question.of(tables)
    assert {bar.label: round(1 / bar.value, 2) for bar in answer.bars} == {
        "Keras on PyTorch, float32": 2.0,
        "Keras on PyTorch, compiled, float32": 1.5,
    }
    assert answer.title.endswith("Keras on PyTorch is up to 2.00× slower than a plain loop")
    said = comparisons.keras_costs(rate_ratios.by_frontend(tables))
    assert [text.partition(" step of Keras's is ")[0] for text in said] == [
        "With float32 on PyTorch, a training",
        "With float32 on PyTorch, compiled, a training",
    ]


def test_inference_is_named_and_compared_apart_from_training():
    infers = {"phase": "inference"}
    inferred = [trained_by("keras", 0.2, **infers), trained_by("native", 0.1, **infers)]
    tables = tables_of(*inferred)
    assert question.of(tables).title.endswith(
        "Keras inference on JAX is 2.00× slower than a plain loop"
    )
    (said,) = comparisons.keras_costs(rate_ratios.by_frontend(tables))
    assert said.startswith("With float32 on JAX, an inference step of Keras's is 2.00× slower [")
    assert "Predicted by" in comparisons.sections(tables)[-1].rows
    inferred = [trained_by("keras", 0.2, **infers), trained_by("native", 0.1, **infers)]
    tables = tables_of(*inferred, trained_by("keras", 0.15), trained_by("native", 0.1))
    assert {bar.label: round(1 / bar.value, 2) for bar in question.of(tables).bars} == {
        "Keras inference on JAX, float32": 2.0,
        "Keras training on JAX, float32": 1.5,
    }
    rows = comparisons.sections(tables)[-1].rows
    assert set(rows["Phase"]) == {"train", "inference"}
    assert set(rows["Run by"]) == {"Keras", "a plain loop"}


def test_an_inference_of_which_a_run_failed_is_said_to():
    # The bug: no report at all, as nothing was learned that could be compared.
    first, *keras = trained_by("keras", 0.2, phase="inference")
    kept = {name: first[name] for name in ("schema", "run_id", "parameters")}
    failed = kept | {"status": "failed", "error": "no room"}
    answer = question.of(tables_of([failed, *keras], trained_by("native", 0.1, phase="inference")))
    assert answer.title.endswith("; some runs of Keras failed")


def test_the_cost_of_keras_at_each_batch_size_is_named():
    sides = [
        made
        for size, keras_s in ((1, 0.03), (32, 0.012))
        for frontend, step_s in (("keras", keras_s), ("native", 0.01))
        for made in trained_by(frontend, step_s, size=size, phase="inference")
    ]
    tables = tables_of(sides)
    assert {bar.label: round(1 / bar.value, 2) for bar in question.of(tables).bars} == {
        "Keras inference on JAX, batch size 1, float32": 3.0,
        "Keras inference on JAX, batch size 32, float32": 1.2,
    }
    said = comparisons.keras_costs(rate_ratios.by_frontend(tables))
    assert [text.partition(", an inference step")[0] for text in said] == [
        "With float32 on JAX, batch size 1",
        "With float32 on JAX, batch size 32",
    ]


def test_a_gain_that_depends_on_the_framework_is_titled_with_it():
    noise = (0.1, 0.11, 0.09)
    sides = [
        replicated(1, 32, step_s, backend=backend, policy=policy)
        for backend, policy, step_s in (
            ("torch", "float32", 0.1),
            ("torch", "mixed_bfloat16", 0.05),
            ("jax", "float32", 0.1),
        )
    ]
    jax = [
        made | {"timing": made["timing"] | {"step_s": s * 1.5**k}}
        for k, (made, s) in enumerate(
            zip(replicated(1, 32, 0.1, backend="jax", policy="mixed_bfloat16"), noise, strict=True)
        )
    ]
    title = question.of(tables_of(*sides, jax)).title
    start = (
        "mixed_bfloat16 trains 2.00× faster than float32 on GPU in PyTorch, no gain shown in JAX"
    )
    assert title.startswith(start)


def test_frameworks_at_several_batch_sizes_are_named_with_them():
    # The lie: "PyTorch is 3.00x slower than TensorFlow", at batch size 1 alone.
    sides = [
        replicated(1, size, step_s, backend=backend)
        for backend, size, step_s in (
            ("tensorflow", 1, 0.1),
            ("torch", 1, 0.3),
            ("tensorflow", 128, 0.15),
            ("torch", 128, 0.1),
        )
    ]
    labels = {bar.label: round(bar.value, 2) for bar in question.of(tables_of(*sides)).bars}
    assert labels == {
        "PyTorch, batch size 1, float32": 0.33,
        "PyTorch, batch size 128, float32": 1.5,
    }


def test_keras_that_is_slower_and_faster_is_titled_with_both():
    tables = tables_of(
        trained_by("keras", 0.12),
        trained_by("native", 0.1),
        trained_by("keras", 0.05, policy="mixed_bfloat16"),
        trained_by("native", 0.1, policy="mixed_bfloat16"),
    )
    title = question.of(tables).title
    assert "Keras on JAX, float32 is 1.20× slower" in title
    assert "Keras on JAX, mixed_bfloat16 is 2.00× faster" in title


def test_keras_that_costs_next_to_nothing_is_as_fast():
    # The lie: "Keras on JAX is 1.00× slower than a plain loop", and advice against it.
    answer = question.of(tables_of(trained_by("keras", 0.1002), trained_by("native", 0.1)))
    assert answer.title == "Keras on JAX is 1.00× as fast as a plain loop"
    assert "avoids" not in answer.advice


def test_the_caption_counts_the_rows_of_both_answers():
    answer = published("frameworks-cpu").subject
    # The lie: "Of 7 comparisons", over the rows of both.
    said = FIGURES[0].caption(answer)
    assert said.startswith(f"Of {len(answer.drawn)} comparisons: ")
    assert len({bar.group for bar in answer.drawn}) == 2


def reaching(accuracy, frontend, step_s, backend="jax"):
    """Runs of a framework or of a plain loop that learn so much."""
    for made in trained_by(frontend, step_s, backend):
        made["history"] = [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": accuracy}]
        yield made


def test_a_plain_loop_that_learns_less_is_not_advised():
    # The lie: "a plain loop avoids what Keras costs there", of one that reached 30 %, Keras 90 %.
    answer = question.of(tables_of(reaching(0.9, "keras", 0.1), reaching(0.3, "native", 0.05)))
    title = "Keras on JAX is 2.00× slower than a plain loop; a plain loop's accuracy is lower"
    assert answer.title == title
    assert answer.sentences[0].startswith(
        "Validation accuracy is lower in a plain loop than in Keras (JAX, float32): −60.0 ["
    )
    assert answer.advice == "find out first why a plain loop's accuracy is lower."
    alike = question.of(tables_of(reaching(0.9, "keras", 0.1), reaching(0.9, "native", 0.05)))
    assert alike.advice == "a plain loop avoids what Keras costs there."


def test_a_framework_that_learns_less_is_not_praised_alone():
    # The lie: "JAX, float32 is 2.00x faster than TensorFlow", and no word of 60 points.
    sides = reaching(0.9, "keras", 0.1, "tensorflow"), reaching(0.3, "keras", 0.05)
    answer = question.of(tables_of(*sides))
    assert answer.title == "JAX, float32 is 2.00× faster than TensorFlow; JAX's accuracy is lower"
    # A slower one that learns less takes nothing from the faster.
    sides = reaching(0.3, "keras", 0.1, "tensorflow"), reaching(0.9, "keras", 0.05)
    answer = question.of(tables_of(*sides))
    assert answer.title == "JAX, float32 is 2.00× faster than TensorFlow"
    assert "lower in TensorFlow than in JAX (float32)" in answer.sentences[0]


def failing(frontend, step_s, backend="jax", blocks=(1, 3, 5)):
    """Six runs of a framework or of a plain loop, on a steady machine, of which some diverged."""
    for made in trained_by(frontend, 1.0, backend, blocks=6):
        block = made["parameters"]["block"]
        own_s = step_s * (1 + block / 500)
        made["timing"] |= {"step_s": own_s, "images_per_s": 32 / own_s}
        yield diverged(made) if block in blocks else made


def test_a_plain_loop_that_diverges_is_not_advised():
    # The lie: "a plain loop avoids what Keras costs there", of one that diverged in 3 of 6 runs.
    answer = question.of(tables_of(failing("keras", 0.2, blocks=()), failing("native", 0.1)))
    title = "Keras on JAX is 2.00× slower than a plain loop; some runs of a plain loop diverged"
    assert answer.title == title
    assert answer.sentences[0] == "3 of 6 runs of a plain loop (JAX, float32) diverged."
    assert answer.advice == "find out first why some runs of a plain loop diverged."
    # Of Keras, which nobody is advised to take for its speed, it takes nothing from the loop.
    answer = question.of(tables_of(failing("keras", 0.2), failing("native", 0.1, blocks=())))
    assert answer.title.endswith("; some runs of Keras diverged")
    assert answer.advice == "a plain loop avoids what Keras costs there."
    both = question.of(tables_of(failing("keras", 0.2), failing("native", 0.1)))
    assert both.title.endswith("; some runs of Keras and a plain loop diverged")


def test_a_framework_that_diverges_is_not_praised_alone():
    # The lie: "JAX, float32 is 2.00× faster than TensorFlow", of JAX that diverged in 3 of 6 runs.
    usual = [*failing("keras", 0.2, "tensorflow", blocks=())]
    answer = question.of(tables_of(usual, failing("keras", 0.1)))
    title = "JAX, float32 is 2.00× faster than TensorFlow; some runs of JAX diverged"
    assert answer.title == title
    assert answer.advice == "find out first why some runs of JAX diverged."
    # Nor is it passed over where all of its runs did.
    torch = failing("keras", 0.1, "torch", blocks=())
    answer = question.of(tables_of(usual, torch, failing("keras", 0.1, blocks=range(6))))
    title = "PyTorch, float32 is 2.00× faster than TensorFlow; all runs of JAX diverged"
    assert answer.title == title
    assert answer.sentences[0] == "All 6 runs of JAX (float32) diverged."


def test_what_is_not_supported_was_not_tried():
    none = [
        {name: made[name] for name in ("schema", "run_id", "parameters")}
        | {"status": "unsupported", "error": "TensorFlow has no plain loop here"}
        for made in trained_by("native", 0.1, "tensorflow")
    ]
    sides = (
        trained_by("keras", 0.2),
        trained_by("native", 0.1),
        trained_by("keras", 1, "tensorflow"),
    )
    answer = question.of(tables_of(*sides, none))
    assert "runs of" not in " ".join([answer.title, *answer.sentences, answer.advice])


def in_both(step_s):
    """Two policies in TensorFlow and JAX, which differ by nothing that is shown, in each phase."""
    return [
        beside(backend, policy, block, phase, step_s[phase, policy] * (1 + noise * (-1) ** block))
        for backend, noise in (("tensorflow", 0), ("jax", 0.02))
        for phase, policy in step_s
        for block in range(3)
    ]


def beside(backend, policy, block, phase, step_s):
    made = record(policy, block, step_s)
    made["parameters"] |= {"backend": backend, "phase": phase}
    made["run_id"] = f"{backend}-{phase}-{made['run_id']}"
    return made


def test_frameworks_that_do_not_differ_are_named_beside_what_policies_gain():
    steps = {("train", "float32"): 0.1, ("train", "mixed_bfloat16"): 0.06}
    answer = question.of(tables(in_both(steps)))
    title, _, second = answer.title.partition("; ")
    assert title.startswith("mixed_bfloat16 trains")
    assert second.startswith("JAX is not shown to differ in speed from TensorFlow: ")
    assert "Of other frameworks against TensorFlow: " in answer.advice


def test_of_two_phases_no_two_rows_have_one_label():
    steps = {("train", "float32"): 0.1, ("train", "mixed_bfloat16"): 0.06}
    steps |= {("inference", "float32"): 0.03, ("inference", "mixed_bfloat16"): 0.05}
    bars = question.of(tables(in_both(steps))).bars
    assert len({(bar.group, bar.label) for bar in bars}) == len(bars)
