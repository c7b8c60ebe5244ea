"""What a record says of each validation image, on every backend, in a process of its own."""

import json
import math

import numpy as np
import pytest
from forked import python

from mptexp.analysis import validation_variance
from mptexp.records import consistency, schema

PROGRAM = """
import json, sys
from mptexp import Run, training
run = Run(**json.loads(sys.argv[1]))
device = training.use(run)
images = training.load_images(run)
training.save(training.execute(run, training.build(run, images), images, device))
"""
SMALL = {"image_size": 8, "width": 0.5, "batch_size": 64, "epochs": 5, "batch_norm_momentum": 0.9}


def train(folder, **parameters):
    done = python(PROGRAM, SMALL | parameters, MPTEXP_RUN_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "record.json").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain"))


def pair_by_pair(left, right):
    """The spread of two records whose images are taken to be the same."""
    one, other = (
        np.array([validation_variance.correct(record)], float) for record in (left, right)
    )
    return validation_variance.of_pairs(one - other, 0.01)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_images_of_the_record_are_those_of_its_accuracy(tmp_path, plain, backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    made = train(tmp_path, backend=backend, policy="mixed_bfloat16", seed=1)
    right = validation_variance.correct(made)
    assert len(right) == made["in_force"]["validation_images"] == 360
    accuracy = made["history"][-1]["val_accuracy"]
    assert 0.5 < accuracy < 1
    assert right.mean() == pytest.approx(accuracy, abs=2 / 360)
    assert schema.fault(made) == ""
    # Another seed, policy and framework: the same images in the same order.
    assert made["validated"]["digest"] == plain["validated"]["digest"]
    assert validation_variance.spread({0: made}, {0: plain}, 0.01) == pair_by_pair(made, plain)


def test_where_nothing_is_validated_there_is_no_list(tmp_path):
    assert "validated" not in train(tmp_path, input_mode="resident")


def test_images_at_another_size_are_others(tmp_path, plain):
    larger = train(tmp_path, image_size=16, epochs=1)
    assert larger["validated"]["digest"] != plain["validated"]["digest"]
    assert validation_variance.spread({0: larger}, {0: plain}, 0.01) != pair_by_pair(larger, plain)


GPT = {"dataset": "hamlet", "model": "gpt", "width": 1 / 24, "depth": 1, "sequence_length": 64}


def test_of_what_replicas_leave_out_a_record_says_nothing(tmp_path):
    # The lie: "validation_images is 543, but 542 are listed": a failed run, its training lost.
    made = train(tmp_path, replicas=2, max_steps=8, **GPT)
    listed, known = made["validated"], made["in_force"]
    assert listed["images"] == len(listed["losses"]) == known["validation_images"] == 542
    assert any(mark.startswith("1 of 543 sequences not validated with") for mark in made["marks"])
    assert consistency.fault(made) == ""


TEXT = """
import keras
from keras import layers

def build(shape, classes):
    decay = keras.regularizers.L2(1e-2)
    x = inputs = keras.Input(shape, dtype="int32")
    x = layers.Dense(classes, kernel_regularizer=decay)(layers.Embedding(classes, 16)(x))
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("learning_rate", [1e-3, 1e3])
def test_the_losses_of_sequences_are_those_of_the_validation(tmp_path, backend, learning_rate):
    # The lie: a regularizer's loss in the perplexity; and no record, "the listed sequences have
    # 3.313", as of a large loss whose probabilities float32 ends: "99.11".
    (tmp_path / "text.py").write_text(TEXT)
    asked = {"dataset": "hamlet", "model": "text:build", "sequence_length": 64, "epochs": 1}
    asked |= {"backend": backend, "learning_rate": learning_rate, "width": 1.0}
    done = python(PROGRAM, SMALL | asked, cwd=tmp_path, MPTEXP_RUN_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "record.json").read_text())
    (epoch,), losses = made["history"], made["validated"]["losses"]
    assert set(epoch) == {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "elapsed_s"}
    assert epoch["val_loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    assert consistency.fault(made) == ""
    if learning_rate == 1e-3:
        assert epoch["val_loss"] < math.log(256)  # of any token; the regularizer adds 0.3
    elif backend == "tensorflow":  # with JAX Keras clips probabilities, and so losses at 16 nats
        assert epoch["val_loss"] > 110
