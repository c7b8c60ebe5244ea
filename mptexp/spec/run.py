"""What a run is: its typed parameters and the id that names it on every machine.

Light on purpose: every package imports this module, so it knows no framework.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from mptexp.errors import ParamsError
from mptexp.host.devices import CPU_ISAS, local_device
from mptexp.spec import cell_html, dataset_paths, tasks
from mptexp.spec.backends import BackendName
from mptexp.spec.names import (
    HAVE,
    LEAST_SIDE,
    MODELS,
    PLACES,
    POSITIONS,
    TEXT_MODELS,
    WITHOUT_WIDTH,
    known_dataset,
    known_model,
    known_propagation,
    known_weight_format,
)
from mptexp.spec.policies import POLICY_ROWS, PolicyName
from mptexp.spec.strict_model import StrictModel

CpuIsa = Literal["default", *CPU_ISAS]
LEAST_STEPS = 7  # fewer leave the step clock no window after its warm-up
MOST_STEPS = 10**9
# What float32 can hold, in which frameworks take rates, norms and scales, rounded inwards: beyond
# it one would be 0 or infinite.
LEAST_FLOAT, MOST_FLOAT = 1e-37, 1e38
STEPS_FOR_TARGET = 100  # ten windows after a warm-up, of several quick steps each
# What a native loop has; of all other parameters it takes every value.
NATIVE = {
    "backend": ("jax", "torch"),
    "replicas": (1,),
    "input_mode": ("pipeline", "resident"),
    "augmentation": ("none",),
    "data_format": ("auto", "channels_last"),
    "normalization": ("batch", "none"),
    "float32_layers": ("",),
    "policy": ("float32", "tensorfloat32", "mixed_float16", "mixed_bfloat16"),
    "loss_scale": ("auto", "dynamic", "none"),
    "propagation": ("policy",),
    "weight_format": ("policy",),
    "steps_per_execution": (1,),
    "profile": (False,),
    "exponents_every": (0,),
}
# A notebook cell shows these of every run, at their defaults or not.
ALWAYS_SHOWN = ("gpu_model", "dataset", "model", "policy", "batch_size")


def defaults() -> dict[str, Any]:
    """Every parameter of a run at its default."""
    return {name: field.default for name, field in Run.model_fields.items()}


def run_id(parameters: Mapping[str, Any], notebook: str) -> str:
    """The id of the run with these parameters, as they stand in a record; see `Run.run_id`."""
    usual = defaults()
    named = {k: v for k, v in parameters.items() if k not in usual or v != usual[k]}
    canonical = json.dumps({"notebook": notebook, **named}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class Run(StrictModel):
    """The typed parameters of one run, which are also the notebook's parameters cell.

    A field's description is the comment behind the parameter in the notebook.
    """

    gpu_model: str = Field(
        default="local", min_length=1, description="device name; local: this machine's"
    )
    backend: BackendName = Field(
        default="tensorflow", description="Keras backend: tensorflow, jax, torch"
    )
    frontend: Literal["keras", "native"] = Field(
        default="keras",
        description="keras: its fit or predict; native: a plain loop in JAX or PyTorch",
    )
    replicas: int = Field(default=1, ge=1, le=1024, description="devices that share a batch")
    cpu_isa: CpuIsa = Field(
        default="default", description="most that oneDNN may use of a CPU, see docs/guide.md"
    )
    memory_limit_gb: float | None = Field(
        default=None, gt=0, le=1e6, description="more is out of memory; GB of 1e9 bytes"
    )
    dataset: Annotated[str, AfterValidator(known_dataset)] = Field(
        default="digits",
        description="a built-in or tfds name, or folder, idx or text:PATH; see docs/guide.md",
    )
    image_size: int = Field(default=32, ge=8, le=1024, description="pixels, height and width")
    color_mode: Literal["auto", "rgb", "grayscale"] = Field(
        default="auto", description="auto, rgb, grayscale; auto: digits are grey, all else is rgb"
    )
    validation_split: float = Field(
        default=0.2, gt=0, lt=1, description="share kept for validation where the data has no split"
    )
    on_broken: Literal["skip", "refuse"] = Field(
        default="skip", description="images that cannot be read: skip, refuse"
    )
    synthetic_classes: int = Field(default=10, ge=2, le=100_000, description="of dataset synthetic")
    synthetic_length: int = Field(
        default=1024, ge=1, le=10_000_000, description="training images of dataset synthetic"
    )
    sequence_length: int = Field(
        default=128, ge=2, le=65_536, description="tokens of a sequence, of a text"
    )
    tokenizer: Literal["bytes", "bpe"] = Field(
        default="bytes", description="of a text: bytes; bpe: byte pairs, trained on it"
    )
    vocabulary: int = Field(default=1024, ge=257, le=65_536, description="tokens of tokenizer bpe")
    input_mode: Literal["pipeline", "keydana", "resident"] = Field(
        default="pipeline",
        description="pipeline; keydana: as its study; resident: a batch on the device",
    )
    augmentation: Literal["none", "flip", "crop", "flip_crop"] = Field(
        default="none", description="random, on the device: none, flip, crop, flip_crop"
    )
    data_format: Literal["auto", "channels_last", "channels_first"] = Field(
        default="auto",
        description="auto, channels_last, channels_first; auto: as Keras is configured",
    )
    model: Annotated[str, AfterValidator(known_model)] = Field(
        default="keydana_cnn", description="a built-in name, see docs/guide.md, or module:function"
    )
    from_logits: bool = Field(
        default=False, description="a model of yours ends in logits: softmax in float32 is added"
    )
    width: float = Field(default=1.0, gt=0, le=8, description="multiplies the number of filters")
    width_multiple: int = Field(
        default=1, ge=1, le=256, description="numbers of filters are rounded up to a multiple of it"
    )
    patch_size: int = Field(default=16, ge=1, le=256, description="of model vit, pixels")
    depth: int | None = Field(
        default=None, ge=1, le=256, description="blocks of vit or gpt; None: as published, 12"
    )
    tied_head: bool = Field(
        default=True, description="model gpt: the head has the weights of the embedding"
    )
    normalization: Literal["batch", "fused", "none"] = Field(
        default="batch",
        description="batch: Keras's; fused: one operation, not in JAX; none: left out",
    )
    float32_layers: str = Field(
        default="", description="names of layers that compute in float32, with commas"
    )
    batch_norm_momentum: float = Field(
        default=0.99, ge=0, lt=1, description="of the moving averages that validation uses"
    )
    optimizer: Literal["adam", "sgd"] = Field(
        default="adam", description="adam, sgd (Nesterov momentum 0.9)"
    )
    learning_rate: float = Field(
        default=1e-3, ge=LEAST_FLOAT, le=MOST_FLOAT, description="of the optimizer"
    )
    learning_rate_decay: Literal["none", "cosine"] = Field(
        default="none", description="none, cosine: to zero over all epochs"
    )
    clip_norm: float | None = Field(
        default=None,
        ge=LEAST_FLOAT,
        le=MOST_FLOAT,
        description="most that the norm of all gradients together may have; None: no limit",
    )
    policy: PolicyName = Field(default="float32", description="precision policy, see docs/guide.md")
    loss_scale: (
        Literal["auto", "dynamic", "none"] | Annotated[float, Field(ge=LEAST_FLOAT, le=MOST_FLOAT)]
    ) = Field(default="auto", description="auto, dynamic, none or a number; auto: as Keras decides")
    propagation: Annotated[str, AfterValidator(known_propagation)] = Field(
        default="policy", description="emulated activation format, see docs/guide.md"
    )
    weight_format: Annotated[str, AfterValidator(known_weight_format)] = Field(
        default="policy", description="emulated storage format of weights, see docs/guide.md"
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        default="nearest", description="nearest, stochastic: to both emulated formats"
    )
    jit: Literal["auto", "on", "off"] = Field(default="auto", description="XLA: auto, on, off")
    deterministic: bool = Field(
        default=False, description="op determinism; turns XLA off in TensorFlow"
    )
    steps_per_execution: int = Field(
        default=1, ge=1, le=10_000, description="steps that one call of the backend executes"
    )
    profile: bool = Field(default=False, description="traces some steps after the timed ones")
    exponents_every: int = Field(
        default=0, ge=0, le=1_000_000, description="steps between histograms of exponents; 0: none"
    )
    phase: Literal["train", "inference"] = Field(default="train", description="train, inference")
    batch_size: int = Field(
        default=32, ge=1, le=2**20, description="images or sequences per step, over all replicas"
    )
    epochs: int = Field(default=20, ge=1, le=10_000, description="passes over the training data")
    max_steps: int | None = Field(
        default=None,
        ge=LEAST_STEPS,
        le=MOST_STEPS,
        description="the run ends after this many steps; None: no limit",
    )
    target_ci: float | None = Field(
        default=None,
        ge=0.001,
        le=0.5,
        description="the run ends once step_ci, see results.csv, is at most this",
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1001, description="weights, data order; block is added to it"
    )
    block: int = Field(default=0, ge=0, description="which repeat this is")

    @model_validator(mode="after")
    def _is_possible(self) -> "Run":
        faults = chain(
            self._of_data(),
            self._of_model(),
            self._of_phase(),
            self._of_step(),
            self._of_integers(),
        )
        if fault := next(chain(faults, self._of_formats(), self._of_loop()), ""):
            raise ValueError(fault)
        return self

    # What of the values excludes one another, each in a sentence; the first is told.

    def _of_data(self) -> Iterator[str]:
        task, made_for = tasks.of(self.dataset), tasks.of_model(self.model)
        if made_for and made_for is not task:
            yield (
                f"model {self.model} is for {made_for.label}, and dataset {self.dataset} for "
                f"{task.label}; allowed: a model and a dataset of one task"
            )
        if self.model in TEXT_MODELS and self.sequence_length > POSITIONS:
            yield (
                f"sequence_length {self.sequence_length} with model {self.model}, which has "
                f"{POSITIONS} positions; allowed: at most {POSITIONS}"
            )
        if task is tasks.TOKENS and self.input_mode == "keydana":
            yield (
                f"input_mode keydana reads images, and dataset {self.dataset} is a text; allowed: "
                "input_mode pipeline or resident"
            )
        if task is tasks.TOKENS and self.augmentation != "none":
            yield (
                f"augmentation {self.augmentation} is of images, and dataset {self.dataset} is a "
                "text; allowed: augmentation none"
            )
        if self.model == "vit" and self.image_size % self.patch_size:
            yield (
                f"patch_size {self.patch_size} with model vit, which cuts images of "
                f"{self.image_size} x {self.image_size} pixels into patches; allowed: a number "
                "that divides image_size"
            )
        if self.from_logits and self.model in MODELS:
            yield (
                f"from_logits true with model {self.model}, which has its softmax; allowed: "
                "a model of yours, module:function"
            )

    def _of_model(self) -> Iterator[str]:
        for name, models in HAVE.items():
            default, value = Run.model_fields[name].default, getattr(self, name)
            users_own = ":" in self.model and name == "normalization"  # see training.layers.varied
            if value != default and self.model not in models and not users_own:
                yield (
                    f"{name} {str(value).lower()} with model {self.model}, which does not have it; "
                    f"allowed: {name} {str(default).lower()}, or model {', '.join(models)}"
                )
        for name in ("width", "width_multiple"):
            if getattr(self, name) != 1 and (":" in self.model or self.model in WITHOUT_WIDTH):
                yield (
                    f"{name} {getattr(self, name):g} with model {self.model}, whose widths are its "
                    f"own; allowed: {name} 1"
                )
        if self.image_size < (least := LEAST_SIDE.get(self.model, 0)):
            yield (
                f"image_size {self.image_size} with model {self.model}, of whose images nothing "
                f"would be left; allowed: at least {least}"
            )

    def _of_phase(self) -> Iterator[str]:
        if self.profile and self.phase != "train":
            yield f"profile true with phase {self.phase}; allowed: phase train"
        if self.exponents_every and (self.phase, self.replicas) != ("train", 1):
            yield (
                f"exponents_every {self.exponents_every} with phase {self.phase} and replicas "
                f"{self.replicas}; allowed: phase train and replicas 1"
            )
        if self.exponents_every and self.input_mode == "keydana":
            yield (
                f"exponents_every {self.exponents_every} with input_mode keydana, whose batches "
                "cannot be had again; allowed: input_mode pipeline or resident"
            )

        if self.exponents_every and self.steps_per_execution > 1:
            yield (
                f"exponents_every {self.exponents_every} with steps_per_execution "
                f"{self.steps_per_execution}, whose updates would be sums of several; allowed: "
                "steps_per_execution 1"
            )

    def _of_step(self) -> Iterator[str]:
        if self.target_ci and self.max_steps and self.max_steps < STEPS_FOR_TARGET:
            yield (
                f"target_ci {self.target_ci:g} cannot be reached in max_steps {self.max_steps}; "
                f"allowed: max_steps of at least {STEPS_FOR_TARGET}, or no target_ci"
            )
        if self.normalization == "fused" and self.jit != "off":
            yield (
                f"normalization fused with jit {self.jit}, and a compiler takes it apart; "
                "allowed: jit off, or normalization batch"
            )
        if self.batch_size % self.replicas:
            yield (
                f"batch_size {self.batch_size} cannot be shared equally by {self.replicas} "
                "replicas; allowed: a multiple of replicas"
            )
        if self.replicas > 1 and POLICY_ROWS[self.policy].quantization:
            yield (
                f"replicas {self.replicas} with policy {self.policy}, whose scales Keras does not "
                "share among devices; allowed: replicas 1"
            )

    def _of_integers(self) -> Iterator[str]:
        if POLICY_ROWS[self.policy].inference_only and self.phase != "inference":
            yield (
                f"policy {self.policy} with phase {self.phase}: weights that are integers are not "
                "trained; allowed: phase inference, which first trains in float32 for `epochs`"
            )
        if POLICY_ROWS[self.policy].inference_only and self.input_mode != "pipeline":
            yield (
                f"policy {self.policy} with input_mode {self.input_mode}: what is quantized is "
                "trained and validated first; allowed: input_mode pipeline"
            )

    def _of_formats(self) -> Iterator[str]:
        if self.propagation != "policy" and self.policy != "float32":
            yield (
                f"propagation {self.propagation} is emulated in float32, but policy is "
                f"{self.policy}; allowed: policy float32, or propagation policy"
            )
        rows = [row for row in POLICY_ROWS.values() if not row.inference_only]
        wide = [row.name for row in rows if row.variable_dtype == "float32"]
        if self.weight_format != "policy" and self.policy not in wide:
            yield (
                f"weight_format {self.weight_format} is emulated in float32 variables, which "
                f"policy {self.policy} has not; allowed: {', '.join(wide)}"
            )
        if self.replicas > 1 and {self.propagation, self.weight_format} != {"policy"}:
            yield f"replicas {self.replicas} with an emulated format; allowed: replicas 1"
        if self.propagation == "binary" and self.rounding != "nearest":
            yield (
                f"rounding {self.rounding} with propagation binary, which takes the sign; "
                "allowed: rounding nearest"
            )

    def _of_loop(self) -> Iterator[str]:
        for name, allowed in NATIVE.items() if self.frontend == "native" else ():
            if getattr(self, name) not in allowed:
                words = ", ".join(str(value).lower() or "none named" for value in allowed)
                given = str(getattr(self, name)).lower()
                yield (
                    f"frontend native with {name} {given}, which no plain loop here has; "
                    f"allowed: {name} {words}, or frontend keras"
                )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What differs from the defaults: all parameters would not fit on a line."""
        yield from self.model_dump(exclude_defaults=True).items()

    def _repr_html_(self) -> str:
        """For a notebook's cell: the parameters that differ from the defaults, and ALWAYS_SHOWN."""
        values, usual = self.model_dump(), defaults()
        shown = [n for n in values if values[n] != usual[n] or n in ALWAYS_SHOWN]
        rows = [
            (cell_html.cell(values[n]), cell_html.cell(usual[n]), Run.model_fields[n].description)
            for n in shown
        ]
        rest = f"The other {len(values) - len(shown)} parameters are at their defaults."
        return f"{cell_html.html(shown, rows, ('value', 'default', 'meaning'))}<p>{rest}</p>"

    @classmethod
    def read(cls, names: Mapping[str, Any]) -> "Run":
        """The run whose parameters stand in `names`, such as a notebook's `globals()`.

        Raises:
            ParamsError: where one is missing or is not allowed.
        """
        missing = [name for name in cls.model_fields if name not in names]
        if missing:
            raise ParamsError(f"no parameter {', '.join(missing)}; see docs/params.md for all")
        return cls(**{name: names[name] for name in cls.model_fields})

    @property
    def names_own(self) -> bool:
        """Whether its model, or a layer in it, is named by the user, who may be mistaken."""
        return self.model not in MODELS or bool(self.float32_layers)

    def run_id(self, notebook: str = "train") -> str:
        """12 hex digits that name this point on every machine.

        Only what differs from the defaults is hashed, so that adding a parameter leaves the ids
        of existing records as they are.

        Raises:
            ValueError: where `gpu_model` is still `local`, which names no device.
        """
        if self.gpu_model == "local":
            raise ValueError("gpu_model must be resolved before a run is named; see resolved()")
        name = dataset_paths.published_notebook(notebook)
        return run_id(self.published().model_dump(), name)

    def published(self) -> "Run":
        """This run as a record has it: of a dataset's path the last part, see `dataset_paths`."""
        return self.model_copy(update={"dataset": dataset_paths.published(self.dataset)})

    def resolved(self) -> "Run":
        """This run with `gpu_model: local` replaced by the name of this machine's device.

        A folder below the home directory is written with ~, so that no record names a user.
        """
        here = local_device() if self.gpu_model == "local" else self.gpu_model
        home = re.escape(str(Path.home()))
        dataset = re.sub(rf"^({'|'.join(PLACES)}):{home}(?=/|$)", r"\1:~", self.dataset)
        return self.model_copy(update={"gpu_model": here, "dataset": dataset})
