"""Whether a policy is effective: the types of a step's products and weights, and a numeric probe.

Layers do not say what is computed: a layer may hold others, and `call` may cast. What counts is the
traced program, from which `backends.Backend.products` gives each matrix product and convolution.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from mptexp.spec.policies import (
    EFFECTIVE_SHARE,
    POLICY_ROWS,
    QUANTIZED_SHARE,
    Policy,
    share_mark,
    without_kernels,
)
from mptexp.spec.run import Run
from mptexp.traces.xla_names import LAYER, plain
from mptexp.training import capability, costs, environment, onednn, quantized_layers
from mptexp.training.backends import backend
from mptexp.training.backends.shared_verbs import Node, Products
from mptexp.training.capability import Unsupported
from mptexp.training.numerics import gradients, probe

NO_PRODUCTS = "no matrix product and no convolution in the model: a policy changes little"
UNSCALED = "products in float16 without a loss scale: small gradients become zero"
# A share of 0.001 of a square enters the second moment, and below 2^-25 it rounds to zero there;
# then epsilon, 1e-7, divides alone. Measured with Keras 3: a gradient of 0.005 moves a weight by
# 1.5 at a learning rate of 0.001.
FLOAT16_ADAM = (
    "Adam in pure float16: gradients below 0.0055 vanish from its second moment, and their weights "
    "move up to 1500 times too far"
)
# Measured: TensorFlow 2.21 on a CPU without bfloat16 instructions, see probe.truncated.
TRUNCATED = (
    "the results of 16-bit products are cut off here, not rounded to the nearest: its accuracy is "
    "not that of a device that rounds"
)
# Variables of the environment that change what float32 computes in.
CHANGES_FLOAT32 = (
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_FLAGS",
    "TF_XLA_FLAGS",
)
MULTIPLIES = re.compile(r"MatMul|Conv\dD|DepthwiseConv|Einsum")  # operations of TensorFlow's graph
# Of a program of XLA's: the type of each instruction, the operands of products.
DEFINED = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\w+)\[", re.MULTILINE)
PRODUCT = re.compile(r"\b(?:dot|convolution)\(([^)]*)\)")
XLA_TYPES = {  # the widest first
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "f8e5m2": "float8_e5m2", "f8e4m3fn": "float8_e4m3fn",
}  # fmt: skip
FLOAT8_GEMM = "__cublas$lt$matmul$f8"  # what XLA calls of cuBLAS for a product in float8


def products(run: Run, model: keras.Model, layers: Sequence[keras.Layer] | None = None) -> Products:
    """Type and FLOPs of every product of a step of a compiled model; see Backend.products.

    Those of quantized layers have the type that the policy promises, which no trace shows: Keras
    rounds to it and multiplies in another one. They are what another trace shows in another type,
    of the `layers`; by default those that are quantized now.
    """
    verb, batch = backend(run.backend).products, _batch(run, model)
    traced = verb(model, batch, _trains(run))
    layers = quantized_layers.layers_of(model) if layers is None else layers
    if not layers:
        return traced
    with quantized_layers.marked(layers):
        others = _totals(verb(model, batch, _trains(run)))
    before = _totals(traced)
    moved = {dtype: max(0.0, amount - others[dtype]) for dtype, amount in before.items()}
    left = [(dtype, amount - moved[dtype]) for dtype, amount in before.items()]
    made = [(POLICY_ROWS[run.policy].promised, sum(moved.values())), *left]
    return [(dtype, amount) for dtype, amount in made if amount]


def compiled(run: Run, model: keras.Model) -> dict[str, int]:
    """How many products of a compiled model's step XLA computes in each type; empty without XLA.

    Not what the model asks for: where XLA has no 16-bit code, as on a CPU, it widens the operands.
    """
    if run.replicas > 1:  # its program holds several, and cannot be asked for alone
        return {}
    program = backend(run.backend).compiled_program(model, _batch(run, model), _trains(run))
    return dict(program_products(program).most_common())


def graph(run: Run, model: keras.Model) -> list[Node]:
    """The operations of a training step of a compiled model; see Backend.graph.

    The functions below take them as traced while the names of layers end in LAYER.
    """
    return backend(run.backend).graph(model, _batch(run, model)) if _trains(run) else []


def sums(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """What the gradients of tensors that are used more than once are summed from.

    Returns:
        By the name of each sum, its terms as name:kind.
    """
    kinds = {node.name: node.kind for node in nodes}
    return {
        node.name: [f"{term}:{kinds[term]}" for term in node.terms]
        for node in nodes
        if node.kind == "AddN"
    }


def recomputed(nodes: Iterable[Node]) -> list[str]:
    """Plain names of operations outside of layers that need the gradient of one, or of the loss.

    Such as those of a part that is computed anew for its gradients (tf.recompute_grad): what the
    loss itself adds outside of layers comes before any gradient. Names that it has too are left
    out.

    Args:
        nodes: an operation after what it takes.
    """
    after: set[str] = set()
    named: dict[bool, set[str]] = {False: set(), True: set()}
    for node in nodes:
        scoped = LAYER in node.name or "compile_loss" in node.name
        needs_one = not after.isdisjoint(node.terms)
        if needs_one or (scoped and "gradient_tape/" in node.name):
            after.add(node.name)
        if not scoped:
            named[needs_one].add(plain(node.name))
    return sorted(named[True] - named[False])


def layers_in_float64(nodes: Iterable[Node]) -> list[str]:
    """The layers of which most operations on numbers with a fraction give float64."""
    return [layer for layer, dtype in _types(nodes).items() if dtype == "float64"]


def wide_products(nodes: Iterable[Node], policy: str) -> dict[str, str]:
    """The layers of which most products are in 32 or 64 bits under a 16-bit policy, and in which.

    By their own dtype or because they cast within `call`, and however little they multiply.
    """
    if POLICY_ROWS[policy].compute_dtype not in capability.NARROW:
        return {}
    types = _types(node for node in nodes if MULTIPLIES.search(node.kind))
    return {layer: dtype for layer, dtype in types.items() if dtype in ("float32", "float64")}


def _types(nodes: Iterable[Node]) -> dict[str, str]:
    """The type that most operations of each layer give, of those on numbers with a fraction."""
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        scopes = re.findall(r"([^/]+)" + re.escape(LAYER), node.name)
        if scopes and "float" in node.dtype and node.kind != "Cast":
            types[scopes[-1]][node.dtype] += 1
    most = {layer: met.most_common(1)[0] for layer, met in types.items()}
    return {name: dtype for name, (dtype, n) in most.items() if 2 * n > types[name].total()}


def program_products(program: str) -> Counter[str]:
    """The products of a program of XLA's by the widest type of their operands."""
    types, products = dict(DEFINED.findall(program)), Counter[str]()
    for operands in PRODUCT.findall(program):
        known = [types[name] for name in re.findall(r"[\w.-]+", operands) if name in types]
        widest = next((name for name in XLA_TYPES if name in known), "")
        products[XLA_TYPES.get(widest, "another type")] += 1
    return products


