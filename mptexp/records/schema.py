"""What a record must look like to be read: a record may come from anybody, and is data.

Only what the second half of the package uses is described. Further keys are free: a record of
another version has them, and none of those described is required beyond what names a run.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    with_config,
)
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from mptexp.spec.run import Run

OPEN = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
# Numbers that arithmetic on them cannot bring to infinity, and that are no thousand digits long.
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
Positive = Annotated[float, Field(gt=1e-30, le=1e30)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
RunId = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{12}\z")]
# When a run ended: ISO 8601 in UTC, to the second.
Moment = Annotated[
    str, StringConstraints(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00\z")
]

Empty = Annotated[dict[str, Any], Field(max_length=0)]

# The columns of a table that hold something else than a number.
TEXTS = ("run_id", "status", "error", "sweep", "dataset", "model", "gpu_model", "device")
TEXTS += ("backend", "policy", "input_mode", "phase", "setting", "ended_by", "default_policy")
POSITIVE = ("step_s", "step_s_low", "step_s_high", "images_per_s", "fit_s")
OTHERS: dict[str, Any] = {"emulated": bool, "jit": bool | str, "loss_scale": str | Number}


def adapter(columns: tuple[str, ...], statuses: tuple[str, ...]) -> TypeAdapter[Any]:
    """What checks a record.

    Args:
        columns: names of the columns of results.csv, which a record holds in several places.
        statuses: how a run may end.
    """
    kinds = {name: Number for name in columns if name not in TEXTS} | OTHERS
    kinds |= dict.fromkeys(TEXTS, str) | dict.fromkeys(POSITIVE, Positive)
    row = {name: kind | None for name, kind in kinds.items() if name != "marks"}
    cells = _open("Cells", {**row, "latency_warmup": Whole})
    in_force = {"variable_dtype": str, "initial_weights": str, "data_order": str}
    in_force |= {"propagation": str, "weight_format": str}
    named = ("run_id", "status", "error", "parameters", "readings")
    free = {name: kind for name, kind in row.items() if name not in named}
    record = {
        "error": str,
        "notebook": str,
        "ended_at": Moment,
        "in_force": _open("InForce", {**row, **in_force}),
        "timing": cells,
        "readings": cells,
        "environment": Card | Empty,
        "windows": list[Window],
        "latencies_s": list[Number],
        "history": list[Epoch],
        "marks": list[str],
        "work": Work | Empty | None,
        "profile": Traced | Untraced | Empty | None,
        "exponents": Exponents | Empty,
        "loss_scales": list[Scale],
    }
    required = {"run_id": RunId, "status": Literal[statuses], "parameters": _parameters()}
    return TypeAdapter(_open("Record", {**free, **record}, required))


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


@with_config(OPEN)
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
    native: NotRequired[list[str]]


@with_config(OPEN)
class Window(TypedDict):
    """Some steps that were timed together."""

    first_step: Whole
    steps: Whole
    seconds: Number


@with_config(OPEN)
class Epoch(TypedDict, total=False):
    """A row of history.csv; a number that was not finite is null."""

    epoch: Whole
    loss: Number | None
    accuracy: Number | None
    val_loss: Number | None
    val_accuracy: Number | None
    elapsed_s: Number | None


@with_config(OPEN)
class Ceilings(TypedDict):
    """What the device does at best."""

    dtype: str
    matmul_flops_per_s: Positive
    copy_bytes_per_s: Positive


@with_config(OPEN)
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


@with_config(OPEN)
class Work(TypedDict):
    """Arithmetic and traffic of a step."""

    flops_per_step: Number | None
    bytes_per_step: Number | None
    ceilings: Ceilings
    layers: NotRequired[list[Layer]]


# A histogram has a bin for each exponent of float32 from -127 on.
Exponent = Annotated[int, Field(ge=-127, le=127)]
Counts = Annotated[list[Annotated[int, Field(ge=0, lt=2**62)]], Field(max_length=255)]


@with_config(OPEN)
class Histogram(TypedDict):
    """Values by exponent."""

    lowest: Exponent
    counts: Counts
    zeros: Whole
    not_finite: Whole
    largest: Number


@with_config(OPEN)
class LayerHistogram(Histogram):
    """Those of one layer."""

    kind: str
    layer: str


@with_config(OPEN)
class Look(TypedDict):
    """Histograms before one step."""

    step: Whole
    loss_scale: str | Number
    kinds: dict[str, Histogram]
    swallowed: NotRequired[dict[str, Whole]]


@with_config(OPEN)
class Exponents(TypedDict):
    """What was seen of gradients and the like."""

    every: Whole
    samples: list[Look]
    layers: list[LayerHistogram]


@with_config(OPEN)
class Scale(TypedDict):
    """The dynamic loss scale before a step."""

    step: Whole
    loss_scale: Number
    skipped: Whole


@with_config(OPEN)
class Row(TypedDict):
    """An operation of the traced steps."""

    state: str
    layer: str
    part: str
    op: str
    kernel: str
    seconds: Number
    count: Number


@with_config(OPEN)
class Primitive(TypedDict):
    """A primitive of oneDNN."""

    primitive: str
    implementation: str
    dtype: str
    seconds: Number
    count: Number


@with_config(OPEN)
class Reading(TypedDict):
    """What reading a trace takes."""

    optimizers: list[str]
    scaled: bool
    every: Annotated[int, Field(ge=1, lt=2**31)]


@with_config(OPEN)
class Traced(TypedDict):
    """What the traced steps told."""

    missing: NotRequired[Literal[""]]
    steps: NotRequired[Whole]
    step_s: Positive
    slowdown: NotRequired[Number | None]
    input_busy_s: NotRequired[Number]
    rows: Annotated[list[Row], Field(min_length=1)]
    primitives: NotRequired[list[Primitive]]
    trace: NotRequired[Reading]


@with_config(OPEN)
class Untraced(TypedDict):
    """Why there is no table of traced steps, and how the trace beside the record is read."""

    missing: Annotated[str, Field(min_length=1)]
    primitives: NotRequired[list[Primitive]]
    trace: NotRequired[Reading]
