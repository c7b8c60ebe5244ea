"""`from mptexp import training`: every name is there, and nothing is imported before it is used."""

import subprocess
import sys

import pytest

from mptexp import training


@pytest.mark.parametrize("name", training.HOMES)
def test_each_name_is_a_function(name):
    assert callable(getattr(training, name))
    assert name in dir(training)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'run_all'"):
        _ = training.run_all


def test_the_facade_imports_no_framework():
    program = "import sys; from mptexp import training; print({'keras', 'numpy'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"
