"""The project's own laws: what keeps the package thin, light and honest."""

import ast
import re
import subprocess
import sys

import jupytext
import pytest
from conftest import PROJECT
from papermill import inspect_notebook

import mptexp
from mptexp import data, environment, models, params, precision, store, train
from mptexp.spec import CPU_ISAS, DATASETS, MODELS, POLICIES, Run

# A module imports only from modules above it; the line marks the kernel boundary.
KERNEL_HALF = ["fields", "formats", "spec", "schema", "imports", "trace"]
KERNEL_HALF += ["store", "machine", "environment", "pictures", "sources", "folders", "idx"]
KERNEL_HALF += ["downloads", "prepared", "data", "costs", "numerics"]
KERNEL_HALF += ["emulation", "replicas", "draws", "models"]
KERNEL_HALF += ["onednn", "switches", "precision", "probe", "exponents", "divergence", "measure"]
KERNEL_HALF += ["readings", "ceilings", "profile", "train", "ready"]
OTHER_HALF = [
    "params",
    "terminal",
    "outcomes",
    "devices",
    "processes",
    "engine",
    "kernel",
    "worker",
    "largest",
    "sweep",
    "merge",
    "readback",
    "analysis",
    "accuracy",
    "ledger",
]
OTHER_HALF += [
    "census",
    "experiments",
    "diagnose",
    "findings",
    "scaling",
    "lowered",
    "layout",
    "digest",
    "compare",
    "published",
    "beside",
    "underflow",
    "lossscale",
    "advice",
    "claims",
    "figures",
    "reasons",
    "sortable",
    "report",
    "export",
    "publish",
    "cluster",
    "remote",
    "progress",
    "explore",
    "cli",
]
SHARED = {"fields", "formats", "spec", "store", "imports", "trace"}
FRAMEWORKS = {"tensorflow", "tensorflow_datasets", "jax", "torch", "keras"}


