"""What a run is: its typed parameters, the grid of a sweep, the run id.

Light on purpose: both halves of the package import this module, so it knows no framework.
"""

import difflib
import hashlib
import html
import importlib.util
import itertools
import json
import os
import platform
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from mptexp.spec import formats
from mptexp.spec.fields import Checked, ParamsError, Told

Backend = Literal["tensorflow", "jax", "torch"]
Policy = Literal[
    "float32", "tensorfloat32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"
]
POLICIES: tuple[str, ...] = get_args(Policy)
# What oneDNN's ONEDNN_MAX_CPU_ISA takes, in lower case, and the flag of the CPU each one needs.
CPU_ISAS = {
    "sse41": "sse4_1",
    "avx": "avx",
    "avx2": "avx2",
    "avx2_vnni": "avx_vnni",
    "avx512_core": "avx512bw",
    "avx512_core_vnni": "avx512_vnni",
    "avx512_core_bf16": "avx512_bf16",
    "avx512_core_fp16": "avx512_fp16",
    "avx512_core_amx": "amx_tile",
}
CpuIsa = Literal[
    "default",
    "sse41",
    "avx",
    "avx2",
    "avx2_vnni",
    "avx512_core",
    "avx512_core_vnni",
    "avx512_core_bf16",
    "avx512_core_fp16",
    "avx512_core_amx",
]
LEAST_STEPS = 7  # what the clock needs: see train.py
STEPS_FOR_TARGET = 100  # ten windows after a warm-up, of several quick steps each
MODELS = ("keydana_cnn", "banerjee_cnn", "banerjee_resnet50", "resnet50", "alexnet", "mlp")
MODELS += ("mlp_bn", "lenet")
DATASETS = ("digits", "synthetic")
PLACES = ("folder", "idx")  # kinds of dataset whose name goes on with a colon and a path


def known_dataset(name: str) -> str:
    """The name of a dataset, as it was given.

    Raises:
        ValueError: saying what is allowed, where the name is none that this installation knows.
    """
    kind, _, place = name.partition(":")
    base = name.split("/")[0].split(":")[0]
    if name in DATASETS or (kind in PLACES and place.strip()):
        return name
    shape = re.fullmatch(r"[a-z][a-z0-9_]*(/[\w.-]+)?(:[0-9.*]+)?", name)
    if shape and kind not in PLACES and (base in _tfds_names() or not _tfds_names()):
        return name
    near = difflib.get_close_matches(base, [*DATASETS, *PLACES, "imagenette", *_tfds_names()], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        "digits, synthetic, folder:PATH, idx:PATH, or an image-classification dataset of "
        f"tensorflow-datasets such as imagenette/320px-v2{hint}"
    )


@cache
def _tfds_names() -> tuple[str, ...]:
    """Names that tensorflow-datasets knows, from its files: importing it starts TensorFlow."""
    found = importlib.util.find_spec("tensorflow_datasets")
    if found is None or found.origin is None:
        return ()
    root = Path(found.origin).parent
    folders = (root / "datasets", root / "image_classification", root / "url_checksums")
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return tuple(sorted(name for name in names if not name.startswith("_")))


def known_model(name: str) -> str:
    """The name of a model, as it was given.

    Raises:
        ValueError: saying what is allowed, where it is neither a name nor of the form
            module:function.
    """
    if name in MODELS or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        return name
    near = difflib.get_close_matches(name, MODELS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"{', '.join(MODELS)}, or module:function for a model of yours{hint}")


def known_propagation(name: str) -> str:
    """The name of a format that may pass between layers, as it was given (see formats.passing)."""
    formats.passing(name)
    return name


def known_weight_format(name: str) -> str:
    """The name of a format in which weights may be kept, as it was given (see formats.kept)."""
    formats.kept(name)
    return name


def defaults() -> dict[str, Any]:
    """Every parameter of a run at its default."""
    return {name: field.default for name, field in Run.model_fields.items()}


