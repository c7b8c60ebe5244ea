import pytest

from mptexp.traces import xla_names
from mptexp.traces.operations import AUTODIFF, LOOSE
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
        ("S/model/dense/kernel/Regularizer/L2Loss", "L2Loss", False, "loss", ""),
        # A regularizer, as Keras adds it to the loss, and its gradient; what is none.
        ("StatefulPartitionedCall/Square", "Square", False, "loss", ""),
        ("StatefulPartitionedCall/gradient_tape/Abs/Sign", "Sign", False, "loss", ""),
        ("StatefulPartitionedCall/while/body/_1/while/mul_1", "Mul", False, "loss", ""),
        ("StatefulPartitionedCall/gradient_tape/Tile_2", "Tile", False, "loss", ""),
        ("gradient_tape/functional_1/add_1/Sum", "Sum", False, "other", ""),
        ("StatefulPartitionedCall/functional_1/mul", "Mul", False, "other", ""),
        ("StatefulPartitionedCall/Cast", "Cast", False, "other", ""),
        ("StatefulPartitionedCall/AssignAddVariableOp", "AssignAddVariableOp", False, "other", ""),
        ("StatefulPartitionedCall/clip_by_global_norm/mul_3", "Mul", False, "updates", ""),
        ("global_norm/L2Loss", "L2Loss", False, "updates", ""),
        ("functional_1/clip.layer/clip_by_value/Minimum", "Minimum", False, "forward", "clip"),
        ("fusion.3", "add", False, "other", ""),
        ("jit(train_step)/jvp(functional)/dense.layer/dot_general", "dot_general", False,
         "forward", "dense"),
    ],
)  # fmt: skip
def test_layer_and_part_are_read_from_the_path(path, op, scaled, part, layer):
    row = Naming(("adam",), scaled).operation(path, op, "")
    assert (row.part, row.layer) == (part, layer)


@pytest.mark.parametrize(
    ("path", "op", "part"),
    [
        ("Square_1", "Square", "loss"),  # a regularizer's: it has a gradient
        ("Sum_1", "Sum", "loss"),
        ("gradient_tape/Square_1/Mul", "Mul", "loss"),
        ("mul_4", "Mul", LOOSE),  # an average of weights, say: without a gradient
        ("StatefulPartitionedCall/AddV2_3", "AddV2", LOOSE),
    ],
)
def test_what_stands_outside_of_layers_and_has_no_gradient_is_no_loss(path, op, part):
    naming = Naming(("adam",), differentiated={"Square_1"})
    assert naming.operation(path, op, "").part == part


@pytest.mark.parametrize(
    ("path", "op", "layer"),
    [
        ("gradient_tape/model_1/conv2_block1_2_conv/Conv2D/Conv2DBackpropFilter",
         "Conv2DBackpropFilter", "model_1/conv2_block1_2_conv"),
        ("model/dense/BiasAdd/ReadVariableOp", "ReadVariableOp", "model/dense"),
        ("model/add_3/add", "AddV2", "model/add_3"),
        ("cluster_0_1/model/add_3/add", "AddV2", "model/add_3"),
        # No layers: clipping, metrics, communication.
        ("clip_by_global_norm/mul_3", "Mul", ""),
        ("categorical_accuracy/ArgMax", "ArgMax", ""),
        ("jit(step)/jit(main)/pmean/psum", "psum", ""),
        ("model/dropout_1/dropout/random_uniform/RandomUniform", "RandomUniform",
         "model/dropout_1"),
        ("StatefulPartitionedCall/functional_1/batch_norm_1/batchnorm/mul_1", "Mul",
         "functional_1/batch_norm_1"),
        ("replica_4/bert/transformer/layer_5/self_attention/dropout_3/dropout/Cast", "Cast",
         "bert/transformer/layer_5/self_attention/dropout_3"),
        ("gradient_tape/model/conv2d/Conv2D/Conv2DBackpropFilter-0-TransposeNHWCToNCHW-LayoutOptimizer",
         "Transpose", "model/conv2d"),
        ("jit(train_step)/transpose(jvp(ResNet))/Block_0/Conv_1/conv_general_dilated", "",
         "ResNet/Block_0/Conv_1"),
        ("jit(step)/jit(main)/while/body/encoder/checkpoint/layer/dot_general", "",
         "encoder/layer"),
        ("jit(loss_fn)/jvp(bsd,de->bse)/dot_general", "", ""),
        ("Cast", "Cast", ""),
    ],
)  # fmt: skip
def test_a_layer_is_read_from_the_paths_of_keras_and_the_scopes_of_jax(path, op, layer):
    assert xla_names.layer_path(path, op) == layer


