import importlib.util
import os
import shlex
import shutil
import subprocess
import sys

from mptexp.host import project


def test_the_package_lies_in_the_checkout():
    assert (project.PACKAGE / "host/project.py").is_file()
    assert (project.PROJECT / "pyproject.toml").is_file()


def test_the_notebooks_are_those_of_the_checkout():
    assert set(project.notebooks()) == {"diagnose", "numerics", "report", "start_here", "train"}


def test_the_studies_are_those_of_the_checkout():
    files = {path.stem: path for path in (project.PROJECT / "params").glob("*.yaml")}
    assert project.studies() == files


def test_what_to_install_is_a_command_that_works_from_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # the environment is not the active one
    command = shlex.split(project.install("profile"))
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[4].startswith("xprof>=")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as uv makes them
    command = shlex.split(project.install("profile"))
    assert command[:5] == ["uv", "pip", "install", "--python", sys.executable]
    pip = tmp_path / "pip"
    pip.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(project.install("ray"))[:2] == ["pip", "install"]
    assert "extra" not in project.install("cuda")


INSTALLED = """
from mptexp.host import project
print(*[path for path in project.notebooks().values()])
"""


def test_an_installed_package_takes_its_notebooks_from_itself(tmp_path):
    site = tmp_path / "site-packages"
    shutil.copytree(project.PACKAGE, site / "mptexp", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path, site):  # another package's, or that of the working directory
        (folder / "notebooks").mkdir()
        (folder / "notebooks/report.py").write_text("raise SystemExit('owned')")

    def said():
        command = [sys.executable, "-P", "-c", INSTALLED]
        environment = os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        return done.stdout.decode().strip()

    assert said() == ""
    shutil.copytree(project.PROJECT / "notebooks", site / "mptexp/notebooks")
    assert f"{site}/mptexp/notebooks/report.py" in said().split()


def imported(cwd, path, *words):
    environment = project.child_environment(os.environ | {"PYTHONPATH": path})
    command = [sys.executable, *words, "-c", "import mptexp, sys; print(mptexp.__file__, sys.path)"]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_imports_nothing_from_where_one_stands(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('owned')")
    for path in ("", ".", ":", f"::{tmp_path.parent}/none", "./sub:../x"):
        assert str(tmp_path) + "'" not in imported(tmp_path, path)


def test_a_child_has_this_package_and_what_pythonpath_names(tmp_path):
    said = imported(project.PROJECT, str(tmp_path))
    assert said.startswith(str(project.PACKAGE))
    assert repr(str(tmp_path)) in said


IN_A_KERNEL = """\
import sys, warnings
warnings.simplefilter("ignore")
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance()
print(sys.path)
"""


def test_a_kernel_imports_nothing_of_another_environment_that_is_activated(tmp_path):
    # The lie: the runs of `.venv/bin/mptexp` would have imported that environment's tensorflow.
    packages = "lib/python{}.{}/site-packages".format(*sys.version_info)
    (tmp_path / "other" / packages).mkdir(parents=True)
    activated = os.environ | {"VIRTUAL_ENV": str(tmp_path / "other")}
    command = [sys.executable, "-c", IN_A_KERNEL]
    for environment, taken in ((activated, True), (project.child_environment(activated), False)):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert (str(tmp_path) in done.stdout) is taken
