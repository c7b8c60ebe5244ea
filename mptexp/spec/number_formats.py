"""Number formats: floats of any exponent and mantissa up to float32's, and fixed point.

Plain Python without a framework; `training.numerics.quantization` rounds tensors to these formats.
"""

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Float:
    """A binary float format, subnormals included, within float32's range and precision.

    Args:
        exponent_bits: 2 to 8.
        mantissa_bits: stored ones, without the implicit one; 1 to 23.
        special: what the top codes mean. ieee: the largest exponent holds infinities and NaN. fn:
            no infinities, only the code of all ones is NaN. fnuz: no infinities and no negative
            zero, whose code is NaN. none: no infinities and no NaN.
        bias: of the exponent; by default as IEEE 754 has it, one more in fnuz.
        saturate: whether what is too large becomes the largest finite value. By default it becomes
            an infinity or, where there is none, NaN, as ml_dtypes converts.

    Raises:
        ValueError: where float32 does not hold the format.
    """

    exponent_bits: int
    mantissa_bits: int
    special: Literal["ieee", "fn", "fnuz", "none"] = "ieee"
    bias: int | None = None
    saturate: bool = False

    def __post_init__(self) -> None:
        if not (2 <= self.exponent_bits <= 8 and 1 <= self.mantissa_bits <= 23):
            raise ValueError(
                f"a float of {self.exponent_bits} exponent and {self.mantissa_bits} mantissa bits "
                "was asked for; allowed: 2 to 8 and 1 to 23"
            )
        if self.bias is None:
            default = 2 ** (self.exponent_bits - 1) - (self.special != "fnuz")
            object.__setattr__(self, "bias", default)
        # With exponents between these, a format's values would lie among float32's subnormals,
        # which TensorFlow's CPU kernels and XLA make zero.
        fits = self.bias == 127 or self.smallest_subnormal >= 2.0**-100
        if self.largest > FLOAT32_MAX or not fits:
            raise ValueError(f"{self} does not fit into float32, in which formats are emulated")

    @property
    def bits(self) -> int:
        """Of a value, the sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def largest(self) -> float:
        """Largest finite value."""
        ieee, fn = self.special == "ieee", self.special == "fn"
        exponent = 2**self.exponent_bits - 1 - ieee - self.bias
        return math.ldexp(2 - math.ldexp(1 + fn, -self.mantissa_bits), exponent)

    @property
    def lowest(self) -> float:
        """Most negative finite value."""
        return -self.largest

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with full precision."""
        return math.ldexp(1, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value; also the spacing below twice the smallest normal value."""
        return math.ldexp(1, 1 - self.bias - self.mantissa_bits)

    @property
    def flushed_below(self) -> float:
        """What is smaller than this rounds to zero: half of the smallest subnormal.

        So does this number itself, because ties go to even.
        """
        return self.smallest_subnormal / 2

    @property
    def overflow(self) -> float:
        """What an infinity becomes, and a positive value that rounds beyond the largest."""
        if self.saturate or self.special == "none":
            return self.largest
        return math.inf if self.special == "ieee" else math.nan

    @property
    def negative_zero(self) -> bool:
        """Whether zero has a sign."""
        return self.special != "fnuz"

    def spacing(self, x: float) -> float:
        """Distance between neighbours at |x|, as if the format had no largest value."""
        exponent = math.frexp(x)[1] - 1 if x else 1 - self.bias
        return math.ldexp(1, max(exponent, 1 - self.bias) - self.mantissa_bits)


@dataclass(frozen=True)
class Fixed:
    """Fixed point <IL,FL> of Gupta et al. (2015): multiples of 2^-FL, saturating.

    Args:
        integer_bits: IL, the sign included; the range is [-2^(IL-1), 2^(IL-1) - 2^-FL]. Zero or
            less is a range below one half.
        fraction_bits: FL.

    Raises:
        ValueError: where float32 does not hold the format.
    """

    integer_bits: int
    fraction_bits: int
    negative_zero: ClassVar[bool] = False  # zero has no sign

    def __post_init__(self) -> None:
        if not (2 <= self.bits <= 24 and abs(self.fraction_bits) <= 100):
            raise ValueError(
                f"{self} was asked for; allowed: 2 to 24 bits together, of which -100 to 100 are "
                "of the fraction"
            )

    @property
    def bits(self) -> int:
        """Of a value, the sign included."""
        return self.integer_bits + self.fraction_bits

    @property
    def largest(self) -> float:
        """Largest value."""
        return -self.lowest - self.smallest_subnormal

    @property
    def lowest(self) -> float:
        """Most negative value, larger in magnitude than the largest."""
        return -math.ldexp(1, self.integer_bits - 1)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value, which is also the spacing."""
        return math.ldexp(1, -self.fraction_bits)

    @property
    def overflow(self) -> float:
        """What a value above the largest becomes; one below the lowest becomes the lowest."""
        return self.largest

    def spacing(self, x: float) -> float:
        """The same everywhere."""
        return self.smallest_subnormal


@dataclass(frozen=True)
class Dynamic:
    """Fixed point whose range follows the values: dynamic fixed point (Courbariaux et al. 2014).

    Args:
        bits: of a value, the sign included. How many of them are of the integer part differs by
            tensor and batch.

    Raises:
        ValueError: where float32 does not hold the format.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 24:
            raise ValueError(f"{self} was asked for; allowed: 2 to 24 bits")


@dataclass(frozen=True)
class Block:
    """A float format whose values share a power of two in blocks: microscaling (MX).

    The power is that of the largest magnitude of a block less that of the format's largest value.
    Source: Open Compute Project, Microscaling formats (MX) specification, version 1.0, 2023,
    sections 5 and 6.3.

    Args:
        element: of the values; what is too large becomes the largest.
        size: values in a block, 32 in the specification.
    """

    element: Float
    size: int = 32

    @property
    def bits(self) -> int:
        """Of a value, without its part of the power that a block shares."""
        return self.element.bits

    @property
    def largest_power(self) -> int:
        """The exponent of the element's largest value."""
        return math.frexp(self.element.largest)[1] - 1


@dataclass(frozen=True)
class Binary:
    """The two values -1 and +1 (BinaryNet: Courbariaux, Hubara et al. 2016)."""

    bits: ClassVar[int] = 1


Format = Float | Fixed
FLOAT32_MAX = math.ldexp(2 - 2**-23, 127)
# Named as in ml_dtypes, whose formats they equal; tensorfloat32 is NVIDIA's.
FORMATS: dict[str, Float] = {
    "float32": Float(8, 23),
    "tensorfloat32": Float(8, 10),
    "bfloat16": Float(8, 7),
    "float16": Float(5, 10),
    "float8_e3m4": Float(3, 4),
    "float8_e4m3": Float(4, 3),
    "float8_e4m3fn": Float(4, 3, "fn"),
    "float8_e4m3fnuz": Float(4, 3, "fnuz"),
    "float8_e4m3b11fnuz": Float(4, 3, "fnuz", bias=11),
    "float8_e5m2": Float(5, 2),
    "float8_e5m2fnuz": Float(5, 2, "fnuz"),
    "float6_e2m3fn": Float(2, 3, "none"),
    "float6_e3m2fn": Float(3, 2, "none"),
    "float4_e2m1fn": Float(2, 1, "none"),
}

# As the specification names them; of elements without infinities and NaN nothing has to saturate.
BLOCKS = {
    "mxfp8_e4m3": Block(Float(4, 3, "fn", saturate=True)),
    "mxfp8_e5m2": Block(Float(5, 2, saturate=True)),
    "mxfp6_e3m2": Block(FORMATS["float6_e3m2fn"]),
    "mxfp6_e2m3": Block(FORMATS["float6_e2m3fn"]),
    "mxfp4_e2m1": Block(FORMATS["float4_e2m1fn"]),
}


def named(name: str) -> Format:
    """A format from its name: one of FORMATS, or <IL,FL> for fixed point, such as <8,8>.

    Raises:
        ValueError: where there is none; it says what is allowed.
    """
    if name in FORMATS:
        return FORMATS[name]
    if fixed := re.fullmatch(r"<(-?\d+),\s*(-?\d+)>", name):
        return Fixed(*map(int, fixed.groups()))
    raise ValueError(
        f"{name!r} is no number format; allowed: {', '.join(FORMATS)}, or <IL,FL> for fixed point"
    )


ALLOWED = "dynamic<BITS> or <IL,FL> of 2 to 24 bits, or one of " + ", ".join(FORMATS)


def storage_format(name: str) -> Format | Dynamic | None:
    """The format in which weights are stored, from its name: as `named`, or dynamic<BITS>.

    None stands for the name "policy": the policy's own variable dtype.

    Raises:
        ValueError: where it is no such name; it says what is allowed.
    """
    if name == "policy":
        return None
    try:
        dynamic = re.fullmatch(r"dynamic<(\d+)>", name)
        return Dynamic(int(dynamic.group(1))) if dynamic else named(name)
    except ValueError:
        raise ValueError(f"policy, {ALLOWED}") from None


def activation_format(name: str) -> Format | Dynamic | Block | Binary | None:
    """The format of what layers pass to each other: as storage_format, or binary, or of BLOCKS.

    Raises:
        ValueError: where it is no such name; it says what is allowed.
    """
    try:
        return Binary() if name == "binary" else BLOCKS.get(name) or storage_format(name)
    except ValueError:
        raise ValueError(f"policy, binary, {ALLOWED}, {', '.join(BLOCKS)}") from None
