import pytest

from mptexp.errors import ParamsError
from mptexp.execution import job


def test_an_unknown_notebook_is_refused(light, tmp_path):
    path = light({"seed": [0]})
    # The lie: a plan of runs in the notebook of the report, each of which then failed.
    for name in ("nothing", "report", "start_here"):
        with pytest.raises(ParamsError, match=f"notebook is '{name}'; allowed: train, or the path"):
            job.notebook_path(name, path)
    assert job.notebook_path("train", path).name == "train.py"
