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
# # Start here
#
# What does reduced precision buy on this machine? Five minutes, from top to bottom: what a
# precision policy is, two of them timed side by side, where the time of a step goes, and then the
# same for your own model and pictures.

# %% tags=["parameters"]
model: str = "keydana_cnn"  # a built-in name, see docs/guide.md, or module:function
dataset: str = "digits"  # digits, folder:PATH or a name of tensorflow-datasets
image_size: int = 32  # pixels, height and width
baseline: str = "float32"  # the policy to compare with
candidate: str = "mixed_bfloat16"  # the policy in question
batch_size: int = 32  # images per step
epochs: int = 4  # passes over the training images
blocks: int = 3  # how often both are timed; fewer than three give no interval
out: str = "reports/start_here"  # for the results; another one for another question

# %% [markdown]
# ## A policy is two dtypes
#
# Under a *mixed* policy Keras's layers compute in 16 bits and keep their weights in 32. What 16
# bits mean differs: float16 has the finer steps, bfloat16 the range of float32. A gradient below
# float16's smallest number becomes zero, which is why `mixed_float16` scales the loss.

# %%
import os

import pandas as pd

from mptexp.spec import imports
from mptexp.spec.formats import FORMATS

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with imports.quiet():
    import keras

policies = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
pairs = {name: keras.DTypePolicy(name) for name in policies}
computes = [FORMATS[pair.compute_dtype] for pair in pairs.values()]
pd.DataFrame(
    {
        "layers compute in": [pair.compute_dtype for pair in pairs.values()],
        "weights in": [pair.variable_dtype for pair in pairs.values()],
        "first number above 1": [1 + found.spacing(1) for found in computes],
        "largest number": [found.largest for found in computes],
        "smallest number": [found.smallest_subnormal for found in computes],
    },
    index=policies,
).style.format("{:.7g}", subset=["first number above 1", "largest number", "smallest number"])

# %% [markdown]
# The notebook [numerics](numerics.py) shows what becomes of sums, gradients and weights in so few
# bits.
#
# ## Two policies side by side
#
# A `Sweep` is a question: what is the same in all runs, and what varies. Each run trains in a
# kernel of its own, because a process serves one policy. A *block* times both, close together in
# time and in random order, so that a machine that gets slower meanwhile slows both.

# %%
from mptexp import Sweep

same = {"model": model, "dataset": dataset, "image_size": image_size}
same |= {"batch_size": batch_size, "epochs": epochs, "batch_norm_momentum": 0.9}
question = Sweep(defaults=same, matrix={"policy": [baseline, candidate]}, repeats=blocks)
question

# %% [markdown]
# You may interrupt the next cell: finished runs are kept, and the cell goes on with the others.

# %%
import mptexp

runs = mptexp.run(question, out=out)
runs[["policy", "block", "status", "step_s", "images_per_s", "val_accuracy", "error"]]

# %% [markdown]
# Steps are timed by a clock that waits for the device; compilation and warm-up are left out. What
# was in force is read back from device and model, not believed. A 16-bit type that the device has
# no instructions for is emulated: it works, slowly.

# %%
runs.groupby("policy")[["device", "emulated", "loss_scale", "default_policy"]].first()

# %% [markdown]
# ## Is the difference real?
#
# The speedup is baseline time over candidate time: above 1, the candidate is faster. It is formed
# within each block; its 95 % interval comes from how much the blocks disagree. An interval that
# holds 1 says: not decided here.

# %%
speedups = mptexp.load(out, "speedups")
told = ["candidate", "baseline", "speedup", "low", "high", "blocks"]
speedups[told].style.format(precision=2)

# %% alt="Milliseconds per step by block, a line per policy"
import matplotlib.pyplot as plt

from mptexp.report.figures import style

figure, axis = plt.subplots(figsize=(8, 2.8))
for policy, timed in runs[runs.status == "ok"].groupby("policy"):
    look = {"color": style.COLOURS[policy], "marker": style.MARKERS[policy]}
    axis.plot(timed.block.astype(str), timed.step_s * 1e3, label=policy, **look)
axis.set(xlabel="block", ylabel="ms per step", ylim=(0, None))
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# The same as sentences, as a report opens:

# %%
from IPython.display import Markdown

from mptexp import api
from mptexp.analysis import sweep_tables
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import findings

tables = sweep_tables.load(SweepDir(api.resolved(out)))
Markdown("\n\n".join(findings.answer(tables)))

# %% [markdown]
# ## Where the time of a step went
#
# A *time breakdown* books each millisecond of a step on a cause. One more run of the candidate,
# some steps of which are traced after the timed ones:

# %%
from mptexp.diagnosis import breakdown, causes

traced = question.model_copy(
    update={"defaults": same | {"profile": True}, "matrix": {"policy": [candidate]}, "repeats": 1}
)
(run_id,) = mptexp.run(traced, out=f"{out}_traced").run_id
step = mptexp.record(f"{out}_traced", run_id)
missing = step["error"] or step["profile"]["missing"]
print(f"Not traced: {missing}" if missing else f"{step['profile']['steps']} steps were traced.")

# %% alt="Milliseconds of a step of the candidate by cause"
if not missing:
    ms = breakdown.by_cause(step) * 1e3
    ms = ms[ms > 0].rename(index=causes.LABELS)
    figure, axis = plt.subplots(figsize=(8, 0.6 + 0.35 * len(ms)))
    axis.barh(ms.index, ms, color=style.COLOURS[candidate])
    axis.invert_yaxis()
    axis.set(xlabel=f"ms of a step under {candidate}")
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.show()

# %% [markdown]
# Only work on matrices gains much from 16 bits. `mptexp diagnose` makes both policies' breakdowns
# and the ablations that they ask for, and names the reason in a sentence; the notebook
# [diagnose](diagnose.py) looks into its result.
#
# ## Now your model
#
# A function that takes the shape of a picture and the number of classes, in a file beside this
# notebook, such as `mine.py`:
#
# ```python
# from keras import Model, layers
#
# def build(shape, classes):
#     pictures = layers.Input(shape)                       # values from 0 to 1
#     x = layers.Conv2D(32, 3, activation="relu")(pictures)
#     x = layers.GlobalAveragePooling2D()(x)
#     x = layers.Dense(classes)(x)
#     return Model(pictures, layers.Activation("softmax", dtype="float32")(x))
# ```
#
# And pictures, in a folder per class. Then set `model = "mine:build"`,
# `dataset = "folder:~/pictures"` and `out = "reports/mine"` in the parameters cell at the top, and
# run the notebook again: it is then about yours. What it asks, as a params file:

# %%
from mptexp.spec import params

print(params.text(question))

# %% [markdown]
# Saved as `params/mine.yaml`, more axes are a line each (`batch_size: [32, 64, 128]`), and
# `mptexp run params/mine.yaml` in a terminal makes a report of it.
