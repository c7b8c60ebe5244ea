"""oneDNN, which computes on a CPU: the limit on its instructions, and its log of what it ran."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from subprocess import DEVNULL, PIPE
from typing import Any

from mptexp.host.devices import CPU_ISAS, cpu_name, cpu_version, cpuinfo
from mptexp.host.project import child_environment, keyed, user_cache
from mptexp.records import store
from mptexp.spec.run import Run
from mptexp.training import backends
from mptexp.training.capability import Unsupported

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
SWITCHES = ("ONEDNN_", "DNNL_", "TF_ENABLE_")  # how variables begin that decide what oneDNN does
LONGEST_S = 300  # that a child process is waited for


def limit(run: Run) -> None:
    """Limits the instructions that oneDNN uses; it reads the limit when the framework starts.

    That is convolutions and, under TensorFlow, matrix products; what else a framework computes
    keeps the instructions that it was compiled for. Whether oneDNN is what computes, is for
    `backends.Backend.unsupported` to say.

    Raises:
        Unsupported: where the CPU has no such instructions.
    """
    if run.cpu_isa == "default":
        return
    if CPU_ISAS[run.cpu_isa] not in cpuinfo("flags", "Features").split():
        raise Unsupported(f"cpu_isa {run.cpu_isa} is asked for, but this CPU does not have it")
    os.environ["ONEDNN_MAX_CPU_ISA"] = run.cpu_isa.upper()


@cache
def isa(backend: str) -> str:
    """The instructions that oneDNN limits itself to, as a key of `devices.CPU_ISAS`.

    Read from the verbose mode of a child process with this one's environment: neither TensorFlow
    nor PyTorch exports oneDNN's own function, and verbose mode here would log every step.
    """
    marker = "info,cpu,isa:"
    log, _ = _log(backend, "float32")
    isas = [line.split(marker)[1].strip() for line in log if marker in line]
    return NAMES.get(isas[0], isas[0]) if isas else "oneDNN is not in use"


@cache
def reference(backend: str, dtype: str) -> dict[str, str]:
    """What oneDNN computes in a type by its reference code, for want of a kernel of its own.

    Reference code is a plain loop over single numbers, hundreds of times slower than a kernel,
    whatever instructions the CPU has for the type: oneDNN 3.12 on a CPU with AVX512_FP16 forms
    gradients of the weights of convolutions in float16 by it. Read from its verbose mode, which
    calls it `ref`, of small operations in a child process; kept in the cache of this machine.

    Args:
        backend: the name of one that is installed.
        dtype: in which convolutions and products, forward and backward, are asked for.

    Returns:
        Rows of CODE; empty where oneDNN is not in use.
    """
    if not (program := backends.backend(backend).ONEDNN_PROGRAM):
        return {}
    cpu = [cpu_name(), cpu_version(), cpuinfo("flags", "Features")]
    switches = {k: v for k, v in os.environ.items() if k.startswith(SWITCHES)}
    asked = [program, importlib.import_module(backend).__version__, dtype, cpu, switches]
    path = keyed(user_cache() / "onednn", asked)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # damaged: asked anew
        return {name: CODE[name] for name in json.loads(path.read_text())}
    log, whole = _log(backend, dtype)
    met = _by_reference(log)
    found = {name: text for name, text in CODE.items() if name in met}
    if whole:
        with contextlib.suppress(OSError):  # without a cache, the next process asks again
            store.write_text(path, json.dumps([*found]))
    return found


# What oneDNN calls a primitive and a pass that reference code may compute, and what readers do.
CODE = {
    "convolution forward": "convolutions",
    "convolution backward_data": "gradients of the inputs of convolutions",
    "convolution backward_weights": "gradients of the weights of convolutions",
    "matmul": "matrix products",
}


def _by_reference(log: Iterable[str]) -> set[str]:
    """The primitives and passes of a verbose log that reference code computed."""
    fields = [_executed(line) for line in log]
    return {
        re.sub("_training|_inference| undef", "", f"{one[0]} {one[2]}")
        for one in fields
        if one and re.match(r"(gemm:)?ref\b", one[1])
    }


def _log(backend: str, dtype: str) -> tuple[list[str], bool]:
    """The verbose log of a child process with this one's environment, of small operations.

    Also whether it is whole: of what came before a type that the framework does not have, if it
    has it not, but not of a process that something else ended, for want of memory say.
    """
    environ = child_environment() | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", backends.backend(backend).ONEDNN_PROGRAM, dtype]
    try:
        done = subprocess.run(
            command, env=environ, text=True, timeout=LONGEST_S, stdout=PIPE, stderr=DEVNULL
        )
    except subprocess.TimeoutExpired:
        return [], False
    return done.stdout.splitlines(), done.returncode >= 0


def _executed(line: str) -> list[str]:
    """Kind, implementation, pass and types of a primitive that ran, ..., its milliseconds.

    Empty of a line that says something else.
    """
    # onednn_verbose,v1,primitive,exec,cpu,kind,implementation,propagation,types,...,ms
    fields = line.strip().split(",")
    if len(fields) > 9 and fields[0] == "onednn_verbose" and "exec" in fields[2:4]:
        return fields[fields.index("exec") + 2 :]
    return []


def primitives(log: Iterable[str], steps: int) -> list[dict[str, Any]]:
    """What oneDNN ran in a step, from the lines of its verbose log; the longest first.

    Returns:
        Rows of primitive (convolution, reorder, matmul, ...), implementation (names instructions,
        such as brg_conv_fwd:avx512_core_bf16), dtype (of source, weights and destination where
        they differ), seconds and count per step.
    """
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for fields in filter(None, map(_executed, log)):
        kind, implementation, _, types = fields[:4]
        named = re.findall(r"(?:src|wei|dst)[:_](\w+?):", types)
        dtype = ", ".join(dict.fromkeys(named))
        times[kind, implementation or kind, dtype].append(float(fields[-1]) / 1e3)
    names = ("primitive", "implementation", "dtype")
    rows = [
        dict(zip(names, key, strict=True))
        | {"seconds": sum(seconds) / steps, "count": len(seconds) / steps}
        for key, seconds in times.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])
