"""Limits of the shell: what a command needs is taken where it may be, and named where not."""

import resource
import subprocess
import sys

import pytest

# In a process of its own: where the tests have used JAX, a fork of theirs is a warning.
LIMITED = """
import os, resource, sys
limit, soft, hard = map(int, sys.argv[1:4])
resource.setrlimit(limit, (soft, hard))
os.execv(sys.executable, [sys.executable, *sys.argv[4:]])
"""


def python_under(limit, soft, hard, *words):
    numbers = map(str, (limit, soft, hard))
    command = [sys.executable, "-c", LIMITED, *numbers, *words]
    return subprocess.run(command, capture_output=True, text=True)


def under(limit, soft, hard, *words):
    return python_under(limit, soft, hard, "-m", "mptexp", *words)


def test_few_open_files_are_widened_to_what_is_allowed():
    widened = (
        "import resource; from mptexp.host import shell_limits; shell_limits.widen();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024, shell_limits.tight())"
    )
    done = python_under(resource.RLIMIT_NOFILE, 64, 1024, "-c", widened)
    assert done.stdout == "True \n", done.stderr


def test_too_few_open_files_are_refused():
    done = under(resource.RLIMIT_NOFILE, 64, 64, "plan", "quickstart")
    said = "error this shell allows 64 open files (ulimit -n; 256 suffice)\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("megabytes", [300, 800])
def test_what_fails_for_want_of_memory_says_what_is_allowed(written, megabytes):
    limit = megabytes * 2**20
    done = under(resource.RLIMIT_AS, limit, limit, "report", str(written))
    assert "Traceback" not in done.stderr
    # 800 MiB suffice or not, by where the loader places libraries; 300 never do.
    if megabytes == 800 and done.returncode == 0:
        assert (written / "index.html").read_text().rstrip().endswith("</html>")
        return
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"this shell allows {megabytes} MiB of memory (ulimit -v; 8,192 suffice)"


@pytest.fixture
def written(tmp_path):
    from builders import written_sweep

    written_sweep(tmp_path / "sweep", "GPU", 1)
    return tmp_path / "sweep"
