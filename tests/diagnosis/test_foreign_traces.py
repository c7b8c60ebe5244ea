from dataclasses import replace
from statistics import fmean

import pytest

from mptexp.diagnosis import foreign_traces
from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.foreign_traces import Comparison, Recording
from mptexp.report import trace_report
from mptexp.report.answers import trace_answer
from mptexp.traces.operations import CAPABILITY, Operation, Trace
from mptexp.traces.step_bounds import WHOLE

CONV = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_ffma"
HALF = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


def made(kernel=CONV, times=(0.1, 0.11, 0.12), layer="conv2d", file="a", **seconds):
    """A recording whose step has the seconds of these causes."""
    rows = [
        Operation("op", layer, "forward", "conv2d", kernel, seconds.get("matrix", 0.0), 1),
        Operation("op", layer, "forward", "relu", "", seconds.get("memory", 0.0), 1),
        Operation("op", "", "optimizer", "add_", "", seconds.get("optimizer", 0.0), 1),
        Operation("op", layer, "forward", "", "mystery_v7", seconds.get("unknown", 0.0), 1),
        Operation("input", seconds=seconds.get("input", 0.0)),
        Operation("host", seconds=seconds.get("host", 0.0)),
    ]
    rows = [row for row in rows if row.seconds]
    mean, total = fmean(times), sum(row.seconds for row in rows)
    rows = [row._replace(seconds=row.seconds * mean / total) for row in rows]
    trace = Trace(len(times), mean, "gpu", 0.0, rows, times, "marks", gpu="GPU:0")
    return Recording(file, trace)


def test_what_takes_most_of_the_step_bounds_the_training():
    assert made(input=0.06, matrix=0.05).bound == ("input", pytest.approx(6 / 11))
    assert made(host=0.06, matrix=0.05).bound[0] == "host"
    assert made(memory=0.04, optimizer=0.03, matrix=0.06).bound[0] == "matrix"


def test_the_headline_has_no_other_share_than_the_table_under_the_same_words():
    # The lies: "memory-bound work 66 %", all of it copies over PCIe; "memory-bound work 76 %", all
    # of it the optimizer: neither table had a row of memory-bound work.
    one = made(memory=0.015, optimizer=0.06, matrix=0.025)
    sentence = trace_answer.bound_sentence(one)
    assert sentence.startswith("The optimizer bounds this recording: 60 % of a step of 110 ms")
    assert "; then matrix work 25 % and memory-bound work 15 %" in sentence
    copies = Operation("op", op="MemcpyDtoH", seconds=0.11)
    copied = of(one, operations=[copies])
    assert trace_answer.bound_sentence(copied).startswith("Copies from the GPU to the host bound")
    idle = of(one, operations=[Operation("idle", seconds=0.08), Operation("host", seconds=0.03)])
    assert "the device has no work (idle device 73 % and host and launch overhead 27 %)." in (
        trace_answer.bound_sentence(idle)
    )


def test_every_cause_of_the_breakdown_can_bound_a_training():
    known = [cause for causes in foreign_traces.BOUNDS.values() for cause in causes]
    assert sorted(known) == sorted(LABELS)


def test_loops_and_decompositions_bound_what_they_do():
    # The lies: "the device has no work", of kernels in loops; "memory-bound work", of an SVD.
    assert {"loop", "no 16 bits"} <= {
        name for name, own in foreign_traces.BOUNDS.items() if own == (name,)
    }
    assert set(trace_answer.BOUND) == set(foreign_traces.BOUNDS)


def test_rows_are_of_the_mean_step():
    # The lie: 40 ms of matrix work in every step were "27.899 ms of the median step", as every
    # fourth step also waited; beside steps without the wait "matrix work fell by 12.1 ms".
    waits = made(times=(0.04, 0.04, 0.04, 0.11), matrix=0.04, input=0.0175)
    even = made(times=(0.04,) * 4, matrix=0.04)
    assert waits.by_cause["matrix"] == pytest.approx(even.by_cause["matrix"])
    assert sum(waits.by_cause) == pytest.approx(0.0575)
    sentence = trace_answer.verdict([even, waits])
    assert "matrix work fell" not in sentence
    assert "matrix work grew" not in sentence
    assert "a step of 57.5 ms (the mean; the median is 40 ms)" in sentence
    compared = trace_answer.verdict([even, replace(waits, file="b")])
    assert "with unequal steps in b, whose median is 40 ms: wait for input grew" in compared
    assert "57.5 (mean; 40 to 110; median 40)" in set(trace_report.facts(waits)["a"])


