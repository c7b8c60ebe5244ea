"""How frameworks are imported: without their greetings, and without what they do not need."""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from typing import Any

from mptexp.host.project import PACKAGE


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the greetings that frameworks write to standard error when they are imported.

    They come from C++ before any log level is heeded, as do xprof's messages. Exceptions pass;
    `mptexp doctor` says what is missing on a machine.
    """
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere:
        standard_error = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


@contextmanager
def without(package: str) -> Iterator[None]:
    """Hides an installed package from what would import it, slowly, only because it is there."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports without garbage collection, nor is what they bring looked through by later ones.

    Of a framework it is a million objects, which live as long as the process: looking through them
    again and again takes a quarter of the time of importing TensorFlow.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()  # what is garbage by now would not be freed any more
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def framework(name: str) -> Iterator[None]:
    """Imports a framework, without what takes a third to half of the time.

    Where it is imported already, only its greetings are left out: who has models by now would not
    get rid of them any more.
    """
    with ExitStack() as hidden:
        hidden.enter_context(quiet())
        if name in sys.modules:
            yield
            return
        hidden.enter_context(uncollected())
        # Keras has wrappers for scikit-learn, TensorFlow Lite one for JAX: a second each. JAX may
        # be Keras's backend, which a file of the user's names where the environment does not.
        hidden.enter_context(without("sklearn"))
        if os.environ.get("KERAS_BACKEND", "jax") != "jax":
            hidden.enter_context(without("jax"))
        yield


def matplotlib_from_elsewhere() -> None:
    """Imports matplotlib, unless it is imported, with no settings from the working directory.

    A `matplotlibrc` there would be the first that it reads: another backend, or texts set by TeX.
    """
    with chdir(PACKAGE):
        importlib.import_module("matplotlib")


@contextmanager
def for_a_report() -> Iterator[None]:
    """Within it, and in processes forked there, a report is made.

    Texts in pandas' tables are Python's: of tables of a few rows Arrow's take a seventh of the time
    of a report. What somebody's notebook has set is as before afterwards.
    """
    matplotlib_from_elsewhere()
    pandas = importlib.import_module("pandas")
    with pandas.option_context("mode.string_storage", "python"):
        yield


class Lazy:
    """A module that is imported when an attribute of it is first used.

    Args:
        unused: a package that it would import only because it is there, see `without`; what the
            module does with it, it then does without, to the end of the process.
    """

    def __init__(self, name: str, unused: str | None = None) -> None:
        self._name, self._unused = name, unused

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get(self._name)
        if module is None:
            with without(self._unused) if self._unused else nullcontext():
                module = importlib.import_module(self._name)
        return getattr(module, name)
