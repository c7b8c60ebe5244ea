"""A plain loop beside Keras: the same loss, gradients, updates, products and validation."""

import numpy as np
import pytest

MODELS = ("keydana_cnn", "mlp_bn", "mynets:every", "mynets:ranks", "lenet")
STEPS = 12  # of which the last is in the second epoch


def told(side_by_side, backend, policy, names=MODELS):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    shared = {"backend": backend, "policy": policy, "epochs": 2, "max_steps": STEPS}
    sgd = {"optimizer": "sgd", "learning_rate": 0.01}
    own = {"from_logits": True, "width": 1.0}
    each = [
        {"model": n, **(own if ":" in n else {}), **(sgd if n != "lenet" else {})} for n in names
    ]
    return dict(zip(names, side_by_side(shared, *each), strict=True))


@pytest.fixture(scope="module", params=["jax", "torch"])
def float32(request, side_by_side):
    return told(side_by_side, request.param, "float32", (*MODELS, "mynets:lost"))


@pytest.mark.parametrize("name", MODELS)
def test_in_float32_it_is_keras(float32, name):
    said = float32[name]
    assert said["loss"] == pytest.approx(said["keras_loss"], rel=1e-5)
    assert said["gradients"] < 5e-5  # of their norm; PyTorch has a batch normalization of its own
    # After all steps; differences grow where a ReLU leaves a channel next to no variance.
    assert said["updates"] < (0.05 if name == "keydana_cnn" else 5e-3)
    assert said["flops"] == pytest.approx(1)
    assert said["arithmetic"] == {"float32": 1.0}
    assert said["alike"] == 1.0
    assert said["steps"] == STEPS
    assert said["scale"] is None
    assert said["settings"]["compute_dtype"] == said["settings"]["variable_dtype"] == "float32"


def test_its_history_has_what_keras_has(float32):
    known = {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "elapsed_s"}
    for name in MODELS:
        epochs, expected = float32[name]["epochs"], float32[name]["keras_loss_of_epoch"]
        assert [set(epoch) for epoch in epochs] == [known] * 2
        assert epochs[0]["loss"] == pytest.approx(expected, rel=1e-3)


def test_masks_of_dropout_are_its_own(float32):
    said = float32["mynets:lost"]
    assert said["loss"] == pytest.approx(said["keras_loss"], rel=0.5)
    assert said["alike"] == 1.0  # nothing is dropped in validation


def test_frameworks_begin_alike(side_by_side):
    torch, jax = (told(side_by_side, b, "float32", ["keydana_cnn"]) for b in ("torch", "jax"))
    jax, torch = jax["keydana_cnn"], torch["keydana_cnn"]
    assert jax["loss"] == pytest.approx(torch["loss"], rel=1e-5)
    largest = max(np.abs(np.concatenate(jax["values"])))
    for ours, theirs in zip(jax["values"], torch["values"], strict=True):
        assert ours == pytest.approx(theirs, abs=5e-5 * largest)


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision_computes_in_its_type(side_by_side, backend, dtype):
    said = told(side_by_side, backend, f"mixed_{dtype}", ["keydana_cnn"])["keydana_cnn"]
    assert said["loss"] == pytest.approx(said["keras_loss"], rel=0.01)
    assert 1e-6 < said["gradients"] < 0.1  # it rounds elsewhere than Keras
    assert said["updates"] < 0.2
    assert said["arithmetic"] == {dtype: 1.0}
    assert said["settings"]["compute_dtype"] == dtype
    assert said["settings"]["variable_dtype"] == "float32"
    if dtype == "bfloat16":
        assert said["scale"] is None
        return
    assert said["settings"]["loss_scale"] == 2**15
    scale, applied = said["scale"]
    assert scale * 2 ** (STEPS - applied) == 2**15


TRANSFORMERS = {
    "gpt": {"dataset": "hamlet", "sequence_length": 24},
    "vit": {"image_size": 16, "patch_size": 4},
}


