import math
import re
from importlib import resources

import pytest

from mptexp.analysis import published
from mptexp.records import schema
from mptexp.spec.names import MODELS


def test_numbers_are_those_of_the_study():
    table = published.table()
    keydana = table[table.study == "keydana2020"]
    times = keydana[keydana.metric == "step_time_epoch20"]
    v100 = times[times.device.str.contains("V100") & (times.batch_size == 32)]
    assert dict(zip(v100.policy, v100.value, strict=True)) == {"mixed_float16": 28, "float32": 30}
    oom = times[times.status == "oom"]
    assert len(oom) == 3
    assert oom.value.isna().all()


def test_every_row_has_a_number_or_says_why_not_and_a_source():
    table = published.table()
    assert set(table.status) <= set(schema.STATUSES)
    assert (table.value.isna() == (table.status != "ok")).all()
    assert table.source.str.len().gt(10).all()
    assert not table.duplicated().any()


def test_no_path_of_a_machine_is_in_the_table():
    text = resources.files("mptexp.analysis").joinpath("published.csv").read_text()
    assert not re.search(r"(?<![\w.:/-])/(work|home|root|tmp|mnt|usr|Users)/", text)


def test_models_are_those_that_can_be_run():
    assert set(published.MODELS.values()) <= set(MODELS)
    assert set(published.MODELS) <= set(published.table().model)


def of(model, phase="train"):
    return published.pairs({model}, {phase})


def test_a_published_speedup_is_baseline_over_candidate_in_time():
    found = of("keydana_cnn")
    row = found[found.device.str.contains("V100") & (found.batch_size_baseline == 512)].iloc[0]
    assert row.speedup == pytest.approx(415 / 377)
    throughput = of("resnet50").query("unit == 'img/s'").iloc[0]
    assert (throughput.value_baseline, throughput.value_mixed) == (909, 2375)
    assert throughput.speedup == pytest.approx(2375 / 909)


def test_the_speedups_agree_with_those_that_the_sources_state():
    table = published.table()
    stated = table[table.metric.str.startswith("train_speedup_vs")]
    found = of("resnet50").query("unit == 'img/s'").set_index(["study", "device"]).speedup
    assert len(stated) == 12
    for row in stated.itertuples():
        assert found[row.study, row.device] == pytest.approx(row.value, abs=0.02), row


def test_policies_pair_at_a_batch_size_or_each_at_its_own():
    pairs = of("keydana_cnn").dropna(subset=["batch_size_baseline", "batch_size_mixed"])
    assert len(pairs) == 15
    assert (pairs.batch_size_baseline == pairs.batch_size_mixed).all()
    nvidia = of("resnet50").query("unit == 'img/s'").set_index(["study", "device"])
    v100 = nvidia.loc[("nvidia_dle_rn50_tf1", "1x V100 16GB (DGX-1)")]
    assert (v100.batch_size_baseline, v100.batch_size_mixed) == (128, 256)
    assert (v100.value_baseline, v100.value_mixed) == (412, 1270)


@pytest.mark.parametrize("model", sorted(set(published.MODELS.values())))
@pytest.mark.parametrize("phase", ["train", "inference"])
def test_each_published_number_stands_in_one_pair_in_the_tables_order(model, phase):
    found, table = of(model, phase), published.table()
    mine = table[(table.model_here == model) & (table.phase == phase)]
    mine = mine[mine.metric.str.fullmatch(published.METRICS)]
    numbers = [*found.row_baseline.dropna(), *found.row_mixed.dropna()]
    assert sorted(numbers) == sorted(mine.row)
    assert found.row_baseline.fillna(found.row_mixed).is_monotonic_increasing
    assert found.system.notna().all()


def test_a_number_without_its_other_policy_stands_alone():
    row = of("banerjee_cnn").iloc[0]
    assert (row.policy_baseline, row.value_baseline, row.unit) == ("float32", 29, "ms")
    assert math.isnan(row.value_mixed)
    assert math.isnan(row.speedup)


def test_training_and_inference_are_apart():
    both = [of("resnet50", phase) for phase in ("train", "inference")]
    assert all(len(found) for found in both)
    assert not set(both[0].metric) & set(both[1].metric)
    assert published.pairs({"resnet50"}, set()).empty
    assert of("mine:model").empty


def test_accuracies_are_percent_and_have_no_speedup():
    found = of("banerjee_cnn").set_index("metric").value_baseline
    assert found["val_accuracy_epoch20"] == pytest.approx(97.84)
    assert found["test_accuracy"] == pytest.approx(97.41)
    accuracies = of("resnet50").query("unit == '%'")
    assert accuracies.speedup.isna().all()
    paper = accuracies[accuracies.study == "micikevicius2018"].iloc[0]
    assert (paper.value_baseline, paper.value_mixed) == (75.92, 76.04)


@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        ("8x A100 40GB (DGX A100)", 8),
        ("LambdaCloud 4xV100 16GB", 4),
        ("LambdaCloud 2x V100 16GB", 2),
        ("1x Tesla P100", 1),
        ("Tesla V100 16GB (cc 7.0)", 1),
        ("RTX 4090", 1),
    ],
)
def test_how_many_devices_a_name_means(name, replicas):
    table = published.table()
    assert set(table[table.device == name].replicas) == {replicas}


def test_published_peaks_are_in_flops_and_bytes_per_second():
    assert published.peak("NVIDIA H200", "bfloat16") == 989.4e12
    assert published.peak("NVIDIA H200", "tensorfloat32") == 494.7e12
    assert published.peak("NVIDIA H200") == 4.8e12


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA A100-SXM4-40GB", "Tesla T4"])
def test_published_peaks_are_in_proportion(device):
    assert 8 < published.peak(device, "float16") / published.peak(device, "float32") < 17
    intensity = published.peak(device, "float16") / published.peak(device)
    assert 100 < intensity < 300  # FLOP per byte at which memory and arithmetic take as long


def test_a_peak_that_is_not_known_is_not_guessed():
    assert math.isnan(published.peak("AMD EPYC (CPU)", "float32"))
    assert math.isnan(published.peak("NVIDIA H200 NVL"))
    assert math.isnan(published.peak("Tesla V100-SXM2-16GB", "bfloat16"))
