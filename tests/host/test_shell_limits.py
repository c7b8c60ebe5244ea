"""Limits of the shell: what a command needs is taken where it may be, and named where not."""

import resource
import subprocess
import sys

import pytest

from mptexp.host import shell_limits

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


@pytest.mark.parametrize(
    ("limit", "letter"), [(resource.RLIMIT_AS, "v"), (resource.RLIMIT_DATA, "d")]
)
def test_memory_that_is_too_little_for_a_jupyter_kernel_is_refused(limit, letter):
    # A report waited for ever: with 800 or 1,100 MiB of addresses its kernel failed in a thread,
    # now and then, and never answered.
    done = under(limit, 800 * 2**20, 800 * 2**20, "plan", "quickstart")
    said = f"error this shell allows 800 MiB of memory (ulimit -{letter}; 8,192 suffice)\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_with_the_least_that_is_not_refused_a_report_is_made(written, limit):
    least = shell_limits.LEAST[limit]
    done = under(limit, least, least, "report", str(written))
    assert (done.returncode, done.stderr) == (0, "")
    assert (written / "index.html").read_text().rstrip().endswith("</html>")


def test_a_command_that_fails_says_what_the_shell_allows(written):
    done = under(resource.RLIMIT_FSIZE, 2**10, 2**10, "report", str(written))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.endswith(
        "this shell allows 1 KiB in a file (ulimit -f; 1,048,576 suffice)\n"
    )


@pytest.fixture
def written(tmp_path):
    from builders import written_sweep

    written_sweep(tmp_path / "sweep", "GPU", 1)
    return tmp_path / "sweep"
