"""A clock for a training that mptexp does not run: Keras's `fit`, or any loop.

It measures as a run of mptexp's does: windows of steps between two synchronizations of the device,
first steps left out, sensors and interference beside them. What it cannot know of a foreign script
is named in its record, from which nothing is claimed.
"""

import fcntl
import importlib.util
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from mptexp.errors import ParamsError
from mptexp.records import interference, schema, store, timed_windows
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import given_paths, strict_model, yaml_documents
from mptexp.spec.backends import BACKEND_ROWS, BACKENDS
from mptexp.spec.policies import POLICY_ROWS, without_kernels
from mptexp.spec.run import LEAST_STEPS, Run
from mptexp.training import environment, foreign_policy
from mptexp.training.backends import backend
from mptexp.training.measure import sensors

WINDOW_S = 0.2  # as of the step clock
SINGLE = 5  # the first windows hold one step each, so that compilation shows
TRAINABLE = tuple(row.name for row in POLICY_ROWS.values() if not row.inference_only)
LACKS = ("data", "data_order", "fed", "initial_weights", "model_source", "notebook")
# The parameters of a run that are known of a script; of Keras's `fit` also the frontend.
KNOWN = ("gpu_model", "backend", "dataset", "model", "policy", "batch_size", "phase", "block")
ONE_EACH = "allowed: a timer for each training, of `fit` or of a loop"
OF_MORE_EXECUTIONS = (
    "of epochs with more batches, or with a smaller steps_per_execution: an epoch's last execution "
    "belongs to no window, and here an epoch is one execution"
)
DROPPED = (
    "nothing that its steps made was held when a window of them ended, and JAX cannot wait for "
    "what nobody holds: unless each step waits for its own result, launches were timed"
)
BESIDE = "steps of another StepTimer of this process ran within its windows, and are in its times"
NOTE = (
    "timed by StepTimer in a script that mptexp did not run: its data, the order of its images, "
    "its initial weights and its source are not recorded, so nothing is claimed"
)


def _refuse_unknown(name: str, value: str | None, allowed: Sequence[str]) -> None:
    if value is not None and value not in allowed:
        raise ParamsError(f"{name} {value!r}: unknown; allowed: {', '.join(allowed)}")


def _refuse_arguments(synchronize: Callable[..., Any]) -> None:
    """Raises ParamsError for what needs arguments, as `jax.block_until_ready` itself does.

    It is called without. What tells nothing of its arguments, such as a method of JAX, passes.
    """
    try:
        signature = inspect.signature(synchronize)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ParamsError(
            f"synchronize is {synchronize!r}, called without arguments: {error}; allowed: a "
            "function without arguments, such as lambda: jax.block_until_ready(state)"
        ) from None


