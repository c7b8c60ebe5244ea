"""What a page or a figure claims in words, held against what is made from the records.

Wording changes from version to version, so a text is compared by its claims: numbers, verdicts and
names of policies. Texts that are alike without them are one statement, and must claim the same.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

from mptexp.spec.policies import POLICIES

VERDICTS = "as fast|faster|slower|longer|shorter|more|less|lower|higher|equal|inconclusive"
VERDICTS += "|undecided|valid|emulated|not|no"
CLAIM = re.compile(
    rf"\b(?:{'|'.join(POLICIES)}|TF32|{VERDICTS})\b|[+\N{{MINUS SIGN}}]?\d+(?:[.,]\d+)*"
)
RATIO = re.compile(r"\d[\d.,]*× (?:as fast|faster|slower)")
STATEMENTS = ("h1", "p", "li", "figcaption")  # elements of a first screen
Table = tuple[tuple[str, ...], ...]  # rows of cells, the head first


def claims(text: str) -> list[str]:
    """What a text claims: numbers with their signs, verdicts, policies."""
    return CLAIM.findall(text)


def wording(text: str) -> str:
    """A text without what it claims."""
    return " ".join(CLAIM.sub("", text).split())


def contradicted(texts: Iterable[str], made: Collection[str], known: Iterable[str] = ()) -> str:
    """The first text that claims what is not claimed; empty where there is none.

    Args:
        texts: those to check.
        made: the texts that are made from the records: what has the wording of one must be one.
        known: further ones; what has a wording of its own names no ratio that none of all these
            names.
    """
    wordings = {wording(text) for text in made}
    ratios = {ratio for text in (*made, *known) for ratio in RATIO.findall(text)}
    return next((t for t in texts if t not in made and _is_false(t, wordings, ratios)), "")


def _is_false(text: str, wordings: Collection[str], ratios: Collection[str]) -> bool:
    return wording(text) in wordings or not {*RATIO.findall(text)} <= {*ratios}


def contradicted_row(tables: Iterable[Table], made: Collection[Table]) -> str:
    """The first row that none of the tables made from the records with its table's head has.

    Tables with a head that none of them has are left out; empty where there is no such row.
    """
    for table in tables:
        alike = [one for one in made if _head(one) == _head(table)]
        if alike and table not in alike:
            rows = (row for row in table if not any(row in one for one in alike))
            return " | ".join(next(rows, table[0]))
    return ""


def _head(table: Table) -> list[str]:
    return [wording(cell) for cell in table[0]]


# --- a page -------------------------------------------------------------------------------------


@dataclass
class Page:
    """What a reader reads of a page.

    Attributes:
        lead: the statements of its first screen, and its chart's text alternative; no commands,
            which name the directory.
        tables: those of the page.
    """

    lead: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """All of them, cells too."""
        return [*self.lead, *(cell for table in self.tables for row in table for cell in row)]


def page(html: str) -> Page:
    """Reads a page of any origin."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return Page(reader.lead, [tuple(map(tuple, rows)) for rows in reader.tables if rows])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lead: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text: list[str] | None = None  # of the statement or cell that is being read
        self.is_lead = self.is_code = False

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        if tag == "header":
            self.is_lead = known.get("class") == "lead"
        elif tag == "code":
            self.is_code = True
        elif tag == "img" and self.is_lead:
            self.lead.append(_in_one_line(known.get("alt") or ""))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("th", "td") or (tag in STATEMENTS and self.is_lead):
            self.text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "header":
            self.is_lead = False
        elif tag == "code":
            self.is_code = False
        elif self.text is not None and (tag in ("th", "td") or tag in STATEMENTS):
            text, self.text = _in_one_line("".join(self.text)), None
            if tag in STATEMENTS:
                self.lead.append(text)
            elif self.tables and self.tables[-1]:
                self.tables[-1][-1].append(text)

    def handle_data(self, data: str) -> None:
        if self.text is not None and not self.is_code:
            self.text.append(data)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


# --- a figure -----------------------------------------------------------------------------------

WRITTEN = re.compile(r"<!-- (.*?) -->", re.DOTALL)  # before the glyphs of a text, what it says
GLYPH = re.compile(r'xlink:href="#(\w+-[0-9a-f]+)"')


def written(svg: str) -> list[str]:
    """The texts of a figure, in the order of drawing."""
    return [_in_one_line(text) for text in WRITTEN.findall(svg)]


def is_drawn_alike(svg: str, made: str) -> bool:
    """Whether two figures with the same texts draw them with the same letters.

    Another version of matplotlib names glyphs otherwise, or joins some: of another number of them
    nothing is said.
    """
    letters = [GLYPH.findall(text) for text in (svg, made)]
    return len(letters[0]) != len(letters[1]) or len({*zip(*letters, strict=True)}) == len(
        {*letters[0]}
    ) == len({*letters[1]})
