import keras
import numpy as np
import pytest

from mptexp import models, precision
from mptexp.spec import Run


@pytest.fixture(autouse=True)
def policy():
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


def test_keydana_cnn_is_the_studys_network():
    model = models.build(Run(model="keydana_cnn"), (256, 256, 3), 10)
    assert model.count_params() == 1_096_394
    assert model.output_shape == (None, 10)


def test_width_multiplies_the_filters():
    model = models.build(Run(width=0.25), (32, 32, 1), 10)
    filters = [layer.filters for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert filters == [8, 16, 32]


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_the_head_is_float32_under_every_policy(policy, name):
    policy(name)
    model = models.build(Run(width=0.1), (16, 16, 1), 10)
    assert model.outputs[0].dtype == "float32"
    table = precision.dtypes(model)
    assert table.compute_dtype.iloc[-1] == "float32"
    assert set(table.compute_dtype.iloc[:-1]) == {name.removeprefix("mixed_")}
    assert set(table.variable_dtype.iloc[:-1]) == {"float32" if name.startswith("mixed") else name}


def test_initial_weights_depend_on_the_seed_not_on_the_policy(policy):
    run = Run(width=0.1, seed=3)
    start = models.build(run, (16, 16, 1), 10)
    policy("mixed_bfloat16")
    mixed = models.build(run, (16, 16, 1), 10)
    assert models.fingerprint(mixed) == models.fingerprint(start)
    other = models.build(run.model_copy(update={"seed": 4}), (16, 16, 1), 10)
    assert models.fingerprint(other) != models.fingerprint(start)


def test_pure_policies_begin_from_the_same_draw_rounded(policy):
    run = Run(width=0.1, seed=3)
    start = models.build(run, (16, 16, 1), 10).get_weights()
    policy("float16")
    pure = models.build(run, (16, 16, 1), 10).get_weights()
    for single, half in zip(start, pure, strict=True):
        assert np.array_equal(np.asarray(single).astype("float16"), np.asarray(half))
