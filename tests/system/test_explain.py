"""`mptexp explain` on traces that frameworks write on this CPU, as a user runs it."""

import json

import pytest
from builders import KINETO, kineto_step
from forked import python
from support import mptexp

import mptexp as package

KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np

class Profiles(keras.callbacks.TensorBoard):
    # Without the scalars, which need the package tensorboard.
    def on_train_batch_end(self, batch, logs=None): super().on_train_batch_end(batch)
    def _log_epoch_metrics(self, epoch, logs): pass

model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(8, 3, name="stem"),
                          keras.layers.BatchNormalization(), keras.layers.Flatten(),
                          keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.random.rand(256, 16, 16, 3), np.zeros(256)
model.fit(x, y, batch_size=32, verbose=0, callbacks=[Profiles("logs", profile_batch=2)])
"""
JAX = """
import jax, jax.numpy as jnp
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w))
w, x = jnp.ones((256, 256)), jnp.ones((64, 256))
w = step(w, x).block_until_ready()
with jax.profiler.trace("profile"):
    for _ in range(5):
        w = step(w, x).block_until_ready()
"""
TORCH = """
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(8 * 14 * 14, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(schedule=schedule(wait=1, warmup=1, active=3), with_stack=True,
             on_trace_ready=tensorboard_trace_handler("profile"),
             activities=[ProfilerActivity.CPU]) as recorded:
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.rand(16, 3, 16, 16)),
                                                 torch.zeros(16, dtype=torch.long))
        loss.backward()
        optimizer.step()
        recorded.step()
"""


def traced(backend, program, cwd):
    """Runs a program of a user's in a child process, which leaves a trace."""
    done = python(program, {"backend": backend}, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]


def explained(cwd, *words):
    done = mptexp("explain", *words, "--format", "json", cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def kineto_file(path, steps=2):
    events = [event for step in range(steps) for event in kineto_step(KINETO[1], step)]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_what_keras_s_tensorboard_callback_leaves(tmp_path):
    traced("tensorflow", KERAS, tmp_path)
    (trace,) = explained(tmp_path, "logs")["traces"]
    assert (trace["framework"], trace["devices"], trace["steps"]) == ("TensorFlow", ["CPU"], 1)
    assert trace["layer_share"] > 0.5  # of one step, which other programs make longer elsewhere
    assert trace["unexplained_share"] < 0.03
    assert {"matrix", "optimizer"} <= {row["cause"] for row in trace["rows"]}


def test_what_jax_s_profiler_leaves(tmp_path):
    traced("jax", JAX, tmp_path)
    (trace,) = explained(tmp_path, "profile")["traces"]
    assert trace["framework"] == "JAX"
    assert 1 <= trace["steps"] <= 5  # on a busy machine first ones are taken for warm-up


def test_what_pytorch_s_profiler_leaves(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    traced("torch", TORCH, tmp_path)
    (trace,) = explained(tmp_path, "profile")["traces"]
    assert (trace["framework"], trace["devices"], trace["steps"]) == ("PyTorch", ["CPU"], 3)
    assert trace["layer_share"] > 0.5
    assert {"matrix", "optimizer"} <= {row["cause"] for row in trace["rows"]}


def test_two_traces_in_the_terminal_and_as_a_page(tmp_path):
    for name, steps in (("before.json", 2), ("after.json", 3)):
        kineto_file(tmp_path / name, steps)
    done = mptexp("explain", "before.json", "after.json", "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Within these recordings after is 1.00× as fast")
    assert "Where the time of a step goes" in done.stdout
    assert "What to try" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.json"], "missing.json: cannot be read: there is no such file"),
        (["."], "holds no trace; allowed:"),
        (["cut.json"], "cut.json: cannot be read: it was cut off"),
        (["a.json", "a.json"], "a.json and a.json hold the same recording; give two"),
        (["a.json", "--format", "xml"], "--format xml: unknown; allowed: table, json"),
        (["a.json", "--out", "folder"], "--out folder: is a directory"),
        (["a.json", "--out", "cut.json"], "--out cut.json: is there already and is no HTML page"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, words, sentence):
    (tmp_path / "folder").mkdir()
    if words != ["."]:
        kineto_file(tmp_path / "a.json")
        (tmp_path / "cut.json").write_text((tmp_path / "a.json").read_text()[:500])
    done = mptexp("explain", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_cell_shows_the_verdict_of_a_trace(tmp_path):
    shown = package.explain(kineto_file(tmp_path / "a.json"))
    assert "bounds this training" in shown._repr_markdown_()
    assert "Layers" in shown.tables()
    assert set(shown.operations("matrix").cause) == {"matrix"}
    both = package.explain(tmp_path / "a.json", kineto_file(tmp_path / "b.json", 3))
    assert both.content()["speedup"] == pytest.approx(1)
