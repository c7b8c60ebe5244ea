import json
import sys

import pytest

from mptexp.spec.run import Run
from mptexp.training import identity, prepare
from mptexp.training.data import datasets

MODEL = """
from keras import Sequential, layers
def build(shape, classes):
    return Sequential([layers.Input(shape), layers.Flatten(), layers.Dense(classes)])
"""


def asked(folder, monkeypatch, **parameters):
    """Asks for one run, as the sweep does in a process of its own."""
    for name, value in (("KERAS_BACKEND", "tensorflow"), ("TF_CPP_MIN_LOG_LEVEL", "3")):
        monkeypatch.setenv(name, value)  # they are taken back at the end
    runs = [Run(**parameters).model_dump()]
    (folder / "runs.json").write_text(json.dumps(runs))
    monkeypatch.setattr(sys, "argv", ["prepare", str(folder)])
    prepare.main()


def test_what_is_in_order_leaves_its_identity_alone(tmp_path, monkeypatch):
    asked(tmp_path, monkeypatch, dataset="digits")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identities.json", "runs.json"]
    (known,) = json.loads((tmp_path / "identities.json").read_text())
    assert known["data"] == datasets.load(Run(dataset="digits")).content
    assert known["code"] == identity.code()


@pytest.mark.usefixtures("policy")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dataset": "folder:/no/such"}, "dataset folder:/no/such: "),
        ({"model": "a_model_of_mine:build"}, "float32"),  # its last layer computes in 16 bits
        ({"model": "no_such_module:build"}, "no_such_module"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(tmp_path, monkeypatch, parameters, message):
    (tmp_path / "a_model_of_mine.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as left:
        asked(tmp_path, monkeypatch, **parameters)
    assert left.value.code == 2
    said = (tmp_path / "error.txt").read_text()
    assert message in said
    assert "\n" not in said


LOOKS_AHEAD = """
import keras
from keras import layers
def build(shape, classes):
    x = inputs = layers.Input(shape, dtype="int32")
    x = layers.Conv1D(8, 3, padding="same")(layers.Embedding(classes, 8)(x))
    head = layers.Dense(classes, activation="softmax", dtype="float32")
    return keras.Model(inputs, head(x))
"""


@pytest.mark.usefixtures("policy")
def test_a_model_is_looked_at_without_emulated_formats(tmp_path, monkeypatch):
    # The lie: with a format a model of text was let see the tokens that it predicts.
    (tmp_path / "looks_ahead_of_mine.py").write_text(LOOKS_AHEAD)
    monkeypatch.syspath_prepend(tmp_path)
    parameters = {"dataset": "hamlet", "sequence_length": 16, "propagation": "<6,6>"}
    with pytest.raises(SystemExit):
        asked(tmp_path, monkeypatch, model="looks_ahead_of_mine:build", **parameters)
    assert "sees the tokens that it predicts" in (tmp_path / "error.txt").read_text()
