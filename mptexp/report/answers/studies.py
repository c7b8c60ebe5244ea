"""The report's section that compares what this sweep measured with published results."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, contrast, published, simultaneous_intervals, summary, validity
from mptexp.analysis.contrast import FEWEST, Contrast
from mptexp.analysis.points import POINT, geometric_mean
from mptexp.analysis.published import MIXED
from mptexp.analysis.speedups import of_row
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import findings
from mptexp.report.text import wording
from mptexp.report.text.column_formats import BLANK, without_blanks
from mptexp.report.text.parameter_values import compiled_in_words, in_words
from mptexp.spec.run import Run

MOST_HERE = 3  # comparisons that a sentence sets beside published ones
CHIP = re.compile(r"\b(?:[A-Z]{1,2}\d{2,4}|RTX \d{4})\b")  # in the name of a GPU
LIMIT = 25  # rows of a table: more is a file, not a report
STUDIES = {
    "keydana2020": "S. Keydana, 2020",
    "banerjee_course_nb": "A. Banerjee, course notebook",
    "banerjee_profiling_p1": "A. Banerjee, part one",
    "banerjee_profiling_p3": "A. Banerjee, part three",
    "binarynet2016": "Courbariaux, Hubara et al., 2016",
    "micikevicius2018": "Micikevicius et al., 2018",
    "oconnor_gtc2018": "M. O'Connor, GTC 2018",
    "nvidia_dle_rn50_tf1": "NVIDIA, TensorFlow",
    "nvidia_dle_rn50_pytorch": "NVIDIA, PyTorch",
    "nvidia_dle_rn50_mxnet": "NVIDIA, MXNet",
    "dle_issue_837": "a user of NVIDIA's code",
    "lambda_benchmark_v1": "Lambda",
    "lambda_benchmark_v2": "Lambda, median of hosts",
    "nvidia_mixed_precision_guide": "NVIDIA's guide",
    "tensorflow_guide_mixed_precision": "TensorFlow's guide",
    "specifications": "specifications of devices",
}
CLAIMED = {  # a metric of a claim in words
    "claimed_speedup_min": "at least {} faster",
    "claimed_speedup_max": "up to {} faster",
    "claimed_speedup_more_than": "more than {} faster",
    "training_speedup_vs_float32": "{} faster than float32",
}
SPEEDUP = "Measured speedup [95 % interval]"
NOTE_OF_RATIOS = "Ratios that others published for the same networks, and those of this sweep."
HTML = '<a href="{1}">{0}</a>'
NOTE = (
    "Numbers that others published, and what this sweep measured at the same batch "
    "size on each device. Speedups are of mixed_float16 over the baseline: above 1, mixed_float16 "
    "is faster; where the two have different batch sizes, by images per second. The baseline is "
    "float32 where a cell names no other policy. Measured accuracies are means over runs; where a "
    "study states no batch size, at the smallest measured. Ratios can be compared; times and "
    "images per second only where device and images agree, see below. “–”: not published, "
    "or not measured here."
)


@dataclass(frozen=True)
class Section:
    """The section of a report: texts, and tables of text (columns named Source hold HTML)."""

    note: str
    speeds: pd.DataFrame
    accuracies: pd.DataFrame
    differences: pd.DataFrame
    sentences: list[str]


def section(tables: Tables) -> Section | None:
    """This sweep and the published numbers of its models; None where there are none."""
    results, runs = tables.results, _runs(tables)
    pairs = published.pairs(set(results.model), set(results.phase))
    if pairs.empty:
        return None
    rows = _joined(pairs, runs, tables)
    beside = rows[rows.here.notna()]  # a published number alone compares nothing
    speeds = beside[beside.unit != "%"]
    accuracies = beside[(beside.unit == "%") & _learns(results).any()]
    sentences = [*_binaries(results), *_repeats(results, runs), *_at_other_sizes(rows, tables)]
    sentences += _on_this_device(rows, runs)
    if speeds.empty and accuracies.empty and not sentences:
        return None
    shown = [speeds[:LIMIT], accuracies[:LIMIT]]
    trained_on = wording.listed(sorted(set(runs.dataset[runs.val_accuracy.notna()])))
    claims = wording.listed(_claims(set(results.model)))
    listed = pd.concat(shown)
    if listed.empty:
        note, listed = NOTE_OF_RATIOS, rows[rows.speedup.notna() & (rows.replicas == 1)]
    else:
        note = _note(len(rows) - len(listed), runs)
    return Section(
        note=note,
        speeds=without_blanks(_texts(shown[0]).drop(columns="Accuracy")),
        accuracies=without_blanks(
            _texts(shown[1], trained_on).drop(columns=["Published speedup", SPEEDUP])
        ),
        differences=_differences(listed, tables),
        sentences=[*sentences, f"Claims about {MIXED} without a table: {claims}."],
    )


def _at_other_sizes(rows: pd.DataFrame, tables: Tables) -> list[str]:
    """Of each network without a published pair beside a measured one: the ratios of both.

    Published are those of one device; of another batch size and device, only ratios compare.
    """
    known = rows[rows.speedup.notna() & (rows.replicas == 1)]
    beside = rows[(rows.ratio.fillna(BLANK) != BLANK) & (rows.unit != "%")]
    measured = findings.compared(tables)
    sentences = []
    for (model, phase), own in known.groupby(["model_here", "phase"]):
        here = [] if measured.empty else _native(measured, model, phase)
        if not here or (beside.model_here == model).any():
            continue
        ends = own.groupby("study", sort=False).agg(
            least=("speedup", "min"),
            most=("speedup", "max"),
            source=("source_mixed", "first"),
        )
        published_ones = [
            f"{' to '.join(dict.fromkeys(f'{wording.factor(v)}×' for v in (row.least, row.most)))} "
            f"({linked(row.Index, row.source)})"
            for row in ends.itertuples()
        ]
        sentences.append(
            f"{wording.verbatim(model)}, {in_words('phase', phase)}, published of single GPUs, "
            f"{MIXED} over float32, or TF32 where that is the default, "
            f"{_why_apart(tables, model, phase)}: {wording.listed(published_ones)}. "
            f"Measured here: {'; '.join(here)}. Only the ratios compare."
        )
    return sentences


def _on_this_device(rows: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Rates that were published for the device that was measured here, at no batch size stated."""
    unstated = rows[["batch_size_baseline", "batch_size_mixed"]].isna().all(axis=1)
    rates = rows[unstated & (rows.unit == "img/s") & (rows.replicas == 1)]
    measured = runs[(runs.replicas == 1) & ~runs.emulated.astype(bool)].dropna(
        subset="images_per_s"
    )
    sentences = []
    for (model, phase, device), own in measured.groupby(["model", "phase", "gpu_model"]):
        chips = [re.compile(rf"\b{chip}\b") for chip in CHIP.findall(str(device))]
        alike = rates[(rates.model_here == model) & (rates.phase == phase)]
        is_it = alike.device.map(lambda name, chips=chips: any(c.search(name) for c in chips))
        best = own.groupby(["policy", *POINT]).images_per_s.apply(geometric_mean).groupby("policy")
        here = wording.listed([_rate(value, policy) for policy, value in best.max().items()])
        sentences += [
            f"{wording.verbatim(model)}, {in_words('phase', phase)}, published for "
            f"{wording.verbatim(row.device)} at a batch size that is not stated "
            f"({linked(row.study, row.source_mixed)}): "
            f"{_rate(row.value_baseline, row.policy_baseline)} and "
            f"{_rate(row.value_mixed, row.policy_mixed)}. Measured here, at most: {here}."
            for row in alike[is_it.astype(bool)].itertuples()
            if row.speedup > 0
        ]
    return sentences


