"""Advice from short trainings: which policy and loss scale, and which layers stay in float32.

What only some of this needs is imported inside functions: pandas alone takes half a second.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptexp.api.commands import is_free
from mptexp.errors import Interrupted, ParamsError, Stopped
from mptexp.execution import device_slots, directory, fork_client, plan, preparation
from mptexp.execution.job import Job
from mptexp.execution.local_executor import Execution
from mptexp.execution.progress import Output
from mptexp.execution.sweep import execute, execute_due
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.run import Run

if TYPE_CHECKING:
    from mptexp.analysis.layer_search import Needed, Trial


@contextmanager
def _goes_on_with_nothing() -> Iterator[None]:
    """Where trainings are interrupted, nothing is said of what is kept: each call begins anew."""
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt from None


@_goes_on_with_nothing()
def advise(
    job: Job,
    only: Sequence[str] = (),
    steps: int = 100,
    data_dir: Path | None = None,
    output: Output | None = None,
) -> list[str]:
    """Trains the first chosen run for a few steps in float32; advises on policy and loss scale.

    Where a policy of fewer bits follows from the range of its numbers, it is tried for as many
    steps: of what is computed within a layer, or outside of all, range knows nothing.

    Args:
        job: the sweep; the results of the short trainings go to its directory.

    Returns:
        The advice and the reasons for it, as sentences; none if the training did not end well.

    Raises:
        ParamsError: also where the directory holds anything but an earlier probe, or another
            command is at work in it.
        KeyboardInterrupt: after Ctrl-C; the next call begins anew.
        Stopped: as `sweep.execute` does.
    """
    from mptexp.analysis import out_of_range, range_advice, short_trainings, sweep_tables
    from mptexp.report.answers import dynamic_range

    run, notebook = _first(job, only), job.sweep.notebook
    probe, text = range_advice.probe(run, notebook, steps, job.sweep.timeout_min)
    how = Execution(probe.timeout_min * 60, data_dir=data_dir, prepared=True)
    output = output or Output()
    # Wrong data and models are refused before anything is written.
    preparation.prepare([*probe.runs()], data_dir)
    with directory.locked(job.directory):
        _execute_anew(
            replace(job, sweep=probe, text=text), [range_advice.QUESTION], how, output, lock=False
        )
        measured = out_of_range.measured(sweep_tables.load(job.directory).records)
        if not measured:
            return []
        advised = range_advice.advise(measured[0])
        if advised.policy in short_trainings.NARROW:
            trial, text = range_advice.trial(run, notebook, advised, steps, probe.timeout_min)
            output.say(f"{advised.policy} is tried for {steps} steps")
            _try(replace(job, sweep=trial, text=text), how, replace(output, brief=True))
    tables = sweep_tables.load(job.directory)
    return dynamic_range.answer(measured[0], range_advice.tried(measured[0], tables))


def _try(trial: Job, how: Execution, output: Output) -> None:
    """Trains what is tried in the part of the probe's directory where that lies."""
    place = trial.directory.trial
    planned = plan.states([*trial.sweep.runs()], trial.sweep, place)
    execute_due(planned, replace(trial, directory=place), how, output)


def _first(job: Job, only: Sequence[str]) -> Run:
    """The first of the chosen points in the file's own order; blocks are shuffled."""
    chosen = plan.select(plan.runs(job.sweep, job.directory), only)
    order = [Run(**point).resolved().run_id(job.sweep.notebook) for point in job.sweep.points()]
    return min((p for p in chosen if p.run_id in order), key=lambda p: order.index(p.run_id)).run


@_goes_on_with_nothing()
def advise_layers(
    job: Job,
    policy: str,
    only: Sequence[str] = (),
    steps: int = 300,
    data_dir: Path | None = None,
    output: Output | None = None,
) -> tuple[list[str], Path]:
    """Finds the layers that must stay in float32 for a policy to train as float32 does.

    Every choice of layers that is tried trains anew, from the weights and on the batches of the
    training in float32, which says by its exponents which layers are tried first. The sweep's
    directory holds that training, and under `trials` the others.

    Args:
        job: the sweep; of its first chosen run all but the policy is kept.
        policy: one that computes in fewer bits.

    Returns:
        The answer and what it rests on, as sentences; and the params file that proves it.

    Raises:
        ParamsError: also where the policy computes in float32, the directory holds anything but an
            earlier search, or another search is at work in it: each reads only its own
            trainings.
        KeyboardInterrupt: after Ctrl-C; the next call begins anew.
        Stopped: as `sweep.execute` does; also where a training could not be made, and where no
            layer is needed to keep up with a training in float32 that learned nothing.
    """
    from mptexp.analysis import layer_search, short_trainings
    from mptexp.report.answers import layers_needed

    if policy not in short_trainings.NARROW:
        raise ParamsError(
            f"--layers {policy}: is no policy that computes in fewer bits than float32; allowed: "
            f"{', '.join(short_trainings.NARROW)}"
        )
    search = _Search(job, _first(job, only), policy, steps, data_dir, output or Output())
    # Wrong data and models are refused before anything is written.
    preparation.prepare([search.run], data_dir)
    slots = device_slots.slots(search.how.parallel)
    with directory.locked(job.directory), fork_client.servers(slots, timed=False) as servers:
        _refuse_other(job.directory, layer_search.QUESTIONS)
        search.how = replace(search.how, servers=servers, prepared=True)
        needed = search.needed()
        text = layer_search.proof(job.sweep, search.run, needed)
        proof = _unused(job.directory.root / "layers.yaml", text)
        store.write_text(proof, text)
    return layers_needed.answer(needed, steps), proof


