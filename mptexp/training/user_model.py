"""The user's own model, from the function that `module:function` names."""

import importlib
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from mptexp.spec import tasks as spec_tasks
from mptexp.spec.run import Run
from mptexp.training import costs, identity, task_models
from mptexp.training.layers import ModelError
from mptexp.training.numerics import emulation


def probabilities(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Probabilities from the model that the user's module:function(shape, classes) returns.

    `shape` is that of an image in the run's data_format, (height, width, channels) unless Keras is
    told otherwise; values are from 0 to 1. Of a text it is (sequence_length,), and values are
    numbers of tokens; there is a distribution over the tokens for each place. Dropout, momentum and
    the like are the model's own.

    Raises:
        ModelError: where the function is absent or fails, or its model does not take the images or
            does not return float32 probabilities; where its source has changed since it was
            imported.
    """
    if name := identity.edited(run.model):
        raise ModelError(
            f"model {run.model}: {name} has changed since this kernel imported it, and the old "
            "code would run; restart the kernel"
        )
    shape = tuple(x.shape[1:])
    call = f"{run.model}({shape}, {classes})"
    with _working_directory_first():
        try:
            network = _function(run.model)(shape, classes)
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(f"model {call} raised {_told(error)}") from error
        if not isinstance(network, keras.Model):
            what = f"returned {_kind(network)}; it must return a keras.Model"
            raise ModelError(f"model {call} {what}")
        _check_training(call, network)
        try:
            output = network(x)
        except Exception as error:
            why = f"does not take such inputs: {_told(error)}"
            raise ModelError(f"model {call} {why}") from error
    identity.model_source(run.model)  # read now: whoever edits it later changes nothing that runs
    _check_output(run, call, output, (None, *task_models.of(run).output(shape, classes)))
    # As behind the models here: probabilities near zero need float32's range.
    return layers.Activation("softmax", dtype="float32")(output) if run.from_logits else output


@contextmanager
def _working_directory_first() -> Iterator[None]:
    """Imports from the working directory, which only a model of the user's own may do.

    Afterwards the directory is the last on the path, for what the model imports as it is trained:
    a numpy.py that happens to lie there takes no library's place. No bytecode is left there: of a
    file edited within its second, to the same size, the old one would be what runs.
    """
    here, written = str(Path.cwd()), sys.dont_write_bytecode
    sys.path.insert(0, here)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = written
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _function(name: str) -> Callable[..., Any]:
    """The function that module:function names."""
    module_name, function_name = name.split(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"module {module_name} cannot be imported: {_told(error)}"
        raise ModelError(f"model {name}: {reason}{_searched(module_name, error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        file = getattr(module, "__file__", None)
        which = f"module {module_name} ({file or 'built in'})"
        raise ModelError(f"model {name}: {which} has no function {function_name}")
    return function


def _searched(module_name: str, error: BaseException) -> str:
    """Where a module that is absent itself, not one that it imports, was looked for."""
    top = module_name.partition(".")[0]
    if module_name.endswith(".py"):
        return f"; a module is named without .py: {module_name.removesuffix('.py')}"
    if not (isinstance(error, ModuleNotFoundError) and error.name in (top, module_name)):
        return ""
    return f"; searched: {Path.cwd()}; run mptexp in the directory that holds {top}"


# The methods of a keras.Model that are never called, since it becomes a layer of the run's model.
OF_TRAINING = ("train_step", "test_step", "compute_loss", "compute_metrics")


def _check_training(call: str, network: keras.Model) -> None:
    """Refuses a model that says how it is trained itself, since that would be left out unseen."""
    own = [x for x in OF_TRAINING if getattr(type(network), x) is not getattr(keras.Model, x)]
    if own:
        raise ModelError(
            f"model {call} has {' and '.join(own)} of its own, which would not be used: every "
            "model is trained as the run says; return a keras.Model that leaves them to Keras"
        )
    if network.compiled:
        raise ModelError(
            f"model {call} comes compiled, and its optimizer and loss would not be used; leave out "
            "compile(), or give load_model compile=False, and set optimizer and learning_rate in "
            "the params file"
        )


def _check_output(run: Run, call: str, output: Any, wanted: tuple[int | None, ...]) -> None:
    shape = getattr(output, "shape", None)
    if shape != wanted:
        what = f"output {_kind(output)}" if shape is None else f"output shape {shape}"
        raise ModelError(f"model {call} has {what}; it must be {wanted}")
    if output.dtype in ("float16", "bfloat16") and not run.from_logits:
        raise ModelError(
            f"model {call} gives probabilities in {output.dtype}; end it in {HEAD}, or set "
            "from_logits true where these are logits"
        )


HEAD = "Activation('softmax', dtype='float32')"
SUM_WITHIN = 0.01  # of 1: float32's softmax is within 1e-5, a head of something else is not


def check_values(run: Run, model: keras.Model) -> None:
    """Refuses a model whose output is no distribution over the classes, on random images.

    It is asked as built, and once more with other weights in its last layer: before training, two
    sigmoids give about 0.5 and 0.5. The model must not be used afterwards. Of a text also one that
    knows the tokens that it predicts.

    Raises:
        ModelError: with what to add.
    """
    looked_at = model
    if run.from_logits:
        _, (logits,) = emulation.last(model.outputs[0])  # what the softmax at the end is given
        looked_at = keras.Model(model.input, logits)
    rows = _outputs(looked_at)
    within, sums = bool(((rows >= 0) & (rows <= 1)).all()), rows.sum(axis=-1)
    distribution = within and bool((abs(sums - 1) < SUM_WITHIN).all())
    if distribution == run.from_logits and len(rows):
        raise ModelError(f"model {run.model} gives {_remedy(run, within, rows, sums)}")
    # An emulated range that a whole tensor shares depends on later tokens, and gives none away.
    reads = spec_tasks.of(run.dataset) is spec_tasks.TOKENS and run.propagation == "policy"
    if reads and _sees_later(model):
        raise ModelError(
            f"model {run.model} sees the tokens that it predicts: what it gives at a place changes "
            "with those that follow, so that its perplexity would mean nothing; hide them, as "
            "causal attention does"
        )


def _sees_later(model: keras.Model) -> bool:
    """Whether predictions up to a place change with what follows it, at any of a few places.

    The first one, an odd one and the middle: pools and chunks end at even places. Weights are other
    ones than at the beginning: training opens what a weight of zero shuts. Not where predictions
    differ between two calls that draw alike, which says nothing.
    """
    length, tokens = model.input_shape[1], model.output_shape[-1]
    text = np.random.default_rng(1).integers(0, tokens, (8, length)).astype("int32")
    _move_weights(model)
    given = _drawing_alike(model)
    first, again = given(text), given(text)
    if not np.array_equal(first, again, equal_nan=True):
        return False
    for place in {1, length // 3 | 1, length // 2} - {0}:
        other = np.concatenate([text[:, :place], (text[:, place:] + 1) % tokens], axis=1)
        if not np.array_equal(first[:, :place], given(other)[:, :place], equal_nan=True):
            return True
    return False


def _move_weights(model: keras.Model) -> None:
    """Adds random numbers to all that training changes, so that no factor of zero hides a path.

    What it does not change stays as it is, for it may be the mask itself. Biases, scales and gates
    grow, and stay positive where they were; kernels get as much as LeCun's initial ones hold, with
    which what they give does not explode over many layers.
    """
    random = np.random.default_rng(2)
    for weight in model.trainable_weights:
        fan_in = math.prod(weight.shape[:-1])
        vector = len(weight.shape) < 2
        normal = random.standard_normal(weight.shape, "float32")
        added = random.uniform(0.25, 0.75, weight.shape) if vector else normal / fan_in**0.5
        weight.assign(weight + keras.ops.cast(added, weight.dtype))


def _drawing_alike(model: keras.Model) -> Callable[[np.ndarray], np.ndarray]:
    """The model as a function that draws the same random numbers, from the same state, each time.

    A model that adds noise whenever it is called is asked like any other.
    """
    kept = [(v, keras.ops.copy(v.value)) for v in model.non_trainable_variables]

    def given(text: np.ndarray) -> np.ndarray:
        keras.utils.set_random_seed(0)
        for variable, value in kept:
            variable.assign(value)
        return keras.ops.convert_to_numpy(model(text))

    return given


def _outputs(model: keras.Model) -> np.ndarray:
    """What a model gives for random images, before and after its last weights were changed."""
    random, (entry,) = np.random.default_rng(0), model.inputs
    most = min(256, model.output_shape[-1]) if entry.dtype == "int32" else 256
    batch = random.integers(0, most, (8, *entry.shape[1:])).astype(entry.dtype)
    weighted = [leaf.layer for leaf in costs.leaves(model) if leaf.layer.trainable_weights]
    parts = [model(batch)]
    for weight in weighted[-1].trainable_weights if weighted else ():
        weight.assign(weight + random.normal(size=weight.shape).astype("float32"))
    parts.append(model(batch))
    rows = np.concatenate([keras.ops.convert_to_numpy(part) for part in parts]).astype("float64")
    rows = rows.reshape(-1, rows.shape[-1])
    return rows[np.isfinite(rows).all(axis=1)]


def _remedy(run: Run, within: bool, rows: np.ndarray, sums: np.ndarray) -> str:
    if run.from_logits:
        return "probabilities, to which from_logits adds a second softmax; leave from_logits out"
    if within:
        between = f"whose sums over the classes are {sums.min():.3g} to {sums.max():.3g}"
        return f"values from 0 to 1 {between}, not 1; end it in {HEAD}"
    values = f"values from {rows.min():.3g} to {rows.max():.3g}, not probabilities"
    return f"{values}; end it in {HEAD}, or set from_logits true"


def _told(error: BaseException) -> str:
    """An error's first line, and where in the user's own files it arose."""
    lines = str(error).strip().splitlines()
    told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    places = [(f.filename, f.lineno) for f in frames if not f.filename.startswith("<")]  # frozen
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    own = [(Path(name), line) for name, line in places if identity.is_users(Path(name).resolve())]
    return f"{told} ({own[-1][0].name}, line {own[-1][1]})" if own else told


def _kind(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    return f"a{'n' * name.startswith(tuple('aeio'))} {name}"
