import json
import re
from dataclasses import replace

import pytest
from builders import KINETO, kineto_step

from mptexp.diagnosis.recording import Comparison, Recording
from mptexp.report import recordings
from mptexp.traces import kineto

KEYS = {"file", "framework", "devices", "gpu", "steps", "step_s", "rows", "arithmetic",
        "layer_share", "unexplained_share"}  # fmt: skip


def recording(file="before.json", without=(), steps=2, more=()):
    events = [e for step in range(steps) for e in kineto_step(KINETO[1], step)] + list(more)
    kept = [e for e in events if not any(word in e["name"] for word in without)]
    return Recording(file, kineto.read(kept, {}))


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
    assert "<title>Provisional: after &lt;b&gt; is 1.00× as fast as before</title>" in page
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
