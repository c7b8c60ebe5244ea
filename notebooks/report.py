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

# %% [markdown] tags=["remove-cell"]
# # The report of a sweep
#
# Each cell shows one section, made from the records of the runs alone; a section whose data the
# sweep does not have shows nothing. `mptexp report` executes this notebook and publishes what it
# shows as one page, without this text.

# %% tags=["parameters"]
sweep_dir: str = "reports/quickstart"  # the directory of a sweep

# %%
from mptexp import report

sweep = report.load(sweep_dir)

# %%
# The question of the sweep, and its answer: a sentence for each policy, with its interval.
report.show_answer(sweep)

# %%
# The headline table: step time, speedup, accuracy and memory of each policy. Its sections and
# those below show nothing where the sweep has no such data.
report.show_headline(sweep)

# %%
# The speedups drawn, a figure per baseline: what lies above the line is faster.
report.show_speedups(sweep)

# %%
# What else is known of the same rows: spread, achieved arithmetic, time to accuracy, cost.
report.show_details(sweep)

# %%
# Images per second by batch size, and the points at which memory ran out.
report.show_throughput(sweep)

# %%
# The step time of every single run, which tells how steady the machine was.
report.show_step_times(sweep)

# %%
# Why a policy is faster or is not: causes, ablations, time breakdown and roofline of each pair.
report.show_reasons(sweep)

# %%
# Latency of inference, batch by batch.
report.show_latency(sweep)

# %%
# Accuracy and loss, and whether the policies' accuracies differ.
report.show_learning(sweep)

# %%
# Learning with formats that the device does not have, emulated.
report.show_low_precision(sweep)

# %%
# Dynamic range: which values of a training a 16-bit format loses.
report.show_dynamic_range(sweep)

# %%
# Which loss scales a training bears, and how the dynamic one moves.
report.show_loss_scales(sweep)

# %%
# Every policy at its own best batch size: a smaller format leaves room for a larger batch.
report.show_best_batches(sweep)

# %%
# Devices, replicas and frameworks side by side.
report.show_scaling(sweep)

# %%
# Peak memory by batch size.
report.show_memory(sweep)

# %%
# What the device's sensors read while steps were timed, and what interfered.
report.show_sensors(sweep)

# %%
# Numbers that others published for these models, beside the measured ones.
report.show_published(sweep)

# %%
# What studies claim of mixed precision, and whether this sweep confirms it.
report.show_claims(sweep)

# %%
# Runs without a result are part of the result.
report.show_failures(sweep)

# %%
# Every run, linked to its executed notebook and to its record.
report.show_runs(sweep)

# %% [markdown]
# ## What is timed
#
# The steps of Keras's `fit`, of its `predict` in an inference, or of a plain loop, from the
# beginning of one step to the beginning of a later one, so with the wait for data. The clock waits
# for the device at the edges of a window of steps (about 0.2 s), not at every step. Compilation and
# warm-up are found in the series and left out; so is the last step of an epoch, and validation. A
# run's figure is its median window. A ratio is formed between runs of the same block, which are
# close together in time, and is the geometric mean over blocks. A table's times and rates are
# geometric means over the repeats of a row: where two rows have the same blocks, the ratio is their
# quotient. Its interval is Student's *t* on the logarithms of the blocks' ratios, with a variance
# that leans on those of the sweep's other comparisons (G. K. Smyth, 2004), and so wide that it
# holds for all of them together (Šidák). It needs at least three blocks. A ratio without such an
# interval, or whose interval includes 1, is said without a direction: *0.85× as fast*.

# %%
# Device, machine and software of the runs, and what makes the sweep less certain.
report.show_environment(sweep)

# %%
# How to measure all this again, and what it costs.
report.show_reproduce(sweep)