def test_in_anybody_s_trace_optimizers_and_losses_have_no_layer():
    naming = Naming()
    parts = {
        ("Adam/Adam/update_3/ResourceApplyAdam", "ResourceApplyAdam"): "optimizer",
        ("training/update/apply", "ResourceApplyGradientDescent"): "optimizer",
        ("gradient_tape/categorical_crossentropy/mul", "Mul"): "loss",
        ("jit(loss_fn)/jvp(head)/dot_general", "dot_general"): "forward",
    }
    for (path, op), part in parts.items():
        row = naming.operation(path, op, "")
        assert row.part == part
        assert bool(row.layer) == (part == "forward")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (
            "functional_1/lstm.layer/lstm/while/body/_35/functional_1/lstm.layer/while/MatMul",
            "loop",
        ),
        ("gradient_tape/functional_1/map.layer/map/while/gradients/Mul", "loop"),
        ("while/body/_1/while/functional_1/dense.layer/MatMul", "forward"),  # several steps
        ("jit(train_step)/jvp(functional)/blocks.layer/while/body/dot_general", "forward"),
    ],
)
def test_a_loop_of_a_layer_is_told_from_a_loop_of_steps(path, part):
    op = path.rpartition("/")[2]
    assert Naming(["adam"]).operation(path, op, "").part == part
    foreign = path.replace(".layer", "")
    assert Naming().operation(foreign, op, "").part == part


@pytest.mark.parametrize(
    ("path", "op"),
    [("while/AddN_3", "AddN"), ("zeros_like_1", "ZerosLike"),
     ("StatefulPartitionedCall/AddN_1/tmp_var_accum_4", "AssignAdd")],
)  # fmt: skip
def test_what_autodiff_adds_is_no_loss(path, op):
    assert Naming(["adam"]).operation(path, op, "").part == AUTODIFF
    assert Naming().operation(path, op, "").part == AUTODIFF


@pytest.mark.parametrize("path", ["functional_1/{}/Mul", "gradient_tape/functional_1/{}/mul/Mul"])
def test_all_that_a_layer_of_the_loss_does_is_the_loss(path):
    naming = Naming(["adam"], loss_layers=["penalty"])
    row = naming.operation(path.format("penalty.layer"), "Mul", "")
    assert (row.layer, row.part) == ("penalty", "loss")
    assert naming.operation(path.format("dense.layer"), "Mul", "").part != "loss"


def test_an_operation_without_a_scope_whose_gradient_is_named_by_its_type_is_the_loss():
    naming = Naming(["adam"], differentiated=frozenset({"TanhGrad"}))
    assert naming.operation("StatefulPartitionedCall/Tanh_5", "Tanh", "").part == "loss"
    assert naming.operation("StatefulPartitionedCall/Sigmoid_5", "Sigmoid", "").part == LOOSE


def test_gradients_without_a_scope_have_numbers_of_their_own():
    naming = Naming(["adam"], differentiated=frozenset({"Mul_3", "TanhGrad_4"}))
    parts = {n: naming.operation(n, op, "").part for n, op in (("Mul_8", "Mul"), ("mul_8", "Mul"))}
    assert parts == {"Mul_8": "loss", "mul_8": LOOSE}
    assert naming.operation("Tanh_9", "Tanh", "").part == "loss"


