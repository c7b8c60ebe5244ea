"""The one schema of a record: what it may hold, and what it must look like to be read.

A record may come from anybody and is data. Described is what the package reads; further keys are
free, and only what names a run is required: a run that failed has little else.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from mptexp.records.csv_columns import COLUMNS, Number, Positive
from mptexp.records.instrument_checks import Check
from mptexp.spec import dataset_paths
from mptexp.spec.run import Run

SCHEMA = 1
STATUSES = ("ok", "oom", "diverged", "unsupported", "failed", "killed", "timeout")
FITTED = ("ok", "diverged")  # of a run that had room for its batch
FINAL = ("ok", "oom", "diverged", "unsupported")  # the others run again at the next call
FOREIGN = "foreign"  # the notebook of a run that StepTimer recorded in a script of the user's
VOID = "timings are void"  # how the mark begins of a run that was not alone on its device
# The mark of a run beside which another sweep measured.
AT_ONCE = "measured while another sweep of mptexp measured on the same device"
SEEN = "are trained on too"  # how the mark ends that says how many validation images are
REPEATED = "are copies of others among them"  # and that of those which say nothing new

# Of a record, and with it of all typed dictionaries within it: pydantic hands it on to them.
OPEN = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
RunId = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{12}\z")]
# When a run ended: ISO 8601 in UTC, to the second.
Moment = Annotated[
    str, StringConstraints(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00\z")
]
Empty = Annotated[dict[str, Any], Field(max_length=0)]


def bare(run: Run, notebook: str) -> dict[str, Any]:
    """What every record of a run says, however it ended."""
    return {
        "schema": SCHEMA,
        "run_id": run.run_id(notebook),
        "notebook": dataset_paths.published_notebook(notebook),
        "parameters": run.published().model_dump(),
    }


def now() -> str:
    """The time by which a record says when its run ended, a Moment."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_of_timer(record: Mapping[str, Any]) -> bool:
    """Whether StepTimer recorded a run, in a script of the user's that mptexp cannot run."""
    return record.get("notebook") == FOREIGN


def is_foreign(record: Mapping[str, Any]) -> bool:
    """Whether nothing is claimed from a record: a script of the user's has no identity."""
    return is_of_timer(record) and not record.get("identity")


