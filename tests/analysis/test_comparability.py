import pytest

from mptexp.analysis import comparability

ONE = {
    "code": "aa", "model_source": "bb", "data": "cc", "initial_weights": "w0", "data_order": "o0",
    "versions": {"keras": "3.15.1", "tensorflow": "2.21.0"}, "device": "CPU", "cores": 2,
}  # fmt: skip


def names(left, right, *axes):
    return [d.name for d in comparability.differences(left, right, axes or ("policy",))]


def test_runs_that_are_alike_have_no_difference():
    assert names(ONE, dict(ONE)) == []


@pytest.mark.parametrize("name", list(ONE))
def test_whatever_differs_is_named_with_both_values(name):
    other = ONE | {name: {"keras": "3.16"} if name == "versions" else "other"}
    assert all(n.split(".")[0] == name for n in names(ONE, other))
    assert names(ONE, other)


def test_a_value_that_one_side_lacks_is_a_difference():
    (only,) = comparability.differences(ONE, ONE | {"variables": {"XLA_FLAGS": "x"}})
    assert (only.name, only.left, only.right) == ("variables.XLA_FLAGS", "", "x")


def test_what_follows_from_the_axis_is_no_difference():
    other = ONE | {"device": "H200", "cores": 32}
    assert names(ONE, other, "gpu_model") == []
    assert names(ONE, other, "policy") == ["device", "cores"]
    assert names(ONE, other | {"code": "zz"}, "gpu_model") == ["code"]


def test_the_larger_half_of_a_sweep_is_compared_and_of_equal_ones_the_later():
    edited = ONE | {"model_source": "edited"}
    assert comparability.largest_alike([ONE, ONE, edited]) == [0, 1]
    assert comparability.largest_alike([ONE, edited]) == [1]
    assert comparability.largest_alike([]) == []


def test_weights_of_other_blocks_do_not_part_runs():
    later = ONE | {"initial_weights": "w1", "data_order": "o1"}
    assert comparability.shared(ONE) == comparability.shared(later)


def made(gpu_model="CPU", at="1", status="ok", **identity):
    parameters = {"gpu_model": gpu_model, "backend": "jax", "model": "m:f", "dataset": "digits"}
    known = {"parameters": parameters, "status": status, "ended_at": at}
    return known | {"identity": ONE | identity}


def test_instructions_that_a_virtual_machine_hides_are_a_difference():
    # One name, version and number of cores: 1.77 times faster with AMX, 1.54 times slower without.
    sets = (["avx512f", "avx512_bf16", "amx_bf16"], ["avx512f", "avx512_bf16"])
    sides = [comparability.of(made() | {"environment": {"instruction_sets": x}}) for x in sets]
    (only,) = comparability.differences(*sides)
    assert (only.name, only.right) == ("instruction_sets", "avx512f avx512_bf16")
    assert comparability.differences(*sides, axes=("gpu_model",)) == []
    assert comparability.of(made(instruction_sets="own"))["instruction_sets"] == "own"


def named(left, right):
    found = comparability.between(comparability.latest(left), comparability.latest(right))
    return {d.name: (d.left, d.right) for d in found}


def test_what_two_directories_differ_in_is_that_of_their_last_runs():
    before = [made(model_source="old", at="1"), made(at="2"), made(code="x", status="failed")]
    assert named(before, [made()]) == {}
    assert named(before, [made(model_source="new")]) == {"model_source": ("bb", "new")}
    assert named(before, [made(initial_weights="w1")]) == {}


def test_runs_on_images_of_another_size_are_no_change_of_the_data():
    # The lie: a sweep over image_size, resumed, said that its data were not what they were.
    small, large = made(data="small", fed="f1", network="n1"), made(data="large", at="0")
    for record, size in ((small, 8), (large, 16)):
        record["parameters"] |= {"image_size": size}
    known = {comparability.kind(large["parameters"]): {"data": "large"}}
    assert comparability.between(comparability.latest([small]), known) == []
    assert comparability.between(comparability.latest([small, large]), known) == []
    known = {comparability.kind(large["parameters"]): {"data": "edited"}}
    (only,) = comparability.between(comparability.latest([small, large]), known)
    assert (only.name, only.left, only.right) == ("data", "large", "edited")


def test_of_two_directories_only_that_is_compared_which_no_parameter_changes():
    # The lie: two of one study differed "in products_flops", by the batch size run last.
    assert named([made(products_flops=1, fed="a", network="b")], [made(products_flops=2)]) == {}


def test_two_devices_differ_in_what_the_device_is_and_in_nothing_else():
    other = made("H200", device="H200", cores=32)
    assert named([made()], [other]) == {}
    assert named([made()], [made("H200", cores=32, data="dd")]) == {"data": ("cc", "dd")}
    # A device that both have is compared with itself alone.
    assert named([made()], [made(), made("H200", data="dd")]) == {}


def test_of_what_is_known_beforehand_only_that_is_compared():
    known = {comparability.kind(made()["parameters"]): {"code": "new"}}
    (only,) = comparability.between(comparability.latest([made()]), known)
    assert (only.name, only.left, only.right) == ("code", "aa", "new")


def test_records_without_an_identity_have_none():
    assert comparability.of({"run_id": "x"}) is None
    assert comparability.of({"identity": {}}) is None
    assert comparability.of({"identity": ONE}) == ONE  # of whose CPU nothing is known
