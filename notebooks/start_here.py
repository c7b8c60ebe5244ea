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
# same for your own model and images.

# %% tags=["parameters"]
model: str = "keydana_cnn"  # a name such as mlp or resnet50, or module:function
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
import mptexp

mptexp.policies()

# %% [markdown]
# The notebook [numerics](numerics.py) shows what becomes of sums, gradients and weights in so few
# bits.
#
# ## Two policies side by side
#
# A `Sweep` is a question: what is the same in all runs, and what varies. Each run trains in a
# Jupyter kernel of its own, because a process serves one policy. A *block* times both, close
# together in time and in random order, so that a machine that gets slower meanwhile slows both.

# %%
question = mptexp.Sweep(
    defaults={
        "model": model,
        "dataset": dataset,
        "image_size": image_size,
        "batch_size": batch_size,
        "epochs": epochs,
        "batch_norm_momentum": 0.9,  # few steps: the usual 0.99 would average too slowly
    },
    matrix={"policy": [baseline, candidate]},
    repeats=blocks,
)
question

# %% [markdown]
# You may interrupt the next cell: finished runs are kept, and the cell goes on with the others.

# %%
runs = mptexp.run(question, out=out)
runs[["policy", "block", "status", "step_s", "images_per_s", "val_accuracy", "flags", "error"]]

# %% [markdown]
# Steps are timed by a clock that waits for the device; compilation and warm-up are left out. The
# settings that were effective are read back from device and model, not believed. A 16-bit type that
# the device has no instructions for is emulated: it works, slowly.

# %%
runs.groupby("policy")[["device", "emulated", "loss_scale", "default_policy"]].first()

# %% [markdown]
# ## Is the difference real?
#
# The speedup is baseline time over candidate time: above 1, the candidate is faster. It is formed
# within each block; its 95 % interval, `claim_low` to `claim_high`, comes from how much the blocks
# disagree, and holds for all comparisons of a sweep together. One that includes 1 is inconclusive.

# %%
columns = ["candidate", "baseline", "speedup", "claim_low", "claim_high", "blocks", "finding"]
runs.speedups[columns].round(2)

# %% alt="Milliseconds per step by block, a line per policy"
times = runs.pivot_table(index="block", columns="policy", values="step_s") * 1e3
if times.size:  # the column flags says why runs have no time
    times.plot(style="o-", xticks=times.index, ylim=(0, None), ylabel="ms per step")

# %% [markdown]
# The same as sentences, as a report opens:

# %%
mptexp.answer(out)

# %% [markdown]
# ## Where the time of a step went
#
# A *time breakdown* assigns each millisecond of a step to a cause. For it, one more run of each
# policy is made, some steps of which are traced after the timed ones:

# %%
why = mptexp.diagnose(question, out=out, traces_only=True)
why

# %%
why.time_by_cause()

# %% [markdown]
# Only matrix products gain much from 16 bits. Without `traces_only`, `mptexp.diagnose` also makes
# the ablations that the breakdown asks for, which prove a cause by taking it away; the notebook
# [diagnose](diagnose.py) looks into the result.
#
# ## Now your model
#
# A function that takes the shape of an image and the number of classes, in a file beside this
# notebook, such as `mine.py`:
#
# ```python
# from keras import Model, layers
#
# def build(shape, classes):
#     images = layers.Input(shape)                         # values from 0 to 1
#     x = layers.Conv2D(32, 3, activation="relu")(images)
#     x = layers.GlobalAveragePooling2D()(x)
#     x = layers.Dense(classes)(x)
#     return Model(images, layers.Activation("softmax", dtype="float32")(x))
# ```
#
# And images, in a folder per class. Then set `model = "mine:build"`,
# `dataset = "folder:~/images"` and `out = "reports/mine"` in the parameters cell at the top, and
# run the notebook again: it is then about yours. What it asks, as a params file:

# %%
from mptexp.spec import params

print(params.text(question))

# %% [markdown]
# Saved as `mine.yaml` beside `mine.py`, more axes are a line each (`batch_size: [32, 64, 128]`),
# and `mptexp run mine.yaml` in a terminal, in that folder, makes a report of it there.
