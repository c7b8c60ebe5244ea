"""The words that all texts of a report share: numbers, ratios, differences, names, grammar."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from mptexp.analysis import validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT
from mptexp.host.terminal import visible
from mptexp.report.text.parameter_values import compiled_in_words, in_words, setting_in_words
from mptexp.spec.backends import LABELS as BACKENDS
from mptexp.spec.policies import EFFECTIVE_SHARE, POLICY_ROWS, share_mark

EMULATED = "emulated: slower is expected"
INCONCLUSIVE = "inconclusive"
PROVISIONAL = "Provisional"  # how a title opens of what was measured, and cannot be claimed
AS_FAST = "as fast"  # of a ratio that is 1.00, or of which no direction is proven
SMALL = 0.1  # a change of speed beyond which an inconclusive one may not go is said
UNDECIDED = "undecided"  # of a difference in accuracy that may be anything in its interval
NOT_VALID = "Measured, but not valid"
# How a sentence opens that lists the comparisons with a baseline of one finding, in this order.
OPENINGS = {
    "faster": "Faster than {}",
    "slower": "Slower than {}",
    INCONCLUSIVE: "Inconclusive (the interval includes 1)",
    "no interval": "Fewer than three repeats show nothing",
    "not valid": NOT_VALID,
}
SPEEDUP = ("speedup", "low", "high", "blocks")  # columns of a ratio
MOST_PERCENT = 1000  # of a change: beyond, its digits say nothing
MOST_PERPLEXITY = 10**6  # the same of a perplexity, which to know nothing of no vocabulary exceeds
MOST_PLACES = 7  # decimals of an end close to no effect
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# --- grammar and names ------------------------------------------------------------------------


def verbatim(text: str) -> str:
    """A value for a sentence in Markdown: what looks like a link or like emphasis is shown.

    Tags are left to markdown.safe, which takes the whole sentence.
    """
    shown = re.sub(r"([\\`*_\[\]~$|!#]|:(?=//))", r"\\\1", visible(str(text)).strip())
    return re.sub(r"^(\d*)([-+=:.)])", r"\1\\\2", shown)  # what opens a list in a line of its own


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capitalized(text: str) -> str:
    """A clause as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


ON = "device "  # before the name of one, where several were measured
BARE = ("gpu_model", "backend", "dataset", "model", "setting")  # whose values need no name
DOES = {"train": "trains", "inference": "runs inference"}  # a policy, by phase
USUAL = 0.75  # share of the points from which a value is not repeated with each of them


def title(name: str) -> str:
    """A column's name as a heading: `batch_size` is `Batch size`."""
    return {"jit": "XLA", "gpu_model": "Device"}.get(name) or name.replace("_", " ").capitalize()


def headed(table: pd.DataFrame, names: Iterable[str]) -> dict[str, pd.Series]:
    """Columns under their headings; how input came and whether XLA was on in words."""
    forms: dict[str, Callable[[Any], Any]] = {
        "jit": {True: "on", False: "off"}.get,
        "input_mode": partial(in_words, "input_mode"),
        "setting": setting,
    }
    torch = "backend" in table and (table.backend == "torch").any()
    heads = {"jit": "XLA or torch.compile"} if torch else {}
    return {
        heads.get(name, title(name)): table[name].map(forms[name]) if name in forms else table[name]
        for name in names
    }


def setting(text: str) -> str:
    """The further parameters of a point in words, a loss scale as `loss_scale 2⁻¹⁶`."""
    words = setting_in_words(text)
    return re.sub(r"\bloss_scale ([\d.e+-]+)", lambda m: f"loss_scale {power(_exact(m[1]))}", words)


def _exact(digits: str) -> float:
    """The number behind its first digits, where that is a power of two: 2⁻¹⁶ of 1.52588e-05."""
    near = 2.0 ** round(math.log2(float(digits))) if float(digits) > 0 else 0.0
    return near if f"{near:g}" == f"{float(digits):g}" else float(digits)


