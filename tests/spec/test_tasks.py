"""The tasks: what each counts, and which model and dataset go together."""

import math

import pytest

from mptexp.errors import ParamsError
from mptexp.spec import names, tasks
from mptexp.spec.run import Run


def test_a_dataset_has_one_task_and_every_model_of_ours_too():
    assert {name: tasks.of(name).name for name in names.DATASETS} == {
        "digits": "images",
        "synthetic": "images",
        "hamlet": "tokens",
    }
    assert tasks.of("text:~/notes") is tasks.TOKENS
    assert tasks.of("folder:text") is tasks.IMAGES
    assert tasks.of_model("my:model") is None
    assert {name for name in names.MODELS if tasks.of_model(name) is tasks.TOKENS} == {"gpt"}


def test_what_is_counted_and_compared():
    run = Run(dataset="hamlet", model="gpt", sequence_length=64)
    assert tasks.units(run.model_dump()) == 64
    assert tasks.units(Run().model_dump()) == 1
    epoch = {"loss": math.log(8), "val_loss": math.log(9), "accuracy": 0.5}
    assert tasks.TOKENS.measured(epoch) == pytest.approx(9)
    assert tasks.TOKENS.measured(epoch, "") == pytest.approx(8)
    assert tasks.IMAGES.measured(epoch, "") == 0.5
    assert tasks.IMAGES.measured(epoch) is None
    assert math.isfinite(tasks.perplexity(1e6))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "gpt"}, "model gpt is for prediction of the next token, and dataset digits for"),
        (
            {"dataset": "hamlet"},
            "model keydana_cnn is for image classification, and dataset hamlet",
        ),
        (
            {"dataset": "text:a", "model": "gpt", "sequence_length": 2000},
            "which has 1024 positions",
        ),
        ({"dataset": "hamlet", "model": "gpt", "input_mode": "keydana"}, "keydana reads images"),
        ({"dataset": "hamlet", "model": "gpt", "augmentation": "flip"}, "flip is of images"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(parameters, message):
    with pytest.raises(ParamsError, match=message):
        Run(**parameters)
    assert Run(dataset="hamlet", model="mine:model", sequence_length=2000)


def test_the_loss_of_a_record_is_without_what_a_model_adds_to_it():
    # The lie: a perplexity of exp(3.565), of a text model with weight decay that has exp(3.313).
    keras = {"loss": 4.0, "sparse_categorical_crossentropy": 3.0, "accuracy": 0.5}
    keras |= {"val_loss": 3.565, "val_sparse_categorical_crossentropy": 3.313}
    said = tasks.recorded(keras)
    assert said == {"loss": 3.0, "accuracy": 0.5, "val_loss": 3.313}
    assert tasks.recorded({"loss": 2, "accuracy": 1}) == {"loss": 2.0, "accuracy": 1.0}
    diverged = {"loss": math.inf, "sparse_categorical_crossentropy": 3.0}
    assert tasks.recorded(diverged) == {"loss": math.inf}
