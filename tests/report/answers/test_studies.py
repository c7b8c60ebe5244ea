import re

import pytest
from builders import IDENTITY, diverged, published, record, tables

from mptexp.analysis import published as claims
from mptexp.analysis import summary
from mptexp.report.answers import studies

POLICIES = ("float32", "mixed_float16")
RATIO = studies.SPEEDUP


def run(policy, block=0, step_s=0.1, batch_size=32, accuracies=(), **parameters):
    """A record of a run with other parameters, and an accuracy for each epoch."""
    made = record(policy, block, step_s, batch_size, parameters.pop("default", "float32"))
    made["parameters"] |= parameters
    made["run_id"] = f"{policy} {block} {batch_size} {sorted(parameters.items())}"
    if accuracies:
        epochs = enumerate(accuracies, 1)
        made["history"] = [{"epoch": e, "loss": 1.0, "val_accuracy": a} for e, a in epochs]
    return made


def both(blocks=1, **parameters):
    """Runs of both policies; mixed_float16 takes half the time."""
    pairs = (("float32", 0.2), ("mixed_float16", 0.1))
    return [run(p, b, s * 1.5**b, **parameters) for b in range(blocks) for p, s in pairs]


def section(*records):
    return studies.section(tables(list(records)))


def pick(table, device, batch_size):
    rows = table[table.Device.str.startswith(device) & (table["Batch size"] == batch_size)]
    return rows.iloc[0]


def test_a_model_without_published_numbers_has_no_section():
    assert section(run("float32", model="mine:network")) is None


def test_published_and_measured_stand_in_one_row():
    table = section(*both(blocks=3, batch_size=64)).speeds
    row = pick(table, "Tesla V100", "64")
    assert row["Device"] == "Tesla V100 16GB (cc 7.0)"
    assert (row["Published baseline"], row["Published mixed_float16"]) == ("56 ms", "52 ms")
    assert row["Published speedup"] == "1.08×"
    assert (row["Measured baseline"], row["Measured mixed_float16"]) == ("300 ms", "150 ms")
    assert row[RATIO] == "2.00× [2.00, 2.00] (n = 3)"
    assert row["Source"].startswith('<a href="https://blogs.rstudio.com/')
    assert set(table["Batch size"]) == {"64"}  # of the others nothing was measured


def test_what_was_not_measured_is_left_out_and_counted():
    found = section(*both(model="resnet50", batch_size=256, default="tensorfloat32"))
    assert set(found.speeds["Batch size"]) <= {"256", "128 / 256", "256 / 512"}
    assert "–" not in set(found.speeds["Measured mixed_float16"])
    left = len(claims.pairs({"resnet50"}, {"train"})) - len(found.speeds) - len(found.accuracies)
    assert left > 0
    assert f"{left} more rows are left out; all numbers are in the package’s" in found.note


def test_two_batch_sizes_are_compared_by_images_per_second():
    sizes = {"float32": 128, "mixed_float16": 256}
    made = [run(p, 0, 0.1, size, model="resnet50") for p, size in sizes.items()]
    row = pick(section(*made).speeds, "1x V100 16GB", "128 / 256")
    assert (row["Measured baseline"], row["Measured mixed_float16"]) == (
        "1,280 img/s",
        "2,560 img/s",
    )
    assert row[RATIO] == "2.00× (no interval, n = 1)"


def test_a_batch_is_that_of_each_device():
    made = both(model="resnet50", batch_size=2048, replicas=8)
    table = section(*made).speeds
    assert pick(table, "8x A100 40GB", "256")["Measured mixed_float16"] == "20,480 img/s"
    assert not table.Device.str.startswith("1x A100 40GB").any()


def test_an_unstated_batch_size_has_no_measured_speed():
    made = [*both(model="banerjee_resnet50"), *both(model="banerjee_resnet50", batch_size=8)]
    table = section(*made).speeds
    assert "not stated" not in set(table["Batch size"])