def known_parameters(record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's parameters without those that its record lacks, which stand there at their defaults.

    Nothing but a script of the user's lacks any.
    """
    unknown = record.get("lacks", ()) if is_foreign(record) else ()
    return {name: value for name, value in record["parameters"].items() if name not in unknown}


def fault(record: Any) -> str:
    """Where a record departs from this schema, in a sentence; empty where it does not."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return f"not a record of schema {SCHEMA}"
    try:
        _adapter().validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        return f"{where}: {first['msg']}{_given(first['input'])}"
    return ""


def _given(value: Any) -> str:
    """A short value as it was given; a long one is not repeated."""
    text = json.dumps(value) if not isinstance(value, dict | list) else ""
    return f", not {text}" if 0 < len(text) <= 60 else ""


@cache
def _adapter() -> TypeAdapter[Any]:
    """What checks a record; made at the first use, since making it takes a while."""
    # A record holds columns of results.csv in several places.
    row = {name: c.kind | None for name, c in COLUMNS.items() if name != "marks"}
    said = dict.fromkeys(("limits_changed", "unwatched", "gpu_unread"), bool)
    read = {"stopped_s": Number, "throttle_reasons": list[str], **said}
    cells = _open("Cells", {**row, **read, "latency_warmup": Whole})
    texts = ("variable_dtype", "initial_weights", "data_order", "fed")
    texts += ("propagation", "weight_format")
    record = {
        **row,
        "error": str,
        "notebook": str,
        "boot": str,  # names the machine that measured the run, from one start of it to the next
        "gpus": list[str],  # name the GPUs that the run could use
        "invocation": str,  # names the call of `mptexp run` that measured the run
        "ended_at": Moment,
        "in_force": _open(
            "InForce",
            {
                **row,
                **dict.fromkeys(texts, str),
                **dict.fromkeys(("arithmetic", "weights"), dict[str, Share]),
                "effective_share": Share | None,
                "probe": dict[str, str],
                "truncated": list[str],
                "reference": list[str],
                "chance_accuracy": Share,
                "chance_loss": Number,
                "validation_images": Annotated[int, Field(ge=0, lt=2**31)],
                "validation_labels": list[Annotated[int, Field(ge=0, lt=2**31)]],
            },
        ),
        "timing": cells,
        "readings": cells,
        "environment": Card | Empty,
        "identity": Annotated[
            dict[str, str | int | float | dict[str, str | int | float | None] | None],
            AfterValidator(_priority),
        ],
        "instruments": list[Check],
        "windows": list[Window],
        "samples": list[dict[str, Any]],
        "latencies_s": list[Number],
        "history": list[Epoch],
        "validated": Annotated[Validated, AfterValidator(_whole)],
        "marks": list[str],
        "lacks": list[str],  # parameters and parts of an identity that nobody recorded
        "work": Work | Empty | None,
        "profile": Traced | Untraced | Empty | None,
        "exponents": Exponents | Empty,
        "loss_scales": list[Scale],
        "quantized": Quantized,
    }
    required = {"run_id": RunId, "status": Literal[STATUSES], "parameters": _parameters()}
    free = {name: kind for name, kind in record.items() if name not in required}
    return TypeAdapter(_open("Record", free, required))


def _open(name: str, fields: dict[str, Any], required: dict[str, Any] | None = None) -> Any:
    """A typed dictionary that may hold further keys."""
    kinds = {key: NotRequired[kind] for key, kind in fields.items()} | (required or {})
    return with_config(OPEN)(TypedDict(name, kinds))  # type: ignore[misc]


def _parameters() -> Any:
    """Run's own types and bounds; not what asks this machine, such as which datasets it knows."""
    kinds = {}
    for name, field in Run.model_fields.items():
        bounds = [m for m in field.metadata if not isinstance(m, AfterValidator)]
        kinds[name] = Annotated[(field.annotation, *bounds)] if bounds else field.annotation
    return _open("Parameters", kinds)


class Card(TypedDict):
    """The environment."""

    device: str
    capability: list[Whole] | None
    driver: str | None
    cuda: str | None
    cudnn: str | None
    cpu: str
    cores: Whole
    instruction_sets: list[str]
    memory_bytes: Number
    os: str
    python: str
    packages: dict[str, str]
    variables: dict[str, str]
    commit: str | None
    container_cpus: NotRequired[Number | None]
    container_memory_bytes: NotRequired[Number | None]
    governor: NotRequired[str | None]
    cpu_version: NotRequired[str]
    native: NotRequired[list[str]]
    onednn: NotRequired[bool | None]


class Window(TypedDict):
    """Some steps that were timed together."""

    first_step: Whole
    steps: Annotated[int, Field(ge=1, lt=2**31)]
    seconds: Annotated[float, Field(ge=0, le=1e30)]


class Epoch(TypedDict, total=False):
    """A row of history.csv; a number that was not finite is null."""

    epoch: Whole
    loss: Number | None
    accuracy: Share | None
    val_loss: Number | None
    val_accuracy: Share | None
    elapsed_s: Number | None


class Validated(TypedDict):
    """Which validation images were classified correctly, a bit each; or a text's losses."""

    images: Annotated[int, Field(ge=1, lt=2**31)]
    digest: Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{12}\z")]
    correct: NotRequired[Annotated[str, StringConstraints(pattern=r"\A([0-9a-f]{2})+\z")]]
    losses: NotRequired[list[Number | None]]  # null: not a finite number


def _priority(identity: dict[str, Any]) -> dict[str, Any]:
    """The one number of an identity that is computed with, and not only compared."""
    if not isinstance(identity.get("nice", 0), int):
        raise ValueError("nice, the priority of the process, is no whole number")
    return identity


def _whole(validated: dict[str, Any]) -> dict[str, Any]:
    images = validated["images"]
    if "correct" not in validated:
        if len(validated.get("losses", ())) != images:
            raise ValueError(f"neither correct nor a loss for each of {images} sequences")
        return validated
    digits = len(validated["correct"])
    if digits != 2 * -(-images // 8):
        raise ValueError(f"{digits} digits do not hold a bit for each of {images} images")
    return validated


class Quality(TypedDict, total=False):
    """The validation of one model."""

    val_loss: Number
    val_accuracy: Number
    validated: Annotated[Validated, AfterValidator(_whole)]


class Quantized(TypedDict):
    """What Keras quantized: the scales of float8, or what integers did to a trained model."""

    layers: NotRequired[list[dict[str, Any]]]
    before: NotRequired[Quality]
    after: NotRequired[Quality]
    bytes_before: NotRequired[Annotated[int, Field(ge=0, lt=2**53)]]
    bytes_after: NotRequired[Annotated[int, Field(ge=0, lt=2**53)]]
    trained_epochs: NotRequired[Annotated[int, Field(ge=1, lt=2**31)]]
    calibration: NotRequired[str]


class Ceilings(TypedDict):
    """What the device does at best."""

    dtype: str
    matmul_flops_per_s: Positive
    copy_bytes_per_s: Positive
    float64_flops_per_s: NotRequired[Positive]


class Layer(TypedDict):
    """A layer of the model, and what it takes alone."""

    layer: str
    kind: str
    flops: Number | None
    bytes: Number | None
    parameters: Number | None
    alone_s: NotRequired[Positive | None]
    alone_low_s: NotRequired[Positive | None]
    channels: NotRequired[Number | None]


class Work(TypedDict):
    """Arithmetic and traffic of a step."""

    flops_per_step: Number | None
    bytes_per_step: Number | None
    ceilings: Ceilings
    layers: NotRequired[list[Layer]]


# A histogram has a bin for each exponent of float32 from -127 on.
Exponent = Annotated[int, Field(ge=-127, le=127)]
Counts = Annotated[list[Annotated[int, Field(ge=0, lt=2**50)]], Field(max_length=255)]


class Histogram(TypedDict):
    """Values by exponent."""

    lowest: Exponent
    counts: Counts
    zeros: Whole
    not_finite: Whole
    largest: Number


class LayerHistogram(Histogram):
    """Those of one layer."""

    kind: str
    layer: str


class Look(TypedDict):
    """Histograms before one step."""

    step: Whole
    loss_scale: str | Number
    kinds: dict[str, Histogram]
    swallowed: NotRequired[dict[str, Whole]]


class Exponents(TypedDict):
    """What was seen of gradients and the like."""

    every: Whole
    samples: Annotated[list[Look], Field(min_length=1)]
    layers: Annotated[list[LayerHistogram], Field(min_length=1)]
    network: NotRequired[list[str]]


class Scale(TypedDict):
    """The dynamic loss scale before a step."""

    step: Whole
    loss_scale: Number
    skipped: Whole


Seconds = Annotated[float, Field(ge=0, le=1e30)]


class Row(TypedDict):
    """An operation of the traced steps."""

    state: str
    layer: str
    part: str
    op: str
    kernel: str
    seconds: Seconds
    count: Number
    groups: NotRequired[list[Seconds]]


class Primitive(TypedDict):
    """A primitive of oneDNN."""

    primitive: str
    implementation: str
    dtype: str
    seconds: Number
    count: Number


class Reading(TypedDict):
    """What reading a trace takes."""

    optimizers: list[str]
    scaled: bool
    every: Annotated[int, Field(ge=1, lt=2**31)]
    loss_layers: NotRequired[list[str]]
    sums: NotRequired[dict[str, list[str]]]
    recomputed: NotRequired[list[str]]


class Traced(TypedDict):
    """What the traced steps told."""

    missing: NotRequired[Literal[""]]
    steps: NotRequired[Whole]
    step_s: Positive
    slowdown: NotRequired[Number | None]
    input_busy_s: NotRequired[Number]
    rows: Annotated[list[Row], Field(min_length=1)]
    primitives: NotRequired[list[Primitive]]
    products: NotRequired[dict[str, Whole]]
    trace: NotRequired[Reading]
    float64_layers: NotRequired[list[str]]
    wide_products: NotRequired[dict[str, str]]


class Untraced(TypedDict):
    """Why there is no table of traced steps, and how the trace beside the record is read."""

    missing: Annotated[str, Field(min_length=1)]
    primitives: NotRequired[list[Primitive]]
    products: NotRequired[dict[str, Whole]]
    trace: NotRequired[Reading]
