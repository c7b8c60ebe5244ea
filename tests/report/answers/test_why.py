from dataclasses import replace

import pytest
from builders import published
from verdicts import GAINS, NAN, loss, verdict

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations
from mptexp.diagnosis.effects import Effect
from mptexp.records import instrument_checks
from mptexp.report.answers import why


def test_ablations_that_are_not_valid_are_said_in_a_check():
    # The lie: "every comparison is valid", beside ablations that other programs disturbed.
    gain = {"mixed_float16": Contrast(2.0, 1.9, 2.1, 3)}
    effects = [Effect(ablations.INPUT, gain, flags=flags) for flags in ("", "interference")]
    assert why.not_valid([verdict(effects=effects)]) == [
        "**Not valid in the diagnosis** (1 of 2 ablations): interference."
    ]
    assert why.not_valid([verdict(effects=effects[:1])]) == []


def test_of_two_step_times_it_is_said_which_is_which():
    # The puzzle: 455 ms in one table, 457 in another.
    (found,) = [
        v for v in published("why-imagenette-64px-cpu").verdicts if v.pair.candidate.jit == "on"
    ]
    assert why.BREAKDOWN.noted(found, False) == (
        "This table divides a step of the traced runs: 584 ms with float32 and 557 ms with "
        "mixed_bfloat16. In the sweep's own runs, of which the causes and the first table of the "
        "page are, it took 583 ms with float32 and 569 ms with mixed_bfloat16."
    )
    assert why.BREAKDOWN.noted(verdict(), False) == ""


def test_the_sentence_ranks_causes_with_their_proof():
    proof = Effect(ablations.INPUT, GAINS, Contrast(2.4, 2.3, 2.5, 3))
    found = verdict(loss("input", 0.61, proof), loss("memory", 0.14), loss("casts", 0.02))
    assert why.sentence(found) == (
        "Why: **mixed_float16** at batch size 128 is 1.08× faster than float32 [1.06, 1.10], "
        "where its layers alone would at best be about 2.9× faster: 61 % of the step (6.1 ms) "
        "waits for input (with the batch on the device it is 2.40× faster than float32 with the "
        "batch on the device [2.30, 2.50]); then 14 % (1.4 ms) is lost in memory-bound work that "
        "16 bits did not halve."
    )


@pytest.mark.parametrize(
    ("possible", "said"),
    [
        (1.04, "take about the same time on this device"),
        (0.97, "take about the same time on this device"),
        (1.06, "at best be about 1.1× faster"),
        (99.4, "at best be about 99× faster"),
        (99.6, "at best be about 100× faster"),
        (1 / 123, "at best be about 120× slower"),
        (1355.0, "at best be about 1,400× faster"),
    ],
)
def test_what_layers_alone_would_take_is_said_without_an_exponent(possible, said):
    # The lie: "about 1.2e+02× slower", which few read.
    found = verdict(loss("host", 0.5), possible=possible)
    assert f", where its layers alone would {said}: " in why.sentence(found)


def test_with_no_cause_of_weight_it_blames_nothing_and_shows_the_remainder():
    sentence = why.sentence(verdict(loss("host", 0.05), unexplained=0.3))
    assert "no known cause exceeds 10 % of the step" in sentence
    assert sentence.endswith("30 % of the step is unexplained.")


def test_what_is_not_known_is_not_said():
    sentence = why.sentence(verdict(possible=NAN, unexplained=NAN, missing="xprof is missing"))
    assert "allow" not in sentence
    assert sentence.endswith("; not diagnosed: xprof is missing.")


def test_a_sweep_that_holds_its_ablations_is_not_called_diagnosed():
    # The lie: "no known cause exceeds 10 % of the step", of a sweep that nobody has traced.
    gain = {"mixed_float16": Contrast(1.5, 1.4, 1.6, 3)}
    found = verdict(effects=[Effect(ablations.XLA_ON, gain)], missing="no steps were traced")
    assert why.sentence(found).endswith(
        "; not diagnosed: no steps were traced; XLA on makes mixed_float16 1.50× faster "
        "[1.40, 1.60]."
    )


def test_what_xla_is_to_others_is_torch_compile_to_users_of_pytorch():
    gain = {"mixed_float16": Contrast(1.5, 1.4, 1.6, 3)}
    found = verdict(effects=[Effect(ablations.XLA_ON, gain)])
    run = found.pair.candidate.model_copy(update={"backend": "torch"})
    found = replace(found, pair=replace(found.pair, candidate=run))
    assert "torch.compile on makes mixed_float16 1.50× faster" in why.sentence(found)


