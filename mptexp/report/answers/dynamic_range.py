"""What is said of a training's dynamic range: which policy to use, what 16-bit formats lose."""

from collections.abc import Sequence

import pandas as pd

from mptexp.analysis import out_of_range, range_advice
from mptexp.analysis.out_of_range import GRADIENTS, KINDS, DynamicRange
from mptexp.analysis.range_advice import Advice
from mptexp.analysis.short_trainings import NATS, SHARE, Tried
from mptexp.report.text import column_formats, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.report.text.wording import power, share
from mptexp.spec.number_formats import FORMATS

NOTE = (
    "Shares of all values, over all layers, samples and repeats, without loss scale. *Flushed* are "
    "those smaller than half of the format's smallest subnormal, which round to zero; *subnormal* "
    "ones keep fewer bits. The smallest sufficient scale is the power of two with which at most "
    "0.1 % of the gradients that are not zero are flushed. Formats of 8 bits stand here for "
    "comparison: nothing here computes in them."
)
# Trainings were measured to bear scales that flush more, and to diverge with ones that flush less.
UNKNOWN = "with which scales it trains, range alone does not say"
OF_RANGE = (
    "This follows from the range of the numbers alone: whether the policy is faster on this device "
    "is for `mptexp run` to measure."
)
WITHIN = (
    "Of the numbers those that leave a layer are looked at: what is computed within one may still "
    "be too large or too small."
)
RULE = f"at most {share(SHARE)} or {NATS:g} above"
OF_TRIAL = (
    "This follows from the range of the numbers and from a short training: whether the policy is "
    "faster on this device, and as accurate in the end, is for `mptexp run` to measure."
)


def title(measured: DynamicRange, among: Sequence[DynamicRange]) -> str:
    """What sets one apart from the others: model, data set, batch size, and what else differs."""
    own, free = measured.parameters, {*out_of_range.FREE, "model", "dataset", "batch_size"}
    names = [n for n in own if n not in free and len({str(m.parameters[n]) for m in among}) > 1]
    words = [own["model"], own["dataset"], f"batch size {own['batch_size']}"]
    return ", ".join([*words, *(f"{n} {own[n]}" for n in names)])


def answer(measured: DynamicRange, tried: Tried | None = None) -> list[str]:
    """The advice first, then why, then what float16 and bfloat16 lose, and that speed is open.

    Where a sweep measured loss scales in this training, see `loss_scales.of_training` instead.
    """
    advised = range_advice.advise(measured, tried)
    why = [*reasons(advised), *_rests_on(measured)]
    more = [] if _failed(advised) else sentences(measured)
    return [_first(advised), *why, *more, *left_open(advised)]


def _first(advised: Advice) -> str:
    """The advice; of a policy that nobody timed no more than that its numbers fit."""
    if advised.policy == "float32":
        return "Use policy float32."
    if broken := _broken(advised):
        kinds = wording.listed([KINDS[kind] for kind in broken])
        return (
            f"Find out first why some {kinds} were infinite or NaN, in float32 "
            f"already; what was finite allows policy {choice(advised)}."
        )
    learned = advised.tried is None or advised.tried.fails or advised.tried.learned
    far = "" if learned else " so far, while float32 has learned nothing yet"
    return f"The numbers allow policy {choice(advised)}{far}; its speed was not measured."


def _broken(advised: Advice) -> list[str]:
    """The kinds of values of which some were not finite for no good reason, as in a mask."""
    return [kind for kind in advised.not_finite if kind in ("weights", *GRADIENTS)]


def left_open(advised: Advice) -> list[str]:
    """What is left for a sweep to measure; of float32, because another failed, nothing."""
    if _failed(advised):
        return []
    return [OF_RANGE if advised.tried is None else OF_TRIAL]


def _rests_on(measured: DynamicRange) -> list[str]:
    """That it was looked at once, of a training too short for more: later ones are other values."""
    if measured.samples > 1:
        return []
    return [
        "This rests on one look, before the first update: what the gradients become later is not "
        "known."
    ]


# --- advice ---------------------------------------------------------------------------------------


def choice(advised: Advice) -> str:
    """`mixed_float16 with loss_scale dynamic`: a policy, with its loss scale where it needs one."""
    scale = "" if advised.loss_scale == "none" else f" with loss_scale {advised.loss_scale}"
    return f"{advised.policy}{scale}"


