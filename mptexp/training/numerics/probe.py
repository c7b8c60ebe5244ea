"""What arithmetic really is: the bits that a product and a convolution keep of known numbers.

A variable of the environment, a flag of a compiler or a rewritten graph can make float32 compute in
fewer bits, and nothing that can be asked says so. So numbers of known bits go through the engine of
the run, multiplied by one: 1 + 2^-k comes back as it is only where k bits are kept.
"""

import math
from functools import cache

import keras
import numpy as np
from keras import layers

from mptexp.spec.policies import ARITHMETICS, POLICY_ROWS
from mptexp.training.backends import current

# Explicit bits of the mantissa by type.
BITS = {name: row.mantissa_bits for name, row in ARITHMETICS.items()}
LARGE = 2.0**17  # finite in all types but float16 and those of 8 bits
# Fast convolutions, such as Winograd's, lose a few bits of float32; products of split numbers in
# bfloat16 keep 16.
LEAST_OF_FLOAT32 = 17
# Large enough to be left to the kernels that real layers get.
UNITS, CHANNELS, SIDE = 256, 32, 8


def readings(policy: str, jit: bool) -> dict[str, str]:
    """The arithmetic of a product and of a convolution: a key of BITS, or a number of bits.

    Args:
        policy: of the process; its quantization, if any, is that of the product.
        jit: whether XLA compiles the run's model.
    """
    return {what: _name(given) for what, given in _given(policy, jit).items()}


def truncated(policy: str, jit: bool) -> list[str]:
    """Which of product and convolution cut their results off instead of rounding to the nearest.

    A result is then up to a unit in the last place off, not half of one, and always towards zero.
    The arguments are those of `readings`.
    """
    factor = _factor(policy)
    cut = 2 * factor - 1  # what is beyond it, more than half a unit, is lost
    return [what for what, given in _given(policy, jit).items() if given[-1] == cut != 1]


@cache
def _given(policy: str, jit: bool) -> dict[str, np.ndarray]:
    """What a product and a convolution make of `_values`.

    Once per process, which has one policy. Through Keras's own `predict_on_batch`, compiled by XLA
    where the run's model is; kernels are known numbers, so that no random one is drawn.
    """
    row = POLICY_ROWS[policy]
    mode = "" if row.inference_only else row.quantization
    factor = 1.0 if mode else _factor(policy)
    return {"product": _product(jit, factor, mode), "convolution": _convolution(jit, factor)}


def _factor(policy: str) -> float:
    """A number of a 16-bit type whose square lies more than half a unit beyond one of that type.

    1 + n u with a unit u in the last place: of its square, 1 + 2 n u + n² u², the last term is
    between half a unit and a whole one. For float32, of which fast convolutions lose some bits, 1.
    """
    dtype = POLICY_ROWS[policy].compute_dtype
    if dtype == "float32":
        return 1.0
    unit = 2.0 ** -BITS[dtype]
    return 1 + math.ceil(math.sqrt(0.6 / unit)) * unit


def bits(reading: str) -> int:
    """Explicit bits of the mantissa of a reading."""
    return BITS[reading] if reading in BITS else int(reading.split()[0])


def _values(count: int, factor: float = 1.0) -> np.ndarray:
    """So many numbers to go through: 1 + 2^-k, then LARGE, then ones, and the factor at the end."""
    exponents = np.arange(1, BITS["float32"] + 1)
    known = [*(1 + 2.0**-exponents), LARGE]
    return np.array(known + [1.0] * (count - len(known) - 1) + [factor], "float32")


def _product(jit: bool, factor: float, quantization: str) -> np.ndarray:
    """Each number in a row of its own times one, the factor times itself; quantized where asked."""
    layer = layers.Dense(UNITS, use_bias=False, kernel_initializer="zeros")
    eye = np.eye(UNITS, dtype="float32")
    eye[-1, -1] = factor
    given = _through(layer, np.diag(_values(UNITS, factor)), eye, jit, quantization)
    return np.diag(given)


def _convolution(jit: bool, factor: float) -> np.ndarray:
    """Each number in an image and a channel of its own, under windows with a one in the middle.

    The last one stands under the factor.
    """
    each = np.arange(CHANNELS)
    images = np.zeros((CHANNELS, SIDE, SIDE, CHANNELS), "float32")
    images[each, SIDE // 2, SIDE // 2, each] = _values(CHANNELS, factor)
    kernel = np.zeros((3, 3, CHANNELS, CHANNELS), "float32")
    kernel[1, 1, each, each] = [1.0] * (CHANNELS - 1) + [factor]
    layer = layers.Conv2D(
        CHANNELS,
        3,
        padding="same",
        use_bias=False,
        kernel_initializer="zeros",
        data_format="channels_last",
    )
    given = _through(layer, images, kernel, jit)
    return given[each, SIDE // 2, SIDE // 2, each]


def _through(
    layer: keras.Layer, x: np.ndarray, kernel: np.ndarray, jit: bool, quantization: str = ""
) -> np.ndarray:
    """What the layer gives of x under this kernel; of several replicas, of the first of them."""
    model = keras.Sequential([layers.Input(x.shape[1:]), layer])
    layer.set_weights([kernel])
    if quantization:
        layer.quantize(quantization)
    model.compile(jit_compile=jit)
    return np.asarray(model.predict_on_batch(current().shared(x)), "float32")[: len(x)]


def _name(given: np.ndarray) -> str:
    """The type that gives these numbers of `_values`."""
    count = BITS["float32"]
    errors = np.abs(given - _values(len(given)))
    kept = errors[:count] < 2.0 ** -np.arange(2, count + 2)
    number = int(np.cumprod(kept).sum())
    if number >= LEAST_OF_FLOAT32:
        return "float32"
    if errors[count] == 0:
        types = {7: "bfloat16", 10: "tensorfloat32"}
    else:  # LARGE is too large for it
        types = {3: "float8_e4m3fn", 7: "bfloat16", 10: "float16"}
    return types.get(number, f"{number} bits")
