"""What a process pays to import a framework, as mptexp does it and as `import` alone does.

    python benchmarks/framework_import.py [--backend tensorflow] [--rounds 10]

Each process imports Keras with the backend and ends; plain and `host.imports.framework` alternate.
Printed: processor time and wall time of the whole process, medians and the ratio mptexp / plain
with a 95 % t interval over the rounds. Direction: below 1, mptexp's processes take less.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np

from mptexp.analysis import contrast
from mptexp.spec.backends import BACKENDS

ARMS = {
    "plain": "import keras",
    "mptexp": 'from mptexp.host import imports\nwith imports.framework("keras"): import keras',
}


def seconds(program: str, backend: str) -> tuple[float, float]:
    """Wall time and processor time of a process, from its start to its end."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"KERAS_BACKEND": backend},
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{backend} could not be imported")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def main() -> None:
    """Measures both in turn and prints what each takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="tensorflow", choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    for program in ARMS.values():  # the first reads the disk
        seconds(program, options.backend)
    taken = np.array(
        [[seconds(ARMS[arm], options.backend) for arm in ARMS] for _ in range(options.rounds)]
    )
    for name, times in zip(("wall", "processor"), np.moveaxis(taken, 2, 0), strict=True):
        plain, ours = np.median(times, axis=0)
        over = contrast.paired(times[:, 1], times[:, 0])
        print(
            f"{name}: plain {plain:.2f} s, mptexp {ours:.2f} s, mptexp / plain "
            f"{over.estimate:.2f} [{over.low:.2f}, {over.high:.2f}] (n = {over.n})"
        )


if __name__ == "__main__":
    main()
