import json
import os
import re
from dataclasses import replace

import pytest
from builders import FLOAT32, KINETO, kineto_step, recording, typed

from mptexp import api
from mptexp.diagnosis.foreign_traces import Comparison, Recording
from mptexp.report import trace_report
from mptexp.report.answers import trace_answer
from mptexp.traces import kineto
from mptexp.traces.operations import Operation

KEYS = {"file", "framework", "devices", "gpu", "steps", "step_s", "rows", "arithmetic",
        "layer_share", "unexplained_share", "notes"}  # fmt: skip


@pytest.fixture
def pair():
    return [recording(), recording("after <b>.json", lacking=("DataLoader", "Memcpy"))]


def test_the_data_have_the_keys_that_are_promised(pair):
    content = json.loads(json.dumps(trace_report.content(pair)))
    assert set(content) == {"traces", "speedup", "verdict"}
    assert [set(trace) for trace in content["traces"]] == [KEYS, KEYS]
    assert content["speedup"] == pytest.approx(1)
    trace = content["traces"][0]
    assert sum(row["share"] for row in trace["rows"]) == pytest.approx(1)
    assert set(trace["rows"][0]) == {"cause", "seconds", "share"}
    assert set(trace["arithmetic"][0]) == {"type", "tensor_cores", "share"}
    assert trace_report.content(pair[:1])["speedup"] is None


def test_tables_stand_under_their_headings(pair):
    tables = trace_report.tables(pair)
    assert list(tables)[:4] == [
        "Where the time of a step goes",
        "What to try: before",
        "What to try: after <b>",
        "Where they differ",
    ]
    first = tables["Where the time of a step goes"]
    assert first.iloc[-1].tolist()[1:] == ["1.000", "1.000"]
    alone = trace_report.tables(pair[:1])
    assert {"What to try", "Layers"} <= set(alone)


def test_a_column_without_a_layer_is_left_out(pair, monkeypatch):
    assert "Layer" in trace_report.difference_rows(Comparison(*pair))
    joined = Comparison(*pair).joined.assign(layer="")
    monkeypatch.setattr(Comparison, "joined", joined)
    assert "Layer" not in trace_report.difference_rows(Comparison(*pair))


def test_the_page_loads_nothing_and_shows_names_as_they_are(pair):
    page = trace_report.page(pair, "Recorded by somebody.")
    assert "after &lt;b&gt;" in page
    assert "after <b>" not in page
    assert "<title>Provisional: after &lt;b&gt; is 1.00× as fast as before; " in page
    assert page.index('class="banner"') < page.index("<figure>") < page.index("What to do")
    assert "Recorded by somebody" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    assert page == trace_report.page(pair, "Recorded by somebody.")


def conv(*shape):
    return {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 9, "tid": 3, "ts": 1,
            "dur": 1, "args": {"Input Dims": [list(shape)]}}  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"more": [conv(32, 3)]}, {"more": [conv(64, 3)]}, "32x3 against 64x3"),
        ({}, {"lacking": ("Backward", "backward", "wgrad", "Optimizer")}, "training against infer"),
    ],
)
def test_recordings_of_other_work_have_no_ratio(first, second, why):
    pair = [recording(**first), recording("after.json", **second)]
    sentence = trace_answer.verdict(pair)
    assert "before and after are not compared" in sentence
    assert why in sentence
    assert trace_report.content(pair)["speedup"] is None
    assert "Where they differ" not in trace_report.tables(pair)
    assert trace_answer.shrink_sentence(Comparison(*pair)) == ""
    assert "not of the same work</title>" in trace_report.page(pair)


TOLD = {"input_shape": "32x3", "gpu": "GPU:0 NVIDIA A100", "recorded": {}}


