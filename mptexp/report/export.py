"""What somebody who writes about a sweep needs: its tables and figures as files, and a draft."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mptexp.analysis import accuracy, exponent_range, loss_scale, speedups, summary, sweep_tables
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import figures, page, text_tables, wording

DATA = ("results.csv", "history.csv", "speedups.csv")


@dataclass(frozen=True)
class Picture:
    """A figure of a report with its text alternative and caption; the name is a file's stem."""

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str


def pictures(directory: SweepDir, tables: Tables) -> Iterator[Picture]:
    """The figures that a report of these tables shows of its measurements."""
    for baseline in tables.speedups.baseline.unique():
        yield Picture(
            f"speedup_over_{baseline}_by_batch_size",
            lambda baseline=baseline: figures.speedup_by_batch_size(tables.speedups, baseline),
            f"Speedup over {baseline} by batch size, one marker per policy, with intervals.",
            wording.caption_speedup(tables, baseline),
        )
    if tables.ok.step_s.notna().any():
        yield Picture(
            "step_time_by_batch_size",
            lambda: figures.step_time_by_batch_size(tables.ok),
            "Milliseconds per step by batch size, one dot per run, coloured by policy.",
            wording.caption_steps(tables),
        )
    if tables.ok.images_per_s.notna().any() and tables.results.batch_size.nunique() > 1:
        out = tables.results[tables.results.status == "oom"]
        yield Picture(
            "images_per_s_by_batch_size",
            lambda: figures.images_per_s_by_batch_size(tables.ok, out),
            "Images per second by batch size, one dot per run, a line per policy through medians.",
            wording.caption_images(tables),
        )
    if not tables.latencies.empty:
        yield Picture(
            "latency_distribution",
            lambda: figures.latency_distribution(tables.latencies),
            "Share of inference batches by milliseconds taken, a curve per policy.",
            wording.caption_latency(tables),
        )
    yield from _learning(tables)
    yield from _numbers(tables)
    if tables.ok.peak_memory_bytes.notna().any():
        yield Picture(
            "memory_by_batch_size",
            lambda: figures.memory_by_batch_size(tables.ok, page.limits(tables)),
            "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
            wording.caption_memory(tables),
        )
    samples = sweep_tables.device_samples(directory, tables)
    if not samples.empty:
        yield Picture(
            "readings_by_time",
            lambda: figures.readings_by_time(samples),
            "Utilization and power by seconds, a line per policy.",
            wording.caption_readings(samples),
        )


def _numbers(tables: Tables) -> Iterator[Picture]:
    for number, seen in enumerate(exponent_range.seen(tables.records), 1):
        yield Picture(
            f"exponents_by_kind_{number}",
            lambda seen=seen: figures.exponents_by_kind(seen),
            "Share of weights, activations, gradients and updates by exponent, float16's range "
            "marked.",
            exponent_range.caption(seen),
        )
        yield Picture(
            f"exponents_by_layer_{number}",
            lambda seen=seen: figures.exponents_by_layer(seen),
            "Share of each layer's activation gradients by exponent, a row per layer.",
            exponent_range.caption_layers(seen),
        )
    scaled = loss_scale.table(tables)
    points = scaled.groupby("point", sort=False) if len(scaled) else ()
    for number, (_, rows) in enumerate(points, 1):
        yield Picture(
            f"accuracy_by_loss_scale_{number}",
            lambda rows=rows: figures.accuracy_by_loss_scale(rows),
            "Validation accuracy by loss scale, a line per policy, crosses for what diverged.",
            loss_scale.caption(rows),
        )
    traces = loss_scale.traces(tables)
    if not traces.empty and (len(scaled) or traces.skipped.any()):
        yield Picture(
            "loss_scale_by_step",
            lambda: figures.loss_scale_by_step(traces),
            "The dynamic loss scale by step, a line per run.",
            loss_scale.caption_traces(traces),
        )


def _learning(tables: Tables) -> Iterator[Picture]:
    # A batch that is always the same is not learned from.
    learned = tables.epochs[tables.epochs.input_mode != "resident"]
    if tables.ok.empty or learned.loss.isna().all():
        return
    if learned.val_accuracy.notna().any():
        yield Picture(
            "accuracy_by_epoch",
            lambda: figures.accuracy_by_epoch(learned),
            "Validation accuracy by epoch, a panel per batch size, a line per run and policy.",
            wording.caption_accuracy(tables),
        )
    if learned.val_accuracy.notna().any() and tables.ok.step_s.notna().any():
        yield Picture(
            "accuracy_by_time",
            lambda: figures.accuracy_by_time(learned),
            "Validation accuracy by seconds since the first step, a line per run and policy.",
            wording.caption_time(tables),
        )
    yield Picture(
        "loss_by_epoch",
        lambda: figures.loss_by_epoch(learned),
        "Training loss by epoch, a panel per batch size, a line per run and policy.",
        "Training loss, each repeat faint and the mean strong.",
    )


def export(directory: SweepDir, folder: Path) -> list[str]:
    """Writes a sweep's tables as Markdown and CSV, its figures as SVG and PNG, and draft.md.

    A table's CSV holds numbers in SI units, its Markdown what a report shows.

    Args:
        directory: a sweep's directory with at least one record.
        folder: files of these names in it are replaced, others left alone.

    Returns:
        A sentence for each damaged record, whose run is in none of the files.

    Raises:
        params.ParamsError: where the directory holds no record.
        OSError: where the folder takes no files.
    """
    tables = page.load(directory)
    for name in DATA:
        made = getattr(tables, name.removesuffix(".csv")).to_csv(index=False)
        store.write_text(folder / name, made)
    shown = "" if tables.ok.empty else _tables(tables, folder)
    drawn = [_picture(picture, folder) for picture in pictures(directory, tables)]
    sentences = "\n".join(f"- {page.sentence(text)}" for text in wording.answer(tables))
    head = f"# {page.safe(page.question(directory))}"
    draft = "\n\n".join(part for part in (head, sentences, shown, *drawn) if part)
    store.write_text(folder / "draft.md", draft + "\n")
    return tables.damaged


def _tables(tables: Tables, folder: Path) -> str:
    """Writes the tables; returns the one that opens a report."""
    margin = tables.options.equivalence_margin
    found: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
        "table": (summary.headline(tables), text_tables.headline_rows(tables)),
        "best_batch_size": (speedups.at_best_batch(tables.results), text_tables.best_rows(tables)),
        "accuracy": (accuracy.differences(tables, margin), text_tables.accuracy_rows(tables)),
    }
    for name, (numbers, text) in found.items():
        if not numbers.empty:
            store.write_text(folder / f"{name}.csv", numbers.to_csv(index=False))
            store.write_text(folder / f"{name}.md", text_tables.markdown(text))
    return text_tables.markdown(found["table"][1]).strip()


def _picture(picture: Picture, folder: Path) -> str:
    """Writes a figure as PNG and SVG; returns it with its caption in Markdown."""
    figure = picture.draw()
    caption = f"{picture.caption} {figure.get_label()}".strip()
    (folder / f"{picture.name}.png").write_bytes(figures.png(figure))
    store.write_text(folder / f"{picture.name}.svg", figures.svg(figure))
    return f"![{picture.alt}]({picture.name}.svg)\n\n*{caption}*"
