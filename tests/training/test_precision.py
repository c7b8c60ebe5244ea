"""A policy belongs to a process, so most of these tests ask a child process."""

import json
import os
import subprocess
import sys

import pytest
from forked import python
from support import PROJECT

from mptexp.spec.devices import CPU_ISAS, cpuinfo
from mptexp.spec.policies import ARITHMETICS
from mptexp.spec.run import Run
from mptexp.training import capability, environment, onednn, precision

HAS = {name: flag in cpuinfo("flags", "Features").split() for name, flag in CPU_ISAS.items()}

PROGRAM = """
import json, sys
from mptexp.training import precision
from mptexp.training.effective import effective
from mptexp.spec.run import Run

def again(run):
    try:
        precision.use(run)
        return ""
    except Exception as error:
        return str(error)

run = Run(**{"width": 0.1, "image_size": 16, **json.loads(sys.argv[1])})
try:
    where = precision.use(run)
    from mptexp.training import models
    model = models.build(run, (16, 16, 1), 10)
    precision.compile_model(model, run)
    said = effective(model, run, where)
    said |= {"optimizer": model.optimizer.get_config()}
    said["again"] = [again(run.model_copy(update=json.loads(text))) for text in sys.argv[2:]]
except Exception as error:
    said = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(said))
"""


def ask(*parameters, **environ):
    """What a process says of the first parameters, and of a change to each of the others."""
    said = python(PROGRAM, *parameters, **environ)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


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
    ],
)
def test_what_is_asked_for_is_in_force(parameters, found):
    said = ask(parameters, parameters)
    assert said["again"] == [""]
    assert (said["compute_dtype"], said["variable_dtype"], said["loss_scale"]) == found
    assert said["head_dtype"] == "float32"
    assert said["jit"] is False
    assert said["deterministic"] is False
    assert said["default_policy"] == "float32"
    assert said["data_format"] == "channels_last"
    assert said["cpu_isa"] == "default"


def test_xla_is_on_where_it_is_asked_for():
    assert ask({"jit": "on"})["jit"] is True


def test_tf32_on_a_cpu_is_unsupported():
    assert (
        "Unsupported: tensorfloat32 needs an NVIDIA GPU"
        in ask({"policy": "tensorfloat32"})["error"]
    )


def test_a_device_that_is_not_the_one_asked_for_is_refused():
    said = ask({"gpu_model": "Tesla V100"})["error"]
    assert said.startswith("SettingNotApplied: gpu_model is Tesla V100, but tensorflow runs on")


def test_another_policy_backend_or_limit_needs_another_kernel():
    changes = [{"policy": "mixed_float16"}, {"backend": "jax"}]
    changes += [{"cpu_isa": "sse41"}] if HAS["sse41"] else []
    said = ask({"policy": "float32"}, *changes)["again"]
    assert len(said) == len(changes)
    assert all("restart the kernel" in text for text in said), said


def test_a_missing_backend_is_unsupported_with_the_remedy():
    pytest.importorskip("keras")
    if not _missing("torch"):
        pytest.skip("PyTorch is installed here")
    said = ask({"backend": "torch"})["error"]
    assert said == "Unsupported: torch is not installed; pip install torch"


def test_jax_on_a_machine_with_a_gpu_needs_its_plugin(monkeypatch):
    for none, command in ((True, "pip install jax"), (False, "pip install 'jax[cuda12]'")):
        monkeypatch.setattr(capability, "driver", lambda none=none: None if none else "580.1")
        assert environment.install_hint("jax") == command


def _missing(name):
    import importlib.util

    return importlib.util.find_spec(name) is None


# --- optimizer, data format ---------------------------------------------------------------------


def test_sgd_has_nesterov_momentum_and_a_rate_that_decays_over_all_epochs():
    asked = {"optimizer": "sgd", "learning_rate": 0.01}
    said = ask(asked | {"learning_rate_decay": "cosine", "epochs": 7})["optimizer"]
    assert (said["name"].lower(), said["momentum"], said["nesterov"]) == ("sgd", 0.9, True)
    rate = said["learning_rate"]
    assert rate["class_name"] == "CosineDecay"
    assert rate["config"]["initial_learning_rate"] == pytest.approx(0.01)
    assert rate["config"]["decay_steps"] == 7


def test_the_data_format_is_read_back():
    said = ask({"data_format": "channels_first", "augmentation": "flip_crop"})
    assert said["data_format"] == "channels_first"
    said = ask({"backend": "jax", "model": "mlp"})
    assert (said["data_format"], said["deterministic"]) == ("channels_last", False)


def test_float16_channels_first_is_unsupported_where_tensorflow_has_no_kernel():
    asked = {"data_format": "channels_first", "policy": "mixed_float16"}
    assert "Unsupported: TensorFlow has no channels_first" in ask(asked)["error"]
    said = ask(asked | {"jit": "on"})
    assert (said["data_format"], said["jit"]) == ("channels_first", True)
    assert ask(asked | {"backend": "jax"})["data_format"] == "channels_first"


OWN = """
import keras
from keras import layers
def headed(shape, classes):
    head = layers.Dense(classes, activation="softmax", dtype="float32")
    return keras.Sequential([layers.Flatten(), layers.Dense(4), head])
def pinned(shape, classes):
    head = layers.Dense(classes, activation="softmax", dtype="float32")
    return keras.Sequential([layers.Flatten(), head])
def firm(shape, classes):
    x = inputs = layers.Input(shape)
    x = layers.Conv2D(4, 3, data_format="channels_last", padding="same")(x)
    x = layers.Dense(classes)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x))
"""


