import json
import os
import re
from dataclasses import replace

import pytest
from builders import KINETO, kineto_step
from builders import without as left

from mptexp import api
from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.recording import Comparison, Recording
from mptexp.report import recordings
from mptexp.traces import kineto

KEYS = {"file", "framework", "devices", "gpu", "steps", "step_s", "rows", "arithmetic",
        "layer_share", "unexplained_share", "notes"}  # fmt: skip


def recording(file="before.json", without=(), steps=2, more=()):
    events = [e for step in range(steps) for e in kineto_step(KINETO[1], step)] + list(more)
    return Recording(file, kineto.read(left(events, *without), {}))


@pytest.fixture
def pair():
    return [recording(), recording("after <b>.json", without=("DataLoader", "Memcpy"))]


def test_the_sentence_says_what_bounds_the_training():
    sentence = recordings.verdict([recording()])
    # Of 1000 us 450 pass with neither work nor a wait, and 50 with an idle device.
    assert sentence.startswith("The host bounds this training: for 50 % of a step of 1 ms")
    assert "wait for input 25 %" in sentence


def test_two_recordings_claim_nothing_beyond_themselves(pair):
    sentence = recordings.verdict(pair)
    assert sentence.startswith("Within these recordings after <b> is 1.00× as fast as before")
    assert "wait for input fell by 0.25 ms" in sentence


def test_a_single_step_of_each_has_no_spread():
    pair = [recording(steps=1), recording("after.json", steps=1, without=("Memcpy",))]
    assert "one step of each, whose spread is unknown" in recordings.verdict(pair)
    assert "any step over any other" not in recordings.verdict(pair)


def test_the_data_have_the_keys_that_are_promised(pair):
    content = json.loads(json.dumps(recordings.content(pair)))
    assert set(content) == {"traces", "speedup", "verdict"}
    assert [set(trace) for trace in content["traces"]] == [KEYS, KEYS]
    assert content["speedup"] == pytest.approx(1)
    trace = content["traces"][0]
    assert sum(row["share"] for row in trace["rows"]) == pytest.approx(1)
    assert set(trace["rows"][0]) == {"cause", "seconds", "share"}
    assert set(trace["arithmetic"][0]) == {"type", "tensor_cores", "share"}
    assert recordings.content(pair[:1])["speedup"] is None


def test_tables_stand_under_their_headings(pair):
    tables = recordings.tables(pair)
    assert list(tables)[:3] == ["Where the time of a step goes", "What to try", "Where they differ"]
    first = tables["Where the time of a step goes"]
    assert first.iloc[-1].tolist()[1:] == ["1.000", "1.000"]
    assert "Layers" in recordings.tables(pair[:1])


def test_what_to_try_is_in_the_framework_s_words():
    table = recordings.cause_rows(recording())
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
    table = recordings.cause_rows(Recording("a.json", kineto.read(renamed, {})))
    assert advice in table[table.Cause.str.startswith("matrix work")]["What to try"].item()


def advised(cause, **changes):
    made = typed(changes.pop("kernel", FLOAT32), "a", **changes)
    return recordings._try(cause, made)


def test_the_advice_follows_from_what_was_recorded():
    # The lies: fused optimizers against an inference; of TF32 "it is in few bits already", where
    # 16 bits were to be had; on a V100 a model in bfloat16, which it only emulates.
    assert "fused optimizers (fused=True), zero_grad" in advised("host", trains=True)
    assert advised("host", trains=False) == "a larger batch, torch.compile or CUDA graphs"
    assert "gradients" not in advised("communication", trains=False)
    assert advised("matrix", kernel=TENSORFLOAT32).startswith("16 bits in place of TF32")
    assert "in few bits already" in advised("matrix", kernel=FLOAT16)
    v100, a100 = "GPU:0 Tesla V100-SXM2-32GB", "GPU:0 NVIDIA A100-SXM4-80GB"
    assert advised("casts", gpu=v100) == "channels_last throughout"
    assert "bfloat16" in advised("casts", gpu=a100)
    assert advised("loss scaling", gpu=v100) == "a fixed loss_scale, which costs less"
    assert advised("memory").startswith("torch.compile, which fuses it; channels_last; ")


