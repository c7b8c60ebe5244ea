"""A policy belongs to a process, so most of these tests ask a child process."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from mptexp import precision
from mptexp.spec import Run
run = Run(width=0.1, image_size=16, **json.loads(sys.argv[1]))
try:
    where = precision.use(run)
    from mptexp import models
    model = models.build(run, (16, 16, 1), 10)
    precision.compile_model(model, run)
    said = precision.in_force(model, run, where)
    if len(sys.argv) > 2:
        precision.use(run.model_copy(update=json.loads(sys.argv[2])))
except Exception as error:
    said = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(said))
"""


def ask(*parameters):
    command = [sys.executable, "-c", PROGRAM, *map(json.dumps, parameters)]
    return json.loads(subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL))


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
    said = ask(parameters)
    assert (said["compute_dtype"], said["variable_dtype"], said["loss_scale"]) == found
    assert said["head_dtype"] == "float32"
    assert said["jit"] is False
    assert said["default_policy"] == "float32"


def test_xla_is_on_where_it_is_asked_for():
    assert ask({"jit": "on"})["jit"] is True


def test_tf32_on_a_cpu_is_unsupported():
    assert (
        "Unsupported: tensorfloat32 needs an NVIDIA GPU"
        in ask({"policy": "tensorfloat32"})["error"]
    )


def test_a_device_that_is_not_the_one_asked_for_is_refused():
    said = ask({"gpu_model": "Tesla V100"})["error"]
    assert said.startswith("NotInForce: gpu_model is Tesla V100, but tensorflow runs on")


@pytest.mark.parametrize("change", [{"policy": "mixed_float16"}, {"backend": "jax"}])
def test_another_policy_or_backend_needs_another_kernel(change):
    assert "restart the kernel" in ask({"policy": "float32"}, change)["error"]


def test_the_same_policy_again_is_fine():
    assert "error" not in ask({"policy": "float32"}, {"policy": "float32"})


def test_a_missing_backend_is_unsupported_with_the_remedy():
    pytest.importorskip("keras")
    if not _missing("torch"):
        pytest.skip("PyTorch is installed here")
    said = ask({"backend": "torch"})["error"]
    assert said == "Unsupported: torch is not installed; pip install torch"


def _missing(name):
    import importlib.util

    return importlib.util.find_spec(name) is None
