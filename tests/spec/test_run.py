import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptexp.spec.devices import local_device, local_devices, same_model
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run


def test_run_id_is_the_same_on_every_machine_and_in_every_version():
    # Written down: an id that changes orphans the records that people have published.
    run = Run(gpu_model="Tesla V100", policy="mixed_float16", batch_size=64, width=0.5)
    assert run.run_id() == "3b4b759cfc5d"
    assert run.run_id("other") != run.run_id()


def test_run_id_does_not_depend_on_parameters_at_their_defaults():
    assert Run(gpu_model="x", epochs=20).run_id() == Run(gpu_model="x").run_id()


def test_an_unresolved_run_has_no_id():
    with pytest.raises(ValueError, match="resolved"):
        Run().run_id()
    assert Run().resolved().gpu_model == local_device()


@given(st.fixed_dictionaries({"seed": st.integers(0, 99), "batch_size": st.integers(1, 999)}))
def test_different_runs_have_different_ids(values):
    run = Run(gpu_model="x", **values)
    other = run.model_copy(update={"seed": run.seed + 1})
    assert run.run_id() != other.run_id()


def sweep(**extra):
    matrix = {"batch_size": [32, 64], "policy": ["float32", "mixed_float16"]}
    return Sweep(matrix=matrix, **extra)


def test_the_matrix_is_a_product_over_the_defaults():
    points = sweep(defaults={"epochs": 3}).points()
    assert len(points) == 4
    assert all(point["epochs"] == 3 for point in points)


def test_exclude_agrees_with_part_of_a_point_and_include_adds_one():
    points = sweep(
        exclude=[{"policy": "float32", "batch_size": 64}], include=[{"batch_size": 128}]
    ).points()
    assert [(p["batch_size"], p.get("policy")) for p in points] == [
        (32, "float32"),
        (32, "mixed_float16"),
        (64, "mixed_float16"),
        (128, None),
    ]


def test_exclude_sees_defaults_that_are_not_written():
    assert sweep(exclude=[{"epochs": 20}]).points() == []


def test_every_block_holds_every_point_in_another_order():
    runs = sweep(repeats=6).runs()
    blocks = [[r for r in runs if r.block == k] for k in range(6)]
    assert [r.block for r in runs] == sorted(r.block for r in runs)
    points = [[(r.batch_size, r.policy) for r in block] for block in blocks]
    assert all(sorted(p) == sorted(points[0]) for p in points)
    assert len({tuple(p) for p in points}) > 1


def test_the_order_does_not_depend_on_the_process():
    before = [r.run_id() for r in sweep(repeats=3).runs()]
    random.seed(7)
    assert [r.run_id() for r in sweep(repeats=3).runs()] == before


def test_the_seed_is_equal_across_policies_in_a_block_and_differs_between_blocks():
    runs = sweep(repeats=3, defaults={"seed": 10}).runs()
    assert {(r.block, r.seed) for r in runs} == {(0, 10), (1, 11), (2, 12)}


def test_axes_are_the_parameters_that_differ():
    assert sweep().axes() == ["policy", "batch_size"]


def test_no_visible_gpu_means_the_cpu(monkeypatch):
    local_devices.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_device().endswith("(CPU)")
    local_devices.cache_clear()


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [
        ("V100", "Tesla V100-SXM2-16GB", True),
        ("A100-40G", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80G", "NVIDIA A100-SXM4-40GB", False),
        ("h200", "NVIDIA H200", True),
        ("L4", "NVIDIA L40", False),
        ("NVIDIA H200", "NVIDIA H200", True),
        ("NVIDIA H200 NVL", "NVIDIA H200", False),
        ("-", "NVIDIA H200", False),
    ],
)
def test_a_short_name_stands_for_the_devices_that_hold_its_words(asked, found, same):
    assert same_model(asked, found) is same
