"""How frameworks are imported: without their greetings, and without what they do not need."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the greetings that frameworks write to standard error when they are imported.

    They come from C++ before any log level is heeded, and so does what xprof has to say. Exceptions
    pass; what is missing on a machine is the doctor's to say.
    """
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def without(package: str) -> Iterator[None]:
    """As if a package were not installed: for what imports it, slowly, where it happens to be."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
