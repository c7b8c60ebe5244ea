"""What a step's time goes to and is lost to: one row each, with its sentence and remedies.

Adding a cause touches this file and its test; one that the time breakdown is to tell apart also
needs a rule in `breakdown`, one that none of the functions of `cause_times` measures a function
there. A row without one of its parts is refused when this module is imported.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mptexp.diagnosis import ablations, cause_times
from mptexp.diagnosis.ablations import Ablation
from mptexp.diagnosis.cause_times import Case, Loss
from mptexp.spec.run import Run

BY_PEAK = "(measured peak)"  # in sentences that rest on it, where the ratio of the peaks may stand
LEAST_CERTAIN = 0.05  # that a cause which is named takes for certain, with a confidence of 95 %


@dataclass(frozen=True, kw_only=True)
class Category:
    """A row of the time breakdown.

    Attributes:
        name: in records (a state or part of an operation) and tables.
        label: its name for readers.
        colour: in figures, as #rrggbb; distinct within the breakdown.

    Raises:
        ValueError: where a part is missing or is no such thing.
    """

    name: str
    label: str
    colour: str

    def __post_init__(self) -> None:
        for part, value in vars(self).items():
            if value == "" or (part == "remedies" and not value):
                raise ValueError(f"causes: {self.name or 'a row'} has no {part}")
        if not re.fullmatch("#[0-9a-f]{6}", self.colour):
            raise ValueError(f"causes: {self.name} has the colour {self.colour}, not #rrggbb")


@dataclass(frozen=True)
class Remedy:
    """What may be changed against a cause.

    Attributes:
        text: for readers.
        ablation: the change as a run; None where there is no such run. Measured to hurt, or in
            effect already, it is not advised.
        idle: whether a run has it already, of what no ablation changes.
    """

    text: str
    ablation: Ablation | None = None
    idle: Callable[[Run], bool] = lambda run: False


XLA = Remedy("compile the step (jit on)", ablations.XLA_ON)
NO_XLA = Remedy("do not compile the step (jit off)", ablations.XLA_OFF)
LARGER_BATCH = Remedy("a larger batch", ablations.BATCH)
SEVERAL_STEPS = Remedy("steps_per_execution", ablations.EXECUTION)


@dataclass(frozen=True, kw_only=True)
class Cause(Category):
    """What a step can lose time to.

    Attributes:
        sentence: says of a share of the step that it is lost to the cause.
        remedies: what to change, the most promising first.
        ablations: the changes that show whether it is the cause; empty where none could.
        loss: how much of the step it takes, None where that does not apply; all its time, usually.
        spent_on: of what the seconds are that stand as evidence, for readers.
        in_breakdown: whether it is a row of the time breakdown, or cut out of some.
        emulated: whether it applies where the device emulates the candidate's type (True), where it
            does not (False), or always (None).
        title: what a share of the step is, in a title; the label's beginning where it is None.
    """

    sentence: str
    remedies: tuple[Remedy, ...]
    ablations: tuple[Ablation, ...] = ()
    loss: Callable[[Case, "Cause"], Loss | None] = cause_times.in_full
    spent_on: str = "time breakdown"
    in_breakdown: bool = True
    emulated: bool | None = None
    title: str | None = None

    @property
    def is_in_full(self) -> bool:
        """Whether all the time that the breakdown gives to it is lost, the baseline's too."""
        return self.loss in (cause_times.in_full, cause_times.casts, cause_times.wait)

    @property
    def brief(self) -> str:
        """Its name where room is scarce."""
        return self.title or re.split(r", | \(", self.label)[0]


@dataclass(frozen=True, kw_only=True)
class CutOut(Cause):
    """What is cut out of rows of the breakdown: of matrix work in 16 bits that the device has."""

    colour: str = "#0087c8"  # that of the work which it slows down
    in_breakdown: bool = False
    emulated: bool | None = False


