"""Advice from histograms, and the command that makes them."""

import re
from dataclasses import replace

import numpy as np
import pytest
from builders import written_sweep
from histograms import VALUES, histogram, ranges
from support import mptexp

from mptexp.analysis import out_of_range, range_advice, sweep_tables
from mptexp.analysis.short_trainings import Tried
from mptexp.api import advising, commands
from mptexp.errors import ParamsError
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import dynamic_range
from mptexp.report.first_screen import question
from mptexp.report.text import wording
from mptexp.spec import params
from mptexp.spec.run import Run


@pytest.mark.parametrize(
    ("native", "policy", "scale"),
    [
        (["float16", "bfloat16"], "mixed_bfloat16", "none"),
        (["bfloat16"], "mixed_bfloat16", "none"),
        (["float16"], "mixed_float16", "dynamic"),
        ([], "float32", "none"),
        (None, "float32", "none"),
    ],
)
def test_the_policy_is_one_that_the_device_computes_in(native, policy, scale):
    advised = range_advice.advise(ranges(native))
    assert (advised.policy, advised.loss_scale) == (policy, scale)
    assert dynamic_range.reasons(advised)


def test_activations_that_are_too_large_forbid_float16():
    advised = range_advice.advise(ranges(["float16"], activations=np.array([1.0, 1e5], "float32")))
    assert advised.policy == "float32"
    assert advised.too_large == ["activations"]
    assert "65504" in dynamic_range.reasons(advised)[0]


def test_a_fixed_scale_is_named_where_one_does():
    narrow = np.exp2(np.random.default_rng(0).normal(-20, 2, 20_000)).astype("float32")
    least, most = out_of_range.scales(ranges(gradients=narrow))
    advised = range_advice.advise(ranges(gradients=narrow))
    assert advised.fixed_scales == (least, most / 2)
    (reason,) = dynamic_range.reasons(advised)
    assert f"from {wording.power(least)} to {wording.power(most / 2)}" in reason
    wide = np.concatenate([VALUES, [60000]]).astype("float32")
    advised = range_advice.advise(ranges(gradients=wide))
    assert advised.fixed_scales is None
    assert "no fixed loss scale" in dynamic_range.reasons(advised)[0]


def test_a_probe_keeps_what_is_asked_about():
    run = Run(policy="mixed_float16", batch_size=16, seed=5, block=2, learning_rate=0.1)
    sweep, text = range_advice.probe(run, "train", 60, 10.0)
    (probe,) = sweep.runs()
    assert (probe.policy, probe.batch_size, probe.seed) == ("float32", 16, 3)
    assert (probe.max_steps, probe.exponents_every, probe.learning_rate) == (60, 12, 0.1)
    assert set(params.header(text)) == {"question", "cost", "expected"}


