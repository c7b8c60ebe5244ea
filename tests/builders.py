"""Made records and traces, and what is computed of them: no run was executed for them."""

import sqlite3
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
from support import PROJECT

from mptexp.analysis import speedups, sweep_tables
from mptexp.diagnosis.foreign_traces import Recording
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table
from mptexp.report import measured_sweep
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.traces import kineto

# What a record says that the run was beyond its parameters; see training.identity.
IDENTITY = {"code": "c0de", "model_source": "", "data": "d", "device": "GPU"}


@cache
@cache  # what many tests of a file look at is computed once
def published(name):
    """A committed sweep as a report reads it; tests change nothing in it."""
    return measured_sweep.load(SweepDir(PROJECT / "reports/published" / name))


MADE = count()  # no two runs take the same time to the last digit


def labels(chance):
    """A million validation images, of whose commonest class guessing gets that share right."""
    most = round(chance * 10**6)
    return [*[most] * (10**6 // most), 10**6 % most]


def record(
    policy="float32", block=0, step_s=0.1, batch_size=32, default="float32", width=1.0, **more
):
    run = Run(
        gpu_model="GPU",
        policy=policy,
        block=block,
        seed=block,
        batch_size=batch_size,
        width=width,
    )
    return {
        "schema": 1,
        "run_id": run.run_id(),
        "status": "ok",
        "error": "",
        "parameters": run.model_dump(),
        "in_force": {
            "jit": False,
            "emulated": False,
            "default_policy": default,
            "variable_dtype": POLICY_ROWS[policy].variable_dtype,
            "initial_weights": "w",
            "data_order": f"o{block}",
            "validation_images": 10**6,
            "validation_labels": labels(more.get("chance_accuracy", 1.0)),
            **more,
        },
        "identity": IDENTITY | {"initial_weights": "w", "data_order": f"o{block}"},
        "timing": {"step_s": step_s, "step_s_low": step_s, "step_s_high": step_s, "steps_timed": 9,
                   "step_ci": 0.01,
                   "images_per_s": batch_size / step_s, "warmup_steps": 1,
                   "first_step_s": 1.0 + next(MADE) * 1e-9},
        "history": [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": 0.9 + block / 100}],
        "samples": [{}],
        "peak_memory_bytes": 2**30,
        "fit_s": 1.0,
        "wall_s": 2.0,
    }  # fmt: skip


def classified(made, correct, digest="5a3e5a3e5a3e"):
    """The record of a run that got these validation images right: an array of true and false."""
    correct = np.asarray(correct, bool)
    made["in_force"] |= {"validation_images": len(correct), "validation_labels": [len(correct)]}
    made["history"] = [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": correct.mean()}]
    listed = np.packbits(correct).tobytes().hex()
    return made | {"validated": {"images": len(correct), "digest": digest, "correct": listed}}


def reaching(made, accuracy):
    """A run whose one validation gets that share right."""
    return made | {"history": [made["history"][-1] | {"val_accuracy": accuracy}]}


def diverged(made):
    """The record as of a run whose loss was not finite in its first epoch."""
    return made | {"status": "diverged", "error": NOT_FINITE, "history": [], "timing": {}}


def text(policy="float32", block=0, loss=2.0, chance=3.0, step_s=0.1, sequences=(0.1, -0.1, 0.0)):
    """The record of a training on text: these differences from the loss are its sequences'."""
    made = record(policy, block, step_s)
    run = Run(
        gpu_model="GPU", policy=policy, block=block, seed=block, dataset="hamlet", model="gpt"
    )
    made |= {"run_id": run.run_id(), "parameters": run.model_dump()}
    del made["timing"]["images_per_s"]
    made["timing"]["tokens_per_s"] = 32 * 128 / step_s
    made["history"] = [
        {"epoch": e, "loss": loss, "accuracy": 0.3, "val_loss": loss, "val_accuracy": 0.3}
        for e in (1, 2, 3)
    ]
    made["in_force"] |= {"chance_loss": chance, "validation_images": len(sequences)}
    for name in ("chance_accuracy", "validation_labels"):  # of images
        made["in_force"].pop(name, None)
    losses = [loss + each for each in sequences]
    listed = {"images": len(losses), "digest": "5a3e5a3e5a3e", "losses": losses}
    return made | {"validated": listed}


def tables(records):
    results = sweep_tables.flagged(records, "mine")
    found = speedups.at_same_batch(results)
    return sweep_tables.Tables(results, history_table(records), found, records, [])


def many(blocks=3, widths=36):
    """Two policies at three batch sizes of so many networks: mixed_float16 is twice as fast."""
    return [
        record(policy, block, step_s, batch_size, width=round(0.1 + k / 20, 2))
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
        for batch_size in (32, 64, 128)
        for k in range(widths)
        for block in range(blocks)
    ]


def three(policy, speedups, **more):
    rows = []
    for block, speedup in enumerate(speedups):
        rows += [record(block=block, step_s=0.1), record(policy, block, 0.1 / speedup, **more)]
    return tables(rows)


LOGICAL_CPU = "Some CPU (CPU)"


def replicated(replicas, batch_size, step_s, jit=False, blocks=3, device="GPU", **parameters):
    """Runs whose machine slows down from block to block: ratios within blocks do not notice."""
    for block in range(blocks):
        made = record(step_s=step_s * 1.5**block, block=block, batch_size=batch_size, jit=jit)
        made["parameters"] |= {"replicas": replicas, **parameters}
        made["environment"] = {"device": device, "packages": {}}
        made["run_id"] = f"{replicas}-{batch_size}-{block}-{jit}-{parameters}"
        yield made


def tables_of(*groups):
    """The tables of groups of records."""
    return tables([made for group in groups for made in group])


def trained_by(frontend, step_s, backend="jax", size=32, **parameters):
    """Runs by Keras or a plain loop, one for each block."""
    for made in replicated(1, size, step_s, backend=backend, **parameters):
        made["parameters"]["frontend"] = frontend
        made["run_id"] += frontend
        yield made


def quantized(policy, block, before, after, made=None):
    """A record of a model whose weights were made integers after its training."""
    made = made or record(block=block)
    made["parameters"] |= {"phase": "inference", "policy": policy}
    made["run_id"] = f"{policy}-{block}"
    made["history"] = []
    return made | {
        "quantized": {
            "before": before,
            "after": after,
            "bytes_before": 4 * 2**20,
            "bytes_after": 2**20,
            "calibration": "no data",
        }
    }


def identified(found):
    """The tables again, of records that say what they were."""
    begun = {"initial_weights": "w", "data_order": "o"}
    return tables([r | {"identity": IDENTITY | begun} for r in found.records])


FIXED = {"propagation": "<8,8>", "weight_format": "<8,8>"}
STOCHASTIC = FIXED | {"rounding": "stochastic"}


def emulated_runs(errors, policy="float32", status="ok", lost=None, **parameters):
    """A run per block with these validation errors, in percent."""
    for block, error in enumerate(errors):
        made = record(policy, block)
        made["parameters"] |= parameters
        made["run_id"] = f"{policy}-{block}-{sorted(parameters.items())}"
        made["status"] = status
        made["swallowed_updates_frac"] = lost
        made["history"] = [{"epoch": 1, "val_accuracy": 1 - error / 100}] if status == "ok" else []
        yield made


NOT_FINITE = "the loss was not finite in epoch 1; trained again, the first was the loss, in step 3"


def loss_scaled(policy, scale, block, accuracy, skipped=None):
    bad = accuracy is None
    return {
        "run_id": f"{abs(hash((policy, scale, block))):012x}"[:12],
        "status": "diverged" if bad else "ok",
        "error": NOT_FINITE if bad else "",
        "parameters": Run(policy=policy, loss_scale=scale, block=block, seed=block).model_dump(),
        "history": [{"epoch": 1, "val_accuracy": accuracy}],
        "identity": IDENTITY,
        "in_force": {"validation_images": 10**6, "validation_labels": [10**6]},
        "loss_scales": [{"step": 9, "loss_scale": 8.0, "skipped": skipped}] if skipped else [],
        **({"skipped_steps": skipped} if skipped else {}),
    }


def several_scales():
    """A policy stalls with a small loss scale, trains with others, diverges with a large one."""
    records = [loss_scaled("float32", "none", b, 0.98 + b / 1000) for b in range(3)]
    records += [loss_scaled("mixed_float16", 1.0, b, 0.981 + b / 1000) for b in range(3)]
    records += [loss_scaled("mixed_float16", 2.0**-16, b, 0.3 + b / 100) for b in range(3)]
    records += [loss_scaled("mixed_float16", 2.0**24, b, None if b else 0.97) for b in range(3)]
    records += [loss_scaled("mixed_float16", "auto", b, 0.98, skipped=4) for b in range(3)]
    return tables(records)


CARD = {
    "device": "GPU", "capability": [8, 0], "cores": 8, "load": 0.1, "packages": {"keras": "3.15"},
    "variables": {}, "instruction_sets": [], "driver": "590.1", "cuda": "12.9", "cudnn": "9",
    "cpu": "EPYC", "memory_bytes": 2**36, "os": "Linux", "python": "3.11", "commit": "1234",
}  # fmt: skip


def written_sweep(root, device, scale, price=None, runs=3, **card):
    for block in range(runs):
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
            made = record(policy, block, step_s * scale * 1.01**block)
            made["parameters"]["gpu_model"] = device
            made["environment"] = CARD | {"device": device, "load": scale} | card
            named = {name: made["environment"][name] for name in ("device", "cpu", "cores")}
            made |= {"identity": made["identity"] | named}
            made["run_id"] = Run(**made["parameters"]).run_id()
            store.write_record(root / "runs" / made["run_id"] / "record.json", made)
    extra = f"price_per_hour: {price}\n" if price else ""
    (root / "params.yaml").write_text(f"matrix: {{policy: [float32]}}\n{extra}")
    return SweepDir(root)


# --- traces of PyTorch -------------------------------------------------------------------------

# The categories of PyTorch 1.8 to 1.12, and later ones: operation, launch, kernel, copy.
KINETO = (
    ("Operator", "Runtime", "Kernel", "Memcpy"),
    ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"),
)


def kineto_step(names, step):
    """The events of a training step of 1000 us on a GPU, as PyTorch's profiler writes them.

    A batch is awaited for 200 us and copied in 50; a convolution runs forward (100) and backward
    (100) and the optimizer (50) works.
    """
    op, launch, kernel, copy = names
    begin, made = step * 1000, []

    def host(name, start, length, cat=op, thread=1, **args):
        made.append({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread,
                     "ts": begin + start, "dur": length, "args": args})  # fmt: skip

    def device(name, start, length, launched, cat=kernel, thread=1):
        number = step * 1000 + launched
        made.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": begin + start,
                     "dur": length, "args": {"device": 0, "correlation": number,
                                             "External id": number}})  # fmt: skip
        call = "cudaMemcpyAsync" if cat == copy else "cudaLaunchKernel"
        host(call, launched, 1, launch, thread, correlation=number)

    host(f"ProfilerStep#{step}", 0, 1000)
    host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 200)
    host("nn.Module: Net_0", 210, 100, "python_function")
    host("nn.Module: Conv2d_0", 220, 80, "python_function")
    host("aten::conv2d", 230, 60, **{"External id": step * 1000 + 240, "Sequence number": 7})
    device("Memcpy HtoD (Pageable -> Device)", 200, 50, 205, copy)
    device("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
           300, 100, 240)  # fmt: skip
    host("autograd::engine::evaluate_function: ConvolutionBackward0", 400, 90, thread=2,
         **{"Sequence number": 7})  # fmt: skip
    host("aten::convolution_backward", 410, 60, thread=2, **{"External id": step * 1000 + 420})
    device("void cudnn::cnn::wgrad_alg1_engine<float, float, 128, 6, 8, 3, 3, 5>(int)",
           500, 100, 420, thread=2)  # fmt: skip
    host("Optimizer.step#SGD.step", 600, 100)
    host("aten::add_", 610, 50, **{"External id": step * 1000 + 620})
    device("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
           700, 50, 620)  # fmt: skip
    host("cudaDeviceSynchronize", 760, 50, launch)
    return made


def gpu_steps(number, *more):
    """The events of so many steps, and others."""
    return [e for step in range(number) for e in kineto_step(KINETO[1], step)] + list(more)


def device(name, start, length, **args):
    """A kernel of a GPU."""
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": start,
            "dur": length, "args": {"device": 0, **args}}  # fmt: skip


