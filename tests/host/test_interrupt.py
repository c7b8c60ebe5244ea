"""Ctrl-C before a command has begun, and where a library loses it."""

import subprocess
import sys

IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "mptexp.cli.common":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from mptexp.__main__ import main
main()
"""
LOST = """
import os, signal, time
from mptexp.host import interrupt
class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        print("not reached")
interrupt.listen()
interrupt.check()
try:
    Lost()
    assert interrupt.asked()
    time.sleep(60)
except KeyboardInterrupt:
    print("and ends")
interrupt.check()
"""
IN_A_STRING = """
import os, signal, sys
from mptexp.host import interrupt
interrupt.listen()
try:
    exec("os.kill(os.getpid(), signal.SIGINT)")
except KeyboardInterrupt:
    interrupt.ignore()
    sys.exit(130)
"""
IGNORED = """
import os, signal
from mptexp.host import interrupt
signal.signal(signal.SIGHUP, signal.SIG_IGN)
interrupt.listen()
os.kill(os.getpid(), signal.SIGHUP)
assert not interrupt.asked()
interrupt.ignore()
os.kill(os.getpid(), signal.SIGINT)
assert not interrupt.asked()
"""
HELD = """
import os, signal
from mptexp.host import interrupt
def press(): os.kill(os.getpid(), signal.SIGINT)
try:
    try:
        press()
    finally:
        with interrupt.held():
            press()
            print("ended whole")
except KeyboardInterrupt:
    print("once")
try:
    with interrupt.held():  # where nothing ends, it is not lost
        press()
        print("ended as well")
except KeyboardInterrupt:
    print("twice")
try:
    press()
except KeyboardInterrupt:
    print("as before")
"""


def done(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_ctrl_c_while_modules_are_imported_is_a_line():
    ended = done(IMPORTING)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "stopped; the same command can be given again\n"


def test_the_exit_status_is_ours_wherever_it_came():
    assert done(IN_A_STRING).returncode == 130


def test_what_a_library_loses_comes_again_and_is_remembered():
    ended = done(LOST)
    assert ended.stdout == "and ends\n"
    assert "ignored" not in ended.stderr
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")


def test_what_is_ignored_stays_ignored():
    ended = done(IGNORED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_ends_by_a_first_is_not_broken_off_by_a_second():
    ended = done(HELD)
    said = ["ended whole", "once", "ended as well", "twice", "as before"]
    assert ended.stdout.splitlines() == said
