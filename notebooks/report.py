# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% tags=["parameters"]
sweep_dir: str = "reports/quickstart"  # the directory of a sweep

# %%
from pathlib import Path

from IPython.display import HTML, Markdown, display

from mptexp import (
    analysis,
    digest,
    figures,
    findings,
    layout,
    lowered,
    reasons,
    report,
    scaling,
    store,
)

directory = store.SweepDir(Path(sweep_dir))
tables = analysis.load(directory)
facts = report.facts(directory, tables)


def show(figure, alt, caption):
    # A figure's label says which panels it leaves out.
    caption = f"{caption} {figure.get_label()}".strip()
    display(HTML(figures.as_html(figures.svg(figure), alt, caption)))


# %%
display(Markdown(f"# {report.safe(facts.title)}\n\n*{report.safe(facts.question)}*"))
sentences = [report.sentence(text) for text in findings.answer(tables)]
sentences += [reasons.safe_sentence(verdict) for verdict in facts.verdicts]
display(Markdown("\n".join(f"- {sentence}" for sentence in sentences)))

# %%
if not tables.ok.empty:
    display(Markdown("## Time per step" if tables.ok.step_s.notna().any() else "## Accuracy"))
    table, note = digest.headline(tables)
    display(table)
    display(Markdown(note + facts.table_note))

# %%
if not tables.speedups.empty:
    for baseline in tables.speedups.baseline.unique():
        show(
            figures.speedup_by_batch_size(tables.speedups, baseline),
            f"Speedup over {baseline} by batch size, one marker per policy, with intervals.",
            findings.caption_speedup(tables, baseline),
        )

# %%
if facts.not_diagnosed:
    display(Markdown(f"## Why\n\n{facts.not_diagnosed}"))
for verdict in facts.verdicts:
    display(Markdown(f"## Why: {report.safe(reasons.title(verdict))}"))
    drawn = reasons.figures_of(verdict)
    for heading, table in reasons.tables(verdict).items():
        display(Markdown(f"### {heading}\n\n{reasons.NOTES[heading]}"))
        display(layout.plain_table(table))
        if heading in drawn:
            show(*drawn[heading])

# %%
if tables.ok.step_s.notna().any():
    show(
        figures.step_time_by_batch_size(tables.ok),
        "Milliseconds per step by batch size, one dot per run, coloured by policy.",
        findings.caption_steps(tables),
    )

# %%
latencies = tables.latencies
if not latencies.empty:
    display(Markdown("## Latency"))
    show(
        figures.latency_distribution(latencies),
        "Share of inference batches by milliseconds taken, a curve per policy.",
        findings.caption_latency(tables),
    )

# %%
# A batch that is always the same is not learned from.
learned = tables.epochs[tables.epochs.input_mode != "resident"]
if not tables.ok.empty and learned.loss.notna().any():
    display(Markdown("## Learning"))
    if learned.val_accuracy.notna().any():
        show(
            figures.accuracy_by_epoch(learned),
            "Validation accuracy by epoch, a panel per batch size, a line per run and policy.",
            findings.caption_accuracy(tables),
        )
    show(
        figures.loss_by_epoch(learned),
        "Training loss by epoch, a panel per batch size, a line per run and policy.",
        "Training loss of the same runs.",
    )
    display(Markdown(facts.starts))
    compared, more = digest.accuracy_rows(tables)
    if not compared.empty:
        display(Markdown("### Differences in accuracy at the last epoch"))
        display(layout.plain_table(compared))
        note = (
            "Differences (policy minus baseline) are formed within a block; the interval is "
            "Student's *t* over blocks. *Equal* means that the whole interval lies within the "
            "margin; *undecided*, that it neither does nor leaves zero out."
        )
        display(Markdown(more + note))

# %%
for part in lowered.sections(tables):
    display(Markdown(f"## {part.title}\n\n{part.note}"))
    display(layout.plain_table(part.rows))
    display(Markdown("\n".join(f"- {report.safe(sentence)}" for sentence in part.sentences)))

# %%
best = layout.best_rows(tables)
if not best.empty:
    display(Markdown("## Every policy at its best batch size"))
    display(layout.plain_table(best))
    note = (
        "The first table of this report compares policies at the same batch size; this one gives "
        "every policy the batch size at which it was fastest in images per second. A larger batch "
        "may need another learning rate to learn as well."
    )
    display(Markdown(note))
if not tables.attempts.empty:
    display(Markdown("### The search for the largest batch"))
    display(layout.plain_table(layout.attempt_rows(tables)))

# %%
for part in scaling.sections(tables):
    display(Markdown(f"## {part.title}\n\n{part.note}"))
    display(layout.plain_table(part.rows))
    display(Markdown("\n".join(f"- {report.safe(sentence)}" for sentence in part.sentences)))

# %%
if tables.ok.peak_memory_bytes.notna().any():
    display(Markdown("## Memory"))
    show(
        figures.memory_by_batch_size(tables.ok),
        "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
        findings.caption_memory(tables),
    )

# %%
read = layout.reading_rows(tables)
if not read.empty:
    display(Markdown(f"## Device readings\n\n{facts.readings_note}"))
    display(layout.plain_table(read))

# %%
if facts.published is not None:
    display(Markdown(f"## Published beside measured\n\n{facts.published.note}"))
    for table in (facts.published.speeds, facts.published.accuracies):
        if not table.empty:
            display(layout.plain_table(table, links=["Source"]))
    display(Markdown("\n".join(f"- {report.sentence(s)}" for s in facts.published.sentences)))
    display(layout.plain_table(facts.published.differences))

# %%
if not facts.failed.empty:
    display(Markdown("## Runs without a result\n\nThey are part of the result."))
    display(layout.plain_table(facts.failed))
for sentence in tables.damaged:
    display(Markdown(f"**Damaged record**: {report.safe(sentence)}"))

# %%
display(Markdown(f"## All runs\n\n{facts.runs_note}"))
display(layout.plain_table(facts.runs, links=["Run", "Record"]))

# %% [markdown]
# ## What is timed
#
# The training steps of Keras's `fit`, from the beginning of one step to the beginning of a later
# one, so with the wait for data. The clock waits for the device at the edges of a window of steps
# (about 0.2 s), not at every step. Compilation and warm-up are found in the series and left out;
# so is the last step of an epoch, and validation. A run's figure is its median window. A ratio is
# formed between runs of the same block, which are close together in time; its interval is
# Student's *t* on the logarithms of the blocks' ratios, and needs at least three blocks.

# %%
display(Markdown("## Environment"))
display(layout.plain_table(facts.environment))
for warning in facts.warnings:
    display(Markdown(f"**Note**: {warning}"))

# %%
display(Markdown(facts.reproduce))
