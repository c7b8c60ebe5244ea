import pytest

from mptexp.traces.xla_names import Naming


@pytest.mark.parametrize(
    ("path", "op", "scaled", "part", "layer"),
    [
        ("S/functional_1/conv2d_1.layer_2/add", "Add", False, "forward", "conv2d_1"),
        ("gradient_tape/functional_1/conv.layer_1/mul", "Mul", False, "backward", "conv"),
        ("S/cond/then/_61/cond/adam/mul_12", "Mul", True, "optimizer", ""),
        ("S/IsFinite_3", "IsFinite", True, "loss scaling", ""),
        ("S/IsFinite_3", "IsFinite", False, "other", ""),
        ("S/compile_loss/crossentropy/Sum", "Sum", True, "loss", ""),
        ("jit(train_step)/jvp(functional)/dense.layer/dot_general", "dot_general", False,
         "forward", "dense"),
    ],
)  # fmt: skip
def test_layer_and_part_are_read_from_the_path(path, op, scaled, part, layer):
    row = Naming(("adam",), scaled).operation(path, op, "")
    assert (row.part, row.layer) == (part, layer)
