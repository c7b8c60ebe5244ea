"""The precision policies, a row each: adding one touches this file and its test."""

from typing import Literal, get_args

Policy = Literal[
    "float32", "tensorfloat32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"
]
POLICIES: tuple[str, ...] = get_args(Policy)
