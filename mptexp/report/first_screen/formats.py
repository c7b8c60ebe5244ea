"""Number formats that are emulated: which of them train, and the fewest bits that do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mptexp.analysis import contrast, emulated
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.schema import FINAL
from mptexp.report.answers import caveats, loss_scales, low_precision, repeats_needed
from mptexp.report.first_screen.subject import NAMED, Bar, Subject, first, provisional, unclaimed
from mptexp.report.text import wording
from mptexp.report.text.wording import count, listed, verbatim

WITHOUT_BASELINE = "float32 diverges too: no format is compared with it"
NEAR = f"within {emulated.LITTLE:g} percentage points of float32's error"
SIZES, SPAN = 3, 1.5  # formats of so many sizes, so far apart, ask how few bits train
OPEN = ("undecided", "too few repeats")  # which more repeats may decide
UNDECIDED = (*OPEN, "incomplete", "images not recorded")
AGAIN = "the same command makes the runs again that did not end"
FULL = 32  # bits of a weight that no format rounds
CHANGES = 2  # of formats that advice names
Setting = tuple[emulated.Point, Bar, str]  # formats, their row, which of FORMATS says what they do

CURES = {  # what to change in a choice of formats, by its parameter
    "rounding": {"stochastic": "round stochastically", "nearest": "round to nearest"},
    "weight_format": {"policy": "keep weights in the format of the policy"},
    "loss_scale": {"auto": "use the usual loss scale", "none": "use no loss scale"},
}
CURE = {
    "weight_format": "keep weights in {}",
    "loss_scale": "use a loss scale of {}",
    "propagation": "use {} for activations",
    "policy": "use {}",
}
FORMATS = {  # what settings do, by how their error lies to that of float32
    "small": "within {} of float32's error",
    "large": "more than {} above float32's error",
    "undecided": "inconclusive (the interval includes {})",
    "incomplete": "within {} of it only where runs ended well",
    "too few repeats": "inconclusive (fewer than three repeats)",
    "baseline diverged": "beside a float32 of which runs diverged",
    "images not recorded": "inconclusive (how many images it was validated with is not recorded)",
    "not valid": "not valid",
}


def of(tables: Tables) -> Iterator[Subject]:
    """Which emulated formats train to nearly the error of float32."""
    among = emulated.points(tables)
    tried = [p for p in among if not p.is_float32]
    if not emulated.emulates(tried):
        return
    doubtful = bool(caveats.doubts(tables, "accuracy"))
    points = sorted((p for p in tried if p.loss.n), key=lambda p: p.loss.estimate)
    lost = [p for p in tried if p.size == "diverged"]
    unended = [p for p in tried if _is_due(p) and "ok" not in p.statuses and not p.base_lost]
    if not points and not lost:
        if any(p.base_lost for p in tried):
            yield Subject(WITHOUT_BASELINE, [], advice=loss_scales.RETRY)
        return
    bars = [low_precision_bar(point, tried) for point in points]
    limit = f"{emulated.LITTLE:g} percentage points"
    words = [
        ("small" if bar.value < emulated.LITTLE else "large")
        if doubtful and bar.finding != "baseline diverged"
        else bar.finding
        for bar in bars
    ]
    settings = list(zip(points, bars, words, strict=True))
    fewest, rounding = _fewest_bits(settings, lost), _rounding(settings)
    title = fewest.title or rounding or _counted(settings, len(lost), len(unended))
    counts = {word: words.count(word) for word in FORMATS if word in words}
    says = {word: text.format(limit) for word, text in FORMATS.items()}
    says["small"] += " or below it" * _is_better(settings)
    each = [f"{n} {'is' if n == 1 else 'are'} {says[word]}" for word, n in counts.items()]
    without = dict.fromkeys(
        low_precision.network(p) for p in tried if p.base_lost and p not in points
    )
    dropped = [low_precision_bar(point, tried) for point in lost]
    sentences = [
        fewest.sentence,
        f"Of {count(len(bars) + len(lost), 'setting')}, {listed([*each, *_all_diverged(lost)])}."
        * bool(bars and not fewest.title),
        f"In {listed([f'**{verbatim(name)}**' for name in without])} float32 diverges too: no "
        "format is compared with it there." * bool(without),
        f"{verbatim(rounding)}." * bool(fewest.title and rounding),
        f"All runs diverged with {first([_strong(bar) for bar in dropped])}." * bool(lost),
        f"No run ended well of {first([_strong(low_precision_bar(p, tried)) for p in unended])}."
        * bool(unended),
    ]
    sentences = [text for text in sentences if text]
    remedy = caveats.remedies(tables, "accuracy")
    steps = [fewest.advice] * bool(fewest.advice)
    steps += _low_precision_advice(settings, dropped, brief=bool(fewest.title))
    steps += _repeated(settings, among)
    advice = f"{'; '.join(steps)}." if steps else ""
    heads = {word: f"{n} of {len(bars)} {says[word]}" for word, n in counts.items()}
    grouped = sorted(settings, key=lambda one: (list(FORMATS).index(one[2]), one[1].value))
    bars = [replace(bar, group=heads[word]) for _, bar, word in grouped]
    if set(words) == {"not valid"}:
        title, advice = "No format is compared with a float32 that learned", advice or remedy
    if doubtful:  # that a format learns nothing is no doubt: it is a finding
        title, sentences = provisional(title), unclaimed(sentences)
        advice = remedy
    yield Subject(title, sentences[:NAMED], bars, "float32", "error", advice)


class _Fewest(NamedTuple):
    """The answer to the question how few bits train; empty where formats are not of many sizes."""

    title: str = ""
    sentence: str = ""
    advice: str = ""


def _fewest_bits(settings: Sequence[Setting], lost: Sequence[emulated.Point]) -> _Fewest:
    """The format of the fewest bits that comes near float32's error, of each network."""
    near = [(point, bar) for point, bar, word in settings if word == "small"]
    sizes = {point.bits for point, *_ in settings}
    if not near or len(sizes) < SIZES or max(sizes) < SPAN * min(sizes):
        return _Fewest()
    near.sort(key=lambda pair: (pair[0].bits, pair[0].weight_bits or FULL, pair[1].value))
    least = {point.network: (point, bar) for point, bar in reversed(near)}
    trains = [
        f"{low_precision.network(point)} {'trains ' * (k == 0)}with {point.bits}-bit activations"
        + f" and {point.weight_bits}-bit weights" * (point.weight_bits not in (None, point.bits))
        for k, (point, _) in enumerate(least.values())
    ]
    named = [f"{_strong(bar)} ({wording.signed(bar.value)} points)" for _, bar in least.values()]
    take = f"for the fewest bits take {' or '.join(_strong(bar) for _, bar in least.values())}"
    measured = [*(point for point, *_ in settings), *lost]
    networks = {point.network: low_precision.network(point) for point in measured}
    others = [name for network, name in networks.items() if network not in least]
    none = f"; {listed(others)} with none that was measured" * bool(others)
    return _Fewest(
        f"{listed(trains)} to {NEAR}{none}", f"Fewest bits {NEAR}: {first(named)}.", take
    )


