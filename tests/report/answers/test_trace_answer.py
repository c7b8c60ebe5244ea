import re
from dataclasses import replace
from statistics import fmean

import pytest
from builders import FLOAT16, FLOAT32, KINETO, TENSORFLOAT32, UNKNOWN, kineto_step, recording, typed

from mptexp.diagnosis.foreign_traces import Comparison, Recording
from mptexp.report import trace_report
from mptexp.report.answers import trace_answer
from mptexp.traces import kineto
from mptexp.traces.operations import Operation


@pytest.fixture
def pair():
    return [recording(), recording("after <b>.json", lacking=("DataLoader", "Memcpy"))]


def test_the_sentence_says_what_bounds_the_training():
    sentence = trace_answer.verdict([recording()])
    # Of 1000 us 450 pass with neither work nor a wait, and 50 with an idle device.
    assert sentence.startswith("The host bounds this training: for 50 % of a step of 1 ms")
    assert "wait for input 25 %" in sentence


def test_two_recordings_claim_nothing_beyond_themselves(pair):
    sentence = trace_answer.verdict(pair)
    assert sentence.startswith("Within these recordings after <b> is 1.00× as fast as before")
    assert "wait for input fell by 0.25 ms" in sentence


def test_a_single_step_of_each_has_no_spread():
    pair = [recording(steps=1), recording("after.json", steps=1, lacking=("Memcpy",))]
    assert "one step of each, whose spread is unknown" in trace_answer.verdict(pair)
    assert "any step over any other" not in trace_answer.verdict(pair)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("resnet_fp32.json", "resnet_fp16.json"), ("fp32", "fp16")),
        (("run1.json", "run12.json"), ("run1", "run12")),
        (("a_.json", "a_b.json"), ("a_", "b")),
        (("same.json", "same.json"), ("first", "second")),
    ],
)
def test_two_recordings_are_named_by_what_tells_them_apart(files, names):
    table = trace_report.tables([recording(file) for file in files])["Where they differ"]
    assert [name for name in table if name.endswith(", ms")][:2] == [f"{n}, ms" for n in names]


def test_the_best_of_16_bits_is_said(pair):
    said = trace_answer.shrink_sentence(Comparison(*pair))
    assert "16 bits would make after <b> at most 1.25× faster: " in said


def test_notes_name_what_was_left_out():
    one = recording(lacking=("cudaLaunchKernel",))
    bare = kineto.read([dict(e, args={}) for s in range(2) for e in kineto_step(KINETO[1], s)], {})
    assert trace_answer.notes(one) == []
    assert any("launches" in note for note in trace_answer.notes(Recording("a", bare)))


def test_recordings_of_two_gpus_are_compared_and_the_gpus_named():
    before, after = recording(), recording("after.json", steps=3)
    for made, model in ((before, "A100"), (after, "H100")):
        object.__setattr__(made, "trace", replace(made.trace, gpu=f"GPU:0 {model}"))
    assert "GPU A100 against H100" in trace_answer.verdict([before, after])


def test_what_bounds_is_said_of_training_or_inference_and_of_what_was_cut_off():
    made = recording()
    object.__setattr__(made, "trace", replace(made.trace, trains=False, after_s=0.0002, unusual=1))
    assert "The host bounds this inference" in trace_answer.verdict([made])
    assert "not counted: 0.2 ms after it" in trace_answer.verdict([made])
    assert any("more than three times the median" in note for note in trace_answer.notes(made))


def test_callbacks_that_take_longer_than_a_step_are_said_first():
    # "Matrix work bounds this training: 69 % of a step of 21.9 ms", and 49.8 ms after each of them.
    made = recording()
    object.__setattr__(made, "trace", replace(made.trace, after_s=0.003))
    said = "More time passes after each step than in it"
    assert trace_answer.verdict([made]).startswith(f"{said}, in callbacks or the profiler (3 ms ag")
    assert trace_answer.title([made]) == f"{said} (3 ms against 1 ms)"


