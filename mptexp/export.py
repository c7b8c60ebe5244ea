"""What somebody who writes about a sweep needs: its tables and figures as files, and a draft."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mptexp import accuracy, analysis, figures, findings, layout, report, store
from mptexp.analysis import Tables
from mptexp.store import SweepDir

DATA = ("results.csv", "history.csv", "speedups.csv")


@dataclass(frozen=True)
class Picture:
    """A figure of a report with its text alternative and caption; the name is a file's stem."""

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str


def pictures(tables: Tables) -> Iterator[Picture]:
    """The figures that a report of these tables shows of its measurements."""
    for baseline in tables.speedups.baseline.unique():
        yield Picture(
            f"speedup_over_{baseline}_by_batch_size",
            lambda baseline=baseline: figures.speedup_by_batch_size(tables.speedups, baseline),
            f"Speedup over {baseline} by batch size, one marker per policy, with intervals.",
            findings.caption_speedup(tables, baseline),
        )
    if tables.ok.step_s.notna().any():
        yield Picture(
            "step_time_by_batch_size",
            lambda: figures.step_time_by_batch_size(tables.ok),
            "Milliseconds per step by batch size, one dot per run, coloured by policy.",
            findings.caption_steps(tables),
        )
    if not tables.latencies.empty:
        yield Picture(
            "latency_distribution",
            lambda: figures.latency_distribution(tables.latencies),
            "Share of inference batches by milliseconds taken, a curve per policy.",
            findings.caption_latency(tables),
        )
    yield from _learning(tables)
    if tables.ok.peak_memory_bytes.notna().any():
        yield Picture(
            "memory_by_batch_size",
            lambda: figures.memory_by_batch_size(tables.ok),
            "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
            findings.caption_memory(tables),
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
            findings.caption_accuracy(tables),
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
    tables = report.load(directory)
    for name in DATA:
        made = getattr(tables, name.removesuffix(".csv")).to_csv(index=False)
        store.write_text(folder / name, made)
    shown = "" if tables.ok.empty else _tables(tables, folder)
    drawn = [_picture(picture, folder) for picture in pictures(tables)]
    sentences = "\n".join(f"- {report.sentence(text)}" for text in findings.answer(tables))
    head = f"# {report.safe(report.question(directory))}"
    draft = "\n\n".join(part for part in (head, sentences, shown, *drawn) if part)
    store.write_text(folder / "draft.md", draft + "\n")
    return tables.damaged


def _tables(tables: Tables, folder: Path) -> str:
    """Writes the tables; returns the one that opens a report."""
    margin = tables.options.equivalence_margin
    found: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
        "table": (analysis.headline(tables), layout.headline_rows(tables)),
        "best_batch_size": (analysis.best_batches(tables.results), layout.best_rows(tables)),
        "accuracy": (accuracy.differences(tables, margin), layout.accuracy_rows(tables)),
    }
    for name, (numbers, text) in found.items():
        if not numbers.empty:
            store.write_text(folder / f"{name}.csv", numbers.to_csv(index=False))
            store.write_text(folder / f"{name}.md", layout.markdown(text))
    return layout.markdown(found["table"][1]).strip()


def _picture(picture: Picture, folder: Path) -> str:
    """Writes a figure as PNG and SVG; returns it with its caption in Markdown."""
    figure = picture.draw()
    caption = f"{picture.caption} {figure.get_label()}".strip()
    (folder / f"{picture.name}.png").write_bytes(figures.png(figure))
    store.write_text(folder / f"{picture.name}.svg", figures.svg(figure))
    return f"![{picture.alt}]({picture.name}.svg)\n\n*{caption}*"