@pytest.mark.parametrize(
    ("device", "measured", "default", "found"),
    [
        ("1x V100 16GB", ["float32", "tensorfloat32"], "tensorfloat32", ""),
        ("1x V100 16GB", ["tensorfloat32"], "tensorfloat32", ", TF32"),
        ("1x A100 40GB", ["float32", "tensorfloat32"], "float32", ", TF32"),
        ("1x A100 40GB", ["float32"], "float32", ""),
        ("1x V100 (user)", ["float32", "tensorfloat32"], "tensorfloat32", ", TF32"),
        ("1x V100 (user)", ["float32"], "tensorfloat32", ""),
    ],
)
def test_the_baseline_is_the_one_published_or_the_devices_default(device, measured, default, found):
    made = [
        run(p, 0, 0.1, size, model="resnet50", default=default)
        for p in measured
        for size in (128, 256)
    ]
    table = section(*made).speeds
    cell = table[table.Device.str.startswith(device)].iloc[0]["Measured baseline"]
    assert cell.endswith(f" img/s{found}")


def test_what_was_out_of_memory_and_what_was_not_stated_is_said():
    table = section(*both(batch_size=256)).speeds
    assert pick(table, "Quadro", "256")["Published baseline"] == "out of memory"
    assert pick(table, "Quadro", "256")["Published mixed_float16"] == (
        "1,000 ms (probably rounded)"
    )
    a100 = pick(section(*both(model="resnet50", batch_size=256)).speeds, "1x A100 40GB", "256")
    assert a100["Published baseline"] == "909 img/s, TF32"


def test_the_two_times_on_a_cpu_are_a_ratio_alone():
    made = [*both(cpu_isa="avx2"), *both()]
    part = section(*made)
    assert not part.speeds.Device.str.startswith("Intel").any()
    (told,) = [sentence for sentence in part.sentences if "AVX2" in sentence]
    assert "0.95 times as long as the stock binary" in told
    assert not any("AVX2" in s for s in section(*both()).sentences)  # no two instruction sets


def test_what_else_differs_from_the_study_is_named():
    made = both(normalization="fused", input_mode="keydana")
    for one in made:
        one["in_force"]["jit"] = True
    told = section(*made).differences.set_index("What differs")["Measured here"]
    assert told["XLA (S. Keydana)"] == "on"
    assert told["Batch normalization (S. Keydana)"] == "one fused operation"
    assert told["Resizing (S. Keydana)"] == "the same"
    assert "without compilation" in told["Time of a step (S. Keydana)"]
    told = section(*both()).differences.set_index("What differs")
    assert told.loc["Batch normalization (S. Keydana)", "Measured here"].startswith("Keras 3's")
    assert "validation" in told.loc["Time of a step (S. Keydana)", "Published"]
    signs = section(*both(model="banerjee_resnet50")).differences.set_index("What differs")
    assert signs.loc["Training (A. Banerjee)", "Measured here"] == "neither"


def test_accuracies_are_means_with_n_at_the_published_batch_size():
    made = [
        run(p, b, batch_size=size, accuracies=[0.5, size / 100 + b / 10])
        for p in POLICIES
        for b in range(2)
        for size in (32, 64)
    ]
    rows = section(*made).accuracies.set_index("Accuracy")
    stated, unstated = (
        rows.loc["validation accuracy, epoch 20"],
        rows.loc["validation accuracy, epoch 20, about"],
    )
    assert stated["Published mixed_float16"] == "74.6 %"
    assert stated["Measured mixed_float16"] == "37 % (n = 2, epoch 2)"
    assert unstated["Published baseline"] == "78 %, policy not stated"
    assert unstated["Measured baseline"] == "37 % (n = 2, epoch 2)"
    large = section(*[r for r in made if r["parameters"]["batch_size"] == 64]).accuracies
    assert large["Measured baseline"].tolist() == ["69 % (n = 2, epoch 2)"]


