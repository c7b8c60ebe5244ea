"""Vision transformer and decoder: published sizes, causality, initial weights."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from mptexp.errors import ParamsError
from mptexp.spec.run import Run
from mptexp.training import costs, models
from mptexp.training.transformers import Attention, Normal

TINY = {"model": "gpt", "dataset": "hamlet", "width": 1 / 24, "depth": 2, "sequence_length": 16}


def tiny(**parameters):
    return models.build(Run(**TINY | parameters), (16,), 256)


def test_the_published_numbers_of_parameters(monkeypatch):
    # 146 million weights, whose values nobody looks at.
    monkeypatch.setattr(Normal, "__call__", lambda self, shape, dtype=None: ops.zeros(shape, dtype))
    assert models.build(Run(model="vit", width=2), (224, 224, 3), 1000).count_params() == 22_050_664
    run = Run(model="gpt", dataset="hamlet", sequence_length=1024)
    table = costs.table(models.build(run, (1024,), 50_257))
    assert table.parameters.sum() == 124_439_808
    # 6 FLOPs for each weight but positions and biases, and attention's 12 x depth x width x time.
    kernels = 12 * (12 * 768**2) + 50_257 * 768
    per_token = 6 * kernels + 12 * 12 * 768 * 1024
    products = table[table.kind.isin(["Dense", "Attention", "Vocabulary"])]
    assert products.flops_training.sum() / 1024 == pytest.approx(per_token, rel=1e-9)
    assert not table.flops_forward.isna().any()


def test_the_head_computes_in_the_policys_type(policy):
    policy("mixed_bfloat16")
    model = tiny()
    head = model.layers[-1].input
    assert (head.dtype, model.output.dtype) == ("bfloat16", "float32")
    fallback = tiny(float32_layers="vocabulary")
    given = np.ones((1, 16, 32), np.float32)
    assert fallback.get_layer("vocabulary")(given, reverse=True).dtype == "float32"


def test_the_sequence_has_no_part_in_the_size_and_an_untied_head_has():
    assert tiny().count_params() == tiny(sequence_length=32).count_params()
    assert tiny(tied_head=False).count_params() - tiny().count_params() == 256 * 32
    assert tiny().output_shape == (None, 16, 256)


def test_a_later_token_changes_no_earlier_prediction():
    model, random = tiny(), np.random.default_rng(0)
    for weight in model.trainable_variables:  # far from a beginning that predicts next to nothing
        weight.assign(random.normal(0, 0.2, weight.shape).astype("float32"))
    x = random.integers(0, 256, (1, 16)).astype("int32")
    other = x.copy()
    other[0, 9] = (x[0, 9] + 1) % 256
    before, after = (model.predict(part, verbose=0)[0] for part in (x, other))
    assert np.array_equal(before[:9], after[:9])
    assert (np.abs(before[9:] - after[9:]).max(axis=1) > 1e-4).all()


def test_attention_is_the_softmax_of_the_scaled_products():
    x = np.random.default_rng(1).normal(size=(2, 5, 3 * 8)).astype("float32")
    got = np.asarray(Attention(heads=2, causal=True)(x))
    for batch in range(2):
        for head in range(2):
            q, k, v = (x[batch, :, 8 * part + 4 * head :][:, :4] for part in range(3))
            scores = np.where(np.tri(5, dtype=bool), q @ k.T / math.sqrt(4), -np.inf)
            weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            assert np.allclose(got[batch, :, 4 * head : 4 * head + 4], weights @ v, atol=1e-5)


def test_initial_weights_are_cut_off_and_smaller_where_the_residual_path_ends():
    values = np.asarray(Normal(0.02, seed=3)((200, 200)))
    assert 0.039 < np.abs(values).max() <= 0.04
    assert values.std() == pytest.approx(0.02 * 0.88, rel=0.02)  # of a normal cut off at 2
    assert np.array_equal(values, np.asarray(Normal(0.02, seed=3)((200, 200))))
    kernels = [layer.kernel for layer in tiny().layers if isinstance(layer, keras.layers.Dense)]
    spread = [round(float(np.std(np.asarray(kernel))), 3) for kernel in kernels]
    assert (
        spread == [0.018, 0.009, 0.018, 0.009] * 2
    )  # half: the root of 2 ends in each of 2 blocks


def test_the_first_loss_is_that_of_a_choice_among_all_tokens():
    model = tiny()
    x = np.random.default_rng(2).integers(0, 256, (8, 16)).astype("int32")
    y = np.roll(x, 1, axis=1)  # of its own token a tied head knows more
    loss = keras.losses.sparse_categorical_crossentropy(y, model.predict(x, verbose=0))
    assert float(np.mean(loss)) == pytest.approx(math.log(256), rel=0.01)


@pytest.mark.parametrize(
    ("parameters", "features"),
    [
        ({"width": 0.1}, 128),  # 77: more than a head
        ({"width": 1 / 24}, 32),
        ({"width": 0.25}, 192),
        ({"width": 0.05, "width_multiple": 16}, 48),
        ({"width": 0.25, "width_multiple": 128}, 256),
    ],
)
def test_the_width_is_whole_heads_or_a_single_smaller_one(parameters, features):
    assert tiny(depth=1, **parameters).get_layer("positions").positions.shape == (1024, features)


def test_patches_that_do_not_divide_the_image_are_refused():
    with pytest.raises(ParamsError, match="patch_size 5 with model vit, which cuts images of 28 x"):
        Run(model="vit", image_size=28, patch_size=5)
    run = Run(model="vit", width=0.1, image_size=28, patch_size=7, depth=1)
    small = models.build(run, (28, 28, 1), 10)
    assert small.get_layer("positions").positions.shape == (17, 19)
