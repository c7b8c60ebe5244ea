from builders import record, tables, three

from mptexp.report.tables import text_tables


def test_what_varies_stands_in_the_table():
    rows = text_tables.headline_rows(tables([record(), record(width=2.0)]))
    assert rows.Setting.tolist() == ["width 1", "width 2"]


def test_a_memory_that_is_not_known_is_not_made_up():
    rows = text_tables.headline_rows(tables([record() | {"peak_memory_bytes": None}]))
    assert "Peak memory" not in rows
    both = tables([record(), record("mixed_float16") | {"peak_memory_bytes": None}])
    assert text_tables.headline_rows(both)["Peak memory"].tolist() == ["1,024 MiB", "–"]


def test_the_baseline_is_named_in_the_column_head():
    rows = text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9]))
    assert "Speed against float32 (the default) [95 % interval]" in rows
    both = tables(
        [record(default="tensorfloat32"), record("tensorfloat32", default="tensorfloat32")]
    )
    rows = text_tables.headline_rows(both)
    assert "Speed against TF32 (the default) [95 % interval]" in rows
    assert "Speed against strict float32" in rows


def test_no_ratio_stands_without_its_interval_and_n():
    text = text_tables.markdown(text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9])))
    for line in text.splitlines():
        if "×" in line:
            assert "[" in line
            assert "(n = 3)" in line