def test_a_kernel_that_no_rule_knows_is_unexplained_in_a_layer_too():
    one = made(matrix=0.05, unknown=0.05)
    assert one.share("unexplained") == pytest.approx(0.5)
    assert one.share("memory") == 0


def test_layers_are_shares_of_the_device_s_time():
    one = made(matrix=0.03, memory=0.03, optimizer=0.02, host=0.5)
    assert one.layer_share == pytest.approx(0.75)
    assert one.named_layer_share == 1
    assert list(one.by_layer.index) == ["conv2d", "optimizer"]


def test_arithmetic_is_of_matrix_work():
    row = made(HALF, matrix=0.01, memory=0.09).arithmetic.iloc[0]
    assert (row.type, row.tensor_cores, row.share) == ("float16", True, 1)
    assert (made(matrix=0.01).main_type, made(matrix=0.01).precision) == ("float32", 0)
    assert (made(HALF, matrix=0.01).main_type, made(HALF, matrix=0.01).precision) == ("float16", 2)
    assert made(memory=0.01).arithmetic.empty
    assert (made(memory=0.01).main_type, made(memory=0.01).precision) == ("", None)


def test_two_recordings_have_the_ratio_of_means_and_the_spread_of_steps():
    slow, fast = made(times=(0.2, 0.22, 0.3), matrix=1.0), made(times=(0.1, 0.11), matrix=1.0)
    both = Comparison(slow, fast)
    assert both.speedup == pytest.approx(0.24 / 0.105)
    assert both.spread == (pytest.approx(0.2 / 0.11), pytest.approx(0.3 / 0.1))


def test_what_16_bits_did_not_shrink_and_the_best_they_could_give():
    before = made(times=(0.1,), matrix=0.06, memory=0.02, optimizer=0.01, host=0.01)
    after = made(HALF, times=(0.06,), matrix=0.02, memory=0.02, optimizer=0.01, host=0.01)
    both = Comparison(before, after)
    assert list(both.unshrunk.index) == ["memory", "optimizer"]
    assert both.baseline.best == pytest.approx(1 / (1 - 0.06 / 0.1 - 0.01 / 0.1))
    assert both.by_cause.loc["matrix", "difference_s"] == pytest.approx(-0.04)


def test_a_loss_and_an_optimizer_multiply_too():
    # The lie: of a loss that multiplies by the vocabulary, in float32 and bfloat16, "16 bits would
    # make it 1.94× faster; it became faster by more than that, so something else changed too".
    rows = [
        Operation("op", "dense", "forward", "mm", "ampere_sgemm_128x64_tn", 0.03, 1),
        Operation("op", "", "loss", "mm", "ampere_sgemm_128x64_tn", 0.04, 1),
        Operation("op", "", "optimizer", "mm", "volta_fp16_s884gemm_fp16_128x128", 0.01, 1),
        Operation("op", "", "optimizer", "_fused_adamw_", "", 0.02, 1),
        Operation("op", "svd", "forward", "svd", "volta_sgemm_128x64_nn", 0.01, 1),
    ]
    one = of(made(matrix=1), operations=rows)
    assert one.share("loss") == pytest.approx(4 / 11)
    assert one.best == pytest.approx(11 / 3)
    assert one.arithmetic.set_index("type").share.to_dict() == pytest.approx(
        {"float32": 7 / 8, "float16": 1 / 8}
    )
    assert sum(one.shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("kernel", "best"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", 1 / (1 - 0.4 - 0.54 / 2)),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 1 / (1 - 0.4)),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(x)", 1 / (1 - 0.4)),
    ],
)
def test_16_bits_halve_what_is_sent_too_unless_it_is_in_them(kernel, best):
    # The lie: "16 bits would make float32 at most 1.67× faster", beside a measured 2.44×, of a
    # training whose collectives in float32 take 54 %.
    rest = made(times=(0.1,), matrix=0.4, host=0.06)
    sent = Operation("op", "", "other", "", kernel, 0.054, 1)
    rows = [r._replace(seconds=r.seconds * 0.46) for r in rest.trace.operations]
    assert of(rest, operations=[*rows, sent]).best == pytest.approx(best)


