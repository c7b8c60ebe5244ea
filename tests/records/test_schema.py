"""What a record may hold; hostile and damaged files are in tests/system/test_security.py."""

import copy

import pytest
from builders import record

from mptexp.records import schema, store
from mptexp.spec.run import Run

RECORD = record()


def test_a_record_has_no_fault_with_or_without_further_keys():
    assert schema.fault(RECORD) == ""
    assert schema.fault(RECORD | {"more": {"x": [1]}}) == ""


def test_statuses_that_are_final_are_some_of_them():
    assert set(schema.FINAL) < set(schema.STATUSES)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("schema",), 2, "not a record of schema 1"),
        (("status",), "fine", "status: Input should be 'ok', 'oom'"),
        (("run_id",), "../../x", "run_id: String should match pattern"),
        (("parameters", "batch_size"), 0, "parameters.batch_size: Input should be greater"),
        (("parameters", "policy"), "float12", "parameters.policy: Input should be 'float32'"),
        (("timing", "step_s"), 0.0, "timing.step_s: Input should be greater than 0.000"),
        (("replicas",), 0, "replicas: Input should be greater than or equal to 1"),
        (("marks",), "a", "marks: Input should be a valid list"),
        (
            ("validated",),
            {"images": 9, "digest": "0123456789ab", "correct": "ff"},
            "validated: Value error, 2 digits do not hold a bit for each of 9 images",
        ),
        (("ended_at",), "yesterday", "ended_at: String should match pattern"),
    ],
)
def test_a_fault_is_one_sentence(where, value, words):
    broken = copy.deepcopy(RECORD)
    inner = broken
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    assert schema.fault(broken).startswith(words)


def test_a_record_says_of_an_absolute_notebook_its_last_part(tmp_path):
    bare = schema.bare(Run(gpu_model="V100"), "/home/alice/acme/mine.py")
    assert bare["notebook"] == "mine.py"
    path = tmp_path / "runs" / bare["run_id"] / "record.json"
    store.write_record(path, bare | {"status": "failed", "error": "no"})
    assert store.read_record(path)["run_id"] == bare["run_id"]