def test_what_steps_that_are_left_out_hold_is_said():
    # The lie: steps "left out, as an evaluation would be", which took 69 % of the recording.
    made = recording()
    left = ({"host": 0.004}, {"op": 0.009, "input": 0.0035, "host": 0.0005})
    trace = replace(made.trace, warm_up=1, unusual=1, left=left)
    first, later = trace_answer.notes(replace(made, trace=trace))
    assert first.endswith(
        "warm-up: 4 ms, 21 % of all recorded steps (host and launch overhead 100 %)"
    )
    assert later.endswith(": 13 ms, 68 % of all recorded steps (work 69 % and wait for input 27 %)")


def test_a_long_first_step_of_work_need_not_be_a_warm_up():
    # The lie: the prefill of a generation, 61 % of the recording, "left out as warm-up".
    made = recording()
    trace = replace(made.trace, warm_up=1, left=({"op": 0.004, "host": 0.001},))
    (note,) = trace_answer.notes(replace(made, trace=trace))
    assert "left out as longer than the others (a warm-up, a prefill or another shape" in note


def test_what_the_recordings_do_not_tell_is_said(pair):
    assert "Whether both had the same batch size and GPU is unavailable. In after <b>" in (
        trace_answer.verdict(pair)
    )


@pytest.mark.parametrize(
    ("first", "second", "said", "not_said"),
    [
        (FLOAT32, FLOAT16, "did not shrink matrix work", "The first recording is that"),
        (FLOAT16, FLOAT32, "The first recording is that in lower precision", "16 bits would"),
        # The lies: of TF32 beside float16 the first said to be the lower; of what is in 16 bits
        # already what 16 bits would give; of what is unknown the same.
        (TENSORFLOAT32, FLOAT16, "16 bits would make a at most", "The first recording is that"),
        (TENSORFLOAT32, FLOAT32, "The first recording is that in lower", "did not shrink"),
        (FLOAT16, FLOAT16, "", "16 bits would"),
        (
            UNKNOWN,
            FLOAT16,
            "If a is in 32 bits (its type is unavailable), 16 bits",
            "did not shrink",
        ),
    ],
)
def test_what_16_bits_give_is_said_of_what_is_in_more(first, second, said, not_said):
    sentence = trace_answer.shrink_sentence(Comparison(typed(first, "a"), typed(second, "b")))
    assert said in sentence
    assert bool(said) == bool(sentence)
    assert not_said not in sentence


def test_what_shrank_by_less_than_a_quarter_is_not_said_to_have_stayed(monkeypatch):
    pair = Comparison(typed(FLOAT32, "a"), typed(FLOAT16, "b"))
    table = pair.by_cause
    table.loc["matrix", "candidate_s"] = 0.76 * table.loc["matrix", "baseline_s"]
    monkeypatch.setattr(Comparison, "by_cause", table)
    sentence = trace_answer.shrink_sentence(pair)
    assert re.search(r"precision shrank matrix work \(.*\) by less than a quarter\.", sentence)
    assert "did not shrink" not in sentence


def test_lower_precision_is_not_blamed_for_what_a_larger_batch_may_do():
    # The lie: "Lower precision did not shrink memory-bound work", of a batch of 64 beside one of
    # 128 in traces without shapes.
    told = {"input_shape": "32x3", "gpu": "GPU:0 A100"}
    pair = [typed(FLOAT32, "a", **told), typed(FLOAT16, "b", **told)]
    assert trace_answer.shrink_sentence(Comparison(*pair)).startswith("Lower precision did not")
    pair = [typed(FLOAT32, "a", gpu="GPU:0 A100"), typed(FLOAT16, "b", gpu="GPU:0 A100")]
    assert trace_answer.shrink_sentence(Comparison(*pair)).startswith(
        "If both had the same batch size, lower precision did not shrink matrix work"
    )


def test_lower_precision_is_not_blamed_for_another_gpu():
    pair = typed(FLOAT32, "a", gpu="GPU:0 A100"), typed(FLOAT16, "b", gpu="GPU:0 V100")
    assert "did not shrink" not in trace_answer.shrink_sentence(Comparison(*pair))
    assert " (other GPU); " in trace_answer.title(pair)