def test_pairs_that_differ_in_any_parameter_are_told_apart():
    # Two identical headings, of two normalizations.
    both = [
        replace(one, pair=replace(one.pair, candidate=run))
        for one in [verdict()]
        for run in (
            one.pair.candidate.model_copy(update={"optimizer": name}) for name in ("sgd", "adam")
        )
    ]
    titles = [why.title(one, both) for one in both]
    assert [title.count(name) for title, name in zip(titles, ("sgd", "adam"), strict=True)] == [
        1,
        1,
    ]


def test_what_one_framework_computes_no_faster_is_not_the_devices_alone():
    # The lie: "slower in 16 bits on this device", of JAX on one where TensorFlow is twice as fast.
    found = verdict(loss("slower type", 0.5))
    run = found.pair.candidate.model_copy(update={"backend": "jax"})
    found = replace(found, pair=replace(found.pair, candidate=run))
    assert "16 bits, which is lower on this device with JAX" in why.sentence(found)


def test_pairs_of_two_devices_name_each_as_other_sentences_do():
    # Once "(gpu model A)", beside "on device A".
    both = [
        replace(one, pair=replace(one.pair, candidate=run))
        for one in [verdict()]
        for run in (one.pair.candidate.model_copy(update={"gpu_model": n}) for n in ("A", "B"))
    ]
    assert why.settings(both[0], both) == " (device A)"
    assert why.settings(both[0], both[:1]) == ""


def test_a_trace_that_was_disturbed_or_is_of_another_model_is_doubted():
    # The lie: "61 % of the step waits for input", from a record that was edited.
    doubt = "; time breakdown not valid: trace not of these steps."
    busy = {"marks": ["measured while other programs used the processor"]}
    for traced in ({"changed": True}, busy):
        found = replace(verdict(loss("input", 0.61)), candidate=traced, baseline={})
        assert why.sentence(found).endswith(doubt)
    found = replace(verdict(loss("input", 0.61)), baseline={}, other=True)
    assert why.sentence(found).endswith(doubt)
    # The lie: "no known cause exceeds 10 % of the step", by a breakdown that is not valid.
    nothing = replace(verdict(loss("host", 0.05), unexplained=0.3), candidate=busy, baseline={})
    assert why.sentence(nothing).endswith(f": no cause is named{doubt}")


def test_a_breakdown_by_a_reader_that_failed_its_test_says_so():
    failed = {"instruments": [instrument_checks.check("trace", (0.9, 1.35), 3.0)]}
    failed["profile"] = {"step_s": 1.0}
    found = replace(verdict(loss("input", 0.61)), candidate=failed, baseline=failed)
    assert why.sentence(found).endswith("; time breakdown not valid: trace not proven.")
    assert why.BREAKDOWN.noted(found, False) == "**Time breakdown not valid: trace not proven.**"
    assert why.ARITHMETIC.noted(found, False) == ""
    wrong = {"instruments": [instrument_checks.check("kernels", (90, 100), 3.0)]}
    found = replace(found, candidate=wrong, baseline=wrong)
    assert why.ARITHMETIC.noted(found, False) == "**Arithmetic not valid: arithmetic not proven.**"
    assert why.sentence(found) == why.sentence(verdict(loss("input", 0.61)))


def test_a_cause_that_rests_on_the_measured_peaks_says_their_ratio():
    found = published("why-imagenette-64px-no-amx-cpu").verdicts
    said = [why.sentence(verdict, found) for verdict in found if verdict.speedup.high < 1]
    assert len(said) == 3
    assert all(
        "which is lower on this device with TensorFlow (measured peak 0.50× the baseline's)" in s
        for s in said
    )


def test_the_compiler_of_pytorch_is_not_called_xla():
    found = verdict(loss("compiled", 0.6))
    assert "60 % of the step (6 ms) is lost to XLA's code" in why.sentence(found)
    torch = found.pair.candidate.model_copy(update={"backend": "torch"})
    found = replace(found, pair=replace(found.pair, candidate=torch))
    assert "is lost to torch.compile's code, slower here than single" in why.sentence(found)


def test_pairs_that_differ_in_epochs_alone_are_told_apart():
    # The lie: two ratios under one heading.
    one = verdict()
    longer = one.pair.candidate.model_copy(update={"epochs": 40})
    both = [one, replace(one, pair=replace(one.pair, candidate=longer))]
    assert why.title(both[1], both).endswith("(epochs 40)")
    assert why.title(both[0], both) != why.title(both[1], both)


def test_the_pair_of_one_of_several_backends_names_it():
    # Published once: "mixed_bfloat16 ... is 1.17× faster", of PyTorch alone among three.
    one = verdict(loss("memory", 0.5))
    assert "TensorFlow" not in why.title(one, [one])
    assert "TensorFlow" in why.title(replace(one, of_one_backend=False), [one])
