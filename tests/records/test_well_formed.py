"""Records whose parts are right by themselves and cannot be analysed together."""

import copy
import json

import pytest
from builders import record
from support import PROJECT

from mptexp.records import schema, store, well_formed
from mptexp.records.store import RecordError

TRACED = PROJECT / "reports/published/why-cpu/diagnosis/runs"
SAMPLED = PROJECT / "reports/published/loss-scale-cpu/runs"


def first(folder, name):
    records = (json.loads(p.read_text()) for p in sorted(folder.glob("*/record.json")))
    return next(r for r in records if r.get(name))


def without(content, *steps):
    """A copy of a record in which a place is empty."""
    changed = copy.deepcopy(content)
    node = changed
    for step in steps[:-1]:
        node = node[step]
    del node[steps[-1]]
    return changed


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        (("timing",), "timing: Field required in a traced run"),
        (("timing", "step_s"), "timing.step_s: Field required"),
        (("in_force", "emulated"), "in_force.emulated: Field required"),
        (("environment",), "environment: Field required"),
        (("notebook",), "notebook: Field required"),
        (("profile", "device"), "profile.device: Field required"),
        (("profile", "input_busy_s"), "profile.input_busy_s: Field required"),
        (("profile", "missing"), "profile.missing: Field required"),
        (("work",), "work: Field required"),
        (("work", "layers"), "work.layers: Field required"),
        (("work", "layers", 0, "alone_s"), "work.layers.0.alone_s: Field required"),
        (("work", "layers", 0, "channels"), "work.layers.0.channels: Field required"),
    ],
)
def test_a_traced_run_has_what_a_diagnosis_needs(steps, missing):
    traced = first(TRACED, "profile")
    assert well_formed.fault(traced) == ""
    assert missing in well_formed.fault(without(traced, *steps))
    assert well_formed.fault(without(traced, *steps[:1]) | {"profile": None}) == ""


def test_latencies_have_a_median(tmp_path):
    made = record() | {"latencies_s": [0.1, 0.2]}
    assert (
        well_formed.fault(made) == "timing.latency_warmup: Field required in a run with latencies"
    )
    made["timing"] |= {"latency_p50_s": 0.15, "latency_p99_s": 0.2, "latency_warmup": 0}
    assert well_formed.fault(made) == ""
    path = tmp_path / "runs" / made["run_id"] / "record.json"
    store.write_record(path, made)
    assert store.read_record(path)["latencies_s"] == [0.1, 0.2]
    made["timing"]["latency_warmup"] = -3
    store.write_record(path, made)
    with pytest.raises(RecordError, match="latency_warmup: Input should be greater than or equal"):
        store.read_record(path)


@pytest.mark.parametrize("part", ["samples", "layers"])
def test_histograms_of_nothing_are_none(part):
    sampled = first(SAMPLED, "exponents")
    assert schema.fault(sampled) == ""
    sampled["exponents"][part] = []
    assert f"exponents.Exponents.{part}: List should have at least 1 item" in schema.fault(sampled)


def test_samples_are_rows():
    assert "samples.1: Input should be a valid dictionary" in schema.fault(
        record() | {"samples": [{"time": 1}, 1]}
    )