def native_products(program: str) -> int:
    """How many products in float8 a program has that XLA has compiled; zero of an empty one.

    cuBLAS's, and those in fusions that Triton compiles.
    """
    named = program_products(program)
    fused = sum(count for name, count in named.items() if name.startswith("float8"))
    return program.count(FLOAT8_GEMM) + fused


def of_step(run: Run, model: keras.Model, traced: Products) -> dict[str, Any]:
    """What a step of a compiled model computes in; changes neither weights nor random streams.

    The products are those that were `traced`, such as those of `products`.

    Keys: arithmetic (type -> share of the FLOPs of products), effective_share (of the policy's
    compute type; None without products), weights (type -> share of the trained parameters), probe
    (what a product and a convolution under this policy compute in, see probe.py), truncated (which
    of the two cuts its results off, where one does), reference (see by_reference); of a user's own
    model also network (see costs.structure) and products_flops (in all); of a quantized policy also
    quantized_layers (their names) and, of float8, native_products (how many the compiled program
    has in the policy's type) and emulated (whether it has none).

    Raises:
        Unsupported: where the policy has no effect on the products or weights of this model, where
            too few of its products can be quantized, or where the engine computes with fewer bits
            than the policy promises, or does not round to them.
    """
    policy = POLICY_ROWS[run.policy]
    arithmetic = shares(traced)
    refuse_few(policy, arithmetic)
    weights = shares((w.dtype, math.prod(w.shape)) for w in gradients.weights(model))
    _refuse_none(run, "products compute", policy.promised, arithmetic)
    _refuse_none(run, "weights are kept", policy.variable_dtype, weights)
    xla = bool(model.jit_compile)
    readings = probe.readings(run.policy, xla)
    _refuse_lossy(policy.arithmetic, readings)
    _refuse_unrounded(policy, readings)
    quantization = _of_quantized(run, model)
    arithmetic = _multiplied(run, arithmetic, quantization)
    return {
        "arithmetic": arithmetic,
        "effective_share": arithmetic.get(policy.promised, 0.0) if arithmetic else None,
        "weights": weights,
        "probe": readings,
        **({"truncated": cut} if (cut := probe.truncated(run.policy, xla)) else {}),
        **({"reference": slow} if (slow := by_reference(run, model)) else {}),
        **_of_users_own(run, model, traced),
        **quantization,
    }


