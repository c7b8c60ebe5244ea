"""Tables of text for readers, from an analysis: what a report and a README show."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from great_tables import GT, html

from mptexp.analysis import accuracy, memory, points, speedups, summary, validity
from mptexp.analysis.sweep_tables import Tables
from mptexp.host.terminal import visible
from mptexp.records.schema import FITTED
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.column_formats import BLANK, SENSORS, without_blanks

EMULATES = re.compile(r"\b(propagation|weight_format) ")
ROWS = 200  # of a table in a report: more are a file, not a table
FEW_LATENCIES = 300  # fewer have no 99th percentile: not three of them lie above it
KEYS = [*points.POINT, "policy"]  # of a row of the headline table
# What readings of a device rest on, see `validity.invalid`.
PROVEN_BY = {"utilization_frac": "utilization"}
PROVEN_BY |= dict.fromkeys(("energy_per_image_j", "energy_per_token_j"), "energy")


def headline_rows(tables: Tables) -> pd.DataFrame:
    """The headline table as text, a row per batch size and policy, for HTML and Markdown."""
    table = summary.headline(tables)
    records = table.to_dict("records")
    cells = {
        **_named(table),
        **column_formats.shown(table, "step_s"),
        **column_formats.rates(table),
        baseline_head(table): [over_baseline(r) for r in records],
        "Speed against strict float32": [
            "1" if r["policy"] == "float32" else wording.ratio_of(r, "strict_") for r in records
        ],
        **_latencies(tables, table),
        **{measure.heading: _measured(table, measure) for measure in task_words.met(table)},
        **column_formats.shown(table, "peak_memory_bytes"),
        "Not valid": [
            wording.flagged(row["run_flags"], task_words.of(row["dataset"]).name, row["phase"])
            or BLANK
            for row in records
        ],
    }
    if set(table.baseline) <= {"float32", ""}:
        del cells["Speed against strict float32"]
    return without_blanks(pd.DataFrame(cells))


def _measured(table: pd.DataFrame, measure: task_words.Measure) -> list[str]:
    """The figure of a task in each row; of another task's rows a dash.

    With the number of its runs where others of its point have more, with other seeds then.
    """
    columns = [table[f"{measure.task.column}{end}"] for end in ("", "_low", "_high", "_n")]
    most = table.groupby(points.POINT, dropna=False).repeats.transform("max")
    return [
        measure.mean(*figures, n) + f" (n = {n})" * (0 < n < repeats)
        for *figures, n, repeats in zip(*columns, most, strict=True)
    ]


def detail_rows(tables: Tables) -> pd.DataFrame:
    """What else is known of the rows of the headline table, as text; empty where nothing is."""
    table = summary.headline(tables)
    steps = [
        BLANK if pd.isna(low) else f"{low * 1e3:.2f}–{high * 1e3:.2f}"
        for low, high in zip(table.step_s_low, table.step_s_high, strict=True)
    ]
    achieved = [_achieved(r) for r in table.to_dict("records")]
    cells = {
        "ms per step, 5–95 %": column_formats.marked(steps, table.run_flags, "time"),
        "Achieved (MFU), least traffic": column_formats.marked(achieved, table.run_flags, "time"),
        **_to_target(tables, table),
        **_prices(tables, table),
    }
    more = without_blanks(pd.DataFrame(cells))
    return pd.DataFrame() if more.empty else pd.concat([pd.DataFrame(_named(table)), more], axis=1)


def _named(table: pd.DataFrame) -> dict[str, Any]:
    """What names a row of the headline table."""
    policies = [policy(row) for row in table.to_dict("records")]
    return {**wording.varying(table), "Batch size": table.batch_size, "Policy": policies}


def _achieved(row: Mapping[str, Any]) -> str:
    if pd.isna(row["flops_per_s"]):
        return BLANK
    traffic = row["bytes_per_s"]
    moved = "" if pd.isna(traffic) else f", {wording.gigabytes(traffic)}"
    achieved = wording.teraflops(row["flops_per_s"])
    mfu = "no valid peak" if pd.isna(row["mfu_frac"]) else f"{row['mfu_frac'] * 100:.0f} %"
    return f"{achieved} ({mfu}){moved}"


def baseline_head(table: pd.DataFrame) -> str:
    """Names the baseline: what users have by default, and whether it was measured."""
    pairs = {(b, d) for b, d in zip(table.baseline, table.default_policy, strict=True) if b}
    if len(pairs) != 1:
        strict = any(b != d for b, d in pairs)
        instead = ", or strict float32 where it was not measured" if strict else ""
        return f"Speed against the default{instead} [95 % interval]"
    ((baseline, default),) = pairs
    if baseline == default:
        return f"Speed against {wording.default_name(baseline)} (the default) [95 % interval]"
    missing = f"the default, {wording.default_name(default)}, was not measured"
    return f"Speed against strict {baseline} ({missing}) [95 % interval]"


def over_baseline(row: Mapping[str, Any]) -> str:
    """A row's speedup with its interval; of the baseline itself, that it is the baseline."""
    if pd.isna(row["step_s"]):
        return BLANK
    if row["policy"] == row["baseline"]:
        # What is rounded to another format is nobody's default.
        usual = row["policy"] == row["default_policy"] and not EMULATES.search(row["setting"])
        return "1 (the default)" if usual else "1 (baseline)"
    return wording.ratio_of(row)


