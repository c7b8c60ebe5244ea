"""Verdicts made by hand, for tests of what is said of them."""

import math

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis.cause_times import Loss
from mptexp.diagnosis.causes import CAUSES
from mptexp.diagnosis.pairs import Pair
from mptexp.diagnosis.verdict import Verdict
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32", batch_size=128)
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_float16"}), 0.01,
            Contrast(1.08, 1.06, 1.10, 5))  # fmt: skip
NAN = math.nan
GAINS = {"float32": Contrast(1.2, 1.1, 1.3, 3), "mixed_float16": Contrast(2.5, 2.4, 2.6, 3)}


def loss(name, share, *effects, **evidence):
    (cause,) = (cause for cause in CAUSES if cause.name == name)
    return Loss(cause, 0.01 * share, share, 0.01 * share, effects=effects, **evidence)


def verdict(*losses, effects=(), possible=2.9, unexplained=0.01, missing=""):
    return Verdict(
        pair=PAIR,
        baseline=None,
        candidate={"any": "record"},
        possible=possible,
        losses=list(losses),
        effects=list(effects),
        unexplained=unexplained,
        missing=missing,
    )
