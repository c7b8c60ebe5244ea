"""What the tests share: a tiny real sweep, notebooks without a framework, and the rule on skips."""

import fcntl
import gc
import inspect
import linecache
import os
import re
import shutil
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

import forked
import pandas
import pytest
import slow_tests
from hypothesis import HealthCheck, settings
from support import (
    CHROMIUM,
    LIGHT,
    ONE_GPU,
    PATIENCE_S,
    PROJECT,
    TINY,
    Gate,
    left_behind,
    mptexp,
    nvml_library,
    write_images,
)

# A shell without job control starts what it puts in the background with SIGINT ignored, and the
# processes of the tests would inherit that: what is sent to them as Ctrl-C would not arrive.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A second, in each process, for checks of notebooks that nobody needs.
sys.modules.setdefault("rfc3987_syntax", None)

# Texts of the small tables that tests make here: Arrow's take a quarter of the time of such a test.
# Commands and kernels, which are processes of their own, have pandas' default.
pandas.options.mode.string_storage = "python"


# Most of what a small training takes is to compile it, which so takes three quarters of the time.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"


# --- a temporary folder of their own ------------------------------------------------------------


def pytest_configure(config):
    if "MPTEXP_TESTS" in os.environ:  # a process among those of xdist, or of a test
        return
    if "bench" not in config.getoption("markexpr").partition("not bench")[0]:
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)
    os.environ.pop("VIRTUAL_ENV", None)  # of another environment that is activated IPython warns
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    config.own_temporary_folder = tempfile.mkdtemp(prefix="mpt-", dir="/tmp")
    os.environ["MPTEXP_TESTS"] = os.environ["TMPDIR"] = config.own_temporary_folder
    tempfile.tempdir = None


def pytest_unconfigure(config):
    if hasattr(config, "own_temporary_folder"):
        shutil.rmtree(config.own_temporary_folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def variables():
    """What a test leaves in the environment would have each later process start anew: seconds."""
    yield
    for name in forked.at_start(os.environ).keys() - forked.BEFORE.keys():
        del os.environ[name]
    os.environ.update(forked.BEFORE)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a user who has run the tiny sweep: params file, results, report.

    Tests read it and change nothing in it: all processes of one pytest share it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "user"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "log.txt").exists():
            (folder / "tiny.yaml").write_text(TINY)
            done = mptexp("run", "tiny.yaml", cwd=folder)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "log.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def forked_runs(monkeypatch):
    """Runs of sweeps are forked: seconds each, of tests of what both ways share."""
    monkeypatch.setenv("MPTEXP_FORK", "1")


@pytest.fixture
def light(tmp_path):
    """A folder with a notebook without framework; call it with the matrix to get a params file."""
    from mptexp.spec.run import Run

    lines = [f"{name} = {field.default!r}" for name, field in Run.model_fields.items()]
    (tmp_path / "light.py").write_text(LIGHT.format(parameters="\n".join(lines)))

    def write(matrix, **top):
        path = tmp_path / "light.yaml"
        extra = "".join(f"{name}: {value}\n" for name, value in top.items())
        path.write_text(f"notebook: light.py\nmatrix: {matrix}\n{extra}")
        return path

    return write


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Where runs of the light notebook with seeds 13 to 15 wait until a test lets them end."""
    made = Gate(tmp_path / "gate")
    monkeypatch.setenv("MPTEXP_TEST_GATE", str(made.folder))
    return made


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Two classes in a folder whose path a careless program stumbles over."""
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    root = tmp_path / "Bilder für später [1]"
    write_images(root / "Käse", 10)
    write_images(root / "brot & butter", 20)
    return root


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """A folder with a library that answers as NVML does on a machine with one GPU."""
    return nvml_library(tmp_path_factory.mktemp("nvml"), ONE_GPU)


# --- a real browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that fails the test where its console reports an error or it asks the network."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1000)
    opened, faults = context.new_page(), []
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda r: faults.append(r.url) if "://" in r.url[:8] else None)
    yield opened
    context.close()
    assert [f for f in faults if not f.startswith("file://")] == []


# --- what starts a Jupyter kernel, a training, a browser or Ray -----------------------------------
# Such a test is marked `kernel`, which `make check` leaves out: it is told by its own source and
# that of the fixtures and helpers that it uses, so that no mark can be forgotten.
STARTS = re.compile(
    r"KERAS_BACKEND|\.(fit|train_on_batch)\("
    r"|\b(python|passes_under|started|KernelManager|Nodes|sync_playwright"
    r"|jupyter_kernel\.execute|supervisor\.execute|advising\.advise)\("
    r"|forked\.run\((?!\"command)|\breport\.build\(|= mptexp(_anew)?\(\*words"
    r"|\b(mptexp(_anew)?|under)\((?s:.)*\"(run|diagnose|report|publish|advise|doctor)\""
    r"|\"(run|diagnose|advise)\"(?s:.)*\bmptexp\("
)