def _rate(value: float, policy: str) -> str:
    named = policy.replace("tensorfloat32", wording.default_name("tensorfloat32"))
    return f"{float(f'{value:.4g}'):,g} images/s in {wording.verbatim(named)}"


def _why_apart(tables: Tables, model: str, phase: str) -> str:
    """Why no published ratio of a network stands beside one of this sweep."""
    ok = tables.ok
    policies = set(ok.policy[(ok.model == model) & (ok.phase == phase)])
    if MIXED not in policies:
        return "which was not measured here"
    return "at batch sizes for which there is no such ratio here, or that are not stated"


def _native(measured: pd.DataFrame, model: str, phase: str) -> list[str]:
    """What a sweep measured of a network, without what the device emulates."""
    own = measured[(measured.model == model) & (measured.phase == phase)]
    own = own[~own.emulated.astype(bool)].sort_values("speedup")
    own = own.assign(place=wording.places(own))
    said = [
        f"{row['policy']} over {wording.default_name(row['baseline'])} "
        f"{wording.at(wording.verbatim(row['place']))}, {wording.ratio_of(row)}"
        for row in own.to_dict("records")
    ]
    return said if len(said) <= MOST_HERE else [said[0], f"{len(said) - 2} between", said[-1]]


def _note(left: int, runs: pd.DataFrame) -> str:
    emulated = runs.emulated[runs.policy == MIXED].any()
    more = wording.count(left, "more row is", "more rows are")
    return (
        f"{NOTE}{f' Measured {MIXED} is *{wording.EMULATED}*.' if emulated else ''}"
        f"{f' {more} left out; all numbers are in the package’s `published.csv`.' if left else ''}"
    )