def test_accuracies_name_their_data_and_those_of_trainings_cut_short_are_not_set_beside():
    table = section(*both(dataset="folder:imagenette2-128")).accuracies
    assert set(table["Published on"]) == {"imagenette/320px"}
    assert set(table["Here on"]) == {"folder:imagenette2-128"}
    assert "Here on" not in section(*both()).speeds
    cut = both()
    for each in cut:
        each["timing"]["ended_by"] = "target_ci"
    assert section(*cut).accuracies.empty


@pytest.mark.parametrize("way", [{"dataset": "synthetic"}, {"input_mode": "resident"}])
def test_accuracy_of_what_cannot_be_learned_is_left_out(way):
    assert len(section(run("float32", model="resnet50")).accuracies)
    found = section(*both(model="banerjee_resnet50", **way))
    assert found.accuracies.empty
    assert not any("Measured on" in sentence for sentence in found.sentences)


def test_each_panel_stands_on_its_own():
    slow = [run(p, 0, 0.2, input_mode="keydana") for p in POLICIES]
    table = section(*slow, *both(input_mode="resident")).speeds
    rows = table[table.Device.str.startswith("Titan") & (table["Batch size"] == "32")]
    assert dict(zip(rows["Measured on"], rows[RATIO].str[:5], strict=True)) == {
        "GPU, input as in Keydana 2020": "1.00×",
        "GPU, one batch kept on the device": "2.00×",
    }
    assert set(table["Batch size"]) == {"32"}
    assert "Measured on" not in section(*slow).speeds


def test_training_and_inference_are_told_apart():
    trained = both(model="resnet50", batch_size=256)
    inferred = both(model="resnet50", phase="inference")
    assert set(section(*trained, *inferred).speeds.Phase) == {"train", "inference"}
    assert "Phase" not in section(*both()).speeds


def test_emulation_is_said_beside_the_numbers():
    first, mixed = both()
    assert "emulated" not in section(first, mixed).note
    mixed["in_force"]["emulated"] = True
    assert "mixed_float16 is *emulated: slower is expected*" in section(first, mixed).note


def banerjee(blocks):
    made = both(blocks, model="banerjee_resnet50", accuracies=[0.5] * 4 + [0.7])
    for each in made:
        each["fit_s"] = 9.0 if each["parameters"]["policy"] == "mixed_float16" else 10.0
    return made


def test_repeats_stand_beside_the_published_ones():
    opening, measured, claims = section(*banerjee(3)).sentences
    assert "over 5 runs of each policy, mean training time in mixed_float16 over that in" in opening
    assert "0.94×" in opening
    assert "66 %, against 86 % in float32" in opening
    of = r"on GPU at batch size 32, model banerjee\_resnet50: training time in mixed_float16 over "
    assert f"{of}that in float32" in measured  # once of one model among others, and none named
    assert "0.90× [0.90, 0.90] (n = 3)" in measured
    assert measured.endswith("after 5 epochs 70.0 %, against 70.0 % in float32.")
    assert claims.startswith(
        "Claims about mixed_float16 without a table: at least 3× faster on Volta"
    )


def test_the_worst_accuracy_says_how_many_runs_diverged():
    # The lie: "the worst validation accuracy after 5 epochs 70.0 %", where two of five diverged.
    made = banerjee(5)
    lost = [diverged(each) for each in made if each["parameters"]["policy"] == "mixed_float16"][3:]
    ids = {each["run_id"] for each in lost}
    _, measured, _ = section(*lost, *(each for each in made if each["run_id"] not in ids)).sentences
    worst = "70.0 % in 3 of 5 runs (2 diverged), against 70.0 % in float32."
    assert measured.endswith(f"the worst validation accuracy after 5 epochs {worst}")


