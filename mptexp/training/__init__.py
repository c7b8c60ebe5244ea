"""Training and inference inside a Jupyter kernel: the only package that imports a framework.

In a notebook, `from mptexp import training` and then one call per step of a run::

    device = training.use(run)
    images = training.load_images(run)
    model = training.build(run, images)
    outcome = training.execute(run, model, images, device)
    training.save(outcome)

Nothing is imported before it is used: `use` must come before Keras does.
"""

import importlib
from typing import Any

HOMES = {
    "build": "run.build",
    "dtypes": "effective.dtypes",
    "execute": "run.execute",
    "load_images": "data.datasets.load",
    "save": "record.save",
    "show_images": "notebook.show_images",
    "show_learning": "notebook.show_learning",
    "show_profile": "notebook.show_profile",
    "show_steps": "notebook.show_steps",
    "table": "notebook.table",
    "use": "precision.use",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """Imports the module of a function where it is asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = HOMES[name].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])
