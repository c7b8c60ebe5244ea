"""Layers that must stay in float32: the search, and the command that trains for it."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from histograms import histogram, ranges
from hypothesis import given
from hypothesis import strategies as st
from support import mptexp

from mptexp.analysis import layer_search, short_trainings
from mptexp.analysis.layer_search import Needed, Trial
from mptexp.api import advising
from mptexp.errors import ParamsError
from mptexp.execution import directory
from mptexp.execution.job import Job, notebook_path
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import layers_needed
from mptexp.spec import params
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

# The square of what comes in overflows in float16, and is scaled back at once.
MODEL = """\
import keras
from keras import Model, layers, ops

class Energy(layers.Layer):
    def call(self, x):
        square = ops.square(1000 * x)
        return square / (1 + ops.max(square, axis=-1, keepdims=True))

def build(shape, classes):
    images = layers.Input(shape)
    x = layers.Flatten(name="flat")(images)
    x = Energy(name="energy")(x)
    x = layers.Dense(16, activation="relu", name="hidden")(x)
    x = layers.Dense(classes, name="logits")(x)
    return Model(images, layers.Activation("softmax", dtype="float32", name="head")(x))
"""


@given(st.integers(1, 40), st.data())
def test_what_is_found_suffices_and_nothing_of_it_can_be_left_out(n, data):
    names = [f"l{i}" for i in range(n)]
    sets = st.sets(st.sampled_from(names), max_size=min(n, 4))
    enough = data.draw(st.lists(sets, min_size=1, max_size=3))
    tried = []

    def keeps_up(layers):
        tried.append(tuple(layers))
        return any(one <= set(layers) for one in enough)

    found = layer_search.irreducible(names, keeps_up)
    assert any(one <= set(found) for one in enough)
    for name in found:
        assert not any(one <= set(found) - {name} for one in enough)
    k = max(1, len(found))
    assert len(tried) <= 2 * k * (math.log2(n / k) + 2) + 3  # Junker 2004, theorem 2
    assert len(set(tried)) == len(tried)  # a choice is a training, which takes a while


def test_layers_that_do_not_suffice_are_not_named():
    # The lie: "all 8 layers must stay in float32", of trainings of which none kept up.
    assert layer_search.irreducible("abc", lambda kept: False) is None
    # Of trainings that a layer more harms, no choice is named that failed.
    harmed = [{"a", "b", "c"}, {"a", "b"}]
    found = layer_search.irreducible("abc", lambda kept: set(kept) in harmed)
    assert found is None or set(found) in harmed


def test_layers_that_need_it_are_found_in_few_trials_where_they_come_first():
    names = [f"l{i}" for i in range(64)]
    tried = []

    def keeps_up(layers):
        tried.append(layers)
        return {"l0", "l1"} <= set(layers)

    assert layer_search.irreducible(names, keeps_up) == ["l0", "l1"]
    assert len(tried) < 12


def test_layers_whose_values_are_lost_come_first():
    measured = ranges(gradients=np.float32([1e-3]))
    layers = {
        ("activations", "wide"): histogram(np.float32([1.0, 1e6])),
        ("activations", "usual"): histogram(np.float32([1.0, 2.0])),
        ("activations", "last"): histogram(np.float32([1.0, 2.0])),
        ("activation_gradients", "usual"): histogram(np.float32([1e-3])),
        ("activation_gradients", "small"): histogram(np.float32([1e-30])),
    }
    measured = dataclasses.replace(measured, layers=layers)
    names = ["usual", "wide", "small", "last"]
    order = layer_search.by_need(names, measured, "mixed_float16")
    assert order == ["small", "wide", "last", "usual"]
    # bfloat16 has float32's range: nothing is lost, and the last layers come first.
    assert layer_search.by_need(names[:2], measured, "mixed_bfloat16") == ["wide", "usual"]


def trained(*losses):
    """The records of a training for each block, which ended with these losses."""
    return [
        {"status": "ok", "parameters": {"block": b}, "history": [{"loss": 9.0}, {"loss": loss}]}
        for b, loss in enumerate(losses)
    ]


def test_the_mean_is_shown_and_a_training_that_diverged_decides():
    ok = trained(1.0, 3.0)
    assert layer_search.mean(short_trainings.losses(ok)) == 2.0
    assert short_trainings.losses([ok[0], {"status": "diverged", "history": []}]) is None
    assert layer_search.mean(None) is None


def needed(*layers, of=5):
    alone = Trial((), None, False) if layers else Trial((), 1.01, True)
    kept = [Trial(layers, 1.02, True)] if layers else []
    return Needed("mixed_float16", layers, of, 1.0, (alone, *kept))


@pytest.mark.parametrize(
    ("found", "opening"),
    [
        (needed(), "In mixed_float16 no layer must stay in float32."),
        (
            needed("a", "b"),
            "mixed_float16 keeps up with float32 once 2 of 5 layers stay in float32: a and b; "
            "none of them can be left out.",
        ),
        (
            needed("a", "b", of=2),
            "mixed_float16 keeps up with float32 only with all 2 layers in float32: use float32.",
        ),
    ],
)
def test_the_answer_opens_with_the_layers(found, opening):
    sentences = layers_needed.answer(found, 300)
    assert sentences[0] == opening
    alone = "diverged" if found.layers else "1.01"
    assert f"float32 1, mixed_float16 {alone}" in sentences[1]
    assert ("1.02" in sentences[1]) == bool(found.layers)
    assert sentences[-1].endswith(
        "5 % or 0.02 above its own after 300 steps, with each of 2 seeds."
    )


@pytest.mark.parametrize(("layers", "policies"), [((), 2), (("a", "b"), 3)])
def test_the_proof_is_a_params_file_of_whole_trainings(layers, policies):
    run = Run(model="gpt", dataset="hamlet", epochs=7, seed=3, block=1, policy="bfloat16")
    text = layer_search.proof(Sweep(notebook="train", timeout_min=9.0), run, needed(*layers))
    sweep, _ = params.parse(text, "layers.yaml")
    assert set(params.header(text)) == {"question", "cost", "expected"}
    assert (sweep.repeats, sweep.timeout_min, len(sweep.include)) == (5, 9.0, policies)
    points = [Run(**point) for point in sweep.points()]
    assert {(p.model, p.epochs, p.seed, p.max_steps) for p in points} == {("gpt", 7, 2, None)}
    kept = [p.float32_layers for p in points if p.policy == "mixed_float16"]
    assert kept == ["", "a,b"][: len(kept)]


def test_the_proof_trains_in_keras_whatever_the_run_did():
    # Inference says nothing of accuracy, and a plain loop keeps no layer in float32.
    run = Run(backend="jax", frontend="native", phase="inference")
    text = layer_search.proof(Sweep(notebook="train"), run, needed("dense"))
    points = [Run(**point) for point in params.parse(text, "layers.yaml")[0].points()]
    assert {(p.backend, p.frontend, p.phase) for p in points} == {("jax", "keras", "train")}
    for policy in ("float32", "mixed_float16"):
        trial, _ = layer_search.sweep(run, "train", policy, ["dense"], 40, 5.0)
        assert {(p.frontend, p.phase) for p in trial.runs()} == {("keras", "train")}


def test_keeping_up_with_a_training_that_learned_nothing_is_no_answer(tmp_path):
    # The lie: at a learning rate of nearly zero every policy keeps up, and no layer is needed.
    (tmp_path / "mine.yaml").write_text(
        "defaults: {image_size: 8, model: mlp, width: 0.032, learning_rate: 1.0e-9}\n"
        "matrix: {policy: [float32]}\n"
    )
    asked = ("advise", "mine.yaml", "--layers", "mixed_float16", "--steps", "25")
    done = mptexp(*asked, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "float32 itself learned nothing in 25 steps" in done.stderr
    assert "must stay" not in done.stdout
    assert not (tmp_path / "reports/mine-layers/layers.yaml").exists()


def test_the_command_finds_a_layer_that_overflows(tmp_path):
    (tmp_path / "squares.py").write_text(MODEL)
    (tmp_path / "mine.yaml").write_text(
        "defaults: {image_size: 8, model: squares:build, epochs: 4, batch_size: 64}\n"
        "matrix: {policy: [float32]}\n"
    )
    done = mptexp(
        "advise", "mine.yaml", "--layers", "mixed_float16", "--steps", "40",
        "--format", "json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["advice"][0] == (
        "mixed_float16 keeps up with float32 once 1 of 6 layers stays in float32: energy; "
        "it cannot be left out."
    )
    assert "mixed_float16 diverged" in result["advice"][1]
    proof, _ = params.read(tmp_path / result["params"])
    assert [p.get("float32_layers") for p in proof.points()] == [None, None, "energy"]
    kept = sorted((tmp_path / "reports/mine-layers/trials").glob("*/params.yaml"))
    assert 3 <= len(kept) <= 7


def test_a_policy_that_computes_in_float32_has_no_such_layers(tmp_path):
    (tmp_path / "mine.yaml").write_text("matrix: {policy: [float32]}\n")
    for wrong in ("tensorfloat32", "half"):
        done = mptexp("advise", "mine.yaml", "--layers", wrong, cwd=tmp_path)
        assert done.returncode == 2
        assert f"--layers {wrong}: is no policy that computes in fewer bits" in done.stderr
        assert "mixed_bfloat16" in done.stderr
        assert not (tmp_path / "reports").exists()


def test_every_order_of_layers_gives_the_same_answer_where_there_is_one():
    for names in itertools.permutations("abcde"):
        found = layer_search.irreducible(names, lambda kept: {"b", "d"} <= set(kept))
        assert set(found) == {"b", "d"}


def test_two_searches_in_one_directory_do_not_read_each_others_trainings(tmp_path, monkeypatch):
    # The lie: two policies searched at once into the same default directory, each discarding and
    # reading the other's trainings.
    place = SweepDir(tmp_path / "mine-layers")
    sweep = Sweep(matrix={"policy": ["float32"]})
    job = Job(sweep, "{}", notebook_path("train", tmp_path / "mine.yaml"), place)

    def searched(self):
        with directory.locked(place):
            raise AssertionError("nobody holds it")

    monkeypatch.setattr(advising._Search, "needed", searched)
    with pytest.raises(ParamsError, match="another mptexp command is at work here"):
        advising.advise_layers(job, "mixed_float16")


@pytest.fixture
def searching(tmp_path, monkeypatch):
    """A function that searches for layers, with trainings that find these."""
    place = SweepDir(tmp_path / "mine-layers")
    job = Job(
        Sweep(matrix={"policy": ["float32"]}),
        "{}",
        notebook_path("train", tmp_path / "mine.yaml"),
        place,
    )

    def search(*layers):
        monkeypatch.setattr(advising._Search, "needed", lambda self: needed(*layers))
        return place, advising.advise_layers(job, "mixed_float16")[1]

    return search


def test_a_params_file_of_layers_that_somebody_edited_stays(searching):
    # The loss: a second search wrote over the file of the first, and what was edited in it.
    place, proof = searching("a", "b")
    assert proof == place.root / "layers.yaml"
    assert searching("a", "b")[1] == proof
    proof.write_text("# mine\n" + proof.read_text())
    for layers, name in ((("a", "b"), "layers-2.yaml"), (("a",), "layers-3.yaml")):
        for _ in range(2):
            assert searching(*layers)[1] == place.root / name
    assert proof.read_text().startswith("# mine\n")


def test_a_search_discards_nothing_but_an_earlier_search(searching):
    # The loss: with --out of a finished sweep, all of its results were discarded unasked.
    place, _ = searching()
    place.params.write_text("# Question: Is it faster?\nmatrix: {policy: [float32]}\n")
    with pytest.raises(ParamsError, match="holds the results of another params file"):
        searching()
    _, text = layer_search.sweep(Run(), "train", "float32", (), 300, 60.0)
    place.params.write_text(text)
    assert searching()[0] == place
