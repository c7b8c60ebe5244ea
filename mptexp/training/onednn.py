"""oneDNN, which computes on a CPU: the limit on its instructions, and its log of what it ran."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from subprocess import DEVNULL
from typing import Any

from mptexp.spec.devices import CPU_ISAS, cpuinfo
from mptexp.spec.project import child_environment
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


def limit(run: Run) -> None:
    """Limits the instructions that oneDNN uses; it reads the limit when the framework starts.

    That is convolutions and, under TensorFlow, matrix products; what else a framework computes
    keeps the instructions that it was compiled for.

    Whether oneDNN is what computes, is for `backends.Backend.unsupported` to say.

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

    Args:
        backend: its name.
    """
    environ = child_environment() | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", backends.backend(backend).ONEDNN_PROGRAM]
    log = subprocess.check_output(command, env=environ, text=True, timeout=300, stderr=DEVNULL)
    marker = "info,cpu,isa:"
    isas = [line.split(marker)[1].strip() for line in log.splitlines() if marker in line]
    return NAMES.get(isas[0], isas[0]) if isas else "oneDNN is not in use"


def primitives(log: Iterable[str], steps: int) -> list[dict[str, Any]]:
    """What oneDNN ran in a step, from the lines of its verbose log; the longest first.

    Returns:
        Rows of primitive (convolution, reorder, matmul, ...), implementation (names instructions,
        such as brg_conv_fwd:avx512_core_bf16), dtype (of source, weights and destination where
        they differ), seconds and count per step.
    """
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for line in log:
        fields = line.strip().split(",")
        # onednn_verbose,v1,primitive,exec,cpu,kind,implementation,propagation,types,...,ms
        if len(fields) > 9 and fields[0] == "onednn_verbose" and "exec" in fields[2:4]:
            kind, implementation, _, types = fields[fields.index("exec") + 2 :][:4]
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
