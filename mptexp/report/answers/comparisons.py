"""Tables of text that set conditions side by side: devices, replicas, frameworks, two sweeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mptexp.analysis import contrast, rate_ratios, two_sweeps, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import caveats
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.report.text.parameter_values import compiled_in_words
from mptexp.spec import tasks
from mptexp.spec.backends import LABELS

REPLICAS_NOTE = (
    "Replicas share a batch. *Speedup* is images, or tokens, per second over those of one replica, "
    "above 1 is faster; *efficiency* is the speedup at the same batch per replica divided by the "
    "number of replicas: 1 is perfect. Under TensorFlow batch normalization uses the statistics "
    "of each replica's own part of the batch, under JAX those of the whole batch."
)
LOGICAL_NOTE = " **{} are logical devices of one CPU: their scaling says nothing of hardware.**"
NOTHING_ELSE = "Nothing else differs that records and identities hold."
BACKENDS_NOTE = "The same model, order of images and policy in each framework, {}."
OVER_TENSORFLOW = (
    " The ratio is images (or tokens) per second over TensorFlow's: above 1 is faster than "
    "TensorFlow."
)
THROUGH = {  # by whether all runs are those of plain loops
    True: "by a plain loop, which TensorFlow has not",
    False: "through Keras but where the setting is *plain loop*, which TensorFlow has not",
}
FRONTENDS_NOTE = (
    "Keras (`fit` trains, `predict` infers), and a plain loop in the same framework: the same "
    "weights to begin with, the same batches in the same order, the same clock. The ratio is "
    "images (or tokens) per second over the plain loop's: slower means that Keras costs time."
)
DEVICES_NOTE = (
    "The same point and policy on each device. The ratio is images (or tokens) per second over the "
    "slowest device's, formed between runs of the same block number, which were not made at the "
    "same time."
)
# What a step is and who makes it, by phase.
STEPS = {"train": "a training step", "inference": "an inference step"}
MADE_BY = {"train": "Trained by", "inference": "Predicted by"}
# Peak memory of a side of two sweeps, see `two_sweeps`.
WHOSE = {"process": "of the process", "allocator": "of the GPU's allocator"}
ALIKE = {
    True: " All frameworks began from the same initial weights.",
    False: " **The frameworks did not begin from the same initial weights.**",
}


@dataclass(frozen=True)
class Section:
    """A section of the report: a fixed note, sentences, and a table of text."""

    title: str
    note: str
    sentences: list[str]
    rows: pd.DataFrame


def sections(tables: Tables) -> list[Section]:
    """The sections that this sweep gives rise to: devices, replicas, frameworks."""
    devices, replicas = rate_ratios.by_device(tables), rate_ratios.by_replicas(tables)
    backends = rate_ratios.by_backend(tables)
    made = []
    if not devices.empty:
        unlike = caveats.not_compared(devices)
        rows = _against(devices, "gpu_model", {"Device": devices.gpu_model}, "the slowest")
        made.append(Section("Devices side by side", DEVICES_NOTE, unlike, rows))
    if not replicas.empty:
        parts = sorted({*replicas.gpu_model[replicas.logical.astype(bool)]})
        others = {*replicas.gpu_model} - {*parts}
        whose = f"those on {wording.listed(parts)}" if others else "these replicas"
        note = REPLICAS_NOTE + LOGICAL_NOTE.format(wording.capitalized(whose)) * bool(parts)
        sentences = _sentences(replicas) + caveats.not_compared(replicas)
        made.append(Section("Scaling", note, sentences, _replica_rows(replicas)))
    if not backends.empty:
        # A setting that all runs share stands in none of the rows.
        plain = all(r["parameters"].get("frontend") == "native" for r in tables.records)
        over = OVER_TENSORFLOW * bool(backends.speedup.notna().any())
        note = BACKENDS_NOTE.format(THROUGH[plain]) + over + ALIKE[rate_ratios.begin_alike(tables)]
        unlike = caveats.not_compared(backends)
        made.append(Section("Frameworks side by side", note, unlike, _backend_rows(backends)))
    frontends = rate_ratios.by_frontend(tables)
    if not frontends.empty:
        said = keras_costs(frontends) + caveats.not_compared(frontends)
        rows = _frontend_rows(frontends)
        made.append(Section("Keras beside a plain loop", FRONTENDS_NOTE, said, rows))
    return made


def _sentences(table: pd.DataFrame) -> list[str]:
    """What the most replicas give at the same batch per replica, a sentence per row."""
    known = table[table.speedup.notna()]
    most = known[known.replicas == known.replicas.max()]
    panels = wording.panels(most.assign(replicas=1))
    return [
        f"On {panel}, {row['policy']}: {row['replicas']} replicas against one, with "
        f"{row['batch_per_replica']} {tasks.of(row['dataset']).example}s for each: "
        f"{wording.ratio_of(row)}; efficiency "
        f"{row['efficiency']:.2f}."
        for panel, row in zip(panels, most.to_dict("records"), strict=True)
    ]


def _replica_rows(table: pd.DataFrame) -> pd.DataFrame:
    records = table.to_dict("records")
    cells = {
        **wording.varying(table, ["jit", "replicas"]),
        "Policy": table.policy,
        "Replicas": table.replicas,
        "Global batch": table.batch_size,
        "Batch per replica": table.batch_per_replica,
        **column_formats.shown(table, "step_s"),
        **column_formats.rates(table),
        "Speed against 1 replica, same batch per replica [95 % interval]": [
            wording.ratio_of(row) for row in records
        ],
        "Efficiency [95 % interval]": [_efficiency(row) for row in records],
        "Speed against 1 replica, same global batch [95 % interval]": [
            wording.ratio_of(row, "strong_") for row in records
        ],
        "XLA": [_xla(row, "1 replica", ("base_jit", "strong_base_jit")) for row in records],
    }
    return column_formats.without_blanks(pd.DataFrame(cells))


def _backend_rows(table: pd.DataFrame) -> pd.DataFrame:
    names = {"Framework": table.backend.map(LABELS)}
    rows = _against(table, "backend", names, "TensorFlow", compiled=True)
    xla = [_xla(row, "TensorFlow", ("base_jit",)) for row in table.to_dict("records")]
    head = "XLA or torch.compile" if (table.backend == "torch").any() else "XLA"
    return rows.assign(**{head: xla})


def keras_costs(table: pd.DataFrame) -> list[str]:
    """What Keras costs in time, a sentence for each framework and policy where an interval says."""
    known = table.assign(name=in_frameworks(table))[table.speedup.notna()].to_dict("records")
    proven = [row for row in known if wording.finding(row) in ("faster", "slower")]
    return [
        f"With {row['policy']} on {row['name']}, {STEPS[row['phase']]} of Keras's is "
        f"{wording.ratio_of(row)} {wording.than(wording.direction(row))} one of the plain loop."
        for row in proven
    ]


def in_frameworks(table: pd.DataFrame) -> list[str]:
    """`PyTorch`; `PyTorch, compiled` where the table has steps that were not compiled too.

    Then what else tells the rows apart, but for the phase: `JAX, batch size 1`.
    """
    both = table.groupby("backend").jit.nunique() > 1
    names = [
        LABELS[backend] + ", compiled" * bool(jit and both[backend])
        for backend, jit in zip(table.backend, table.jit, strict=True)
    ]
    others = table.assign(backend="", jit=False, phase="")
    if len(others[POINT].drop_duplicates()) < 2:
        return names
    return [", ".join(filter(None, one)) for one in zip(names, wording.places(others), strict=True)]


def _frontend_rows(table: pd.DataFrame) -> pd.DataFrame:
    makers, phases = {"keras": "Keras", "native": "a plain loop"}, set(table.phase)
    names = {"Compiled": table.jit.map({True: "yes", False: "no"})}
    made_by = MADE_BY[phases.pop()] if len(phases) == 1 else "Run by"
    names |= {made_by: table.frontend.map(makers)}
    return _against(table, "frontend", names, "the plain loop", compiled=True)


def _against(
    table: pd.DataFrame,
    axis: str,
    names: Mapping[str, pd.Series],
    base: str,
    compiled: bool = False,
) -> pd.DataFrame:
    """A row for each value of the axis, with its ratio to the base's, whose own ratio is 1.

    Args:
        compiled: whether another column says which steps were compiled.
    """
    ratios = map(wording.ratio_of, table.to_dict("records"))
    cells = {
        **wording.varying(table, [axis, *["jit"] * compiled]),
        "Policy": table.policy,
        "Batch size": table.batch_size,
        **names,
        **column_formats.shown(table, "step_s"),
        **column_formats.rates(table),
        f"Speed against {base} [95 % interval]": [
            "1" if itself else ratio for itself, ratio in zip(table.is_base, ratios, strict=True)
        ],
    }
    return column_formats.without_blanks(pd.DataFrame(cells))


def _efficiency(row: Mapping[str, Any]) -> str:
    if pd.isna(row["efficiency"]):
        return BLANK
    if reasons := wording.not_valid(row["flags"]):
        return f"{row['efficiency']:.2f} ({reasons})"
    low, high = (row[name] / row["replicas"] for name in ("low", "high"))
    interval = f" [{low:.2f}, {high:.2f}]" if not pd.isna(low) else ""
    return f"{row['efficiency']:.2f}{interval}"


def _xla(row: Mapping[str, Any], base: str, names: tuple[str, ...]) -> str:
    """Whether a compiler was on, and in what the row is compared with where that differs."""
    compiler = compiled_in_words(True, row["backend"]).removeprefix("with ")
    here = "on" if row["jit"] else "off"
    others = {"on" if row[name] else "off" for name in names if not pd.isna(row[name])} - {here}
    if not others:
        return here
    return f"{here} ({others.pop()} in {base}, so this ratio is of {compiler} too)"


# --- two sweeps -----------------------------------------------------------------------------------


def side_by_side(points: pd.DataFrame) -> pd.DataFrame:
    """The points of `analysis.two_sweeps` as text, for a terminal or a page."""
    ended = _ended(points) if points.lost.any() else {}
    cells = {
        **_named(points),
        **ended,
        # What is not valid of it stands beside its ratio.
        "ms per step, A | B": _both(points, "step_s"),
        "A / B, above 1: B is faster": [_ratio(row) for row in points.to_dict("records")],
        **{
            f"{m.name.capitalize()}, A | B": _accuracies(points, m.task)
            for m in task_words.met(points)
        },
        "Memory, A | B": _memory(points),
    }
    for unit in [f"{measure.task.unit}s" for measure in task_words.met(points)]:
        name = f"cost_per_million_{unit}"
        if f"{name}_a" in points:
            cells[f"Cost per million {unit}, A | B"] = _both(points, name, "time")
    return column_formats.without_blanks(pd.DataFrame(cells))


def not_compared(table: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """The points of two_sweeps.not_compared as text, with what tells them from those compared."""
    both = pd.concat([table, points], ignore_index=True)
    return pd.DataFrame({**_named(both), **_ended(both)}).fillna(BLANK).head(len(table))


def left_out(table: pd.DataFrame, points: pd.DataFrame) -> list[str]:
    """A sentence with the number of points that are not compared, and some; none where all are."""
    if table.empty:
        return []
    rows = not_compared(table, points).head(caveats.DIFFERENCES).to_dict("records")
    said = []
    for row in rows:
        *named, (_, ended) = [(head.partition(",")[0].lower(), v) for head, v in row.items()]
        said.append(f"{', '.join(f'{head} {value}' for head, value in named)}: {ended}")
    more = len(table) - len(said)
    said += [wording.count(more, "more point")] * bool(more)
    number = wording.count(len(table), "point")
    return [
        f"{number} not compared, for want of runs on both sides that ended well: {'; '.join(said)}"
    ]


def nothing_joined(
    disjoint: Mapping[str, tuple[Sequence[str], Sequence[str]]], ended: Sequence[str]
) -> str:
    """Why no point was measured well in both of two sweeps: `width 1.0 against 2.0`.

    Args:
        disjoint: parameters without a value in common, with the values of both.
        ended: how the runs of either ended.
    """
    apart = [f"{n} {', '.join(a)} against {', '.join(b)}" for n, (a, b) in disjoint.items()]
    return "; ".join(apart) or f"runs of A: {ended[0]}; of B: {ended[1]}"


def _named(points: pd.DataFrame) -> dict[str, Any]:
    """The columns that tell points apart, and the policy."""
    names = [n for n in two_sweeps.JOINED[:-1] if n == "batch_size" or points[n].nunique() > 1]
    return {**wording.headed(points, names), **_devices(points), "Policy": points.policy}


def _ended(points: pd.DataFrame) -> dict[str, list[str]]:
    return {
        "Runs, A | B": [f"{a} | {b}" for a, b in zip(points.ended_a, points.ended_b, strict=True)]
    }


def _accuracies(points: pd.DataFrame, task: tasks.Task) -> list[str]:
    """The figure of a task on both sides; of a point with runs that did not end well, why not."""
    why = {True: "some of the runs diverged", False: "some of the runs did not end well"}
    rows = zip(_both(points, task.column, "accuracy"), points.lost, points.dataset, strict=True)
    return [
        f"not compared ({why['diverged' in lost]})" if lost and tasks.of(dataset) is task else cell
        for cell, lost, dataset in rows
    ]


def _memory(points: pd.DataFrame) -> list[str]:
    """Peak memory on both sides; whose it is where that differs, as of a CPU and a GPU."""
    cells = _both(points, "peak_memory_bytes", "memory")
    whose = zip(cells, points.memory_of_a, points.memory_of_b, strict=True)
    return [
        cell + f" ({WHOSE[a]} | {WHOSE[b]})" * (a != b and cell != BLANK) for cell, a, b in whose
    ]


def _devices(points: pd.DataFrame) -> dict[str, list[str]]:
    pairs = [
        f"{a or BLANK} | {b or BLANK}"
        for a, b in zip(points.device_a, points.device_b, strict=True)
    ]
    return {"Device, A | B": pairs} if len(set(pairs)) > 1 else {}


def _both(points: pd.DataFrame, name: str, what: str = "") -> list[str]:
    """A value of both sides in one cell, with what is not valid of it: time, memory or accuracy."""
    column = column_formats.COLUMNS[name]
    doubts = [what and wording.not_valid(flags, what) for flags in points["flags"]]
    sides = zip(points[f"{name}_a"], points[f"{name}_b"], doubts, strict=True)
    return [
        BLANK
        if pd.isna(a) and pd.isna(b)
        else f"{column.cell(a)} | {column.cell(b)}" + f" ({doubt})" * bool(doubt)
        for a, b, doubt in sides
    ]


def _ratio(row: Mapping[str, Any]) -> str:
    if pd.isna(row["ratio"]):
        return BLANK
    sessions = (row["sessions_a"], row["sessions_b"])
    runs = f"n = {row['runs_a']}, {row['runs_b']}"
    ratio, ends = wording.factor(row["ratio"]), wording.ends(row["low"], row["high"])
    if reasons := wording.not_valid(row["flags"]):
        return f"{ratio}× ({reasons}; {runs})"
    if not pd.isna(row["low"]):
        counted = f"{sessions[0]} and {sessions[1]} sessions"
        return f"{ratio}× {ends} ({counted})"
    few = "one session each" if max(sessions) == 1 else "fewer than three sessions a side"
    return f"{ratio}× (no interval: {few}; {runs})"


def measured_again(place: SweepDir) -> str:
    """What a directory holds, or once held, of results that no ratio is of; empty of none."""
    again, lost = place.superseded_runs(), place.discarded_runs()
    parts = [f"{wording.count(again, 'run')} measured again"] * bool(again)
    parts += [f"{wording.count(lost, 'result')} discarded"] * bool(lost)
    if not parts:
        return ""
    return (
        f"{place.root}: {' and '.join(parts)}: what they were before is in no ratio here, and "
        "whoever measures until the answer pleases finds one."
    )


def advice(points: pd.DataFrame, apart: bool) -> list[str]:
    """What to do so that two sweeps can be compared, and what their ratios cannot exclude.

    Args:
        apart: whether all runs of a side came before the other's.
    """
    made = []
    if any("same measurement" in validity.names_of(flags) for flags in points["flags"]):
        made.append(
            "Both sides hold the same measurement: a directory beside itself or its copy shows no "
            "difference, whatever there is."
        )
    if points[["sessions_a", "sessions_b"]].min(axis=None) < contrast.FEWEST:
        made.append(
            "Fewer than three sessions a side have no interval and show nothing. Two settings are "
            "best measured interleaved, as values of one sweep's matrix, whose blocks alternate "
            "them; two versions or machines by three sessions or more of each, in turn, given by "
            "--a and --b."
        )
    for sides in set(points.unpriced) - {""}:
        made.append(
            f"Costs are not compared: sessions of {sides} differ in price_per_hour, which their "
            "params.yaml gives."
        )
    if apart:
        made.append(
            "All runs of one side came before the other's: what lastingly changed in between is in "
            "every ratio; sessions in turn exclude it."
        )
    return made