def test_advise_probes_the_first_point_and_says_why(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: {image_size: 8, width: 0.125, epochs: 9}\n"
        "matrix: {batch_size: [64, 128], policy: [mixed_float16]}\n"
    )
    done = mptexp("advise", "mine.yaml", "--steps", "40", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    place = SweepDir(tmp_path / "reports/mine-advice")
    (record,), _ = store.read_records(place)
    assert record["parameters"]["batch_size"] == 64
    assert [s["step"] for s in record["exponents"]["samples"]] == [0, 8, 16, 24, 32]
    assert all("swallowed" in s for s in record["exponents"]["samples"])
    (found,) = out_of_range.measured([record])
    sentence, *_ = dynamic_range.answer(found)
    assert sentence in done.stdout
    page = re.sub("</?abbr[^>]*>", "", place.index.read_text())  # terms are explained within words
    assert sentence in page
    assert "Dynamic range" in page
    wrong = mptexp("advise", "mine.yaml", "--only", "batch_size=7", cwd=tmp_path)
    assert wrong.returncode == 2


def test_advice_discards_nothing_but_earlier_advice(tmp_path):
    # The loss: with --out of a finished sweep, all of its results were deleted unasked.
    place = written_sweep(tmp_path / "mine", "GPU", 1.0)
    place.mark()
    place.params.write_text("matrix: {policy: [float32, mixed_float16]}\n")
    before = {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()}
    assert len(before) > 2
    job = commands.open_sweep(place.params, place.root)
    with pytest.raises(ParamsError, match="holds the results of another params file"):
        advising.advise(job)
    assert {p: p.read_bytes() for p in place.root.rglob("*") if p.is_file()} == before


def test_advice_is_one_that_the_limit_on_the_cpus_instructions_allows():
    # The lie: "Use policy mixed_bfloat16", which is refused under that limit.
    found = ranges(["bfloat16"])
    found.environment["instruction_sets"] = ["avx512bw", "avx512_bf16"]
    for limit, policy in (("default", "mixed_bfloat16"), ("avx512_core_bf16", "mixed_bfloat16")):
        found.parameters["cpu_isa"] = limit
        assert range_advice.advise(found).policy == policy
    found.parameters["cpu_isa"] = "avx2"
    advised = range_advice.advise(found)
    assert advised.policy == "float32"
    assert dynamic_range.reasons(advised)[0].startswith(
        "Under cpu_isa avx2 this device computes in"
    )


def test_no_loss_scale_is_advised_where_float32_itself_overflows():
    # The lie: "mixed_float16 with loss_scale dynamic", and last: no loss scale cures that.
    over = ranges(["float16"], gradients=np.float32([1.9, np.inf, 1e-6]))
    advised = range_advice.advise(over)
    assert (advised.policy, advised.loss_scale) == ("float32", "none")
    said = " ".join(dynamic_range.answer(over))
    assert "bears is not known" in said
    assert "no fixed loss scale flushes" not in said


SPREAD = np.exp2(np.random.default_rng(0).uniform(-100, 0, 10_000)).astype("float32")
TINY = np.exp2(np.random.default_rng(0).normal(-60, 2, 10_000)).astype("float32")


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        (TINY, "No loss scale up to 2⁴⁰ has float16 flush at most 0.1 % of the gradients."),
        (SPREAD, "No loss scale up to 2⁴⁰ has float16 flush at most 0.1 % of the gradients."),
        (np.concatenate([VALUES, np.float32([1e6])]), "no fixed scale does both."),
        (np.zeros(100, "float32"), "and so they are with any loss scale."),
    ],
)
def test_float16_is_not_advised_where_no_scale_is_known_to_serve(gradients, said):
    # The lie: "Use policy mixed_float16 with loss_scale dynamic", and below it any of these.
    first, *others = dynamic_range.answer(ranges(["float16"], gradients=gradients))
    assert said in " ".join(others)
    assert first == "Use policy float32."


def test_float16_is_not_advised_of_weights_that_are_not_finite():
    # The lie: "with loss_scale dynamic", of weights that are infinite in float32. A mask is meant.
    found = ranges(["float16"])
    masked = ranges(["float16"], activations=np.float32([1, -np.inf]))
    assert range_advice.advise(masked).policy == "mixed_float16"
    broken = replace(found, kinds=found.kinds | {"weights": histogram(np.float32([1, np.inf]))})
    assert range_advice.advise(broken).policy == "float32"


@pytest.mark.parametrize(("tiny", "follows"), [(5, True), (20_000, False)])
def test_that_bfloat16_needs_no_scale_follows_where_it_loses_few_values(tiny, follows):
    # The lie: "at most 50 % of a kind of values … may leave it, so no loss scale is needed".
    gradients = np.concatenate([VALUES, np.full(tiny, 2.0**-136, "float32")])
    text = " ".join(dynamic_range.answer(ranges(["bfloat16"], gradients=gradients)))
    assert "may leave it" in text
    assert ("so no loss scale is needed" in text) is follows
    assert ("whether it trains without a loss scale, range alone does not say" in text) != follows


@pytest.mark.parametrize("native", [["bfloat16"], ["float16"], [], None])
def test_advice_of_range_says_that_speed_is_open(native):
    # The lie: "neither would be faster", and of a device with the instructions not a word, where
    # nothing was timed.
    *_, last = said = dynamic_range.answer(ranges(native))
    assert last == dynamic_range.OF_RANGE
    assert "`mptexp run`" in last
    assert "would be faster" not in " ".join(said)
    assert ("neither is expected to be faster" in " ".join(said)) is (native == [])


def test_gradients_that_are_all_zero_need_no_scale_and_know_none():
    # The lie: "no fixed loss scale flushes at most 0.1 % of the gradients", of which none is lost.
    said = " ".join(dynamic_range.answer(ranges(["float16"], gradients=np.zeros(9, "float32"))))
    assert "no fixed loss scale" not in said
    assert "gradients that are all zero do not say" in said


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_advice_that_rests_on_gradients_before_any_update_says_so(samples):
    # The lie: advice after one look at gradients before any update, like that after five.
    told = " ".join(dynamic_range.answer(replace(ranges(["float16"]), samples=samples)))
    assert ("rests on one look, before the first update" in told) is (samples == 1)


