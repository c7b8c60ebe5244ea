"""The user's own model, from the function that `module:function` names."""

import importlib
import sys
from collections.abc import Callable
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
    try:
        network = _function(run.model)(shape, classes)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"model {call} raised {_first_line(error)}") from error
    if not isinstance(network, keras.Model):
        raise ModelError(f"model {call} returned {_kind(network)}; it must return a keras.Model")
    try:
        output = network(x)
    except Exception as error:
        raise ModelError(f"model {call} does not take such images: {_first_line(error)}") from error
    _check_output(call, output, classes)
    return output


def _function(name: str) -> Callable[..., Any]:
    """The function that module:function names; the current directory is searched first."""
    module_name, function_name = name.split(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"module {module_name} cannot be imported: {_first_line(error)}"
        raise ModelError(f"model {name}: {reason}") from error
    finally:
        sys.path.remove(here)
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
