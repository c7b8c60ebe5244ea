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

from mptexp import analysis, figures, findings, report, store

directory = store.SweepDir(Path(sweep_dir))
tables = analysis.load(directory)
facts = report.facts(directory, tables)


def show(figure, alt, caption):
    display(HTML(figures.as_html(figures.svg(figure), alt, caption)))


# %%
display(Markdown(f"# {report.safe(facts.title)}\n\n*{report.safe(facts.question)}*"))
sentences = [report.safe(sentence) for sentence in findings.answer(tables)]
display(Markdown("\n".join(f"- {sentence}" for sentence in sentences)))

# %%
if not tables.ok.empty:
    display(Markdown("## Time per step"))
    display(findings.headline_html(tables))
    display(Markdown(facts.table_note))

# %%
if not tables.speedups.empty:
    for baseline in tables.speedups.baseline.unique():
        show(
            figures.speedup_by_batch_size(tables.speedups, baseline),
            f"Speedup over {baseline} by batch size, one marker per policy, with intervals.",
            findings.caption_speedup(tables, baseline),
        )

# %%
if not tables.ok.empty:
    show(
        figures.step_time_by_batch_size(tables.ok),
        "Milliseconds per step by batch size, one dot per run, coloured by policy.",
        findings.caption_steps(tables),
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

# %%
if tables.ok.peak_memory_bytes.notna().any():
    display(Markdown("## Memory"))
    show(
        figures.memory_by_batch_size(tables.ok),
        "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
        findings.caption_memory(tables),
    )

# %%
if facts.published is not None:
    display(Markdown(f"## Published beside measured\n\n{facts.published.note}"))
    for rows in (facts.published.speeds, facts.published.accuracies):
        if not rows.empty:
            display(findings.plain_table(rows, links=["Source"]))
    display(Markdown("\n".join(f"- {report.safe(s)}" for s in facts.published.sentences)))
    display(findings.plain_table(facts.published.differences))

# %%
if not facts.failed.empty:
    display(Markdown("## Runs without a result\n\nThey are part of the result."))
    display(findings.plain_table(facts.failed))
for sentence in tables.damaged:
    display(Markdown(f"**Damaged record**: {report.safe(sentence)}"))

# %%
display(Markdown("## All runs"))
display(findings.plain_table(facts.runs, links=["Run", "Record"]))

# %% [markdown]
# ## What is timed
#
# The training steps of Keras's `fit`, from the beginning of one step to the beginning of a later
# one, so with the wait for data. The clock waits for the device at the edges of a window of steps
# (about 0.05 s), not at every step. Compilation and warm-up are found in the series and left out;
# so is the last step of an epoch, and validation. A run's figure is its median window. A ratio is
# formed between runs of the same block, which are close together in time; its interval is
# Student's *t* on the logarithms of the blocks' ratios, and needs at least three blocks.

# %%
display(Markdown("## Environment"))
display(findings.plain_table(facts.environment))
for warning in facts.warnings:
    display(Markdown(f"**Note**: {warning}"))

# %%
display(Markdown(facts.reproduce))
