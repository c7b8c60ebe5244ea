"""Images that several tests of the data use."""

import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets


@pytest.fixture(scope="module")
def images():
    return datasets.load(Run(image_size=32))


@pytest.fixture
def photographs(tree):
    return datasets.load(Run(dataset=f"folder:{tree}", image_size=16))


@pytest.fixture(scope="session")
def got():
    """Gives the training batches of a run as arrays."""

    def arrays(images, run):
        return [(np.asarray(x), np.asarray(y)) for x, y in batches.training(images, run)]

    return arrays