def varying(table: pd.DataFrame, without: Iterable[str] = ()) -> dict[str, pd.Series]:
    """The columns that tell the points of a table apart, under their headings."""
    names = [n for n in POINT if n in table and n not in (*without, "batch_size")]
    return headed(table, [n for n in names if table[n].nunique() > 1])


def told_apart(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """As varying, of runs of which some ended before it was known whether XLA was on."""
    known = runs.jit[runs.jit.isin([True, False])]
    columns = varying(runs, without=["jit"] * (known.nunique() < 2))
    return {name: values.fillna("–") for name, values in columns.items()}


def default_name(policy: str) -> str:
    """A device's default as readers know it."""
    return "TF32" if policy == "tensorfloat32" else policy


def strict(policy: str, default: str) -> str:
    """`strict ` before float32 where TF32 is what a user who sets nothing gets."""
    return "strict " * (policy == "float32" and default == "tensorfloat32")


def panels(table: pd.DataFrame) -> pd.Series:
    """What tells the points of a table apart, besides the batch size: the titles of panels."""
    names = [n for n in POINT if n not in ("gpu_model", "batch_size") and table[n].nunique() > 1]
    parts = [table.gpu_model.astype(str), *(of_table(table, name) for name in names)]
    return pd.Series(joined(parts), table.index, dtype=object)


def places(table: pd.DataFrame, short: bool = False) -> list[str]:
    """What tells each row apart from other points: `batch size 32`, `with XLA, prefetched input`.

    The batch size where nothing does.

    Args:
        short: whether to leave out what `usual` says of most of them, where that is said beside.
    """
    names = [n for n in POINT if table[n].nunique() > 1] or ["batch_size"]
    names.sort(key=lambda n: n != "batch_size")
    most = _most(table) if short else {}
    words = [of_table(table, n).where(table[n] != most.get(n), "") for n in names]
    return [place or usual(table) for place in joined(words)]


def usual(table: pd.DataFrame) -> str:
    """What holds of most points, whose names in `places` leave it out: `without XLA`."""
    first = {n: table[table[n] == value].iloc[:1] for n, value in _most(table).items()}
    return ", ".join(of_table(row, n).iloc[0] for n, row in first.items())


def unless_said(usual: str) -> list[str]:
    """What the names of places leave out as a sentence; none where they leave out nothing."""
    return [f"Where nothing else is said: {visible(usual)}."] * bool(usual)


def _most(table: pd.DataFrame) -> dict[str, Any]:
    """By parameter the value that most points have, where a few have another."""
    points = table[POINT].drop_duplicates()
    mixed = (table.backend == "torch").nunique() > 1  # PyTorch has no XLA
    # What holds on one device is no claim about another: each is named.
    apart = ["gpu_model", "batch_size", "setting", *["jit"] * mixed]
    counts = {n: points[n].value_counts() for n in POINT if n not in apart}
    return {
        n: count.index[0]
        for n, count in counts.items()
        if len(count) > 1 and count.iloc[0] >= USUAL * len(points)
    }


def of_table(table: pd.DataFrame, name: str) -> pd.Series:
    """A column of a table in words."""
    if name == "jit":
        pairs = zip(table.jit, table.backend, strict=True)
        return pd.Series([compiled_in_words(*pair) for pair in pairs], table.index, dtype=object)
    if name == "backend":
        return table.backend.map(lambda name: BACKENDS.get(name, str(name)))
    if name == "replicas":
        return table.replicas.map(lambda n: count(int(n), "replica"))
    if name == "gpu_model":
        return ON + table.gpu_model.astype(str)
    return named(table[name], BARE)


def emulating(choice: Mapping[str, Any]) -> str:
    """` in <8,8>, rounded stochastically`: what a run emulates beside its policy, else empty."""
    spread, kept = choice["propagation"], choice["weight_format"]
    said = f" in {spread}" * (spread != "policy")
    said += f" with weights in {kept}" * (kept not in ("policy", spread))
    return said + ", rounded stochastically" * (choice["rounding"] == "stochastic")


def at(place: str) -> str:
    """A place after its preposition: `at batch size 32`, `on A100`, `with prefetched input`."""
    first, _, rest = place.partition(", ")
    if first.startswith("batch size") and rest:  # then all of it reads as one phrase
        return f"at {first} {at(rest)}"
    if place.startswith(ON):
        return f"on {place.removeprefix(ON)}"
    first = place.partition(" ")[0].rstrip(",")
    if first in ("with", "without"):
        return place
    words = {"batch": "at", "training": "in", "inference": "in"}
    words |= dict.fromkeys(BACKENDS.values(), "in")
    return f"{words.get(first, 'with')} {place}"


def joined(columns: Iterable[pd.Series]) -> list[str]:
    """The cells of each row in words, without those that are missing or empty."""
    words = [column.astype(object).where(column.notna(), "").map(str) for column in columns]
    return [", ".join(filter(None, row)) for row in zip(*words, strict=True)]


def named(values: pd.Series, bare: Sequence[str]) -> pd.Series:
    """Values of a parameter in words; those of the bare ones without its name."""
    if values.name == "setting":
        return values.map(setting)
    name = str(values.name)
    return values.astype(str) if name in bare else values.map(partial(in_words, name))


def partly(row: Mapping[str, Any]) -> list[str]:
    """`72 % of the arithmetic in bfloat16`, where a policy is effective in part alone."""
    share = row.get("effective_share")
    if share is None or math.isnan(share) or share >= EFFECTIVE_SHARE:
        return []
    policy = POLICY_ROWS[row["policy"]]
    said = share_mark(share, "arithmetic", policy.promise)
    if policy.quantization and row.get("emulated"):  # Keras rounds, and multiplies in another type
        return [said.replace(" in ", " on numbers rounded to ")]
    return [said]


# --- ratios and differences ---------------------------------------------------------------------


def ratio_of(row: Mapping[str, Any], kind: str = "") -> str:
    """The speedup of a table's row in words; its columns may begin with a kind, as `strict_`.

    `3.39× slower [2.94, 3.91] (n = 3)`: sentence, table, caption and chart say the same of one row.
    A ratio that is not valid has the reason in place of an interval.
    """
    row = {name: row[f"{kind}{name}"] for name in SPEEDUP} | {"flags": row.get(f"{kind}flags")}
    if math.isnan(row["speedup"]):
        return "–"
    value, interval = speed_parts(row)
    text, n = f"{value}× {direction(row)} {interval}", f"(n = {row['blocks']:.0f})"
    if math.isnan(row["low"]) or finding(row) == "not valid":
        return f"{text[:-1]}, {n[1:]}"
    return f"{text} {n}" + f": {open_to(row)}" * (finding(row) == INCONCLUSIVE)


def open_to(row: Mapping[str, Any]) -> str:
    """`inconclusive`; of an interval that ends near 1 `inconclusive, within 9 %`."""
    low, high = row["low"], row["high"]
    if low * (1 + SMALL) <= 1 or high >= 1 + SMALL:  # low may be 0, of thousands of comparisons
        return INCONCLUSIVE
    return f"{INCONCLUSIVE}, within {math.ceil(100 * (max(1 / low, high) - 1))} %"


def finding(row: Mapping[str, Any]) -> str:
    """What a row's interval allows: faster, slower, inconclusive, no interval, or not valid."""
    if not_valid(str(row["flags"] or "")):
        return "not valid"
    if math.isnan(row["low"]):
        return "no interval"
    return "faster" if row["low"] > 1 else "slower" if row["high"] < 1 else INCONCLUSIVE


def factor(ratio: float) -> str:
    """A ratio to three digits, of little to two: 0.0034, 0.15, 1.15, 50.3, 1,360."""
    if 0 < ratio < 0.095:
        return f"{ratio:.2g}"
    places = 2 if abs(ratio) < 9.995 else 1 if abs(ratio) < 99.95 else 0
    return f"{ratio:,.{places}f}"


def is_even(ratio: float) -> bool:
    """Whether a ratio reads as 1.00, whatever is proven of it."""
    return factor(ratio) == "1.00"


def times(speedup: float) -> str:
    """`1.15× faster`, `2.00× slower`, `1.00× as fast`: a ratio whose direction is proven."""
    if is_even(speedup):
        return f"1.00× {AS_FAST}"
    return f"{factor(speedup)}× faster" if speedup > 1 else f"{factor(1 / speedup)}× slower"


def over(speedup: float) -> str:
    """`1.15× as fast as`, before the name of the baseline: a ratio without an interval."""
    return f"{factor(speedup)}× {AS_FAST} {than(AS_FAST)}"


def than(said: str) -> str:
    """What stands between a ratio or its direction and the baseline: `than`, `as fast` has `as`."""
    return "as" if said.endswith(AS_FAST) else "than"


def direction(row: Mapping[str, Any]) -> str:
    """`faster` or `slower` where `finding` proves it and the number is not 1.00, else `as fast`.

    The fewer the repeats, the less a number near 1 shows which side it will be on the next time:
    of what has no interval, or none that counts, no direction is said.
    """
    proven = finding(row) in ("faster", "slower")
    return times(row["speedup"]).partition("× ")[2] if proven else AS_FAST


def speed_parts(row: Mapping[str, Any]) -> tuple[str, str]:
    """A speedup as a number and its interval, or why it has none.

    What is slower is the policy's time over the baseline's, so that the number is above 1; of what
    is not proven, `0.96× as fast [0.88, 1.05]`, number and interval are the speedup's.
    """
    word, (ratio, low, high) = finding(row), (row[name] for name in ("speedup", "low", "high"))
    if direction(row) == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    reason = {"not valid": not_valid(str(row["flags"])), "no interval": "no interval"}.get(word)
    return factor(ratio), f"({reason})" if reason else ends(low, high)


def ends(low: float, high: float) -> str:
    """`[1.002, 1.15]`: the interval of a ratio; no end of one that excludes 1 reads as 1."""
    if low <= 1 <= high:
        return f"[{factor(low)}, {factor(high)}]"
    places = [places_beyond(end, 1, 2) for end in (low, high)]
    said = [
        f"{end:.{k}f}" if k > 2 else factor(end) for end, k in zip((low, high), places, strict=True)
    ]
    return f"[{', '.join(said)}]"


def not_valid(flags: str, *what: str) -> str:
    """`not valid: interference, throttled`; empty where nothing invalidates time or accuracy.

    Args:
        what: is shown, see `validity.invalid`; time where nothing is named.
    """
    known = [flag for each in what or ("time",) for flag in validity.invalid(flags, each)]
    names = dict.fromkeys(flag.name for flag in known)
    return f"not valid: {', '.join(names)}" if names else ""


def flagged(flags: str, measure: str = "accuracy", phase: str = "train") -> str:
    """`interference (time, training time)`: every flag of a cell with what it invalidates.

    Args:
        measure: what the accuracy of the runs' task is called.
        phase: of the runs; an inference has no training time.
    """
    known = [validity.FLAGS[name] for name in validity.names_of(flags)]
    none = {"training time"} if phase == "inference" else set()
    lost = [[what for what in f.invalidates if what not in none] for f in known]
    named = [
        "all" if f.invalidates == validity.ALL else ", ".join(what).replace("accuracy", measure)
        for f, what in zip(known, lost, strict=True)
    ]
    return "; ".join(f"{f.name} ({what})" for f, what in zip(known, named, strict=True))


def contrast(over: Contrast, flags: str = "", what: str = "time") -> str:
    """A ratio with its interval and n, or why it has none; a dash without any."""
    if math.isnan(over.estimate):
        return "–"
    none = not_valid(flags, what) or "no interval" * math.isnan(over.low)
    if none:
        return f"{factor(over.estimate)}× ({none}, n = {over.n})"
    return f"{factor(over.estimate)}× {ends(over.low, over.high)} (n = {over.n})"


def signed(value: float, form: str = ".1f") -> str:
    """A number with its sign, less than zero with a minus sign; what rounds to zero is +0.0.

    From MOST_PERCENT on, which only percentages reach, `over +1,000`.
    """
    if value >= MOST_PERCENT:
        return f"over +{MOST_PERCENT:,}"
    text = f"{value:+{form}}"
    return (text if float(text) else f"{0.0:+{form}}").replace("-", "\N{MINUS SIGN}")


def difference(value: float, low: float, high: float, n: int) -> str:
    """A difference in percentage points with its interval and n; says so where there is none."""
    if math.isnan(low):
        return f"{signed(value * 100)} (no interval, n = {n})"
    largest = max(abs(number) * 100 for number in (value, low, high))
    least = 2 if 0 < largest < 0.1 else 1  # not all of it rounded away
    form, shown = f".{least}f", []
    for end in (low * 100, high * 100):
        places = places_beyond(end, 0, least) if low > 0 or high < 0 else least
        shown.append(signed(end, f".{places}f"))
    return f"{signed(value * 100, form)} [{', '.join(shown)}] (n = {n})"


def places_beyond(end: float, null: float, least: int) -> int:
    """How many decimals an end of an interval needs lest it read as no effect, which it is not.

    Args:
        least: how many it has at least.
    """
    places = range(least, MOST_PLACES)
    return next((k for k in places if float(f"{end:.{k}f}") != null), least)


def signed_range(least: float, most: float) -> str:
    """`−0.2 to +0.1`, `−0.04`: numbers on one side of zero do not read as zero."""
    apart = least > 0 or most < 0
    digits = [places_beyond(value, 0, 1) if apart else 1 for value in (least, most)]
    ends = [signed(v, f".{n}f") for v, n in zip((least, most), digits, strict=True)]
    return " to ".join(dict.fromkeys(ends))


def percentage_points(fraction: float) -> str:
    """`1 percentage point` for 0.01."""
    value = fraction * 100
    return f"{value:g} percentage point{'' if value == 1 else 's'}"


def repeats(blocks: pd.Series) -> str:
    """`n = 3`, `n = 3 to 5`: of how many blocks some differences are."""
    least, most = int(blocks.min()), int(blocks.max())
    return f"n = {least}" if least == most else f"n = {least} to {most}"


# --- numbers ------------------------------------------------------------------------------------


def digits(value: float) -> str:
    """A number to three digits, a large one without an exponent of ten: 4,310, 18.2, 0.353."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def rate(value: float) -> str:
    """Units per second: 4,573, below ten to three digits, as 0.417 is not 0."""
    return f"{value:,.0f}" if value >= 10 else digits(value)


def teraflops(rate: float) -> str:
    """A rate in FLOP/s as text."""
    return f"{digits(rate / 1e12)} TFLOP/s"


def gigabytes(rate: float) -> str:
    """A rate in bytes/s as text."""
    return f"{digits(rate / 1e9)} GB/s"


def mean_accuracy(mean: float, low: float, high: float, n: int) -> str:
    """A mean of fractions in percent, with the least and the largest of several."""
    if pd.isna(mean):
        return "–"
    ends = f" ({low * 100:.1f}–{high * 100:.1f})" if n > 1 else ""
    return f"{mean * 100:.1f} %{ends}"


def perplexity(value: float) -> str:
    """`8.21`; of a loss that exploded `over 1,000,000`."""
    return f"{value:.2f}" if value <= MOST_PERPLEXITY else f"over {MOST_PERPLEXITY:,}"


def share(fraction: float) -> str:
    """A share as a percentage of two digits that count.

    None is said to be nothing, or all, that is not.
    """
    if fraction == 0:
        return "0 %"
    if fraction < 1e-5:
        return "< 0.001 %"
    if 0.995 <= fraction < 1 - 1e-9:
        return "> 99 %"
    return percent(fraction)


def percent(fraction: float) -> str:
    """A fraction as a percentage of at least two digits that count: `1 %`, `146 %`."""
    return f"{fraction * 100:.2g} %" if fraction < 0.0995 else f"{fraction * 100:,.0f} %"


def power(scale: float | str) -> str:
    """A loss scale as readers know it: 2¹⁵ for 32768, 2⁻⁸ for 1/256, others as they are."""
    if isinstance(scale, str):
        return scale
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5 or 1 <= scale <= 1024:
        return f"{scale:g}"
    return "2" + str(exponent - 1).translate(RAISED)
