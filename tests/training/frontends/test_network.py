"""What a native loop has no counterpart of is refused in a sentence."""

import pytest


@pytest.fixture(scope="module")
def said(side_by_side):
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    names = ("normed", "curved", "heavy", "frozen", "wide", "twice", "fused")
    models = [{"model": f"mynets:{name}", "from_logits": name != "fused"} for name in names]
    told = side_by_side({"backend": "jax", "width": 1}, *models)
    return dict(zip(names, told, strict=True))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("normed", "group_normalization in model mynets:normed is a GroupNormalization, of which"),
        ("curved", "conv2d in model mynets:curved has activation gelu, which no plain loop here"),
        ("heavy", "conv2d in model mynets:heavy has kernel_regularizer"),
        ("frozen", "conv2d in model mynets:frozen has trainable False"),
        ("wide", "dense in model mynets:wide is a Dense of an input with 4 axes, of which no"),
        ("twice", "in model mynets:twice is used 2 times; take frontend keras"),
        ("fused", "model mynets:fused ends in dense; a plain loop takes the loss of logits"),
    ],
)
def test_it_names_layer_and_setting(said, name, sentence):
    assert said[name]["error"].startswith("frontend native: ")
    assert sentence in said[name]["error"]