def test_more_than_16_bits_could_give_is_said():
    slow = typed(FLOAT32, "a", step_times=(0.01, 0.01), step_s=0.01)
    said = trace_answer.shrink_sentence(Comparison(slow, typed(FLOAT16, "b")))
    assert said.endswith(
        "faster by more than that, so some of it took less time than is assumed here."
    )
    assert "at most" not in said  # The lie: beside a larger ratio.


def test_what_lower_precision_added_is_not_said_not_to_have_shrunk():
    # The lie: "lower precision did not shrink casts and layout changes (4 ms, before 0 ms)".
    slow, fast = typed(FLOAT32, "a"), typed(FLOAT16, "b")
    cast = Operation("op", op="cast", kernel="nchwToNhwcKernel", seconds=slow.trace.step_s, count=1)
    fast = replace(fast, trace=replace(fast.trace, operations=[*fast.trace.operations, cast]))
    assert "took longer in casts and layout changes (" in trace_answer.shrink_sentence(
        Comparison(slow, fast)
    )


def test_how_much_of_a_recording_is_left_out_as_no_training_is_said():
    # The lie: "97 % of a step is matrix work", of 9 % of what was recorded, without a word of that.
    few = typed(FLOAT32, "a", step_times=(0.01, 0.01), step_s=0.01, untrained=4, untrained_s=0.18)
    assert trace_answer.notes(few)[0] == (
        "4 steps without a backward pass left out, as evaluations have none: 180 ms, 90 % of all "
        "recorded steps"
    )


@pytest.mark.parametrize(
    ("state", "kernel", "reason"),
    [
        ("another GPU", "", "in 50 % of its step only another GPU works"),
        ("op", "_fused_mixer_kernel_0d1d2d", "50 % of its step is unexplained"),
    ],
)
def test_there_is_no_bound_where_it_would_hang_on_what_nobody_knows(state, kernel, reason):
    # The lies: "16 bits would make float32 1.33× faster ...; it became faster by more than that, so
    # something else changed too", of a model over four GPUs; of a kernel of one's own.
    slow, fast = typed(FLOAT32, "a"), typed(FLOAT16, "b")
    rows = [row._replace(seconds=row.seconds / 2) for row in slow.trace.operations]
    unknown = Operation(state, kernel=kernel, seconds=slow.trace.step_s / 2, count=1)
    slow = replace(slow, trace=replace(slow.trace, operations=[*rows, unknown]))
    said = trace_answer.shrink_sentence(Comparison(slow, fast))
    assert said.endswith(f"No bound can be given to what 16 bits could give a: {reason}.")
    assert "×" not in said


def test_a_loss_and_random_numbers_are_said_to_be_halved_where_there_are_some():
    slow = typed(FLOAT32, "a")
    loss = Operation("op", "", "loss", "log_softmax", "softmax", 1e-4, 1)
    slow = replace(slow, trace=replace(slow.trace, operations=[*slow.trace.operations, loss]))
    said = trace_answer.shrink_sentence(Comparison(slow, typed(FLOAT16, "b")))
    assert "memory-bound work, casts and the loss half of theirs" in said
    assert "random" not in said


def test_unequal_steps_of_both_are_one_clause():
    pair = [
        typed(FLOAT32, name, step_times=times, step_s=fmean(times))
        for name, times in (("a", (0.04, 0.04, 0.1)), ("b", (0.02, 0.02, 0.05)))
    ]
    said = trace_answer.verdict(pair)
    assert ", with unequal steps in both, whose medians are 40 ms in a and 20 ms in b" in said
    assert said.count("unequal") == 1


def test_nothing_but_matrix_work_has_no_bound():
    def only(file, kernel):
        made = typed(kernel, file)
        rows = [row for row in made.trace.operations if row.kernel == kernel]
        return Recording(file, replace(made.trace, operations=rows, step_s=rows[0].seconds))

    said = trace_answer.shrink_sentence(Comparison(only("a", FLOAT32), only("b", FLOAT16)))
    assert "Nearly all of a is matrix work, so it sets no bound" in said
    assert "×" not in said
