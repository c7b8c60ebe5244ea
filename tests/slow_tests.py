"""Writes down which tests take long: `make slow`; `make check` leaves them out."""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_suffix(".txt")
SECONDS = 0.7  # on two cores of an EPYC; of all parameters of a test together


def names():
    """The tests of the list, as `report/test_export.py::test_what_it_does`."""
    return LIST.read_text().splitlines()


def of_report(file):
    """Those that took so long, by pytest's `--junitxml`."""
    took = Counter()
    for case in ElementTree.parse(file).iter("testcase"):
        path = case.get("classname").removeprefix("tests.").replace(".", "/")
        took[f"{path}.py::{case.get('name').partition('[')[0]}"] += float(case.get("time"))
    return sorted(name for name, seconds in took.items() if seconds >= SECONDS)


if __name__ == "__main__":
    LIST.write_text("\n".join(of_report(sys.argv[1])) + "\n")