def _by_policy(
    tables: Tables,
    table: pd.DataFrame,
    values: pd.Series,
    keys: Sequence[str] = KEYS,
    how: str | Callable[[pd.Series], Any] = "median",
) -> list[Any]:
    """The median of some values of the runs that ended well, for each row of a headline table."""
    medians = tables.ok.assign(value=values).groupby(list(keys)).value.agg(how)
    return medians.reindex(pd.MultiIndex.from_frame(table[list(keys)])).tolist()


def _trained(tables: Tables, seconds: pd.Series) -> pd.Series:
    """Seconds by run id as those of each run that was trained; numbers, also where none was."""
    return tables.trained.run_id.map(seconds).astype(float)


def _to_target(tables: Tables, table: pd.DataFrame) -> dict[str, list[str]]:
    """Time to a target accuracy, of the runs that reached it."""
    wanted = accuracy.target(tables)
    if wanted is None:
        return {}
    seconds = _trained(tables, accuracy.seconds_to(tables, wanted))
    reached = seconds.where(np.isfinite(seconds))
    rows = zip(
        _by_policy(tables, table, reached),
        _by_policy(tables, table, reached, how="count"),
        _by_policy(tables, table, seconds, how="count"),
        _by_policy(tables, table, tables.trained.block, how="count"),
        _diverged(tables, table),
        _limited(tables, table),
        strict=True,
    )
    shown = [_reached(*row) for row in rows]
    # Whoever learned nothing has not reached it, whatever else is valid.
    flags = [validity.but(own, "not trained") for own in table.run_flags]
    marked = column_formats.marked(shown, flags, "training time", "accuracy")
    return {f"Time to {wanted * 100:g} % accuracy": marked}


def _diverged(tables: Tables, table: pd.DataFrame) -> list[int]:
    """How many runs diverged, for each row of a headline table."""
    counts = summary.ended(tables.results, "diverged")
    return [counts.get(key, 0) for key in table[KEYS].itertuples(index=False, name=None)]


def _limited(tables: Tables, table: pd.DataFrame) -> list[str]:
    """`ended by max_steps 24` for each row of a headline table, empty where it ended no training.

    Records do not say how many steps all epochs have: whether it cut them short, readers judge.
    """
    ended = tables.trained[tables.trained.ended_by == "max_steps"].run_id
    asked = {run_id: tables.records_by_id[run_id]["parameters"]["max_steps"] for run_id in ended}
    most = _by_policy(tables, table, ended.map(asked).astype(float), how="max")
    return ["" if pd.isna(steps) else f"ended by max_steps {steps:.0f}" for steps in most]


def _reached(
    seconds: float, reached: float, known: float, trained: float, diverged: int, limited: str
) -> str:
    """The median of the runs that reached it, and how many these are where not all did.

    Nothing where a run is not known to have reached it or not, or not when.
    """
    if not trained > 0 or known < trained:
        return BLANK
    if not reached > 0:
        return _noted("not reached", limited)
    runs = trained + diverged  # what diverged did not reach it
    return _noted(f"{seconds:,.1f} s", _among(reached, runs), limited * (reached < runs))


