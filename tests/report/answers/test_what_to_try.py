import re
from dataclasses import replace

import pytest
from builders import FLOAT16, FLOAT32, KINETO, TENSORFLOAT32, UNKNOWN, kineto_step, recording, typed

from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.foreign_traces import Recording
from mptexp.report import trace_report
from mptexp.report.answers import trace_answer, what_to_try
from mptexp.traces import kineto
from mptexp.traces.operations import CAPABILITY, Operation


def test_what_to_try_is_in_the_framework_s_words():
    table = trace_report.cause_rows(recording())
    assert "DataLoader" in table[table.Cause == "wait for input"]["What to try"].item()


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        ("volta_sgemm_128x64_nn", "from Ampere on"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "in few bits already"),
    ],
)
def test_the_advice_for_matrix_work_knows_what_it_is_in(kernel, advice):
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step)]
    renamed = [{**e, "name": kernel} if "wgrad" in e["name"] else e for e in events]
    table = trace_report.cause_rows(Recording("a.json", kineto.read(renamed, {})))
    assert advice in table[table.Cause.str.startswith("matrix work")]["What to try"].item()


def advised(cause, **changes):
    made = typed(changes.pop("kernel", FLOAT32), "a", **changes)
    return what_to_try.advice(cause, made)


def test_the_advice_follows_from_what_was_recorded():
    # The lies: fused optimizers against an inference; of TF32 "it is in few bits already", where
    # 16 bits were to be had; on a V100 a model in bfloat16, which it only emulates.
    assert advised("host", trains=True).endswith("graphs, fused optimizers (fused=True)")
    assert advised("host", trains=False) == "a larger batch, torch.compile or CUDA graphs"
    assert "gradients" not in advised("communication", trains=False)
    assert "optimizer's state on the GPU" in advised("on the host", trains=True)
    assert advised("matrix", kernel=TENSORFLOAT32).startswith("16 bits in place of TF32")
    assert "in few bits already" in advised("matrix", kernel=FLOAT16)
    # The lie: "16 bits (or TF32)" for a training in 64 bits, and of a P100 that it gets no faster.
    in_64_bits = advised("matrix", kernel="volta_dgemm_64x64_nn", recorded={CAPABILITY: "6.1"})
    assert in_64_bits.startswith("float32, where its digits suffice")
    v100, a100 = "GPU:0 Tesla V100-SXM2-32GB", "GPU:0 NVIDIA A100-SXM4-80GB"
    assert advised("casts", gpu=v100) == "channels_last throughout"
    assert "bfloat16" in advised("casts", gpu=a100)
    assert advised("loss scaling", gpu=v100) == "a fixed loss_scale, which costs less"
    assert advised("memory").startswith("torch.compile, which fuses it; channels_last; ")


def test_a_host_that_awaits_its_device_again_and_again_is_told_so():
    # The lie: torch.compile and CUDA graphs, neither of which captures an .item(), of 40 in a step.
    assert advised("host", awaited=40.0, trains=True).startswith("fewer .item(), .cpu() and print")
    assert ".item()" not in advised("host", awaited=1.0, trains=True)


def test_against_copies_of_batches_no_workers_are_advised():
    # The lie: "more workers of the DataLoader", of 66 % in copies of pinned memory.
    copied = Operation("input", seconds=0.002, count=1)
    made = typed(FLOAT32, "a", framework="PyTorch", step_s=0.003, step_times=(0.003,))
    made = replace(made, trace=replace(made.trace, operations=[*made.trace.operations, copied]))
    assert what_to_try.advice("input", made).startswith("batches as uint8 that are cast on")
    loaded = replace(made, trace=replace(made.trace, loaded_s=0.002))
    assert "workers of the DataLoader" in what_to_try.advice("input", loaded)


def with_kernels(*names, **changes):
    """A recording in which kernels of these names ran too, 100 us each."""
    more = [device(name, 1700 + 100 * n) for n, name in enumerate(names)]
    made = recording(more=more)
    return replace(made, trace=replace(made.trace, **changes))


def device(name, start):
    kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 20, "ts": start,
            "dur": 100, "args": {"device": 0}}  # fmt: skip