def test_16_bits_halve_a_loss_and_random_numbers_too():
    # The lie: "16 bits would make float32 1.41× faster ...; it became faster by more than that, so
    # something else changed too", of a loss and dropout that were twice as fast in 16 bits.
    rows = [
        Operation("op", "dense", "forward", "mm", "ampere_sgemm_128x64_tn", 0.03, 1),
        Operation("op", "", "loss", "mm", "ampere_sgemm_128x64_tn", 0.02, 1),
        Operation("op", "", "loss", "log_softmax", "", 0.02, 1),
        Operation("op", "drop", "forward", "native_dropout", "fused_dropout_kernel_vec", 0.02, 1),
        Operation("op", "", "optimizer", "_fused_adamw_", "", 0.02, 1),
    ]
    one = of(made(matrix=1), operations=rows)
    assert one.halved == pytest.approx({"loss": 0.02 / 0.11, "random": 0.02 / 0.11})
    assert one.best == pytest.approx(0.11 / 0.04)


@pytest.mark.parametrize(
    ("seconds", "hiding"),
    [
        ({"unknown": 0.2, "host": 0.12}, {"unexplained": 0.2}),
        ({"unknown": 0.09, "host": 0.21}, {}),
        ({"input": 0.15, "host": 0.15}, {}),
    ],
)
def test_what_nobody_knows_of_16_bits_is_found(seconds, hiding):
    one = made(matrix=1 - sum(seconds.values()), **seconds)
    assert one.hiding == pytest.approx(hiding)
    rows = [
        r._replace(state="another GPU") if r.state == "host" else r for r in one.trace.operations
    ]
    shares = {"another GPU": seconds["host"]} if seconds["host"] >= 0.1 else {}
    assert of(one, operations=rows).hiding == pytest.approx(hiding | shares)


def test_a_model_that_was_built_twice_is_joined_by_the_order_of_its_layers():
    first, second = (
        made(layer="block/conv2d_12", matrix=0.1),
        made(layer="block/conv2d", matrix=0.2),
    )
    joined = Comparison(first, second).joined
    assert len(joined) == 1
    rows = foreign_traces.numbered(
        first.rows.assign(layer=["a_3/b", *[""] * (len(first.rows) - 1)])
    )
    assert rows.layer.iloc[0] == "a_0/b_0"


def test_another_framework_does_not_hide_another_model():
    def of(framework, count, **seconds):
        one = made(**seconds)
        rows = [row._replace(count=count) for row in one.trace.operations]
        return Recording(framework, replace(one.trace, operations=rows, framework=framework))

    resnet = of("PyTorch", 160, matrix=0.1)
    assert Comparison(resnet, of("TensorFlow", 120, matrix=0.1)).comparable
    other = Comparison(resnet, of("TensorFlow", 15, matrix=0.1))
    assert other.works == {"matrix operations": ("160", "15")}
    assert not Comparison(resnet, of("TensorFlow", 160, memory=0.1)).comparable
    # What is unexplained may be products.
    assert Comparison(resnet, of("TensorFlow", 160, unknown=0.05, memory=0.05)).comparable


def test_a_micro_batch_is_not_compared_with_a_whole_step():
    # The lie: "mixed is 2.00x faster", of a recording with accumulated gradients beside one
    # without.
    whole, part = made(matrix=0.1), made(matrix=0.05, times=(0.05, 0.05))
    part = Recording("b", replace(part.trace, accumulated=True))
    assert Comparison(whole, made(matrix=0.05, times=(0.05,))).comparable
    assert not Comparison(whole, part).comparable
    assert Comparison(whole, part).works == {
        "a step": ("with the optimizer", "not always with the optimizer")
    }
    assert Comparison(part, replace(part, file="c")).comparable


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        # The lie: "mixed is 1.97× faster ...: optimizer fell by 6 ms", of an optimizer that steps
        # after 2 micro-batches and after 8.
        ((8, 16), (2, 16), ("8 of 16", "2 of 16")),
        ((8, 16), (5, 16), ("8 of 16", "5 of 16")),
        ((3, 5), (1, 5), ("3 of 5", "1 of 5")),
        ((5, 8), (5, 8), None),  # a loss scaler skipped some
        ((1, 2), (4, 8), None),
    ],
)
def test_gradients_accumulated_over_other_numbers_of_micro_batches_are_not_compared(
    first, second, said
):
    one, other = (
        of(made(matrix=0.1), accumulated=True, updates=updates / steps, steps=steps)
        for updates, steps in (first, second)
    )
    assert Comparison(one, other).works == ({"steps with the optimizer": said} if said else {})
    assert Comparison(other, one).comparable is (said is None)
    assert Comparison(one, other).places == {}


