"""The step clock: windows of steps, whose figures are made in `records.timed_windows`.

The clock hooks `on_train_batch_begin` alone. Under JAX a callback that overrides
`on_train_batch_end` makes Keras fetch the logs of every step, which waits for the device and so
changes what is measured. (Under TensorFlow, Keras 3.15 fetches them in any case.)
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import keras

from mptexp.records import timed_windows
from mptexp.records.timed_windows import LEAST_WINDOWS, Window
from mptexp.spec import tasks

WINDOW_S = 0.2  # a window is long against one synchronization, short against a run


class Watcher(Protocol):
    """Looks at a model between steps."""

    def wants(self, step: int) -> bool:
        """Whether there is something to look at before this step."""

    def look(self, model: keras.Model, step: int) -> None:
        """Looks; may come at any step."""


class StepClock(keras.callbacks.Callback):
    """Times the steps of `fit` or `predict` in windows; the device is synchronized at their edges.

    A window runs from the beginning of one step to the beginning of a later one, so it holds the
    wait for data as well as the step. The first windows hold one step each, so that compilation
    and warm-up show; later ones grow to about WINDOW_S. The last step of an epoch belongs to no
    window: what follows it is validation.

    It ends the training where `target_ci` or `max_steps` says so: after the step that has begun.

    Args:
        synchronize: returns once the device has done the model's steps (the verb of a backend).
        target_ci: largest half width of the median's 95 % interval, as a fraction of the median;
            None asks for none.
        max_steps: most steps, warm-up included; None sets no limit.
        per_call: steps that one call of the backend executes.
        ends_training: whether the training ends with the clock.
        watchers: each looks at the model at the edges of windows, where the device has nothing to
            do; what that takes belongs to no window. A window also ends where one wants to look.

    Attributes:
        windows: the windows in order; step numbers go on through the epochs.
        opened: when each window began, seconds of `time.perf_counter`.
        ended_by: epochs, target_ci or max_steps.
        epochs: one dict per epoch, the columns of history.csv. `elapsed_s` counts from the first
            step, validation included.
    """

    def __init__(
        self,
        synchronize: Callable[[keras.Model], None],
        target_ci: float | None = None,
        max_steps: int | None = None,
        per_call: int = 1,
        ends_training: bool = True,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        super().__init__()
        self.watchers = watchers
        self.per_call = per_call
        self.ends_training = ends_training
        self.synchronize = synchronize
        self.target_ci = target_ci
        self.max_steps = max_steps
        self.windows: list[Window] = []
        self.opened: list[float] = []
        self.ended_by = "epochs"
        self.epochs: list[dict[str, float]] = []
        self._before = 0
        self._step = 0
        self._size = 1
        self._next_look = float(LEAST_WINDOWS)
        self._opened: tuple[int, float] | None = None
        self._start = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._opened = None
        self._before = epoch * (self.params.get("steps") or 0)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self.ended_by != "epochs" and not self.ends_training:
            return
        self._step = self._before + batch
        after = self.per_call
        if self.max_steps and self._step + after >= self.max_steps:
            self._end("max_steps")
        last = batch + after >= (self.params.get("steps") or 0) or self.ended_by != "epochs"
        wanted = any(watcher.wants(self._step) for watcher in self.watchers)
        if self._opened and self._step - self._opened[0] < self._size and not (last or wanted):
            return
        self.synchronize(self.model)
        now = time.perf_counter()
        if self._opened:
            self._close(now)
        elif self._step == 0:
            self._start = now
        for watcher in self.watchers:
            watcher.look(self.model, self._step)
        # Read again: what closing a window takes belongs to no window.
        self._opened = (self._step, time.perf_counter())

    def on_predict_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.on_train_batch_begin(batch, logs)

    def _close(self, now: float) -> None:
        first, opened = self._opened or (0, now)
        self.windows.append(Window(first, self._step - first, now - opened))
        self.opened.append(opened)
        full = self._step - first >= self._size  # not the remainder of an epoch
        if len(self.windows) > 5 and full and now - opened < WINDOW_S / 2:
            self._size *= 2
        if self.target_ci and len(self.windows) >= self._next_look:
            self._next_look = len(self.windows) * 1.05  # a look takes time that grows with them
            steady = self.windows[timed_windows.warmup_windows(self.windows) :]
            if timed_windows.relative_ci(steady) <= self.target_ci:
                self._end("target_ci")

    def _end(self, reason: str) -> None:
        if self.ended_by == "epochs":
            self.ended_by = reason
        if self.ends_training:
            self.model.stop_training = True
            self.model.stop_predicting = True

    @property
    def begun(self) -> int:
        """How many steps have begun; after the training, how many it had."""
        return self._step + self.per_call

    def timed(self) -> list[tuple[float, float]]:
        """When the windows that count began and ended, seconds of `time.perf_counter`."""
        pairs = list(zip(self.opened, self.windows, strict=True))
        steady = pairs[timed_windows.warmup_windows(self.windows) :]
        return [(opened, opened + window.seconds) for opened, window in steady]

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        elapsed = time.perf_counter() - self._start
        figures = tasks.recorded(logs or {})
        self.epochs.append({"epoch": epoch + 1, **figures, "elapsed_s": elapsed})