def test_what_a_trace_shows_to_be_done_is_not_advised():
    # The lies: torch.compile of a training whose kernels it made; gradients in 16 bits, of
    # collectives in bfloat16; CUDA graphs, of a step that replays them.
    compiled = with_kernels("triton_poi_fused_add_gelu_7")
    assert what_to_try.advice("memory", compiled) == "channels_last, fused normalizations"
    assert what_to_try.advice("host", compiled).startswith("a larger batch, CUDA graphs, fused")
    graphed = with_kernels(graphed=True)
    assert what_to_try.advice("host", graphed).startswith("a larger batch, torch.compile, fused")
    both = with_kernels("triton_poi_fused_add_gelu_7", graphed=True)
    assert what_to_try.advice("host", both).startswith("a larger batch, fused")
    for memory, advised in (("Pinned", False), ("Pageable", True)):
        copy = device(f"Memcpy HtoD ({memory} -> Device)", 1700)
        copied = recording(lacking=("Pageable",), more=[copy])
        assert ("pin_memory" in what_to_try.advice("input", copied)) is advised
    for name, advised in (("bf16", False), ("f32", True)):
        sent = with_kernels(f"ncclDevKernel_AllReduce_Sum_{name}_RING_LL(x)")
        assert ("gradients in 16 bits" in what_to_try.advice("communication", sent)) is advised


def test_what_a_gpu_or_its_images_show_to_be_done_is_not_advised():
    # The lies: torch.compile on a Tesla P100, for which Triton has no code; channels_last, of
    # kernels that have it; communication during the backward pass, which other work hid; zeroing
    # gradients as PyTorch does since 2.0; larger matrices by a larger batch that has no memory.
    assert "torch.compile" not in advised("memory", recorded={CAPABILITY: "6.0"})
    assert "torch.compile" in advised("memory", recorded={CAPABILITY: "7.0"})
    assert "zero_grad" not in advised("host", trains=True)
    fed = {"framework": "TensorFlow", "in_use": ("num_parallel_calls",)}
    assert advised("input", **fed).startswith("cache, prefetch(AUTOTUNE)")
    last = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
    assert "channels_last" not in advised("memory", kernel=last)
    changed = with_kernels("void cudnn::ops::nchwToNhwcKernel<half>(x)")
    assert "channels_last" in what_to_try.advice("memory", changed)
    gathered = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    for hidden_s, told in ((0.0, True), (1.0, False)):
        sent = with_kernels(gathered, hidden_s=hidden_s)
        text = what_to_try.advice("communication", sent)
        assert ("communication during the backward pass" in text) is told


def test_what_little_work_shows_is_not_done_to_the_rest():
    # The lies: no gradients in 16 bits, which 4 ms of float32 lacked beside a metric in bfloat16;
    # no torch.compile of a step one kernel of which was compiled.
    sent = "ncclDevKernel_AllReduce_Sum_{}_RING_LL(x)".format
    metric = [sent("bf16"), *[sent("f32")] * 3]
    assert "gradients in 16 bits" in what_to_try.advice("communication", with_kernels(*metric))
    # What does not tell its type, such as weights that are gathered, says nothing against it.
    gathered = [sent("bf16"), *["ncclDevKernel_AllGather_RING_LL(x)"] * 3]
    assert "16 bits" not in what_to_try.advice("communication", with_kernels(*gathered))
    plain = ["void at::native::vectorized_elementwise_kernel<4, x>"] * 25
    compiled = with_kernels("triton_poi_fused_add_7", *plain)
    assert "torch.compile" in what_to_try.advice("memory", compiled)


@pytest.mark.parametrize("name", ["ncclDevKernel_SendRecv(x)", "ncclKernel_AllToAll_RING_LL(x)"])
def test_what_one_device_sends_another_is_no_gradient(name):
    # The lie: "gradients in 16 bits, communication during the backward pass" against what the
    # stages of a pipeline send each other.
    text = what_to_try.advice("communication", with_kernels(name))
    assert not re.search("gradient|backward", text)
    assert "what is sent in 16 bits" in text


def with_capability(version, gpu="GPU:0 NVIDIA X", **changes):
    made = typed(changes.pop("kernel", FLOAT32), "a", gpu=gpu, **changes)
    recorded = {**made.trace.recorded, CAPABILITY: version}
    return replace(made, trace=replace(made.trace, recorded=recorded))


