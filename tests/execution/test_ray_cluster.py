"""What is asked of a Ray cluster and cannot be had is refused."""

import os
import subprocess
import sys

import pytest
from support import mptexp

from mptexp.errors import ParamsError
from mptexp.execution import ray_cluster
from mptexp.execution.local_executor import Execution

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("how", "address", "words"),
    [
        (Execution(60, executor="slurm"), None, "--executor slurm: unknown; allowed: local, ray"),
        (Execution(60), "here:6379", "allowed: --executor ray"),
        (Execution(60, parallel=2, executor="ray"), None, "--parallel 2; allowed"),
    ],
)
def test_wrong_options_are_refused(how, address, words):
    with pytest.raises(ParamsError, match=words):
        ray_cluster.check(how, address, False)
    with pytest.raises(ParamsError, match="max_batch searches on one machine"):
        ray_cluster.check(Execution(60, executor="ray"), None, True)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "no such host:6379"])
def test_a_cluster_that_does_not_answer_is_refused(light, tmp_path, address):
    light({"seed": [0]})
    words = ["--executor", "ray", "--address", address]
    done = mptexp("run", "light.yaml", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--address {address}: " in done.stderr.replace("\n", " ")
    assert not (tmp_path / "reports").exists()


def test_ray_that_is_not_installed_is_named(monkeypatch):
    real = ray_cluster.importlib.util.find_spec
    found = {"ray": None, "pip": real("pip")}
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", found.get)
    with pytest.raises(ParamsError, match=r"pip install 'ray>="):
        ray_cluster.check(Execution(60, executor="ray"), None, False)


def test_rays_processes_do_not_import_what_nothing_needs():
    program = "import sys, jsonschema; print({'rfc3987_syntax', 'lark'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": ray_cluster.HIDING},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
