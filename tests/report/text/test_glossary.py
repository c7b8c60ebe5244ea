"""Terms are explained where they first stand, and in a list."""

from mptexp.report.text import glossary

PAGE = (
    "<head><title>policy</title></head><main><h1>A policy</h1><p>The policy &lt;8,8&gt; and "
    '<a href="#x">XLA</a>, then policy again; policymaker</p><img alt="XLA"></main><script>XLA'
)


def test_a_term_is_marked_once_and_listed():
    page = glossary.explained(PAGE)
    assert page.count("<abbr") == 2
    assert "<p>The <abbr title=" in page
    assert "<dt>&lt;8,8&gt;</dt><dd>Fixed point with 8 bits" in page
    assert page.index('<h2 id="terms">') < page.index("</main>")


def test_links_headings_attributes_and_scripts_stay():
    page = glossary.explained(PAGE)
    for part in ("<h1>A policy</h1>", '">XLA</a>', '<img alt="XLA">', "<script>XLA", "policymaker"):
        assert part in page


def test_a_page_without_terms_stays_as_it_is():
    assert glossary.explained("<main><p>none</p></main>") == "<main><p>none</p></main>"


def test_a_program_is_no_number_format():
    page = "<main><p>the stock binary on it, the binary (old)</p><td>{}</td></main>"
    assert "<abbr" not in glossary.explained(page.format(""))
    assert ">binary</abbr></td>" in glossary.explained(page.format("binary"))
