"""What a task asks of a framework: inputs, chance level, what is kept of the validation."""

import math

import keras
import numpy as np
import pytest

from mptexp.spec import tasks as spec
from mptexp.spec.run import Run
from mptexp.training import task_models
from mptexp.training.data.datasets import Images
from mptexp.training.data.texts import Windows


def text(train, val, classes):
    arrays = [Windows(np.array(part), 4, shift) for part in (train, val) for shift in (0, 1)]
    return Images(*arrays, classes=tuple(map(str, range(classes))))


def test_every_task_has_a_row():
    assert set(task_models.TASKS) == set(spec.TASKS)


def test_chance_is_what_the_frequencies_of_training_give_in_validation():
    data = text([0] + [0, 0, 0, 1] * 5, [0, 0, 1, 1, 1], 2)
    assert len(data.train_y) == 5
    zero, one = 16 / 22, 6 / 22  # once more than they occur
    expected = -(math.log(zero) + 3 * math.log(one)) / 4
    assert task_models.TASKS["tokens"].chance(data, len(data.val_y)) == {
        "chance_loss": pytest.approx(expected)
    }
    images = Images(
        np.zeros((3, 2, 2, 1)), np.array([0, 1, 1]), np.zeros((2, 2, 2, 1)), [0, 1], ("a", "b")
    )
    assert task_models.TASKS["images"].chance(images, 1) == {
        "validation_labels": [1],
        "chance_accuracy": 1.0,
    }


def test_a_value_for_each_sequence_is_its_mean_loss():
    row = task_models.of(Run(dataset="hamlet", model="gpt"))
    assert row.output((7,), 256) == (7, 256)
    logits = keras.Input((3, 4))
    model = keras.Model(logits, keras.layers.Softmax()(logits))
    given = np.zeros((2, 3, 4), "float32")
    given[1, :, 1] = [0, 10, 500]  # of a probability of e^-500, which is 0 in float32
    losses = row.kept(model)(given, np.zeros((2, 3), "int32"))
    expected = [math.log(4), (math.log(4) + math.log(3 + math.exp(10)) + 500) / 3]
    assert losses == pytest.approx(expected)
    assert row.listed(losses, np.zeros((2, 3))) == {"losses": losses.tolist()}
    assert row.listed([1.0, math.nan], np.zeros((2, 3))) == {"losses": [1.0, None]}
