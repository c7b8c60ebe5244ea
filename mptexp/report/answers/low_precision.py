"""The report's section on emulated low precision: its table, and what papers report."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from mptexp.analysis import emulated
from mptexp.analysis.emulated import LITTLE, Point
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats
from mptexp.report.answers.comparisons import Section
from mptexp.report.text import column_formats, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.report.text.parameter_values import setting_in_words

TITLE = "Low precision, emulated"
NOTE = (
    "Values are rounded exactly to the format; the arithmetic between them is float32's, so that a "
    "dot product is converted once, at its end, and step times say nothing of hardware with such "
    "formats. *Activation format*: weights as used, outputs of layers and the gradients of both. "
    "*Storage format*: weights between steps; momenta and the statistics of batch normalization "
    "stay float32. An update *lost to rounding* was not zero and left the weight as it was; under "
    "stochastic rounding many are, without a loss on the average. The difference is validation "
    "error minus that of float32 in the same block: above zero is worse. Gradients are those of "
    "the mean loss of a batch. Below, a loss is called small where its whole interval is below "
    f"{LITTLE:g} points."
)
AGREEMENT = {
    "small": "consistent",
    "large": "inconsistent",
    "undecided": wording.INCONCLUSIVE,
    "incomplete": f"{wording.INCONCLUSIVE}, as some runs did not end well",
    "diverged": "inconsistent: no run ended well",
    "baseline diverged": f"{wording.INCONCLUSIVE}: runs of float32 diverged",
    "too few repeats": f"{wording.INCONCLUSIVE} with fewer than three repeats",
    "images not recorded": f"{wording.INCONCLUSIVE}: how many images it was validated with is not "
    "recorded",
    "not valid": "not valid",
}


def sections(tables: Tables) -> list[Section]:
    """The section on emulated low precision; none where no run emulates any."""
    points = emulated.points(tables)
    if not emulated.emulates(points):
        return []
    papers = (_gupta, _dynamic, _binary, _masters)
    reason = caveats.doubts(tables, "accuracy")
    sentences = [] if reason else [text for paper in papers for text in paper(points)]
    return [Section(TITLE, NOTE, sentences, _rows(points))]


# --- the table ------------------------------------------------------------------------------------


def _rows(points: Sequence[Point]) -> pd.DataFrame:
    order = sorted(points, key=lambda p: (p.network, not p.is_float32, str(p.choice)))
    compared = [p for p in order if p.loss.n and not p.is_float32]
    reasons = {wording.not_valid(p.flags, "accuracy") for p in compared}
    shared = reasons.pop() if len(reasons) == 1 else ""  # said once, in the head
    head = "Difference from float32, percentage points [95 % interval]"
    cells = {
        "Network": [network(p) for p in order],
        "Policy": [p.choice["policy"] for p in order],
        "Activation format": [_unless(p.choice["propagation"], "policy") for p in order],
        "Storage format": [_unless(p.choice["weight_format"], "policy") for p in order],
        "Rounding": [p.choice["rounding"] if _rounds(p) else BLANK for p in order],
        "Loss scale": [_unless(wording.power(p.choice["loss_scale"]), "auto") for p in order],
        "Validation error, %, mean (min–max)": [_error(p) for p in order],
        head + f" ({shared})" * bool(shared): [loss(p, said=shared) for p in order],
        "Updates lost to rounding": column_formats.cells(
            "lost_updates", [p.lost_updates for p in order]
        ),
        "Runs": [_ended(p.statuses) for p in order],
    }
    return column_formats.without_blanks(pd.DataFrame(cells))


def _unless(name: str, usual: str) -> str:
    return BLANK if name == usual else name


def _rounds(point: Point) -> bool:
    names = {point.choice["propagation"], point.choice["weight_format"]}
    return not names <= {"policy", "binary", "float32"}


def _error(point: Point) -> str:
    if point.errors.empty:
        return BLANK
    return f"{point.errors.mean():.2f} ({point.errors.min():.2f}–{point.errors.max():.2f})"


def formats(point: Point) -> str:
    """The choice of formats in a few words: `<8,8>, rounded stochastically`.

    A format alone is that of activations and weights.
    """
    choice = point.choice
    spread, kept = choice["propagation"], choice["weight_format"]
    words = [choice["policy"]] if choice["policy"] != "float32" else []
    alone = spread == kept or spread == "binary"
    words += [spread if alone else f"activations {spread}"] * (spread != "policy")
    words += [f"weights {kept}"] * (kept not in ("policy", spread))
    words += ["rounded stochastically"] * (choice["rounding"] == "stochastic")
    scale = wording.setting(f"loss_scale {choice['loss_scale']}").replace("_", " ")
    named = {"none": "no loss scale", "dynamic": "dynamic loss scale"}
    words += [named.get(str(choice["loss_scale"]), scale)] * (choice["loss_scale"] != "auto")
    return ", ".join(words)


def network(point: Point) -> str:
    """A network and what of its training varies: `mlp, width 0.5`; not what one is without."""
    model, *varied = point.network.split(", ")
    asked = [setting_in_words(text) for text in varied if not text.endswith(" None")]
    return ", ".join([model, *asked])


def own_name(point: Point, among: Sequence[Point]) -> str:
    """What of a network tells it from the others; empty where nothing needs to."""
    model, *varied = network(point).split(", ")
    several = len({other.network.split(", ")[0] for other in among}) > 1
    return ", ".join([model] * several + varied)


def setting(point: Point, among: Sequence[Point]) -> str:
    """A network and its formats in a sentence: `lenet in <8,8>`, its name where there are more."""
    choice, named = point.choice, own_name(point, among)
    policy = choice["policy"] if choice["policy"] != "float32" else ""
    of = " under ".join(filter(None, [named, policy])) or network(point)
    return of + wording.emulating({**choice, "rounding": "not said here"})


def loss(point: Point, unit: str = "", said: str = "") -> str:
    """The loss in percentage points with its interval, or the reason why it has none.

    Args:
        unit: behind the number.
        said: the reason that stands beside all of them already.
    """
    if point.is_float32:
        return "0 (it is float32)"
    over = point.loss
    if not over.n:
        return BLANK
    value, low, high = (wording.signed(v, ".2f") for v in (over.estimate, over.low, over.high))
    reason = wording.not_valid(point.flags, "accuracy")
    if point.size == "images not recorded":
        reason = point.size
    if reason:
        return f"{value}{unit} ({f'{reason}, ' * (reason != said)}n = {over.n})"
    if math.isnan(over.low):
        return f"{value}{unit} (no interval, n = {over.n})"
    return f"{value}{unit} [{low}, {high}] (n = {over.n})"


def _points(point: Point) -> str:
    return loss(point, unit=" points")


def _ended(statuses: Sequence[str]) -> str:
    """How many runs there were, and how those ended that did not end well."""
    bad = [s for s in statuses if s != "ok"]
    counts = [f"{bad.count(status)} {status}" for status in dict.fromkeys(bad)]
    return f"{len(statuses)} ({', '.join(counts)})" if counts else f"{len(statuses)}"


# --- the papers -----------------------------------------------------------------------------------


def _gupta(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        stochastic = point.choice["rounding"] == "stochastic"
        if stochastic and point.fixed_point and point.fixed_point.bits == 16 and point.loss.n:
            nearest = point.sibling(points, rounding="nearest")
            yield (
                "Gupta et al. (2015) train in 16-bit fixed point with little to no loss if "
                f"rounding is stochastic. Here {network(point)} in {point.choice['propagation']} "
                f"changes the error by {_points(point)} with stochastic rounding "
                f"{_of_nearest(nearest)}: {_on_rounding(point, nearest)}."
            )


def _of_nearest(nearest: Point | None) -> str:
    if nearest is None:
        return "and nearest was not run"
    if nearest.loss.n:
        return f"and by {_points(nearest)} to nearest"
    how = "diverged" if nearest.size == "diverged" else "ended without an error to compare"
    return f"and all of {wording.count(len(nearest.statuses), 'run')} to nearest {how}"


def _on_rounding(stochastic: Point, nearest: Point | None) -> str:
    if stochastic.size != "small" or nearest is None:
        return AGREEMENT[stochastic.size]
    if nearest.size == "diverged" or stochastic.nearest.low > 0:
        return "consistent, and nearest rounding is worse"
    return "consistent; that nearest rounding is worse is not shown"


def _dynamic(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        if point.choice["propagation"] == "dynamic<10>" and point.loss.n:
            yield (
                "Courbariaux et al. (2014) train with multiplications of 10 bits in dynamic fixed "
                f"point. Here {network(point)} with weights in {point.choice['weight_format']} "
                f"changes the error by {_points(point)}: {AGREEMENT[point.size]}."
            )


def _binary(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        if point.choice["propagation"] == "binary" and point.loss.n:
            yield (
                "BinaryNet (2016) trains with binary weights and activations, to an error of "
                "0.96 % on MNIST with a larger network and longer training. Here "
                f"{network(point)} reaches {point.errors.mean():.2f} % and changes the error by "
                f"{_points(point)}: {AGREEMENT[point.size]}."
            )


def _masters(points: Sequence[Point]) -> Iterator[str]:
    source = (
        "Micikevicius et al. (2018) keep float32 master weights so that no accuracy is lost. Here "
    )
    for point in points:
        nearest = point.choice["rounding"] == "nearest"
        if point.lacks_master_weights and nearest and point.loss.n:
            other = point.sibling(points, rounding="stochastic")
            rounded = (
                f", by {_points(other)} if it is rounded stochastically"
                if other and other.loss.n
                else ""
            )
            lost = column_formats.cell("lost_updates", point.lost_updates)
            yield (
                f"{source}{network(point)} with {point.choice['weight_format']} weights (loss "
                f"scale {point.choice['loss_scale']}) loses {lost} of the updates to rounding "
                f"and changes the error by {_points(point)} if the update is rounded to "
                f"nearest{rounded}: {_on_masters(point)}."
            )
            source = "And "


def _on_masters(point: Point) -> str:
    if point.size == "large":
        return "consistent"
    return "here they are not needed" if point.size == "small" else AGREEMENT[point.size]