def _among(some: float, runs: float) -> str:
    """`1 of 3 runs`; empty where it is all of them."""
    return f"{some:.0f} of {runs:.0f} runs" * (some < runs)


def _noted(cell: str, *notes: str) -> str:
    """A cell with what it is not of itself: `20.0 s (1 of 3 runs; ended by max_steps 24)`."""
    said = "; ".join(filter(None, notes))
    return cell + f" ({said})" * (cell != BLANK and bool(said))


def _prices(tables: Tables, table: pd.DataFrame) -> dict[str, list[str]]:
    """What a million images and a whole training cost, in the currency of price_per_hour."""
    price = tables.price_per_hour
    if price is None:
        return {}
    seconds = _trained(tables, accuracy.training_s(tables))
    training_s = pd.Series(_by_policy(tables, table, seconds), dtype=float)
    taken = dict(zip(tables.ok.replicas, points.devices(tables.ok), strict=True))
    price = price * table.replicas.map(taken)  # of a device
    costs = {"million": 1e6 / table.throughput / 3600 * price, "dataset": table.dataset}
    costs["cost_per_training"] = training_s * price.to_numpy() / 3600
    shown = pd.DataFrame(costs)
    whole = column_formats.shown(shown, "cost_per_training")
    columns = {
        "time": column_formats.by_task(shown, "million", "cost_per_million_{}s"),
        "training time": {
            heading: _of_trainings(cells, tables, table, seconds)
            for heading, cells in whole.items()
        },
    }
    return {
        heading: column_formats.marked(cells, table.run_flags, what)
        for what, own in columns.items()
        for heading, cells in own.items()
    }


def _of_trainings(
    cells: Sequence[str], tables: Tables, table: pd.DataFrame, seconds: pd.Series
) -> list[str]:
    """Cells of whole trainings: of how many runs where not of all, and what limited their steps.

    Args:
        seconds: of each run that was trained; of one that diverged a training has no end.
    """
    rows = zip(
        cells,
        _by_policy(tables, table, seconds, how="count"),
        _by_policy(tables, table, tables.trained.block, how="count"),
        _diverged(tables, table),
        _limited(tables, table),
        strict=True,
    )
    return [
        _noted(cell, _among(known, trained + diverged), limited)
        for cell, known, trained, diverged, limited in rows
    ]


def _latencies(tables: Tables, table: pd.DataFrame) -> dict[str, list[str]]:
    """Of single batches in inference, from images on the host to probabilities on the host.

    Of the batches of all repeats: their median and 99th percentile; of too few of them the
    slowest, which says that it is.
    """
    groups = tables.latencies.groupby(KEYS).latency_s
    known = {"n": groups.count(), "slow": groups.quantile(0.99), "slowest": groups.max()}
    rows = pd.DataFrame(known).reindex(pd.MultiIndex.from_frame(table[KEYS]))
    beside = "99 %" if (rows.n >= FEW_LATENCIES).any() else "slowest"
    cells = map(_latency, table.latency_p50_s, rows.n, rows.slow, rows.slowest)
    return {f"Latency, median ({beside})": list(cells)}


def _latency(median: float, n: float, slow: float, slowest: float) -> str:
    """`7.34 ms (9.10)`; of fewer than FEW_LATENCIES `7.34 ms (slowest of 117: 9.60)`."""
    if pd.isna(median):
        return BLANK
    milliseconds = f"{median * 1e3:.2f} ms"
    if pd.isna(n):
        return milliseconds
    few = f"slowest of {n:.0f}: {slowest * 1e3:.2f}"
    return f"{milliseconds} ({few if n < FEW_LATENCIES else f'{slow * 1e3:.2f}'})"


def policy(row: Mapping[str, Any]) -> str:
    """The policy of a row, whether the device emulates it, and how far it is effective."""
    notes = [wording.EMULATED] * bool(row["emulated"]) + wording.partly(row)
    return f"{row['policy']} ({'; '.join(notes)})" if notes else row["policy"]