def test_a_model_of_ones_own_is_held_to_the_policy(tmp_path, monkeypatch):
    (tmp_path / "mynets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    asked = {"width": 1.0, "policy": "mixed_bfloat16"}
    said = ask(asked | {"model": "mynets:headed"})
    assert said["compute_dtype"] == "bfloat16, float32"
    said = ask(asked | {"model": "mynets:pinned"})["error"]
    assert said == "SettingNotApplied: compute_dtype is float32, but the run asked for bfloat16"
    asked |= {"model": "mynets:firm", "data_format": "channels_first", "backend": "jax"}
    said = ask(asked)["error"]
    assert said.startswith(
        "SettingNotApplied: data_format is channels_first, channels_last, but the run"
    )


# --- instructions of the CPU --------------------------------------------------------------------

x86 = pytest.mark.skipif(not HAS["avx2"], reason="this CPU has no AVX2")

ISA = """
import os, sys
from mptexp.training import precision
from mptexp.spec.run import Run
run = Run(width=0.1, image_size=16, cpu_isa=sys.argv[1])
where = precision.use(run)
import numpy as np
from mptexp.training import models
model = models.build(run, (16, 16, 1), 10)
precision.compile_model(model, run)
model.fit(np.zeros((4, 16, 16, 1), np.uint8), np.zeros(4), verbose=0)
"""


def kernels(isa):
    """What oneDNN says of a step under this limit: its instructions, its convolutions' code."""
    environ = os.environ | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", ISA, isa]
    told = subprocess.check_output(
        command, text=True, env=environ, stderr=subprocess.DEVNULL
    ).splitlines()
    says = [line.split("isa:")[1] for line in told if "info,cpu,isa:" in line]
    convolutions = [line.split(",") for line in told if ",exec,cpu,convolution," in line]
    return says, {words[words.index("convolution") + 1] for words in convolutions}


@x86
def test_the_limit_of_the_cpus_instructions_is_in_force():
    says, used = kernels("sse41")
    assert says == ["Intel SSE4.1"]
    assert used
    assert not [name for name in used if "avx" in name]
    says, used = kernels("avx2")
    assert says == ["Intel AVX2"]
    assert [name for name in used if "avx2" in name]
    assert not [name for name in used if "avx512" in name]


@x86
@pytest.mark.parametrize("isa", ["sse41", "avx512_core" if HAS["avx512_core"] else "avx2"])
def test_the_limit_is_read_back(isa):
    said = ask({"cpu_isa": isa, "policy": "mixed_bfloat16"})
    assert said["cpu_isa"] == isa
    assert said["emulated"] is True


def test_what_a_limit_leaves_is_native_or_not(monkeypatch):
    cpu = {"kind": "cpu", "capability": None}
    flags = ["avx512_bf16", "avx512_fp16", "amx_bf16"]
    monkeypatch.setattr(capability, "instruction_sets", lambda: flags)
    native = {
        name: {isa for isa in ("default", *CPU_ISAS) if capability.is_native(name, cpu, isa)}
        for name in ("float32", "bfloat16", "float16")
    }
    rich = {"default", "avx512_core_fp16", "avx512_core_amx"}
    assert native["float32"] == {"default", *CPU_ISAS}
    assert native["float16"] == rich
    assert native["bfloat16"] == rich | {"avx512_core_bf16"}
    limits = {least for row in ARITHMETICS.values() for least in row.cpu_flags.values() if least}
    assert limits <= set(CPU_ISAS) == set(onednn.NAMES.values())


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"backend": "jax"}, "to which JAX leaves only some products"),
        ({"jit": "on"}, "to which XLA leaves only some products"),
    ],
)
def test_a_limit_without_effect_is_unsupported(parameters, reason):
    said = ask({"cpu_isa": "avx2", **parameters})["error"]
    assert said.startswith("Unsupported: cpu_isa avx2 limits oneDNN")
    assert reason in said


def test_a_limit_that_the_cpu_has_not_is_unsupported(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(onednn, "cpuinfo", lambda *names: "sse4_1 avx avx2")
    with pytest.raises(capability.Unsupported, match="avx512_core is asked for, but this CPU"):
        onednn.limit(Run(cpu_isa="avx512_core"))
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_a_limit_on_a_cpu_does_not_suit_a_gpu():
    gpu = {"kind": "gpu", "device": "NVIDIA H200", "capability": [9, 0]}
    with pytest.raises(capability.Unsupported, match="this run's device is NVIDIA H200"):
        precision._check_device(Run(cpu_isa="avx2", gpu_model="NVIDIA H200"), gpu)


@x86
def test_another_limit_needs_another_kernel():
    (said,) = ask({"cpu_isa": "avx2"}, {"cpu_isa": "sse41"})["again"]
    assert "restart the kernel" in said


def test_determinism_is_set_and_read_back():
    assert ask({"deterministic": True})["deterministic"] is True


def test_xla_that_determinism_switches_off_is_not_taken_for_xla():
    said = ask({"deterministic": True, "jit": "on"})["error"]
    assert said.startswith(
        "SettingNotApplied: jit is False, but the run asked for True: Keras turns XLA"
    )


def test_determinism_that_nobody_asked_for_is_not_in_force():
    said = ask({}, TF_DETERMINISTIC_OPS="1")["error"]
    assert said.startswith("SettingNotApplied: deterministic is True, but the run asked for False")
    assert "TF_DETERMINISTIC_OPS" in said


def test_determinism_of_jax_is_a_flag_that_is_read_back():
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    assert ask({"backend": "jax", "deterministic": True})["deterministic"] is True
