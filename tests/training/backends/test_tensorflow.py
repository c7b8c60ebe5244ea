"""What only TensorFlow does; replicas, gradients and traces have tests of their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from mptexp.spec.run import Run
from mptexp.training import effective_arithmetic
from mptexp.training.backends import tensorflow
from mptexp.training.measure import profiler


def test_tf32_is_set_and_read_back():
    before = tensorflow.tf32()
    try:
        for enabled in (False, True):
            tensorflow.set_tf32(enabled)
            assert tensorflow.tf32() is enabled
    finally:
        tensorflow.set_tf32(before)


def test_batches_are_a_pipeline_in_order():
    x, y = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1), np.arange(6)
    order = np.array([[5, 0, 1], [1, 4, 2]])
    pipeline = tensorflow.batches(x, y, order)
    assert pipeline.element_spec[0].shape == (3, 2, 2, 1)
    given = list(pipeline.as_numpy_iterator())
    assert [labels.tolist() for _, labels in given] == order.tolist()
    assert (given[0][0] == x[order[0]]).all()
    assert len(list(tensorflow.placeholders(3, 2))) == 2


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"cpu_isa": "avx2", "jit": "on"}, "XLA leaves only some products"),
        ({"cpu_isa": "avx2"}, "TF_ENABLE_ONEDNN_OPTS=0 turns off"),
        ({"cpu_isa": "sse41", "policy": "mixed_bfloat16"}, "instructions in which it has no bf"),
        ({"cpu_isa": "avx512_core", "policy": "bfloat16"}, "TF_ENABLE_ONEDNN_OPTS=0 turns off"),
        ({"policy": "float16"}, "no channels_first convolution in float16"),
        ({"policy": "float16", "jit": "on"}, ""),
        ({}, ""),
    ],
)
def test_what_it_cannot_do_is_a_sentence(parameters, reason, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    told = tensorflow.unsupported(Run(**parameters), "cpu", "channels_first")
    assert (reason in told) if reason else told == ""


def test_a_trace_wants_kernels_one_by_one(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--before")
    tensorflow.prepare_environment(Run())
    assert tensorflow.os.environ["XLA_FLAGS"] == "--before"
    tensorflow.prepare_environment(Run(profile=True))
    assert tensorflow.os.environ["XLA_FLAGS"] == "--before --xla_gpu_enable_command_buffer="


@pytest.mark.parametrize(
    ("run", "turned_on"),
    [(Run(), False), (Run(data_format="channels_first"), True), (Run(cpu_isa="avx2"), True)],
)
def test_onednn_is_on_where_a_run_needs_it(run, turned_on, monkeypatch):
    # On a CPU without AVX512_VNNI channels_first failed: "Conv2D … only supports NHWC".
    monkeypatch.setattr(tensorflow.capability, "driver", lambda: None)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    tensorflow.prepare_environment(run)
    assert tensorflow.os.environ.get("TF_ENABLE_ONEDNN_OPTS") == ("1" if turned_on else None)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)


def test_sums_of_gradients_are_told_with_their_terms():
    def regularizer(weights):
        return 1e-3 * keras.ops.sum(keras.ops.tanh(weights))

    layer = keras.layers.Dense(2, kernel_regularizer=regularizer, name="dense")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse", jit_compile=False)
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    ((name, terms),) = effective_arithmetic.sums(tensorflow.graph(model, batch)).items()
    assert name.startswith("AddN")
    assert {term.rpartition(":")[2] for term in terms} == {"TanhGrad", "MatMul"}


def test_what_is_computed_anew_is_told_from_what_the_loss_adds():
    class Again(keras.layers.Layer):
        def call(self, x):
            return tf.recompute_grad(lambda x: tf.sinh(x) * tf.roll(x, 1, 1))(x)

    layers = [Again(), keras.layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1")]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    with profiler.named(model):
        nodes = tensorflow.graph(model, batch)
    found = effective_arithmetic.recomputed(nodes)
    assert {"Sinh", "Roll", "gradient_tape/Roll"} <= set(found)
    assert not {"Square", "Sum", "Abs", "gradient_tape/Sign"} & set(found)
    model.layers[1].call = lambda x: x  # with the loss alone
    with profiler.named(model):
        nodes = tensorflow.graph(model, batch)
    assert {name.rpartition("/")[2] for name in effective_arithmetic.recomputed(nodes)} <= {
        "AddN",
        "Identity",
    }


def test_clipping_within_a_gradient_is_of_the_backward_pass():
    # The lie: "clipping of gradients, averages of weights", of what Keras' float8 rounds gradients
    # with between two layers.
    layers = [keras.layers.Dense(3), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    for layer in layers:
        layer.quantize("float8")
    model.compile(keras.optimizers.SGD(clipvalue=0.5), "mse", jit_compile=False)
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    with profiler.named(model):
        found = effective_arithmetic.recomputed(tensorflow.graph(model, batch))
    assert {"clip_by_value", "clip_by_value/Minimum"} <= set(found)


def test_layers_that_compute_in_64_bits_are_known_by_the_graph():
    # Statistics in float64 were called memory-bound work: of a trace's operations no type is known.
    class Wide(keras.layers.Layer):
        def call(self, x):
            x = keras.ops.cast(x, "float64")
            return keras.ops.cast((x - keras.ops.mean(x)) / keras.ops.std(x), "float32")

    layers = [Wide(name="wide"), keras.layers.Dense(2, name="narrow")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    with profiler.named(model):
        nodes = tensorflow.graph(model, batch)
    assert effective_arithmetic.layers_in_float64(nodes) == ["wide"]


def test_layers_that_multiply_in_32_bits_are_known_by_the_graph_however_little_they_multiply():
    # Products of a sparse matrix in float32, a quarter of a step and few of its FLOPs, were no
    # cause: what the program computes in float32 was known by its FLOPs alone.
    class Wide(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(shape[-1], 3))

        def call(self, x):
            return keras.ops.cast(tf.matmul(tf.cast(x, "float32"), self.table), x.dtype)

    mixed = {"dtype": "mixed_bfloat16"}
    layers = [Wide(name="wide", **mixed), keras.layers.Dense(2, name="narrow", **mixed)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    with profiler.named(model):
        nodes = tensorflow.graph(model, batch)
    assert effective_arithmetic.wide_products(nodes, "mixed_bfloat16") == {"wide": "float32"}
    assert effective_arithmetic.wide_products(nodes, "float32") == {}


def test_the_products_of_a_step_with_the_loss_of_ctc_are_counted():
    # Its loop is a function of TensorFlow 1, which keeps no graph: once "AttributeError".
    class Ctc(keras.layers.Layer):
        def call(self, x):
            labels, sizes = tf.ones((2, 3), tf.int32), tf.fill([2], 3)
            lost = tf.nn.ctc_loss(labels, x, sizes, sizes * 3, logits_time_major=False)
            self.add_loss(tf.reduce_mean(lost))
            return x

    model = keras.Sequential([keras.Input((9, 5)), keras.layers.Dense(4), Ctc()])
    model.compile("sgd", "mse", jit_compile=False)
    batch = np.ones((2, 9, 5), "float32"), np.ones((2, 9, 4), "float32")
    products = tensorflow.products(model, batch, True)
    assert ("float32", 2 * 2 * 9 * 5 * 4) in products


def test_the_output_of_a_frozen_layer_is_used_where_it_is_measured_alone():
    # Pruned away once: 0.05 ms, for a convolution of 30 ms.
    layer = keras.layers.Dense(3)
    layer.build((4, 5))
    layer.trainable = False
    function, x = tensorflow.layer_gradients(
        layer, layer, [np.ones((4, 5), "float32")], False, False
    )
    y, gradients = function(x)
    assert y.shape == (4, 3)
    assert gradients == []


@pytest.mark.parametrize("with_inputs", [False, True])
def test_a_layer_alone_computes_its_output_too(with_inputs):
    # The lie: "seconds, forward and backward", of the backward pass alone: of what is linear no
    # gradient needs the output, whose product was pruned.
    layer = keras.layers.Dense(3)
    layer.build((4, 5))
    inputs = [tf.ones((4, 5))]
    function, x = tensorflow.layer_gradients(layer, layer, inputs, with_inputs, False)
    context.enable_run_metadata()
    function(x)
    graphs = context.export_run_metadata().function_graphs
    context.disable_run_metadata()
    ran = [node.op for graph in graphs for node in graph.post_optimization_graph.node]
    assert sum("MatMul" in op for op in ran) == 2 + with_inputs


def test_the_products_of_a_recurrent_layer_of_cudnn_are_counted():
    # The lie: "all of its products compute in float32", of an LSTM in float16 beside its head.
    tf = tensorflow.tf
    with tf.Graph().as_default():
        tf.raw_ops.CudnnRNN(
            input=tf.zeros((7, 4, 3), tf.float16),
            input_h=tf.zeros((1, 4, 5), tf.float16),
            input_c=tf.zeros((1, 4, 5), tf.float16),
            params=tf.zeros((180,), tf.float16),
            rnn_mode="lstm",
            is_training=True,
        )
        (op,) = (op for op in tf.compat.v1.get_default_graph().get_operations() if "RNN" in op.type)
    assert tensorflow._flops(op, 4) == 2 * 7 * 4 * 180
