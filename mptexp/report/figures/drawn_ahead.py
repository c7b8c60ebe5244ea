"""Figures that a second process draws, from the last on, while a notebook draws from the first.

Neither waits for the other: the notebook takes what it finds drawn, and draws what it does not.
"""

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mptexp.host import interrupt

if TYPE_CHECKING:
    from mptexp.report.figures.all_figures import SweepFigure

_folder: Path | None = None  # where they lie, also for a process that is forked within `into`


@contextmanager
def into(folder: Path) -> Iterator[None]:
    """Within it, figures that were drawn into a folder are not drawn again."""
    global _folder
    _folder = folder
    try:
        yield
    finally:
        _folder = None


def html(name: str) -> str:
    """A figure as HTML; empty where it is not drawn yet."""
    try:
        return (_folder / name).read_text(encoding="utf-8") if _folder else ""
    except OSError:
        return ""


@contextmanager
def drawing(figures: Callable[[], Iterable["SweepFigure"]], folder: Path) -> Iterator[None]:
    """Draws into a folder, in a process forked from this one that ends with what is within.

    Whoever calls knows that this process can be forked.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_draw, args=(figures, folder), daemon=True
    )
    try:
        # Ctrl-C reaches both: that process keeps what is held here. Where no more are allowed, the
        # notebook draws all.
        with interrupt.held(), suppress(OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 3.12, because libraries have threads
            process.start()
        yield
    finally:
        if process.pid:
            process.kill()
            process.join()


def _draw(figures: Callable[[], Iterable["SweepFigure"]], folder: Path) -> None:
    with open(os.devnull, "w") as nothing:  # a warning is the notebook's to tell, and once
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    # What cannot be drawn here, as for want of memory, the notebook draws, and says why.
    with suppress(Exception):
        for figure in reversed([*figures()]):
            part = folder / f".{figure.name}"
            part.write_text(figure.html(), encoding="utf-8")
            part.rename(folder / figure.name)
