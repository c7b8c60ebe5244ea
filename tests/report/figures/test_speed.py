import pytest
from builders import published, record, tables, three

from mptexp.analysis import summary
from mptexp.report.figures import speed, style
from mptexp.report.figures.all_figures import FIGURES

ROWS = {row.name: row for row in FIGURES}


@pytest.fixture(scope="module")
def measured():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    for number, run in enumerate(made.records):
        run["latencies_s"] = [9.0, *(0.001 * (number + k) for k in range(1, 50))]
        run["timing"]["latency_warmup"] = 1
    return made


def test_figures_show_every_run_and_label_their_axes(measured):
    figures = [speed.speedup_by_batch_size(measured.speedups)]
    for name in (
        "step_time_by_batch_size",
        "images_per_s_by_batch_size",
        "latency_distribution",
        "memory_by_batch_size",
        "accuracy_by_time",
        "accuracy_by_epoch",
        "loss_by_epoch",
    ):
        figures.append(ROWS[name].draw(measured))
    for figure in figures:
        assert all(axis.get_xlabel() and figure.axes[0].get_ylabel() for axis in figure.axes)
        assert figure.legends
    dots = speed.step_time_by_batch_size(measured).axes[0].collections
    assert sum(len(c.get_offsets()) for c in dots) == 6


def test_the_first_batch_of_each_run_is_no_latency(measured):
    assert measured.latencies.latency_s.max() < 1
    assert len(measured.latencies) == 6 * 49


def test_a_speedup_shows_its_interval(measured):
    axis = speed.speedup_by_batch_size(measured.speedups).axes[0]
    (bars,) = [c for c in axis.containers if c.has_yerr]
    (low, high) = bars.lines[2][0].get_segments()[0][:, 1]
    row = measured.speedups.iloc[0]
    assert (low, high) == (pytest.approx(row.low), pytest.approx(row.high))


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (
            [2.0, 2.1, 1.9],
            "Of 1 point drawn, 1 is measurably faster than float32; best: mixed_float16 at "
            "batch size 32, 2.00× faster [1.76, 2.26] (n = 3). Bars are 95 % intervals",
        ),
        (
            [0.96, 1.12, 1.04],
            "none is measurably faster than float32; largest ratio: mixed_float16 at batch "
            "size 32, 1.04× as fast [0.86, 1.26] (n = 3): inconclusive.",
        ),
        ([0.5, 0.6, 0.55], ", 1.82× slower [1.45, 2.29] (n = 3). Bars"),
        ([2.0, 2.1], "none is measurably faster than float32; largest ratio: mixed_float16"),
    ],
)
def test_what_is_not_proven_is_not_called_the_best(ratios, words):
    caption = speed._caption_speedup(three("mixed_float16", ratios).speedups)
    assert words in caption
    assert ("best" in caption) == (ratios == [2.0, 2.1, 1.9])


def test_the_captions_are_of_the_data(measured):
    steps = ROWS["step_time_by_batch_size"].caption
    assert "median step of one run (6 runs, of what was measured at several" in steps(measured)
    assert "spread" not in steps(tables([record()]))
    images = ROWS["images_per_s_by_batch_size"].caption
    assert "Highest rate: 320, float32 at batch size 32" in images(tables([record()]))


def test_what_is_not_valid_is_not_said_to_be_no_faster():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    unknown = tables([one | {"identity": None} for one in made.records])
    caption = speed._caption_speedup(unknown.claims)
    assert caption.startswith("Of 1 point drawn, none is valid; largest ratio: mixed_float16")


def test_a_rate_below_one_is_not_zero():
    rows = [record(p, b, 2.4, 1) for p in ("float32", "mixed_float16") for b in range(3)]
    (row,) = [row for row in FIGURES if row.name == "images_per_s_by_batch_size"]
    assert row.caption(tables(rows)).startswith("Highest rate: 0.417, ")


