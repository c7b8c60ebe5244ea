"""Policies that are not effective, planted in models of a user's own; each asks a child process."""

import json
from importlib.util import find_spec

import pytest
from forked import python
from support import PROJECT

from mptexp.spec.policies import share_mark
from mptexp.spec.run import Run
from mptexp.training import effective_arithmetic

BACKENDS = ("tensorflow", "jax")

OWN = """
import keras
from keras import layers, ops

HEAD = layers.Activation("softmax", dtype="float32")

@keras.saving.register_keras_serializable()
class Block(layers.Layer):
    "A layer made of layers, whose types nothing but itself shows."
    def __init__(self, inner, **settings):
        super().__init__(**settings)
        self.first = layers.Conv2D(8, 3, padding="same", dtype=inner)
        self.second = layers.Conv2D(8, 3, padding="same", dtype=inner)
    def call(self, x):
        return self.second(ops.relu(self.first(x)))

class Casts(keras.Model):
    "Says bfloat16 and computes in float32."
    def __init__(self, classes):
        super().__init__()
        self.out = layers.Dense(classes, dtype="float32")
        self.kernel = None
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 64), name="kernel")
        self.built = True
    def call(self, x):
        x = ops.matmul(ops.cast(x, "float32"), ops.cast(self.kernel, "float32"))
        return ops.softmax(self.out(ops.relu(x)))

def _ended(inputs, x, classes, dtype=None):
    x = layers.GlobalAveragePooling2D(dtype=dtype)(x)
    return keras.Model(inputs, HEAD(layers.Dense(classes)(x)))

def nested(shape, classes):
    inputs = layers.Input(shape)
    return _ended(inputs, Block("float32")(inputs), classes)

def nested_and_followed(shape, classes):
    inputs = layers.Input(shape)
    x = Block("float32")(inputs)
    return _ended(inputs, layers.Conv2D(8, 3, padding="same")(x), classes)

def casting(shape, classes):
    inputs = layers.Input(shape)
    return keras.Model(inputs, Casts(classes)(layers.Flatten()(inputs)))

def pinned_convolutions(shape, classes):
    x = inputs = layers.Input(shape)
    for _ in range(2):
        x = layers.Conv2D(16, 3, activation="relu", dtype="float32")(x)
    return _ended(inputs, x, classes)

def pinned(shape, classes):
    head = layers.Dense(classes, activation="softmax", dtype="float32")
    return keras.Sequential([layers.Flatten(), head])

def half(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Conv2D(8, 3, padding="same", dtype="mixed_float16")(inputs)
    return _ended(inputs, layers.Conv2D(8, 3, padding="same")(x), classes)

def unused(shape, classes):
    "A large product in bfloat16 that nothing depends on, beside the others in float32."
    class Beside(layers.Layer):
        def call(self, x):
            large = ops.ones((256, 256), "bfloat16")
            ops.matmul(large, large)
            return ops.cast(x, "float32")
    x = inputs = layers.Input(shape)
    x = layers.Conv2D(8, 3, dtype="float32")(Beside(dtype="float32")(x))
    return _ended(inputs, x, classes)

def looped(shape, classes):
    "Sixteen passes of a loop in float32, then a product of the size of one in bfloat16."
    inputs = layers.Input(shape)
    x = layers.Reshape((shape[0], -1))(inputs)
    x = layers.SimpleRNN(64, dtype="float32")(x)
    return keras.Model(inputs, HEAD(layers.Dense(classes)(layers.Dense(64)(x))))

def small_weights(shape, classes):
    "Most weights stay in float32 under a policy that promises bfloat16."
    x = layers.Flatten()(inputs := layers.Input(shape))
    x = layers.Dense(64, dtype="mixed_bfloat16")(x)
    return keras.Model(inputs, HEAD(layers.Dense(classes)(x)))

def no_products(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Rescaling(1.0)(layers.Flatten()(inputs))
    return keras.Model(inputs, HEAD(x[:, :classes]))

def residual(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    for stride in (1, 2):
        y = layers.BatchNormalization()(layers.Conv2D(8, 3, stride, "same")(x))
        y = layers.DepthwiseConv2D(3, padding="same")(layers.Activation("relu")(y))
        x = layers.Add()([layers.Conv2D(8, 1, stride)(x), y])
    return _ended(inputs, x, classes)

def attentive(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Dense(32)(layers.Reshape((shape[0], -1))(inputs))
    x = layers.MultiHeadAttention(2, 16)(x, x)
    x = layers.GlobalAveragePooling1D()(layers.EinsumDense("abc,cd->abd", (None, 8))(x))
    return keras.Model(inputs, HEAD(layers.Dense(classes)(x)))

@keras.saving.register_keras_serializable()
class Feed(layers.Layer):
    "Dense layers that nothing but itself shows."
    def __init__(self, **settings):
        super().__init__(**settings)
        self.first, self.second = layers.Dense(64, "relu"), layers.Dense(32)
    def call(self, x):
        return self.second(self.first(x))

def feeding(shape, classes):
    "Most of it in a layer of Dense layers; the rest in a convolution and a head in float32."
    inputs = layers.Input(shape)
    x = layers.Reshape((shape[0], -1))(layers.Conv2D(4, 3, padding="same")(inputs))
    x = layers.GlobalAveragePooling1D()(Feed()(x))
    return keras.Model(inputs, HEAD(layers.Dense(classes, dtype="float32")(x)))

def rewritten(shape, classes):
    "A rewriter of graphs, which turns float32 into bfloat16 after all types were read."
    import tensorflow as tf
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
    return residual(shape, classes)

def floatx(shape, classes):
    keras.config.set_floatx("float16")
    return residual(shape, classes)
"""

