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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptexp.training.data.datasets import load as load_images
    from mptexp.training.effective import dtypes
    from mptexp.training.notebook import (
        plot_images,
        plot_learning,
        plot_steps,
        profile_table,
        table,
    )
    from mptexp.training.precision import use
    from mptexp.training.record import save
    from mptexp.training.run import build, execute

__all__ = [
    "build",
    "dtypes",
    "execute",
    "load_images",
    "plot_images",
    "plot_learning",
    "plot_steps",
    "profile_table",
    "save",
    "table",
    "use",
]
HOMES = {
    "build": "run.build",
    "dtypes": "effective.dtypes",
    "execute": "run.execute",
    "load_images": "data.datasets.load",
    "plot_images": "notebook.plot_images",
    "plot_learning": "notebook.plot_learning",
    "plot_steps": "notebook.plot_steps",
    "profile_table": "notebook.profile_table",
    "save": "record.save",
    "table": "notebook.table",
    "use": "precision.use",
}


def __getattr__(name: str) -> Any:
    """Imports the module of a function where it is asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = HOMES[name].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