@pytest.mark.parametrize(
    ("first", "second", "faster"),
    [
        ({"step_times": (2.0, 2.1)}, {"step_times": (1.0, 1.9)}, "after"),
        ({"step_times": (1.0, 1.9)}, {"step_times": (2.0, 2.1)}, "before"),
        # The lie: "train as in after", which was slower in one step, or of which one was recorded.
        ({"step_times": (1.8, 2.1)}, {"step_times": (1.0, 1.9)}, ""),
        ({"step_times": (2.0,), "steps": 1}, {"step_times": (1.0, 1.9)}, ""),
        # Perhaps by its batch or its GPU; by its GPU.
        ({"step_times": (2.0, 2.1), "input_shape": ""}, {"step_times": (1.0, 1.9)}, ""),
        ({"step_times": (2.0, 2.1), "gpu": "GPU:0"}, {"step_times": (1.0, 1.9)}, ""),
        ({"step_times": (2.0, 2.1), "gpu": "GPU:0 V100"}, {"step_times": (1.0, 1.9)}, ""),
    ],
)
def test_only_what_is_known_to_be_faster_is_to_be_copied(first, second, faster):
    pair = [typed(FLOAT32, "before.json", **TOLD | first)]
    pair.append(typed(FLOAT32, "after.json", **TOLD | second))
    assert Comparison(*pair).comparable
    todo = [heading for heading in trace_report.tables(pair) if "What to try" in heading]
    page = trace_report.page(pair)
    assert ("train as in" in page) == bool(faster)
    if faster:
        # The lie: the slower one's causes, below the advice for the faster one.
        assert todo == [f"What to try: {faster}"]
        assert f"train as in {faster}; to go on from there: " in page
    else:
        assert todo == ["What to try: before", "What to try: after"]


def test_what_to_do_is_against_what_bounds_the_step():
    # The lie: "The host bounds this training", 60 %, and "What to do: 16 bits", of 40 % of work.
    made = recording()
    states = {"op": 0.40, "host": 0.32, "idle": 0.28}
    rows = [
        Operation(state, op="aten::conv2d" * (state == "op"), seconds=seconds)
        for state, seconds in states.items()
    ]
    times = {"step_s": 1.0, "step_times": (1.0, 1.0), "operations": rows}
    bound = Recording("a.json", replace(made.trace, **times))
    assert trace_answer.title([bound]) == "The host bounds this training: 60 % of a step"
    assert "of its step the device waits for its host" in trace_answer.title([bound, bound])
    for recordings in ([bound], [bound, bound]):
        said = trace_report.page(recordings).partition("What to do")[2].partition("</p>")[0]
        assert "a larger batch" in said
        assert "16 bits" not in said


def test_a_recording_of_kernels_alone_says_what_it_cannot_tell():
    # The lie: "host and launch overhead 31 %", which were waits for batches that nobody recorded.
    events = [e for step in range(3) for e in kineto_step(KINETO[1], step)]
    kernels = [
        e for e in events if e["cat"] not in ("cpu_op", "python_function", "user_annotation")
    ]
    notes = trace_answer.notes(Recording("a.json", kineto.read(kernels, {})))
    assert any("a wait for a batch cannot be told" in note for note in notes)


def test_a_recording_without_times_gives_no_share_of_time():
    untimed = recording()
    object.__setattr__(untimed, "trace", replace(untimed.trace, timed=False))
    assert trace_answer.verdict([untimed]).startswith(
        "This recording has hardware counters instead"
    )
    content = trace_report.content([untimed])["traces"][0]
    assert (content["step_s"], content["rows"]) == (None, [])
    assert "Where the time of a step goes" not in trace_report.tables([untimed])
    assert trace_report.content([untimed, recording("b.json")])["speedup"] is None
    assert "ms" not in trace_answer.verdict([untimed])


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
    assert "Conv2d_0?" in trace_report.page([made])


def test_notes_of_a_recording_are_in_the_data():
    made = typed(FLOAT32, "a", untrained=4)
    (note,) = trace_report.content([made])["traces"][0]["notes"]
    assert note == "4 steps without a backward pass left out, as evaluations have none"


def test_a_first_screen_says_that_much_of_a_recording_is_in_no_mean():
    # The lie: the mean of 4 % of what was recorded, of which only the end of the page spoke.
    few = typed(FLOAT32, "few.json", step_times=(0.01, 0.01), untrained=4, untrained_s=0.18)
    left = "4 steps without a backward pass left out, as evaluations have none: 180 ms"
    alone = first_screen([few])
    assert f'<ul class="banner minor"><li>{left}' in alone
    whole = typed(FLOAT32, "whole.json")
    assert f"<li>few: {left}" in first_screen([whole, few])
    little = replace(few, trace=replace(few.trace, untrained_s=0.001))
    assert "left out" not in first_screen([little])
    assert "left out" in trace_report.page([little])


def test_an_inference_is_not_asked_about_as_a_training():
    # The contradiction: "the host bounds this inference", under a question about a training step.
    made = typed(FLOAT32, "a.json")
    for trains in (True, False, None):
        page = first_screen([replace(made, trace=replace(made.trace, trains=trains))])
        assert ("of a training step go?" in page) is (trains is True)


def first_screen(recordings):
    return re.search('<header class="lead">.*?</header>', trace_report.page(recordings), re.S)[0]
