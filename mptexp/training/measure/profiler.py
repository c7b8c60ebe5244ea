"""Profiles some steps after the timed ones and puts into the record where their time went."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from mptexp.host.project import child_environment
from mptexp.records import timed_windows
from mptexp.spec.run import Run
from mptexp.traces import kineto, xplane
from mptexp.traces.xla_names import LAYER
from mptexp.training import costs, effective_arithmetic, onednn, precision
from mptexp.training.backends import backend
from mptexp.training.backends.shared_verbs import Node
from mptexp.training.measure import step_clock

TRACED_S = 1.0  # traced steps last about so long together
# At least: batches come in twos and threes where several are read at once.
MOST_STEPS, LEAST_STEPS = 100, 6
# Operations that TensorFlow computes on threads of which its profiler records nothing (its kernels
# derive from AsyncOpKernel and are no PyFunc; seen with TensorFlow 2.21 on a CPU).
UNRECORDED = re.compile(r"^CropAndResize")
UNREAD = "xprof was not installed; mptexp traces reads the trace that was kept"


class Capture(keras.callbacks.Callback):
    """Traces steps of one epoch once the clock has ended, then ends the training.

    The steps follow one another between two synchronizations of the device, each with a marker.
    """

    def __init__(self, clock: step_clock.StepClock, run: Run, folder: Path) -> None:
        super().__init__()
        self.clock = clock
        self.run = run
        self.folder = folder
        self.backend = backend(run.backend)
        self.steps = 0
        self.traced = False
        self._first: int | None = None
        self._marker = ExitStack()

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self.clock.ended_by == "epochs" or self.model.stop_training:
            return
        if self._first is None:
            if not self._fits(batch):
                return
            self.clock.synchronize(self.model)
            self.backend.start_trace(self.folder)
            self._first = batch
        elif batch - self._first >= self.steps:
            self.clock.synchronize(self.model)
            self._marker.close()
            self.backend.stop_trace()
            self.traced = self.model.stop_training = True
            return
        self._marker.close()
        self._marker.enter_context(self.backend.step_marker(batch))

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Ends a trace that the training cut off."""
        if self._first is not None and not self.traced:
            self._marker.close()
            self.backend.stop_trace()

    def _fits(self, batch: int) -> bool:
        """Whether the steps to trace lie within this epoch; decides how many they are."""
        epoch = (self.params.get("steps") or 0) - 1
        usual = timed_windows.timing(self.clock.windows)["step_s"]
        wanted = min(MOST_STEPS, max(LEAST_STEPS, round(TRACED_S / usual)), epoch)
        every = self.run.steps_per_execution
        self.steps = max(wanted // every, 1) * every
        return batch + self.steps <= epoch


@contextmanager
def named(model: keras.Model) -> Iterator[set[str]]:
    """Ends every layer's name so that a trace shows it, whatever the framework appends to it.

    Yields:
        The layers without weights that have added to the loss so far.
    """
    layers = [leaf.layer for leaf in costs.leaves(model)]
    adding: set[str] = set()
    for layer in layers:
        if not costs.parameters(layer):
            # Past Keras's own __setattr__, which tracks what a layer is given.
            vars(layer)["add_loss"] = partial(_add_loss, adding, layer.name, layer.add_loss)
        layer.name += LAYER
    try:
        with _scoped(layers):
            yield adding
    finally:
        for layer in layers:
            vars(layer).pop("add_loss", None)
            layer.name = layer.name.removesuffix(LAYER)


@contextmanager
def _scoped(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Puts what a layer does before its `call`, the casts of its input, into its scope too."""
    call, own = keras.layers.Layer.__call__, {id(layer) for layer in layers}

    def scoped(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if id(layer) not in own:
            return call(layer, *args, **kwargs)
        with keras.name_scope(layer.name, caller=layer):  # Keras does not open it once more
            return call(layer, *args, **kwargs)

    keras.layers.Layer.__call__ = scoped
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = call


def _add_loss(adding: set[str], name: str, add: Callable[[Any], None], loss: Any) -> None:
    """`Layer.add_loss` that also says which layer it was."""
    adding.add(name)
    add(loss)


def captured(
    run: Run, model: keras.Model, clock: step_clock.StepClock, fit: Callable[..., None]
) -> tuple[dict[str, Any], bytes]:
    """Calls `fit`, that of a Trainer, with the callbacks of a profiled run.

    Returns:
        The record's `profile`: what Trace.profile gives, or missing (why there is no such table).
        And the compressed trace, where it could not be read here; `profile` then has under trace
        what reading it takes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        capture = Capture(clock, run, folder)
        with named(model) as adding:
            fit(clock, [capture])
            nodes = effective_arithmetic.graph(run, model)
        if not capture.traced:
            return {"missing": "the training ended before steps could be traced"}, b""
        own = folder / kineto.OWN_FILE
        if own.exists():
            timed_s = timed_windows.timing(clock.windows)["step_s"]
            return kineto.read_own(own, adding).profile(timed_s), b""
        how = _how(run, model)
        how |= {"loss_layers": sorted(adding), "sums": effective_arithmetic.sums(nodes)}
        how |= {"recomputed": effective_arithmetic.recomputed(nodes)}
        wide: dict[str, Any] = {"float64_layers": effective_arithmetic.layers_in_float64(nodes)}
        if nodes:  # else it is not known
            wide["wide_products"] = effective_arithmetic.wide_products(nodes, run.policy)
        file = xplane.latest(folder)
        if file is None:
            return {"missing": "the profiler left no trace"}, b""
        if importlib.util.find_spec("xprof") is None:
            return {"missing": UNREAD, "trace": how, **wide}, xplane.pack(file)
        try:
            trace = xplane.read(file, **how)
        except Exception as error:  # xprof fails in ways of its own; the timings are good
            why = f"xprof could not read the trace, which was kept: {error}"
            return {"missing": why, "trace": how, **wide}, xplane.pack(file)
    profile = trace.profile(timed_windows.timing(clock.windows)["step_s"])
    return profile | {"rows": _with_unrecorded(profile, nodes)} | wide, b""


def _with_unrecorded(profile: dict[str, Any], nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """The rows of a profile in which what looks like a wait is an operation without an event."""
    unrecorded = next((node for node in nodes if UNRECORDED.match(node.kind)), None)
    if unrecorded is None or profile["device"] != "cpu":
        return list(profile["rows"])
    layers = re.findall(rf"([^/]+){re.escape(LAYER)}", unrecorded.name)
    ran = {"state": "op", "layer": "".join(layers[-1:]), "part": "forward", "op": unrecorded.kind}
    return [row | ran if row["state"] == "host" else row for row in profile["rows"]]


def _how(run: Run, model: keras.Model) -> dict[str, Any]:
    """What xplane.read has to know of the run."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    scaled = optimizer is not inner
    return {"optimizers": [inner.name], "scaled": scaled, "every": run.steps_per_execution}


# --- what oneDNN ran -----------------------------------------------------------------------------

VERBOSE_STEPS = 3
BETWEEN = "mptexp: warm"


def primitives(run: Run, model: keras.Model) -> list[dict[str, Any]]:
    """What oneDNN ran in a step, by its own log; empty where it was not in use.

    A child process trains a few steps in oneDNN's verbose mode, which would disturb what is timed.
    """
    if not backend(run.backend).ONEDNN_PROGRAM:
        return []
    one = {"replicas": 1, "batch_size": run.batch_size // run.replicas}  # the others do the same
    task = {"run": run.model_dump() | one, "classes": model.outputs[0].shape[-1]}
    task["shape"] = costs.input_shape(model)
    done = subprocess.run(
        [sys.executable, "-m", "mptexp.training.measure.profiler", json.dumps(task)],
        env=child_environment() | {"ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    log = done.stdout.partition(BETWEEN)[2].splitlines()
    return onednn.primitives(log, VERBOSE_STEPS)


def main() -> None:
    """The child of `primitives`: trains the run's model on noise, a line between warm and rest."""
    task = json.loads(sys.argv[1])
    run = Run(**task["run"])
    precision.use(run)
    from mptexp.training import models  # layers take the policy that is set now

    model = models.build(run, tuple(task["shape"]), task["classes"])
    precision.compile_model(model, run)
    scaled = run.input_mode == "keydana"
    x = np.random.default_rng(0).integers(0, 256, (run.batch_size, *task["shape"]), np.uint8)
    y = np.zeros(run.batch_size, "int64")
    for step in range(1 + VERBOSE_STEPS):
        model.train_on_batch(x / np.float32(255) if scaled else x, y)
        if step == 0:
            print(f"\n{BETWEEN}", flush=True)


if __name__ == "__main__":
    main()
