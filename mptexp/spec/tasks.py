"""What is learned from a dataset: a row per task, which all that measures or reports it asks.

A task says what a batch holds, what throughput counts, what is minimized, and which figure of the
validation is compared. What needs a framework, its inputs and its level of chance, has the same
name in `training.task_models`.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mptexp.spec.names import TEXT_MODELS, TEXTS


@dataclass(frozen=True)
class Task:
    """A row.

    Attributes:
        name: in code and in records.
        label: in sentences.
        example: what a batch holds, in the singular.
        unit: what throughput counts, in the singular.
        rate: the column of results.csv with units per second.
        measure: the figure of the validation that is compared, in sentences.
        column: its column of results.csv.
        history: the value per epoch that is compared, by its name in Keras's history.
        figure: that value -> the measure.
        mean: the measure of several runs -> one for all of them, such that it lies as far from
            another one as the mean of what is compared, differences or ratios, says.
        loss: Keras's name of what is minimized.
        metrics: Keras's names of what is computed beside it.
    """

    name: str
    label: str
    example: str
    unit: str
    rate: str
    measure: str
    column: str
    history: str
    figure: Callable[[float], float]
    mean: Callable[[Iterable[float]], float]
    loss: str = "sparse_categorical_crossentropy"
    metrics: tuple[str, ...] = ("accuracy",)

    def measured(self, epoch: Mapping[str, Any], part: str = "val_") -> float | None:
        """The measure at the end of an epoch, of the validation or of the training (part "").

        None where it is not known.
        """
        value = epoch.get(f"{part}{self.history}")
        return None if value is None else self.figure(value)


def recorded(figures: Mapping[str, Any]) -> dict[str, float]:
    """Keras's figures as a record has them: `loss` is that of the examples, and of nothing else.

    Of a model of text with losses of its own, such as regularizers, Keras's `loss` is the sum, of
    which no perplexity follows; what the examples lose is a metric beside it. A sum that is not
    finite stays as it is: the training ends there.
    """
    known = {name: float(value) for name, value in figures.items()}
    for name in ("loss", "val_loss"):
        alone = known.pop(name.replace("loss", TOKENS.loss), None)
        if alone is not None and math.isfinite(known[name]):
            known[name] = alone
    return known


def perplexity(loss: float) -> float:
    """Of how many equally likely tokens the loss (nats per token) is that of a choice."""
    return math.exp(min(loss, MOST_NATS))


def _arithmetic(values: Iterable[float]) -> float:
    """The mean; nan of no values."""
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _geometric(values: Iterable[float]) -> float:
    """The geometric mean: perplexities are compared by their ratio; nan of no values."""
    known = _known(values)
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def _known(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if value == value]


MOST_NATS = 700.0  # of which the exponential is a float
IMAGES = Task(
    "images",
    "image classification",
    "image",
    "image",
    "images_per_s",
    "accuracy",
    "val_accuracy",
    "accuracy",
    float,
    _arithmetic,
)
TOKENS = Task(
    "tokens",
    "prediction of the next token",
    "sequence",
    "token",
    "tokens_per_s",
    "perplexity",
    "val_perplexity",
    "loss",
    perplexity,
    _geometric,
)
TASKS = {task.name: task for task in (IMAGES, TOKENS)}
RATES = tuple(task.rate for task in TASKS.values())


def of(dataset: str) -> Task:
    """The task of a dataset, by its name."""
    return TOKENS if dataset.partition(":")[0] in (*TEXTS, "text") else IMAGES


def of_model(model: str) -> Task | None:
    """The task that a model is for; None of a user's own, which may be for any."""
    return None if ":" in model else TOKENS if model in TEXT_MODELS else IMAGES


def units(parameters: Mapping[str, Any]) -> int:
    """How many units an example of a run has: the tokens of a sequence, or the image itself."""
    return parameters["sequence_length"] if of(parameters["dataset"]) is TOKENS else 1
