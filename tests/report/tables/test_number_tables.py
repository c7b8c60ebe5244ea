import pandas as pd
import pytest
from builders import published, record, tables, three
from builders import text as of_text
from support import PROJECT

from mptexp.report.tables import number_tables, text_tables

MADE = {
    "speedups.csv": number_tables.speedups,
    "table.csv": number_tables.headline,
    "best_batch_size.csv": number_tables.best_batch_sizes,
    "accuracy.csv": number_tables.accuracies,
}


def sweep():
    """Images at two batch sizes, and a text."""
    sizes = [record(p, b, batch_size=n) for n in (32, 64) for b in range(3)
             for p in ("float32", "mixed_float16")]  # fmt: skip
    texts = [of_text(p, b) for b in range(3) for p in ("float32", "mixed_float16")]
    return tables([*sizes, *texts])


def test_every_column_is_in_the_registry_and_the_registry_in_the_guide():
    made, guide = sweep(), (PROJECT / "docs/guide.md").read_text()
    for file, table in MADE.items():
        named = {name for name, column in number_tables.COLUMNS.items() if file in column.files}
        written = {*table(made)}
        assert written <= named
        assert named - written <= {"tokens_per_s"}  # of a text at several batch sizes
    rows = [
        {"Column": name, "Meaning, unit": column.meaning, "In": ", ".join(column.files)}
        for name, column in number_tables.COLUMNS.items()
    ]
    all_of_them = ", ".join(number_tables.FILES)
    table = text_tables.markdown(pd.DataFrame(rows).replace({"In": all_of_them}, "all"))
    assert table in guide, f"docs/guide.md is outdated, it should hold:\n{table}"


def test_low_and_high_are_the_point_s_own_and_claims_say_that_they_are():
    # The lie: of one ratio table.csv had low 0.896, speedups.csv low 0.913 and claim_low 0.896.
    made = published("quickstart-cpu").tables
    ratios = number_tables.speedups(made).set_index(["batch_size", "candidate"])
    shown = number_tables.headline(made).set_index(["batch_size", "policy"])
    key = (32, "mixed_bfloat16")
    for name in ("speedup", "claim_low", "claim_high"):
        assert shown[name][key] == ratios[name][key]
    assert ratios.low[key] > ratios.claim_low[key]
    for file, table in MADE.items():
        assert {"low", "high", "strict_low"} & {*table(made)} == (
            {"low", "high"} if file == "speedups.csv" else set()
        )
        assert {"claim_low", "claim_high"} <= {*table(made)}


@pytest.mark.parametrize(
    ("steps", "finding"),
    [([2.0, 2.1, 1.9], "faster"), ([0.5, 0.51, 0.49], "slower"), ([0.9, 1.0, 1.1], "inconclusive"),
     ([2.0, 2.1], "no interval")],
)  # fmt: skip
def test_speedups_say_what_the_page_says(steps, finding):
    assert list(number_tables.speedups(three("mixed_float16", steps)).finding) == [finding]


def test_of_no_ratio_nothing_is_said():
    made = number_tables.speedups(tables([record()]))
    assert made.empty
    assert list(made) == list(number_tables.speedups(sweep()))


def test_rates_are_named_by_their_unit():
    # The lie: `throughput`, of images in one row and of tokens in another.
    table = number_tables.headline(sweep())
    of_tokens = table.dataset == "hamlet"
    assert "throughput" not in table
    assert table.tokens_per_s.notna().tolist() == of_tokens.tolist()
    assert table.images_per_s.notna().tolist() == (~of_tokens).tolist()
    images = number_tables.headline(tables([record()]))
    assert images.images_per_s.item() == pytest.approx(320)
    assert "tokens_per_s" not in images
