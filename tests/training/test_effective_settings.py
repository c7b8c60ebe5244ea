"""Settings that are read back from a process' device and model."""

import pytest
from support import PROJECT


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"policy": "float32"}, ("float32", "float32", "none")),
        ({"policy": "mixed_float16"}, ("float16", "float32", 32768.0)),
        ({"policy": "mixed_float16", "loss_scale": "none"}, ("float16", "float32", "none")),
        ({"policy": "mixed_float16", "loss_scale": 128.0}, ("float16", "float32", 128.0)),
        ({"policy": "mixed_bfloat16"}, ("bfloat16", "float32", "none")),
        ({"policy": "float16", "loss_scale": "dynamic"}, ("float16", "float16", 32768.0)),
        ({"policy": "bfloat16"}, ("bfloat16", "bfloat16", "none")),
        ({"policy": "float8", "model": "mlp"}, ("bfloat16", "float32", "none")),
    ],
)
def test_what_is_asked_for_is_effective(ask, parameters, found):
    said = ask(parameters, parameters)
    assert said["again"] == [""]
    assert (said["compute_dtype"], said["variable_dtype"], said["loss_scale"]) == found
    assert said["head_dtype"] == "float32"
    assert said["jit"] is False
    assert said["deterministic"] is False
    assert said["default_policy"] == "float32"
    assert said["data_format"] == "channels_last"
    assert said["cpu_isa"] == "default"


def test_xla_is_on_where_it_is_asked_for(ask):
    assert ask({"jit": "on"})["jit"] is True


def test_the_data_format_is_read_back(ask):
    said = ask({"data_format": "channels_first", "augmentation": "flip_crop"})
    assert said["data_format"] == "channels_first"
    said = ask({"backend": "jax", "model": "mlp"})
    assert (said["data_format"], said["deterministic"]) == ("channels_last", False)


OWN = """
import keras
from keras import layers
def headed(shape, classes):
    head = layers.Dense(classes, activation="softmax", dtype="float32")
    return keras.Sequential([layers.Flatten(), layers.Dense(4), head])
def firm(shape, classes):
    x = inputs = layers.Input(shape)
    x = layers.Conv2D(4, 3, data_format="channels_last", padding="same")(x)
    x = layers.Dense(classes)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x))
"""


OWN_EAGER = """
def eager(shape, classes):
    {}
    return headed(shape, classes)
"""


def test_a_model_of_ones_own_is_held_to_the_policy(ask, tmp_path, monkeypatch):
    (tmp_path / "mynets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    asked = {"width": 1.0, "policy": "mixed_bfloat16"}
    said = ask(asked | {"model": "mynets:headed"})
    assert said["compute_dtype"] == "bfloat16, float32"
    asked |= {"model": "mynets:firm", "data_format": "channels_first", "backend": "jax"}
    said = ask(asked)["error"]
    assert said.startswith(
        "SettingNotApplied: data_format is channels_first, channels_last, but the run"
    )


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("tensorflow", "import tensorflow as tf; tf.config.run_functions_eagerly(True)"),
        ("jax", "import jax; jax.config.update('jax_disable_jit', True)"),
    ],
)
def test_a_model_that_has_nothing_compiled_is_refused(ask, backend, told, tmp_path, monkeypatch):
    # The lie: "4.28x", of a model that has float32 alone executed operation by operation.
    (tmp_path / "mynets.py").write_text(OWN + OWN_EAGER.format(told))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    said = ask({"width": 1.0, "model": "mynets:eager", "backend": backend})["error"]
    assert said.startswith("SettingNotApplied: ")
    assert "was told to execute operation by operation" in said


def test_determinism_is_set_and_read_back(ask):
    assert ask({"deterministic": True})["deterministic"] is True


def test_xla_that_determinism_switches_off_is_not_taken_for_xla(ask):
    said = ask({"deterministic": True, "jit": "on"})["error"]
    assert said.startswith(
        "SettingNotApplied: jit is False, but the run asked for True: Keras turns XLA"
    )


def test_determinism_that_nobody_asked_for_is_not_effective(ask):
    said = ask({}, TF_DETERMINISTIC_OPS="1")["error"]
    assert said.startswith("SettingNotApplied: deterministic is True, but the run asked for False")
    assert "TF_DETERMINISTIC_OPS" in said


def test_determinism_of_jax_is_a_flag_that_is_read_back(ask):
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    assert ask({"backend": "jax", "deterministic": True})["deterministic"] is True
