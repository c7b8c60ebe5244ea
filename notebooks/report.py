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
    lossscale,
    lowered,
    reasons,
    report,
    scaling,
    sortable,
    store,
    underflow,
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
sentences = [report.sentence(text) for text in report.answer(tables)]
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
details = digest.details(tables)
if not details.empty:
    display(Markdown("### More of the same runs"))
    display(layout.plain_table(details))
    display(Markdown(facts.details_note))

# %%
if tables.ok.images_per_s.notna().any() and tables.results.batch_size.nunique() > 1:
    out_of_memory = tables.results[tables.results.status == "oom"]
    show(
        figures.images_per_s_by_batch_size(tables.ok, out_of_memory),
        "Images per second by batch size, one dot per run, a line per policy through the medians.",
        findings.caption_images(tables),
    )
lost = layout.without_memory(tables)
if not lost.empty:
    display(Markdown("### Out of memory"))
    display(layout.plain_table(lost))

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
    if learned.val_accuracy.notna().any() and tables.ok.step_s.notna().any():
        show(
            figures.accuracy_by_time(learned),
            "Validation accuracy by seconds since the first step, a line per run and policy.",
            findings.caption_time(tables),
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
looked = underflow.seen(tables.records)
for seen in looked:
    display(Markdown(f"## Where the numbers lie: {report.safe(underflow.title(seen, looked))}"))
    display(Markdown("\n".join(f"- {s}" for s in report.numbers(seen))))
    show(
        figures.exponents_by_kind(seen),
        "Share of weights, activations, gradients and updates by exponent, float16's range marked.",
        underflow.caption(seen),
    )
    display(layout.plain_table(underflow.rows(seen)))
    display(Markdown(underflow.NOTE))
    show(
        figures.exponents_by_layer(seen),
        "Share of each layer's activation gradients by exponent, a row per layer.",
        underflow.caption_layers(seen),
    )

# %%
scaled = lossscale.table(tables)
for _, rows in scaled.groupby("point", sort=False) if not scaled.empty else ():
    display(Markdown("## Loss scale"))
    display(Markdown("\n".join(f"- {sentence}" for sentence in lossscale.sentences(rows))))
    show(
        figures.accuracy_by_loss_scale(rows),
        "Validation accuracy by loss scale, a line per policy, crosses for what diverged.",
        lossscale.caption(rows),
    )
    display(layout.plain_table(lossscale.text(rows)))
traces = lossscale.traces(tables)
if not traces.empty and (not scaled.empty or traces.skipped.any()):
    show(
        figures.loss_scale_by_step(traces),
        "The dynamic loss scale by step, a line per run.",
        lossscale.caption_traces(traces),
    )

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
        figures.memory_by_batch_size(tables.ok, facts.limits),
        "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
        findings.caption_memory(tables),
    )

# %%
read = layout.reading_rows(tables)
if not read.empty:
    display(Markdown(f"## Device readings\n\n{facts.readings_note}"))
    display(layout.plain_table(read))
    samples = analysis.device_samples(directory, tables)
    if not samples.empty:
        show(
            figures.readings_by_time(samples),
            "Utilization and power by seconds, a line per policy.",
            findings.caption_readings(samples),
        )

# %%
if facts.published is not None:
    display(Markdown(f"## Published beside measured\n\n{facts.published.note}"))
    for table in (facts.published.speeds, facts.published.accuracies):
        if not table.empty:
            display(layout.plain_table(table, links=["Source"]))
    display(Markdown("\n".join(f"- {report.sentence(s)}" for s in facts.published.sentences)))
    display(layout.plain_table(facts.published.differences))

# %%
display(Markdown("## Claims checked\n\nWhat the studies claimed, and what this sweep says of it."))
display(layout.plain_table(facts.claims, links=["Runs"]))

# %%
if not facts.failed.empty:
    display(Markdown("## Runs without a result\n\nThey are part of the result."))
    display(layout.plain_table(facts.failed))
for sentence in tables.damaged:
    display(Markdown(f"**Damaged record**: {report.safe(sentence)}"))

# %%
display(Markdown(f"## All runs\n\n{facts.runs_note}"))
display(layout.plain_table(facts.runs, links=["Run", "Record"], id=sortable.ID))

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