# Work in the tones of the policies, waits in those of warnings; in the order of the breakdown.
ROWS: tuple[Category, ...] = (
    Category(
        name="matrix",
        label="matrix work (convolutions, matrix products)",
        colour="#0087c8",
    ),
    Cause(
        name="memory",
        label="memory-bound work (normalization, activations, pooling, sums)",
        sentence="is lost in memory-bound work that 16 bits did not halve",
        remedies=(
            XLA,
            Remedy(
                "batch normalization in one operation (normalization fused, jit off)",
                ablations.FUSED,
            ),
            Remedy("fewer or cheaper normalizations", ablations.NO_NORMALIZATION),
            NO_XLA,
        ),
        ablations=(
            ablations.XLA_ON,
            ablations.XLA_OFF,
            ablations.FUSED,
            ablations.NO_NORMALIZATION,
        ),
        colour="#56b4e9",
        loss=cause_times.beyond_half,
        emulated=False,
    ),
    Cause(
        name="casts",
        label="casts and layout changes",
        sentence="is casts and layout changes",
        remedies=(XLA, Remedy("fewer changes of type or layout between layers")),
        ablations=(ablations.XLA_ON,),
        loss=cause_times.casts,
        colour="#cc79a7",
        emulated=False,
    ),
    Cause(
        name="optimizer",
        label="optimizer",
        sentence="is the optimizer, which precision does not shrink",
        remedies=(
            Remedy("a larger batch (one update serves more examples)", ablations.BATCH),
            Remedy("an optimizer with fewer slots, without clipping or averages of weights"),
        ),
        ablations=(ablations.BATCH,),
        colour="#009e73",
    ),
    Cause(
        name="loss scaling",
        label="loss scaling",
        sentence="is loss scaling",
        remedies=(
            Remedy("mixed_bfloat16, which needs none"),
            Remedy(
                "a fixed loss_scale, which costs less",
                idle=lambda run: not isinstance(run.loss_scale, str),
            ),
        ),
        colour="#f0e442",
    ),
    Cause(
        name="communication",
        label="communication between devices, waits for others included",
        sentence="is communication between devices",
        remedies=(
            Remedy("a larger batch per device", ablations.BATCH),
            Remedy("gradients in 16 bits"),
            Remedy("communication during the backward pass"),
        ),
        colour="#882255",
    ),
    Cause(
        name="on the host",
        label="operations that ran on the CPU instead of the GPU",
        sentence="is work that ran on the CPU instead of the GPU",
        remedies=(XLA, Remedy("a newer version that has the kernel; float32 for that layer")),
        colour="#8c510a",
    ),
    Cause(
        name="input",
        label="wait for input",
        sentence="waits for input",
        remedies=(
            Remedy("prepare and read ahead (input_mode pipeline)", ablations.PIPELINE),
            Remedy("cache decoded images, decode smaller"),
        ),
        ablations=(ablations.INPUT,),
        colour="#d55e00",
        loss=cause_times.wait,
    ),
    Cause(
        name="host",
        label="host and launch overhead",
        sentence="is host and launch overhead",
        remedies=(
            LARGER_BATCH,
            SEVERAL_STEPS,
            XLA,
            Remedy("less Python between steps: callbacks and logging every 100 steps"),
        ),
        ablations=(ablations.BATCH, ablations.EXECUTION),
        colour="#e69f00",
    ),
    Cause(
        name="retracing",
        label="functions traced anew",
        sentence="is functions that are traced anew in every step (tf.function)",
        remedies=(
            Remedy("tensors in place of Python numbers as arguments"),
            Remedy("one shape of all batches: drop_remainder, padding, input_signature"),
        ),
        colour="#b15928",
    ),
    Cause(
        name="copies",
        label="copies from the GPU to the host",
        sentence="is copies from the GPU to the host",
        remedies=(Remedy("values stay on the device, and are read every 100 steps"),),
        colour="#fb9a99",
    ),
    Cause(
        name="loads",
        label="copies to the GPU within layers and the optimizer (weights, states, inputs)",
        sentence="is copies to the GPU within layers and the optimizer",
        remedies=(
            Remedy("weights and states stay on the GPU, as far as they fit"),
            Remedy("inputs are sent there before the model is called"),
            Remedy("copies of the next layer's weights beside the work of this one"),
        ),
        colour="#b2182b",
    ),
    Cause(
        name="idle",
        label="idle device",
        sentence="passes with an idle device",
        remedies=(LARGER_BATCH, SEVERAL_STEPS, Remedy("fewer metrics and callbacks")),
        ablations=(ablations.BATCH, ablations.EXECUTION),
        colour="#bdbdbd",
    ),
    Cause(
        name="allocation",
        label="allocating and freeing memory (cudaMalloc, cudaFree)",
        sentence="is allocating and freeing memory (cudaMalloc, cudaFree)",
        remedies=(
            Remedy("one shape of all batches"),
            Remedy("less memory: a smaller batch, activations computed anew"),
        ),
        colour="#6a3d9a",
    ),
    Cause(
        name="another GPU",
        label="another GPU works, this one has nothing to do",
        sentence="passes while another GPU works and this one does not",
        remedies=(
            Remedy("a pipeline of micro-batches through all GPUs"),
            Remedy("data parallelism in place of a model that is spread over GPUs"),
        ),
        colour="#8073ac",
    ),
    Cause(
        name="python",
        label="Python and host callbacks",
        sentence="is Python that the step calls (numpy_function, py_function, callbacks)",
        remedies=(
            Remedy("operations of the framework in its place"),
            Remedy("do it in the input pipeline, beside the step"),
        ),
        colour="#a6761d",
    ),
    Cause(
        name="checks",
        label="assertions, numeric checks, prints, summaries",
        sentence="is assertions, numeric checks, prints and summaries",
        remedies=(Remedy("leave them out of trainings that are not being debugged"),),
        colour="#e7298a",
    ),
    Cause(
        name="preprocessing",
        label="preprocessing inside the model",
        sentence="is preprocessing inside the model",
        remedies=(Remedy("preprocess in the input pipeline, beside the step"),),
        colour="#66a61e",
    ),
    Cause(
        name="loss",
        label="loss, metrics, regularizers",
        sentence="is the loss, metrics and regularizers",
        remedies=(Remedy("cheaper metrics and regularizers, computed less often"),),
        colour="#7570b3",
    ),
    Cause(
        name="updates",
        label="clipping of gradients, averages of weights",
        sentence="is clipping of gradients or averages of weights, which precision does not shrink",
        remedies=(
            Remedy("a larger batch (one update serves more examples)", ablations.BATCH),
            Remedy("averages of weights every 10 steps; clipping by value"),
        ),
        ablations=(ablations.BATCH,),
        colour="#005a32",
    ),
    Cause(
        name="loop",
        label="loops within layers (time steps, examples)",
        sentence="is small operations in a loop over time steps or examples",
        remedies=(
            Remedy("one operation over all (vectorized_map, einsum)"),
            Remedy("a fused layer: LSTM and GRU without recurrent dropout, on a GPU"),
            Remedy("unroll a short loop"),
        ),
        colour="#1b7837",
    ),
    Cause(
        name="random",
        label="random numbers (dropout, noise)",
        sentence="is random numbers, which precision does not shrink",
        remedies=(
            Remedy("fewer layers that draw them, or smaller tensors"),
            Remedy("noise from the input pipeline, beside the step"),
        ),
        colour="#b3a2c7",
    ),
    Cause(
        name="no 16 bits",
        label="computed in 32 bits by frameworks (sorting, FFTs, fake quantization)",
        sentence="is operations that frameworks compute in 32 bits, such as sorting and FFTs",
        remedies=(
            Remedy("compute them less often or on fewer elements"),
            Remedy("an approximation made of matrix products"),
        ),
        colour="#332288",
    ),
    Category(name="unexplained", label="unexplained", colour="#7f7f7f"),
    # Cut out of the rows above.
    CutOut(
        name="pipeline",
        label="the input pipeline",
        sentence="would be saved without the input pipeline",
        remedies=(
            Remedy("prepare images once, ahead (input_mode pipeline)", ablations.PIPELINE),
            Remedy("cheaper decoding and augmentation, fewer threads of them"),
        ),
        ablations=(ablations.INPUT,),
        colour="#d55e00",
        loss=cause_times.beside,
        emulated=None,
    ),
    CutOut(
        name="compiled",
        label="compiled code, slower than single operations",
        sentence="is lost to XLA's code, slower here than single operations",
        remedies=(NO_XLA,),
        ablations=(ablations.XLA_OFF,),
        loss=cause_times.by_ablation,
        emulated=None,
    ),
    CutOut(
        name="emulated",
        label="arithmetic that is only emulated",
        sentence="is the extra cost of emulating its arithmetic",
        remedies=(Remedy("another policy: the type of this one is emulated here, in a wider one"),),
        loss=cause_times.emulation,
        emulated=True,
        title="emulation",
    ),
    CutOut(
        name="float32 fallback",
        label="layers kept in float32 or float64",
        sentence="is lost in layers kept in float32 or float64",
        remedies=(Remedy("16 bits for these layers, if accuracy allows", ablations.NO_FALLBACK),),
        ablations=(ablations.NO_FALLBACK,),
        loss=cause_times.float32_fallback,
    ),
    CutOut(
        name="reference code",
        label="oneDNN's reference code, for want of a kernel of this type",
        sentence="is lost in oneDNN's reference code",
        remedies=(
            Remedy("compile the step (jit on), which does not use oneDNN", ablations.XLA_ON),
            Remedy("TF_ENABLE_ONEDNN_OPTS=0 in the environment, under TensorFlow"),
            Remedy("another policy: oneDNN has kernels of float32 and bfloat16"),
        ),
        ablations=(ablations.XLA_ON,),
        spent_on="operations that reference code computes",
        loss=cause_times.reference_code,
        title="reference code",
    ),
    CutOut(
        name="slow layer",
        label="matrix work that is slower in 16 bits",
        sentence="is lost in layers that take longer in 16 bits",
        spent_on="operations that 16 bits do not make faster",
        remedies=(Remedy("float32 for these layers (float32_layers)"), Remedy("other shapes")),
        loss=cause_times.slower_layers,
    ),
    CutOut(
        name="slow operations",
        label="other work that is slower in 16 bits (activations, normalization, pooling)",
        sentence="is lost in activations, normalization and the like that take longer in 16 bits",
        remedies=(
            Remedy("float32 for these layers (float32_layers)"),
            Remedy("an operation that is fast in 16 bits, such as GELU's approximation"),
            XLA,
        ),
        ablations=(ablations.XLA_ON,),
        colour="#56b4e9",
        loss=cause_times.slower_memory,
    ),
    CutOut(
        name="bad kernel",
        label="matrix work far below the measured peak",
        sentence="is lost in matrix work at less than a tenth of what the measured peak allows",
        remedies=(
            Remedy("another batch size", ablations.BATCH),
            Remedy("other shapes: 3 channels padded to 4 or 8, more channels per group"),
            Remedy("a newer cuDNN, its autotuning and a larger workspace"),
        ),
        ablations=(ablations.BATCH,),
        loss=cause_times.bad_kernels,
    ),
    CutOut(
        name="no faster type",
        label="a device that is no faster in 16 bits",
        sentence="is matrix work at the rate of 16 bits, which is no higher on this device "
        + BY_PEAK,
        remedies=(
            Remedy("another device or framework; 16 bits still save memory, for a larger batch"),
        ),
        loss=cause_times.no_faster_type,
        title="matrix work at the rate of 16 bits, no higher here",
    ),
    CutOut(
        name="slower type",
        label="a device that is slower in 16 bits",
        sentence=f"is matrix work at the rate of 16 bits, which is lower on this device {BY_PEAK}",
        remedies=(
            Remedy("another device or framework: one whose measured peak in 16 bits is higher"),
        ),
        loss=cause_times.slower_type,
        title="matrix work at the rate of 16 bits, lower here",
    ),
    CutOut(
        name="no tensor cores",
        label="matrix work without Tensor Cores",
        sentence="is lost in matrix work without Tensor Cores",
        remedies=(
            Remedy("widths and batch in multiples of 8", ablations.PADDED),
            Remedy("a newer cuDNN; channels_last"),
        ),
        ablations=(ablations.PADDED,),
        loss=cause_times.without_tensor_cores,
    ),
)


def check(rows: Sequence[Category]) -> None:
    """Refuses rows of the same name, and rows of the breakdown in the same colour."""
    for part, of in (("name", rows), ("colour", in_breakdown(rows))):
        values = [getattr(row, part) for row in of]
        repeated = sorted({value for value in values if values.count(value) > 1})
        if repeated:
            raise ValueError(f"causes: more than one row has the {part} {', '.join(repeated)}")


def in_breakdown(rows: Sequence[Category]) -> tuple[Category, ...]:
    """The rows that the time breakdown tells apart, in its order."""
    return tuple(row for row in rows if not isinstance(row, Cause) or row.in_breakdown)


check(ROWS)
BREAKDOWN = in_breakdown(ROWS)
CAUSES = tuple(row for row in ROWS if isinstance(row, Cause))
LABELS = {row.name: row.label for row in BREAKDOWN}
