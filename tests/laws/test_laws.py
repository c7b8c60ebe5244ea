"""The project's own laws: what keeps the package thin, light and honest."""

import ast
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from itertools import chain

import jupytext
import nbformat
import pytest
from papermill import inspect_notebook
from support import PROJECT

import mptexp
from mptexp.host.devices import CPU_ISAS
from mptexp.records import schema, store
from mptexp.records.csv_columns import COLUMNS
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params, yaml_documents
from mptexp.spec.backends import BACKENDS
from mptexp.spec.names import DATASETS, MODELS
from mptexp.spec.policies import POLICIES
from mptexp.spec.run import Run
from mptexp.training import backends, environment, models
from mptexp.training import measured_run as training_run
from mptexp.training.data import batches, datasets

# What each room of the package may import; a sub-package belongs to its package.
BELOW = {
    "errors": set(),
    "host": {"errors"},
    "spec": {"errors", "host"},
    "records": {"errors", "host", "spec"},
    "traces": {"errors", "host", "spec", "records"},
}
BELOW |= {room: {*BELOW} for room in ("training", "execution", "analysis")}
BELOW["diagnosis"] = {*BELOW["analysis"], "analysis"}
BELOW["report"] = {*BELOW["diagnosis"], "diagnosis", "execution"}
BELOW["api"] = {*BELOW, "report"} - {"training"}
BELOW["cli"] = {*BELOW["api"], "api"}
# The floors of the report: each may import those before it; what lies in no folder, all of them.
FLOORS = ("text", "tables", "answers", "first_screen", "figures", "pages")
FRAMEWORKS = {"tensorflow", "tensorflow_datasets", "jax", "torch", "keras"}


def imports(source):
    """Modules that a source names in import statements, or imports later by their names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "mptexp":
            names = (alias.name for alias in node.names)
            yield from (f"mptexp.{name}" for name in names if name != "__version__")
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("Lazy", "import_module")
        ):
            yield from (x.value for x in node.args if isinstance(x, ast.Constant))


def faults(name, source):
    """What a module of this name, such as `report.page`, must not import."""
    room = name.split(".")[0]
    for module in imports(source):
        first, _, rest = module.partition(".")
        other = rest.split(".")[0]
        if first == "mptexp" and other != room and other not in BELOW[room]:
            yield f"{name} imports {module}"
        if first in FRAMEWORKS and room != "training":
            yield f"{name} imports {module}"


def climbs(name, source):
    """What a module of the report imports from a floor above its own."""
    floor = name.split(".")[1]
    for module in imports(source):
        names = module.split(".")
        above = FLOORS[FLOORS.index(floor) + 1 :] if floor in FLOORS else ()
        if names[:2] == ["mptexp", "report"] and {*names[2:3]} & {*above}:
            yield f"{name} imports {module}"


def modules():
    """Every module of the package by its name, such as `report.page`."""
    root = PROJECT / "mptexp"
    paths = {p.relative_to(root).with_suffix("").as_posix(): p for p in root.rglob("*.py")}
    return {n.replace("/", "."): p for n, p in paths.items() if not n.startswith("__")}


def test_modules_import_only_from_rooms_below():
    rooms = {name.split(".")[0] for name in modules()}
    assert rooms == set(BELOW)
    assert not [fault for name, p in modules().items() for fault in faults(name, p.read_text())]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("host.files", "from mptexp.spec.names import meant"),
        ("spec.run", "from mptexp.records import store"),
        ("training.data.datasets", "from mptexp.analysis.sweep_tables import load"),
        ("analysis.summary", "def f():\n    from mptexp.training.measured_run import fit"),
        ("analysis.two_sweeps", "from mptexp.report import wording"),
        ("execution.sweep", "import tensorflow as tf"),
        ("report.page", "from keras import layers"),
        ("report.page", 'tf = imports.Lazy("tensorflow")'),
        ("diagnosis.verdict", "from mptexp import cli"),
    ],
)
def test_the_law_of_rooms_can_be_broken(name, source):
    assert list(faults(name, source))


def test_the_floors_of_the_report_stand_on_those_below():
    own = {n: p for n, p in modules().items() if n.startswith("report.") and n.count(".") > 1}
    assert {name.split(".")[1] for name in own} == set(FLOORS)
    assert not [fault for name, p in own.items() for fault in climbs(name, p.read_text())]
    assert list(climbs("report.text.wording", "from mptexp.report.answers import findings"))


# --- no module asks which backend it has ---------------------------------------------------------


def missing_names(source):
    """What a module takes from modules below `training` that they do not have.

    What needs a framework that is not installed is run by no test.
    """
    tree, ours = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mptexp."):
            for name in node.names:
                path = f"{node.module}.{name.name}"
                below = not path.startswith("mptexp.training")
                if below and (PROJECT / f"{path.replace('.', '/')}.py").is_file():
                    ours[name.asname or name.name] = importlib.import_module(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = ours.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                yield f"line {node.lineno}: {module.__name__} has no {node.attr}"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_uses_what_there_is_also_where_its_framework_is_not_installed(name):
    source = (PROJECT / f"mptexp/training/backends/{name}.py").read_text()
    assert list(missing_names(source)) == []
    broken = "from mptexp.traces import kineto\nkineto.OWN_NOTHING\nkineto.OWN_FILE"
    assert list(missing_names(broken)) == ["line 2: mptexp.traces.kineto has no OWN_NOTHING"]


def questions(source):
    """Lines of a source that compare with a backend's name, or choose by one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            chosen = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            chosen = node.keys
        elif isinstance(node, ast.MatchValue):
            chosen = [node.value]
        else:
            continue
        parts = [part for one in chosen if one for part in ast.walk(one)]
        if any(isinstance(part, ast.Constant) and part.value in BACKENDS for part in parts):
            yield node.lineno