@pytest.mark.parametrize("calls", ["", "StatefulPartitionedCall/", "while/body/_12/"])
def test_what_the_backward_pass_computes_anew_is_no_loss(calls):
    known = {"Roll", "gradient_tape/Roll", "gradient_tape/conv/Back", "clip_by_value/Minimum"}
    naming = Naming(["adam"], recomputed=known)
    paths = {"Roll_3": "Roll", "gradient_tape/Roll_2": "Roll", "gradient_tape/conv_1/Back": "Back",
             "clip_by_value_2/Minimum": "Minimum"}  # fmt: skip
    for path, op in paths.items():
        made = naming.operation(calls + path, op, "")
        assert (made.layer, made.part) == ("", "backward")
    assert naming.operation(calls + "gradient_tape/Mul_2", "Mul", "").part == "loss"
    assert naming.operation(calls + "clip_by_value", "Maximum", "").part == "updates"


@pytest.mark.parametrize("calls", ["", "StatefulPartitionedCall/", "while/body/_12/"])
def test_a_sum_of_gradients_is_the_loss_where_the_loss_has_a_term_of_it(calls):
    layer = "gradient_tape/functional/large.layer/StridedSliceGrad:StridedSliceGrad"
    naming = Naming(
        ["adam"],
        differentiated=frozenset({"TanhGrad"}),
        sums={
            "AddN_1": [layer, "gradient_tape/TanhGrad_2:TanhGrad"],
            "gradient_tape/AddN": [layer, "AddN_1:AddN"],
            "AddN": [layer, layer.replace("large", "dense")],
        },
    )
    named = {n: naming.operation(calls + n, "AddN", "").part for n in [*naming.sums, "AddN_7"]}
    assert named == dict.fromkeys(named, AUTODIFF) | dict.fromkeys(
        ["AddN_1", "gradient_tape/AddN"], "loss"
    )


@pytest.mark.parametrize(
    ("path", "part", "layer"),
    [
        # The lies: a layer is the optimizer, or the loss, by a word in its name.
        ("jit(train_step)/jvp(MuonTracker)/muon/dense/dot_general", "forward",
         "MuonTracker/muon/dense"),
        ("jit(train_step)/transpose(jvp(Zoo))/lion/dense/add", "backward", "Zoo/lion/dense"),
        ("gradient_tape/particle_net/muon/dense_1/mul/Mul", "backward",
         "particle_net/muon/dense_1"),
        ("particle_net/muon/dense_1/MatMul", "forward", "particle_net/muon/dense_1"),
        ("particle_net/muon/dense_1/BiasAdd", "forward", "particle_net/muon/dense_1"),
        ("muon/conv/Conv2D", "forward", "muon/conv"),
        ("gan/hinge_block/conv/Conv2D", "forward", "gan/hinge_block/conv"),
        ("jit(step)/jvp(Net)/loss_weighting_net/Dense_0/dot_general", "forward",
         "Net/loss_weighting_net/Dense_0"),
        ("jit(step)/jvp(Net)/LossEncoder_0/dot_general", "forward", "Net/LossEncoder_0"),
        ("model/GlossDecoder/dense/MatMul", "forward", "model/GlossDecoder/dense"),
        ("model/lossless_codec/conv/Conv2D", "forward", "model/lossless_codec/conv"),
        # What are optimizers and losses.
        ("StatefulPartitionedCall/muon/while/body/_7/MatMul", "optimizer", ""),
        ("jit(train_step)/muon/dot_general", "optimizer", ""),
        ("jit(train_step)/optimizer/adam/mul", "optimizer", ""),
        ("cond/then/_61/cond/Adam/Adam/update_3/mul", "optimizer", ""),
        ("hinge_loss/Maximum", "loss", ""),
        ("jit(step)/jvp(ContrastiveLoss_0)/dot_general", "loss", ""),
        ("SparseSoftmaxCrossEntropyWithLogits/Sum", "loss", ""),
        ("masked_lm_loss_1/Mean", "loss", ""),
        ("model/dense/kernel/Regularizer_2/Sum", "loss", ""),
    ],
)  # fmt: skip
def test_a_layer_is_no_optimizer_or_loss_by_a_word_in_its_name(path, part, layer):
    naming = Naming(differentiated=frozenset({"particle_net"}))
    row = naming.operation(path, path.rpartition("/")[2], "")
    assert (row.part, row.layer) == (part, layer)