def transformers(side_by_side, backend, policy):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    shared = {"backend": backend, "policy": policy, "epochs": 1, "max_steps": STEPS}
    shared |= {"width": 1 / 12, "batch_size": 64}
    each = [{"model": name, "depth": 2, **own} for name, own in TRANSFORMERS.items()]
    other = {"depth": 1, "tied_head": False, "learning_rate_decay": "cosine", "clip_norm": 0.5}
    each.append(each[0] | other)
    return side_by_side(shared, *each)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_transformers_in_float32_are_keras(side_by_side, backend):
    for said in transformers(side_by_side, backend, "float32"):
        assert said["loss"] == pytest.approx(said["keras_loss"], rel=1e-5)
        assert said["gradients"] < 5e-5
        assert said["updates"] < 5e-3  # of one, the rate decays and the gradients are clipped
        assert said["flops"] == pytest.approx(1)
        assert said["arithmetic"] == {"float32": 1.0}
        assert said["alike"] == 1.0


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_transformers_compute_in_bfloat16(side_by_side, backend):
    for said in transformers(side_by_side, backend, "mixed_bfloat16"):
        assert said["loss"] == pytest.approx(said["keras_loss"], rel=0.01)
        assert 1e-6 < said["gradients"] < 0.1
        assert said["arithmetic"]["bfloat16"] > 0.9  # JAX sums gradients of attention in float32


# --- inference ------------------------------------------------------------------------------------

# With batch normalization, a model within the model, dropout, sequences; a batch of one.
INFERRED = {
    "keydana_cnn": {},
    "mynets:every": {"from_logits": True, "width": 1.0},
    "mynets:lost": {"from_logits": True, "width": 1.0, "input_mode": "resident"},
    "mlp_bn": {"batch_size": 1, "max_steps": STEPS},
    "gpt": TRANSFORMERS["gpt"]
    | {"width": 1 / 12, "depth": 2, "batch_size": 64, "max_steps": STEPS},
    "vit": TRANSFORMERS["vit"] | {"width": 1 / 12, "depth": 2, "input_mode": "resident"},
}


def inferred(side_by_side, backend, names=tuple(INFERRED), **shared):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    shared = {"backend": backend, "phase": "inference", "epochs": 1} | shared
    each = [{"model": name, **INFERRED[name]} for name in names]
    return dict(zip(names, side_by_side(shared, *each), strict=True))


@pytest.fixture(scope="module", params=["jax", "torch"])
def predictions(request, side_by_side):
    return inferred(side_by_side, request.param, policy="float32")


@pytest.mark.parametrize("name", INFERRED)
def test_in_float32_it_predicts_what_keras_does(predictions, name):
    said = predictions[name]
    ours, theirs = said["shapes"]
    assert ours == theirs
    assert ours[0] == ours[1]  # of the row one batch is kept
    assert said["alone"] < 1e-5  # of their norm
    assert said["in_a_row"] < 1e-5
    assert said["last"] < 1e-5  # what is kept of the row is the batch that was predicted alone
    assert said["sum"] == pytest.approx(1)
    assert said["flops"] == pytest.approx(1)
    assert said["arithmetic"] == {"float32": 1.0}
    assert said["native"]["ended_by"] == said["keras"]["ended_by"]
    # How many windows the images make depends on the speed when their length was chosen.
    assert min(said[frontend]["windows"] for frontend in ("native", "keras")) >= 3


@pytest.mark.parametrize("name", INFERRED)
def test_predicting_makes_nothing_of_a_training_and_changes_no_weight(predictions, name):
    said = predictions[name]
    assert said["moved"] == 0
    assert said["trains"] is False
    assert said["settings"]["loss_scale"] == "none"
    assert said["settings"]["variable_dtype"] == "float32"


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision_predicts_in_its_type(side_by_side, backend, dtype):
    # Of attention in float16 JAX has no product on a CPU.
    names = [n for n in INFERRED if n not in TRANSFORMERS or dtype == "bfloat16"]
    for name, said in inferred(side_by_side, backend, names, policy=f"mixed_{dtype}").items():
        assert said["alone"] < 0.02, name  # it rounds elsewhere than Keras, if at all
        assert said["arithmetic"] == {dtype: 1.0}, name
        assert said["settings"]["compute_dtype"] == dtype
        assert said["settings"]["loss_scale"] == "none"
