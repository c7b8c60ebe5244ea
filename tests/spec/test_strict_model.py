"""A wrong value of a notebook's cell: a sentence, in IPython itself."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mptexp.spec import run


@pytest.fixture
def cell(capsys, monkeypatch, tmp_path):
    """Runs a cell and returns what it shows."""
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell(colors="nocolor")
    shell.history_manager.enabled = False

    def shown(source):
        shell.run_cell(source)
        return capsys.readouterr().out.strip()

    return shown


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("Run(policy='mixed_float61')", "policy is 'mixed_float61'; allowed: float32, tensor"),
        ("Run(policy='mixed_float61')", "did you mean mixed_float16?"),
        ("Run(batch_size=0)", "batch_size is 0; allowed: an integer of at least 1"),
        ("Run(dataset='digitz')", "did you mean digits?"),
        ("Run(polcy='float32')", "unknown key polcy; did you mean policy?"),
        ("Run(batch_size=33, replicas=2)", "batch_size 33 cannot be shared equally by 2 replicas"),
        ("Sweep(repeat=3)", "unknown key repeat; did you mean repeats?"),
        ("Sweep(matrix={'policy': 'float32'})", "matrix.policy is 'float32'; allowed: a list"),
        ("Sweep(timeout_min=0)", "timeout_min is 0; allowed: a number above 0"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(cell, given, told):
    shown = cell(f"from mptexp.spec.run import Run\nfrom mptexp.spec.grid import Sweep\n{given}")
    assert shown.startswith("ParamsError: ")
    assert told in shown
    assert "\n" not in shown


def test_every_wrong_value_is_told(cell):
    assert len(cell("from mptexp.spec.run import Run\nRun(epochs=0, jit='yes')").splitlines()) == 2


def test_a_parameters_cell_that_lacks_one_is_refused(cell):
    names = {name: value for name, value in run.defaults().items() if name != "jit"}
    shown = cell(f"from mptexp.spec.run import Run\nRun.read({names!r})")
    assert shown == "ParamsError: no parameter jit; see docs/params.md for all"


def test_data_that_is_not_there_is_told_in_one_line(cell):
    shown = cell(
        "from mptexp.training.data import image_folders\n"
        "image_folders.source('folder:nowhere', 0.2)"
    )
    assert shown.startswith("DataError: dataset folder:nowhere: ")
    assert "\n" not in shown


def test_a_model_of_ones_own_shows_where_it_failed(cell, tmp_path):
    (tmp_path / "broken_model.py").write_text("def build(shape, classes):\n    return shape[7]\n")
    shown = cell(
        "from mptexp.training import models\nfrom mptexp.spec.run import Run\n"
        "models.build(Run(model='broken_model:build'), (8, 8, 1), 10)"
    )
    assert "broken_model.py" in shown
    assert shown.splitlines()[-1].startswith("ModelError: model broken_model:build")
