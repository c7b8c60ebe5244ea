"""Drawn input: whatever stands in a file of another's, the answer is a result or a sentence.

`make test` draws a little, `make soak` much, each the same every time. No
traceback, no answer over fuzz.ANSWER_S seconds of processor time, no memory over a GiB.
"""

import os
import resource
import shutil

import fuzz
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from mptexp import api
from mptexp.analysis import sweep_tables
from mptexp.errors import ParamsError, Stopped
from mptexp.report import measured_sweep
from mptexp.report.answers import caveats, findings
from mptexp.report.pages import first_screen_html
from mptexp.report.tables import text_tables
from mptexp.traces import trace_files

LONG = os.environ.get("MPTEXP_FUZZ") == "long"
MOST_KIB = 2**20
# What takes long is drawn in parts: processes share them, and a failure ends its part alone.
PARTS = pytest.mark.parametrize("part", range(10 if LONG else 1))


def drawn(few, many):
    """So many examples in `make test`, and in `make soak`; the same each time.

    In the long run a failure stays as it was drawn: to make it small takes minutes.
    """
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    fewer = max(1, few * settings.default.max_examples // 100)  # in `make check`
    examples = many if LONG else fewer
    phases = [Phase.explicit, Phase.generate, *[Phase.shrink] * (not LONG)]
    return settings(
        max_examples=examples, derandomize=True, suppress_health_check=quiet, phases=phases
    )


@pytest.fixture(autouse=True)
def bounded():
    """The most memory of this process grows by less than a GiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB


def refused(act, seconds=fuzz.ANSWER_S):
    """Whether what is done is refused in a sentence; any other error is the test's."""
    try:
        with fuzz.answering(seconds):
            act()
    except (ParamsError, Stopped):
        return True
    return False


@drawn(200, 10_000)
@given(fuzz.PARAMS)
def test_any_params_file_is_planned_or_refused(tmp_path, content):
    path = tmp_path / "drawn.yaml"
    path.write_bytes(content)
    refused(lambda: api.planned(api.open_sweep(path, tmp_path / "out")))
    assert list(tmp_path.iterdir()) == [path]


def headline(place):
    """What a report opens with."""
    sweep = measured_sweep.load(place)
    tables = sweep.tables
    first_screen_html.card(sweep)
    caveats.sentences(tables)
    findings.answer(tables)
    sweep_tables.device_samples(place, tables)
    if not tables.ok.empty:
        text_tables.headline_rows(tables)


@PARTS
def test_any_records_are_tables_and_an_answer_or_named_as_damaged(tmp_path, part):
    @seed(part)
    @drawn(20, 250)  # of which each has 4.6 damaged records on average
    @given(fuzz.damaged_sweeps())
    def answered(sweep):
        shutil.rmtree(tmp_path / "sweep", ignore_errors=True)
        place = fuzz.write(tmp_path / "sweep", sweep.params, sweep.parts)
        refused(lambda: headline(place))

    answered()


@pytest.mark.kernel
@PARTS
def test_any_records_are_a_report_an_export_and_a_site(tmp_path, part):
    @seed(part)
    @drawn(1, 20)
    @given(fuzz.damaged_sweeps())
    def published(sweep):
        for name in ("sweep", "draft", "site"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        place = fuzz.write(tmp_path / "sweep", sweep.params, sweep.parts)
        if not refused(lambda: api.report(place.root), seconds=300):
            api.export(place.root, tmp_path / "draft")
            api.publish([place.root], tmp_path / "site")
            assert (tmp_path / "site/sweep/index.html").exists()

    published()


@drawn(30, 1000)
@given(fuzz.traces())
def test_any_trace_is_read_or_refused(tmp_path, trace):
    name, content = trace
    path = tmp_path / name
    path.write_bytes(content)
    refused(lambda: trace_files.read(path))
    path.unlink()
    assert list(tmp_path.iterdir()) == []
