import io
import json

import pytest

from mptexp.errors import ParamsError
from mptexp.traces import json_events

EVENTS = [{"name": "a", "ph": "X", "ts": 1.5, "args": {"n": [1, 2]}}, {"name": 'ü\\"}]'}]


def read(text, about=None):
    content = text.encode() if isinstance(text, str) else text
    return list(json_events.events(io.BytesIO(content), {} if about is None else about))


@pytest.mark.parametrize("chunk", [1, 7, 2**20])
def test_events_are_read_whatever_stands_around_them(chunk, monkeypatch):
    monkeypatch.setattr(json_events, "CHUNK", chunk)
    about = {}
    whole = {"schemaVersion": 12, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "z": "]"}
    assert read(json.dumps(whole), about) == EVENTS
    assert about == {"schemaVersion": 12, "deviceProperties": [{"id": 0}], "z": "]"}
    assert read(json.dumps(EVENTS, indent=2)) == EVENTS


def test_what_is_cut_off_at_any_byte_is_one_sentence():
    text = json.dumps({"schemaVersion": 12, "traceEvents": EVENTS, "traceName": "x"})
    for length in range(1, len(text)):
        with pytest.raises(ParamsError, match=r"^it (was cut off|is no)"):
            read(text[:length])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1}', "without traceEvents"),
        ('"text"', "no trace in JSON"),
        ("{a: 1}", "no JSON"),
        ('{"traceEvents": 3}', "without traceEvents"),
        ("[" * 200_000, "nested too deeply"),
        ('{"x": ' + '{"x": ' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_one_sentence(text, sentence):
    with pytest.raises(ParamsError, match=sentence):
        read(text)


def test_what_never_ends_is_not_held(monkeypatch):
    monkeypatch.setattr(json_events, "MOST_EVENT", 1000)
    monkeypatch.setattr(json_events, "CHUNK", 100)
    with pytest.raises(ParamsError, match="not JSON that a profiler writes"):
        read('[{"name": "' + "a" * 5000)
    monkeypatch.setattr(json_events, "MOST_TEXT", 3000)
    with pytest.raises(ParamsError, match="larger than"):
        read("[" + " " * 5000)
