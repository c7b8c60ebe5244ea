"""The tests' own laws: where they lie, and which of them `make check` leaves out."""

import ast
import os
import re
import subprocess
import sys

import pytest
import slow_tests
from support import PROJECT, left_behind

TESTS = PROJECT / "tests"
MODULES = sorted(TESTS.rglob("test_*.py"))


# Modules whose tests lie elsewhere: they are tested as commands and cells, in real processes.
ELSEWHERE = {
    **{f"cli/{n}.py": "system/test_cli.py" for n in ("common", "machine", "results", "sweeps")},
    "execution/hidden_from_ray/rfc3987_syntax.py": "execution/test_ray_cluster.py",
    "api/advising.py": "analysis/test_layer_search.py",
    "report/answers/layers_needed.py": "analysis/test_layer_search.py",
    "api/archive.py": "system/test_gpu_hour.py",
    "api/cells.py": "system/test_api.py",
    "api/doctor_check.py": "system/test_instruments.py",
    "api/commands.py": "system/test_cli.py",
    "api/diagnosing.py": "system/test_notebooks.py",
    "api/gpu_hour.py": "system/test_gpu_hour.py",
    "api/cell_tables.py": "system/test_api.py",
    "execution/worker.py": "execution/test_supervisor.py",
}


def untested(package, tests):
    """The modules of a package that have no tests where they are looked for."""
    names = [path.relative_to(package) for path in sorted(package.rglob("[!_]*.py"))]
    places = {str(n): ELSEWHERE.get(str(n), str(n.with_name(f"test_{n.name}"))) for n in names}
    return [name for name, place in places.items() if not (tests / place).exists()]


def test_every_module_has_its_tests():
    assert untested(PROJECT / "mptexp", TESTS) == []
    assert all((PROJECT / "mptexp" / name).exists() for name in ELSEWHERE)


def test_the_law_of_tests_can_be_broken(tmp_path):
    (tmp_path / "mptexp/report").mkdir(parents=True)
    (tmp_path / "mptexp/report/page.py").touch()
    assert untested(tmp_path / "mptexp", tmp_path) == ["report/page.py"]


def imported(path):
    """The modules that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {*names, *(node.module for node in nodes if isinstance(node, ast.ImportFrom))}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_imports_another(path):
    assert not imported(path) & {module.stem for module in MODULES}


def test_what_is_left_in_the_temporary_folder_is_named(tmp_path):  # at the end: see conftest.py
    for name in ("mptexpab12cd", "jax.socket", "jax.lock", "tmp1a2btfds"):
        (tmp_path / name).touch()
    assert left_behind(tmp_path) == ["tmp1a2btfds"]


def unplanted(table, tests):
    """The rows of a table whose last cell names no test, or one that does not exist."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    named = {row[0]: re.findall(r"`(\w+)`", row[-1]) if len(row) == 5 else [] for row in rows[2:]}
    return [row for row, names in named.items() if not names or not {*names} <= tests]


def test_every_cause_of_no_speedup_is_planted():
    table = (PROJECT / "docs/no-speedup.md").read_text().partition("## ")[0]
    defined = re.findall(r"^def test_(\w+)", "\n".join(p.read_text() for p in MODULES), re.M)
    assert table.count("\n| ") > 20
    assert unplanted(table, set(defined)) == []


def test_a_cause_that_is_planted_nowhere_is_found():
    head = "| a | b | c | d | planted in |\n| --- | --- | --- | --- | --- |\n"
    rows = "| x | y | z | w | `one` |\n| v | y | z | w | `two` |\n| u | y | z | w |\n"
    assert unplanted(head + rows, {"one"}) == ["v", "u"]


MARKS = """
def pytest_collection_finish(session):
    for item in session.items:
        print("kernel" in item.keywords, item.name.partition("[")[0])
"""


def collected(folder, *words):
    """The tests that pytest collects, without their parameters: quick ones, and marked ones."""
    (folder / "marks.py").write_text(MARKS)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTEST_ADDOPTS": "-p marks", "PYTHONPATH": path}
    said = subprocess.run(
        [*command, *words], cwd=PROJECT, env=environment, capture_output=True, text=True
    ).stdout
    return [set(re.findall(rf"^{marked} (\w+)$", said, re.M)) for marked in (False, True)]


def test_what_starts_a_jupyter_kernel_or_a_training_is_no_quick_check(tmp_path):
    files = ("execution/test_sweep.py", "execution/test_plan.py", "system/test_cli.py")
    files += ("training/test_measured_run.py", "training/test_precision.py")
    files += ("analysis/test_range_advice.py",)
    quick, slow = collected(tmp_path, *(f"tests/{name}" for name in files))
    assert quick & slow == set()
    assert {
        "test_plan_is_a_table_and_executes_nothing",
        "test_an_error_is_red_on_a_terminal",
        "test_filters_that_match_nothing_are_refused",
    } <= quick
    assert {
        "test_every_ending_is_a_record_and_the_sweep_goes_on",  # by what it calls
        "test_plan_shows_what_was_done",  # by a fixture
        "test_too_few_steps_to_time_are_unsupported",  # by a helper
        "test_gradients_are_clipped_without_their_loss_scale",  # it trains in this process
        "test_a_policy_that_fails_within_a_layer_is_not_advised",  # by a command's function
    } <= slow


def test_what_takes_long_is_no_quick_check():
    listed = [name.split("::") for name in slow_tests.names()]
    missing = [
        name
        for name, test in listed
        if not re.search(rf"^def {test}\(", (TESTS / name).read_text(), re.M)
    ]
    assert missing == []  # `make slow` lists them anew
    words = ("--collect-only", "-q", "-p", "no:cacheprovider", "-m", "slow")
    file = "analysis/test_emulated.py"
    command = [sys.executable, "-m", "pytest", *words, f"tests/{file}"]
    said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True).stdout
    found = {*re.findall(r"::(\w+)", said)}
    assert found == {test for name, test in listed if name == file} != set()


def test_the_longest_files_are_files():
    # Two were renamed and came last, where one process works alone.
    import conftest

    assert [n for n in conftest.LONGEST if not (PROJECT / f"tests/{n}.py").exists()] == []
