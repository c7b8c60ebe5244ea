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
from IPython.display import HTML, Markdown, display

from mptexp.analysis import exponent_range, loss_scale
from mptexp.report import (
    comparisons,
    dynamic_range,
    loss_scales,
    low_precision,
    measured,
    page,
    sortable,
    summary_tables,
    text_tables,
    why,
)
from mptexp.report.figures import registry

sweep = measured.load(sweep_dir)
tables = sweep.tables
facts = page.facts(sweep)
figures = {figure.name: figure for figure in registry.figures(sweep)}


def show(name):
    # A sweep without the data of a figure has no figure of that name.
    if name in figures:
        display(HTML(figures[name].html()))


# %%
display(Markdown(f"# {page.safe(facts.title)}\n\n*{page.safe(facts.question)}*"))
sentences = [page.sentence(text) for text in page.answer(tables)]
sentences += [why.safe_sentence(verdict, facts.verdicts) for verdict in facts.verdicts]
display(Markdown("\n".join(f"- {sentence}" for sentence in sentences)))

# %%
if not tables.ok.empty:
    display(Markdown("## Time per step" if tables.ok.step_s.notna().any() else "## Accuracy"))
    table, note = summary_tables.headline(tables)
    display(table)
    display(Markdown(note + facts.table_note))

# %%
for baseline in tables.speedups.baseline.unique() if not tables.speedups.empty else ():
    show(f"speedup_over_{baseline}_by_batch_size")

# %%
details = summary_tables.details(tables)
if not details.empty:
    display(Markdown("### More of the same runs"))
    display(text_tables.plain_table(details))
    display(Markdown(facts.details_note))

# %%
show("images_per_s_by_batch_size")
lost = text_tables.without_memory(tables)
if not lost.empty:
    display(Markdown("### Out of memory"))
    display(text_tables.plain_table(lost))

# %%
if facts.not_diagnosed:
    display(Markdown(f"## Why\n\n{facts.not_diagnosed}"))
for number, verdict in enumerate(facts.verdicts, 1):
    display(Markdown(f"## Why: {page.safe(why.title(verdict, facts.verdicts))}"))
    for section, table in why.tables(verdict).items():
        display(Markdown(f"### {section.heading}\n\n{section.note}"))
        display(text_tables.plain_table(table))
        if section == why.BREAKDOWN:
            show(f"time_by_cause_{number}")
        if section == why.PEAKS:
            show(f"roofline_by_layer_{number}")

# %%
show("step_time_by_batch_size")

# %%
if not tables.latencies.empty:
    display(Markdown("## Latency"))
    show("latency_distribution")

# %%
if "loss_by_epoch" in figures:
    display(Markdown("## Learning"))
    show("accuracy_by_epoch")
    show("accuracy_by_time")
    show("loss_by_epoch")
    display(Markdown(facts.starts))
    compared, more = summary_tables.accuracy_rows(tables)
    if not compared.empty:
        display(Markdown("### Differences in accuracy at the last epoch"))
        display(text_tables.plain_table(compared))
        note = (
            "Differences (policy minus baseline) are formed within a block; the interval is "
            "Student's *t* over blocks. *Equal* means that the whole interval lies within the "
            "margin; *inconclusive*, that it neither does nor leaves zero out."
        )
        display(Markdown(more + note))

# %%
for part in low_precision.sections(tables):
    display(Markdown(f"## {part.title}\n\n{part.note}"))
    display(text_tables.plain_table(part.rows))
    display(Markdown("\n".join(f"- {page.safe(sentence)}" for sentence in part.sentences)))

# %%
ranges = exponent_range.measured(tables.records)
for number, values in enumerate(ranges, 1):
    display(Markdown(f"## Dynamic range: {page.safe(dynamic_range.title(values, ranges))}"))
    display(Markdown("\n".join(f"- {s}" for s in page.numbers(values))))
    show(f"exponents_by_kind_{number}")
    display(text_tables.plain_table(dynamic_range.rows(values)))
    display(Markdown(dynamic_range.NOTE))
    show(f"exponents_by_layer_{number}")

# %%
points = loss_scales.by_point(loss_scale.table(tables))
for number, (title, rows) in enumerate(points, 1):
    display(Markdown("## Loss scale" + f": {page.safe(title)}" * bool(title)))
    display(Markdown("\n".join(f"- {sentence}" for sentence in loss_scales.sentences(rows))))
    show(f"accuracy_by_loss_scale_{number}")
    display(text_tables.plain_table(loss_scales.text(rows)))
show("loss_scale_by_step")

# %%
best = text_tables.best_rows(tables)
if not best.empty:
    display(Markdown("## Every policy at its best batch size"))
    display(text_tables.plain_table(best))
    note = (
        "The first table of this report compares policies at the same batch size; this one gives "
        "every policy the batch size at which it was fastest in images per second. A larger batch "
        "may need another learning rate to learn as well."
    )
    display(Markdown(note))
if not tables.attempts.empty:
    display(Markdown("### The search for the largest batch"))
    display(text_tables.plain_table(text_tables.attempt_rows(tables)))

# %%
for part in comparisons.sections(tables):
    display(Markdown(f"## {part.title}\n\n{part.note}"))
    display(text_tables.plain_table(part.rows))
    display(Markdown("\n".join(f"- {page.safe(sentence)}" for sentence in part.sentences)))

# %%
if "memory_by_batch_size" in figures:
    display(Markdown("## Memory"))
    show("memory_by_batch_size")

# %%
read = text_tables.sensor_rows(tables)
if not read.empty:
    display(Markdown(f"## Device readings\n\n{facts.readings_note}"))
    display(text_tables.plain_table(read))
    show("readings_by_time")

# %%
if facts.published is not None:
    display(Markdown(f"## Comparison with published results\n\n{facts.published.note}"))
    for table in (facts.published.speeds, facts.published.accuracies):
        if not table.empty:
            display(text_tables.plain_table(table, links=["Source"]))
    display(Markdown("\n".join(f"- {page.sentence(s)}" for s in facts.published.sentences)))
    display(text_tables.plain_table(facts.published.differences))

# %%
display(Markdown("## Claims checked\n\nWhat the studies claimed, and what this sweep says of it."))
display(text_tables.plain_table(facts.claims, links=["Runs"]))

# %%
if not facts.failed.empty:
    display(Markdown("## Runs without a result\n\nThey are part of the result."))
    display(text_tables.plain_table(facts.failed))
for sentence in tables.damaged:
    display(Markdown(f"**Damaged record**: {page.safe(sentence)}"))

# %%
display(Markdown(f"## All runs\n\n{facts.runs_note}"))
display(text_tables.plain_table(facts.runs, links=["Run", "Record"], id=sortable.ID))

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
display(text_tables.plain_table(facts.environment))
for warning in facts.warnings:
    display(Markdown(f"**Note**: {warning}"))

# %%
display(Markdown(facts.reproduce))