def test_repeats_in_bfloat16_stand_there_where_a_device_emulates_float16():
    made = banerjee(3)
    for each in made:
        if each["parameters"]["policy"] == "mixed_float16":
            each["parameters"]["policy"] = "mixed_bfloat16"
    _, measured, *_ = section(*made).sentences
    assert "training time in mixed_bfloat16 over that in float32 is 0.90×" in measured


def test_repeats_are_of_that_network_and_of_both_policies():
    assert len(section(run("float32", model="resnet50")).sentences) == 1
    assert len(section(run("float32", model="banerjee_resnet50")).sentences) == 2


def differs(*records):
    return section(*records).differences.set_index("What differs")


def test_what_differs_is_said_for_both_sides():
    made = run("float32", dataset="folder:~/signs", image_size=64, width=0.5)
    made["environment"] = {"packages": {"tensorflow": "2.21.0", "keras": "3.15.1"}, "commit": ""}
    table = differs(made)
    here, there = table["Measured here"], table["Published"]
    assert here["Device"] == "GPU"
    assert there["Device"].startswith("Tesla V100 16GB (cc 7.0); Titan XP")
    assert here["Software"] == "tensorflow 2.21.0, keras 3.15.1, without XLA"
    assert here["Images, width of the network"] == "folder:~/signs, 64 × 64, width 0.5"
    assert "12894 train / 500 val" in there["Images, width of the network"]
    assert (here["Input"], there["Input"][:6]) == ("prefetched input", "resize")
    assert (here["Intervals of times"], there["Intervals of times"]) == (
        "none: too few repeats",
        "none",
    )
    assert differs(*both(3))["Measured here"]["Intervals of times"] == "95 % over blocks"
    unknown = [made | {"identity": None} for made in both(3)]
    assert differs(*unknown)["Measured here"]["Intervals of times"] == "none: not valid"
    failed = run("mixed_float16", 5) | {"status": "failed", "in_force": {}, "timing": {}}
    assert differs(*both(), failed)["Measured here"]["Software"] == "without XLA"
    many = differs(run("float32", model="resnet50", batch_size=256))
    assert many["Published"]["Device"].endswith("; 1x V100 (user)")
    assert many["Published"]["Input"] == "not stated"


def test_images_width_and_software_of_a_measurement_are_named():
    found = differs(run("float32"))["Measured here"]
    assert found["Images, width of the network"] == "digits, 32 × 32, width 1"
    assert found["Software"] == "without XLA"


def test_without_anything_measured_beside_them_published_numbers_are_no_section():
    bad = run("float32") | {"status": "failed", "in_force": {}, "timing": {}, "history": []}
    assert section(bad) is None


def test_committed_records_are_set_beside():
    found = published("quickstart-cpu").tables
    row = pick(studies.section(found).speeds, "Tesla V100", "128")
    # The lie: a median here, and a mean in the headline table.
    steps = summary.headline(found).set_index(["batch_size", "policy"]).step_s
    assert row["Measured baseline"] == f"{steps[128, 'float32'] * 1e3:.4g} ms"
    speedups = found.speedups
    same = speedups[(speedups.batch_size == 128) & (speedups.candidate == "mixed_float16")].iloc[0]
    words = f"{same.speedup:.2f}× [{same.claim_low:.2f}, {same.claim_high:.2f}] (n = {same.blocks})"
    assert row[RATIO] == words


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({"identity": IDENTITY | {"model_source": "edited"}}, "–"),
        ({"identity": None}, "2.00× (not valid: identity not recorded, n = 3)"),
        (
            {"marks": ["measured while other programs used the processor"]},
            "2.00× (not valid: interference, n = 3)",
        ),
    ],
)
def test_what_is_not_comparable_or_not_valid_is_not_set_beside_a_published_ratio(changes, cell):
    made = both(blocks=3, batch_size=64)
    for each in made:
        each |= changes if each["parameters"]["policy"] == "mixed_float16" else {}
    assert pick(section(*made).speeds, "Tesla V100", "64").get(RATIO, "–") == cell


