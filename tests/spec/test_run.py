import ast
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptexp.host.devices import local_device
from mptexp.spec import grid, run
from mptexp.spec.run import Run


def test_run_id_is_the_same_on_every_machine_and_in_every_version():
    # Written down: an id that changes orphans the records that people have published.
    run = Run(gpu_model="Tesla V100", policy="mixed_float16", batch_size=64, width=0.5)
    assert run.run_id() == "3b4b759cfc5d"
    assert run.run_id("other") != run.run_id()


def test_run_id_does_not_depend_on_parameters_at_their_defaults():
    assert Run(gpu_model="x", epochs=20).run_id() == Run(gpu_model="x").run_id()


def test_an_absolute_notebook_is_named_by_its_last_part():
    # The leak: where a notebook lies, in the id of a run and so in each record.
    made = Run(gpu_model="V100")
    assert made.run_id("/home/alice/acme/mine.py") == made.run_id("mine.py")
    assert made.run_id("acme/mine.py") != made.run_id("mine.py")


def test_an_unresolved_run_has_no_id():
    with pytest.raises(ValueError, match="resolved"):
        Run().run_id()
    assert Run().resolved().gpu_model == local_device()


@given(st.fixed_dictionaries({"seed": st.integers(0, 99), "batch_size": st.integers(1, 999)}))
def test_different_runs_have_different_ids(values):
    run = Run(gpu_model="x", **values)
    other = run.model_copy(update={"seed": run.seed + 1})
    assert run.run_id() != other.run_id()


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"propagation": "<8,8>", "policy": "mixed_float16"}, "allowed: policy float32"),
        ({"weight_format": "float16", "policy": "float16"}, "which policy float16 has not"),
        ({"weight_format": "float16", "replicas": 2}, "allowed: replicas 1"),
        ({"policy": "float8", "replicas": 2}, "policy float8, whose scales.*allowed: replicas 1"),
        ({"policy": "int8"}, "policy int8 with phase train: .*; allowed: phase inference, which"),
        (
            {"policy": "int4", "phase": "inference", "input_mode": "resident"},
            "input_mode resident: .* trained and validated first; allowed: input_mode pipeline",
        ),
        ({"policy": "int4", "phase": "inference", "weight_format": "float16"}, "int4 has not"),
        ({"propagation": "binary", "rounding": "stochastic"}, "allowed: rounding nearest"),
        ({"propagation": "ternary"}, "policy, binary, dynamic<BITS>"),
    ],
)
def test_what_cannot_be_emulated_is_refused(parameters, said):
    with pytest.raises(ValueError, match=said):
        Run(**parameters)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"backend": "tensorflow"}, "frontend native with backend tensorflow, which no plain loop"),
        ({"policy": "float16"}, "allowed: policy float32, tensorfloat32, mixed_float16, mixed_bfl"),
        ({"loss_scale": 128.0}, "with loss_scale 128.0, .*; allowed: loss_scale auto, dynamic, no"),
        ({"float32_layers": "dense"}, "allowed: float32_layers none named, or frontend keras"),
        ({"augmentation": "flip"}, "allowed: augmentation none, or frontend keras"),
        *(
            (
                {"phase": "inference", "policy": policy},
                f"frontend native with policy {policy}, which no .*; allowed: policy float32, tens",
            )
            for policy in ("int8", "int8_weights", "int4", "float8")
        ),
        ({"profile": True}, "allowed: profile false"),
        ({"steps_per_execution": 2}, "allowed: steps_per_execution 1"),
    ],
)
def test_what_a_native_loop_does_not_have_is_refused(parameters, said):
    with pytest.raises(ValueError, match=said):
        Run(**{"frontend": "native", "backend": "jax", **parameters})
    for phase in ("train", "inference"):
        assert Run(frontend="native", backend="jax", phase=phase).frontend == "native"


@pytest.mark.parametrize("module", [run, grid])
def test_type_checkers_see_which_parameters_have_defaults(module):
    # Of pydantic's Field they know the keyword alone, and ask for all arguments otherwise.
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.Call)]
    fields = [call for call in calls if getattr(call.func, "id", "") == "Field" and call.keywords]
    described = [f for f in fields if any(k.arg == "description" for k in f.keywords)]
    assert len(described) > 10
    assert all("default" in [k.arg for k in field.keywords] for field in described)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"model": "mlp", "depth": 2}, "depth 2 with model mlp, .*: depth none, or model vit, gpt"),
        ({"model": "keydana_cnn", "patch_size": 2}, "allowed: patch_size 16, or model vit"),
        ({"model": "vit", "normalization": "none"}, "allowed: normalization batch, or model keyd"),
        ({"model": "my:model", "tied_head": False}, "tied_head false with model my:model, which"),
        ({"exponents_every": 5, "steps_per_execution": 2}, "allowed: steps_per_execution 1"),
        (
            {"model": "my:model", "width": 0.5},
            "width 0.5 with model my:model, .*; allowed: width 1",
        ),
        ({"model": "resnet50", "width_multiple": 8}, "resnet50, .*; allowed: width_multiple 1"),
        ({"model": "alexnet", "image_size": 32}, "image_size 32 with model alexnet, .* least 63"),
    ],
)
def test_a_parameter_without_effect_is_refused(parameters, said):
    # The lie: an axis of a report that changes nothing.
    with pytest.raises(ValueError, match=said):
        Run(**parameters)
    assert Run(model="my:model", normalization="none").normalization == "none"
