"""What a task asks of a framework: inputs, chance level, what is kept of the validation."""

import math

import numpy as np
import pytest

from mptexp.spec import tasks as spec
from mptexp.spec.run import Run
from mptexp.training import tasks
from mptexp.training.data.datasets import Images
from mptexp.training.data.texts import Windows


def text(train, val, classes):
    arrays = [Windows(np.array(part), 4, shift) for part in (train, val) for shift in (0, 1)]
    return Images(*arrays, classes=tuple(map(str, range(classes))))


def test_every_task_has_a_row():
    assert set(tasks.TASKS) == set(spec.TASKS)


def test_chance_is_what_the_frequencies_of_training_give_in_validation():
    data = text([0] + [0, 0, 0, 1] * 5, [0, 0, 1, 1, 1], 2)
    assert len(data.train_y) == 5
    zero, one = 16 / 22, 6 / 22  # once more than they occur
    expected = -(math.log(zero) + 3 * math.log(one)) / 4
    assert tasks.TASKS["tokens"].chance(data) == {"chance_loss": pytest.approx(expected)}
    images = Images(
        np.zeros((3, 2, 2, 1)), np.array([0, 1, 1]), np.zeros((2, 2, 2, 1)), [0], ("a", "b")
    )
    assert tasks.TASKS["images"].chance(images) == {
        "validation_labels": [1],
        "chance_accuracy": 1.0,
    }


def test_a_value_for_each_sequence_is_its_mean_loss():
    row = tasks.of(Run(dataset="hamlet", model="gpt"))
    probabilities = np.full((2, 3, 4), 0.25, np.float32)
    probabilities[1, :, 0] = [1, 0.5, 0]
    losses = row.kept(probabilities, np.zeros((2, 3), int))
    # With TensorFlow Keras reads the logits and clips nothing: an honest record was called damaged.
    least = float(np.finfo(np.float32).smallest_subnormal)
    assert losses == pytest.approx([math.log(4), (math.log(2) - math.log(least)) / 3])
    assert row.listed(losses, np.zeros((2, 3))) == {"losses": losses.tolist()}
    assert row.output((7,), 256) == (7, 256)