def by_reference(run: Run, model: keras.Model) -> list[str]:
    """What of the model oneDNN computes by reference code; nothing where XLA compiles it.

    A type that the CPU has no instructions for is emulated, which is another reason to be slow.
    """
    policy, device = POLICY_ROWS[run.policy], environment.device(run.backend)
    dtype = policy.compute_dtype
    native = capability.is_native(dtype, device, run.cpu_isa)
    compiled = getattr(model, "jit_compile", False)  # a user's own may lack it
    if device["kind"] == "gpu" or dtype == "float32" or not native or compiled:
        return []
    convolutions = costs.convolutions_frac(model)
    has = {"convolution": convolutions != 0, "matmul": convolutions != 1}
    return [
        operations
        for name, operations in onednn.reference(run.backend, dtype).items()
        if has[name.split()[0]] and (_trains(run) or "backward" not in name)
    ]


def _of_users_own(run: Run, model: keras.Model, traced: Products) -> dict[str, Any]:
    """What a user's function made, which may be something else each time that it is called."""
    if ":" not in run.model:
        return {}
    flops = sum(amount for _, amount in traced)
    return {"network": costs.structure(model), "products_flops": round(flops)}


def _of_quantized(run: Run, model: keras.Model) -> dict[str, Any]:
    """Which layers are quantized, and whether that is native: only the compiled program says so."""
    policy, program = POLICY_ROWS[run.policy], ""
    if not policy.quantization:
        return {}
    names = [layer.name for layer in quantized_layers.layers_of(model)]
    if policy.inference_only:  # integers are multiplied as such, or as floats
        return {"quantized_layers": names}
    # Compiled once more, which takes as long as the first step: only where it can be native.
    if capability.is_native(policy.arithmetic, environment.device(run.backend)):
        batch = _batch(run, model)
        program = backend(run.backend).compiled_program(model, batch, _trains(run))
    native = native_products(program)
    return {"quantized_layers": names, "native_products": native, "emulated": not native}


def _multiplied(
    run: Run, arithmetic: dict[str, float], quantization: Mapping[str, Any]
) -> dict[str, float]:
    """The shares where XLA multiplies only some of the products in float8, by their number.

    Where it multiplies none, they are of numbers that are rounded, which `emulated` says. In
    training a layer has two products of gradients too, but for the gradient of the first inputs.
    """
    policy, native = POLICY_ROWS[run.policy], quantization.get("native_products", 0)
    if not native:
        return arithmetic
    layers = len(quantization["quantized_layers"])
    products = 3 * layers - 1 if _trains(run) else layers
    missed = max(0.0, 1 - native / products) * arithmetic[policy.promised]
    moved = [(policy.promised, -missed), (policy.compute_dtype, missed)]
    return shares([*arithmetic.items(), *moved])