def test_no_module_of_training_asks_which_backend_it_has():
    inside = {n: p for n, p in modules().items() if n.startswith("training.")}
    others = {n: p for n, p in inside.items() if not n.startswith("training.backends.")}
    assert len(others) > 20
    assert not [f"{n}:{line}" for n, p in others.items() for line in questions(p.read_text())]


@pytest.mark.parametrize(
    "source",
    [
        'if run.backend == "jax":\n    pass',
        'x = 1 if keras.backend.backend() in ("jax", "torch") else 2',
        'f = {"tensorflow": a, "jax": b}[run.backend]',
        'match run.backend:\n    case "torch":\n        pass',
        'if (run.backend, run.phase) != ("tensorflow", "train"):\n    pass',
    ],
)
def test_the_law_of_backends_can_be_broken(source):
    assert list(questions(source))


@pytest.mark.parametrize("name", BACKENDS)
def test_each_backend_has_every_verb(name):
    assert not list(backends.faults(backends.backend(name)))


def test_a_backend_that_lacks_a_verb_is_refused(monkeypatch):
    module = backends.backend("torch")
    backends.backend.cache_clear()
    monkeypatch.delattr(module, "wait")
    monkeypatch.setattr(module, "synchronize", lambda: None)
    monkeypatch.setattr(module, "INTEGER", None)
    with pytest.raises(TypeError, match="backend torch: has no INTEGER of type str; has no sync"):
        backends.backend("torch")
    assert len(list(backends.faults(module))) == 3


def test_every_package_and_module_says_what_it_is():
    assert not [
        name for name, p in modules().items() if not ast.get_docstring(ast.parse(p.read_text()))
    ]


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
        "import sys; from mptexp.analysis import summary; from mptexp.report.pages import page; "
        "from mptexp.execution import sweep; from mptexp import cli; "
        f"print(sorted({FRAMEWORKS!r} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_registries_and_types_name_the_same_things():
    annotation = {name: field.annotation for name, field in Run.model_fields.items()}
    assert set(DATASETS) == set(datasets.DATASETS)
    assert set(MODELS) == set(models.MODELS)
    assert set(annotation["input_mode"].__args__) == set(batches.INPUT_MODES)
    assert set(annotation["phase"].__args__) == set(training_run.PHASES)
    assert set(annotation["cpu_isa"].__args__) == {"default", *CPU_ISAS}
    assert set(annotation["backend"].__args__) == set(BACKENDS)
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

    commands = {command.name for command in app.registered_commands}
    used = set(re.findall(r"^mptexp ([a-z-]+)", readme, re.MULTILINE))
    assert used == commands
    for path in re.findall(r"(?:params|notebooks|reports/published)/[\w./-]+\.\w+", readme):
        assert (PROJECT / path).exists() or "mine" in path, path


def test_the_readmes_table_is_the_published_report():
    table = (PROJECT / "reports/published/quickstart-cpu/table.md").read_text()
    assert table in (PROJECT / "README.md").read_text()


