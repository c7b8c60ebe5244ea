import random

import pytest

from mptexp.errors import ParamsError
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run


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


def test_exclude_knows_a_place_by_all_its_names(tmp_path, monkeypatch):
    # The lie: exclude of ~/pics left the point of $HOME/pics in the plan.
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ["digits", f"folder:{tmp_path}/pics"]
    excluding = Sweep(matrix={"dataset": names}, exclude=[{"dataset": "folder:~/pics/"}])
    assert [point["dataset"] for point in excluding.points()] == ["digits"]
    assert excluding.idle() == []


def test_an_entry_of_exclude_that_drops_nothing_is_named():
    wrong = {"policy": "mixed_bfloat16", "batch_size": 64}
    same = {"policy": "float32", "batch_size": 64}
    excluding = sweep(exclude=[wrong, {"batch_size": 64}, same, {"epochs": 1}])
    assert excluding.idle() == [wrong, {"epochs": 1}]
    assert sweep().idle() == []


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


def test_a_sweep_that_nobody_could_plan_is_refused_at_once():
    axes = ("seed", "batch_size", "epochs", "image_size", "max_steps", "exponents_every")
    with pytest.raises(ParamsError, match=r"make 1,000,000 runs .* allowed: 10,000 at most"):
        Sweep(matrix={name: list(range(10, 20)) for name in axes})
    with pytest.raises(ParamsError, match="make 1,000,000,000,000,000 runs"):
        Sweep(matrix={name: list(range(1000)) for name in axes[:5]})
    with pytest.raises(ParamsError, match=r"exclude is .* of at most 1000 entries"):
        Sweep(matrix={"seed": [1]}, exclude=[{"seed": 1}] * 1001)


def test_a_run_from_a_record_finds_its_data_where_the_params_file_has_them():
    sweep = Sweep(matrix={"dataset": ["folder:/a/photos", "digits"]})
    for run in sweep.runs():
        assert sweep.located(run.published()) == run
    elsewhere = Run(gpu_model="x", dataset="folder:others")
    assert sweep.located(elsewhere) == elsewhere


def test_a_run_on_a_text_finds_it_too():
    sweep = Sweep(defaults={"model": "gpt"}, matrix={"dataset": ["text:/a/mine.txt", "hamlet"]})
    for run in sweep.runs():
        assert sweep.located(run.published()) == run