def with_kernels(*names, **changes):
    """A recording in which kernels of these names ran too, 100 us each."""
    more = [device(name, 1700 + 100 * n) for n, name in enumerate(names)]
    made = recording(more=more)
    return replace(made, trace=replace(made.trace, **changes))


def device(name, start):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": start,
            "dur": 100, "args": {"device": 0}}  # fmt: skip


def test_what_a_trace_shows_to_be_done_is_not_advised():
    # The lies: torch.compile of a training whose kernels it made; gradients in 16 bits, of
    # collectives in bfloat16; CUDA graphs, of a step that replays them.
    compiled = with_kernels("triton_poi_fused_add_gelu_7")
    assert recordings._try("memory", compiled) == "channels_last, fused normalizations"
    assert recordings._try("host", compiled).startswith("a larger batch, CUDA graphs, fused")
    graphed = with_kernels(graphed=True)
    assert recordings._try("host", graphed).startswith("a larger batch, torch.compile, fused")
    both = with_kernels("triton_poi_fused_add_gelu_7", graphed=True)
    assert recordings._try("host", both).startswith("a larger batch, fused")
    for name, advised in (("bf16", False), ("f32", True)):
        sent = with_kernels(f"ncclDevKernel_AllReduce_Sum_{name}_RING_LL(x)")
        assert ("gradients in 16 bits" in recordings._try("communication", sent)) is advised


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
    assert "allocating and freeing memory 14 %" in recordings.verdict([made])
    table = recordings.cause_rows(made).set_index("Cause")["What to try"]
    assert "expandable_segments" in table["allocating and freeing memory (cudaMalloc, cudaFree)"]
    assert "a larger batch" not in " ".join(table)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("resnet_fp32.json", "resnet_fp16.json"), ("fp32", "fp16")),
        (("run1.json", "run12.json"), ("run1", "run12")),
        (("a_.json", "a_b.json"), ("a_", "b")),
        (("same.json", "same.json"), ("first", "second")),
    ],
)
def test_two_recordings_are_named_by_what_tells_them_apart(files, names):
    table = recordings.tables([recording(file) for file in files])["Where they differ"]
    assert [name for name in table if name.endswith(", ms")][:2] == [f"{n}, ms" for n in names]


def test_a_column_without_a_layer_is_left_out(pair, monkeypatch):
    assert "Layer" in recordings.difference_rows(Comparison(*pair))
    joined = Comparison(*pair).joined.assign(layer="")
    monkeypatch.setattr(Comparison, "joined", joined)
    assert "Layer" not in recordings.difference_rows(Comparison(*pair))


def test_the_page_loads_nothing_and_shows_names_as_they_are(pair):
    page = recordings.page(pair, "Recorded by somebody.")
    assert "after &lt;b&gt;" in page
    assert "after <b>" not in page
    assert "<title>Provisional: after &lt;b&gt; is 1.00× as fast as before; " in page
    assert page.index('class="banner"') < page.index("<figure>") < page.index("What to do")
    assert "Recorded by somebody" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    assert page == recordings.page(pair, "Recorded by somebody.")


def test_the_best_of_16_bits_is_said(pair):
    said = recordings.shrink_sentence(Comparison(*pair))
    assert "16 bits would make after <b> at most 1.25× faster: " in said


def test_notes_name_what_was_left_out():
    one = recording(without=("cudaLaunchKernel",))
    bare = kineto.read([dict(e, args={}) for s in range(2) for e in kineto_step(KINETO[1], s)], {})
    assert recordings.notes(one) == []
    assert any("launches" in note for note in recordings.notes(Recording("a", bare)))


def conv(*shape):
    return {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 9, "tid": 3, "ts": 1,
            "dur": 1, "args": {"Input Dims": [list(shape)]}}  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"more": [conv(32, 3)]}, {"more": [conv(64, 3)]}, "32x3 against 64x3"),
        ({}, {"without": ("Backward", "backward", "wgrad", "Optimizer")}, "training against infer"),
    ],
)
def test_recordings_of_other_work_have_no_ratio(first, second, why):
    pair = [recording(**first), recording("after.json", **second)]
    sentence = recordings.verdict(pair)
    assert "before and after are not compared" in sentence
    assert why in sentence
    assert recordings.content(pair)["speedup"] is None
    assert "Where they differ" not in recordings.tables(pair)
    assert recordings.shrink_sentence(Comparison(*pair)) == ""
    assert "not of the same work</title>" in recordings.page(pair)


