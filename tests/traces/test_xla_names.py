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
        # A regularizer, as Keras adds it to the loss, and its gradient; what is none.
        ("StatefulPartitionedCall/Square", "Square", False, "loss", ""),
        ("StatefulPartitionedCall/gradient_tape/Abs/Sign", "Sign", False, "loss", ""),
        ("StatefulPartitionedCall/while/body/_1/while/mul_1", "Mul", False, "loss", ""),
        ("StatefulPartitionedCall/gradient_tape/Tile_2", "Tile", False, "loss", ""),
        ("gradient_tape/functional_1/add_1/Sum", "Sum", False, "other", ""),
        ("StatefulPartitionedCall/functional_1/mul", "Mul", False, "other", ""),
        ("StatefulPartitionedCall/Cast", "Cast", False, "other", ""),
        ("StatefulPartitionedCall/AssignAddVariableOp", "AssignAddVariableOp", False, "other", ""),
        ("fusion.3", "add", False, "other", ""),
        ("jit(train_step)/jvp(functional)/dense.layer/dot_general", "dot_general", False,
         "forward", "dense"),
    ],
)  # fmt: skip
def test_layer_and_part_are_read_from_the_path(path, op, scaled, part, layer):
    row = Naming(("adam",), scaled).operation(path, op, "")
    assert (row.part, row.layer) == (part, layer)
