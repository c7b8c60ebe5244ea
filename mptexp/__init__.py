"""mptexp: what does reduced precision buy on this device, and where it buys nothing, why?

In a notebook: `import mptexp`, then `mptexp.run(...)`; each name in `__all__` has a docstring.

The packages are rooms with one direction: host, spec, records, traces, then training (the only one
that imports a framework), execution and analysis, then diagnosis, then report; `api` is what
notebooks and the command line call.
"""

TYPE_CHECKING = False  # not typing's: to import it takes longer than all of this
if TYPE_CHECKING:  # for editors and type checkers
    from typing import Any

    from mptexp.api.cells import (
        answer,
        compare,
        diagnose,
        explain,
        load,
        plan,
        policies,
        record,
        run,
    )
    from mptexp.spec.grid import Sweep
    from mptexp.spec.run import Run
    from mptexp.training.step_timer import StepTimer

__version__ = "0.2.0"
__all__ = [
    "Run",
    "StepTimer",
    "Sweep",
    "answer",
    "compare",
    "diagnose",
    "explain",
    "load",
    "plan",
    "policies",
]
__all__ += ["record", "run"]


def __getattr__(name: str) -> "Any":
    """Imports what is asked for: `import mptexp` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"Run": "mptexp.spec.run", "Sweep": "mptexp.spec.grid"}
    home = (homes | {"StepTimer": "mptexp.training.step_timer"}).get(name, "mptexp.api")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
