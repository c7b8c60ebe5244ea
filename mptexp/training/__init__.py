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
import os
from contextlib import suppress
from typing import Any

from mptexp.host import imports

HOMES = {
    "build": "measured_run.build",
    "dtypes": "effective_settings.dtypes",
    "execute": "measured_run.execute",
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
    imports.matplotlib_from_elsewhere()  # Keras imports it, wherever one stands
    module, _, function = HOMES[name].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])


def preload(parameters: dict[str, Any]) -> dict[str, str]:
    """Imports all that the functions of HOMES need, as `use` and they would; computes nothing.

    What cannot be imported is left to the run, which says why.

    Args:
        parameters: of a run, those that `precision.prepare` heeds.

    Returns:
        The variables of the environment that the imports have set.
    """
    from mptexp.spec.run import Run
    from mptexp.training import capability, precision

    run = Run.model_construct(**parameters)
    with suppress(capability.Unsupported):
        precision.prepare(run)
        before = dict(os.environ)
        precision.load(run.backend)
        for name in HOMES:
            __getattr__(name)
        return {name: os.environ[name] for name in os.environ.keys() - before.keys()}
    return {}