PROGRAM = """
import json, random, sys
import numpy as np
from mptexp.spec.run import Run
from mptexp.training import precision

answers = []
run = Run(**{"image_size": 16, "batch_size": 4, **json.loads(sys.argv[1])})
where = precision.use(run)
import keras
from mptexp.training import effective_arithmetic, costs, effective_settings, models

def state(model):
    weights = [np.asarray(v).tolist() for v in model.variables]
    return [weights, random.getstate(), np.random.get_state()[1].tolist()]

for name in sys.argv[2].split():
    try:
        asked = run.model_copy(update={"model": name})
        model = models.build(asked, (16, 16, 1), 10)
        precision.compile_model(model, asked)
        before = state(model)
        settings = effective_settings.effective(model, asked, where)
        settings |= effective_arithmetic.of_step(
            asked, model, effective_arithmetic.products(asked, model))
        settings["changed"] = state(model) != before
        marks = effective_arithmetic.flags(asked, settings)
        assert (effective_arithmetic.TRUNCATED in marks) is bool(settings.get("truncated"))
        lacking = [m for m in marks if m.startswith("oneDNN has no")]
        assert bool(lacking) is bool(settings.get("reference"))
        of_this_cpu = {effective_arithmetic.TRUNCATED, *lacking}
        settings["marks"] = [m for m in marks if m not in of_this_cpu]
        batch = effective_arithmetic._batch(asked, model)
        products = precision.backend(asked.backend).products(model, batch, asked.phase == "train")
        settings["flops"] = sum(flops for _, flops in products)
        known = costs.per_step(model, 4, asked.phase == "train")
        kinds = known.kind.str.contains("Conv|Dense|Attention")
        settings["known_flops"] = float(known.flops[kinds].sum(skipna=False))
    except Exception as error:
        settings = {"error": f"{type(error).__name__}: {error}"}
    answers.append(settings)
print(json.dumps(answers))
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """What a process answers for models of this module under one policy, by name."""
    (tmp_path / "mynets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))

    def asked(names, environ=None, **parameters):
        models = [n if n in ("keydana_cnn", "mlp") else f"mynets:{n}" for n in names.split()]
        done = python(PROGRAM, parameters, " ".join(models), **(environ or {}))
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout.splitlines()[-1])
        return dict(zip(names.split(), answers, strict=True))

    return asked


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_policy_without_any_effect_is_unsupported(ask, backend):
    said = ask("casting pinned unused", backend=backend, policy="mixed_bfloat16")
    for name in ("casting", "pinned"):
        assert said[name]["error"] == (
            "Unsupported: policy mixed_bfloat16 has no effect on this model: all of its products "
            "compute in float32, not in bfloat16"
        )
    # The last layer is in bfloat16; the large product that nothing depends on does not count.
    assert 0 < said["unused"]["effective_share"] < 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_policy_with_a_part_of_its_effect_says_which(ask, backend):
    names = "nested nested_and_followed pinned_convolutions looped"
    said = ask(names, backend=backend, policy="mixed_bfloat16")
    for name in names.split():
        share = said[name]["effective_share"]
        assert said[name]["arithmetic"] == pytest.approx({"bfloat16": share, "float32": 1 - share})
        assert said[name]["marks"] == [share_mark(share, "arithmetic", "bfloat16")], name
    assert said["nested"]["effective_share"] < 0.01
    assert said["pinned_convolutions"]["effective_share"] < 0.01
    # Two of three convolutions are in float32; the first has no gradient of its input.
    assert 0.4 < said["nested_and_followed"]["effective_share"] < 0.6
    assert said["looped"]["effective_share"] < 0.1


@pytest.mark.parametrize("backend", [*BACKENDS, "torch"])
def test_the_products_of_quantized_layers_are_float8_wherever_they_are(ask, backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    said = ask("mlp feeding attentive", backend=backend, policy="float8")
    assert said["mlp"]["arithmetic"] == {"float8_e4m3fn": 1}
    assert said["mlp"]["quantized_layers"] == ["dense", "dense_1", "dense_2"]
    for name in ("mlp", "feeding", "attentive"):
        assert said[name]["probe"] == {"product": "float8_e4m3fn", "convolution": "bfloat16"}
        assert said[name]["weights"] == {"float32": 1}
        assert (said[name]["emulated"], said[name]["native_products"]) == (True, 0)
        assert said[name]["changed"] is False
    # Forward and two gradients of Dense(64) and Dense(32) at 16 places, forward and one of 9 x 4
    # products at 256 pixels, and a head in float32.
    dense, convolution, head = 3 * 16 * 2 * 64 * 96, 2 * 256 * 2 * 36, 3 * 2 * 32 * 10
    share = dense / (dense + convolution + head)
    assert said["feeding"]["arithmetic"]["float8_e4m3fn"] == pytest.approx(share)
    assert said["feeding"]["effective_share"] == pytest.approx(share)
    assert said["feeding"]["marks"] == ["93 % of the arithmetic in float8_e4m3fn"]
    assert len(said["feeding"]["quantized_layers"]) == 2
    assert said["attentive"]["effective_share"] > 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_float8_on_a_network_of_convolutions_is_unsupported(ask, backend):
    said = ask("keydana_cnn no_products pinned", backend=backend, policy="float8")
    for name in said:
        assert said[name]["error"] == (
            "Unsupported: policy float8 quantizes Dense and EinsumDense layers, which do 0 % of "
            "this model's FLOPs; allowed: a model in which they do 50 % or more, such as gpt, vit "
            "or mlp"
        )


def test_adam_in_pure_float16_is_marked():
    def marks(**parameters):
        settings = {"arithmetic": {"float16": 1}, "weights": {"float16": 1}, "loss_scale": "none"}
        return effective_arithmetic.flags(Run(policy="float16", **parameters), settings)

    assert marks(optimizer="adam") == [effective_arithmetic.FLOAT16_ADAM]
    assert marks(optimizer="sgd") == marks(optimizer="adam", phase="inference") == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_within_float32_has_no_loss_scale_and_says_so(ask, backend):
    said = ask("half", backend=backend, policy="float32")["half"]
    assert said["loss_scale"] == "none"
    share = said["arithmetic"]["float32"]
    assert said["marks"] == [
        share_mark(share, "arithmetic", "float32"),
        effective_arithmetic.UNSCALED,
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("phase", ["train", "inference"])
def test_healthy_models_are_effective_and_stay_as_they_are(ask, backend, phase):
    names = "keydana_cnn mlp residual attentive"
    said = ask(names, backend=backend, policy="mixed_float16", phase=phase, augmentation="flip")
    for name in names.split():
        # JAX computes two gradients of attention from scores that it keeps in float32.
        kept = name == "attentive" and backend == "jax" and phase == "train"
        assert said[name]["effective_share"] == (pytest.approx(0.94, abs=0.01) if kept else 1)
        assert said[name]["marks"] == ["94 % of the arithmetic in float16"] * kept
        assert said[name]["weights"] == {"float32": 1}
        assert said[name]["probe"] == {"product": "float16", "convolution": "float16"}
        assert said[name]["changed"] is False
    # Counted from the shapes of layers, without the program.
    for name in ("keydana_cnn", "mlp"):
        assert said[name]["flops"] == pytest.approx(said[name]["known_flops"])


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_pytorch_counts_a_pass_and_puts_back_what_it_changed(ask):
    said = ask("keydana_cnn mlp casting", backend="torch", policy="mixed_bfloat16")
    for name in ("keydana_cnn", "mlp"):
        assert said[name]["arithmetic"] == {"bfloat16": 1}
        assert said[name]["changed"] is False
        assert said[name]["flops"] == pytest.approx(said[name]["known_flops"])
    assert said["casting"]["error"].startswith("Unsupported: policy mixed_bfloat16 has no effect")


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_read_back_too(ask, backend):
    said = ask("small_weights no_products", backend=backend, policy="bfloat16")
    share = said["small_weights"]["weights"]["bfloat16"]
    assert share < 0.1
    assert said["small_weights"]["marks"] == [share_mark(share, "weights", "bfloat16")]
    assert said["no_products"]["effective_share"] is None
    assert said["no_products"]["marks"] == [effective_arithmetic.NO_PRODUCTS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_own_file_does_not_change_float32(ask, backend, tmp_path):
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "epsilon": 0.01}')
    environ = {"KERAS_HOME": str(tmp_path)}
    said = ask("residual floatx", environ, backend=backend, policy="float32")
    assert said["residual"]["arithmetic"] == {"float32": 1}
    assert said["residual"]["floatx"] == "float32"
    assert said["residual"]["marks"] == []
    refused = "SettingNotApplied: floatx is float16, but the run asked for float32"
    assert said["floatx"]["error"] == refused


def test_a_graph_that_is_rewritten_is_seen_by_the_probe(ask):
    # TensorFlow rewrites where it uses oneDNN, which it leaves off on a CPU without AVX512_VNNI.
    with_onednn = {"TF_ENABLE_ONEDNN_OPTS": "1"}
    said = ask("rewritten", with_onednn, policy="float32")["rewritten"]["error"]
    assert said.startswith("Unsupported: float32 is asked for, but a product here computes in bfl")


def test_a_reading_below_the_promise_names_the_variables(monkeypatch):
    monkeypatch.setattr(
        effective_arithmetic.environment,
        "GIVEN",
        {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "OTHER": "1"},
    )
    with pytest.raises(
        effective_arithmetic.Unsupported, match=r"sets ONEDNN_DEFAULT_FPMATH_MODE=BF16$"
    ):
        effective_arithmetic._refuse_lossy(
            "float32", {"product": "float32", "convolution": "bfloat16"}
        )
    effective_arithmetic._refuse_lossy("tensorfloat32", {"product": "tensorfloat32"})
    effective_arithmetic._refuse_lossy("bfloat16", {"product": "9 bits"})


def test_a_share_just_below_the_limit_is_not_rounded_up():
    run = Run(policy="mixed_bfloat16")
    settings = {"arithmetic": {"bfloat16": 0.9499}, "weights": {"float32": 1.0}, "loss_scale": 1.0}
    assert effective_arithmetic.flags(run, settings) == ["94 % of the arithmetic in bfloat16"]
    settings["arithmetic"] = {"bfloat16": 0.95, "float32": 0.05}
    assert effective_arithmetic.flags(run, settings) == []


@pytest.mark.parametrize(("gradient", "moves"), [(0.0054, 1.5), (0.0056, 0.001)])
def test_adam_in_float16_loses_small_gradients_from_its_second_moment(gradient, moves):
    import keras

    weight = keras.Variable([0.0], dtype="float16")
    adam = keras.optimizers.Adam(1e-3)
    adam.build([weight])
    adam.apply([keras.ops.convert_to_tensor([gradient], "float16")], [weight])
    assert -float(weight.numpy()[0]) == pytest.approx(moves, rel=0.3)


COMPILED = """\
%fused (param_0.1: bf16[8,4], param_1: bf16[4,2]) -> f32[8,2] {
  %param_0.1 = bf16[8,4]{1,0} parameter(0)
  %wide = f32[8,4]{1,0} convert(%param_0.1)
  %param_1 = bf16[4,2]{1,0} parameter(1)
  %wide.1 = f32[4,2]{1,0} convert(%param_1)
  ROOT %dot.1 = f32[8,2]{1,0} dot(%wide, %wide.1), lhs_contracting_dims={1}
}
  own = bf16[8,2]{1,0} dot(bf16[8,4]{1,0} param_0.1, bf16[4,2]{1,0} param_1)
  ROOT %convolution.7 = f16[1,2]{1,0} convolution(%image, %kernel), window={size=3x3}
