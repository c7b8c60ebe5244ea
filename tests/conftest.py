"""What the tests share: a tiny real sweep, notebooks without a framework, and the rule on skips."""

import fcntl
import os

import pytest
from support import CHROMIUM, LIGHT, ONE_GPU, TINY, Gate, mptexp, nvml_library, write_images


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
    opened, faults = context.new_page(), []
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda r: faults.append(r.url) if "://" in r.url[:8] else None)
    yield opened
    context.close()
    assert [f for f in faults if not f.startswith("file://")] == []


# --- order -----------------------------------------------------------------------------------
# Two processes take a file at a time: the longest first, lest one of them works alone at the end.
LONGEST = (
    "ray_executor",
    "train",
    "without_tensorflow",
    "precision",
    "notebooks",
    "diagnose",
    "survival",
    "replicas",
)
LONGEST += ("sweep", "supervisor", "cli", "max_batch", "models", "report", "browser", "ceilings")


def pytest_collection_modifyitems(items):
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


# --- skips -----------------------------------------------------------------------------------
# Where everything can be installed (CI), a skip that is not listed here is a failure: a test that
# never runs proves nothing.
ALLOWED_SKIPS = (
    "torch is not installed",
    "the shared pictures are not here",
    "no Chromium is installed",
    "only root can mount a small disk",
    "no control group for memory can be made here",
)


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("MPTEXP_SKIPS_FAIL") != "1" or reporter is None:
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    unlisted = [r for r in reasons if not any(allowed in r for allowed in ALLOWED_SKIPS)]
    if unlisted:
        reporter.write_line("skips that are not listed: " + "; ".join(unlisted), red=True)
        session.exitstatus = 1
