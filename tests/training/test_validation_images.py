"""What a record says of each validation image, on every backend, in a process of its own."""

import json

import numpy as np
import pytest
from forked import python

from mptexp.analysis import image_pairs
from mptexp.records import schema

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
    one, other = (np.array([image_pairs.correct(record)], float) for record in (left, right))
    return image_pairs.of_pairs(one - other, 0.01)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_images_of_the_record_are_those_of_its_accuracy(tmp_path, plain, backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    made = train(tmp_path, backend=backend, policy="mixed_bfloat16", seed=1)
    right = image_pairs.correct(made)
    assert len(right) == made["in_force"]["validation_images"] == 360
    accuracy = made["history"][-1]["val_accuracy"]
    assert 0.5 < accuracy < 1
    assert right.mean() == pytest.approx(accuracy, abs=2 / 360)
    assert schema.fault(made) == ""
    # Another seed, policy and framework: the same images in the same order.
    assert made["validated"]["digest"] == plain["validated"]["digest"]
    assert image_pairs.spread({0: made}, {0: plain}, 0.01) == pair_by_pair(made, plain)


def test_where_nothing_is_validated_there_is_no_list(tmp_path):
    assert "validated" not in train(tmp_path, input_mode="resident")


def test_images_at_another_size_are_others(tmp_path, plain):
    larger = train(tmp_path, image_size=16, epochs=1)
    assert larger["validated"]["digest"] != plain["validated"]["digest"]
    assert image_pairs.spread({0: larger}, {0: plain}, 0.01) != pair_by_pair(larger, plain)