class DeviceError(Told, ValueError):
    """A device was named that does not exist here."""


class Run(Checked):
    """The typed parameters of one run, which are also the notebook's parameters cell.

    A field's description is the comment behind the parameter in the notebook.
    """

    gpu_model: str = Field("local", min_length=1, description="device name; local: this machine's")
    backend: Backend = Field("tensorflow", description="Keras backend: tensorflow, jax, torch")
    replicas: int = Field(1, ge=1, le=1024, description="devices that share a batch")
    cpu_isa: CpuIsa = Field(
        "default", description="most that oneDNN may use of a CPU, see docs/guide.md"
    )
    memory_limit_gb: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="more is out of memory; GB of 1e9 bytes"
    )
    dataset: Annotated[str, AfterValidator(known_dataset)] = Field(
        "digits", description="digits, synthetic, folder:PATH, idx:PATH or a name of tfds"
    )
    image_size: int = Field(32, ge=8, le=1024, description="pixels, height and width")
    color_mode: Literal["auto", "rgb", "grayscale"] = Field(
        "auto", description="auto, rgb, grayscale; auto: digits are grey, all else is rgb"
    )
    validation_split: float = Field(
        0.2, gt=0, lt=1, description="share kept for validation where the data has no split"
    )
    on_broken: Literal["skip", "refuse"] = Field(
        "skip", description="pictures that cannot be read: skip, refuse"
    )
    synthetic_classes: int = Field(10, ge=2, le=100_000, description="of dataset synthetic")
    synthetic_length: int = Field(
        1024, ge=1, le=10_000_000, description="training pictures of dataset synthetic"
    )
    input_mode: Literal["pipeline", "keydana", "resident"] = Field(
        "pipeline", description="pipeline; keydana: E1's own; resident: a batch on the device"
    )
    augmentation: Literal["none", "flip", "crop", "flip_crop"] = Field(
        "none", description="random, on the device: none, flip, crop, flip_crop"
    )
    data_format: Literal["auto", "channels_last", "channels_first"] = Field(
        "auto", description="auto, channels_last, channels_first; auto: as Keras is configured"
    )
    model: Annotated[str, AfterValidator(known_model)] = Field(
        "keydana_cnn", description="a name of mptexp.models.MODELS, or module:function"
    )
    width: float = Field(1.0, gt=0, le=8, description="multiplies the number of filters")
    width_multiple: int = Field(
        1, ge=1, le=256, description="numbers of filters are rounded up to a multiple of it"
    )
    normalization: Literal["batch", "none"] = Field(
        "batch", description="batch: as the model has it; none: left out, for timing"
    )
    float32_layers: str = Field(
        "", description="names of layers that compute in float32, with commas"
    )
    batch_norm_momentum: float = Field(
        0.99, ge=0, lt=1, description="of the moving averages that validation uses"
    )
    optimizer: Literal["adam", "sgd"] = Field(
        "adam", description="adam, sgd (Nesterov momentum 0.9)"
    )
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False, description="of the optimizer")
    learning_rate_decay: Literal["none", "cosine"] = Field(
        "none", description="none, cosine: to zero over all epochs"
    )
    policy: Policy = Field("float32", description="precision policy, see docs/guide.md")
    loss_scale: (
        Literal["auto", "dynamic", "none"] | Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ) = Field("auto", description="auto, dynamic, none or a number; auto: as Keras decides")
    propagation: Annotated[str, AfterValidator(known_propagation)] = Field(
        "policy", description="emulated format of what passes between layers, see docs/guide.md"
    )
    weight_format: Annotated[str, AfterValidator(known_weight_format)] = Field(
        "policy", description="emulated format in which weights are kept, see docs/guide.md"
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest", description="nearest, stochastic: of both formats"
    )
    jit: Literal["auto", "on", "off"] = Field("auto", description="XLA: auto, on, off")
    deterministic: bool = Field(False, description="op determinism; turns XLA off in TensorFlow")
    steps_per_execution: int = Field(
        1, ge=1, le=10_000, description="steps that one call of the backend executes"
    )
    profile: bool = Field(False, description="traces some steps after the timed ones")
    exponents_every: int = Field(
        0, ge=0, le=1_000_000, description="steps between looks at gradients and the like; 0: none"
    )
    phase: Literal["train", "inference"] = Field("train", description="train, inference")
    batch_size: int = Field(32, ge=1, le=2**20, description="images per step, over all replicas")
    epochs: int = Field(20, ge=1, le=10_000, description="passes over the training images")
    max_steps: int | None = Field(
        None, ge=LEAST_STEPS, description="the run ends after so many steps; None: no limit"
    )
    target_ci: float | None = Field(
        None, ge=0.001, le=0.5, description="the run ends once its median step is so certain"
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1001, description="weights, data order; block is added to it"
    )
    block: int = Field(0, ge=0, description="which repeat this is")

    @model_validator(mode="after")
    def _can_be_profiled(self) -> "Run":
        if self.profile and self.phase != "train":
            raise ValueError(f"profile true with phase {self.phase}; allowed: phase train")
        return self

    @model_validator(mode="after")
    def _can_be_looked_into(self) -> "Run":
        if self.exponents_every and (self.phase, self.replicas) != ("train", 1):
            raise ValueError(
                f"exponents_every {self.exponents_every} with phase {self.phase} and replicas "
                f"{self.replicas}; allowed: phase train and replicas 1"
            )
        return self

    @model_validator(mode="after")
    def _can_be_shared(self) -> "Run":
        if self.batch_size % self.replicas:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be shared equally by {self.replicas} "
                "replicas; allowed: a multiple of replicas"
            )
        return self

    @model_validator(mode="after")
    def _can_be_emulated(self) -> "Run":
        if self.propagation != "policy" and self.policy != "float32":
            raise ValueError(
                f"propagation {self.propagation} is emulated in float32, but policy is "
                f"{self.policy}; allowed: policy float32, or propagation policy"
            )
        if self.weight_format != "policy" and self.policy in ("float16", "bfloat16"):
            raise ValueError(
                f"weight_format {self.weight_format} is emulated in float32 variables, which "
                f"policy {self.policy} has not; allowed: float32, tensorfloat32, mixed_float16, "
                "mixed_bfloat16"
            )
        if self.replicas > 1 and {self.propagation, self.weight_format} != {"policy"}:
            raise ValueError(
                f"replicas {self.replicas} with an emulated format; allowed: replicas 1"
            )
        if self.propagation == "binary" and self.rounding != "nearest":
            raise ValueError(
                f"rounding {self.rounding} with propagation binary, which takes the sign; "
                "allowed: rounding nearest"
            )
        return self

    @model_validator(mode="after")
    def _can_reach_its_target(self) -> "Run":
        if self.target_ci and self.max_steps and self.max_steps < STEPS_FOR_TARGET:
            raise ValueError(
                f"target_ci {self.target_ci:g} cannot be reached in max_steps {self.max_steps}; "
                f"allowed: max_steps of at least {STEPS_FOR_TARGET}, or no target_ci"
            )
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What differs from the defaults: 35 parameters are no line."""
        yield from self.model_dump(exclude_defaults=True).items()

    def _repr_html_(self) -> str:
        """A notebook's cell shows what differs from the defaults, and what a run is known by."""
        values, usual = self.model_dump(), defaults()
        shown = [n for n in values if values[n] != usual[n] or n in KNOWN_BY]
        rows = [(_cell(values[n]), _cell(usual[n]), Run.model_fields[n].description) for n in shown]
        rest = f"The other {len(values) - len(shown)} parameters are at their defaults."
        return f"{_html(shown, rows, ('value', 'default', 'meaning'))}<p>{rest}</p>"

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

    def run_id(self, notebook: str = "train") -> str:
        """12 hex digits that name this point on every machine.

        Only what differs from the defaults is hashed, so that a parameter added by a later
        version leaves the ids of older records as they are.
        """
        if self.gpu_model == "local":
            raise ValueError("gpu_model must be resolved before a run is named; see resolved()")
        named = {"notebook": notebook, **self.model_dump(exclude_defaults=True)}
        canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def resolved(self) -> "Run":
        """This run with `gpu_model: local` replaced by the name of this machine's device.

        A folder below the home directory is written with ~, so that no record names a user.
        """
        here = local_device() if self.gpu_model == "local" else self.gpu_model
        home = re.escape(str(Path.home()))
        dataset = re.sub(rf"^({'|'.join(PLACES)}):{home}(?=/|$)", r"\1:~", self.dataset)
        return self.model_copy(update={"gpu_model": here, "dataset": dataset})


