"""By which weights a host multiplies in each step: of one model the same in any precision.

How many kernels that takes, and what they are called, differs from type to type; what PyTorch's
host asks for does not.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mptexp.traces.launching_layers import (
    BACKWARD,
    COMPILED,
    INPUT,
    OPTIMIZER,
    Event,
    outermost,
    without_closures,
)
from mptexp.traces.step_bounds import REPEATED, WHOLE, Steps, numbered

# Where each has its weights among its inputs; a product of two plain matrices may have none.
PLACES = {"addmm": 2, "mm": None}
WEIGHTED = re.compile(r"^aten::(conv(?!olution_backward)\w*|_convolution|linear|addmm|mm)$")
# What is computed by other operations in one type than in another, or is no model's forward pass.
AROUND = re.compile(
    r"^aten::(einsum|scaled_dot_product_attention|lstm|gru|rnn_\w+)$"
    rf"|{BACKWARD.pattern}|{OPTIMIZER.pattern}|{INPUT.pattern}"
)
# Of torch.compile, and of what PyTorch calls for a whole layer in an inference, in some types.
HIDES = re.compile(
    rf"^(Torch-Compiled Region|CompiledFunction|{COMPILED}"
    r"|aten::_(transformer_encoder_layer_fwd|native_multi_head_attention)$)"
)


def shape(name: str, shapes: Any) -> str:
    """The shape of an operation's weights, such as 64x3x7x7; empty without, or not recorded.

    A matrix's smaller side first: `addmm` has it transposed, which `linear` is in older versions.

    Args:
        shapes: of all its inputs.
    """
    match = WEIGHTED.match(name)
    place = PLACES.get(match[1], 1) if match else None
    known = () if place is None else axes(shapes, place)
    if not all(isinstance(axis, int) for axis in known):
        return ""
    return "x".join(map(str, sorted(known) if len(known) == 2 else known))


def axes(shapes: Any, place: int) -> Sequence[Any]:
    """The shape of an input, of those of all; empty where it was not recorded."""
    known = isinstance(shapes, list) and len(shapes) > place and isinstance(shapes[place], list)
    return shapes[place] if known else ()


def of(events: Iterable[Event], found: Steps) -> Mapping[str, int]:
    """How often each shape of weights is multiplied in a step, where all steps agree; else none.

    Nothing is told by a host whose products a compiler hides, or whose steps are the device's.
    """
    known = without_closures(list(events))
    ops = [event for event in known if event.kind == "op" and _asked(event.name)]
    if found.how in (WHOLE, REPEATED) or any(HIDES.match(event.name) for event in ops):
        return {}
    number = numbered(found)
    made = [Counter[str]() for _ in found.on_host or found.intervals]
    for event in outermost(ops):
        if WEIGHTED.match(event.name) and (n := number(event.start)) is not None:
            made[n][event.args.get("weights", "")] += 1
    return dict(made[0]) if all(one == made[0] for one in made) else {}


@lru_cache(2**14)  # a trace has few names, and each very often
def _asked(name: str) -> bool:
    return any(pattern.search(name) for pattern in (WEIGHTED, AROUND, HIDES))
