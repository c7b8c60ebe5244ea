import ml_dtypes
import numpy as np
import pytest

from mptexp.spec import number_formats
from mptexp.spec.number_formats import FORMATS, Dynamic, Fixed, Float, named

OTHERS = FORMATS.keys() - {"float32", "tensorfloat32"}
TYPES = {name: getattr(ml_dtypes, name, getattr(np, name, None)) for name in OTHERS}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_ranges_equal_those_of_ml_dtypes(name):
    info, target = ml_dtypes.finfo(TYPES[name]), FORMATS[name]
    assert target.largest == float(info.max)
    assert target.lowest == float(info.min)
    assert target.smallest_normal == float(info.smallest_normal)
    assert target.smallest_subnormal == float(info.smallest_subnormal)


def test_spacing_is_the_distance_of_neighbours():
    values = np.arange(2**15, dtype=np.uint16).view(np.float16)[: 31 * 1024].astype(float)
    target = FORMATS["float16"]
    assert [target.spacing(-x) for x in values[:-1]] == np.diff(values).tolist()
    assert Fixed(2, 14).spacing(1.5) == 2.0**-14


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Float(9, 3), "allowed: 2 to 8 and 1 to 23"),
        (lambda: Float(8, 7, "fn"), "does not fit into float32"),
        (lambda: Float(5, 2, bias=120), "does not fit into float32"),
        (lambda: Fixed(20, 8), "allowed: 2 to 24 bits together"),
        (lambda: named("float9"), "'float9' is no number format; allowed: float32, tensorfloat32"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*FORMATS, "<2,14>"])
def test_formats_have_names(name):
    assert named(name) == FORMATS.get(name, Fixed(2, 14))


@pytest.mark.parametrize("name", ["<0,0>", "<8 8>", "dynamic<99>", "dynamic", "float61", ""])
def test_names_of_formats_are_checked(name):
    for parse in (number_formats.storage_format, number_formats.activation_format):
        with pytest.raises(ValueError, match=r"^policy, .*dynamic<BITS> or <IL,FL> of 2 to 24"):
            parse(name)
    with pytest.raises(ValueError, match=r"^policy, dynamic"):
        number_formats.storage_format("binary")


def test_names_of_formats_are_read():
    assert number_formats.activation_format("binary") == number_formats.Binary()
    assert number_formats.activation_format("dynamic<10>") == Dynamic(10)
    assert number_formats.storage_format("<8,8>") == Fixed(8, 8)
    assert number_formats.storage_format("float16") == FORMATS["float16"]
    assert number_formats.storage_format("policy") is None
    assert number_formats.activation_format("mxfp8_e4m3") == number_formats.BLOCKS["mxfp8_e4m3"]


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_float_has_as_many_bits_as_in_ml_dtypes(name):
    assert FORMATS[name].bits == ml_dtypes.finfo(TYPES[name]).bits


def test_formats_say_how_many_bits_a_value_has():
    sizes = {"tensorfloat32": 19, "<2,14>": 16, "dynamic<10>": 10, "binary": 1, "mxfp4_e2m1": 4}
    assert {name: number_formats.activation_format(name).bits for name in sizes} == sizes


def test_blocks_are_those_of_the_specification():
    powers = {name: block.largest_power for name, block in number_formats.BLOCKS.items()}
    assert list(powers.values()) == [8, 15, 4, 2, 2]
    assert {block.size for block in number_formats.BLOCKS.values()} == {32}
    with pytest.raises(ValueError, match=r"^policy, dynamic"):
        number_formats.storage_format("mxfp8_e4m3")
