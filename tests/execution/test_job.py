import pytest

from mptexp.errors import ParamsError
from mptexp.execution import job


def test_an_unknown_notebook_is_refused(light, tmp_path):
    path = light({"seed": [0]})
    with pytest.raises(ParamsError, match="notebook is 'nothing'"):
        job.notebook_path("nothing", path)
    assert job.notebook_path("train", path).name == "train.py"
