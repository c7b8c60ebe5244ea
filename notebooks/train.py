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
# # One run: a model trained in one precision
#
# This notebook trains one model on one dataset under one *precision policy*, and measures what
# the policy does to the time of a step, to memory and to accuracy. A sweep executes it once per
# point of a params file; by hand, change a parameter below and run it from top to bottom. What it
# measures goes into a record, from which the report is made.

# %% tags=["parameters"]
gpu_model: str = "local"  # device name; local: this machine's
backend: str = "tensorflow"  # Keras backend: tensorflow, jax, torch
frontend: str = "keras"  # keras: its fit or predict; native: a plain loop in JAX or PyTorch
replicas: int = 1  # devices that share a batch
cpu_isa: str = "default"  # most that oneDNN may use of a CPU, see docs/guide.md
memory_limit_gb = None  # more is out of memory; GB of 1e9 bytes
dataset: str = "digits"  # a built-in or tfds name, or folder, idx or text:PATH; see docs/guide.md
image_size: int = 32  # pixels, height and width
color_mode: str = "auto"  # auto, rgb, grayscale; auto: digits are grey, all else is rgb
validation_split: float = 0.2  # share kept for validation where the data has no split
on_broken: str = "skip"  # images that cannot be read: skip, refuse
synthetic_classes: int = 10  # of dataset synthetic
synthetic_length: int = 1024  # training images of dataset synthetic
sequence_length: int = 128  # tokens of a sequence, of a text
tokenizer: str = "bytes"  # of a text: bytes; bpe: byte pairs, trained on it
vocabulary: int = 1024  # tokens of tokenizer bpe
input_mode: str = "pipeline"  # pipeline; keydana: as its study; resident: a batch on the device
augmentation: str = "none"  # random, on the device: none, flip, crop, flip_crop
data_format: str = "auto"  # auto, channels_last, channels_first; auto: as Keras is configured
model: str = "keydana_cnn"  # a built-in name, see docs/guide.md, or module:function
from_logits: bool = False  # a model of yours ends in logits: softmax in float32 is added
width: float = 1.0  # multiplies the number of filters
width_multiple: int = 1  # numbers of filters are rounded up to a multiple of it
patch_size: int = 16  # of model vit, pixels
depth = None  # blocks of vit or gpt; None: as published, 12
tied_head: bool = True  # model gpt: the head has the weights of the embedding
normalization: str = "batch"  # batch: Keras's; fused: one operation, not in JAX; none: left out
float32_layers: str = ""  # names of layers that compute in float32, with commas
batch_norm_momentum: float = 0.99  # of the moving averages that validation uses
optimizer: str = "adam"  # adam, sgd (Nesterov momentum 0.9)
learning_rate: float = 0.001  # of the optimizer
learning_rate_decay: str = "none"  # none, cosine: to zero over all epochs
clip_norm = None  # most that the norm of all gradients together may have; None: no limit
policy: str = "float32"  # precision policy, see docs/guide.md
loss_scale = "auto"  # auto, dynamic, none or a number; auto: as Keras decides
propagation: str = "policy"  # emulated activation format, see docs/guide.md
weight_format: str = "policy"  # emulated storage format of weights, see docs/guide.md
rounding: str = "nearest"  # nearest, stochastic: to both emulated formats
jit: str = "auto"  # XLA: auto, on, off
deterministic: bool = False  # op determinism; turns XLA off in TensorFlow
steps_per_execution: int = 1  # steps that one call of the backend executes
profile: bool = False  # traces some steps after the timed ones
exponents_every: int = 0  # steps between histograms of exponents; 0: none
phase: str = "train"  # train, inference
batch_size: int = 32  # images or sequences per step, over all replicas
epochs: int = 20  # passes over the training data
max_steps = None  # the run ends after this many steps; None: no limit
target_ci = None  # the run ends once step_ci, see results.csv, is at most this
seed: int = 0  # weights, data order; block is added to it
block: int = 0  # which repeat this is

# %% [markdown]
# The parameters are checked as types; a wrong value ends here, before anything is computed. What
# differs from the defaults:

# %%
from mptexp import Run, training

run = Run.read(globals())
run

# %% [markdown]
# ## Precision
#
# The policy comes first: Keras reads its backend when it is imported, and each layer takes the
# policy when it is made. A process therefore serves one policy; for another one, restart the
# kernel.

# %%
device = training.use(run)
training.table(device)

# %% [markdown]
# ## Data
#
# Images travel as bytes (uint8) and become fractions in the model's first layer. Their order
# depends on the seed alone: every policy of a block gets the same batches.

# %% alt="Images of the first training batch with their labels"
images = training.load_images(run)
training.show_images(run, images)

# %% [markdown]
# ## Model
#
# The layers of the built model. Under a *mixed* policy layers compute in 16 bits
# (`compute_dtype`) while their weights stay in 32 (`variable_dtype`); the softmax at the end
# computes in 32 bits under every policy, because probabilities near zero need the range.

# %%
network = training.build(run, images)
training.dtypes(network)

# %% [markdown]
# ## Training, or inference
#
# Keras's own `fit` or, in the phase `inference`, `predict`; of `frontend` native a plain loop. The
# clock waits for the device at the edges of a *window* of steps, not at every step, so that it does
# not hold up what it measures.

# %%
outcome = training.execute(run, network, images, device)
outcome.summary.to_frame()

# %% [markdown]
# The settings that were effective, read back from the device and the compiled model, not from the
# parameters:

# %%
training.table(outcome.effective, "effective")

# %% [markdown]
# ## Step times
#
# Each point is a window. The first ones, with compilation and warm-up, are left out of the
# figures. A quiet machine gives a flat band.

# %% alt="Milliseconds per step for every window of the run, warm-up marked"
training.show_steps(outcome)

# %% [markdown]
# The device's sensors while these steps were timed, sampled every quarter of a second; what it
# does not report is left out. Other programs at work, or a throttled device, flag the run.

# %%
training.table(outcome.sensors, "sampled")

# %% [markdown]
# ## Where the time of a step went
#
# Of a run with `profile`: what the traced steps that followed the timed ones spent most on, per
# step. `mptexp diagnose` traces both policies and says why one was faster, or was not.

# %%
training.show_profile(outcome)

# %% [markdown]
# ## Learning, or latency
#
# Of a training, loss and accuracy: dashed is training, solid is validation. Training accuracy is
# the mean over an epoch while the weights change, so in the first epochs validation can be ahead of
# it. Of an inference, how long single batches took, from images on the host to probabilities.

# %% alt="Loss and accuracy by epoch, or the distribution of latencies"
training.show_learning(outcome)

# %% [markdown]
# ## The record
#
# Everything above, with every window and the environment, in one file.

# %%
path = training.save(outcome)
print(f"status {outcome.status}, written to {path.name}")