def host(name, start, length, cat="cpu_op", pid=9, **args):
    """An operation of the host, or what another category says."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": start, "dur": length,
            "args": args}  # fmt: skip


def without(events, *words):
    """The events whose names have none of some words, and no launch of a kernel left out."""
    kept = [e for e in events if not any(word in e["name"] for word in words)]
    ran = {e["args"].get("correlation") for e in kept if e["pid"] == 0}
    return [e for e in kept if e["name"] != "cudaLaunchKernel" or e["args"]["correlation"] in ran]


def recording(file="before.json", lacking=(), steps=2, more=()):
    """A trace of such steps but for events with some words in their names, and with others."""
    events = [e for step in range(steps) for e in kineto_step(KINETO[1], step)] + list(more)
    return Recording(file, kineto.read(without(events, *lacking), {}))


# Names of kernels that multiply, by what they multiply in.
FLOAT32 = "volta_sgemm_128x64_nn"
TENSORFLOAT32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tt_align1>(Params)"
FLOAT16 = "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
UNKNOWN = "Cijk_Ailk_Bljk_SB_MT128x128x32"


def typed(name, file, **changes):
    """A recording all of whose matrix work is in one kernel."""
    events = [e for step in range(2) for e in kineto_step(KINETO[1], step)]
    of = ("wgrad", "sm80_xmma")
    renamed = [{**e, "name": name} if any(k in e["name"] for k in of) else e for e in events]
    trace = kineto.read(renamed, {})
    return Recording(file, replace(trace, **changes))


def nsight_export(path, steps, version="2023.4", processes=(9,)):
    """Writes an export of Nsight Systems: steps of 1000 us, with the columns that a version has."""
    strings = ["", "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc"]
    strings += ["cudaLaunchKernel_v7000", "cudaDeviceSynchronize_v3020", "ampere_sgemm_32x32_tn"]
    with sqlite3.connect(path) as database:
        for table, columns in NSIGHT[version].items():
            database.execute(f"CREATE TABLE {table} ({columns})")

        def add(table, **values):
            marks = ", ".join("?" * len(values))
            names = ", ".join(values)
            database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*values.values()])

        for number, text in enumerate(strings):
            add("StringIds", id=number, value=text)
        add("TARGET_INFO_GPU", id=0, name="NVIDIA H100")
        for process in processes:
            for step in range(steps):
                _nsight_step(add, step, process << 24)
    return path


def _nsight_step(add, step, process):
    at, n, cupti = step * 1_000_000, step * 10, "CUPTI_ACTIVITY_KIND_"

    def ran(table, begin, end, **values):
        add(table, start=at + begin * 1000, end=at + end * 1000, **values)

    def kernel(begin, end, number, **values):
        on = {"deviceId": 0, "streamId": 7, "globalPid": process, "correlationId": n + number}
        ran(f"{cupti}KERNEL", begin, end, **on, **values)

    def call(begin, end, number, name):
        of = {"globalTid": process + 77, "correlationId": n + number, "nameId": name}
        ran(f"{cupti}RUNTIME", begin, end, **of)

    for begin, end, text in ((0, 1000, f"step {step}"), (230, 290, "aten::conv2d, seq = 7")):
        ran("NVTX_EVENTS", begin, end, eventType=59, text=text, globalTid=process + 77)
    add("NVTX_EVENTS", start=at + 5, eventType=34, text="a mark", globalTid=process + 77)
    call(240, 241, 0, 2)
    kernel(300, 400, 0, demangledName=1, shortName=1)
    call(420, 421, 1, 2)
    kernel(500, 600, 1, demangledName=None, shortName=4)
    ran(f"{cupti}MEMCPY", 200, 250, deviceId=0, globalPid=process, correlationId=n + 2, copyKind=1)
    call(760, 810, 3, 3)


# The columns of exports that Nsight Systems 2022.4.2 and 2023.4.4 (schema 3.7.2) wrote with
# `--lazy false`; of the tables that are read.
_KERNEL = """start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName,
    shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ,
    blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread,
    localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig"""
_2022 = {
    "StringIds": "id, value",
    "TARGET_INFO_GPU": "vmId, id, name, busLocation, chipName, cuDevice, computeMajor",
    "NVTX_EVENTS": "start, end, eventType, rangeId, category, color, text, globalTid, "
    "endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, "
    "int32Value, floatValue, jsonTextId, jsonText",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, "
    "returnValue, callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, contextId, streamId, correlationId, "
    "globalPid, bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, "
    "dstDeviceId, dstContextId, migrationCause, graphNodeId, virtualAddress",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, deviceId, contextId, streamId, correlationId, "
    "globalPid, value, bytes, graphNodeId, memKind",
}
_2023 = {
    name: columns.replace("contextId, streamId", "contextId, greenContextId, streamId")
    for name, columns in _2022.items()
}
NSIGHT = {"2022.4": _2022, "2023.4": _2023}
