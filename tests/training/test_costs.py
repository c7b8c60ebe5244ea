import math
import warnings

import keras
import pytest
from keras import layers

from mptexp.spec.run import Run
from mptexp.training import costs, models


def test_keydanas_step_needs_the_published_arithmetic():
    table = costs.table(models.build(Run(), (256, 256, 3), 10))
    kernels = table[table.kind.isin(["Conv2D", "Dense"])]
    assert kernels.flops_training.sum() == pytest.approx(8.71e9, rel=1e-3)
    assert table.flops_training.sum() == pytest.approx(8.71e9, rel=2e-3)
    share = kernels.flops_training.iloc[2] / table.flops_training.sum()
    assert share == pytest.approx(0.69, abs=0.01)
    assert list(kernels.flops_training / kernels.flops_forward) == [2, 3, 3, 3]
    assert table.parameters.sum() == 1_096_394
    assert list(table.elements[:2]) == [256 * 256 * 3, 128 * 128 * 32]


def test_resnet_needs_the_arithmetic_that_its_authors_give():
    table = costs.table(models.build(Run(model="resnet50"), (224, 224, 3), 1000))
    assert table.flops_forward.sum() / 2 == pytest.approx(3.8e9, rel=0.03)
    assert table.parameters.sum() == 25_636_712
    assert not table.flops_forward.isna().any()


def cost_of(*stack, shape=(8, 6, 4)):
    return costs.table(keras.Sequential([layers.Input(shape), *stack])).iloc[-1]


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (layers.Dense(5), (7, 4), 2 * 7 * 4 * 5),
        (layers.Conv1D(3, 5, padding="same"), (9, 2), 2 * 9 * 5 * 2 * 3),
        (layers.Conv2D(6, 3), (8, 6, 4), 2 * (6 * 4) * 9 * 4 * 6),
        (layers.Conv2D(6, 3, groups=2), (8, 6, 4), 2 * (6 * 4) * 9 * 2 * 6),
        (layers.Conv3D(2, 2), (4, 4, 4, 3), 2 * 27 * 8 * 3 * 2),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), (8, 6, 4), 2 * (6 * 4) * 9 * 4 * 2),
        (
            layers.SeparableConv2D(5, 3, depth_multiplier=2),
            (8, 6, 4),
            2 * (6 * 4) * (9 * 8 + 8 * 5),
        ),
        (layers.Conv2DTranspose(5, 3, 2), (8, 6, 4), 2 * (8 * 6) * 9 * 4 * 5),
        (layers.EinsumDense("abc,cde->abde", (7, 2, 3)), (7, 4), 2 * 7 * 4 * 2 * 3),
        (layers.ReLU(), (8, 6, 4), 8 * 6 * 4),
        (layers.MaxPooling2D(), (8, 6, 4), 8 * 6 * 4),
        (layers.Flatten(), (8, 6, 4), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else "",
)
def test_the_rules_of_arithmetic(layer, shape, flops):
    row = cost_of(layer, shape=shape)
    assert row.flops_forward == flops
    assert row.kind == type(layer).__name__
    assert row.flops_training == flops * (2 if layer.trainable_variables else 1)


def test_attention_is_projections_and_two_products():
    query, value = layers.Input((6, 8)), layers.Input((5, 4))
    mask = layers.Input((6, 5), dtype="bool")
    masked = layers.MultiHeadAttention(2, 3, 7)(query, value, attention_mask=mask)
    whole = costs.table(keras.Model([query, value, mask], masked)).iloc[0]
    assert math.isnan(whole.flops_forward)
    found = layers.MultiHeadAttention(2, 3, 7)(query, value)
    row = costs.table(keras.Model([query, value], found)).iloc[0]
    projections = 6 * 8 * 3 + 5 * 4 * 3 + 5 * 4 * 7 + 6 * 7 * 8
    assert row.flops_forward == 2 * 2 * (projections + 6 * 5 * (3 + 7))


def test_no_number_is_made_up():
    class Unlike(layers.Conv2D):
        pass

    class Made(layers.Layer):
        def call(self, x):
            return keras.ops.matmul(x, keras.ops.swapaxes(x, 1, 2))

    class Drawn(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    assert math.isnan(cost_of(Unlike(2, 1)).flops_forward)
    assert math.isnan(cost_of(Made(), shape=(4, 4)).flops_forward)
    row = cost_of(layers.Flatten(), Drawn(), shape=(4, 4))
    assert math.isnan(row.flops_forward)
    assert row.parameters == 16 * 3 + 3
    assert math.isnan(cost_of(layers.Conv2D(2, 1), shape=(None, None, 3)).flops_forward)
    x = layers.Input((4, 4))
    product = costs.table(keras.Model(x, keras.ops.matmul(x, x) + x))
    assert list(product.kind) == ["Matmul", "Add"]
    assert product.flops_forward.isna().tolist() == [True, False]


def test_a_layer_used_twice_counts_twice_but_its_weights_once():
    x, shared = layers.Input((4,)), layers.Dense(4)
    nested = keras.Sequential([layers.Input((4,)), layers.Dense(4), layers.ReLU()])
    table = costs.table(keras.Model(x, nested(shared(shared(x)))))
    assert list(table.kind) == ["Dense", "Dense", "Dense", "ReLU"]
    assert list(table.flops_forward) == [32, 32, 32, 4]
    assert list(table.flops_training) == [64, 96, 96, 8]
    assert list(table.parameters) == [20, 0, 20, 0]


def test_bytes_follow_the_compute_dtype(policy):
    made = {}
    for name in ("float32", "mixed_float16"):
        policy(name)
        made[name] = costs.table(models.build(Run(model="mlp"), (28, 28, 1), 10))
    single, mixed = made["float32"], made["mixed_float16"]
    assert single.bytes_forward.iloc[0] == 784 + 784 * 4  # uint8 in, float32 out
    dense = single[single.kind == "Dense"].iloc[0]
    assert dense.bytes_weights == 785_000 * 4
    assert dense.bytes_forward == (784 + 1000 + 785_000) * 4
    half = mixed[mixed.kind == "Dense"].iloc[0]
    assert half.bytes_forward * 2 == dense.bytes_forward
    assert half.compute_dtype == "float16"
    assert half.flops_forward == dense.flops_forward


def test_integers_for_weights_have_bytes_too():
    # "Least traffic: 65 kB", of an int8 kernel of 16.8 MB.
    layer = layers.Dense(64, name="dense")
    model = keras.Sequential([layers.Input((32,)), layer])
    before = costs.per_step(model, 1, False).loc["dense"].bytes
    with warnings.catch_warnings(action="ignore"):  # of Keras's own
        layer.quantize("int8")
    after = costs.per_step(model, 1, False).loc["dense"].bytes
    assert before > after > 64 * 32