def _rounding(settings: Sequence[Setting]) -> str:
    """That rounding decides, where it does so of the worst setting; else empty."""
    large = [(point, bar) for point, bar, word in settings if word == "large"]
    if not large:
        return ""
    worst, bar = max(large, key=lambda pair: pair[1].value)
    cure = worst.sibling([p for p, _, word in settings if word == "small"], rounding="stochastic")
    if cure is None:
        return ""
    cured = next(b.value for p, b, _ in settings if p is cure)
    ends = [wording.signed(value) for value in (cured, bar.value)]
    # With another loss scale the same may train, if not as well.
    scaled = [
        (b.value, p.choice["loss_scale"])
        for p, b, _ in settings
        if p.choice["rounding"] == worst.choice["rounding"] and worst.differs_by_one(p)
        if p.choice["loss_scale"] != worst.choice["loss_scale"]
    ]
    value, scale = min(scaled, default=(bar.value, "auto"))
    if value < bar.value / 2:
        ends[1] += f"; with a loss scale of {wording.power(scale)} {wording.signed(value)}"
    named = low_precision.setting(worst, [p for p, *_ in settings])
    return (
        f"{named} trains if rounded stochastically ({ends[0]} "
        f"points of error against float32), not if rounded to nearest ({ends[1]})"
    )


def _is_better(settings: Sequence[Setting]) -> bool:
    """Whether a small loss is a gain of more than that."""
    return any(word == "small" and bar.value < -emulated.LITTLE for _, bar, word in settings)