"""


def test_a_program_of_xla_says_what_its_products_multiply_in():
    counted = effective_arithmetic.program_products(COMPILED)
    assert counted == {"float32": 1, "bfloat16": 1, "another type": 1}
    assert not effective_arithmetic.program_products("")


# Of a product in float8 by cuBLAS, two in fusions by Triton, whose operands XLA writes with their
# types or, of late, without; and two in other types, one of them of numbers that were float8.
NATIVE = """
  %cublas-gemm.1 = (bf16[16,16]{1,0}, s8[33554432]{0}) custom-call(%p0, %p1, %p2, %p3), \
custom_call_target="__cublas$lt$matmul$f8", backend_config={"gemm_backend_config":{"beta":0}}
  %a = f8e4m3fn[32,32]{1,0} parameter(0)
  %b = f8e5m2[32,32]{1,0} parameter(1)
  %dot.1 = bf16[32,32]{1,0} dot(f8e4m3fn[32,32]{1,0} %a, f8e5m2[32,32]{0,1} %b)
  ROOT %dot.2 = f32[32,32]{1,0} dot(%a, %a), lhs_contracting_dims={1}
  %c = bf16[32,32]{1,0} convert(%a)
  %dot.3 = bf16[32,32]{1,0} dot(%c, %c)
  %cublas-gemm.2 = (bf16[16,16]{1,0}) custom-call(%c, %c), custom_call_target="__cublas$lt$matmul"
"""


def test_only_products_in_float8_are_native():
    assert effective_arithmetic.native_products(NATIVE) == 3
    assert effective_arithmetic.native_products("") == 0


@pytest.mark.parametrize(
    ("phase", "native", "share"),
    [
        ("train", 0, 0.8),
        ("train", 4, 0.4),
        ("train", 8, 0.8),
        ("train", 9, 0.8),
        ("inference", 1, 0.8 / 3),
        ("inference", 3, 0.8),
    ],
)
def test_where_products_of_three_layers_are_native_in_part_their_share_says_it(
    phase, native, share
):
    # The lie: a single product that XLA folded made all of them native.
    run = Run(policy="float8", model="mlp", phase=phase)
    made = {"native_products": native, "quantized_layers": ["a", "b", "c"]}
    found = effective_arithmetic._multiplied(run, {"float8_e4m3fn": 0.8, "bfloat16": 0.2}, made)
    assert found == pytest.approx({"float8_e4m3fn": share, "bfloat16": 1 - share})
    assert effective_arithmetic._multiplied(Run(), {"float32": 1.0}, {}) == {"float32": 1.0}
