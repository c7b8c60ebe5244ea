from mptexp.records.instrument_checks import INSTRUMENTS, check, not_here
from mptexp.report.answers import instrument_answers


def test_each_check_is_a_row_and_the_sentence_counts_them():
    checks = [
        check("clock", (0.9, 1.15), 1.0234),
        check("kernels", (90, 100), 99.61, "mixed_bfloat16"),
        not_here("energy", "no counter"),
    ]
    table = instrument_answers.table(checks)
    assert table.Read.tolist() == ["1.02×", "99.6 %", "no counter"]
    assert table.Expected.tolist() == ["0.9 to 1.15×", "90 to 100 %", ""]
    assert table.Result.tolist() == ["pass", "pass", "not here"]
    assert "2 of 2 tests passed" in instrument_answers.sentence(checks)


def test_what_failed_is_named():
    text = instrument_answers.sentence(
        [check("memory", (0.9, 1.1), 0.5), check("clock", (0, 2), 1.0)]
    )
    assert "1 of 2 tests passed" in text
    assert INSTRUMENTS["memory"].label in text
    assert INSTRUMENTS["clock"].label not in text


def test_beside_other_programs_nothing_is_proven():
    text = instrument_answers.sentence(
        [check("others", (0, 10), 80.0), check("clock", (0, 2), 1.0)]
    )
    assert "other programs were at work: nothing is proven" in text


def test_an_instrument_of_a_later_version_is_left_out():
    assert instrument_answers.table([check("clock", "x", "x") | {"instrument": "abacus"}]).empty
