"""What a forked process does to be as one that was started anew; as a whole: test_forked.py."""

import os
import subprocess
import sys

import numpy as np
import psutil

from mptexp.execution import fork_server

FORKS = """
import os, sys
import numpy as np
from mptexp.execution import fork_server
held = np.ones(50 << 20, np.uint8)
with open(sys.executable, "rb") as file:
    import mmap
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(mapped[::4096])
def status(name):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(name + ":")]
    return int(line.split()[1])
def shared():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(x.split()[1]) for x in lines if x.startswith(("Shared_Dirty", "Shared_Clean")))
pages = fork_server._resident()
print(status("VmRSS"), status("VmHWM"), 0, flush=True)
for advised in (False, True):
    pid = fork_server._forked()
    if not pid:
        if advised:
            fork_server._advise(pages)
        print(status("VmRSS"), status("VmHWM"), int(held.sum()), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_forked_process_takes_on_the_memory_that_its_parent_holds():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parent, without, advised = (line.split() for line in done.stdout.splitlines())
    assert int(without[0]) < 0.95 * int(parent[0])
    assert abs(int(advised[0]) - int(parent[0])) < 0.02 * int(parent[0])
    assert advised[2] == str(50 << 20)


def test_stretches_of_pages():
    chosen = np.array([1, 0, 1, 1, 0, 0, 1], bool)
    assert fork_server._stretches(chosen) == [[0, 1], [2, 4], [6, 7]]
    assert fork_server._stretches(np.zeros(3, bool)) == []


SHOWS = """
import os
from mptexp.execution import fork_server
os.environ.clear()
os.environ.update({"MPTEXP_RUN_DIR": "/a folder/\u00e9", "SECOND": "x" * 5000})
fork_server._show()
print(flush=True)
input()
"""


def test_the_environment_that_a_process_has_now_is_the_one_that_others_read():
    environment = os.environ | {"MPTEXP_RUN_DIR": "", fork_server.ROOM: "x" * 9000}
    with subprocess.Popen(
        [sys.executable, "-c", SHOWS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as child:
        child.stdout.readline()
        seen = psutil.Process(child.pid).environ()
        child.communicate(b"\n")
    assert seen == {"MPTEXP_RUN_DIR": "/a folder/\u00e9", "SECOND": "x" * 5000}
