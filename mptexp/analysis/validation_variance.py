"""How far a difference in accuracy may be off because few images were validated with.

Blocks show how much a training's chance matters, and nothing of the images: all blocks are
validated with the same ones. On 20 images, policies whose accuracies differ by a point show no
difference in two sweeps of three. So an interval has both parts: its variance is that of the mean
over blocks plus that of the mean over images, each with its degrees of freedom (Satterthwaite
1946). What chance gives to a single image in a single block is in both, so the sum is rather large.

Sets of images that show a small difference also show few images that differ, hence a narrow
interval: near the margin "equal" would be said too often. So the variance is at least the one that
there would be if policies differed by the margin (Tango 1998, the score of paired proportions).

Measured by `python benchmarks/interval_coverage.py --images 2000`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from mptexp.analysis.comparability import Record
from mptexp.analysis.contrast import CONFIDENCE

# Two images more, one that each side alone gets right: with no difference among the images that
# there are, it is not known that there is none among others (Bonett and Price 2012).
PSEUDO_IMAGES = 2
# Of n images without a single difference the true share that differs may be 3.7 / n, at 97.5 %.
NONE_AMONG = -math.log(0.025)
FEWEST = 3  # sequences of a text from which anything is known of others
OFF = 0.01  # of the images, by which a list may depart from the accuracy that validation gave


@dataclass(frozen=True)
class Spread:
    """The variance of a mean difference that comes from the images, with its degrees of freedom.

    Attributes:
        variance: of fractions; 0 where nothing is known of the images.
        freedom: degrees of freedom.
        images: how many; 0 where it is not known.
    """

    variance: float = 0.0
    freedom: float = 1.0
    images: int = 0

    @property
    def half(self) -> float:
        """Half the interval that endless repeats on the same images would leave."""
        return float(special.stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(self.variance)


def correct(record: Record) -> np.ndarray | None:
    """Whether each validation image was classified correctly at the end.

    None without a list, and where it is not that of the accuracy: predicting once more may round
    a few images otherwise, not many.
    """
    known = record.get("validated")
    if not known or "correct" not in known:
        return None
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(known["correct"]), np.uint8))
    bits = bits[: known["images"]].astype(bool)
    accuracy = (record.get("history") or [{}])[-1].get("val_accuracy")
    off = abs(bits.mean() - accuracy) if accuracy is not None else np.inf
    return bits if off * len(bits) <= max(2, OFF * len(bits)) else None


def spread(left: Mapping[int, Record], right: Mapping[int, Record], margin: float) -> Spread:
    """What the images add to the variance of left's mean accuracy minus right's.

    Args:
        left: records of a side by block; of blocks that both sides have.
        right: of the other.
        margin: largest difference that counts as equal, a fraction.
    """
    blocks = [block for block in left if block in right]
    sides = [[side[block] for block in blocks] for side in (left, right)]
    validated = [record.get("validated") or {} for side in sides for record in side]
    if any("losses" in each for each in validated):
        return _of_losses(*sides)
    lists = [[correct(record) for record in side] for side in sides]
    digests = {(each.get("digest"), each.get("images")) for each in validated}
    known = all(bits is not None for side in lists for bits in side)
    if len(digests) == 1 and known:
        return of_pairs(np.array(lists[0], float) - np.array(lists[1], float), margin)
    return _unpaired(*sides, margin)


def _of_losses(left: Sequence[Record], right: Sequence[Record]) -> Spread:
    """The spread from the losses of a text's sequences: paired where both sides had the same ones.

    Neighbouring sequences are of one passage, and count as independent all the same.
    """
    validated = [r.get("validated") or {} for r in (*left, *right)]
    if not all(each.get("losses") and None not in each["losses"] for each in validated):
        return Spread()
    sides = [validated[: len(left)], validated[len(left) :]]
    if len({(each["digest"], each["images"]) for each in validated}) == 1:
        ours, theirs = (np.array([each["losses"] for each in side]) for side in sides)
        means = (ours - theirs).mean(0)
        n = len(means)
        return Spread(_of_mean(means), max(n - 1, 1), n)
    n = min(each["images"] for each in validated)
    variances = [np.mean([_of_mean(np.array(each["losses"])) for each in side]) for side in sides]
    return Spread(float(sum(variances)), max(n - 1, 1), n)


def _of_mean(values: np.ndarray) -> float:
    """Variance of a mean of some values; of fewer than FEWEST nothing is known.

    Two that happen to agree would show none at all.
    """
    return float(values.var(ddof=1) / len(values)) if len(values) >= FEWEST else np.inf


def of_pairs(differences: np.ndarray, margin: float) -> Spread:
    """The spread from differences of shape (blocks, images): 1, 0 or -1; margin as in `spread`."""
    means = differences.mean(0)
    n = len(means)
    squares = float(((means - means.mean()) ** 2).sum()) + PSEUDO_IMAGES
    more = n + PSEUDO_IMAGES
    variance = squares / (more - 1) / more
    # Of the variance of a single block, what is left in the mean of blocks: all of it where the
    # same images differ in each, and 1 / blocks where others do.
    one = n * float((differences**2).mean() - means.mean() ** 2) + PSEUDO_IMAGES
    at_margin = squares / one * _at_margin(differences, margin)
    return Spread(max(variance, at_margin), more - 1, n)


def _at_margin(differences: np.ndarray, margin: float) -> float:
    """Variance of one block's mean, were the truth the margin on the side of what was observed.

    Tango (1998), "Equivalence test and confidence interval for the difference in proportions for
    the paired-sample design": the likeliest shares of images that differ which are a margin apart.
    """
    n = differences.shape[1]
    fewer, larger = sorted(float((differences == sign).mean()) * n for sign in (1, -1))
    linear = -larger - fewer + (2 * n - larger + fewer) * margin
    constant = -fewer * margin * (1 - margin)
    least = (np.sqrt(linear**2 - 8 * n * constant) - linear) / (4 * n)
    return float(2 * least + margin * (1 - margin)) / n


def _unpaired(left: Sequence[Record], right: Sequence[Record], margin: float) -> Spread:
    """As if each side had images of its own, which is too wide and never too narrow.

    A number of images that nothing else in its record supports is believed where it is too small
    to claim anything, and not otherwise.
    """
    both = (*left, *right)
    counts = [r.get("in_force", {}).get("validation_images") for r in both]
    if not counts or not all(counts):
        return Spread()
    supported = all(r.get("validated") or r["in_force"].get("validation_labels") for r in both)
    believed = supported or NONE_AMONG / min(counts) > margin
    variances = [np.mean([_binomial(record) for record in side]) for side in (left, right)]
    return Spread(float(sum(variances)), min(counts), min(counts) * believed)


def _binomial(record: Record) -> float:
    """Variance of an accuracy that comes from its images, with an error and a success more."""
    images = record["in_force"]["validation_images"]
    share = (record["history"][-1]["val_accuracy"] * images + 1) / (images + 2)
    return float(share * (1 - share) / (images + 2))
