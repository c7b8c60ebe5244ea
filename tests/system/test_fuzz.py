"""Drawn input: whatever stands in a file of another's, the answer is a result or a sentence.

`make test` draws a little, the same each time; `make soak` draws MPTEXP_FUZZ times as much. No
traceback, no answer over fuzz.ANSWER_S seconds of processor time, no memory over a GiB.
"""

import os
import resource

import fuzz
import pytest
from hypothesis import HealthCheck, given, settings

from mptexp import api
from mptexp.execution.sweep import Stopped
from mptexp.spec.errors import ParamsError

TIMES = int(os.environ.get("MPTEXP_FUZZ", "1"))
MOST_KIB = 2**20


def drawn(n):
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=n * TIMES, derandomize=True, suppress_health_check=quiet)


@pytest.fixture(autouse=True)
def bounded():
    """The most memory of this process grows by less than a GiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB


def refused(act):
    """Whether what is done is refused in a sentence; any other error is the test's."""
    try:
        with fuzz.answering():
            act()
    except (ParamsError, Stopped):
        return True
    return False


@pytest.mark.filterwarnings("ignore:.*duplicate anchor")
@drawn(200)
@given(fuzz.PARAMS)
def test_any_params_file_is_planned_or_refused(tmp_path, content):
    path = tmp_path / "drawn.yaml"
    path.write_bytes(content)
    refused(lambda: api.planned(api.open_sweep(path, tmp_path / "out")))
    assert list(tmp_path.iterdir()) == [path]