WITHIN = """\
from keras import Model, layers, ops

class Norm(layers.Layer):
    def call(self, x):
        square = ops.mean(ops.square(300 * x), axis=-1, keepdims=True)
        return x * ops.rsqrt(square / 90000 + 1e-6)

def build(shape, classes):
    images = layers.Input(shape)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(images))
    x = layers.Dense(classes)(Norm()(x))
    return Model(images, layers.Activation("softmax", dtype="float32")(x))
"""


def test_a_policy_that_fails_within_a_layer_is_not_advised(tmp_path, monkeypatch):
    # The lie: "Use policy mixed_float16", of a norm written by hand whose squares overflow in it:
    # range is that of the outputs of layers. The device is taken for one with float16.
    monkeypatch.setattr(range_advice, "_native", lambda measured: ["float16"])
    (tmp_path / "norms.py").write_text(WITHIN)
    file = tmp_path / "mine.yaml"
    file.write_text("matrix: {policy: [float32], image_size: [8], model: ['norms:build']}\n")
    monkeypatch.chdir(tmp_path)
    job = commands.open_sweep(file, tmp_path / "advice")
    said = advising.advise(job, steps=25)
    assert said[0] == "Use policy float32."
    assert said[1].startswith("mixed_float16 was tried for 25 steps and ")
    assert "though what leaves the layers is within the range of mixed_float16" in said[1]
    assert said[2:] == [dynamic_range.WITHIN, said[3]]  # no loss scale cures that
    assert "`--layers mixed_float16`" in said[3]
    made = sweep_tables.load(job.directory)
    assert [r["parameters"]["policy"] for r in made.tried] == ["mixed_float16"]
    opened = question.of(made)
    assert opened.title == (
        "Use float32 for this training: mixed_float16 did not keep up when it was tried"
    )
    assert opened.advice == "use policy float32."
    # Another model that keeps up is tried anew, in the same place.
    file.write_text("matrix: {policy: [float32], image_size: [8], model: [mlp]}\n")
    job = commands.open_sweep(file, tmp_path / "advice")
    said = advising.advise(job, steps=25)
    begins = "The numbers allow policy mixed_float16 with loss_scale dynamic"
    assert said[0].startswith(begins)
    assert "it keeps up" in said[1]
    assert said[-1] == dynamic_range.OF_TRIAL


TRIED = Tried("mixed_float16", "ok", "", 60, 0, 1.0, 1.0, keeps_up=True, learned=True)


@pytest.mark.parametrize(
    ("changed", "policy", "said"),
    [
        ({}, "mixed_float16", "it keeps up (at most 5 % or 0.02 above)."),
        ({"learned": False}, "mixed_float16", "at chance level still"),
        ({"loss": 2.0, "keeps_up": False, "skipped": 9}, "float32", "9 steps skipped by"),
        ({"loss": None, "status": "diverged", "keeps_up": False}, "float32", "and diverged, th"),
        ({"loss": None, "status": "oom", "error": "x", "keeps_up": False},
         "float32", "ended as oom: x"),
        ({"loss": None, "status": "killed", "error": "x", "keeps_up": False},
         "mixed_float16", "ended as killed: x"),
        # A policy without effect, of a model that is in float32: advised, as no loss spoke against.
        ({"loss": None, "status": "unsupported", "error": "it has no effect", "keeps_up": False},
         "float32", "ended as unsupported: it has no effect"),
        ({"loss": None, "status": "failed", "error": "TypeError: x", "keeps_up": False},
         "float32", "ended as failed: TypeError: x"),
        ({"policy": "mixed_bfloat16", "keeps_up": False}, "mixed_float16", "In mixed_float16"),
    ],
)  # fmt: skip
def test_what_was_tried_decides_what_range_allows(changed, policy, said):
    tried = replace(TRIED, **changed)
    assert range_advice.advise(ranges(["float16"]), tried).policy == policy
    first, why, *_ = dynamic_range.answer(ranges(["float16"]), tried)
    advised = f"The numbers allow policy {policy}"
    assert first.startswith("Use policy float32." if policy == "float32" else advised)
    assert said in why
    # The lie: "Use policy mixed_bfloat16", in bold, above a float32 that has learned nothing.
    assert ("float32 has learned nothing yet" in first) is ("chance level" in said)