def accuracy_rows(tables: Tables) -> pd.DataFrame:
    """Differences in accuracy or perplexity between policies, a row per point and pair."""
    table = accuracy.differences(tables)
    records = table.to_dict("records")
    cells = {
        **_varying(table),
        "Policy": table.candidate,
        "Against": table.baseline.map(wording.default_name),
        **{measure.head: _differences(records, measure) for measure in task_words.met(table)},
        "Finding": [task_words.of(r["dataset"]).finding(r) for r in records],
    }
    return pd.DataFrame(cells)


def _differences(records: Sequence[Mapping[str, Any]], measure: task_words.Measure) -> list[str]:
    names = ("difference", "low", "high", "blocks")
    return [
        measure.difference(*(row[name] for name in names))
        if task_words.of(row["dataset"]) is measure and row["blocks"]
        else BLANK
        for row in records
    ]


def _varying(table: pd.DataFrame) -> dict[str, pd.Series]:
    """The columns that tell points apart, with the batch size."""
    return wording.varying(table) | wording.headed(table, {"batch_size"}.intersection(table))


def without_memory(tables: Tables) -> pd.DataFrame:
    """The points that ran out of memory, and what proves it, as text."""
    rows = tables.results[tables.results.status == "oom"]
    # Whether XLA was on is not known of a run that ended before it was compiled.
    point = [name for name in points.POINT if name != "jit"]
    rows = rows.drop_duplicates([*point, "policy"])
    shown = {**_varying(rows.drop(columns="jit")), "Policy": rows.policy, "Error": rows.error}
    return pd.DataFrame(shown).reset_index(drop=True)


def best_rows(tables: Tables) -> pd.DataFrame:
    """Every policy at its own best batch size as text; empty where one size was measured."""
    table = speedups.at_best_batch(tables)
    records = table.to_dict("records")
    varying = _varying(table.drop(columns="batch_size"))
    rates = column_formats.rates(table)
    return pd.DataFrame(
        {
            **varying,
            "Policy": table.policy,
            "Best batch size": table.batch_size,
            **rates,
            f"{' or '.join(rates)} against the baseline's best [95 % interval]": [
                f"1 ({wording.default_name(r['policy'])})"
                if r["policy"] == r["baseline"]
                else wording.ratio_of(r)
                for r in records
            ],
            "Largest batch that ran": [_largest(r, tables) for r in records],
            "Smallest that ran out of memory": [
                BLANK if np.isnan(r["too_large"]) else f"{r['too_large']:.0f}" for r in records
            ],
        }
    ).pipe(without_blanks)


def _largest(row: Mapping[str, Any], tables: Tables) -> str:
    """The size, and that it is the only one where no other was measured."""
    runs = tables.results
    only = _at_other_sizes(runs, row).batch_size.nunique() == 1 < runs.batch_size.nunique()
    return f"{row['largest']:.0f}" + " (the only one measured)" * only


