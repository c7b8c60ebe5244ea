import pytest

from mptexp.report.pages import check_statements

MADE = ["mixed_float16 trains 3.41× slower than float32 [2.71, 4.28].", "n = 3 repeats"]
PAGE = """<header class="lead"><h1>A finding</h1><figure><img alt="1.2× faster"></figure>
<ul><li>Of <abbr title="no text">mixed_float16</abbr>: 4&#160;% less. Run <code>mptexp 9</code></li></ul>
</header><p>not of the first screen</p>
<table><tr><th>Policy</th><th>Speed</th></tr><tr><th>float16</th><td>3.4× <b>slower</b></td></tr></table>
"""  # noqa: E501


def test_a_page_is_read_as_a_reader_reads_it():
    page = check_statements.page(PAGE)
    assert page.lead == ["A finding", "1.2× faster", "Of mixed_float16: 4 % less. Run"]
    assert page.tables == [(("Policy", "Speed"), ("float16", "3.4× slower"))]
    assert page.texts[-1] == "3.4× slower"


@pytest.mark.parametrize("html", ["", "<table><td>x</table></td></tr>", "<header><h1>", "\0<!--"])
def test_no_page_is_too_broken_to_be_read(html):
    assert check_statements.page(html).lead == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("3.41×", "9.99×"),
        ("slower", "faster"),
        ("mixed_float16", "mixed_bfloat16"),
        ("trains 3.41× slower than", "is 9.99× faster than"),  # in other words, too
    ],
)
def test_a_statement_of_ours_with_another_claim_is_named(before, after):
    said = MADE[0].replace(before, after)
    assert check_statements.contradicted([MADE[1], said], MADE) == said


@pytest.mark.parametrize(
    "said", [MADE[0], "In other words: 3.41× slower", "Something else, of 7", "1.20× faster"]
)
def test_what_another_version_says_of_the_same_is_not(said):
    assert check_statements.contradicted([said], MADE, known=["1.20× faster [1.1, 1.3]"]) == ""


def test_a_row_is_named_that_the_table_of_its_head_has_not():
    table = (("Policy", "Speed against float32"), ("float16", "3.4× slower"), ("int8", "–"))
    other = (("Policy", "Something else"), ("float16", "9.9× faster"))
    assert check_statements.contradicted_row([table, other], [table]) == ""
    false = (*table[:1], ("float16", "9.9× faster"), *table[2:])
    assert check_statements.contradicted_row([false], [table]) == "float16 | 9.9× faster"
    false = (("Policy", "Speed against bfloat16"), *table[1:])
    assert check_statements.contradicted_row([false], [table]) == "Policy | Speed against bfloat16"
    assert check_statements.contradicted_row([table[:2]], [table])  # a row was taken out


def test_other_letters_below_the_same_words_are_seen():
    letters = 'xlink:href="#DejaVuSans-{:x}"'.format
    made = "".join(map(letters, (1, 2, 2, 3)))
    renamed = "".join(map(letters, (7, 9, 9, 8)))
    assert check_statements.is_drawn_alike(renamed, made)
    assert not check_statements.is_drawn_alike("".join(map(letters, (1, 2, 3, 3))), made)
    assert check_statements.is_drawn_alike(letters(1), made)  # joined by another matplotlib
