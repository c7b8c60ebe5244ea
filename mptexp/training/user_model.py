"""The user's own model, from the function that `module:function` names."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from mptexp.spec.run import Run
from mptexp.training.layers import ModelError


def probabilities(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Probabilities from the model that the user's module:function(shape, classes) returns.

    `shape` is that of an image in the run's data_format, (height, width, channels) unless Keras is
    told otherwise; values are from 0 to 1. Dropout, momentum and the like are the model's own.

    Raises:
        ModelError: where the function is absent or fails, or its model does not take the images or
            does not return float32 probabilities.
    """
    shape = tuple(x.shape[1:])
    call = f"{run.model}({shape}, {classes})"
    with _working_directory_first():
        try:
            network = _function(run.model)(shape, classes)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"model {call} raised {_first_line(error)}") from error
        if not isinstance(network, keras.Model):
            what = f"returned {_kind(network)}; it must return a keras.Model"
            raise ModelError(f"model {call} {what}")
        try:
            output = network(x)
        except Exception as error:
            why = f"does not take such images: {_first_line(error)}"
            raise ModelError(f"model {call} {why}") from error
    _check_output(call, output, classes)
    return output


@contextmanager
def _working_directory_first() -> Iterator[None]:
    """Imports from the working directory, which only a model of the user's own may do.

    Afterwards the directory is the last on the path, for what the model imports as it is trained:
    a numpy.py that happens to lie there takes no library's place.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _function(name: str) -> Callable[..., Any]:
    """The function that module:function names."""
    module_name, function_name = name.split(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"module {module_name} cannot be imported: {_first_line(error)}"
        raise ModelError(f"model {name}: {reason}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ModelError(f"model {name}: module {module_name} has no function {function_name}")
    return function


def _check_output(call: str, output: Any, classes: int) -> None:
    shape = getattr(output, "shape", None)
    if shape != (None, classes):
        what = f"output {_kind(output)}" if shape is None else f"output shape {shape}"
        raise ModelError(f"model {call} has {what}; it must be (None, {classes})")
    if output.dtype in ("float16", "bfloat16"):
        raise ModelError(
            f"model {call} gives probabilities in {output.dtype}; end it in "
            "Activation('softmax', dtype='float32')"
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