def test_two_batch_sizes_are_compared_where_nothing_else_differs():
    def at_two_sizes(**changes):
        rows = [run("float32", b, 0.2, 96, model="resnet50") for b in range(3)]
        rows += [run("mixed_float16", b, 0.2, 192, model="resnet50") | changes for b in range(3)]
        return set(section(*rows).speeds[RATIO])

    assert "2.00× [2.00, 2.00] (n = 3)" in at_two_sizes()
    edited = IDENTITY | {"model_source": "edited"}
    assert "2.00× (not valid: not comparable, n = 3)" in at_two_sizes(identity=edited)
    assert "2.00× (not valid: measured apart, n = 3)" in at_two_sizes(invocation="another")


def test_claims_name_who_claims():
    found = studies._claims({"resnet50"})
    assert "at least 3× faster on Volta (M. O'Connor, GTC 2018)" in found
    assert any(
        re.match(r"3.3× faster than float32 for ResNet-50-v1.5 \(\[NVIDIA's guide\]\(https://", c)
        for c in found
    )
    assert not any("ResNet" in claim for claim in studies._claims({"keydana_cnn"}))


def test_names_and_addresses_are_safe_in_a_page():
    table = claims.table()
    words = [*studies.STUDIES.values(), *table.source.str.split().str[0]]
    assert not [word for word in words if re.search(r'[<>"&]', word)]
    link = studies.linked("keydana2020", table.source[0], '<a href="{1}">{0}</a>')
    assert re.fullmatch(r'<a href="https://blogs.rstudio.com[^"]+">S. Keydana, 2020</a>', link)
    assert studies.linked("oconnor_gtc2018", "slides") == "M. O'Connor, GTC 2018"


def test_every_study_has_a_name():
    assert set(claims.table().study) == set(studies.STUDIES)


def test_a_policy_that_was_not_measured_is_why_no_ratio_stands_beside_a_published_one():
    # The lie: "at batch sizes that were not measured here", of 32, which was.
    rows = [run(p, b, s) for b in range(3) for p, s in (("float32", 0.2), ("mixed_bfloat16", 0.1))]
    said = section(*rows).sentences[0]
    tf32 = "mixed_float16 over float32, or TF32 where that is the default"
    assert f"{tf32}, which was not measured here: " in said
    assert "batch sizes" not in said.partition("Measured here")[0]


def test_rates_published_for_this_device_at_no_batch_size_are_set_beside():
    # The lie: of an H200 only what others reached on V100 and A100, and not three times its own.
    made = [*both(3, model="resnet50", batch_size=256)]
    for one in made:
        one["parameters"]["gpu_model"] = "NVIDIA H200"
    (said,) = [s for s in section(*made).sentences if "published for 1x H200" in s]
    assert "2,260 images/s in float32 or TF32 (not stated) and 3,079 images/s in mixed" in said
    assert "Measured here, at most: " in said
    assert not any("published for" in s for s in section(*both(3, model="resnet50")).sentences)


def test_ratios_published_at_other_batch_sizes_stand_in_a_sentence():
    here = section(*both(3, model="resnet50", batch_size=8)).sentences[0]
    apart = "at batch sizes for which there is no such ratio here, or that are not stated: "
    over = "mixed_float16 over float32, or TF32 where that is the default"
    assert f"published of single GPUs, {over}, {apart}" in here
    assert "2.61× to 3.08× ([NVIDIA, TensorFlow](https" in here
    assert "Measured here: mixed_float16 over float32 at batch size 8, 2.00× faster" in here
    beside = section(*both(3, model="resnet50", batch_size=256)).sentences
    assert not any("there is no such ratio here" in said for said in beside)
    alone = section(*both(3, model="resnet50", batch_size=8)[::2])
    assert alone is None or "Measured here" not in " ".join(alone.sentences)
