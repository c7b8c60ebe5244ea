"""A clock for a training that mptexp does not run: Keras's `fit`, or any loop.

It measures as a run of mptexp's does: windows of steps between two synchronizations of the device,
first steps left out, sensors and interference beside them. What it cannot know of a foreign script
is named in its record, from which nothing is claimed.
"""

import fcntl
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from mptexp.records import interference, schema, step_times, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.backends import BACKEND_ROWS, BACKENDS
from mptexp.spec.errors import ParamsError
from mptexp.spec.policies import (
    EFFECTIVE_SHARE,
    POLICY_ROWS,
    Policy,
    share_mark,
    without_kernels,
)
from mptexp.spec.run import LEAST_STEPS, Run
from mptexp.training import capability, environment
from mptexp.training.backends import backend
from mptexp.training.measure import sensors

WINDOW_S = 0.2  # as of the step clock
SINGLE = 5  # the first windows hold one step each, so that compilation shows
LACKS = ("data", "data_order", "fed", "initial_weights", "model_source", "notebook")
# The parameters of a run that are known of a script; of Keras's `fit` also the frontend.
KNOWN = ("gpu_model", "backend", "dataset", "model", "policy", "batch_size", "phase", "block")
NOTE = (
    "timed by StepTimer in a script that mptexp did not run: its data, the order of its images, "
    "its initial weights and its source are not recorded, so nothing is claimed"
)


def _default(method: Callable[..., None]) -> Callable[..., None]:
    """Marks a hook that does nothing: Keras then fetches no logs of a step, which would wait."""
    method._is_default = True  # type: ignore[attr-defined]
    return method


def _refuse_unknown(name: str, value: str | None, allowed: Sequence[str]) -> None:
    if value is not None and value not in allowed:
        raise ParamsError(f"{name} {value!r}: unknown; allowed: {', '.join(allowed)}")


