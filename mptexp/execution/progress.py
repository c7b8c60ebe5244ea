"""What a sweep shows while it works.

A bar on a terminal and in a notebook's cell, and everywhere a line per run that has ended.
"""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from rich import progress as bars
from rich.console import Console

from mptexp.execution import sweep
from mptexp.execution.sweep import Planned
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run
from mptexp.spec.terminal import plain, visible


class Bar(Protocol):
    """What shows how far a sweep is."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def add_task(self, description: str, *, total: float) -> Any: ...
    def update(
        self, task: Any, *, completed: float | None = None, description: str | None = None
    ) -> None: ...


class CellBar:
    """A bar in a notebook's cell: text that is replaced, so it needs no widgets.

    It stays when the sweep has ended, so that a saved notebook says how far it came.
    """

    def __init__(self) -> None:
        self.completed, self.total, self.description = 0.0, 0.0, ""

    def start(self) -> None:
        from IPython.display import display

        self.shown = display(self, display_id=True)

    def stop(self) -> None:
        self.update(None, description="")

    def add_task(self, description: str, *, total: float) -> None:
        self.description, self.total = description, total

    def update(
        self, task: None, *, completed: float | None = None, description: str | None = None
    ) -> None:
        self.completed = self.completed if completed is None else completed
        self.description = self.description if description is None else description
        self.shown.update(self)

    def __repr__(self) -> str:
        full = round(20 * self.completed / self.total)
        bar = "█" * full + "░" * (20 - full)
        return f"{self.completed:.0f}/{self.total:.0f} {bar} {self.description}".rstrip()


def console() -> Console:
    """The console that a function called in a cell, or in a program, writes to.

    Lines in a cell are plain text with colours: rich would make a table of HTML of each.
    """
    usual = Console(highlight=False, emoji=False)
    if not usual.is_jupyter:
        return usual
    coloured = {"force_terminal": True, "color_system": "standard", "force_jupyter": False}
    return Console(highlight=False, emoji=False, **coloured)


def _bar(console: Console) -> Bar | None:
    if Console().is_jupyter:
        return CellBar()
    if not console.is_terminal:
        return None
    return bars.Progress(
        bars.MofNCompleteColumn(),
        bars.BarColumn(bar_width=20),
        bars.TextColumn("{task.description}", markup=False),
        bars.TimeElapsedColumn(),
        console=console,
        transient=True,
    )


class Progress:
    """Shows runs done, the current run and the time left.

    Attributes:
        ended: how many runs have ended.
    """

    def __init__(self, console: Console, due: Sequence[Planned], found: Sweep) -> None:
        self.console, self.ended, self.of = console, 0, len(due)
        self.costs = sweep.Costs(due, found)
        self.left = {p.run_id: sweep.point(p.run) for p in due}
        self.working: dict[str, str] = {}  # runs at work and what they are called
        self.usual = _usual([p.run for p in due], found.axes())
        self.width = max(len(self._label(p)) for p in due)
        self.began = time.monotonic()
        self.bar = _bar(console)
        self.task = self.bar.add_task("", total=len(due)) if self.bar else None

    def __enter__(self) -> "Progress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def _label(self, planned: Planned) -> str:
        run = planned.run
        own = {name: getattr(run, name) for name in self.usual}
        values = [f"{name} {v}" for name, v in own.items() if v != self.usual[name]]
        return ", ".join([*values, f"block {planned.run.block}"])

    def show(self, planned: Planned, record: dict[str, Any] | None) -> None:
        """Takes what sweep.execute yields: a run that starts (None) or has ended (its record)."""
        if record is None:
            self.working[planned.run_id] = self._label(planned)
            self._describe()
            return
        self.ended += 1
        done = Planned(planned.run_id, planned.run, record["status"], record["wall_s"])
        self.costs.add(done)
        del self.left[planned.run_id]
        counter = f"[{self.ended:>{len(str(self.of))}}/{self.of}]"
        label = self._label(planned).ljust(self.width)
        left = f", {self._left()} left" if self.ended < self.of else ""
        text = plain(f"{counter} {label}  {_outcome(record)}{left}")
        self.console.print(text, soft_wrap=True, style=None if record["status"] == "ok" else "red")
        self.working.pop(planned.run_id, None)
        if self.bar:
            self.bar.update(self.task, completed=self.ended)
            self._describe()

    def _describe(self) -> None:
        """Says what is at work: the run that has been so for longest, and how many others."""
        if self.bar and self.working:
            first, *others = self.working.values()
            more = f" and {len(others)} more" if others else ""
            # The terminal may have no room for all of it; the time left is never cut off.
            description = f"{self._left()} left · {first}{more}"
            self.bar.update(self.task, description=visible(description))

    def _left(self) -> str:
        seconds = self.costs.total_s(self.left.values())
        if seconds is None:
            return "unknown time"
        # Those at work at a time share what is left.
        seconds /= max(1, len(self.working))
        return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


def _usual(runs: Sequence[Run], axes: Sequence[str]) -> dict[str, Any]:
    """The parameters that tell runs apart, and what most have: only another value is shown.

    An axis of the sweep is always shown.
    """
    found = {}
    for name in Run.model_fields:
        values = [getattr(run, name) for run in runs]
        own = name in axes or name not in ("block", "seed")
        if own and any(v != values[0] for v in values):
            found[name] = None if name in axes else Counter(values).most_common(1)[0][0]
    return found


def _outcome(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['error']}"
    step_ms = record["timing"]["step_s"] * 1e3
    return f"{step_ms:6.2f} ms/step  {record['wall_s']:5.1f} s"