def flags(run: Run, settings: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a run with these settings, see `of_step`; a sentence part each."""
    policy = POLICY_ROWS[run.policy]
    promised = {"arithmetic": policy.promised, "weights": policy.variable_dtype}
    shares = [(settings[what].get(dtype, 0.0), what, dtype) for what, dtype in promised.items()]
    known = [part for part in shares if settings[part[1]]]
    words = {policy.promised: policy.promise}
    partly = [
        share_mark(share, what, words.get(dtype, dtype))
        for share, what, dtype in known
        if share < EFFECTIVE_SHARE
    ]
    # Keras scales the loss by itself only where the policy of the whole model is mixed_float16.
    unscaled = (
        _trains(run)
        and "float16" in settings["arithmetic"]
        and policy.compute_dtype != "float16"
        and settings["loss_scale"] == "none"
    )
    adam = _trains(run) and run.optimizer == "adam" and policy.variable_dtype == "float16"
    none, cut = not settings["arithmetic"], bool(settings.get("truncated"))
    return (
        partly
        + [NO_PRODUCTS] * none
        + [TRUNCATED] * cut
        + without_kernels(policy.compute_dtype, settings.get("reference", []))
        + [UNSCALED] * unscaled
        + [FLOAT16_ADAM] * adam
    )


def _trains(run: Run) -> bool:
    return run.phase == "train"


def _batch(run: Run, model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Of the shapes and types that `fit` gives the model; the values are not used."""
    entry, places = model.inputs[0], model.outputs[0].shape[1:-1]
    x = np.zeros((run.batch_size, *entry.shape[1:]), entry.dtype)
    return x, np.zeros((run.batch_size, *places), backend(run.backend).LABELS)


def shares(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The share of each type, the largest first; empty where there is nothing."""
    totals = _totals(amounts)
    return {dtype: amount / totals.total() for dtype, amount in totals.most_common()}


def _totals(amounts: Iterable[tuple[str, float]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for dtype, amount in amounts:
        totals[dtype] += amount
    return totals


def _refuse_none(run: Run, what: str, dtype: str, shares: Mapping[str, float]) -> None:
    # Who names layers that stay in float32 may name all: then the share says it.
    if shares and not shares.get(dtype) and not run.float32_layers:
        raise Unsupported(
            f"policy {run.policy} has no effect on this model: all of its {what} in "
            f"{' and '.join(shares)}, not in {dtype}"
        )


def refuse_few(policy: Policy, shares: Mapping[str, float]) -> None:
    """Raises Unsupported for a quantized policy that reaches less than half of the arithmetic."""
    share = shares.get(policy.promised, 0.0)
    if policy.quantization and share < QUANTIZED_SHARE:
        raise Unsupported(
            f"policy {policy.name} quantizes Dense and EinsumDense layers, which do "
            f"{math.floor(share * 100)} % of this model's FLOPs; allowed: a model in which they do "
            f"{QUANTIZED_SHARE * 100:.0f} % or more, such as gpt, vit or mlp"
        )


def _refuse_unrounded(policy: Policy, readings: Mapping[str, str]) -> None:
    """Refuses an engine whose compiler leaves out what rounds to the policy's type."""
    rounds = policy.quantization and not policy.inference_only
    if rounds and readings["product"] != policy.arithmetic:
        raise Unsupported(
            f"policy {policy.name} has no effect here: Keras rounds to {policy.arithmetic}, but a "
            f"product computes in {readings['product']}; take another jit or backend"
        )


def _refuse_lossy(promised: str, readings: Mapping[str, str]) -> None:
    for what, reading in readings.items():
        if probe.bits(reading) < probe.bits(promised):
            names = [name for name in CHANGES_FLOAT32 if name in environment.GIVEN]
            given = ", ".join(f"{name}={environment.GIVEN[name]}" for name in names)
            because = f"the environment sets {given}" if given else "no variable is known to do so"
            raise Unsupported(
                f"{promised} is asked for, but a {what} here computes in {reading}: {because}"
            )