def starts(*functions):
    """Whether functions of the tests, or helpers that they name, start one of these."""
    todo, known = {*functions}, set()
    while todo:
        function = todo.pop()
        known.add(function)
        itself, named = read(function)
        if itself:
            return True
        todo |= named - known
    return False


@cache  # of thousands of tests, most share their helpers
def read(function):
    """Whether the source of a function says that it starts one, and the functions that it names."""
    function = inspect.unwrap(function) if callable(function) else function
    own = inspect.isfunction(function) and Path(function.__code__.co_filename)
    if not own or not own.is_relative_to(Path(__file__).parent):
        return False, frozenset()
    source = text(function.__code__)
    names = {*re.findall(r"\w+", source)} & function.__globals__.keys()
    named = (function.__globals__[name] for name in names)
    return bool(STARTS.search(source)), frozenset(filter(is_function, named))


def text(code):
    """The lines of a function; `inspect` would take every file of the tests apart once more."""
    last = max(end or 0 for _, end, _, _ in positions(code))
    return "".join(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last])


def positions(code):
    """Where the instructions of a function lie, and of those within it."""
    yield from code.co_positions()
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from positions(inner)


def is_function(value):
    return callable(value) and inspect.isfunction(inspect.unwrap(value))


def mark(item):
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    if starts(item.function, *(each.func for made in fixtures for each in made)):
        item.add_marker("kernel")


# --- chance ------------------------------------------------------------------------------------
# `make test` tries the same values each time, however long one takes; `make check` the first of
# them, and `make soak` others.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("others", settings.get_profile("same"), derandomize=False)
settings.register_profile("quick", settings.get_profile("same"), max_examples=15)
settings.load_profile("same")


# --- order -----------------------------------------------------------------------------------
# Each process takes a file at a time: the longest first, lest one of them works alone at the end.
LONGEST = (
    "training/frontends/test_loop", "analysis/test_layer_search", "system/test_notebooks",
    "diagnosis/test_verdict", "system/test_survival", "training/test_onednn",
    "report/pages/test_first_screen_html", "training/numerics/test_emulation",
    "system/test_without_tensorflow", "system/test_prepare", "training/test_effective_arithmetic",
    "training/test_identity", "report/pages/test_page", "training/test_user_model",
    "execution/test_remeasuring", "system/test_security", "training/measure/test_profiler",
    "system/test_browser", "training/test_measured_run", "training/test_step_timer",
    "execution/test_ray_executor", "report/pages/test_site", "system/test_fuzz",
    "training/backends/test_replicas", "execution/test_max_batch", "system/test_cli",
    "system/test_gpu_hour", "training/test_layers", "spec/test_yaml_documents",
    "system/test_foreign_folder", "report/tables/test_summary_tables",
    "training/test_validated_examples", "training/test_models", "execution/test_sweep",
    "training/numerics/test_quantization", "report/figures/test_all_figures",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(items):
    order = {f"{PROJECT}/tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))
    slow = {f"{PROJECT}/tests/{name}" for name in slow_tests.names()}
    for item in items:
        mark(item)
        if f"{item.path}::{item.originalname}" in slow:
            item.add_marker("slow")


def pytest_collection_finish():
    """Tests, and what they import, live to the end: no collection need look at them."""
    gc.collect()
    gc.freeze()


# --- skips -----------------------------------------------------------------------------------
# Where everything can be installed (CI), a skip that is not listed here is a failure: a test that
# never runs proves nothing.
ALLOWED_SKIPS = (
    "torch is not installed",
    "TensorFlow leaves oneDNN off on this CPU",
    "the shared pictures are not here",
    "the shared traces are not here",
    "no Chromium is installed",
    "only root can mount a small disk",
    "no control group for memory can be made here",
)


@pytest.hookimpl(trylast=True)  # after the processes of xdist have ended
def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    if os.environ.get("MPTEXP_SKIPS_FAIL") == "1":
        reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
        unlisted = [r for r in reasons if not any(allowed in r for allowed in ALLOWED_SKIPS)]
        fail(session, reporter, "skips that are not listed", unlisted)
    if session.config.pluginmanager.has_plugin("dsession") and exitstatus == 0:
        left = left_behind(Path(session.config.own_temporary_folder))
        fail(session, reporter, "left in the temporary folder", left)


def fail(session, reporter, what, found):
    if found:
        reporter.write_line(f"{what}: {'; '.join(found)}", red=True)
        session.exitstatus = 1