def _at_other_sizes(runs: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    """The runs of a row's policy and point, whatever their batch size."""
    # A run that ended before it was compiled does not tell its jit.
    return points.sharing(runs, row, [n for n in KEYS if n not in ("batch_size", "jit")])


def attempt_rows(tables: Tables) -> pd.DataFrame:
    """The attempts to find the largest batch as text."""
    table = tables.attempts
    order = [*points.POINT[:4], "policy", "batch_size"]
    table = table.sort_values(order, key=points.rank)
    return pd.DataFrame(
        {
            **_varying(table.drop(columns=["batch_size", "jit"])),
            "Policy": table.policy,
            "Batch size": table.batch_size,
            "Outcome": [_outcome(*each) for each in zip(table.status, table["flags"], strict=True)],
            **column_formats.shown(table, "peak_memory_bytes"),
            "Error": table.error.replace("", BLANK),
        }
    ).pipe(without_blanks)


def _outcome(status: str, flags: str) -> str:
    """`fits`, `oom`; with why it may not be relied on."""
    doubt = "; ".join(memory.doubts(flags, status))
    return ("fits" if status in FITTED else status) + f" (not valid: {doubt})" * bool(doubt)


def sensor_rows(tables: Tables) -> pd.DataFrame:
    """What the device read while steps were timed, medians over repeats, as text.

    Of what disturbs, the most of any repeat: a median hides the run that is not valid for it.
    Empty where nothing was read.
    """
    if tables.ok.empty:
        return pd.DataFrame()
    keys = KEYS
    table = summary.headline(tables)[keys]
    if len(table) > ROWS:
        keys = ["gpu_model", "policy"]
        table = table[keys].drop_duplicates().sort_values(keys, key=points.rank)
    values = {
        n: _by_policy(tables, table, pd.to_numeric(tables.ok[n]), keys, how)
        for n, how in SENSORS.items()
        if n in tables.ok
    }
    flags = _by_policy(tables, table, tables.ok["flags"], keys, validity.together)
    columns = {name: column_formats.COLUMNS[name].heading for name in values}
    runs = _by_policy(tables, table, tables.ok.run_id, keys, "count")
    cells = {
        heading: column_formats.marked(
            _of_runs(
                column_formats.cells(name, values[name]),
                _by_policy(tables, table, pd.to_numeric(tables.ok[name]), keys, "count"),
                runs,
            ),
            flags,
            PROVEN_BY.get(name, ""),
        )
        for name, heading in columns.items()
    }
    sensed = without_blanks(pd.DataFrame(cells))
    named = pd.DataFrame({**_varying(table), "Policy": table.policy})
    return pd.DataFrame() if sensed.empty else pd.concat([named, sensed], axis=1)


def _of_runs(cells: Sequence[str], read: Sequence[float], runs: Sequence[float]) -> list[str]:
    """Cells with of how many of a row's runs they are, where others were not read."""
    each = zip(cells, read, runs, strict=True)
    return [_noted(cell, _among(some, of)) for cell, some, of in each]


def headline_html(tables: Tables) -> GT:
    """The headline table for a report."""
    rows = _visible(headline_rows(tables))
    table = _styled(rows, rowname_col="Policy").tab_stubhead("Policy")
    return table.cols_align("right", [name for name in rows if _numeric(rows[name])])


def plain_table(rows: pd.DataFrame, links: Sequence[str] = (), id: str | None = None) -> GT:
    """Any table of text for a report, its first ROWS rows; columns named in `links` hold HTML."""
    shown = _visible(rows[:ROWS])
    numbers = [name for name in shown if name not in links and _numeric(shown[name])]
    table = _styled(shown, id).cols_align("right", columns=numbers)
    if len(rows) > ROWS:
        table = table.tab_source_note(f"The first {ROWS} of {len(rows):,} rows.")
    return table.fmt(lambda cell: html(cell).text, columns=list(links)) if links else table


def _visible(rows: pd.DataFrame) -> pd.DataFrame:
    shown = rows.map(lambda cell: visible(cell) if isinstance(cell, str) else cell)
    return shown.rename(columns=visible)


def _numeric(column: pd.Series) -> bool:
    """Whether every cell is a number, with or without a share behind it, or a dash."""
    cells = [str(cell) for cell in column]
    return all(re.fullmatch(r"–|[\d.,]+( %)?( \(\d+ %\))?", cell) for cell in cells)


def _styled(rows: pd.DataFrame, id: str | None = None, **words: str) -> GT:
    # great-tables would draw an id by chance, and colours and fonts are the page's.
    id = id or "t" + hashlib.sha256(rows.to_csv().encode()).hexdigest()[:10]
    table = GT(rows, id=id, **words)
    return table.tab_options(
        table_background_color="transparent",
        table_font_names="inherit",
        table_font_size="0.8rem",
        table_width="100%",
        table_border_top_style="none",
        data_row_padding="5px",
    ).opt_table_outline("none")


def markdown(rows: pd.DataFrame) -> str:
    """A table of text as Markdown."""
    lines = [list(rows.columns), ["---"] * len(rows.columns), *rows.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(_cell(str(c)) for c in line) + " |" for line in lines) + "\n"


# What Markdown obeys within a cell; an underscore within a word it does not.
MARKUP = re.compile(r"[\\`*~$|<&]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|:(?=//)")


def _cell(text: str) -> str:
    """Text for a cell of Markdown: what looks like a tag, a link or another cell is shown."""
    return MARKUP.sub(r"\\\g<0>", visible(text))