def _learns(runs: pd.DataFrame) -> pd.Series:
    """Whether a run's accuracy means something: not from random images or a single batch."""
    apart = (runs.dataset == "synthetic") | (runs.input_mode == "resident")
    return (runs.phase == "train") & ~apart


def _runs(tables: Tables) -> pd.DataFrame:
    """The runs that can be compared, with share (images per device and step) and panel."""
    runs = validity.comparable(tables.ok)
    runs = runs.assign(training_s=runs.run_id.map(accuracy.training_s(tables)))
    numbers = ("step_s", "images_per_s", "val_accuracy", "training_s")
    runs = runs.assign(**{name: pd.to_numeric(runs[name]) for name in numbers})
    cut = runs.ended_by.isin(["target_ci", "max_steps"])  # before its last epoch
    return runs.assign(
        val_accuracy=runs.val_accuracy.where(_learns(runs) & ~cut),
        share=runs.batch_size.astype(float) / runs.replicas,
        panel=wording.panels(runs.assign(model="", phase="", replicas=1)),  # as in the pair
        model_here=runs.model,
    )


def _joined(pairs: pd.DataFrame, runs: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The published pairs with what each panel measured there.

    Returns:
        The columns of `published.pairs` and `_measured`, empty where nothing was measured.
    """
    base, mixed = pairs.batch_size_baseline, pairs.batch_size_mixed
    unstated = pairs.unit.map({"%": runs.share.min()})
    base, mixed = base.fillna(mixed).fillna(unstated), mixed.fillna(base).fillna(unstated)
    base = _at(pairs.assign(share=base), runs[runs.policy.isin(["float32", "tensorfloat32"])])
    # The published baseline; where that was not measured or not stated, the device's default.
    known = [base.policy == base.policy_baseline, base.policy == base.default_policy]
    rank = pd.Series(np.select(known, [0, 1], 2), base.index)
    base = base[rank == rank.groupby([base.pair, base.panel]).transform("min")]
    mixed = _at(pairs.assign(share=mixed), runs[runs.policy == MIXED])
    rows = pairs.merge(_measured(base, mixed, tables), "left", left_index=True, right_on="pair")
    return rows.reset_index(drop=True)


def _at(pairs: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs at each pair's share, with pair (its index) and value in the study's unit."""
    keys = ["model_here", "phase", "replicas", "share"]
    rows = pairs[[*keys, "policy_baseline", "unit"]].reset_index(names="pair").merge(runs, on=keys)
    by_unit = {"img/s": rows.images_per_s, "%": rows.val_accuracy * 100, "ms": rows.step_s * 1e3}
    value = np.select([rows.unit == unit for unit in by_unit], list(by_unit.values()), rows.step_s)
    return rows.assign(value=value).dropna(subset="value")


def _measured(base: pd.DataFrame, mixed: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """A row per pair and panel, from runs of the baseline and of mixed_float16: text of cells.

    ratio: images per second of mixed_float16 over the baseline's, formed within blocks; above 1,
    mixed_float16 is faster.
    """
    keys = ["pair", "panel", "block"]
    columns = [*keys, "run_id", "policy", "unit", "images_per_s", "value", "epochs", "flags"]
    both = base[columns].merge(mixed[columns], "outer", keys, suffixes=("", "_mixed"))
    groups = list(both.groupby(["pair", "panel"]))
    ratios = _ratios([group for _, group in groups], tables)
    rows = [
        [*point, _here(group, ""), _here(group, "_mixed"), ratio]
        for (point, group), ratio in zip(groups, ratios, strict=True)
    ]
    return pd.DataFrame(rows, columns=["pair", "panel", "here", "mixed_here", "ratio"])


def _ratios(groups: Sequence[pd.DataFrame], tables: Tables) -> list[str]:
    """The ratio of each group: at one point that of the sweep's own tables, else one formed here.

    The intervals of the latter hold for all of them together.
    """
    results, records = tables.results.set_index("run_id"), tables.records_by_id
    named = [*POINT, "baseline", "candidate"]
    claims = {tuple(row[n] for n in named): row for row in tables.claims.to_dict("records")}
    texts, formed = [], []
    for k, group in enumerate(groups):
        sides = [
            dict(zip(known.block, known[name], strict=True))
            for name in ("run_id", "run_id_mixed")
            for known in (group.dropna(subset=name),)
        ]
        texts.append(_claimed(sides, results, claims))
        if not texts[-1]:
            chosen = [{b: records[run_id] for b, run_id in side.items()} for side in sides]
            blocks, apart = validity.in_one_call(*chosen)
            group = group[group.block.isin(blocks)]
            over = contrast.paired(group.images_per_s_mixed, group.images_per_s)
            differs = validity.across(*chosen, ("policy", "batch_size"))
            names = [results.loc[run_id, "flags"] for side in sides for run_id in side.values()]
            names += ["not comparable"] * bool(differs)
            flags = validity.together([*names, apart])
            formed.append((k, over, flags))
    valid = [not validity.invalid(flags, "time") for *_, flags in formed]
    wide = simultaneous_intervals.together([over for _, over, _ in formed], among=valid)
    for (k, _, flags), over in zip(formed, wide, strict=True):
        texts[k] = wording.contrast(over, flags)
    return texts


def _claimed(
    sides: Sequence[Mapping[int, str]], results: pd.DataFrame, claims: Mapping[tuple, Any]
) -> str:
    """The ratio that the sweep claims of two policies at one point; empty of two points."""
    rows = [[results.loc[run_id] for run_id in side.values()] for side in sides]
    if not all(rows):
        return BLANK
    points = [tuple(row[name] for name in POINT) for side in rows for row in side]
    known = claims.get((*points[0], rows[0][0].policy, rows[1][0].policy))
    if not known or len(set(points)) > 1:
        return ""
    over = Contrast(*(known[name] for name in ("speedup", "low", "high", "blocks")))
    return wording.contrast(over, known["flags"])


def _here(runs: pd.DataFrame, side: str) -> str:
    """The runs of one policy as the text of a cell; a time or a rate as the headline table's."""
    names = ("value", "unit", "policy", "epochs", "flags")
    own = pd.DataFrame({name: runs[f"{name}{side}"] for name in names}).dropna(subset="value")
    if own.empty:
        return BLANK
    unit, policy = own.unit.iloc[0], own.policy.iloc[0]
    if unit != "%":
        value = geometric_mean(of_row(own).value)
        return _cell(float(f"{value:.4g}"), unit, policy)
    at = f"(n = {len(own)}, epoch {own.epochs.max():g})"
    return _cell(round(own.value.mean(), 1), f"% {at}", policy)


def _texts(rows: pd.DataFrame, data: str = "") -> pd.DataFrame:
    """The rows of `_joined` as a table of text; Source holds HTML.

    Args:
        data: what accuracies here are of; empty of times, which do not depend on it.
    """
    sources = rows.source_baseline.fillna(rows.source_mixed)
    base, mixed = (
        map(_cell, *(rows[name] for name in (f"value_{s}", "unit", f"policy_{s}", f"status_{s}")))
        for s in ("baseline", "mixed")
    )
    rounded = rows.source_mixed.str.contains("probably rounded", na=False)
    note = rounded.map({True: " (probably rounded)", False: ""})
    on = {"Published on": rows.dataset.map(_short, na_action="ignore"), "Here on": data}
    cells = {
        "Accuracy": rows.metric.map(_accuracy),
        **(on if data else {}),
        "Device": _devices(rows),
        "Phase": rows.phase,
        "Batch size": list(map(_sizes, rows.batch_size_baseline, rows.batch_size_mixed)),
        "Published baseline": list(base),
        f"Published {MIXED}": pd.Series(list(mixed), rows.index) + note,
        "Published speedup": rows.speedup.map("{:.2f}×".format, na_action="ignore"),
        "Measured on": rows.panel,
        "Measured baseline": rows.here,
        f"Measured {MIXED}": rows.mixed_here,
        SPEEDUP: rows.ratio,
        "Source": list(map(linked, rows.study, sources, [HTML] * len(rows))),
    }
    table = pd.DataFrame(cells).astype(object)
    alike = [name for name in ("Phase", "Measured on") if table[name].nunique() < 2]
    return table.drop(columns=alike).fillna(BLANK)


def _short(dataset: str) -> str:
    """A published dataset without its details, which stand in brackets."""
    return dataset.partition(" (")[0]


def _accuracy(metric: str) -> str:
    """`validation accuracy, epoch 20` for `val_accuracy_epoch20`."""
    words = metric.replace("_", " ").replace("val ", "validation ").replace("top1", "top-1")
    words = re.sub(r"^epoch ?(\d+) (.*)", r"\2 epoch\1", words)
    words = re.sub(r"accuracy epoch ?(\d+)", r"accuracy, epoch \1", words)
    return re.sub(r" approx$", ", about", words)


def _devices(rows: pd.DataFrame) -> pd.Series:
    """The published devices; with the system where a study tried several on one device."""
    device = rows.device.fillna("not stated")
    systems = rows.groupby(["study", "device", "batch_size_baseline"], dropna=False).system
    return device.where(systems.transform("nunique") < 2, device + ", " + rows.system)


def _cell(value: float, unit: str, policy: str, status: str = "ok") -> str:
    """A number, and its policy where that is neither float32 nor mixed_float16."""
    known = {"tensorfloat32": "TF32", "not stated": "policy not stated"}
    named = "" if policy in ("float32", MIXED) else f", {known.get(policy, policy)}"
    if pd.isna(value):
        return "out of memory" if status == "oom" else BLANK
    return f"{value:,g} {unit}{named}"


def _sizes(*sizes: float) -> str:
    """Batch sizes per device of the baseline and of mixed_float16, one where they are equal."""
    return " / ".join(dict.fromkeys(f"{s:g}" for s in sizes if pd.notna(s))) or "not stated"


def _binaries(results: pd.DataFrame) -> list[str]:
    """S. Keydana's two times on a CPU as a ratio, where instruction sets are compared.

    What they count is not certain.
    """
    rows = published.table()
    rows = rows[(rows.metric == "step_time_1epoch") & rows.model_here.isin(results.model)]
    if rows.empty or results.setting.str.extract(r"cpu_isa (\w+)", expand=False).nunique() < 2:
        return []
    stock, built = rows.value
    return [
        f"{linked(rows.study.iloc[0], rows.source.iloc[0])}: on a CPU ({rows.device.iloc[0]}) "
        f"TensorFlow built with AVX2 and FMA took {built / stock:.2f} times as long as the stock "
        "binary (below 1 is faster), once each; compare two instruction sets here only as such a "
        f"ratio. The text calls {stock:g} and {built:g} s the time of a step, which for this "
        "network would be 0.9 GFLOP/s, so they may be the time of something else."
    ]


def _repeats(results: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """A. Banerjee's result over repeats, and the same of this sweep, if it has that model."""
    rows = published.table()
    rows = rows[rows.study == "banerjee_profiling_p3"]
    if not results.model.isin(rows.model_here).any():
        return []
    value = rows.set_index(["metric", "policy"]).value
    worst = value["worst_val_accuracy_after_5_epochs"]
    share = 1 - value["mean_training_time_reduction_vs_float32", MIXED] / 100
    opening = (
        f"{linked(rows.study.iloc[0], rows.source.iloc[0])}: over "
        f"{value['repetitions', MIXED]:g} runs of each policy, mean training time in mixed_float16 "
        f"over that in float32 was {share:.2f}×, below 1 is shorter, and the worst validation "
        f"accuracy after 5 epochs {worst[MIXED]:g} %, against {worst['float32']:g} % in float32."
    )
    lost = summary.ended(results, "diverged")
    mine = runs.model.isin(rows.model_here) & runs.val_accuracy.notna()
    groups = runs[mine].groupby(["panel", "batch_size", "replicas"])
    compared = [
        (point, group, *known) for point, group in groups for known in _training_times(group)
    ]
    valid = [not validity.invalid(flags, "training time") for *_, flags in compared]
    wide = simultaneous_intervals.together([over for *_, over, _ in compared], among=valid)
    return [
        opening,
        *(
            _repeats_here(*point, runs, policies, over, flags, lost)
            for (point, runs, policies, _, flags), over in zip(compared, wide, strict=True)
        ),
    ]


def _training_times(runs: pd.DataFrame) -> Iterator[tuple[tuple[str, str], Contrast, str]]:
    """Two policies, the ratio of their times, and what is not valid of it.

    Mixed precision, also in bfloat16, over float32, or over TF32 where there is no float32.
    """
    wide = "float32" if "float32" in set(runs.policy) else "tensorfloat32"
    times = runs.pivot(index="block", columns="policy", values="training_s")
    for mixed in (MIXED, "mixed_bfloat16"):
        both = times.reindex(columns=[mixed, wide]).dropna()
        if len(both):
            flags = validity.together(runs["flags"][runs.policy.isin([mixed, wide])])
            yield (mixed, wide), contrast.paired(both[mixed], both[wide]), flags


def _repeats_here(
    panel: str,
    batch_size: int,
    replicas: int,
    runs: pd.DataFrame,
    policies: tuple[str, str],
    over: Contrast,
    flags: str,
    lost: Mapping[tuple, int],
) -> str:
    """Training time and worst accuracy of a policy against another one.

    Args:
        lost: how many runs diverged, by POINT and policy.
    """
    mixed, wide = policies
    worst = {policy: _worst(runs[runs.policy == policy], lost) for policy in policies}
    panel = wording.verbatim(panel) + f" ({replicas} replicas)" * (replicas > 1)
    return (
        f"Measured on {panel} at batch size {batch_size}, model "
        f"{wording.verbatim(runs.model.iloc[0])}: training time in {mixed} over that in {wide} is "
        f"{wording.contrast(over, flags, 'training time')}, and the worst validation "
        f"accuracy after {wording.count(runs.epochs.max(), 'epoch')} {worst[mixed]}, against "
        f"{worst[wide]} in {wide}."
    )


def _worst(runs: pd.DataFrame, lost: Mapping[tuple, int]) -> str:
    """`95.0 %`, `95.0 % in 3 of 5 runs (2 diverged)`: the least accuracy of a policy's runs."""
    points = runs[[*POINT, "policy"]].drop_duplicates().itertuples(index=False, name=None)
    diverged = sum(lost.get(point, 0) for point in points)
    of = f" in {len(runs)} of {len(runs) + diverged} runs ({diverged} diverged)"
    return f"{runs.val_accuracy.min() * 100:.1f} %{of * bool(diverged)}"


def _differences(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """What else than the policy differs between the studies of some rows and this sweep."""
    runs = [Run.model_construct(**record["parameters"]) for record in tables.records]
    images = [f"{r.dataset}, {r.image_size} × {r.image_size}, width {r.width:g}" for r in runs]
    keydana = "resize, cache, shuffle, batch; no prefetch"
    if any(run.input_mode == "keydana" for run in runs):
        keydana += f" (here: {in_words('input_mode', 'keydana')})"
    inputs = [in_words("input_mode", run.input_mode) for run in runs]
    intervals = "95 % over blocks"
    if not tables.claims.low.notna().any():
        few = tables.results.block.nunique() < FEWEST
        intervals = f"none: {'too few repeats' if few else 'not valid'}"
    sides = {
        "Device": (rows.device, [run.gpu_model for run in runs]),
        "Software": (rows.system, [_software(r) for r in tables.records if r.get("in_force")]),
        "Images, width of the network": (rows.dataset, images),
        "Input": (rows.study.map({"keydana2020": keydana}), inputs),
        "Intervals of times": (["none"], [intervals]),
    }
    lines = [[name, *map(_several, both)] for name, both in sides.items()]
    lines += [
        [f"{name} ({STUDIES[study].partition(',')[0]})", theirs, _several(ours(runs, tables))]
        for study, name, theirs, ours in DIFFER
        if rows.study.str.startswith(study).any()
    ]
    lines = [line for line in lines if line[1] != line[2]]
    return pd.DataFrame(lines, columns=["What differs", "Published", "Measured here"])


def _xla(runs: Sequence[Run], tables: Tables) -> Iterable[str]:
    return ("on" if (r.get("in_force") or {}).get("jit") else "off" for r in tables.records)


def _resized(run: Run) -> str:
    if run.dataset == "synthetic":
        return "none: images are made in their size"
    return "the same" if run.input_mode == "keydana" else "Pillow, antialiased"


def _said(text: str) -> Callable[[Sequence[Run], Tables], Iterable[str]]:
    return lambda runs, tables: [text]


# What the sources say of how they trained and timed: study, what differs, how the study had it, how
# the runs of a sweep have it.
DIFFER: tuple[tuple[str, str, str, Callable[[Sequence[Run], Tables], Iterable[str]]], ...] = (
    ("keydana2020", "XLA", "off", _xla),
    (
        "keydana2020",
        "Batch normalization",
        "one fused operation (TensorFlow 2.1)",
        lambda runs, tables: (NORMALIZATIONS[run.normalization] for run in runs),
    ),
    (
        "keydana2020",
        "Resizing",
        "tf.image.resize, without antialiasing",
        lambda runs, tables: map(_resized, runs),
    ),
    (
        "keydana2020",
        "Time of a step",
        "Keras's display at epoch 20, which counts validation",
        _said("the median window of steps, without compilation, warm-up and validation"),
    ),
    (
        "banerjee_profiling_p1",
        "Training",
        "learning rate lowered by 1e-6 a step, early stopping (patience 10), in the course's code",
        _said("neither"),
    ),
    (
        "banerjee_profiling_p1",
        "Images",
        "a zip archive whose file names begin with the label",
        _said("a folder per class"),
    ),
)
NORMALIZATIONS = {
    "batch": "Keras 3's, of several operations",
    "fused": "one fused operation",
    "none": "none",
}


def _several(names: Iterable[Any], most: int = 6) -> str:
    """Distinct names, and whether there are more."""
    known = [name for name in dict.fromkeys(names) if isinstance(name, str)]
    return "; ".join(known[:most] + ["…"] * (len(known) > most)) or "not stated"


def _software(record: Mapping[str, Any]) -> str:
    packages = record.get("environment", {}).get("packages", {})
    names = [record["parameters"]["backend"], "keras"]
    versions = [f"{name} {packages[name]}" for name in names if name in packages]
    jit, backend = bool(record.get("in_force", {}).get("jit")), record["parameters"]["backend"]
    return ", ".join([*versions, compiled_in_words(jit, backend)])


def linked(study: str, source: str, form: str = "[{0}]({1})") -> str:
    """The study's name put with its address into a form; the name alone where it has none."""
    name, address = STUDIES[study], source.split()[0]
    return form.format(name, address) if address.startswith("https://") else name


def _claims(models: Collection[str]) -> list[str]:
    """Speedups of mixed_float16 that were claimed without a table, as Markdown with the source."""
    return [
        f"{CLAIMED[row.metric].format(f'{row.value:g}×')} "
        f"{f'for {row.model}' if pd.isna(row.device) else f'on {row.device}'} "
        f"({linked(row.study, row.source)})"
        for row in published.claims(models).itertuples()
    ]
