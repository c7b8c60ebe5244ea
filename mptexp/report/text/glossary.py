"""The terms of a page that readers may not know: where each first stands, and in a list."""

import re
from html import escape

from mptexp.report.text import parameter_values

BINARY = "binary"  # a format; with a word behind it, `the stock binary of`, it is a program
TERMS = {  # of a term, as a page writes it, its meaning in a sentence
    "policy": "What layers compute in and what their weights are stored in; mixed_float16 computes "
    "in float16 over float32 weights.",
    "float32": "Numbers of 32 bits, the usual precision; strict: without TF32.",
    "TF32": "float32 numbers whose products are formed with 10 bits of mantissa, on NVIDIA's "
    "Tensor Cores; from Ampere on the default of TensorFlow and JAX, and of PyTorch's "
    "convolutions.",
    "mixed_float16": "Computes in float16 and keeps weights in float32; small gradients may need a "
    "loss scale.",
    "mixed_bfloat16": "Computes in bfloat16, which has float32's range, and keeps weights in "
    "float32.",
    "float8": "As mixed_bfloat16, but what Dense and EinsumDense layers multiply is rounded to "
    "8 bits, each tensor under a scale of its own.",
    "loss scale": "The factor by which the loss is multiplied so that small gradients are not "
    "rounded to zero; dynamic: adjusted while training.",
    "emulates": "Without instructions for the type, values are converted to 32 bits and back.",
    "interval": "A range that holds the true value in 95 % of sweeps; a ratio's that includes 1 "
    "shows no difference.",
    "repeats": "The same comparison measured again in a new block: all policies once, close "
    "together in time, in random order, with a seed of its own.",
    "not valid": "Measured, but not evidence: the note beside it or at the top of the page says "
    "why.",
    "identity not recorded": "The record does not say which code, data, versions and machine a run "
    "had, so that nothing shows two runs to be comparable.",
    "repeats apart": "A policy's times over the times of the same block's other runs differ by "
    "more than a quarter between blocks, so that something else than the policy decided them.",
    "interference": "Other programs used the device while steps were timed.",
    "not trained": "At chance level when it ended: guessing does as well, so that a difference "
    "says nothing of precision; a finding where float32 did learn.",
    "in parallel": "Several runs shared the machine, so that no time is valid.",
    **{row.words: row.term for row in parameter_values.ROWS if row.meaning},
    "XLA": "The compiler that fuses a model's operations, jit_compile in Keras.",
    "dynamic&lt;10&gt;": "Dynamic fixed point: 10 bits with a common exponent for each tensor, "
    "which follows its values.",
    "&lt;8,8&gt;": "Fixed point with 8 bits before the point and 8 behind it; likewise for other "
    "numbers.",
    "stochastic": "Rounded up or down at random, so that the mean is exact.",
    BINARY: "Weights and activations are +1 or −1.",
    "MFU": "The model's arithmetic per second, divided by the rate of a large matrix product that "
    "was measured on this device.",
    "casts": "Conversions between types, as of 16 and 32 bits; layout changes are copies of a "
    "tensor in another order, which TF32 and float32 need too.",
}


def explained(page: str) -> str:
    """The page with each term's meaning where it first stands, and in a list at the end.

    Terms are looked for in the text of its main part, in no link, heading, code or figure.
    """
    head, opened, rest = page.partition("<main>")
    body, closed, tail = rest.partition("</main>")
    pieces, depth, met = re.split(r"(<[^>]*>)", body), 0, {}
    left = dict(TERMS)
    for place, piece in enumerate(pieces):
        if place % 2:
            if re.match(r"</?(a|h1|h2|code|summary|style|nav|th|pre)\b", piece):
                depth += -1 if piece.startswith("</") else 1
        elif not depth and left:
            pieces[place] = _marked(piece, left, met)
    if not met:
        return page
    items = "".join(f"<dt>{t}</dt><dd>{escape(met[t])}</dd>" for t in TERMS if t in met)
    terms = f'<section class="text"><h2 id="terms">Terms</h2><dl>{items}</dl></section>'
    return f"{head}{opened}{''.join(pieces)}{terms}{closed}{tail}"


def _marked(text: str, left: dict[str, str], met: dict[str, str]) -> str:
    """A text with its first terms marked, which go over from `left` into `met`."""
    if not text.strip():
        return text
    longest = sorted(left, key=len, reverse=True)
    either = "|".join(re.escape(t) + r"(?! [\w(])" * (t == BINARY) for t in longest)

    def mark(match: re.Match[str]) -> str:
        if match[0] not in left:
            return match[0]
        met[match[0]] = left.pop(match[0])
        return f'<abbr title="{escape(met[match[0]])}">{match[0]}</abbr>'

    return re.sub(rf"(?<![\w&])(?:{either})(?![\w;])", mark, text)
