import pytest
from builders import CARD, record, tables, written_sweep

from mptexp.analysis import sweep_tables
from mptexp.analysis.sweep_tables import Options
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir


def test_latencies_of_runs_whose_timings_are_not_valid_are_left_out():
    alone, beside = record(block=0), record(block=1)
    for made in (alone, beside):
        made["latencies_s"] = [0.1, 0.2, 0.3]
        made["timing"]["latency_warmup"] = 1
    beside["marks"] = [f"{schema.VOID}: 2 runs shared this machine's processors"]
    found = tables([alone, beside]).latencies
    assert set(found.run_id) == {alone["run_id"]}


def test_the_options_of_a_report_are_those_of_its_params_file(tmp_path):
    place = SweepDir(tmp_path)
    assert sweep_tables.options(place) == Options()
    place.params.write_text("matrix: {policy: [float32]}\nequivalence_margin: 0.02\n")
    assert sweep_tables.options(place) == Options(equivalence_margin=0.02)


def test_records_are_read_back_as_tables(tmp_path):
    place = SweepDir(tmp_path)
    for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
        made = record(policy, step_s=step_s) | {"samples": [{"time": 0.0}]}
        store.write_record(place.record(made["run_id"]), made)
    found = sweep_tables.load(place)
    assert found.speedups.speedup.tolist() == [pytest.approx(2)]
    assert len(found.epochs) == 2
    assert not any(name in r for r in found.records for name in sweep_tables.RAW)


def test_a_result_is_computed_once_for_each_sweep():
    computed = []

    @sweep_tables.once
    def counted(tables, margin):
        computed.append(margin)
        return [margin]

    one, other = tables([record()]), tables([record()])
    assert counted(one, 1) is counted(one, 1)
    assert counted(one, 2) == [2]
    assert counted(other, 1) is not counted(one, 1)
    assert computed == [1, 2, 1]


def sampled(place, samples, kind):
    """What the device read over time in a sweep of one run with these samples."""
    card = CARD | {"kind": kind, "capability": [7, 0]}  # whose default is float32, as the record's
    made = record() | {"environment": card, "samples": samples}
    store.write_record(place.record(made["run_id"]), made)
    return sweep_tables.device_samples(place, tables([made]))


def counted(times, used_s):
    pairs = zip(times, used_s, strict=True)
    return [{"time": at, "own_cpu_s": used, "processors": 2} for at, used in pairs]


def test_no_processor_is_used_more_than_wholly(tmp_path):
    # The lie: "Utilization reaches 123 % in float32", of the last millisecond of a run.
    samples = counted([0.0, 0.25, 0.5, 0.75, 0.751], [0.0, 0.4, 0.8, 1.31, 1.314])
    found = sampled(SweepDir(tmp_path), samples, "cpu")
    assert found.seconds.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert found.utilization_frac.tolist()[1:] == pytest.approx([0.8, 0.8, 1.0])


def test_a_gpus_utilization_is_not_that_of_the_processor(tmp_path):
    # The lie: "Utilization reaches 12 %", of a GPU whose driver does not tell it.
    samples = counted([0.0, 0.25, 0.5], [0.0, 0.06, 0.12])
    assert sampled(SweepDir(tmp_path), samples, "gpu").empty
    told = [one | {"utilization": 0.9} for one in samples]
    assert sampled(SweepDir(tmp_path), told, "gpu").utilization_frac.tolist() == [0.9] * 3


def test_a_search_with_another_model_or_memory_is_known(tmp_path):
    # The lie: "The largest batch is 64 (not 72)", of a network that was edited after the search.
    place = written_sweep(tmp_path, "A100", 1.0, runs=1)
    (record, *_), _ = store.read_records(place)

    def others():
        return sweep_tables.load(place).attempts.other.tolist()

    for change, other in (
        ({}, False),
        ({"identity": record["identity"] | {"model_source": "edited"}}, True),
        ({"environment": record["environment"] | {"device_memory_bytes": 2**33}}, True),
        ({"environment": {}, "identity": {}}, False),  # of an attempt that left none
    ):
        store.write_record(place.search.runs / record["run_id"] / "record.json", record | change)
        assert others() == [other]


def test_an_option_that_is_not_allowed_is_none(tmp_path):
    # Once no report at all: a TypeError, in the middle of a table of costs.
    place = written_sweep(tmp_path, "A100", 1.0, runs=1)
    for text in ("price_per_hour: x", "price_per_hour: -3", "equivalence_margin: [1]"):
        place.params.write_text(f"matrix: {{policy: [float32]}}\n{text}\n")
        tables = sweep_tables.load(place)
        assert tables.options == sweep_tables.Options()
        assert text.partition(":")[0] in tables.asked.unknown
    place.params.write_text("matrix: {policy: [float32]}\nprice_per_hour: 2.5\n")
    assert sweep_tables.load(place).options.price_per_hour == 2.5


def test_readings_side_by_side_are_of_one_point(tmp_path):
    # The lie: "reaches 90 % in float32 and 30 % in mixed_float16", of a V100 and of an A10.
    made, place = [], SweepDir(tmp_path)
    for device, policy in (("V100", "float32"), ("A10", "float32"), ("A10", "mixed_float16")):
        one = record(policy)
        one["parameters"]["gpu_model"] = device
        read = counted([0.0, 0.25, 0.5], [0.0, 0.06, 0.12])
        one["samples"] = [sample | {"utilization": 0.9 * (device == "V100")} for sample in read]
        one["environment"] = CARD | {"kind": "gpu", "device": device, "capability": [7, 0]}
        one["identity"] |= {name: one["environment"][name] for name in ("device", "cpu", "cores")}
        one["run_id"] = f"{len(made):012x}"
        store.write_record(place.record(one["run_id"]), one)
        made.append(one)
    found = sweep_tables.device_samples(place, tables(made))
    assert set(found.run_id) == {one["run_id"] for one in made[1:]}
