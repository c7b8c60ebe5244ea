"""A run from its parameters to its record, in a process of its own, as the notebook does it."""

import json

import pytest
from forked import python

from mptexp.spec.policies import POLICY_ROWS, share_mark

PROGRAM = """
import json, sys
from mptexp import Run, training
from mptexp.training.capability import Unsupported
run = Run(**json.loads(sys.argv[1]))
try:
    device = training.use(run)
    images = training.load_images(run)
    outcome = training.execute(run, training.build(run, images), images, device)
    training.save(outcome)
    print(outcome.summary, outcome.steps, outcome.history)
except Unsupported as error:
    print(error)
"""
SMALL = {"image_size": 8, "width": 0.125, "batch_size": 128, "epochs": 2}
GPT = {"model": "gpt", "dataset": "hamlet", "width": 1 / 24, "depth": 1, "sequence_length": 16}


def train(folder, cwd=None, **parameters):
    said = python(PROGRAM, SMALL | parameters, cwd=cwd, MPTEXP_RUN_DIR=str(folder))
    assert said.returncode == 0, said.stderr
    path = folder / "record.json"
    return json.loads(path.read_text()) if path.exists() else said.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain"))


def test_a_record_holds_all_samples_and_their_figures(plain):
    record = plain
    assert record["status"] == "ok"
    assert [e["epoch"] for e in record["history"]] == [1, 2]
    assert set(record["history"][0]) == {
        "epoch", "loss", "accuracy", "val_loss", "val_accuracy", "elapsed_s",
    }  # fmt: skip
    steps = 1437 // 128
    assert sum(w["steps"] for w in record["windows"]) == 2 * (steps - 1)
    timing = record["timing"]
    assert timing["steps_timed"] + timing["warmup_steps"] >= 2 * (steps - 1)
    assert timing["step_s_low"] <= timing["step_s"] <= timing["step_s_high"]
    assert timing["images_per_s"] == pytest.approx(128 / timing["step_s"])
    assert timing["first_step_s"] > timing["step_s"]
    assert record["peak_memory_bytes"] > 2**27
    assert record["environment"]["cores"] >= 1


def test_a_training_that_diverges_says_where(tmp_path):
    record = train(tmp_path, learning_rate=1e30, exponents_every=4)
    assert record["status"] == "diverged"
    assert record["diverged_step"] == 2
    assert record["error"].startswith("the loss was not finite in epoch 1; trained again")
    assert "the output of " in record["error"]
    assert [s["step"] for s in record["exponents"]["samples"]] == [0, 4, 8]


@pytest.mark.parametrize(("opaque", "known"), [(False, True), (True, False)])
def test_a_recurrent_model_that_diverges_is_diverged(tmp_path, opaque, known):
    # The lie: `failed`, and tried again for ever, since the search for the step raised an error.
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    function = "opaque" if opaque else "gru"
    asked = {"model": f"recurrent:{function}", "dataset": "digits", "optimizer": "sgd"}
    looks = {} if opaque else {"exponents_every": 4}
    record = train(tmp_path, tmp_path, **asked, learning_rate=1e30, width=1, **looks)
    assert record["status"] == "diverged"
    assert (record["diverged_step"] == 2) is known
    unknown = "in which step, is not known: to train it again step by step raised "
    assert (unknown in record["error"]) is not known


RECURRENT = """
import keras
from keras import layers

class Opaque(layers.Layer):
    # A loop of the backend's that no layer of Keras holds.
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(8)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        loop = lambda i, x: i < 2, lambda i, x: (i + 1, self.dense(x)), (0, x)
        return keras.ops.while_loop(*loop, maximum_iterations=2)[1]

def model(shape, classes, *hidden):
    rows = layers.Reshape((shape[0], shape[1]))
    head = layers.Dense(classes), layers.Activation("softmax", dtype="float32")
    return keras.Sequential([layers.Input(shape), rows, *hidden, layers.Dense(8), *head])

def gru(shape, classes):
    return model(shape, classes, layers.GRU(8))

def opaque(shape, classes):
    return model(shape, classes, Opaque(), layers.Flatten())
"""


