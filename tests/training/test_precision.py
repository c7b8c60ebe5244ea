"""A policy belongs to a process, so most of these tests ask a child process."""

import contextlib
import os
from typing import Literal, get_args, get_origin

import pytest

from mptexp.execution import fork_client
from mptexp.host.devices import CPU_ISAS, cpuinfo
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.run import Run
from mptexp.training import capability, environment, onednn, precision

HAS = {name: flag in cpuinfo("flags", "Features").split() for name, flag in CPU_ISAS.items()}
x86 = pytest.mark.skipif(not HAS["avx2"], reason="this CPU has no AVX2")


def test_tf32_on_a_cpu_is_unsupported(ask):
    assert (
        "Unsupported: tensorfloat32 needs an NVIDIA GPU"
        in ask({"policy": "tensorfloat32"})["error"]
    )


def test_a_device_that_is_not_the_one_asked_for_is_refused(ask):
    said = ask({"gpu_model": "Tesla V100"})["error"]
    assert said.startswith("SettingNotApplied: gpu_model is Tesla V100, but tensorflow runs on")


def test_another_policy_backend_or_limit_needs_another_kernel(ask):
    changes = [{"policy": "mixed_float16"}, {"backend": "jax"}]
    changes += [{"cpu_isa": "sse41"}] if HAS["sse41"] else []
    said = ask({"policy": "float32"}, *changes)["again"]
    assert len(said) == len(changes)
    assert all("restart the kernel" in text for text in said), said


def test_a_missing_backend_is_unsupported_with_the_remedy(ask):
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


def test_sgd_has_nesterov_momentum_and_a_rate_that_decays_over_all_epochs(ask):
    asked = {"optimizer": "sgd", "learning_rate": 0.01}
    said = ask(asked | {"learning_rate_decay": "cosine", "epochs": 7})["optimizer"]
    assert (said["name"].lower(), said["momentum"], said["nesterov"]) == ("sgd", 0.9, True)
    rate = said["learning_rate"]
    assert rate["class_name"] == "CosineDecay"
    assert rate["config"]["initial_learning_rate"] == pytest.approx(0.01)
    assert rate["config"]["decay_steps"] == 7


@pytest.mark.parametrize("loss_scale", ["none", 1024.0, "dynamic"])
def test_gradients_are_clipped_without_their_loss_scale(loss_scale):
    import numpy as np

    from mptexp.training import models

    asked = {"model": "mlp", "width": 0.01, "image_size": 8, "optimizer": "sgd", "learning_rate": 1}
    run = Run(**asked, clip_norm=1e-3, loss_scale=loss_scale)
    model = models.build(run, (8, 8, 1), 10)
    precision.compile_model(model, run)
    before = [w.copy() for w in model.get_weights()]
    rng = np.random.default_rng(0)
    model.train_on_batch(rng.random((16, 8, 8, 1), "float32"), rng.integers(0, 10, 16))
    moved = np.sqrt(
        sum(np.sum((a - b) ** 2) for a, b in zip(model.get_weights(), before, strict=True))
    )
    assert moved == pytest.approx(1.9e-3, rel=1e-3)  # Nesterov's first step is 1 + 0.9 gradients


def test_float16_channels_first_is_unsupported_where_tensorflow_has_no_kernel(ask):
    asked = {"data_format": "channels_first", "policy": "mixed_float16"}
    assert "Unsupported: TensorFlow has no channels_first" in ask(asked)["error"]
    said = ask(asked | {"jit": "on"})
    assert (said["data_format"], said["jit"]) == ("channels_first", True)
    assert ask(asked | {"backend": "jax"})["data_format"] == "channels_first"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"backend": "jax"}, "to which JAX leaves only some products"),
        ({"jit": "on"}, "to which XLA leaves only some products"),
    ],
)
def test_a_limit_without_effect_is_unsupported(ask, parameters, reason):
    said = ask({"cpu_isa": "avx2", **parameters})["error"]
    assert said.startswith("Unsupported: cpu_isa avx2 limits oneDNN")
    assert reason in said


def test_a_limit_on_a_cpu_does_not_suit_a_gpu():
    gpu = {"kind": "gpu", "device": "NVIDIA H200", "capability": [9, 0]}
    with pytest.raises(capability.Unsupported, match="this run's device is NVIDIA H200"):
        precision._check_device(Run(cpu_isa="avx2", gpu_model="NVIDIA H200"), gpu)


@x86
def test_another_limit_needs_another_kernel(ask):
    (said,) = ask({"cpu_isa": "avx2"}, {"cpu_isa": "sse41"}, ANEW="1")["again"]
    assert "restart the kernel" in said


def alternatives():
    """Runs that differ from the default in one parameter: each word, and twice a number."""
    for name, field in Run.model_fields.items():
        kind, values = field.annotation, []
        if get_origin(kind) is Literal:
            values = get_args(kind)
        elif kind in (bool, int, float):
            values = [True] if kind is bool else [2 * field.default]
        for value in values:
            with contextlib.suppress(ValueError):
                yield name, Run(**{name: value})


@pytest.mark.parametrize("backend", BACKEND_ROWS)
def test_a_server_to_fork_from_is_told_all_that_decides_its_environment(backend, monkeypatch):
    # data_format turns oneDNN on, and a forked process had imported TensorFlow without it.
    monkeypatch.setattr(capability, "driver", lambda: None)
    monkeypatch.setattr(onednn, "limit", lambda run: None)
    given = {name: value for name, value in os.environ.items() if not name.startswith("TF_ENABLE")}

    def environment(run):
        monkeypatch.setattr(os, "environ", dict(given))
        precision.prepare(run.model_copy(update={"backend": backend}))
        return dict(os.environ)

    usual = environment(Run())
    decisive = {name for name, run in alternatives() if environment(run) != usual}
    assert decisive <= {*fork_client.BEFORE_IMPORT}
    assert decisive  # the check finds those that there are