def _execute_anew(
    job: Job, questions: Collection[str], how: Execution, output: Output | None, lock: bool = True
) -> None:
    """Trains always anew, since the model or the data may have been changed."""
    _refuse_other(job.directory, questions)
    output = replace(output or Output(), anew=True)
    execute(job, fresh=True, how=how, output=output, lock=lock, discard=True)


def _refuse_other(place: SweepDir, questions: Collection[str]) -> None:
    """Refuses with ParamsError what holds anything but earlier advice, which a new one discards.

    Args:
        questions: with which the params files of such advice open.
    """
    text = place.params_text
    if text and params.header(text).get("question") not in questions:
        raise ParamsError(
            f"{place.root}: holds the results of another params file ({place.params}); give "
            "another directory with --out"
        )


def _unused(file: Path, text: str) -> Path:
    """The file, or one with a number where it holds another text: somebody may have edited it."""
    others = (file.with_stem(f"{file.stem}-{number}") for number in count(2))
    return next(place for place in chain([file], others) if is_free(place, text))


class _Search:
    """The trainings of one search."""

    def __init__(
        self, job: Job, run: Run, policy: str, steps: int, data_dir: Path | None, output: Output
    ) -> None:
        self.job, self.run, self.policy, self.steps = job, run, policy, steps
        self.how = Execution(job.sweep.timeout_min * 60, data_dir=data_dir)
        self.output = output
        self.trials: list[Trial] = []

    def needed(self) -> "Needed":
        """What the search comes to."""
        from mptexp.analysis import layer_search, out_of_range, short_trainings

        records = self._trained(self.job.directory, "float32", [])
        self._check(records, ("ok",))
        float32 = short_trainings.losses(records) or {}
        guessing = short_trainings.guessing(records)
        if short_trainings.beyond_guessing(float32, guessing):
            raise Stopped(
                f"float32's training loss is {layer_search.mean(float32):.3g} where guessing costs "
                f"{guessing:.3g}: terms of the model's own, such as regularizers, make up most of "
                "it, or float32 goes astray, and it says nothing of layers"
            )
        (measured,) = out_of_range.measured(records)
        names = records[0]["exponents"]["network"]
        order = layer_search.by_need(names, measured, self.policy)

        def keeps_up(layers: Sequence[str]) -> bool:
            return self._tried(layers, len(names), float32)

        layers = layer_search.irreducible(order, keeps_up)
        if layers is None:
            kept = len(self.trials[-1].layers)
            raise Stopped(
                f"{self.policy} does not keep up with float32 with {kept} of {len(names)} layers "
                "in float32 either: keeping layers in it is no cure here; what a model computes "
                "outside of its layers' types, none of them changes"
            )
        if not layers and not short_trainings.learned(records):
            raise Stopped(
                f"float32 itself learned nothing in {self.steps} steps, its validation is at "
                f"chance level: that {self.policy} keeps up with it says nothing of its layers; "
                "take more --steps, or another learning rate"
            )
        return layer_search.Needed(
            self.policy,
            tuple(name for name in names if name in layers),
            len(names),
            layer_search.mean(float32) or 0.0,
            tuple(self.trials),
        )

    def _tried(self, layers: Sequence[str], of: int, float32: Mapping[int, float]) -> bool:
        """Whether the trainings with some layers in float32 are as good as float32's."""
        from mptexp.analysis import layer_search, short_trainings

        self.output.say(f"{self.policy} with {len(layers)} of {of} layers in float32")
        place = SweepDir(self.job.directory.root / "trials" / str(len(self.trials)))
        records = self._trained(place, self.policy, layers)
        self._check(records, ("ok", "diverged"))
        losses = short_trainings.losses(records)
        keeps_up = short_trainings.keeps_up(losses, float32)
        trial = layer_search.Trial(tuple(layers), layer_search.mean(losses), keeps_up)
        self.trials.append(trial)
        return trial.keeps_up

    def _trained(self, place: SweepDir, policy: str, layers: Sequence[str]) -> list[dict[str, Any]]:
        """The records of trainings that are made anew: the model may have been changed since."""
        from mptexp.analysis import layer_search

        own = self.job.sweep
        sweep, text = layer_search.sweep(
            self.run, own.notebook, policy, layers, self.steps, own.timeout_min
        )
        job = replace(self.job, sweep=sweep, text=text, directory=place)
        brief = replace(self.output, brief=True)
        held = place == self.job.directory
        _execute_anew(job, layer_search.QUESTIONS, self.how, brief, lock=not held)
        return store.read_records(place)[0]

    def _check(self, records: Sequence[dict[str, Any]], allowed: Sequence[str]) -> None:
        """Ends the search where a training says nothing of its layers."""
        for record in records:
            if record["status"] not in allowed:
                policy = record["parameters"]["policy"]
                raise Stopped(
                    f"a training in {policy} ended as {record['status']}, which says nothing of "
                    f"its layers: {record['error']}"
                )
