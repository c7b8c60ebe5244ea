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

# %% [markdown]
# # Why was it faster, or why not?
#
# A look into one diagnosed pair of policies, from records alone: `mptexp diagnose` has traced some
# steps under both policies and made the experiments that the traces asked for. The report shows the
# same in fewer rows.

# %% tags=["parameters"]
sweep_dir: str = "reports/published/why-cpu"  # the directory of a diagnosed sweep
pair: int = 0  # which of its pairs of policies

# %%
from IPython.display import HTML, Markdown, display

from mptexp import api
from mptexp.diagnosis import arithmetic, breakdown
from mptexp.report import measured, why
from mptexp.report.figures import registry

sweep = measured.load(api.resolved(sweep_dir))
verdicts = sweep.verdicts
figures = {figure.name: figure for figure in registry.figures(sweep)}
for number, verdict in enumerate(verdicts):
    print(f"{number}: {why.title(verdict)}")

# %%
verdict = verdicts[pair]
Markdown(why.safe_sentence(verdict))

# %% [markdown]
# ## Causes and experiments
#
# What the step lost to what; what changed when a suspected cause was taken away.

# %%
display(why.cause_rows(verdict))
display(why.effect_rows(verdict))

# %% [markdown]
# ## The ledger
#
# Where the time of a step goes. The figure shows both policies by cause; the table below it joins
# them by layer: `difference_s` is the candidate minus the baseline, above 0 is slower.

# %%
if verdict.traced:
    display(HTML(figures[f"time_by_cause_{pair + 1}"].html()))
    display(breakdown.joined(verdict.baseline, verdict.candidate).head(25))
else:
    print(verdict.missing)

# %% [markdown]
# Every operation of the candidate's step, and what no rule could name:

# %%
if verdict.candidate is not None:
    rows = breakdown.rows(verdict.candidate)
    display(rows.head(40))
    display(rows[rows.cause == "unexplained"])

# %% [markdown]
# ## What the device would allow
#
# Each dot is a layer: how much arithmetic it does per byte, and how fast it did it. The lines are
# what this device reached in a large matrix product and in a copy.

# %%
if (name := f"roofline_by_layer_{pair + 1}") in figures:
    display(HTML(figures[name].html()))
    display(why.layer_rows(verdict, most=100))
display(why.ceiling_rows([verdict]))

# %% [markdown]
# ## Kernels
#
# On a GPU every kernel with its arithmetic and whether it ran on Tensor Cores; on a CPU what oneDNN
# says of its primitives.

# %%
if verdict.candidate is not None:
    for record in (verdict.baseline, verdict.candidate):
        display(Markdown(f"**{record['parameters']['policy']}**"))
        display(arithmetic.table(record).head(40), arithmetic.instructions(record).head(40))
