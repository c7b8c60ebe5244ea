"""What `mptexp run` shows while it works: a bar on a terminal or in a cell, a line for each run.

The bar on a terminal is rich's. A cell has a bar of its own: rich's and tqdm's need ipywidgets
there, which a saved notebook does not show again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from mptexp.execution import device_slots, plan
from mptexp.execution.job import Job
from mptexp.execution.plan import Planned
from mptexp.host.devices import same_model
from mptexp.host.terminal import plain, visible
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run


def cell_console() -> Console:
    """Returns the console that a function called in a cell, or in a program, writes to.

    Lines in a cell are plain text with colours: rich would make a table of HTML of each.
    """
    usual = Console(highlight=False, emoji=False)
    if not usual.is_jupyter:
        return usual
    coloured = {"force_terminal": True, "color_system": "standard", "force_jupyter": False}
    return Console(highlight=False, emoji=False, **coloured)


@dataclass(frozen=True)
class Output:
    """Where a sweep at work says what it does.

    Attributes:
        console: for the lines and the bar.
        brief: whether to leave out what opens a sweep: how many runs, where to, how long.
        on_record: called with the record of each run that has ended.
        fresh: whether the same command again would discard what this one has finished.
        anew: whether it would in any case, as `mptexp advise` does.
    """

    console: Console = field(default_factory=cell_console)
    brief: bool = False
    on_record: Callable[[Mapping[str, Any]], None] | None = None
    fresh: bool = False
    anew: bool = False

    def say(self, text: str, style: str | None = None) -> None:
        """Prints a line, however long, with its control characters shown."""
        self.console.print(plain(text), soft_wrap=True, style=style)

    def announce(self, chosen: Sequence[Planned], job: Job, costs: plan.Costs) -> None:
        """Says how many of the chosen runs are done, and how many will be executed."""
        if self.brief:
            return
        for sentence in device_slots.found(p.run for p in chosen):
            self.say(sentence)
        n, (done, due, elsewhere) = len(chosen), plan.counts(chosen).values()
        if done:
            self.say(f"{done} of {n} runs are done already")
        if elsewhere:
            lacking = ", ".join(plan.lacking(chosen))
            devices = f"for devices that this machine lacks ({lacking})"
            self.say(f"{elsewhere} of {n} runs are {devices}")
        for state, why in AGAIN.items():
            again = sum(p.state == state for p in chosen)
            if again:
                self.say(f"{again} of them {'is' if again == 1 else 'are'} measured again: {why}")
        if due:
            runs = f"{due} {'run' if due == 1 else 'runs'} of {job.notebook.stem}"
            again = f"; the same command{' without --fresh' * self.fresh} goes on"
            self.say(
                f"{runs} into {job.directory.root}, {expected(chosen, costs)} "
                f"(Ctrl-C stops{again * (not self.anew)})"
            )


def expected(planned: Sequence[Planned], costs: plan.Costs) -> str:
    """How long the runs that are due will take, in words: side by side where GPUs allow it."""
    seconds = plan.remaining_s(planned, costs)
    if seconds is None:
        return "time unknown until the first run has ended"
    due = [p.run for p in planned if p.due]
    models = {run.gpu_model for run in due}
    if len(models) != 1 or any(run.replicas > 1 for run in due):  # which share devices unevenly
        return f"about {duration(seconds)}"
    here = sum(same_model(next(iter(models)), slot.model) for slot in device_slots.slots())
    return f"about {duration(seconds / max(1, min(here, len(due))))}"


def duration(seconds: float) -> str:
    """Seconds as a reader takes them in: `40 s`, `3 min` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# --- the bar ---------------------------------------------------------------------------------


# Why runs that have ended are measured again.
AGAIN = {
    plan.INTERRUPTED: "the block was interrupted; what it had is kept under superseded",
    plan.FLAGGED: "the comparison is not valid; what it had is kept under superseded",
}
Said = Callable[[], str]
Bar = Callable[[int, Said], None]  # shows how many runs have ended, and what is at work by now


@dataclass
class CellBar:
    """A bar in a notebook's cell: text that is replaced, so it needs no widgets."""

    total: int
    ended: int = 0
    description: str = ""

    def __repr__(self) -> str:
        full = round(20 * self.ended / self.total)
        bar = "█" * full + "░" * (20 - full)
        return f"{self.ended}/{self.total} {bar} {self.description}".rstrip()


@contextmanager
def bar(console: Console, total: int) -> Iterator[Bar]:
    """A bar for `total` runs, on a terminal and in a notebook's cell; elsewhere nothing."""
    from rich import progress as bars  # a plan does without

    if Console().is_jupyter:
        yield from _cell_bar(total)
    elif console.is_terminal:

        class SaidColumn(bars.ProgressColumn):
            """What is said anew each time that the bar is drawn: of a long run the time goes on."""

            def render(self, task: bars.Task) -> Text:
                return Text(task.fields["said"](), no_wrap=True)

        columns = (
            bars.MofNCompleteColumn(),
            bars.BarColumn(bar_width=20),
            SaidColumn(),
            bars.TimeElapsedColumn(),
        )
        with bars.Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task("", total=total, said=str)
            yield lambda n, said: shown.update(task, completed=n, said=said)
    else:
        yield lambda n, said: None