@pytest.mark.parametrize(
    ("first", "second"), [((1, 4), (2, 10)), ((1, 10), (2, 10)), ((2, 5), (3, 5))]
)
def test_recordings_of_other_parts_of_a_round_of_micro_batches_are_compared_and_that_is_said(
    first, second
):
    one, other = (
        of(made(matrix=0.1), accumulated=True, updates=updates / steps, steps=steps)
        for updates, steps in (first, second)
    )
    assert Comparison(one, other).comparable
    said = tuple(f"{updates} of {steps}" for updates, steps in (first, second))
    assert Comparison(one, other).places == {"steps with the optimizer": said}


def of(one, **changes):
    return replace(one, trace=replace(one.trace, **changes))


def products(one, count, **changes):
    rows = [row._replace(count=count) for row in one.trace.operations]
    return of(one, operations=rows, **changes)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        # The lies: ResNet-18 beside ResNet-50, and one of four times the width, "1.00×".
        ({"": 20}, {"": 53}, {"products with weights in a step": ("20", "53")}),
        ({"64x3": 1, "9x64": 2}, {"256x3": 1, "9x64": 2},
         {"weights of a product": ("64x3", "256x3")}),
        ({"64x3": 1, "9x64": 2}, {"64x3": 1, "9x64": 2}, {}),
        ({"64x3": 3}, {"": 3}, {}),  # shapes recorded in one alone
        ({"64x3": 3}, {}, {}),  # hidden by a compiler
    ],
)  # fmt: skip
def test_another_model_or_width_is_not_compared(first, second, said):
    both = [products(made(matrix=1), 20, weights=weights) for weights in (first, second)]
    assert Comparison(*both).works == said


def test_what_the_host_names_tells_more_than_the_number_of_kernels():
    one = made(matrix=1)
    split = Comparison(products(one, 20, weights={"": 20}), products(one, 90, weights={"": 20}))
    assert split.works == {}
    # Operations of one's own, that hide products, are no other model.
    rows = [row._replace(op="MyLinear") for row in one.trace.operations]
    hidden = of(one, operations=rows, weights={"": 2})
    assert Comparison(of(one, weights={"": 20}), hidden).works == {}


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (1.0, 10.0, ("with the optimizer", "with 10 steps of the optimizer")),
        (1.0, 0.0, ("with the optimizer", "without the optimizer")),
        (2.0, 2.0, None),  # two optimizers in both
        (None, 0.0, None),  # one does not tell
        (0.5, 1.0, None),  # one step of two was cut off
    ],
)
def test_steps_with_other_numbers_of_updates_are_not_compared(first, second, kinds):
    # The lie: a step of ten iterations beside one of one, "10.00× faster".
    one, other = of(made(matrix=0.1), updates=first), of(made(matrix=0.05), updates=second)
    assert Comparison(one, other).works == ({"a step": kinds} if kinds else {})


def test_a_step_that_holds_several_of_the_others_is_not_compared_though_layers_agree():
    # The lie: steps_per_execution=10, or several steps in one function, on one side alone.
    one, ten = products(made(matrix=0.1), 40), products(made(matrix=0.9), 400)
    layered = [r._replace(layer=f"l{n}") for n, r in enumerate(one.trace.operations * 2)]
    one, ten = (of(r, operations=[row._replace(count=r.trace.operations[0].count)
                                  for row in layered]) for r in (one, ten))  # fmt: skip
    assert Comparison(one, ten).works == {"matrix operations": ("80", "800")}
    assert Comparison(one, products(ten, 80)).comparable


