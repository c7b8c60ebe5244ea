"""The figures of a report, drawn beforehand by several processes: half of its time is drawing."""

import os
import pickle
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from mptexp.execution import jupyter_kernel
from mptexp.report.figures import registry, style
from mptexp.report.figures.registry import SweepFigure
from mptexp.report.measured import MeasuredSweep

Wanted = tuple[SweepFigure, float]  # and its width


@contextmanager
def drawn(sweep: MeasuredSweep, first: SweepFigure | None) -> Iterator[None]:
    """Draws a sweep's figures while what is within runs; afterwards `SweepFigure.html` has them.

    Where nothing can be forked, or a process fails, a figure is drawn when it is shown.

    Args:
        first: the chart beside the answer.
    """
    figures = [(f, style.WIDTH) for f in registry.figures(sweep) if f.row.section != "answer"]
    figures += [(first, style.LEAD_WIDTH)] if first else []
    several = min(_processors(), len(figures)) if jupyter_kernel.may_fork() else 0
    drawing = [_begun(figures[k::several]) for k in range(several)]
    try:
        yield
    except BaseException:
        for pid, _ in drawing:
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        for pid, file in drawing:
            with file:
                if os.waitpid(pid, 0)[1] == 0:
                    file.seek(0)
                    sweep.drawn.update(pickle.load(file))


def _processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _begun(figures: Sequence[Wanted]) -> tuple[int, IO[bytes]]:
    """A process that draws some figures, and the file that then holds them, which no other has."""
    from mptexp.execution import fork_server

    file = tempfile.TemporaryFile()  # noqa: SIM115, whoever reads it closes it
    return fork_server.begun(lambda: _draw(figures, file)), file


def _draw(figures: Sequence[Wanted], file: IO[bytes]) -> None:
    known = {}
    with warnings.catch_warnings(action="ignore"):
        for figure, inches in figures:
            with suppress(Exception):  # as it is drawn where it is shown, the error is said
                known[figure.name, inches] = figure.documents(inches)
    pickle.dump(known, file)
    file.flush()
