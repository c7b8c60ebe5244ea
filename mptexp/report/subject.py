"""What a sweep asks about, and what it answers: title, comparisons, sentences, what to do.

Most sweeps ask about the speed of policies; some about loss scales, emulated formats, instruction
sets, replicas or frameworks. Each opens its report with its own comparisons.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, emulated, loss_scale, scaling
from mptexp.analysis.points import rank
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import caveats, findings, loss_scales, low_precision, wording
from mptexp.report.wording import INCONCLUSIVE, count, listed, verbatim
from mptexp.spec.backends import BACKEND_ROWS

Scale = Literal["speed", "error", "accuracy"]
MOST = 12  # rows of the chart; of more, the least and the largest of each policy
NAMED = 3  # comparisons that a sentence lists
NO_CLAIM = "Measured, but nothing is claimed"


@dataclass(frozen=True)
class Bar:
    """A comparison: a row of the chart.

    Attributes:
        label: what is compared with the baseline.
        policy: whose colour and marker the row has.
        value: a speedup, or a difference in percentage points; low, high: its interval, NaN where
            nothing is claimed.
        finding: faster, slower, small, large, equal, lower, ..., inconclusive, not valid.
        text: the same in words, as the report's table has it.
    """

    label: str
    policy: str
    value: float
    low: float
    high: float
    finding: str
    text: str


@dataclass(frozen=True)
class Subject:
    """What opens a report.

    Attributes:
        title: the finding in a few words, plain text.
        bars: the comparisons with one baseline; empty where there are none.
        baseline: its name.
        scale: of the bars.
        sentences: Markdown, the best proven first.
        advice: what to do, Markdown; empty where nothing follows.
        figure: the section of the registry whose first figure is the chart.
    """

    title: str
    sentences: Sequence[str]
    bars: Sequence[Bar] = ()
    baseline: str = ""
    scale: Scale = "speed"
    advice: str = ""
    figure: str = "answer"


def of(tables: Tables) -> Subject:
    """The subject of a sweep: the first of SUBJECTS that has anything to say of it."""
    if tables.ok.empty and (tables.results.status != "diverged").all():
        return Subject("No run of this sweep succeeded", [findings.NONE_SUCCEEDED])
    return next(subject for of_kind in SUBJECTS for subject in of_kind(tables))


def device(tables: Tables) -> str:
    """`2 cores of AMD EPYC`, or the names of the devices."""
    cores = {
        r["parameters"].get("gpu_model"): (r.get("environment") or {}).get("cores")
        for r in tables.records
    }
    names = sorted(set(tables.results.gpu_model))
    return listed([_with_cores(name, cores.get(name)) for name in names])


def _with_cores(name: str, cores: int | None) -> str:
    if not name.endswith(" (CPU)") or not cores:
        return name
    return f"{count(cores, 'core')} of {name.removesuffix(' (CPU)')}"


def _unanswered(reason: str) -> str:
    return f"Nothing is claimed: {reason.removeprefix('not valid: ')}"


# --- speed of policies ----------------------------------------------------------------------------


def _speed(tables: Tables) -> Iterator[Subject]:
    rows = findings.compared(tables)
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    rows = rows.sort_values(["emulated", "policy"], key=_order, kind="stable")
    base = rows.baseline.iloc[0]
    bars = [
        _bar(row, f"{row['policy']}, {row['place']}" if rows.place.nunique() > 1 else row["policy"])
        for row in _few(rows).to_dict("records")
    ]
    name = wording.default_name(base) if rows.baseline.nunique() == 1 else "the default"
    title, advice = _speed_title(rows, tables), _speed_advice(rows, tables)
    yield Subject(title, findings.answer(tables), bars, name, advice=advice)


def _order(column: pd.Series) -> pd.Series:
    return rank(column) if column.name == "policy" else column.astype(bool)


def _few(rows: pd.DataFrame) -> pd.DataFrame:
    """All rows, or the least and the largest of each policy on each device, at most MOST."""
    if len(rows) > MOST:
        groups = rows.groupby(["gpu_model", "policy"], sort=False).speedup
        rows = rows.loc[
            [k for ends in zip(groups.idxmin(), groups.idxmax(), strict=True) for k in ends]
        ][:MOST]
    return rows


def _bar(row: Mapping[str, Any], label: str) -> Bar:
    word = wording.finding(row)
    ends = (np.nan, np.nan) if word == "not valid" else (row["low"], row["high"])
    return Bar(label, row["policy"], row["speedup"], *ends, word, wording.ratio_of(row))


def _speed_title(rows: pd.DataFrame, tables: Tables) -> str:
    """The best that is proven; else that nothing is, or what is slower."""
    where = device(tables)
    if (rows.finding == "not valid").all():
        return _unanswered(caveats.doubts(tables, "time"))
    faster = rows[rows.finding == "faster"]
    if len(faster):
        return _fastest(faster.loc[faster.speedup.idxmax()], rows, where)
    base = wording.default_name(rows.baseline.iloc[0])
    if (rows.finding == "slower").all():
        least = rows.loc[rows.speedup.idxmax()]
        return (
            f"{least.policy} trains {wording.speed_parts(least)[0]}× slower than {base} on {where}"
        )
    names = list(dict.fromkeys(rows.policy[~rows.emulated.astype(bool)])) or ["policy"]
    which = names[0] if len(names) == 1 else "any other policy"
    return f"{which} is not shown to train faster than {base} on {where}"


def _fastest(row: pd.Series, rows: pd.DataFrame, where: str) -> str:
    own = rows[rows.policy == row.policy]
    up_to = "up to " if len(own) > 1 else ""
    note = "".join(f" ({part})" for part in wording.partly(row))
    verb = "trains" if row.phase == "train" else "runs inference"
    equal = ", at equal accuracy" if row.verdict == "equal" else ""
    base = wording.default_name(row.baseline)
    where = row.gpu_model if rows.gpu_model.nunique() > 1 else where
    return (
        f"{row.policy}{note} {verb} {up_to}{wording.speed_parts(row)[0]}× faster than {base} "
        f"on {where}{equal}"
    )


def _speed_advice(rows: pd.DataFrame, tables: Tables) -> str:
    base = wording.default_name(rows.baseline.iloc[0])
    faster = rows[(rows.finding == "faster") & ~(rows.verdict == "lower")]
    if len(faster):
        best = faster.loc[faster.low.idxmax()]
        check = "" if best.verdict == "equal" else ", and look at its accuracy in your own training"
        return f"use **{best.policy}**{check}."
    if (rows.finding == "not valid").all():
        return caveats.remedies(tables, "time")
    more = (
        "; more repeats would narrow the intervals" if (rows.finding == INCONCLUSIVE).any() else ""
    )
    return f"keep {base}{more}."


def _only_accuracy(tables: Tables) -> Iterator[Subject]:
    """Where no time is valid, or nothing is compared with a baseline."""
    margin = tables.options.equivalence_margin
    table = accuracy.beside_first(accuracy.differences(tables, margin))
    sentences = findings.answer(tables)
    bars = []
    if len(table) > 0:
        table = table.assign(place=wording.places(table))
        for row in table[:MOST].to_dict("records"):
            label = f"{row['candidate']}, {row['place']}"
            numbers = [row[name] * 100 for name in ("difference", "low", "high")]
            text = wording.difference(*(row[n] for n in ("difference", "low", "high", "blocks")))
            if row["verdict"] in accuracy.UNDECIDABLE:
                numbers[1:] = [np.nan, np.nan]
            bars.append(Bar(label, row["candidate"], *numbers, row["verdict"], text))
    verdicts = set(table.verdict)
    if len(verdicts) == 1 and verdicts <= {"equal", "lower", "higher"}:
        base = wording.default_name(table.baseline.iloc[0])
        title = f"Accuracy is {verdicts.pop()} to {base}'s" if verdicts == {"equal"} else ""
        title = title or f"Accuracy differs from {base}'s"
    else:
        title = "No comparison of speed: " + (
            "runs shared the machine" if tables.ok.step_s.isna().all() else "there is no baseline"
        )
    base = wording.default_name(table.baseline.iloc[0]) if len(table) else ""
    yield Subject(title, sentences, bars, base, "accuracy")


# --- instruction sets, replicas, frameworks -------------------------------------------------------


def _instruction_sets(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_isa(tables)
    rows = rows[rows.speedup.notna()] if len(rows) else rows
    if len(rows):
        labels = rows.cpu_isa + ", " + rows.policy
        base = "float32 with the CPU's default instruction sets"
        yield _of_ratios(rows.assign(label=labels), base, tables)


def _replicas(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_replicas(tables)
    rows = rows[rows.speedup.notna()] if len(rows) else rows
    if len(rows):
        where = wording.places(rows)
        yield _of_ratios(rows.assign(label=where), "1 replica, same batch for each", tables)


def _frameworks(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_backend(tables)
    rows = rows[rows.speedup.notna()] if len(rows) else rows
    if len(rows):
        names = rows.backend.map({name: row.label for name, row in BACKEND_ROWS.items()})
        yield _of_ratios(rows.assign(label=names + ", " + rows.policy), "TensorFlow", tables)


def _of_ratios(rows: pd.DataFrame, base: str, tables: Tables) -> Subject:
    """Ratios to one baseline: sentences by finding, the largest proven one as the title."""
    rows = rows.drop_duplicates(["label", "policy"]).sort_values("speedup", kind="stable")
    bars = [_bar(row, row["label"]) for row in rows[:MOST].to_dict("records")]
    proven = [bar for bar in bars if bar.finding in ("faster", "slower")]
    if not proven:
        reason = caveats.doubts(tables, "time")
        title = _unanswered(reason) if reason else f"Nothing is shown to differ from {base}"
    else:
        most = max(proven, key=lambda bar: abs(np.log(bar.value)))
        ratio = most.text.partition(" [")[0]
        title = f"{most.label} is {ratio} than {base}"
    sentences = [
        f"{opening}: {_named([b for b in bars if b.finding == word])}."
        for word, opening in (
            ("faster", f"Faster than {base}"),
            ("slower", f"Slower than {base}"),
            (INCONCLUSIVE, "No difference is shown, the interval includes 1"),
            ("no interval", "Fewer than three repeats show nothing"),
            ("not valid", NO_CLAIM),
        )
        if any(b.finding == word for b in bars)
    ]
    advice = "" if proven else caveats.remedies(tables, "time")
    return Subject(title, sentences, bars, base, advice=advice)


def _named(bars: Sequence[Bar]) -> str:
    """Comparisons in words, the largest effects first; of more than NAMED how many more."""
    order = sorted(bars, key=lambda bar: -abs(np.log(bar.value)))
    words = [f"**{verbatim(bar.label)}** {bar.text.partition(' (')[0]}" for bar in order[:NAMED]]
    more = len(bars) - NAMED
    return listed([*words, f"{more} more"] if more > 0 else words)


# --- loss scales and emulated formats -------------------------------------------------------------


def _loss_scales(tables: Tables) -> Iterator[Subject]:
    points = loss_scales.by_point(loss_scale.table(tables))
    if not points:
        return
    reason = caveats.doubts(tables, "accuracy")
    if reason:
        title, sentences = _unanswered(reason), [f"{NO_CLAIM} ({reason})."]
    else:
        sentences = [text for title, rows in points for text in loss_scales.sentences(rows, title)]
        title = loss_scales.title(points[0][1])
    advice = caveats.remedies(tables, "accuracy")
    yield Subject(title, sentences[:NAMED], advice=advice, figure="loss scale")


def _low_precision(tables: Tables) -> Iterator[Subject]:
    points = [p for p in emulated.points(tables) if p.loss.n and not p.is_float32]
    if not emulated.emulates(points):
        return
    reason = caveats.doubts(tables, "accuracy")
    bars = [low_precision_bar(point, points) for point in points][:MOST]
    bars.sort(key=lambda bar: bar.value)
    small = [bar for bar in bars if bar.finding == "small"]
    limit = f"{emulated.LITTLE:g} percentage points"
    if reason:
        title, sentences = _unanswered(reason), [f"{NO_CLAIM} ({reason})."]
    else:
        title = f"{len(small)} of {len(bars)} formats train within {limit} of float32's error"
        openings = {
            "small": f"Less than {limit} worse than float32",
            "large": f"More than {limit} worse",
            "undecided": f"Inconclusive, the interval includes {limit}",
            "too few repeats": "Fewer than three repeats show nothing",
        }
        sentences = [
            f"{opening}: {listed([verbatim(b.label) for b in bars if b.finding == word])}."
            for word, opening in openings.items()
            if any(b.finding == word for b in bars)
        ]
    advice = caveats.remedies(tables, "accuracy")
    yield Subject(title, sentences[:NAMED], bars, "float32", "error", advice)


def low_precision_bar(point: emulated.Point, among: Sequence[emulated.Point]) -> Bar:
    """A choice of formats as a row: its loss from float32, above zero is worse."""
    several = len({p.network for p in among}) > 1
    label = ", ".join([point.network.split(",")[0]] * several + [low_precision.formats(point)])
    claimed = point.size != "not valid"
    ends = (point.loss.low, point.loss.high) if claimed else (np.nan, np.nan)
    value, text = point.loss.estimate, low_precision.loss(point)
    return Bar(label, point.choice["policy"], value, *ends, point.size, text)


SUBJECTS: tuple[Callable[[Tables], Iterator[Subject]], ...] = (
    _loss_scales,
    _low_precision,
    _instruction_sets,
    _replicas,
    _frameworks,
    _speed,
    _only_accuracy,
)
