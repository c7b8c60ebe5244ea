"""Values of parameters in plain words: a row each, for charts, captions, tables and sentences.

Who reads a page has no params file at hand, in which `input_mode: keydana` would be looked up.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ParameterValue:
    """A row.

    Attributes:
        value: as a params file has it.
        words: a label that says it without the name; no apostrophe, which pages write in two ways.
        meaning: a sentence for the terms of a page; empty where the words need none.
    """

    name: str
    value: str
    words: str
    meaning: str = ""

    @property
    def term(self) -> str:
        """The meaning, and how it is asked for."""
        return f"{self.meaning} In a params file: {self.name}: {self.value}."


ROWS = (
    ParameterValue("phase", "train", "training"),
    ParameterValue("phase", "inference", "inference"),
    ParameterValue("jit", "on", "with XLA"),
    ParameterValue("jit", "off", "without XLA"),
    ParameterValue(
        "input_mode",
        "pipeline",
        "prefetched input",
        "Images are decoded once, and batches are read ahead of their step.",
    ),
    ParameterValue(
        "input_mode",
        "keydana",
        "input as in Keydana 2020",
        "Images are decoded and resized once and kept in memory; batches are not read ahead of "
        "their step, as in S. Keydana's study of 2020.",
    ),
    ParameterValue(
        "input_mode",
        "resident",
        "one batch kept on the device",
        "Every step trains on the same batch, so that no time goes into input.",
    ),
    ParameterValue(
        "normalization",
        "fused",
        "fused batch normalization",
        "A batch normalization is one operation of the framework, as it was in TensorFlow 2.1.",
    ),
    ParameterValue("normalization", "none", "no batch normalization"),
    ParameterValue("cpu_isa", "default", "all instruction sets"),
    ParameterValue("cpu_isa", "sse41", "SSE4.1", "Instructions of a CPU on vectors of 128 bits."),
    ParameterValue("cpu_isa", "avx2", "AVX2", "Instructions of a CPU on vectors of 256 bits."),
    ParameterValue(
        "cpu_isa", "avx512_core", "AVX512", "Instructions of a CPU on vectors of 512 bits."
    ),
    ParameterValue(
        "cpu_isa",
        "avx512_core_bf16",
        "AVX512_BF16",
        "AVX512 with instructions that multiply bfloat16.",
    ),
    ParameterValue(
        "cpu_isa",
        "avx512_core_fp16",
        "AVX512_FP16",
        "AVX512 with instructions that compute in float16, and with those that multiply bfloat16.",
    ),
    ParameterValue(
        "cpu_isa",
        "avx512_core_amx",
        "AMX",
        "Units of a CPU that multiply matrices in bfloat16 or int8, tile by tile.",
    ),
    ParameterValue("frontend", "keras", "Keras loop"),
    ParameterValue(
        "frontend",
        "native",
        "plain loop",
        "Written with the framework alone, without Keras's fit and predict.",
    ),
)
# Words for no value, and for any number.
OPTIONAL = {
    "clip_norm": ("gradients not clipped", "gradients clipped to norm {:g}"),
    "depth": ("usual depth", "depth {:g}"),
    "memory_limit_gb": ("no memory limit", "at most {:g} GB of memory"),
}
NAMES = {"gpu_model": "device"}  # of parameters, where readers know them by another
WORDS = {(row.name, row.value): row.words for row in ROWS}


def in_words(name: str, value: Any) -> str:
    """`without XLA`, `prefetched input`; a value that has no row stands after its parameter's name.

    As a params file or a table has it, where XLA is true or false.
    """
    written = ("off", "on")[int(value)] if isinstance(value, bool | np.bool_) else str(value)
    return _known(name, written) or _unworded(NAMES.get(name, name.replace("_", " ")), written)


def _unworded(name: str, value: str) -> str:
    """`width 2`; `no memory_limit_gb` where a params file has null."""
    return f"no {name}" if value == "None" else f"{name} {value}".rstrip()


def _known(name: str, value: str) -> str:
    """The words of a row, or of a number; empty where there are none."""
    without, with_number = OPTIONAL.get(name, ("", ""))
    number = with_number.format(float(value)) if with_number and value != "None" else without
    return number or WORDS.get((name, value), "")


def compiled_in_words(on: bool, backend: str) -> str:
    """`with XLA`, of PyTorch `with torch.compile`: what jit asks of a backend."""
    return in_words("jit", on).replace("XLA", "torch.compile" if backend == "torch" else "XLA")


def setting_in_words(text: str) -> str:
    """The further parameters of a point: `fused batch normalization, width 2`."""
    parts = [part.partition(" ") for part in text.split(", ")]
    return ", ".join(_known(name, value) or _unworded(name, value) for name, _, value in parts)