def test_a_gpu_is_known_by_its_compute_capability():
    # The lies: TF32 and a model in bfloat16 on a Quadro GV100, which no list of names had; 16 bits
    # against matrix work on a Quadro P5000, where they have 1/64 of float32's rate.
    gv100 = with_capability("7.0", "GPU:0 Quadro GV100")
    assert what_to_try.advice("matrix", gv100) == "float16; a smaller or sparser model"
    assert "bfloat16" not in what_to_try.advice("casts", gv100)
    later = with_capability("12.0", "GPU:0 NVIDIA RTX 2000 V100")  # a name that misleads
    assert "TF32" in what_to_try.advice("matrix", later)
    assert "bfloat16" in what_to_try.advice("casts", later)
    for version, faster in (("5.2", False), ("6.0", True), ("6.1", False), ("7.5", True)):
        text = what_to_try.advice("matrix", with_capability(version))
        assert text.startswith("float16") is faster
    assert "few bits already" in what_to_try.advice(
        "matrix", with_capability("6.1", kernel=FLOAT16)
    )


def test_channels_last_is_advised_only_where_there_are_channels():
    # The lie: "channels_last" against the casts of a transformer without a convolution.
    assert "channels_last" in advised("casts", gpu="GPU:0 Tesla V100-SXM2-32GB")
    assert "channels_last" in advised("memory")
    rows = recording().trace.operations
    products = [row._replace(op="addmm", kernel=FLOAT32) for row in rows if row.state == "op"]
    product = {"operations": products, "gpu": "GPU:0 Tesla V100-SXM2-32GB"}
    memory, casts = advised("memory", **product), advised("casts", **product)
    assert memory == "torch.compile, which fuses it; fused normalizations"
    # Where nothing of that is of use, what holds everywhere stands there rather than a dash.
    assert casts == "fewer changes of type or layout between layers"


def test_an_optimizer_that_is_fused_by_another_library_is_fused():
    # The lie: "fused optimizers (fused=True)" of a training with apex's FusedAdam.
    apex = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float>>"
    assert "fused=True" in what_to_try.advice("host", recording())
    assert "fused=True" not in what_to_try.advice("host", with_kernels(*[apex] * 3))


def test_a_cpu_is_not_advised_what_only_gpus_have():
    # The lie: "CUDA graphs", "pin_memory with non_blocking copies", "decoding on the GPU" of a
    # training on a CPU.
    for framework in ("TensorFlow", "JAX", "PyTorch", ""):
        for cause in LABELS:
            text = advised(cause, framework=framework, device="cpu", gpu="")
            assert not re.search("CUDA|GPU|pin_memory", text), (framework, cause)
    assert advised("host", device="cpu").startswith("a larger batch, torch.compile, fused")
    assert advised("input", device="cpu").startswith("more workers of the DataLoader, prefetch")


def test_advice_is_not_in_the_keys_of_a_sweep():
    # The lie: "compile the step (jit on), fewer or cheaper normalizations, do not compile the step
    # (jit off)", of a trace of Keras's.
    for framework in ("TensorFlow", "JAX", "PyTorch", ""):
        for cause in LABELS:
            text = advised(cause, framework=framework)
            assert not re.search(r"\(jit o|input_mode", text), (framework, cause)
    assert advised("memory", framework="TensorFlow").startswith("jit_compile=True, which fuses it")
    assert advised("memory", framework="") == "fewer or cheaper normalizations"


def test_time_in_the_allocator_is_named_and_no_larger_batch_advised():
    # The lie: "host and launch overhead 69 %: a larger batch", of a training 65 of whose 100 ms
    # pass in cudaMalloc and cudaFree as its GPU's memory is full.
    calls = [
        {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": 1, "ts": at, "dur": 70,
         "args": {}}
        for step in (0, 1000)
        for name, at in (("cudaFree", step + 820), ("cudaMalloc", step + 895))
    ]  # fmt: skip
    made = recording(more=calls)
    assert made.share("allocation") == pytest.approx(0.14)
    assert made.share("host") == pytest.approx(recording().share("host") - 0.14)
    assert "allocating and freeing memory 14 %" in trace_answer.verdict([made])
    table = trace_report.cause_rows(made).set_index("Cause")["What to try"]
    assert "expandable_segments" in table["allocating and freeing memory (cudaMalloc, cudaFree)"]
    assert "a larger batch" not in " ".join(table)


def test_matrix_work_whose_names_do_not_tell_is_not_said_to_be_in_32_bits():
    table = trace_report.cause_rows(typed(UNKNOWN, "a"))
    advice = table[table.Cause.str.startswith("matrix work")]["What to try"].item()
    assert "unless it is in them already (its type is unavailable)" in advice