def test_recordings_of_two_gpus_are_compared_and_the_gpus_named():
    before, after = recording(), recording("after.json", steps=3)
    for made, model in ((before, "A100"), (after, "H100")):
        object.__setattr__(made, "trace", replace(made.trace, gpu=f"GPU:0 {model}"))
    assert "GPU A100 against H100" in recordings.verdict([before, after])


def test_a_recording_without_times_gives_no_share_of_time():
    untimed = recording()
    object.__setattr__(untimed, "trace", replace(untimed.trace, timed=False))
    assert recordings.verdict([untimed]).startswith("This recording has hardware counters instead")
    content = recordings.content([untimed])["traces"][0]
    assert (content["step_s"], content["rows"]) == (None, [])
    assert "Where the time of a step goes" not in recordings.tables([untimed])
    assert recordings.content([untimed, recording("b.json")])["speedup"] is None
    assert "ms" not in recordings.verdict([untimed])


def test_what_bounds_is_said_of_training_or_inference_and_of_what_was_cut_off():
    made = recording()
    object.__setattr__(made, "trace", replace(made.trace, trains=False, after_s=0.002, unusual=1))
    assert "The host bounds this inference" in recordings.verdict([made])
    assert "not counted: 2 ms after it" in recordings.verdict([made])
    assert any("more than three times the median" in note for note in recordings.notes(made))


def test_what_steps_that_are_left_out_hold_is_said():
    # The lie: steps "left out, as an evaluation would be", which took 69 % of the recording.
    made = recording()
    left = ({"host": 0.004}, {"op": 0.009, "input": 0.0035, "host": 0.0005})
    trace = replace(made.trace, warm_up=1, unusual=1, left=left)
    first, later = recordings.notes(replace(made, trace=trace))
    assert first.endswith(
        "warm-up: 4 ms, 21 % of all recorded steps (host and launch overhead 100 %)"
    )
    assert later.endswith(": 13 ms, 68 % of all recorded steps (work 69 % and wait for input 27 %)")


def test_names_that_are_no_text_are_shown_and_written(tmp_path):
    # A kernel's name with half a character, and a file's that is not UTF-8: tracebacks.
    events = [e for step in range(3) for e in kineto_step(KINETO[1], step)]
    for event in events:
        event["name"] = event["name"].replace("Conv2d_0", "Conv2d_0\ud800")
    about = {"deviceProperties": [{"id": 0, "name": "A100 \udfff"}]}
    file = tmp_path / os.fsdecode(b"\xff\x1b[31m.json")
    file.write_text(json.dumps({"traceEvents": events} | about))
    (made,) = api.recordings([tmp_path])
    assert made.file == "\\udcff\\x1b[31m.json"
    assert "Conv2d_0?" in set(made.rows.layer)
    assert "A100 ?" in made.trace.gpu
    assert "Conv2d_0?" in recordings.page([made])


def test_what_the_recordings_do_not_tell_is_said(pair):
    assert "Whether both had the same batch size and GPU is unavailable. In after <b>" in (
        recordings.verdict(pair)
    )


def typed(name, file, **changes):
    """A recording all of whose matrix work is in one kernel."""
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step)]
    of = ("wgrad", "sm80_xmma")
    renamed = [{**e, "name": name} if any(k in e["name"] for k in of) else e for e in events]
    trace = kineto.read(renamed, {})
    return Recording(file, replace(trace, **changes))


FLOAT32 = "volta_sgemm_128x64_nn"
TENSORFLOAT32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tt_align1>(Params)"
FLOAT16 = "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
UNKNOWN = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32"


