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
        has_tf32_products: whether it takes TF32 for matrix products, too, where nothing is set:
            PyTorch does so for convolutions alone.
        fuses_batch_norm: whether it has batch normalization as one operation.
    """

    name: str
    label: str
    packages: tuple[str, ...]
    waits_for_all: bool = True
    has_tf32_products: bool = True
    fuses_batch_norm: bool = True


BACKEND_ROWS = {
    row.name: row
    for row in (
        Backend("tensorflow", "TensorFlow", ("tensorflow",)),
        Backend("jax", "JAX", ("jax", "jaxlib"), waits_for_all=False, fuses_batch_norm=False),
        Backend("torch", "PyTorch", ("torch",), has_tf32_products=False),
    )
}
BACKENDS = tuple(BACKEND_ROWS)
# Of those that are installed, where none is asked for. PyTorch before JAX: of each run by JAX on an
# H200 compilation took 30 s, and where both are, its wheel is the one that may lack CUDA.
PREFERRED = ("tensorflow", "torch", "jax")
LABELS = {row.name: row.label for row in BACKEND_ROWS.values()}
BackendName = Literal[BACKENDS]