def test_the_published_report_is_that_of_its_records():
    folder = SweepDir(PROJECT / "reports/published/quickstart-cpu")
    records, damaged = store.read_records(folder)
    assert len(records) == 15
    assert not damaged
    page = folder.index.read_text()
    for record in records:
        assert f'href="runs/{record["run_id"]}/notebook.html"' in page
        assert record["status"] == "ok"
        assert record["environment"]["clean"] is True
        if record["parameters"]["batch_size"] == 32:
            assert record["history"][-1]["val_accuracy"] >= 0.9  # learned: one run ended at 94.4 %


def test_the_columns_of_results_are_documented():
    assert all(column.meaning for column in COLUMNS.values())
    assert set(schema.FINAL) < set(schema.STATUSES)
    assert len(set(environment.VARIABLES)) == len(environment.VARIABLES)


def test_pins_name_no_host():
    for line in (PROJECT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+( ;.*)?", line), line


@pytest.mark.parametrize("path", sorted((PROJECT / "notebooks").glob("*.py")), ids=lambda p: p.stem)
def test_saving_a_notebook_unchanged_leaves_the_tree_clean(path):
    # JupyterLab saves what it opens; a changed header would mark every later run as unclean.
    assert jupytext.writes(jupytext.read(path), fmt="py:percent") == path.read_text()


def test_the_citation_names_this_version():
    citation = yaml_documents.content((PROJECT / "CITATION.cff").read_text())
    assert citation["version"] == mptexp.__version__
    assert citation["license"] == "Apache-2.0"


def test_every_supported_python_is_tested():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    least, most = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    supported = [f"3.{minor}" for minor in range(least, most)]
    stem = "Programming Language :: Python :: "
    assert [c.removeprefix(stem) for c in project["classifiers"] if stem in c] == supported
    jobs = yaml_documents.content((PROJECT / ".github/workflows/tests.yml").read_text())["jobs"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == supported
    assert {"run": "bash .ci/run"} in jobs["linux"]["steps"]
    assert {"run": "make check"} in jobs["macos"]["steps"]


def test_this_version_has_its_changes():
    assert f"\n## {mptexp.__version__}" in (PROJECT / "CHANGELOG.md").read_text()
    assert f"`schema`, now {schema.SCHEMA}." in (PROJECT / "CHANGELOG.md").read_text()


# Imported names whose distribution has another.
DISTRIBUTIONS = {"IPython": "ipykernel", "PIL": "pillow", "ruamel": "ruamel-yaml"}
DISTRIBUTIONS |= {
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
    "pynvml": "nvidia-ml-py",
    "pydantic_core": "pydantic",
}


def test_every_imported_distribution_is_declared():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.match(r"[\w.-]+", line)[0].lower().replace(".", "-") for line in lines}
    imported = {
        module.partition(".")[0] for p in modules().values() for module in imports(p.read_text())
    }
    known = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in imported}
    assert known - declared - {*sys.stdlib_module_names, "mptexp"} == set()


def test_a_release_attaches_wheel_and_notebook():
    jobs = yaml_documents.content((PROJECT / ".github/workflows/release.yml").read_text())["jobs"]
    job = jobs["release"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == "make wheel-test"
    assert "docs/release.py --to dist" in commands[1]
    assert 'gh release create "$GITHUB_REF_NAME" dist/*' in commands[2]
    book = runpy.run_path(str(PROJECT / "docs/release.py"))["notebook"]("https://e.org/a.whl")
    install, *cells = [cell.source for cell in book.cells]
    assert install.splitlines()[-1] == '%pip install --quiet "https://e.org/a.whl"'
    own = jupytext.read(PROJECT / "notebooks/start_here.py")
    assert cells == [cell.source for cell in own.cells]
    nbformat.validate(book)
    command = [sys.executable, PROJECT / "docs/release.py", "--to", "x", "--from", "y"]
    done = subprocess.run([*command, "--tag", "v0.0"], capture_output=True, text=True)
    assert f"--tag v0.0: this tree is v{mptexp.__version__}" in done.stderr


def test_the_workflow_publishes_what_is_there():
    workflow = yaml_documents.content((PROJECT / ".github/workflows/pages.yml").read_text())
    for path in workflow["on"]["push"]["paths"]:
        assert list(PROJECT.glob(path.removesuffix("/**"))), path
    steps = workflow["jobs"]["build"]["steps"]
    (command,) = [step["run"] for step in steps if step.get("name") == "Publish"]
    assert command.startswith("mptexp publish reports/published --to site")
    (upload,) = [step for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == "site"
    assert {"name": "Documentation", "run": "python docs/site.py --to site/docs"} in steps