def test_whole_traces_are_compared_only_where_they_hold_as_many_products():
    # The lie: three unmarked steps beside one, "one step of each", "3.00× faster".
    whole = {"how": WHOLE}
    one, three = (products(made(matrix=0.1), n, **whole) for n in (10, 30))
    assert Comparison(three, one).works == {"matrix operations": ("30", "10")}
    assert Comparison(one, products(made(matrix=0.1), 12, **whole)).comparable
    assert Comparison(products(made(matrix=0.1), 10), products(made(matrix=0.1), 30)).comparable


def test_steps_that_are_several_of_the_other_have_no_ratio():
    # The lie: "0.40× as fast", of Keras's steps_per_execution=2 beside 1.
    one = products(made(matrix=0.1, memory=0.1, optimizer=0.1, unknown=0.1), 1)
    two = products(one, 2)
    often = "how often an operation runs in a step"
    assert Comparison(one, two).works == {often: ("1", "2")}
    assert Comparison(two, one).works == {often: ("2", "1")}
    assert f"{often} 1 against 2" in trace_answer.verdict([one, replace(two, file="b")])
    # A type in which an operation takes two kernels more is no other work.
    rows = [row._replace(count=3) if row.op == "conv2d" else row for row in one.trace.operations]
    assert Comparison(one, of(one, operations=rows)).comparable


def test_other_gpus_ranks_versions_and_stacks_are_named():
    one = of(made(matrix=0.1), gpus={"GPU:0": 1.0}, recorded={"ranks": "1", "CUDA": "12.4"})
    many = of(made(matrix=0.1), gpus={f"GPU:{n}": 1.0 for n in range(8)} | {"GPU:9": 0.0},
              recorded={"ranks": "8", "Python's stack": "recorded"})  # fmt: skip
    assert Comparison(one, many).places == {"GPUs": ("1", "8"), "ranks": ("1", "8")}
    assert Comparison(one, one).places == {}
    # A GPU's capability is said with its name, once.
    old, new = (of(one, gpu=f"GPU:0 {name}", recorded={CAPABILITY: capability})
                for name, capability in (("V100", "7.0"), ("A100", "8.0")))  # fmt: skip
    assert Comparison(old, new).places == {"GPU": ("V100", "A100")}


def test_that_one_alone_was_compiled_or_replays_graphs_is_said():
    # The lie: "2.43× as fast", of bfloat16 and torch.compile beside eager float32.
    eager = of(made(matrix=0.1, memory=0.1), framework="PyTorch")
    row = eager.trace.operations[-1]._replace(kernel="triton_per_fused_native_layer_norm_3")
    compiled = of(eager, operations=[*eager.trace.operations, row])
    assert Comparison(eager, compiled).places == {"torch.compile": ("off", "on")}
    assert Comparison(compiled, eager).places == {"torch.compile": ("on", "off")}
    assert Comparison(compiled, compiled).places == {}
    assert Comparison(eager, of(eager, graphed=True)).places == {"CUDA graphs": ("off", "on")}


def test_ranks_that_one_trace_alone_tells_are_named_in_either_order():
    # The lie: one GPU without torch.distributed beside rank 0 of 8, "1.00× as fast", without a
    # word of ranks.
    one = of(made(matrix=0.1), input_shape="32x3", gpu="GPU:0 A100", recorded={"CUDA": "12.4"})
    ranks = "number of ranks (8 in one alone)"
    first = replace(of(one, recorded={"CUDA": "12.4", "ranks": "8"}), file="b")
    for pair in ((one, first), (first, one)):
        assert (Comparison(*pair).places, Comparison(*pair).untold) == ({}, [ranks])
        assert f"Whether both had the same {ranks} is unavailable" in trace_answer.verdict(pair)
    plain = of(one, recorded={})
    assert Comparison(plain, one).untold == ["CUDA version (12.4 in one alone)"]