KNOWN_BY = ("gpu_model", "dataset", "model", "policy", "batch_size")
MOST_ROWS = 24  # of a table in a notebook's cell: more are left out of its middle


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _html(names: Sequence[Any], rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> str:
    """A table for a notebook's cell; tags within it are shown, not obeyed."""
    import pandas as pd

    table = pd.DataFrame(rows, index=pd.Index(names), columns=list(columns), dtype=object)
    with pd.option_context("display.max_colwidth", None, "display.html.use_mathjax", False):
        return str(table.to_html(max_rows=MOST_ROWS, show_dimensions=False))


def same_model(asked: str, found: str) -> bool:
    """Whether a device of the name `found` is the model that was `asked` for.

    A short name stands for every device whose name holds its words: V100 for Tesla
    V100-SXM2-16GB, A100-40G for NVIDIA A100-SXM4-40GB, but L4 not for NVIDIA L40.
    """
    has = set(_words(found)) | {word.removesuffix("b") for word in _words(found)}
    return asked == found or (bool(_words(asked)) and set(_words(asked)) <= has)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


@cache
def local_devices() -> tuple[tuple[str, str], ...]:
    """Name and UUID of each GPU that CUDA programs see here; else of the CPU, with no UUID.

    Asks NVML, not a framework: the parent process of a sweep must not hold GPU memory.
    """
    return _gpus() or ((cpu_name(), ""),)


def local_device() -> str:
    """Name of the device that a run on this machine uses, as NVML or the kernel spells it."""
    return local_devices()[0][0]


def is_here(gpu_model: str) -> bool:
    """Whether this machine has a device of a model."""
    return any(same_model(gpu_model, name) for name, _ in local_devices())


def _gpus() -> tuple[tuple[str, str], ...]:
    import pynvml

    return tuple(
        (str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
        for handle in nvidia_handles()
    )


def nvidia_handles() -> list[Any]:
    """NVML's handles of the GPUs that CUDA programs see here, the first one first.

    Raises:
        DeviceError: where CUDA_VISIBLE_DEVICES names a GPU that does not exist.
    """
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    named = range(count) if visible is None else visible.split(",")
    try:
        return [_handle(str(name).strip()) for name in named] if count else []
    except pynvml.NVMLError:
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES is {visible}; allowed: numbers below {count}, the GPUs that "
            "NVML sees here, or their UUIDs"
        ) from None


def _handle(name: str) -> Any:
    import pynvml

    by_number = name.isdigit()
    find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
    return find(int(name) if by_number else name)


def nvidia_handle() -> Any:
    """NVML's handle of the first GPU that CUDA programs see here; None where there is none.

    Raises:
        DeviceError: where CUDA_VISIBLE_DEVICES names a GPU that does not exist.
    """
    return next(iter(nvidia_handles()), None)


def cpu_name() -> str:
    """Name of this machine's CPU as a device."""
    return f"{cpuinfo('model name') or platform.processor() or platform.machine()} (CPU)"


@cache
def cpuinfo(*names: str) -> str:
    """The first entry of one of these names in /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith(names)]
    return found[0] if found else ""


# Keys of a params file that change its report alone.
REPORT_KEYS = ("equivalence_margin", "target_accuracy", "price_per_hour")


class Sweep(Checked):
    """All runs of one params file: GitHub Actions' matrix vocabulary over the fields of Run."""

    notebook: str = Field(
        "train", min_length=1, description="a name from notebooks/, or a path beside the file"
    )
    defaults: dict[str, Any] = Field({}, description="parameters that all runs share")
    matrix: dict[str, list[Any]] = Field(
        {}, description="axes: parameter -> list of values; every combination is a point"
    )
    exclude: list[dict[str, Any]] = Field(
        [], description="points that agree with all values of an entry are dropped"
    )
    include: list[dict[str, Any]] = Field(
        [], description="each entry is a further point over the defaults"
    )
    repeats: int = Field(1, ge=1, le=1000, description="blocks: each point runs once in each")
    timeout_min: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="minutes after which a run is ended"
    )
    expected_run_s: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="seconds of a run, for the plan, until one ended",
    )
    max_batch: bool = Field(
        False, description="first finds the largest batch of each policy, and measures it too"
    )
    # What a report says beyond the measurements; the others decide what is measured.
    equivalence_margin: float = Field(
        0.01, gt=0, lt=1, description="accuracies are equal within this, a fraction; report only"
    )
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="time to this, a fraction, is told; report only"
    )
    price_per_hour: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of the device, any currency; report only"
    )

    def points(self) -> list[dict[str, Any]]:
        """One dict of parameters per point, in the order written, without repeats.

        `exclude` drops the points that agree with all of an entry's values; an entry of
        `include` is a point of its own over the defaults.
        """
        axes = [[(name, value) for value in values] for name, values in self.matrix.items()]
        grid = [dict(point) for point in itertools.product(*axes)] if axes else []
        full = [{**self.defaults, **point} for point in grid]
        known = defaults() if self.exclude else {}
        kept = [p for p in full if not any(_agrees(known | p, e) for e in self.exclude)]
        return kept + [{**self.defaults, **entry} for entry in self.include]

    def runs(self, further: Sequence[Run] = ()) -> list[Run]:
        """Every run, block by block; the order within a block is random but reproducible.

        Args:
            further: points beside those of the params file, each at block 0.
        """
        points = [Run(**point).resolved() for point in self.points()]
        points += [run.resolved() for run in further]
        return [run for k in range(self.repeats) for run in _block(points, k)]

    def axes(self) -> list[str]:
        """Names of the parameters that differ between points, in the order of Run's fields."""
        known, points = defaults(), self.points()
        written = {*self.matrix, *(name for entry in self.include for name in entry)}
        varying = {n for n in written if len({p.get(n, known[n]) for p in points}) > 1}
        varying |= {"batch_size"} if self.max_batch else set()
        return [n for n in Run.model_fields if n in varying]

    def _repr_html_(self) -> str:
        """A notebook's cell shows the points, a row each, and how many runs they make."""
        points, known, axes = self.points(), defaults(), self.axes()
        rows = [[_cell((known | p).get(name)) for name in axes] for p in points]
        runs = f"{len(points)} points × {self.repeats} blocks = {len(points) * self.repeats} runs"
        same = [f"{n} {_cell(v)}" for n, v in self.defaults.items() if n not in axes]
        told = f"{runs} of {self.notebook}" + f"; all with {', '.join(same)}" * bool(same)
        return f"{_html(range(1, len(points) + 1), rows, axes)}<p>{html.escape(told)}</p>"


def _agrees(point: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return all(point[name] == value for name, value in entry.items())


def _block(points: Sequence[Run], block: int) -> list[Run]:
    runs = [p.model_copy(update={"block": block, "seed": p.seed + block}) for p in points]
    random.Random(f"block {block}").shuffle(runs)
    return runs
