"""The backends of Keras that a run may name: one row each, in the order of tables and figures."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Backend:
    """A framework that Keras computes with.

    Args:
        name: in params files and records, and the name of the package that is imported.
        label: how reports write it.
        packages: those whose versions decide what it computes.
        waits_for_all: whether it can wait for all that was launched, not only for given arrays.
    """

    name: str
    label: str
    packages: tuple[str, ...]
    waits_for_all: bool = True


BACKEND_ROWS = {
    row.name: row
    for row in (
        Backend("tensorflow", "TensorFlow", ("tensorflow",)),
        Backend("jax", "JAX", ("jax", "jaxlib"), waits_for_all=False),
        Backend("torch", "PyTorch", ("torch",)),
    )
}
BACKENDS = tuple(BACKEND_ROWS)
LABELS = {row.name: row.label for row in BACKEND_ROWS.values()}
BackendName = Literal[BACKENDS]