def test_what_the_ratio_hangs_on_and_no_trace_tells_is_named():
    one, told = made(matrix=0.1), of(made(matrix=0.1), input_shape="32x3", gpu="GPU:0 A100")
    assert Comparison(one, told).untold == ["batch size", "GPU"]
    assert Comparison(told, told).untold == []
    cpus = [of(r, device="cpu", gpu="") for r in (told, told)]
    assert Comparison(*cpus).untold == ["processor"]


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("32x3x8x8", "32x3x8x8", True),
        ("32x3x8x8", "16x3x8x8", False),
        ("8x128x768", "1024x768", True),  # the same, flat: linear and the addmm of a compiler
        ("8x128x768", "512x768", False),
        ("8x128x768", "1024x8x96", False),
        ("2x<b>", "1x2x<b>", False),
        ("9" * 5000 + "x3", "1x3x3", False),
    ],
)
def test_products_read_as_much(first, second, alike):
    assert foreign_traces.same_input(first, second) is alike


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("32x512x768", "32x256x768 in 4/5, 32x512x768 in 1/5", False),
        ("4x8 in 1/2, 4x9 in 1/2", "4x8 in 1/2, 4x9 in 1/2", True),
        ("4x8 in 1/2, 4x9 in 1/2", "4x8 in 2/3, 4x9 in 1/3", False),
        ("2x4x8 in 1/2, 4x4x8 in 1/2", "16x8 in 1/2, 8x8 in 1/2", True),  # flat
        ("2x4x8 in 1/2, 4x2x8 in 1/2", "8x8", True),
        ("2x4x8 in 1/2, 4x4x8 in 1/2", "8x8", False),
        ("4x8 in 1/0, 4x9 in 1/2", "4x8", False),
        ("2x<b> in 1/2, 3x3x<b> in 1/2", "2x<b>", False),
    ],
)
def test_unequal_batches_read_as_much_where_their_shares_of_the_steps_agree(first, second, alike):
    assert foreign_traces.same_input(first, second) is alike
    assert foreign_traces.same_input(second, first) is alike


def test_unequal_batches_that_differ_are_named():
    shapes = [f"32x{length}x768" for length in (512, 256, 128, 64, 32)]
    one = of(made(matrix=0.1), input_shape=shapes[0])
    two = of(one, input_shape=f"{shapes[1]} in 4/5, {shapes[0]} in 1/5")
    many = of(one, input_shape=", ".join(f"{shape} in 1/5" for shape in shapes))
    assert Comparison(one, two).works == {
        "input of the first product": (
            "32x512x768", "32x256x768 in 4/5 and 32x512x768 in 1/5 of the steps"
        )
    }  # fmt: skip
    ((_, said),) = Comparison(one, many).works.values()
    assert said == (
        "32x512x768 in 1/5, 32x256x768 in 1/5, 32x128x768 in 1/5 and others in the rest of "
        "the steps"
    )
    assert Comparison(many, many).works == {}


def test_two_different_gpus_of_a_process_are_named():
    first, second = (of(made(matrix=0.1), gpu=f"GPU:{n} A100") for n in (0, 1))
    assert Comparison(first, second).places == {"GPU number": ("0", "1")}
    said = trace_answer.verdict([first, replace(second, file="b")])
    assert ", but GPU number 0 against 1" in said


TF32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tt_align1>(Params)"


def test_types_of_the_matrix_work_are_those_of_most_of_it():
    # The lies: "Both do most of their matrix work in float32", of 40 %; TF32 taken for lower
    # precision than bfloat16.
    def mixed(*shares):
        names = (CONV, HALF, "Cijk_Ailk_Bljk_unknown")
        rows = [Operation("op", "", "forward", "conv2d", kernel, share, 1)
                for kernel, share in zip(names, shares, strict=True) if share]  # fmt: skip
        one = made(matrix=1.0)
        return Recording("a", replace(one.trace, operations=rows, step_s=sum(shares)))

    assert (mixed(0.4, 0.3, 0.3).main_type, mixed(0.4, 0.3, 0.3).precision) == ("", 0)
    assert (mixed(0.3, 0.6, 0.1).main_type, mixed(0.3, 0.6, 0.1).precision) == ("float16", 2)
    assert (mixed(0.2, 0.2, 0.6).main_type, mixed(0.2, 0.2, 0.6).precision) == ("", None)
    assert made(TF32, matrix=0.1).precision == 1


def test_a_single_step_without_products_or_a_backward_pass_is_cut_short():
    one = of(made(memory=0.1, times=(0.1,)), trains=True)
    assert one.cut_short
    assert not one.told
    assert trace_report.cause_rows(one).empty
    for other in (
        of(one, trains=None),
        of(one, steps=2),
        of(made(memory=0.1, matrix=0.002, times=(0.1,)), trains=True),
        of(made(memory=0.1, unknown=0.01, times=(0.1,)), trains=True),
        of(one, operations=[r._replace(part="backward") for r in one.trace.operations]),
    ):
        assert other.told