def test_captions_are_of_the_panels_that_are_drawn():
    # "Of 36 points drawn"; the best of them in a panel that was left out, its width not named.
    rows = [
        record(policy, block, 0.1 / (1 + k * (policy != "float32")), size, width=k / 2)
        for k in range(1, 13)
        for size in (32, 64)
        for policy in ("float32", "mixed_float16")
        for block in range(3)
    ]
    made = tables(rows)
    drawn = style.drawn(style.by_panel(made.claims))
    assert len(drawn) == style.PANELS * 2
    caption = speed._caption_speedup(made.claims)
    assert caption.startswith("Of 18 points drawn, 18 are measurably faster")
    assert f"with width {drawn.loc[drawn.speedup.idxmax()].setting.split()[-1]}" in caption
    dots = ROWS["step_time_by_batch_size"].caption(made)
    assert f"({style.PANELS * 12} runs, of what was" in dots
    assert "at batch size 64 with width 6" in ROWS["images_per_s_by_batch_size"].caption(made)


def test_each_curve_of_latencies_is_seen_to_the_dotted_line(measured):
    made = three("mixed_float16", [0.5, 0.5, 0.5])
    for run in made.records:
        slow = 10 if run["parameters"]["policy"] == "mixed_float16" else 1
        run["latencies_s"] = [0.001] * 95 + [0.001 * slow] * 5
        run["timing"]["latency_warmup"] = 0
    figure, caption = ROWS["latency_distribution"].draw(made), speed._caption_latency(made)
    assert "mixed_float16's at batch size 32: median 1.00 ms, 99th percentile 10.00 ms" in caption
    assert figure.axes[0].get_xlim()[1] > 10


def test_few_latencies_have_a_slowest_and_no_99th_percentile():
    # The lie: "99th percentile 214.36 ms", of 117 batches: the second slowest of them.
    made = three("mixed_float16", [0.5, 0.5, 0.5])
    for run in made.records:
        run["latencies_s"] = [0.001] * 37 + [0.009]
        run["timing"]["latency_warmup"] = 0
    caption = speed._caption_latency(made)
    said = "median 1.00 ms, the slowest of the 114 batches of all repeats 9.00 ms."
    assert caption.endswith(said)
    assert "99th percentile" not in caption


BUSY = {"marks": ["measured while other programs used the processors"]}


def test_the_highest_and_the_longest_are_of_what_is_valid():
    # The lie: "Highest rate: 639, mixed_float16", beside other programs.
    rows = [record(step_s=0.1), record("mixed_float16", step_s=0.05) | BUSY]
    for run, slowest in zip(rows, (0.002, 9.0), strict=True):
        run["latencies_s"] = [0.001] * 49 + [slowest] * 2
    rates, latency = ROWS["images_per_s_by_batch_size"].caption, speed._caption_latency
    said = "Highest rate of what is valid: 320, float32 at batch size 32. "
    assert rates(tables(rows)).startswith(said)
    assert "The longest of what is valid is float32's at batch" in latency(tables(rows))
    void = tables([run | BUSY for run in rows])
    assert rates(void) == "Dots are runs, set apart by policy; lines go through geometric means."
    assert latency(void).endswith("means unsteady latency.")


def test_the_highest_rate_is_the_headline_tables():
    # The lie: "Highest rate: 9,406" above a table whose row has 9,325.
    made = published("quickstart-cpu").tables
    highest = summary.headline(made).throughput.max()
    said = ROWS["images_per_s_by_batch_size"].caption(made)
    assert said.startswith(f"Highest rate: {highest:,.0f}, mixed_bfloat16 at batch size 128. ")


def test_the_largest_ratio_is_of_what_is_valid():
    rows = [record(p, b, s, 32) for b in range(3) for p, s in (("float32", 0.1), ("float16", 0.08))]
    rows += [record(block=b, batch_size=64) for b in range(3)]
    rows += [record("float16", b, 0.02, 64) | BUSY for b in range(3)]
    caption = speed._caption_speedup(tables(rows).claims)
    assert caption.startswith("Of 2 points drawn, 1 is measurably faster than float32; best: ")
    assert "float16 at batch size 32, 1.25× faster" in caption
