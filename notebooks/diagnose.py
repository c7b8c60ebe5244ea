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
# A look into one diagnosed pair of policies, from records alone. `mptexp diagnose DIR` has traced
# some steps under both policies and made the ablations that the traces asked for. The report shows
# the same in fewer rows. Above each part stands what of it is not valid.

# %% tags=["parameters"]
sweep_dir: str = "reports/published/why-cpu"  # the directory of a diagnosed sweep
pair: int = 0  # which of its pairs of policies

# %% [markdown]
# ## The answer
#
# In one sentence, with the intervals of what it claims; then the pairs that the sweep holds.

# %%
from mptexp import api

explained = api.explain(sweep_dir, pair=pair)
explained

# %% [markdown]
# ## Causes
#
# What the step lost to what, what speaks for it, and what to change.

# %%
explained.causes()

# %% [markdown]
# ## Ablations
#
# What changed when a suspected cause was taken away. Each is a run of its own, compared with a run
# that differs in nothing else.

# %%
explained.ablations()

# %% [markdown]
# ## Where the time of a step goes
#
# Each millisecond of a step belongs to a cause: work, or a wait.

# %%
explained.time_by_cause()

# %% [markdown]
# The same by layer and cause, both policies joined. `difference_s` is the candidate minus the
# baseline: above 0, the candidate is slower.

# %%
explained.time_by_layer()

# %% [markdown]
# Every operation of the candidate's step, the longest first. A cell shows the ends of a long table;
# what is returned is a DataFrame with all of its rows.

# %%
explained.operations()

# %% [markdown]
# Those that no rule could name:

# %%
explained.operations("unexplained")

# %% [markdown]
# ## What the device would allow
#
# Each dot is a layer: how much arithmetic it does per byte, and how fast it did it. The lines are
# what this device reached in a large matrix product and in a copy.

# %%
explained.roofline()

# %%
explained.layers()

# %%
explained.peaks()

# %% [markdown]
# ## Kernels
#
# On a GPU every kernel of both policies, with its arithmetic and whether it ran on Tensor Cores; on
# a CPU what oneDNN says of its primitives.

# %%
explained.kernels()
