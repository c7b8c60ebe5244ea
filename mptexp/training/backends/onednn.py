"""oneDNN, which computes on a CPU: limiting the instructions it uses, and asking for them."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from mptexp.spec.devices import CPU_ISAS, cpuinfo
from mptexp.spec.run import Run
from mptexp.training.environment import Unsupported

# What oneDNN's verbose mode calls the instruction sets (versions 3.7 and 3.12).
NAMES = {
    "Intel SSE4.1": "sse41",
    "Intel AVX": "avx",
    "Intel AVX2": "avx2",
    "Intel AVX2 with Intel DL Boost": "avx2_vnni",
    "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions": "avx512_core",
    "Intel AVX-512 with Intel DL Boost": "avx512_core_vnni",
    "Intel AVX-512 with Intel DL Boost and bfloat16 support": "avx512_core_bf16",
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support": "avx512_core_fp16",
    "Intel AVX 10.1": "avx512_core_fp16",
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16 "
    "and 8-bit integer support": "avx512_core_amx",
    "Intel AVX10.1 and Intel AMX with bfloat16 and 8-bit integer support": "avx512_core_amx",
}
# A convolution large enough for PyTorch to leave it to oneDNN, which then says what it uses.
PROGRAMS = {
    "tensorflow": "import tensorflow as t; t.nn.conv2d(t.ones((4, 32, 32, 16)), "
    "t.ones((3, 3, 16, 16)), 1, 'SAME')",
    "torch": "import torch as t; t.nn.functional.conv2d(t.ones(4, 16, 32, 32), "
    "t.ones(16, 16, 3, 3))",
}


def limit(run: Run) -> None:
    """Tells oneDNN, which reads this when the framework starts, how much of the CPU to use.

    That is convolutions and, under TensorFlow, matrix products; what else a framework computes
    keeps the instructions that it was compiled for.

    Raises:
        Unsupported: where oneDNN would not be what computes, or the CPU has no such instructions.
    """
    if run.cpu_isa == "default":
        return
    asked = f"cpu_isa {run.cpu_isa} limits oneDNN"
    if run.backend == "jax":
        raise Unsupported(f"{asked}, to which JAX leaves only some products; XLA compiles the rest")
    if run.backend == "tensorflow" and run.jit == "on":
        raise Unsupported(f"{asked}, to which XLA leaves only some products; take jit auto or off")
    if run.backend == "tensorflow" and os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        raise Unsupported(f"{asked}, which TF_ENABLE_ONEDNN_OPTS=0 turns off")
    if CPU_ISAS[run.cpu_isa] not in cpuinfo("flags", "Features").split():
        raise Unsupported(f"cpu_isa {run.cpu_isa} is asked for, but this CPU does not have it")
    # TensorFlow turns it on by itself only where the CPU has AVX512_VNNI, AVX_VNNI or later.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ["ONEDNN_MAX_CPU_ISA"] = run.cpu_isa.upper()


@cache
def isa(backend: str) -> str:
    """The instructions that oneDNN limits itself to, as oneDNN says, in spec.CPU_ISAS' words.

    A child process with this one's environment is asked, since neither TensorFlow nor PyTorch
    exports oneDNN's own question: its verbose mode tells, and would tell of every step.
    """
    environ = os.environ | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", PROGRAMS[backend]]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    marker = "info,cpu,isa:"
    said = [line.split(marker)[1].strip() for line in done.stdout.splitlines() if marker in line]
    return NAMES.get(said[0], said[0]) if said else "oneDNN is not in use"


def primitives(log: Iterable[str], steps: int) -> list[dict[str, Any]]:
    """What oneDNN ran in a step, from the lines of its verbose log; the longest first.

    Returns:
        Rows of primitive (convolution, reorder, matmul, ...), implementation (names instructions,
        such as brg_conv_fwd:avx512_core_bf16), dtype (of source, weights and destination where
        they differ), seconds and count per step.
    """
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for line in log:
        fields = line.strip().split(",")
        # onednn_verbose,v1,primitive,exec,cpu,kind,implementation,propagation,types,...,ms
        if len(fields) > 9 and fields[0] == "onednn_verbose" and "exec" in fields[2:4]:
            kind, implementation, _, types = fields[fields.index("exec") + 2 :][:4]
            named = re.findall(r"(?:src|wei|dst)[:_](\w+?):", types)
            dtype = ", ".join(dict.fromkeys(named))
            found[kind, implementation or kind, dtype].append(float(fields[-1]) / 1e3)
    names = ("primitive", "implementation", "dtype")
    rows = [
        {
            **dict(zip(names, key, strict=True)),
            "seconds": sum(times) / steps,
            "count": len(times) / steps,
        }
        for key, times in found.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])
