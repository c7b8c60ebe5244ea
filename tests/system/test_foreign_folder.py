"""A folder that somebody else has packed: mptexp runs none of its code and deletes none of it."""

import shutil
import subprocess
import sys

import pytest
from builders import written_sweep
from support import PROJECT, mptexp, mptexp_anew

OWNED = "import pathlib; pathlib.Path({where!r}, 'owned').touch()\nraise SystemExit('owned')\n"
MODULES = ("pandas", "numpy", "matplotlib", "sitecustomize", "usercustomize", "great_tables")
MODULES += ("ipykernel", "papermill", "nbconvert", "IPython", "seaborn", "PIL")


@pytest.fixture
def folder(tmp_path):
    """A folder with a sweep, and with modules and notebooks of mptexp's names that do harm."""
    made = tmp_path / "received"
    written_sweep(made / "sweep", "GPU", 1.0)
    (made / "notebooks").mkdir()
    code = OWNED.format(where=str(tmp_path))
    for place in (made, made / "sweep", made / "notebooks"):
        for name in MODULES:
            (place / f"{name}.py").write_text(code)
    (made / "matplotlibrc").write_text("backend: module://pandas\ntext.usetex: True\n")
    head = (PROJECT / "notebooks/report.py").read_text().partition("# %% [markdown]")[0]
    for name in ("report", "train"):
        (made / "notebooks" / f"{name}.py").write_text(f"{head}# %%\n{code}")
    return made


def test_a_report_and_a_site_run_no_code_of_the_folder_one_stands_in(folder, tmp_path):
    article = ("export", "sweep", "--to", "article")
    for words in (("report", "sweep"), ("publish", "sweep", "--to", "site"), article):
        done = mptexp_anew(*words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2.00" in (folder / "sweep/index.html").read_text()
    assert not (tmp_path / "owned").exists()


def test_a_report_is_made_by_another_notebook_only_where_it_is_named(folder, tmp_path):
    notebook = folder / "notebooks/mine.py"
    shutil.copy(PROJECT / "notebooks/report.py", notebook)
    notebook.write_text(notebook.read_text() + '\n# %%\nprint("made by mine")\n')
    done = mptexp("report", "sweep", "--notebook", "notebooks/mine.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "made by mine" in (folder / "sweep/index.html").read_text()
    done = mptexp("report", "sweep", "--notebook", "notebooks/none.py", cwd=folder)
    assert done.returncode == 2
    assert "notebooks/none.py: allowed: the path of a .py" in done.stderr


LOOK = """
# %%
import pandas
print("pandas is", pandas.__name__)
assert "owned" not in pandas.__file__
"""


def test_a_run_imports_nothing_of_the_folder_one_stands_in(light, folder, tmp_path):
    params = light({"seed": [0]})
    (folder / "light.yaml").write_text(params.read_text())
    (folder / "light.py").write_text((tmp_path / "light.py").read_text() + LOOK)
    done = mptexp_anew("run", "light.yaml", "--no-report", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "owned").exists()


def test_a_notebook_named_train_is_the_packages_own(folder):
    (folder / "x.yaml").write_text("matrix: {policy: [float32]}\n")
    done = mptexp("plan", "x.yaml", cwd=folder)
    assert done.stdout.startswith(f"notebook: {PROJECT}/notebooks/train.py\n"), done.stderr
    (folder / "x.yaml").write_text("notebook: ../notebooks/train\nmatrix: {policy: [float32]}\n")
    assert mptexp("plan", "x.yaml", cwd=folder).returncode == 2


def test_the_figures_of_a_run_take_no_settings_from_the_folder_one_stands_in(folder, tmp_path):
    code = "from mptexp import training; training.table; import matplotlib as m; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + "print(m.rcParams['text.usetex'])"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "False\n", done.stderr
    assert not (tmp_path / "owned").exists()