class StepTimer:
    """Times steps: as a callback of Keras's `fit`, or around the steps of a loop.

    `model.fit(..., callbacks=[timer])`, or `with timer.step(): ...` for each step. Keras is not
    imported for a loop: Keras asks a callback for its hooks, not for its class.

    Args:
        synchronize: returns once the device has done its work; needed for a loop in JAX, such as
            `lambda: jax.block_until_ready(state)`. PyTorch, TensorFlow and Keras have their own.
        batch_size: images in a step, without which nothing can be recorded.
        policy: the precision of a loop, a name of `mptexp.policies()`; of Keras's model read back.
        backend: tensorflow, jax or torch; by default Keras's in `fit`, and in a loop the framework
            that was imported, where it is the only one.

    Attributes:
        windows: windows of steps in order: first_step, steps, seconds; a record of hours holds
            several of them as one, and `timing` is of these.
    """

    _first: ClassVar[object | None] = None  # the first steps that were timed in this process
    _all_begun: ClassVar[int] = 0  # steps that timers of this process were told of

    def __init__(
        self,
        synchronize: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        policy: str | None = None,
        backend: str | None = None,
    ) -> None:
        _refuse_unknown("policy", policy, TRAINABLE)
        _refuse_unknown("backend", backend, BACKENDS)
        if synchronize is not None and not callable(synchronize):
            raise ParamsError(f"synchronize is {synchronize!r}; allowed: a function to call")
        if synchronize is not None:
            _refuse_arguments(synchronize)
        size = None if batch_size is None else yaml_documents.native(batch_size)
        if size is not None and (wrong := strict_model.fault(Run, "batch_size", size)):
            raise ParamsError(wrong[1])
        self._synchronize, self._batch_size, self._policy = synchronize, size, policy
        self._said = backend or ""
        self.backend = self._said  # empty until it is known
        self.model: Any = None
        self.params: Mapping[str, Any] = {}
        self._sampler: sensors.Sampler | None = None
        self._device = "cpu"  # cpu or gpu
        self._open = threading.Lock()  # while a loop's step is
        self._anew()

    def __deepcopy__(self, memo: Any) -> "StepTimer":
        """A timer that has timed nothing yet: who copies callbacks trains with the copy."""
        return StepTimer(self._synchronize, self._batch_size, self._policy, self._said or None)

    def _anew(self) -> None:
        """Nothing is timed yet."""
        self.windows: list[dict[str, Any]] = []
        self._opened: list[float] = []
        self._step, self._size, self._first, self._began = 0, 1, 0, 0.0
        self._at_once = 1  # steps that begin together
        self._blind = 0  # windows that ended before the framework was known
        self._samples: list[sensors.Sample] = []
        self._of_epoch: tuple[int, int] | None = None  # steps that ended, and that began at once
        self._total: int | None = None  # steps of an epoch of `fit`; None where not known yet
        self._unsure: int | None = None  # windows before one that may hold fewer steps
        self._one_execution = False  # whether an epoch was no more
        self._function: Any = None  # of Keras, that trains
        self._traced = False  # whether the first steps of this `fit` trace it
        self._batch: int | None = None  # of `fit`, that began last
        self._other_batch = ""
        self._held = False  # whether the batch size was, against what Keras has counted
        self._agreed, self._other_count = False, ""  # of first steps; of an epoch
        self._validates = False  # whether this timer is told of evaluations
        self._looked = False  # at what the first step of a `fit` has told
        self._state = ""  # of the model
        self._steps = object()  # names them, of one model
        self._peak_begun: int | None = None  # when the window began
        self._peak: int | None = None  # where steps raised it
        self._begun = self._of_others = 0  # steps of this timer; of others when a window began
        self._held_any = False  # whether arrays that steps made were held as a window ended
        self._beside = False  # whether another timer's steps began within a window

    # --- a loop -----------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step of a loop.

        A window holds all from the beginning of a step to that of a later one, and so the wait for
        a batch between two; the last step, after which none begins, belongs to none.

        Raises:
            ParamsError: in JAX without `synchronize`; where several frameworks are imported, and
                none of them was named; within another step, also of another thread; after a `fit`.
        """
        if self.model is not None:
            raise ParamsError(f"the steps of `fit` were timed by it; {ONE_EACH}")
        if not self._open.acquire(blocking=False):
            raise ParamsError(
                "a step of this timer has not ended; allowed: one step after the other, and a "
                "timer for each loop"
            )
        try:
            self._advance(1)
            yield
        except BaseException:
            self.pause()
            raise
        finally:
            self._open.release()

    def _advance(self, at_once: int, last: bool = False) -> None:
        """A step begins, or several at once; `last` if no other begins before a pause."""
        StepTimer._all_begun += 1
        self._begun += 1
        self._over(last)
        self._at_once = at_once
        self._begin()

    def _over(self, last: bool) -> None:
        """What began before has ended, and with it a window that is full or the last."""
        if self._began:
            self._step += self._at_once
            if last or self._step - self._first >= self._size:
                self._close()

    def pause(self) -> None:
        """Lets what follows until the next step, such as an evaluation, belong to no step.

        Nor does the last step, or the window that it is in: nothing says when the device ended it.
        The next windows are shorter, or a loop with many pauses would fill none.
        """
        if self._began:
            self._read_peak()
        self._drop()

    def _drop(self) -> None:
        """Ends the steps without a word of their memory: it may be long after the last of them."""
        self._step += self._at_once if self._began else 0
        if self._began and self._step - self._first > self._at_once:
            self._size = max(1, self._size // 2)
        self._began = 0.0

    def _begin(self) -> None:
        if self._sampler is None or not self._sampler.is_alive():
            self._end()  # what the sensors read before is kept
            self._began = 0.0  # to start them again belongs to no step
            self._know()
            self._device = self._kind()
            self._sampler = sensors.Sampler(self._device)
            StepTimer._first = StepTimer._first or self._steps
            self._sampler.start()
        if not self._began:
            if self._step or self._synchronize is None:  # it names what a step makes
                self._wait()
            self._peak_begun = self._peak_now()
            self._holds_new()
            self._of_others = StepTimer._all_begun - self._begun
            self._first, self._began = self._step, time.perf_counter()

    def _close(self) -> None:
        """Ends a window; the next one begins with the next step."""
        self._know()
        self._blind += not self.backend
        self._wait()
        seconds = time.perf_counter() - self._began
        self._read_peak()
        steps = self._step - self._first
        self._held_any |= self._holds_new()
        self._beside |= StepTimer._all_begun - self._begun != self._of_others
        self.windows.append({"first_step": self._first, "steps": steps, "seconds": seconds})
        self._opened.append(self._began)
        full = steps >= self._size  # not the remainder of an epoch
        if len(self.windows) > SINGLE and full and seconds < WINDOW_S / 2:
            self._size *= 2
        self._began = 0.0

    def _know(self) -> None:
        """Takes the framework of a loop, which one of its first steps may be the first to import.

        Raises:
            ParamsError: where several are imported, or launches would be timed.
        """
        before, sure = self.backend, self.backend and len(self.windows) >= SINGLE
        if not (self._said or self.model is not None or sure):
            self.backend = _imported()
        self._refuse_unwaited()
        if self._sampler is not None and self.backend != before:
            self._end()  # the next step begins with sensors of its device
            self._samples = []

    def _wait(self) -> None:
        """Until the device has done its work: what a user waits for may have been ready before."""
        if self._synchronize is not None:
            self._synchronize()
        if self.backend in sys.modules:
            backend(self.backend).synchronize(self.model)

    def _holds_new(self) -> bool:
        """Whether steps made what can be waited for; of `fit` Keras keeps it."""
        loop = self.model is None and self.backend in sys.modules
        return not loop or backend(self.backend).holds_new()

    def _refuse_unwaited(self) -> None:
        """Raises ParamsError for a loop of which launches would be timed."""
        row = BACKEND_ROWS.get(self.backend)
        if row and not row.waits_for_all and self._synchronize is None and self.model is None:
            raise ParamsError(
                f"synchronize is None; a loop in {row.label} needs it, or launches are timed, not "
                "steps: StepTimer(synchronize=lambda: jax.block_until_ready(state)), with what a "
                "step made"
            )

    # --- Keras ------------------------------------------------------------------------------------

    def set_model(self, model: Any) -> None:
        """Keras's hook: the model whose steps are timed; those of another are forgotten.

        Raises:
            ParamsError: after steps of a loop.
        """
        import keras

        if self.model is None and (self._began or self._step):
            raise ParamsError(f"the steps of a loop were timed by it; {ONE_EACH}")
        if self.model is not None and model is not self.model:
            self._end()
            self._anew()
        self.model, self.backend = model, keras.backend.backend()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Keras's hook: what `fit` was called with, or an evaluation or a prediction."""
        self.params = params or {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras's hook: an earlier `fit` may have ended in the middle of a window.

        Its steps are forgotten where the model has been changed since.
        """
        self.pause()
        function, before = getattr(self.model, "train_function", None), self._function
        state = self._model_state()
        if self._state and state != self._state:
            self._end()
            self._anew()
        self._of_epoch, self._looked, self._batch, self._unsure = None, False, None, None
        self._state, self._function, self._traced = state, function, function is not before
        # An evaluation within `fit` may give others, if it was given this timer.
        self._total = self.params.get("steps")

    def _model_state(self) -> str:
        """What decides how long a step of the model takes; empty before it is built."""
        if not getattr(self.model, "built", False):
            return ""
        from mptexp.training import foreign_model

        return foreign_model.state(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keras's hook: of a step, or of as many as `steps_per_execution`.

        A timer that stands twice among the callbacks is told twice of each.
        """
        if batch == self._batch:
            return
        self._batch = batch
        at_once = int(getattr(self.model, "steps_per_execution", 1) or 1)
        last = self._total is not None and batch + at_once >= self._total
        # Data that end before their length is known have begun one execution too many, and the one
        # before it may have found fewer batches, or a smaller one.
        self._unsure = None if last else len(self.windows)
        if batch and not self._looked:
            self._end_first(batch)
        if batch == 0 or self._of_epoch:
            self._of_epoch = (batch, at_once)
        self._advance(at_once, last)
        if last and batch:
            self._count_images(0)

    def _end_first(self, steps: int) -> None:
        """The first steps of a `fit` are a window, or none where `compile` has them traced again.

        Those of the first `fit` are told as such: the time of the first step.
        """
        if self._traced and self.windows:
            self.pause()
        else:
            self._over(last=True)
        self._look(steps)

    def _look(self, steps: int) -> None:
        """Looks at a model after its first steps: they built it, and their batches were full."""
        self._looked, self._state = True, self._state or self._model_state()
        images, said = self._examples(), steps * (self._batch_size or 0)
        self._agreed = self._agreed or images == said
        if images and images != said:
            self._note_batch(images, f"{steps} step{'s' * (steps != 1)}")

    def _examples(self) -> int | None:
        """How many images this epoch has had; None where that is not known, or to be known."""
        if self._batch_size is None:
            return None
        from mptexp.training import foreign_model

        images = foreign_model.examples(self.model)
        self._held = self._held or images is not None
        return images

    def _as_said(self) -> list[str]:
        """What a record says of a batch size that nothing of `fit` could be held against."""
        if self._other_count:
            return [
                f"its batch size of {self._batch_size} is that of its first steps: Keras counted "
                f"{self._other_count} of an epoch, as where a callback evaluates in between"
            ]
        if self.model is None or self._held:
            return []
        return [
            f"its batch size of {self._batch_size} is as it was said: Keras has not counted the "
            "images that `fit` trained on"
        ]

    def _note_batch(self, images: int, steps: str) -> None:
        """Keeps that another batch size was said than that of `fit`; what was seen first says it.

        The last batch of an epoch may be smaller, so that its first one tells more.
        """
        self._other_batch = self._other_batch or f"{images} images in {steps}"

    def _note_count(self, images: int, most: int) -> None:
        """Keeps that an epoch's images are not as many as was said.

        Where its first steps have agreed, an evaluation by another callback may have counted anew
        since, of which this one is not told.
        """
        steps = f"at most {most} step{'s' * (most != 1)}"
        evaluated = getattr(self.model, "test_function", None) is not None
        if self._agreed and evaluated and not self._validates:
            self._other_count = f"{images} images in {steps}"
        else:
            self._note_batch(images, steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras's hook: an epoch's last step belongs to no window, as validation follows it.

        Nor is the peak of memory read: it may be that of an earlier callback's evaluation.
        """
        self._drop()
        if self._batch is not None:
            self._end_epoch(self._batch)
        self._count_images(self._at_once)

    def _end_epoch(self, batch: int) -> None:
        """Leaves out the window of an execution of which nothing says that it was full."""
        unsure = self._unsure is not None
        if unsure and len(self.windows) > self._unsure:
            del self.windows[self._unsure :], self._opened[self._unsure :]
            self._size = max(1, self._size // 2)  # or each epoch might end with such a window
        self._one_execution = self._one_execution or batch <= unsure * self._at_once
        self._batch = self._unsure = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Keras's hook: validation, before which alone the epoch's images are counted."""
        self._validates = True
        self.pause()
        self._count_images(self._at_once)

    def _count_images(self, begun: int) -> None:
        """Holds the size of the batches that Keras was given against the one that was said.

        Steps that `begun` may have had no batch, of data that ended; those before it, fewer of an
        execution. Where the last steps are known they are not awaited: another callback's
        evaluation may follow them, and count anew.
        """
        (ended, at_once), counted = self._of_epoch or (0, 0), self._of_epoch is not None
        images, size = self._examples() if counted else None, self._batch_size or 0
        self._of_epoch, most = None, ended + begun
        if images and not (ended - at_once) * size < images <= most * size:
            self._note_count(images, most)

    def on_train_end(self, logs: Any = None) -> None:
        """Keras's hook: the sensors are read no more."""
        self._end()

    def on_batch_begin(self, *_: Any, **logs: Any) -> None:
        """Keras's other hooks: nothing to do."""

    # So marked, Keras fetches no logs of a step for them, which would wait.
    on_batch_begin._is_default = True  # type: ignore[attr-defined]
    on_batch_end = on_train_batch_end = on_test_batch_begin = on_test_batch_end = on_batch_begin
    on_predict_batch_begin = on_predict_batch_end = on_batch_begin
    on_epoch_begin = on_test_end = on_predict_begin = on_predict_end = on_batch_begin

    # --- what was measured ------------------------------------------------------------------------

    def _end(self) -> None:
        if self._sampler is not None:
            if self._sampler.is_alive():
                self._sampler.__exit__()
            self._samples += sensors.begun(self._sampler.samples)
            self._sampler = None

    def timing(self) -> dict[str, Any]:
        """The figures of the steps: step_s, step_s_low, step_s_high, step_ci, first_step_s, ...

        Raises:
            ParamsError: where too few steps were timed.
        """
        windows = timed_windows.joined(self._windows())[0]
        if len(windows) < LEAST_STEPS:
            needed = OF_MORE_EXECUTIONS if self._one_execution and not windows else "of more steps"
            if self.model is None and not self._one_execution:
                needed += ", each in `with timer.step():`, that end well and before a pause"
            raise ParamsError(
                f"{len(windows)} windows of steps were timed; allowed: at least {LEAST_STEPS}, "
                f"{needed}"
            )
        return timed_windows.timing(windows)

    def _windows(self) -> list[timed_windows.Window]:
        return [timed_windows.Window(**window) for window in self.windows]

    def record(self, directory: str | os.PathLike[str]) -> Path:
        """Writes what was measured as a run of a sweep's directory, and returns the record's path.

        `mptexp report` and `mptexp compare` take it beside others; nothing is claimed from it.
        The directory is found as `mptexp.load` finds it: see its module for a relative path.
        What was recorded there before under the same parameters is kept under `superseded`.

        Raises:
            ParamsError: where too few steps were timed, the batch size is not known or another than
                that of `fit`, the model's precision is none of `mptexp.policies()` or another than
                the one that was said, no framework is known, a loop has not used the GPU that its
                framework takes, or nothing can be written there.
        """
        place = SweepDir(given_paths.resolved(directory))
        self._drop()  # it may be called between two steps
        self._end()
        if self._batch_size is None:
            raise ParamsError("batch_size is None; a record needs it: StepTimer(batch_size=32)")
        timing = self.timing()  # first: no window, no word of what few steps have counted
        if self._other_batch:
            raise ParamsError(
                f"batch_size is {self._batch_size}, but `fit` trained on {self._other_batch}; "
                "allowed: the batch size that `fit` has"
            )
        card = environment.card(self._framework())
        self._refuse_changed()
        self._refuse_idle(card)
        run = self._run(card)
        run_id = run.run_id(schema.FOREIGN)
        windows = self._windows()
        steady = timed_windows.warmup_windows(windows)
        spans = [(b, b + w.seconds) for b, w in zip(self._opened, windows, strict=True)][steady:]
        samples = sensors.between(self._samples, spans)
        readings = sensors.summary(samples, spans, card["kind"])
        kept, joined = timed_windows.joined(windows)
        samples, thinned = timed_windows.thinned(samples)
        known, policy = foreign_policy.effective(run, self.model, card), POLICY_ROWS[run.policy]
        content = {
            **schema.bare(run, schema.FOREIGN),
            "in_force": known,
            "status": "ok",
            "error": "",
            "environment": card,
            "lacks": [*LACKS, *self._unknown()],
            "timing": timing | {"images_per_s": run.batch_size / timing["step_s"]},
            "windows": [asdict(window) for window in kept],
            "history": [],
            "marks": [
                NOTE,
                *self._as_said(),
                *[BESIDE] * self._beside,
                *[DROPPED] * (not self._held_any),
                *environment.without_onednn(self._framework(), card),
                *foreign_policy.partly(self.model, policy, known),
                *without_kernels(policy.compute_dtype, known.get("reference", [])),
                *timed_windows.unequal(windows),
                *interference.marks(readings),
                *timed_windows.shortened(joined, thinned),
            ],
            "readings": readings,
            "samples": samples,
            "peak_memory_bytes": self._own_peak(),
            "ended_at": schema.now(),
        }
        try:
            self._write(place, run_id, content)
        except OSError as error:
            raise ParamsError(f"{place.root}: cannot be written: {error.strerror}") from error
        return place.record(run_id)

    def _refuse_changed(self) -> None:
        """Raises ParamsError for a model that was changed since its steps were timed.

        A record is of now.
        """
        if self.model is not None and self._state and self._state != self._model_state():
            raise ParamsError(
                "the model's policies, layers or compilation were changed since its steps were "
                "timed; allowed: to record before that, or after a `fit` of what it is now"
            )

    def _refuse_idle(self, card: Mapping[str, Any]) -> None:
        """Raises ParamsError for a loop that has not used the GPU that would be in its record."""
        if self.model is not None or card["kind"] != "gpu":
            return
        if backend(self.backend).peak_memory_bytes() == 0:
            raise ParamsError(
                f"no step has used {card['device']}, the GPU that {self.backend} takes; allowed: "
                "CUDA_VISIBLE_DEVICES= before a loop on the CPU, or with the number of the GPU "
                "that the loop uses"
            )

    def _framework(self) -> str:
        """The backend of a record, which can say on which device it computes."""
        self.backend = self.backend or _imported()
        if not self.backend or self._blind:
            why = f"was imported before {self._blind} windows ended" if self.backend else ""
            raise ParamsError(
                f"backend is None, and no framework {why or 'was imported'}; a record needs the "
                f"one that the steps ran in: StepTimer(backend='jax'), or one of "
                f"{', '.join(BACKENDS)}"
            )
        if self.backend not in sys.modules and importlib.util.find_spec(self.backend) is None:
            raise ParamsError(f"backend {self.backend}: is not installed, so no step ran in it")
        return self.backend

    def _write(self, place: SweepDir, run_id: str, content: Mapping[str, Any]) -> None:
        """Writes a record; an earlier one of other steps is kept as superseded, and counted.

        One process at a time: those of one training write into one place.
        """
        place.runs.mkdir(parents=True, exist_ok=True)
        lock = os.open(place.runs, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._goes_on(place.record(run_id)):
                store.write_record(place.record(run_id), content)
                return
            store.write_record(place.partial / run_id / "record.json", content)
            place.publish_alone(run_id)
        finally:
            os.close(lock)

    def _goes_on(self, path: Path) -> bool:
        """Whether a record holds the first of these windows: it was written in between."""
        try:
            before = store.read_record(path)["windows"]
        except (store.RecordError, LookupError):
            return False
        # A long record joins those that follow; the clock gives no two such trainings.
        first = before[: timed_windows.APART]
        return bool(before) and first == self.windows[: len(first)]

    def _kind(self) -> str:
        """Of the device; without a framework nothing uses a GPU, and none is imported to ask."""
        known = self.backend in sys.modules
        return str(environment.device(self.backend)["kind"]) if known else "cpu"

    def _peak_now(self) -> int | None:
        known = self.model is not None or self._device == "cpu"
        return sensors.peak_memory_bytes(self._device) if known else None

    def _read_peak(self) -> None:
        """Keeps the peak of memory where steps have raised it, not an evaluation between them."""
        now, begun = self._peak_now(), self._peak_begun
        self._peak = now if now is not None and begun is not None and now > begun else self._peak

    def _own_peak(self) -> int | None:
        """The peak, where these steps reached it: a process's peak never falls again.

        Of a second training it would hold what the first has left behind.
        """
        return self._peak if StepTimer._first is self._steps else None

    def _run(self, card: Mapping[str, Any]) -> Run:
        """The parameters of a run, as far as they are known of a foreign script.

        Models differ in their names: what is compared is trained on one network.
        """
        return Run(
            gpu_model=card["device"],
            backend=self.backend,
            dataset="folder:foreign",
            model=self._named(),
            policy=foreign_policy.named(self._policy, self.model, self.backend, card),
            batch_size=self._batch_size or 1,
        )

    def _unknown(self) -> list[str]:
        """The parameters that stand in the record at a default, whatever the script has."""
        known = (*KNOWN, "frontend") if self.model is not None else KNOWN
        return [name for name in Run.model_fields if name not in known]

    def _named(self) -> str:
        if self.model is None:
            return "foreign:model"
        from mptexp.training import foreign_model

        return f"foreign:model_{foreign_model.fingerprint(self.model)}"


def _imported() -> str:
    """The only framework that this process has imported; empty where there is none yet.

    Raises:
        ParamsError: where there are several: nothing tells in which of them a loop computes.
    """
    found = [name for name in BACKENDS if name in sys.modules]
    if len(found) > 1:
        raise ParamsError(
            f"backend is None, and {' and '.join(found)} are imported, one perhaps by another; "
            f"name the one that the steps run in: StepTimer(backend={found[-1]!r})"
        )
    return found[0] if found else ""