class StepTimer:
    """Times steps: as a callback of Keras's `fit`, or around the steps of a loop.

    `model.fit(..., callbacks=[timer])`, or `with timer.step(): ...` for each step. Keras is not
    imported for a loop: Keras asks a callback for its hooks, not for its class.

    Args:
        synchronize: returns once the device has done its work; needed for a loop in JAX, such as
            `lambda: jax.block_until_ready(state)`. PyTorch, TensorFlow and Keras have their own.
        batch_size: images in a step, without which nothing can be recorded.
        policy: the precision of a loop, a name of `mptexp.policies()`; of Keras's model read back.
        backend: tensorflow, jax or torch; by default Keras's, or the framework that was imported.

    Attributes:
        windows: windows of steps in order, as a record holds them: first_step, steps, seconds.
    """

    _first: ClassVar[object | None] = None  # the first steps that were timed in this process

    def __init__(
        self,
        synchronize: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        policy: str | None = None,
        backend: str | None = None,
    ) -> None:
        _refuse_unknown("policy", policy, tuple(POLICY_ROWS))
        _refuse_unknown("backend", backend, BACKENDS)
        if synchronize is not None and not callable(synchronize):
            raise ParamsError(f"synchronize is {synchronize!r}; allowed: a function to call")
        if batch_size is not None and not (type(batch_size) is int and batch_size > 0):
            raise ParamsError(f"batch_size is {batch_size!r}; allowed: an integer from 1")
        self._synchronize, self._batch_size, self._policy = synchronize, batch_size, policy
        self.backend = backend or ""  # until it is known
        self.model: Any = None
        self.params: Mapping[str, Any] = {}
        self._sampler: sensors.Sampler | None = None
        self._anew()

    def _anew(self) -> None:
        """Nothing is timed yet."""
        self.windows: list[dict[str, Any]] = []
        self._opened: list[float] = []
        self._step, self._size, self._first, self._began = 0, 1, 0, 0.0
        self._at_once = 1  # steps that begin together
        self._samples: list[sensors.Sample] = []
        self._of_epoch: tuple[int, int] | None = None  # steps that ended, and that began
        self._other_batch = ""
        self._steps = object()  # names them, of one model
        self._peak_before: int | None = None  # of whatever this process did before the first step
        self._peak: int | None = None

    # --- a loop -----------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step of a loop.

        A window holds all from the beginning of a step to that of a later one, and so the wait for
        a batch between two; the last step, after which none begins, belongs to none.

        Raises:
            ParamsError: in JAX without `synchronize`.
        """
        self._advance(1)
        try:
            yield
        except BaseException:
            self.pause()
            raise

    def _advance(self, at_once: int, last: bool = False) -> None:
        """A step begins, or several at once; `last` if no other begins before a pause."""
        if self._began:
            self._step += self._at_once
            if last or self._step - self._first >= self._size:
                self._close()
        self._at_once = at_once
        self._begin()

    def pause(self) -> None:
        """Lets what follows until the next step, such as an evaluation, belong to no step.

        Nor does the last step, or the window that it is in: nothing says when the device ended it.
        """
        self._step += self._at_once if self._began else 0
        self._began = 0.0

    def _begin(self) -> None:
        if self._sampler is None or not self._sampler.is_alive():
            self._end()  # what the sensors read before is kept
            self.backend = self.backend or _imported()
            self._refuse_unwaited()
            self._sampler = sensors.Sampler(self._kind())
            if self._peak_before is None:
                self._peak_before = self._peak_now()
                StepTimer._first = StepTimer._first or self._steps
            self._sampler.start()
        if not self._began:
            self._wait()
            self._first, self._began = self._step, time.perf_counter()

    def _close(self) -> None:
        """Ends a window; the next one begins with the next step."""
        self._wait()
        seconds = time.perf_counter() - self._began
        steps = self._step - self._first
        self.windows.append({"first_step": self._first, "steps": steps, "seconds": seconds})
        self._opened.append(self._began)
        full = steps >= self._size  # not the remainder of an epoch
        if len(self.windows) > SINGLE and full and seconds < WINDOW_S / 2:
            self._size *= 2
        self._began = 0.0

    def _wait(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        elif self.model is not None or self.backend in sys.modules:
            backend(self.backend).synchronize(self.model)

    def _refuse_unwaited(self) -> None:
        """Refuses a loop of which launches would be timed.

        Raises:
            ParamsError: then.
        """
        row = BACKEND_ROWS.get(self.backend)
        if row and not row.waits_for_all and self._synchronize is None and self.model is None:
            raise ParamsError(
                f"synchronize is None; a loop in {row.label} needs it, or launches are timed, not "
                "steps: "
                "StepTimer(synchronize=lambda: jax.block_until_ready(state)), with what a step made"
            )

    # --- Keras ------------------------------------------------------------------------------------

    def set_model(self, model: Any) -> None:
        """Keras's hook: the model whose steps are timed; those of another are forgotten."""
        import keras

        if self.model is not None and model is not self.model:
            self._end()
            self._anew()
        self.model, self.backend = model, keras.backend.backend()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Keras's hook: what `fit` was called with."""
        self.params = params or {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras's hook: an earlier `fit` may have ended in the middle of a window."""
        self.pause()
        self._of_epoch = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keras's hook: of a step, or of as many as `steps_per_execution`."""
        at_once = int(getattr(self.model, "steps_per_execution", 1) or 1)
        total = self.params.get("steps")  # of an epoch; None where that is not known yet
        if batch == 0 or self._of_epoch:
            self._of_epoch = (batch, min(batch + at_once, total or batch + at_once))
        self._advance(at_once, last=total is not None and batch + at_once >= total)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras's hook: an epoch's last step belongs to no window, as validation follows it."""
        self.pause()
        self._count_images()

    def on_test_begin(self, logs: Any = None) -> None:
        """Keras's hook: validation, before which alone the epoch's images are counted."""
        self._count_images()

    def _count_images(self) -> None:
        """Holds the size of the batches that Keras was given against the one that was said."""
        (ended, begun), self._of_epoch = self._of_epoch or (0, 0), None
        if not begun or self._batch_size is None:
            return
        from mptexp.training import timed_model

        images = timed_model.examples(self.model)
        if images and not ended * self._batch_size < images <= begun * self._batch_size:
            self._other_batch = f"{images} images in {begun} steps"

    def on_train_end(self, logs: Any = None) -> None:
        """Keras's hook: the sensors are read no more."""
        self._end()

    @_default
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Nothing to do."""

    on_batch_end = on_train_batch_end = on_test_batch_begin = on_test_batch_end = on_batch_begin
    on_predict_batch_begin = on_predict_batch_end = on_batch_begin

    @_default
    def on_test_end(self, logs: Any = None) -> None:
        """Nothing to do."""

    on_predict_begin = on_predict_end = on_test_end

    @_default
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Nothing to do."""

    # --- what was measured ------------------------------------------------------------------------

    def _end(self) -> None:
        if self._sampler is not None:
            if self._sampler.is_alive():
                self._sampler.__exit__()
            self._samples += self._sampler.samples
            self._sampler = None
            self._peak = self._peak_now()

    def timing(self) -> dict[str, Any]:
        """The figures of the steps: step_s, step_s_low, step_s_high, step_ci, first_step_s, ...

        Raises:
            ParamsError: where too few steps were timed.
        """
        windows = self._windows()
        if len(windows) < LEAST_STEPS:
            raise ParamsError(
                f"{len(windows)} windows of steps were timed; allowed: at least {LEAST_STEPS}, "
                "of more steps"
            )
        return step_times.timing(windows)

    def _windows(self) -> list[step_times.Window]:
        return [step_times.Window(**window) for window in self.windows]

    def record(self, directory: str | os.PathLike[str]) -> Path:
        """Writes what was measured as a run of a sweep's directory, and returns the record's path.

        `mptexp report` and `mptexp compare` take it beside others; nothing is claimed from it.
        What was recorded there before under the same parameters is kept under `superseded`.

        Raises:
            ParamsError: where too few steps were timed, the batch size is not known or another than
                that of `fit`, the model's precision is none of `mptexp.policies()`, no framework is
                known, or nothing can be written there.
        """
        self._end()
        if self._batch_size is None:
            raise ParamsError("batch_size is None; a record needs it: StepTimer(batch_size=32)")
        if self._other_batch:
            raise ParamsError(
                f"batch_size is {self._batch_size}, but `fit` trained on {self._other_batch}; "
                "allowed: the batch size that `fit` has"
            )
        timing, card = self.timing(), environment.card(self._framework())
        run = self._run(card)
        run_id = run.run_id(schema.FOREIGN)
        windows = self._windows()
        steady = step_times.warmup_windows(windows)
        spans = [(b, b + w.seconds) for b, w in zip(self._opened, windows, strict=True)][steady:]
        samples = self._samples
        readings = sensors.summary(samples, spans, card["kind"])
        known, policy = self._effective(run, card), POLICY_ROWS[run.policy]
        content = {
            **schema.bare(run, schema.FOREIGN),
            "in_force": known,
            "status": "ok",
            "error": "",
            "environment": card,
            "lacks": [*LACKS, *self._unknown()],
            "timing": timing | {"images_per_s": run.batch_size / timing["step_s"]},
            "windows": self.windows,
            "history": [],
            "marks": [
                NOTE,
                *environment.without_onednn(self._framework(), card),
                *self._partly(policy),
                *without_kernels(policy.compute_dtype, known.get("reference", [])),
                *interference.marks(readings),
            ],
            "readings": readings,
            "samples": samples,
            "peak_memory_bytes": self._own_peak(),
            "ended_at": schema.now(),
        }
        place = SweepDir(Path(directory))
        try:
            self._write(place, run_id, content)
        except OSError as error:
            raise ParamsError(f"{directory}: cannot be written: {error.strerror}") from error
        return place.record(run_id)

    def _framework(self) -> str:
        """The backend of a record, which can say on which device it computes."""
        self.backend = self.backend or _imported()
        if not self.backend:
            raise ParamsError(
                "backend is None, and no framework was imported; a record needs the one that the "
                f"steps ran in: StepTimer(backend='jax'), or one of {', '.join(BACKENDS)}"
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
        return bool(before) and before == self.windows[: len(before)]

    def _kind(self) -> str:
        """Of the device; without a framework nothing uses a GPU, and none is imported to ask."""
        known = self.backend in sys.modules
        return str(environment.device(self.backend)["kind"]) if known else "cpu"

    def _peak_now(self) -> int | None:
        kind = self._kind()
        return sensors.peak_memory_bytes(kind) if self.model is not None or kind == "cpu" else None

    def _own_peak(self) -> int | None:
        """The peak, where these steps reached it: a process's peak never falls again.

        Of a second training it would hold what the first has left behind.
        """
        before, after = self._peak_before, self._peak
        if before is None or after is None or StepTimer._first is not self._steps:
            return None
        return after if after > before else None

    def _run(self, card: Mapping[str, Any]) -> Run:
        """The parameters of a run, as far as they are known of a foreign script.

        Models differ in their names: what is compared is trained on one network.
        """
        return Run(
            gpu_model=card["device"],
            backend=self.backend,
            dataset="folder:foreign",
            model=self._named(),
            policy=self._policy or self._read_policy(card),
            batch_size=self._batch_size or 1,
        )

    def _unknown(self) -> list[str]:
        """The parameters that stand in the record at a default, whatever the script has."""
        known = (*KNOWN, "frontend") if self.model is not None else KNOWN
        return [name for name in Run.model_fields if name not in known]

    def _named(self) -> str:
        if self.model is None:
            return "foreign:model"
        from mptexp.training import timed_model

        return f"foreign:model_{timed_model.fingerprint(self.model)}"

    def _read_policy(self, card: Mapping[str, Any]) -> str:
        """The policy of the layers that do most of the model's arithmetic, see `timed_model`."""
        if self.model is None:
            raise ParamsError(
                "policy is None, and of a loop nothing tells it; a record needs it: "
                f"StepTimer(policy='mixed_float16'), or one of {', '.join(POLICY_ROWS)}"
            )
        from mptexp.training import timed_model

        counts = timed_model.policies(self.model)
        named = max(counts, key=lambda name: counts[name], default="float32")
        if named not in POLICY_ROWS:
            raise ParamsError(f"the model's policy is {named}; allowed: {', '.join(POLICY_ROWS)}")
        return self._usual(card) if named == "float32" else named

    def _usual(self, card: Mapping[str, Any]) -> str:
        """What Keras's float32 is here: TF32, where the backend has it on for most of the model."""
        has_tf32 = card["kind"] == "gpu" and capability.is_native("tensorfloat32", card)
        products = self._convolutions_frac() < 0.5
        on = has_tf32 and backend(self.backend).tf32(products)
        return "tensorfloat32" if on else "float32"

    def _default_policy(self, card: Mapping[str, Any]) -> str:
        return capability.default_policy(card, self.backend, self._convolutions_frac())

    def _convolutions_frac(self) -> float:
        """NaN of a loop, of which nothing tells whether it computes convolutions."""
        if self.model is None:
            return math.nan
        from mptexp.training import costs

        return costs.convolutions_frac(self.model)

    def _effective(self, run: Run, card: Mapping[str, Any]) -> dict[str, Any]:
        """What precision was effective: of Keras's model read back, of a loop as it was said."""
        policy = POLICY_ROWS[run.policy]
        native = capability.is_native(policy.arithmetic, card)
        known: dict[str, Any] = {
            "default_policy": self._default_policy(card),
            # Of products in float8 only the compiled program says whether they are native.
            "emulated": None if native and policy.quantization else not native,
        }
        return known | (self._read_model(run, policy) if self.model is not None else {})

    def _read_model(self, run: Run, policy: Policy) -> dict[str, Any]:
        """What layers compute in, those in other layers too, and how much of it the policy is.

        Also what of it oneDNN computes by reference code, where it does any.
        """
        from mptexp.training import arithmetic, timed_model

        slow = arithmetic.by_reference(run, self.model)
        layers, (what, shares) = timed_model.holders(self.model), timed_model.shares(self.model)
        return {
            "compute_dtype": ", ".join(sorted({x.compute_dtype for x in layers})),
            "variable_dtype": ", ".join(sorted({x.variable_dtype for x in layers})),
            "jit": bool(getattr(self.model, "jit_compile", False)),
            "effective_share": shares.get(policy.promised, 0.0) if what == "arithmetic" else None,
            **({"reference": slow} if slow else {}),
        }

    def _partly(self, policy: Policy) -> list[str]:
        """How much of the model the policy holds for, where its arithmetic is not known."""
        if self.model is None:
            return []
        from mptexp.training import timed_model

        what, shares = timed_model.shares(self.model)
        share = shares.get(policy.promised, 0.0)
        unsaid = what == "parameters" and share < EFFECTIVE_SHARE
        return [share_mark(share, what, policy.promised)] * unsaid


def _imported() -> str:
    """The framework of this process: Keras's backend, or the first that was imported, or none."""
    if "keras" in sys.modules:
        import keras

        return str(keras.backend.backend())
    return next((name for name in ("torch", "jax", "tensorflow") if name in sys.modules), "")
