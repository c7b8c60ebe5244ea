"""Reports: the only package that makes sentences, tables for readers and figures.

A notebook takes `load` and the `show_` functions of `sections` from here; they are imported when
first used, because they need what draws figures.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module("mptexp.report.measured_sweep").load
    if name.startswith("show_"):
        return getattr(import_module("mptexp.report.pages.sections"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