def reasons(advised: Advice) -> list[str]:
    """Why, from a short training and the range of numbers: of the rest a sweep decides.

    Where a training in the policy failed, what range allows is of no more use.
    """
    tried = _of_trial(advised.tried)
    return tried if _failed(advised) else [*tried, *_of_range(advised)]


def _failed(advised: Advice) -> bool:
    return advised.tried is not None and advised.tried.fails


def _of_trial(tried: Tried | None) -> list[str]:
    """How the training in the policy ended that range allows."""
    if tried is None:
        return []
    where = f"{tried.policy} was tried for {wording.count(tried.steps, 'step')}"
    if tried.status not in ("ok", "diverged"):
        return [f"{where} and ended as {tried.status}: {tried.error}"]
    allowed = f"though what leaves the layers is within the range of {tried.policy}"
    layers = f"`mptexp advise` with `--layers {tried.policy}` finds the layers that need float32"
    if tried.loss is None:
        return [f"{where} and diverged, {allowed}: {tried.error}.", WITHIN, f"{layers}."]
    skipped = ""
    if tried.skipped:
        skipped = f" ({wording.count(tried.skipped, 'step')} skipped by the dynamic loss scale)"
    said = f"{where} and ended at a training loss of {tried.loss:.3g}{skipped}, float32 at "
    said += f"{tried.float32_loss:.3g}"
    if tried.fails:
        late = "; more `--steps` show whether the loss is late alone"
        return [f"{said}: it does not keep up ({RULE}), {allowed}.", WITHIN, f"{layers}{late}."]
    if not tried.learned:
        return [
            f"{said}; float32 itself is at chance level still, so that this says little: take more "
            "steps (`--steps`)."
        ]
    if tried.beyond_guessing:
        return [
            f"{said}, more than twice what guessing costs: terms of the model's own, such as "
            "regularizers, make up most of it, or float32 goes astray, so that this says little."
        ]
    return [f"{said}: it keeps up ({RULE})."]


def _of_range(advised: Advice) -> list[str]:
    if advised.native is None:
        return ["The records do not say which types the device computes in."]
    said = []
    if "bfloat16" in advised.native:
        said = [
            "This device computes in bfloat16, whose range is float32's: "
            f"{_lost(advised.lost, bool(_broken(advised)))}."
        ]
    elif "float16" not in advised.native:
        limited = advised.cpu_isa != "default"
        which = f"Under cpu_isa {advised.cpu_isa} this" if limited else "This"
        said = [
            f"{which} device computes in neither 16-bit type natively: neither is expected to be "
            "faster."
        ]
    return [*said, *_not_finite(advised), _of_float16(advised)]


def _lost(most: float, in_part: bool) -> str:
    """What bfloat16 loses of what was measured, and whether it does without a loss scale.

    That follows only where it loses few values, and all of them were finite.
    """
    finite = "was finite" if in_part else "was measured"
    said = f"nothing that {finite} is flushed to zero or too large"
    if most:
        said = f"at most {share(most)} of a kind of values that were measured may leave it"
    if most > out_of_range.TOLERATED or in_part:
        return f"{said}; whether it trains without a loss scale, range alone does not say"
    return f"{said}, so no loss scale is needed"


def _not_finite(advised: Advice) -> list[str]:
    """Which values were infinite or NaN; those of a mask are meant to be."""
    if not advised.not_finite:
        return []
    kinds = " and ".join(KINDS[kind] for kind in advised.not_finite)
    return [
        f"Some {kinds} were infinite or NaN when they were sampled: look whether that is meant, as "
        "in a mask; of how large they are nothing is known."
    ]


def _of_float16(advised: Advice) -> str:
    """What float16 needs."""
    if advised.too_large:
        kinds = " and ".join(advised.too_large)
        return f"Some {kinds} are larger than float16's largest number, 65504."
    if not advised.any_gradient:
        return "Which loss scale float16 needs, gradients that are all zero do not say."
    if {*advised.not_finite} & {*GRADIENTS} and advised.fixed_scales is None:
        return "Which loss scale float16 bears is not known, as its gradients' largest is not."
    if advised.hidden:
        return "Which loss scale float16 needs, gradients that were sampled in it do not say."
    if not advised.scalable:
        return (
            "In mixed_float16 no fixed loss scale flushes at most 0.1 % of the gradients and "
            f"leaves the largest finite; {UNKNOWN}."
        )
    if advised.fixed_scales is None:
        return (
            "In mixed_float16 no fixed loss scale flushes at most 0.1 % of the gradients and "
            f"leaves the largest room to double; {UNKNOWN}."
        )
    least, most = advised.fixed_scales
    return (
        f"In mixed_float16 fixed loss scales from {power(least)} to {power(most)} flush at most "
        "0.1 % of the gradients that were sampled and leave the largest room to double; "
        f"{UNKNOWN}."
    )


