"""What a release attaches: sdist, wheel, and start_here as a notebook that installs the wheel.

`python docs/release.py --to dist --from URL --tag v0.2.0`; the tag must be of this tree's version.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat

import mptexp

PROJECT = Path(__file__).resolve().parent.parent
INSTALL = """\
# Where mptexp is installed already, leave this cell out. A runtime that had another TensorFlow or
# NumPy imported asks to be restarted afterwards: do, and go on with the next cell.
%pip install --quiet "{wheel}"
"""


def build(folder: Path) -> Path:
    """Makes the sdist, and the wheel from the sdist alone, as an index would; returns the wheel."""
    source = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(source, cwd=PROJECT, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, sdist]
    subprocess.run(wheel, cwd=folder, check=True)
    (made,) = folder.glob("*.whl")
    return made


def notebook(wheel: str, name: str = "start_here") -> nbformat.NotebookNode:
    """A notebook of the project with a first cell that installs a wheel from a URL or path."""
    book = jupytext.read(PROJECT / f"notebooks/{name}.py")
    book.metadata.pop("jupytext", None)  # else Jupyter would look for the script beside it
    first = nbformat.v4.new_code_cell(INSTALL.format(wheel=wheel), id="install")
    book.cells = [first, *book.cells]
    return book


def main() -> None:
    """Builds all of it into a new folder."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--to", type=Path, required=True, help="a new folder")
    words.add_argument("--from", dest="place", required=True, help="URL of the release's files")
    words.add_argument("--tag", default=f"v{mptexp.__version__}", help="of the release")
    asked = words.parse_args()
    if asked.tag != f"v{mptexp.__version__}":
        words.error(f"--tag {asked.tag}: this tree is v{mptexp.__version__}")
    asked.to.mkdir(parents=True)
    wheel = build(asked.to.resolve())
    book = notebook(f"{asked.place.rstrip('/')}/{wheel.name}")
    nbformat.write(book, asked.to / "start_here.ipynb")


if __name__ == "__main__":
    main()