@pytest.mark.parametrize(
    ("first", "second", "said", "not_said"),
    [
        (FLOAT32, FLOAT16, "did not shrink matrix work", "The first recording is that"),
        (FLOAT16, FLOAT32, "The first recording is that in lower precision", "16 bits would"),
        # The lies: of TF32 beside float16 the first said to be the lower; of what is in 16 bits
        # already what 16 bits would give; of what is unknown the same.
        (TENSORFLOAT32, FLOAT16, "16 bits would make a at most", "The first recording is that"),
        (TENSORFLOAT32, FLOAT32, "The first recording is that in lower", "did not shrink"),
        (FLOAT16, FLOAT16, "", "16 bits would"),
        (
            UNKNOWN,
            FLOAT16,
            "If a is in 32 bits (its type is unavailable), 16 bits",
            "did not shrink",
        ),
    ],
)
def test_what_16_bits_give_is_said_of_what_is_in_more(first, second, said, not_said):
    sentence = recordings.shrink_sentence(Comparison(typed(first, "a"), typed(second, "b")))
    assert said in sentence
    assert bool(said) == bool(sentence)
    assert not_said not in sentence


def test_what_shrank_by_less_than_a_quarter_is_not_said_to_have_stayed(monkeypatch):
    pair = Comparison(typed(FLOAT32, "a"), typed(FLOAT16, "b"))
    table = pair.by_cause
    table.loc["matrix", "candidate_s"] = 0.76 * table.loc["matrix", "baseline_s"]
    monkeypatch.setattr(Comparison, "by_cause", table)
    sentence = recordings.shrink_sentence(pair)
    assert re.search(r"precision shrank matrix work \(.*\) by less than a quarter\.", sentence)
    assert "did not shrink" not in sentence


def test_lower_precision_is_not_blamed_for_what_a_larger_batch_may_do():
    # The lie: "Lower precision did not shrink memory-bound work", of a batch of 64 beside one of
    # 128 in traces without shapes.
    told = {"input_shape": "32x3", "gpu": "GPU:0 A100"}
    pair = [typed(FLOAT32, "a", **told), typed(FLOAT16, "b", **told)]
    assert recordings.shrink_sentence(Comparison(*pair)).startswith("Lower precision did not")
    pair = [typed(FLOAT32, "a", gpu="GPU:0 A100"), typed(FLOAT16, "b", gpu="GPU:0 A100")]
    assert recordings.shrink_sentence(Comparison(*pair)).startswith(
        "If both had the same batch size, lower precision did not shrink matrix work"
    )


def test_lower_precision_is_not_blamed_for_another_gpu():
    pair = typed(FLOAT32, "a", gpu="GPU:0 A100"), typed(FLOAT16, "b", gpu="GPU:0 V100")
    assert "did not shrink" not in recordings.shrink_sentence(Comparison(*pair))
    assert " (other GPU); " in recordings._title(pair)


def test_more_than_16_bits_could_give_is_said():
    slow = typed(FLOAT32, "a", step_times=(0.01, 0.01), step_s=0.01)
    said = recordings.shrink_sentence(Comparison(slow, typed(FLOAT16, "b")))
    assert said.endswith("faster by more than that, so something else changed too.")
    assert "at most" not in said  # The lie: beside a larger ratio.


def test_nothing_but_matrix_work_has_no_bound():
    def only(file, kernel):
        made = typed(kernel, file)
        rows = [row for row in made.trace.operations if row.kernel == kernel]
        return Recording(file, replace(made.trace, operations=rows, step_s=rows[0].seconds))

    said = recordings.shrink_sentence(Comparison(only("a", FLOAT32), only("b", FLOAT16)))
    assert "Nearly all of a is matrix work, so it sets no bound" in said
    assert "×" not in said


def test_matrix_work_whose_names_do_not_tell_is_not_said_to_be_in_32_bits():
    table = recordings.cause_rows(typed(UNKNOWN, "a"))
    advice = table[table.Cause.str.startswith("matrix work")]["What to try"].item()
    assert "unless it is in them already (its type is unavailable)" in advice


def test_notes_of_a_recording_are_in_the_data():
    made = typed(FLOAT32, "a", untrained=4)
    (note,) = recordings.content([made])["traces"][0]["notes"]
    assert note == "4 steps without a backward pass left out, as evaluations have none"