def imports(source):
    """Modules that a source names in its import statements."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "mptexp":
            yield from (f"mptexp.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def faults(name, source):
    """What a module of this name must not import."""
    order = KERNEL_HALF + OTHER_HALF
    below = set(order[order.index(name) :])
    if name in OTHER_HALF:
        below |= set(KERNEL_HALF) - SHARED
    for module in imports(source):
        first, _, rest = module.partition(".")
        if first == "mptexp" and rest in below:
            yield f"{name} imports {module}"
        if name in OTHER_HALF and first in FRAMEWORKS:
            yield f"{name} imports {module}"


def modules():
    return [p for p in (PROJECT / "mptexp").glob("*.py") if not p.stem.startswith("__")]


def test_modules_import_only_from_above():
    assert {p.stem for p in modules()} == set(KERNEL_HALF + OTHER_HALF)
    found = [fault for p in modules() for fault in faults(p.stem, p.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("spec", "from mptexp import store"),
        ("data", "from mptexp.models import build"),
        ("analysis", "def f():\n    from mptexp.train import fit"),
        ("sweep", "import tensorflow as tf"),
        ("report", "from keras import layers"),
    ],
)
def test_the_law_of_imports_can_be_broken(name, source):
    assert list(faults(name, source))


LIGHT = "from mptexp.cli import app; import sys; print(sorted(m for m in sys.modules if m in {}))"
HEAVY = {*FRAMEWORKS, "pandas", "numpy", "papermill", "seaborn", "matplotlib", "pydantic"}


def test_help_imports_nothing_heavy():
    command = [sys.executable, "-c", LIGHT.format(HEAVY)]
    assert subprocess.check_output(command, text=True).strip() == "[]"


def test_the_law_of_lightness_can_be_broken():
    command = [sys.executable, "-c", "import pandas; " + LIGHT.format(HEAVY)]
    assert "pandas" in subprocess.check_output(command, text=True)


def test_making_a_report_imports_no_framework():
    program = (
        "import sys; from mptexp import analysis, findings, figures, report, sweep, cli; "
        f"print(sorted({FRAMEWORKS!r} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_registries_and_types_name_the_same_things():
    annotation = {name: field.annotation for name, field in Run.model_fields.items()}
    assert set(DATASETS) == set(data.DATASETS)
    assert set(MODELS) == set(models.MODELS)
    assert set(annotation["input_mode"].__args__) == set(data.INPUT_MODES)
    assert set(annotation["phase"].__args__) == set(train.PHASES)
    assert set(annotation["cpu_isa"].__args__) == {"default", *CPU_ISAS}
    assert set(annotation["backend"].__args__) == set(precision.INSTALL)
    assert set(POLICIES) == set(annotation["policy"].__args__)


def test_the_notebooks_parameters_are_the_typed_ones(tmp_path):
    path = tmp_path / "train.ipynb"
    jupytext.write(jupytext.read(PROJECT / "notebooks/train.py"), path)
    found = inspect_notebook(str(path))
    assert list(found) == list(Run.model_fields)
    for name, field in Run.model_fields.items():
        assert eval(found[name]["default"]) == field.default, name
        assert found[name]["help"] == field.description, name
    types = {name: told["inferred_type_name"] for name, told in found.items()}
    assert types["policy"] == "str"
    assert types["batch_size"] == "int"
    for name, field in Run.model_fields.items():
        if field.annotation in (str, int, float):
            assert types[name] == field.annotation.__name__, name


@pytest.mark.parametrize("path", sorted((PROJECT / "params").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_params_file_expands_and_has_its_header(path):
    sweep, text = params.read(path)
    assert sweep.runs()
    assert set(params.header(text)) == {"question", "cost", "expected"}


def test_the_readmes_commands_exist():
    readme = (PROJECT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^|`|: )make ([a-z]+)", readme, re.MULTILINE))
    assert {"quickstart", "test", "lab"} <= used <= targets
    from mptexp.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    used = set(re.findall(r"^mptexp ([a-z]+)", readme, re.MULTILINE))
    assert used == commands
    for path in re.findall(r"(?:params|notebooks|reports/published)/[\w./-]+\.\w+", readme):
        assert (PROJECT / path).exists() or "mine" in path, path


def test_the_readmes_table_is_the_published_report():
    table = (PROJECT / "reports/published/quickstart-cpu/table.md").read_text()
    assert table in (PROJECT / "README.md").read_text()


def test_the_published_report_is_that_of_its_records():
    folder = store.SweepDir(PROJECT / "reports/published/quickstart-cpu")
    records, damaged = store.read_records(folder)
    assert len(records) == 18
    assert not damaged
    page = folder.index.read_text()
    assert "notebook.html" not in page
    for record in records:
        assert record["run_id"] in page
        assert record["status"] == "ok"
        assert record["environment"]["clean"] is True
        if record["parameters"]["batch_size"] == 32:
            assert record["history"][-1]["val_accuracy"] >= 0.95


def test_the_columns_of_results_are_documented():
    assert all(store.COLUMNS.values())
    assert set(store.FINAL) < set(store.STATUSES)
    assert len(set(environment.VARIABLES)) == len(environment.VARIABLES)


def test_pins_name_no_host():
    for line in (PROJECT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+( ;.*)?", line), line


@pytest.mark.parametrize("path", sorted((PROJECT / "notebooks").glob("*.py")), ids=lambda p: p.stem)
def test_saving_a_notebook_unchanged_leaves_the_tree_clean(path):
    # JupyterLab saves what it opens; a changed header would mark every later run as unclean.
    assert jupytext.writes(jupytext.read(path), fmt="py:percent") == path.read_text()


def test_the_citation_names_this_version():
    citation = params.load((PROJECT / "CITATION.cff").read_text())
    assert citation["version"] == mptexp.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_workflow_publishes_what_is_there():
    workflow = params.load((PROJECT / ".github/workflows/pages.yml").read_text())
    for path in workflow["on"]["push"]["paths"]:
        assert (PROJECT / path.removesuffix("/**")).exists(), path
    steps = workflow["jobs"]["build"]["steps"]
    (command,) = [step["run"] for step in steps if step.get("name") == "Publish"]
    assert command.startswith("mptexp publish reports/published --to site")
    (upload,) = [step for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == "site"
