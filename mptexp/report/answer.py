"""The answer that opens a report: as sentences, as HTML, and as what a shared link shows."""

import re
from html import unescape

from mptexp.analysis import loss_scale
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import findings, loss_scales, low_precision, markdown, wording
from mptexp.report.measured import MeasuredSweep
from mptexp.spec.terminal import visible


def sentences(tables: Tables) -> list[str]:
    """What opens a report: of a sweep of loss scales or formats what it asked, then the rest."""
    points = loss_scales.by_point(loss_scale.table(tables))
    asked = [text for title, rows in points for text in loss_scales.sentences(rows, title)]
    asked += [text for part in low_precision.sections(tables) for text in part.sentences]
    return [*asked[: findings.SENTENCES], *findings.answer(tables)]


def title(sweep: MeasuredSweep) -> str:
    """The sweep's name and what it was measured on."""
    return f"{sweep.directory.name} on {devices(sweep)}"


def devices(sweep: MeasuredSweep) -> str:
    """The devices that a sweep was measured on."""
    return wording.listed(sorted(set(sweep.tables.results.gpu_model)))


def first_html(sweep: MeasuredSweep) -> str:
    """The first sentence of the answer as HTML."""
    return markdown.to_html(markdown.sentence(sentences(sweep.tables)[0]))


def card(sweep: MeasuredSweep) -> dict[str, str]:
    """Open Graph's properties of a report, plain text: what stands where its link is shared."""
    return {
        "og:type": "article",
        "og:title": visible(sweep.question),
        "og:description": unescape(re.sub(r"<[^>]*>", "", first_html(sweep))),
    }