# --- what formats lose ----------------------------------------------------------------------------


def sentences(measured: DynamicRange) -> list[str]:
    """What float16 and bfloat16 lose of the gradients, which scales help, and of the updates."""
    made = []
    hidden = out_of_range.hidden(measured)
    for kind in [k for k in GRADIENTS if k in measured.kinds]:
        lost = out_of_range.shares(measured.kinds[kind], FORMATS["float16"])
        if hidden:
            zeros = f"{share(lost['zeros'])} are zero under {measured.policy}"
            made.append(f"Of the {KINDS[kind]}, {zeros}, what it flushed among them.")
            continue
        made.append(
            f"Of the {KINDS[kind]}, {share(lost['zeros'])} are zero already; float16 would flush "
            f"{share(lost['flushed'])} more to zero without a loss scale, and "
            f"{share(lost['subnormal'])} would be subnormal, with fewer bits."
        )
    made.append(_scales(measured))
    lost_updates = [f"{share(n)} in {name}" for name, n in measured.lost_updates.items()]
    if lost_updates:
        made.append(
            f"{share(out_of_range.small_updates(measured))} of the updates that are not zero are "
            "smaller than 2⁻¹¹ of their weight. Without float32 master weights, rounding to "
            f"nearest would lose {' and '.join(lost_updates)} of them."
        )
    return made


def _scales(measured: DynamicRange) -> str:
    """Which loss scales float16 needs and bears."""
    least, most = out_of_range.scales(measured)
    if out_of_range.overflowed(measured) and measured.policy == "float32":
        return "Some gradients were not finite in float32 itself: no loss scale cures that."
    if out_of_range.overflowed(measured):
        return (
            f"Some gradients overflowed in {measured.policy} while they were sampled: how large "
            "they are, and which loss scale they bear, is not known. Sample float32 to know it."
        )
    if not any(measured.counted(kind) for kind in GRADIENTS):
        return "All gradients that were sampled are zero, and so they are with any loss scale."
    if out_of_range.hidden(measured):
        return (
            "Which loss scale float16 needs is not known: what its own type flushed is among the "
            "zeros; sample float32 to know it."
        )
    if least is None or most is None:
        most_tried = power(out_of_range.MOST_SCALE)
        return f"No loss scale up to {most_tried} has float16 flush at most 0.1 % of the gradients."
    if least > most:
        return (
            f"A loss scale of {power(least)} would be needed for float16 to flush at most 0.1 %, "
            f"but from {power(2 * most)} on the largest gradient overflows: no fixed scale does "
            "both."
        )
    need = "No loss scale is needed" if least == 1 else f"A loss scale of {power(least)} suffices"
    return (
        f"{need} for float16 to flush at most 0.1 % of the gradients that are not zero; the "
        f"largest gradient measured stays finite up to a scale of {power(most)}."
    )


def _needed(measured: DynamicRange, kind: str, name: str) -> str:
    """The smallest sufficient scale of some gradients in a format."""
    if out_of_range.hidden(measured):
        return "not known"
    least = out_of_range.smallest_sufficient_scale(measured.kinds[kind], FORMATS[name])
    return power(least) if least else f"none to {power(out_of_range.MOST_SCALE)}"


def rows(measured: DynamicRange) -> pd.DataFrame:
    """The table of out_of_range as text, a row per kind of values and format.

    At the smallest sufficient scale also what is flushed and too large with it.
    """
    table = out_of_range.table(measured)
    plain, scaled = table[table.scale == 1], table[table.scale > 1].set_index(["kind", "format"])
    keys = list(zip(plain.kind, plain.format, strict=True))
    known = {key: scaled.loc[key] for key in keys if key in scaled.index}
    needs = [_needed(measured, *key) if key[0] in GRADIENTS else BLANK for key in keys]

    def then(column: str) -> list[str]:
        return [
            column_formats.cell(column, known[k][column]) if k in known else BLANK for k in keys
        ]

    return pd.DataFrame(
        {
            "Values": plain.kind.map(KINDS),
            "Format": plain.format,
            **column_formats.shown(plain, "zeros", "flushed", "subnormal", "above"),
            "Smallest sufficient scale": needs,
            "Flushed then": then("flushed"),
            "Too large then": then("above"),
        }
    ).reset_index(drop=True)