def _counted(settings: Sequence[Setting], lost: int, unended: int) -> str:
    """How many settings come near float32's error, and how far the worst of the others ends.

    Args:
        lost: settings of which every run diverged; unended: of which no run has a result.
    """
    words = [word for *_, word in settings]
    without = words.count("not valid") + words.count("baseline diverged")
    near, valid = words.count("small"), len(words) - without + lost + unended
    if not valid:
        return WITHOUT_BASELINE
    if all(word == "too few repeats" for *_, word in settings) and valid == len(words):
        return f"Nothing is shown of {count(valid, 'setting')}: fewer than three repeats"
    to = f"{NEAR}{' or below it' * _is_better(settings)}"
    title = f"{near} of {valid} settings train {to}"
    if open_ := sum(word in UNDECIDED for *_, word in settings):
        shown = f"{near} of {valid} settings are shown to train {to}"
        title = f"{shown}, {open_} {'is' if open_ == 1 else 'are'} {wording.INCONCLUSIVE}"
    title += f", {unended} did not end" * bool(unended)
    large = [bar for _, bar, word in settings if word == "large"]
    if lost:
        return f"{title}; all runs of {'one' if lost == 1 else lost} diverged"
    if not large:
        return title
    worst = max(large, key=lambda bar: bar.value)
    return f"{title}; the worst ends {worst.value:.1f} points above it ({worst.label})"


def _all_diverged(lost: Sequence[emulated.Point]) -> list[str]:
    """`1 diverged in every run`: how many settings did."""
    return [f"{len(lost)} diverged in every run"] * bool(lost)


def _low_precision_advice(
    settings: Sequence[Setting], lost: Sequence[Bar], brief: bool
) -> list[str]:
    """The one change that makes what fails train; what fails all the same is to avoid.

    Args:
        lost: rows of settings of which every run diverged.
        brief: whether the latter is left to the chart.
    """
    bad = [(point, bar) for point, bar, word in reversed(settings) if word == "large"]
    good = [(point, bar) for point, bar, word in settings if word == "small"]
    changes = {
        bar: [
            f"{_change(point, other)} ({wording.signed(better.value)})"
            for other, better in good
            if point.differs_by_one(other)
        ]
        for point, bar in bad
    }
    cured = [bar for bar, own in changes.items() if own][:CHANGES]
    others = [*lost, *(bar for bar in changes if bar not in cured)]
    steps = [
        f"with {_strong(bar)} ({wording.signed(bar.value)} points): {' or '.join(changes[bar])}"
        for bar in cured
    ]
    names = [*map(_strong, others)]
    plain = len(names) <= NAMED and not any("," in name for name in names)
    steps += [f"avoid {listed(names) if plain else first(names)}"] * bool(others and not brief)
    return steps


def _repeated(settings: Sequence[Setting], among: Sequence[emulated.Point]) -> list[str]:
    """What more runs would decide what is open, and those again that have no result.

    Args:
        among: all formats, float32 and those without a result too.
    """
    due = [point for point in among if _is_due(point)]
    bases = [point.network for point in due if point.is_float32]
    open_ = [
        point.loss.n
        for point, _, word in settings
        if (word in OPEN or (word == "incomplete" and point.loss.n < contrast.FEWEST))
        and not _is_due(point)
        and point.network not in bases
    ]
    more = repeats_needed.to_halve(min(open_)) if open_ else ""
    return [step for step in (AGAIN * bool(due), more) if step]


def _is_due(point: emulated.Point) -> bool:
    """Whether the same command makes some of its runs again: they have no result."""
    return not {*point.statuses} <= {*FINAL}


def _change(point: emulated.Point, other: emulated.Point) -> str:
    """`round stochastically`: the one choice in which another point differs, as a request."""
    name = next(n for n in emulated.FORMATS if point.choice[n] != other.choice[n])
    value = str(wording.power(other.choice[name]))
    return CURES.get(name, {}).get(value) or CURE.get(name, f"{name} {{}}").format(verbatim(value))


def _strong(bar: Bar) -> str:
    return f"**{verbatim(bar.label)}**"


def low_precision_bar(point: emulated.Point, among: Sequence[emulated.Point]) -> Bar:
    """A choice of formats as a row: its loss from float32, above zero is worse."""
    named = low_precision.own_name(point, among)
    parts = [named, low_precision.formats(point)]
    # What varies of a training stands behind the formats, a network before them.
    parts = parts if point.network.startswith(named.partition(", ")[0]) else parts[::-1]
    label = ", ".join(filter(None, parts))
    claimed = point.size not in ("not valid", "images not recorded")
    ends = (point.loss.low, point.loss.high) if claimed else (np.nan, np.nan)
    value, text = point.loss.estimate, low_precision.loss(point)
    return Bar(label, point.choice["policy"], value, *ends, point.size, text)
