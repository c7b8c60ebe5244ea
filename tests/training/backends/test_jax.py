"""What only JAX does; replicas, gradients and traces have tests of their own."""

import os

import pytest
from forked import python

from mptexp.spec.run import Run
from mptexp.training import capability
from mptexp.training.backends import jax


def test_flags_are_added_to_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--before")
    jax.prepare_environment(Run())
    assert os.environ["XLA_FLAGS"] == "--before"
    assert not jax.is_deterministic()
    jax.prepare_environment(Run(deterministic=True, profile=True))
    flags = os.environ["XLA_FLAGS"].split()
    assert flags == ["--before", jax.DETERMINISTIC, "--xla_gpu_enable_command_buffer="]
    assert jax.is_deterministic()


def test_memory_is_limited_as_a_share_of_the_gpus(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
    for memory, share in ((8 * 10**9, "0.2500"), (10**9, "1.0000")):
        monkeypatch.setattr(jax.capability, "gpu_memory_bytes", lambda memory=memory: memory)
        jax.limit_memory(2 * 10**9, 1)
        assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == share
    # Of a memory that is not known there is no share: the limit was none, without a word.
    monkeypatch.setattr(jax.capability, "gpu_memory_bytes", lambda: None)
    with pytest.raises(capability.Unsupported, match="NVML does not say how much"):
        jax.limit_memory(2 * 10**9, 1)


def test_tf32_is_set_and_read_back():
    framework = pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    before = framework.config.jax_default_matmul_precision
    try:
        for enabled in (False, True):
            jax.set_tf32(enabled)
            assert jax.tf32() is enabled
    finally:
        framework.config.update("jax_default_matmul_precision", before)
    assert jax.tf32() is (before in (None, "default", "tensorfloat32"))


def test_a_limit_on_onednn_is_unsupported():
    assert "to which JAX leaves" in jax.unsupported(Run(cpu_isa="avx2"), "cpu", "channels_last")
    assert jax.unsupported(Run(jit="on", replicas=2), "cpu", "channels_last") == ""


@pytest.mark.parametrize("frontend", ["keras", "native"])
def test_attention_in_float16_on_a_cpu_is_unsupported(frontend):
    run = Run(backend="jax", frontend=frontend, policy="mixed_float16", model="vit")
    assert "not compile in float16 on a CPU" in jax.unsupported(run, "cpu", "channels_last")
    assert jax.unsupported(run, "gpu", "channels_last") == ""
    for other in ({"policy": "mixed_bfloat16"}, {"model": "mlp"}, {"jit": "off"}):
        assert jax.unsupported(run.model_copy(update=other), "cpu", "channels_last") == ""


ALONE = """\
import keras
from mptexp.training.backends import jax
layer = keras.layers.Dense(256, dtype="mixed_bfloat16")
layer.build((128, 512))
inputs = [keras.ops.ones((128, 512), "bfloat16")]
for with_inputs in (False, True):
    function, *args = jax.layer_gradients(layer, layer, inputs, with_inputs, True)
    program = function.lower(*args).as_text().splitlines()
    products = [line for line in program if "dot_general" in line]
    print(len(products), sum("xf32" in line for line in products))
    kept = function.lower(*args).compile().cost_analysis()["flops"]
    print(round(kept / (2 * 128 * 512 * 256)))
"""


def test_a_layer_alone_computes_its_output_too():
    # The lie: "seconds, forward and backward", of the backward pass alone: of what is linear no
    # gradient needs the output, whose product XLA left out. And under a mixed policy in float32.
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    done = python(ALONE, {"backend": "jax"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2", "0", "2", "3", "0", "3"]