def test_windows_end_where_exponents_are_looked_at(tmp_path):
    record = train(tmp_path, exponents_every=4, image_size=16, width=0.5)
    starts = {window["first_step"] for window in record["windows"]}
    assert {0, 1, 4, 5, 8, 9} <= starts
    watched = [s["step"] for s in record["exponents"]["samples"]]
    assert watched == [0, 4, 8, 12, 16, 20]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_windows_account_for_the_time_of_an_epoch(tmp_path, backend):
    # They hold more than half of an epoch; a clock that reads dispatch and not work, 0.005 of it.
    # Other programs would have to make the rest of both epochs ten times as long to mislead this.
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    record = train(tmp_path, backend=backend, image_size=16, width=0.5, epochs=3)
    ends, timed = [epoch["elapsed_s"] for epoch in record["history"]], [0.0] * 3
    for window in record["windows"]:
        timed[window["first_step"] // (1437 // 128)] += window["seconds"]
    assert max(timed[k] / (ends[k] - ends[k - 1]) for k in (1, 2)) > 0.05


def test_policies_of_a_block_start_alike(plain, tmp_path):
    first = plain["in_force"]
    mixed = train(tmp_path / "b", policy="mixed_bfloat16")["in_force"]
    other = train(tmp_path / "c", seed=1, block=1)["in_force"]
    for name in ("initial_weights", "data_order"):
        assert first[name] == mixed[name]
        assert first[name] != other[name]


def test_a_training_that_overflows_is_diverged(tmp_path):
    # Pure float16 with a scale beyond its range: the first gradients are infinite.
    record = train(tmp_path, policy="float16", loss_scale=1e8, epochs=3)
    assert record["status"] == "diverged"
    assert record["error"].startswith("the loss was not finite in epoch")
    assert len(record["history"]) < 3


def test_too_few_steps_to_time_are_unsupported(tmp_path):
    assert "leave 2 steps to time; the clock needs 5" in train(tmp_path, batch_size=512)
    said = train(tmp_path, steps_per_execution=16)  # an epoch has 11
    assert "leave 0 executions of 16 steps to time; the clock needs 2" in said


def test_executions_of_several_steps_are_whole_ones(tmp_path):
    record = train(tmp_path, batch_size=64, steps_per_execution=8, policy="mixed_float16", epochs=3)
    assert record["status"] == "ok"  # an epoch has 22 steps, of which 16 are taken
    for seen in record["loss_scales"]:  # it is halved once for every step that was skipped
        assert seen["loss_scale"] * 2 ** seen["skipped"] == 2**15
    assert len(record["history"]) == 3
    assert max(w["first_step"] + w["steps"] for w in record["windows"]) == 3 * 16 - 8


def test_float8_says_which_layers_compute_in_it(tmp_path):
    short = {"epochs": 1, "max_steps": 20, **GPT}
    record = train(tmp_path / "a", policy="float8", exponents_every=8, **short)
    known, rows = record["in_force"], record["quantized"]["layers"]
    assert known["quantized_layers"] == [row["layer"] for row in rows]
    assert len(rows) == 4  # the Dense layers of the one block; the tied head is none
    assert known["emulated"] is True
    assert known["native_products"] == 0
    share = known["effective_share"]
    assert known["arithmetic"] == pytest.approx({"float8_e4m3fn": share, "bfloat16": 1 - share})
    assert share_mark(share, "arithmetic", "float8_e4m3fn") in record["marks"]
    for row in rows:
        for name, largest in (("inputs", 448), ("kernel", 448), ("outputs_grad", 57344)):
            part = row[name]
            assert part["steps"] == 20
            assert part["latest"] <= part["amax"]
            # A scale follows the history without the last step.
            assert 0 < part["scale"] <= part["amax"] / largest * (1 + 1e-6)
    assert {row["layer"] for row in record["exponents"]["layers"]} >= {row["layer"] for row in rows}
    same = train(tmp_path / "b", **short)["in_force"]
    assert same["initial_weights"] == known["initial_weights"]


@pytest.mark.parametrize(
    ("backend", "policy"), [("tensorflow", "int8_weights"), ("jax", "int4"), ("torch", "int8")]
)
def test_integers_take_the_place_of_weights_that_were_trained(tmp_path, backend, policy):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    asked = {"backend": backend, "policy": policy, "phase": "inference", "epochs": 1} | GPT
    record = train(tmp_path, max_steps=20, **asked)
    known, made = record["in_force"], record["quantized"]
    assert len(known["quantized_layers"]) == 4
    assert known["emulated"] is False
    share = known["effective_share"]
    promised = POLICY_ROWS[policy].promised
    assert known["arithmetic"] == pytest.approx({promised: share, "float32": 1 - share})
    before, after = (made[part]["val_loss"] for part in ("before", "after"))
    assert before < known["chance_loss"] + 0.5  # it was trained: 5.5 nats are those of a guess
    assert after != before
    assert after == pytest.approx(before, abs=0.02 if policy != "int4" else 0.2)
    lists = [made[part]["validated"] for part in ("before", "after")]
    assert lists[0]["digest"] == lists[1]["digest"]
    for listed, loss in zip(lists, (before, after), strict=True):
        assert len(listed["losses"]) == listed["images"]
        mean = sum(listed["losses"]) / listed["images"]
        assert mean == pytest.approx(loss, rel=1e-3)
    kernels = 12 * 32**2  # one byte or a half in place of four
    saved = kernels * (3.5 if policy == "int4" else 3)
    assert made["bytes_before"] - made["bytes_after"] == pytest.approx(saved, rel=0.1)
    assert made["calibration"].startswith("no data")
    assert record["latencies_s"]
    assert record["peak_memory_bytes"] is None


def test_a_training_before_integers_that_diverges_is_diverged(tmp_path):
    # The lie: `ok`, "trained_epochs": 3, of a float32 training that ended in its first epoch.
    asked = {"policy": "int8", "phase": "inference", "model": "mlp", "max_steps": 20, "epochs": 3}
    record = train(tmp_path, optimizer="sgd", learning_rate=1e9, **asked)
    assert record["status"] == "diverged"
    assert record["error"] == "the loss was not finite in epoch 1"
    assert record["quantized"]["trained_epochs"] == len(record["quantized"]["history"]) == 1
    assert record["history"] == []


def test_integers_in_a_network_of_convolutions_are_refused_before_it_is_trained(tmp_path):
    said = train(tmp_path, policy="int8", phase="inference", epochs=10_000)
    assert "policy int8 quantizes Dense and EinsumDense layers, which do 0 % of this" in said


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_other_backends_train_too(tmp_path, backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    record = train(tmp_path, backend=backend, policy="mixed_bfloat16")
    assert record["status"] == "ok"
    assert record["in_force"]["compute_dtype"] == "bfloat16"
    assert record["in_force"]["jit"] is (backend == "jax")


def test_the_studys_own_pipeline_learns_as_ours_does(tmp_path):
    ours = train(tmp_path / "a", epochs=4, width=0.5, batch_norm_momentum=0.9)
    keydana = train(
        tmp_path / "b", epochs=4, width=0.5, batch_norm_momentum=0.9, input_mode="keydana"
    )
    assert keydana["in_force"]["initial_weights"] == ours["in_force"]["initial_weights"]
    last = [record["history"][-1]["val_accuracy"] for record in (ours, keydana)]
    assert min(last) > 0.6
    assert abs(last[0] - last[1]) < 0.2
    # A window less an epoch than the 12 batches that it has, the smaller one among them.
    assert sum(w["steps"] for w in keydana["windows"]) == 4 * 11


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_resident_batch_is_trained_on_without_validation(tmp_path, backend):
    record = train(tmp_path, backend=backend, input_mode="resident", epochs=3, batch_size=64)
    assert record["status"] == "ok"
    first, last = record["history"][0], record["history"][-1]
    assert last["loss"] < first["loss"]
    assert "val_accuracy" not in last
    assert record["timing"]["images_per_s"] > 0


@pytest.mark.parametrize(
    ("backend", "mode", "frontend"),
    [
        ("tensorflow", "pipeline", "keras"),
        ("tensorflow", "resident", "keras"),
        ("jax", "pipeline", "keras"),
        ("jax", "pipeline", "native"),
        ("jax", "resident", "native"),
        ("torch", "pipeline", "native"),
        ("torch", "resident", "native"),
    ],
)
def test_inference_has_latencies_and_a_throughput(tmp_path, backend, mode, frontend):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    asked = {"backend": backend, "input_mode": mode, "frontend": frontend}
    record = train(tmp_path, phase="inference", batch_size=16, epochs=1, **asked)
    assert record["status"] == "ok"
    assert record["in_force"]["arithmetic"] == {"float32": 1.0}
    assert len(record["latencies_s"]) == 1437 // 16
    timing = record["timing"]
    assert 0 < timing["latency_p50_s"] <= timing["latency_p99_s"]
    assert timing["images_per_s"] == pytest.approx(16 / timing["step_s"])
    assert record["history"] == []


# Others are at work while batches are alone, and not while many follow in a row.
BUSY = """
import os, subprocess
from mptexp.training.frontends.fit import KerasFit
spinning = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count())]

def predict(trainer, clock, real=KerasFit.predict):
    for one in spinning:
        one.kill()
        one.wait()
    return real(trainer, clock)

KerasFit.predict = predict
"""


def test_what_interferes_with_single_batches_is_told_too(tmp_path):
    # The lie: latencies beside which nothing was said to be at work.
    asked = SMALL | {"phase": "inference", "batch_size": 1, "epochs": 1}
    done = python(PROGRAM.replace("try:", f"{BUSY}\ntry:"), asked, MPTEXP_RUN_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["marks"].count("measured while other programs used the processor") == 1


def test_an_input_that_a_backend_lacks_is_unsupported(tmp_path):
    said = train(tmp_path, backend="jax", input_mode="keydana")
    assert "input_mode keydana is a tf.data pipeline for training" in said


def test_augmentation_and_other_optimizers_train(tmp_path):
    record = train(
        tmp_path,
        augmentation="flip_crop",
        optimizer="sgd",
        learning_rate=0.01,
        model="mlp",
        width=1.0,
    )
    assert record["status"] == "ok"
    assert record["history"][-1]["loss"] < record["history"][0]["loss"]


def test_random_images_are_not_validated_with(tmp_path):
    record = train(tmp_path, dataset="synthetic", synthetic_length=2000, batch_size=64)
    assert "val_accuracy" not in record["history"][-1]
    assert record["marks"][-1] == "the images are random numbers: accuracies mean nothing"
