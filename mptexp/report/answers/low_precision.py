"""The report's section on emulated low precision, and how its formats are named."""

import math
from collections.abc import Sequence

import pandas as pd

from mptexp.analysis import emulated
from mptexp.analysis.emulated import Point
from mptexp.analysis.sweep_tables import Tables
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
    "the mean loss of a batch."
)


def sections(tables: Tables) -> list[Section]:
    """The section on emulated low precision; none where no run emulates any."""
    points = emulated.points(tables)
    if not emulated.emulates(points):
        return []
    return [Section(TITLE, NOTE, [], _rows(points))]


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


def loss(point: Point, said: str = "") -> str:
    """The loss in percentage points with its interval, or the reason why it has none.

    Args:
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
        return f"{value} ({f'{reason}, ' * (reason != said)}n = {over.n})"
    if math.isnan(over.low):
        return f"{value} (no interval, n = {over.n})"
    return f"{value} [{low}, {high}] (n = {over.n})"


def _ended(statuses: Sequence[str]) -> str:
    """How many runs there were, and how those ended that did not end well."""
    bad = [s for s in statuses if s != "ok"]
    counts = [f"{bad.count(status)} {status}" for status in dict.fromkeys(bad)]
    return f"{len(statuses)} ({', '.join(counts)})" if counts else f"{len(statuses)}"