def _cell_bar(total: int) -> Iterator[Bar]:
    from IPython.display import display

    shown = CellBar(total)
    handle = display(shown, display_id=True)

    def update(ended: int, said: Said) -> None:
        shown.ended, shown.description = ended, said()
        handle.update(shown)

    try:
        yield update
    finally:  # the bar stays, so that a saved notebook says how far the sweep came
        update(shown.ended, str)


class Progress:
    """Shows the runs that have ended, those at work and the time left.

    It takes the costs of the whole directory, so that a sweep that goes on knows what it knew, and
    adds those of the runs that end.

    Attributes:
        ended: how many runs have ended.
        total: how many there are.
        bar: shows how far the sweep is; nothing before one is set.
    """

    def __init__(
        self, console: Console, due: Sequence[Planned], sweep: Sweep, costs: plan.Costs
    ) -> None:
        self.console, self.ended, self.total = console, 0, len(due)
        self.costs = costs
        self.left = {p.run_id: plan.point(p.run) for p in due}
        self.begun: dict[str, tuple[str, float]] = {}  # run id -> label, when: of those at work
        # What the bar shows, which another thread draws: replaced as a whole, never changed.
        self.shown = Shown()
        self.usual = _usual([p.run for p in due], sweep.axes())
        self.width = max(len(self._label(p)) for p in due)
        self.bar: Bar = lambda n, said: None

    def _label(self, planned: Planned) -> str:
        run = planned.run
        own = {name: getattr(run, name) for name in self.usual}
        values = [f"{name} {v}" for name, v in own.items() if v != self.usual[name]]
        return ", ".join([*values, f"block {planned.run.block}"])

    def show(self, planned: Planned, record: Mapping[str, Any] | None) -> None:
        """Takes what an executor yields: a run that starts (None) or has ended (its record)."""
        if record is None:
            self.begun[planned.run_id] = self._label(planned), time.monotonic()
            self._look()
        else:
            self._end(planned, record)
        self.bar(self.ended, lambda: self.shown.text())

    def _end(self, planned: Planned, record: Mapping[str, Any]) -> None:
        self.ended += 1
        self.costs.add(Planned(planned.run_id, planned.run, record["status"], record["wall_s"]))
        del self.left[planned.run_id]
        self.begun.pop(planned.run_id, None)
        workers = len(self.shown.at_work)  # as many as before: another run takes its place
        self._look()
        counter = f"[{self.ended:>{len(str(self.total))}}/{self.total}]"
        label = self._label(planned).ljust(self.width)
        left = f", {self.shown.left(workers)} left" if self.ended < self.total else ""
        text = plain(f"{counter} {label}  {_outcome(record)}{left}")
        self.console.print(text, soft_wrap=True, style=None if record["status"] == "ok" else "red")

    def _look(self) -> None:
        """Estimates anew: of thousands of runs not each time that the bar is drawn."""
        waiting = [key for run_id, key in self.left.items() if run_id not in self.begun]
        at_work = [
            (label, begun, self.costs.run_s(self.left[run_id]))
            for run_id, (label, begun) in self.begun.items()
        ]
        self.shown = Shown(tuple(at_work), self.costs.total_s(waiting))


@dataclass(frozen=True)
class Shown:
    """What stands beside the bar.

    Attributes:
        at_work: label, beginning (of time.monotonic) and estimated seconds of each run at work, the
            one that has been longest first; None where nothing is known.
        waiting_s: estimated seconds of all that have not begun; None where nothing is known.
    """

    at_work: tuple[tuple[str, float, float | None], ...] = ()
    waiting_s: float | None = 0.0

    def text(self) -> str:
        """The time left by now, the run that has been at work longest, and how many others are."""
        if not self.at_work:
            return ""
        first, *others = [label for label, _, _ in self.at_work]
        more = f" and {len(others)} more" if others else ""
        # A narrow terminal cuts off the end; the time left stands first so that it stays.
        return visible(f"{self.left()} left · {first}{more}")

    def left(self, workers: int | None = None) -> str:
        """`about 3 min`: what is left is shared by as many as are at work, or as are given."""
        now, rest = time.monotonic(), self.waiting_s
        for _, begun, seconds in self.at_work:
            known = rest is not None and seconds is not None
            rest = rest + max(0.0, seconds - (now - begun)) if known else None
        if rest is None:
            return "unknown time"
        return f"about {duration(rest / max(1, workers or len(self.at_work)))}"


def _usual(runs: Sequence[Run], axes: Sequence[str]) -> dict[str, Any]:
    """The parameters that tell runs apart, with the value that a label leaves out.

    It is that of most runs; None for an axis of the sweep, which is always shown, and where no
    value is most runs': which of two is left out, nobody would know.
    """
    usual: dict[str, Any] = {}
    for name in Run.model_fields:
        values = [getattr(run, name) for run in runs]
        own = name in axes or name not in ("block", "seed")
        if own and any(v != values[0] for v in values):
            value, runs_with = Counter(values).most_common(1)[0]
            usual[name] = value if name not in axes and 2 * runs_with > len(runs) else None
    return usual


def _outcome(record: Mapping[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['error']}"
    step_ms = record["timing"]["step_s"] * 1e3
    return f"{step_ms:6.2f} ms/step  {record['wall_s']:5.1f} s"
