"""The table of policies: written down once more here, so that a row cannot change unnoticed."""

import dataclasses

import pytest

from mptexp.spec import policies
from mptexp.spec.number_formats import FORMATS
from mptexp.spec.policies import ARITHMETICS, POLICIES, POLICY_ROWS, Policy
from mptexp.training import capability

# Name: compute dtype, variable dtype, arithmetic, whether TF32 must be on.
EXPECTED = {
    "float32": ("float32", "float32", "float32", False),
    "tensorfloat32": ("float32", "float32", "tensorfloat32", True),
    "mixed_float16": ("float16", "float32", "float16", None),
    "mixed_bfloat16": ("bfloat16", "float32", "bfloat16", None),
    "float16": ("float16", "float16", "float16", None),
    "bfloat16": ("bfloat16", "bfloat16", "bfloat16", None),
    "float8": ("bfloat16", "float32", "float8_e4m3fn", None),
    "int8": ("float32", "float32", "float32", False),
    "int8_weights": ("float32", "float32", "float32", False),
    "int4": ("float32", "float32", "float32", False),
}
NEEDLESS = {"quantization"}
PARTS = {field.name for field in dataclasses.fields(Policy)} - NEEDLESS


def test_the_policies_in_their_order():
    rows = POLICY_ROWS.values()
    found = {p.name: (p.compute_dtype, p.variable_dtype, p.arithmetic, p.tf32) for p in rows}
    assert found == EXPECTED
    assert tuple(EXPECTED) == POLICIES == tuple(POLICY_ROWS)


def test_keras_knows_each_policy_by_its_types():
    names = {name: row.keras_name for name, row in POLICY_ROWS.items()}
    assert names == {name: name for name in names} | {
        "tensorfloat32": "float32",
        "float8": "mixed_bfloat16",
        **dict.fromkeys(("int8", "int8_weights", "int4"), "float32"),
    }
    promised = {name: row.promised for name, row in POLICY_ROWS.items()}
    assert (promised["tensorfloat32"], promised["mixed_float16"]) == ("float32", "float16")
    assert promised["float8"] == "float8_e4m3fn"
    assert (promised["int8"], promised["int8_weights"]) == ("int8", "int8 weights")
    trained = [name for name, row in POLICY_ROWS.items() if not row.inference_only]
    assert set(names) - set(trained) == {"int8", "int8_weights", "int4"}


def test_every_type_is_a_number_format_and_every_flag_is_recorded():
    types = {t for p in POLICY_ROWS.values() for t in (p.compute_dtype, p.variable_dtype)}
    assert types | set(ARITHMETICS) <= set(FORMATS)
    flags = {flag for row in ARITHMETICS.values() for flag in row.cpu_flags}
    assert flags <= set(capability.INSTRUCTION_SETS)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_row_that_lacks_a_part_is_refused(part):
    row = dataclasses.asdict(POLICY_ROWS["float32"])
    del row[part]
    with pytest.raises(TypeError, match=part):
        Policy(**row)


@pytest.mark.parametrize(
    ("part", "value"),
    [("arithmetic", "float12"), ("colour", ""), ("colour", "grey"), ("marker", "")],
)
def test_a_row_with_an_unusable_part_is_refused(part, value):
    with pytest.raises(ValueError, match=f"{part}.*{value}"):
        dataclasses.replace(POLICY_ROWS["float32"], **{part: value})


@pytest.mark.parametrize("part", ["name", "colour", "marker"])
def test_two_rows_that_a_reader_cannot_tell_apart_are_refused(part):
    first = POLICY_ROWS["float32"]
    twin = dataclasses.replace(POLICY_ROWS["float16"], **{part: getattr(first, part)})
    with pytest.raises(ValueError, match=f"share a {part}"):
        policies.by_name(first, twin)
