"""How often the interval of a speedup holds the truth, and how wide it is, by simulation.

    python benchmarks/interval_coverage.py [--sweeps 4000] [--claims 1500] [--images 2000]
                                           [--repairs 2000]

Each simulated sweep has some blocks; a block drifts by 3 % (standard deviation, both policies
alike), a run has 1 % noise of its own, and 5 % of the runs are slowed by an exponential of mean
10 %. Printed: the share of sweeps whose nominal 95 % interval holds the true ratio, and the
interval's median width in percent of the ratio, for each method and number of blocks.

Then what sweeps of several points claim, by each point's own interval and by the intervals that
hold for all points together: how many sweeps of pure noise claim anything, and how many true
differences of 8 % are claimed. Runs vary by 2 %; in "unlike points" the noise differs from point
to point (its logarithm by 0.7), in "drift" each run of a block is 0.5 % slower than the one
before, in the order of `mptexp.spec.run_order`, in "outliers" 5 % of the runs take 30 % longer, in
"two modes" 30 % take 6 % longer.

With --images, what accuracies claim: of two policies validated with the same images in every
block, how often the interval of their difference holds a true difference of one point, how often
they are called equal within one point although they differ by it (nominal 2.5 %), how often they
are rightly called equal, and how often called different where they are not (nominal 5 %); by blocks
alone, and by blocks and images (`mptexp.analysis.validation_variance`). In "other images" one
image in fifty is classified by the one policy alone, another in each block; in "same images" the
same in each; in "trainings differ" a training's accuracy varies by half a point, too.

With --repairs, what sweeps of two policies claim that are measured again with `mptexp run --repair`
until no repeats are apart, where a share of the runs is slow by half: from the set that counts
alone, and from what it and all earlier sets claim together
(`mptexp.analysis.simultaneous_intervals`).

mptexp uses "t on logs" (`mptexp.analysis.contrast.paired`).
"""

import argparse
from random import Random

import numpy as np
from scipy import stats

from mptexp.analysis import contrast, simultaneous_intervals, steadiness, validation_variance
from mptexp.spec import run_order

TRUE = 1.3
BLOCKS = (3, 5, 10)


def simulated(sweeps: int, blocks: int, seed: int) -> np.ndarray:
    """Ratios of baseline to candidate time, shape (sweeps, blocks), whose truth is TRUE."""
    random = np.random.default_rng(seed)
    drift = np.exp(random.normal(0, 0.03, (sweeps, 1, blocks)))
    noise = np.exp(random.normal(0, 0.01, (sweeps, 2, blocks)))
    slowed = random.random((sweeps, 2, blocks)) < 0.05
    times = drift * noise * (1 + slowed * random.exponential(0.1, (sweeps, 2, blocks)))
    return TRUE * times[:, 0] / times[:, 1]


def t_on_logs(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval of the mean logarithm."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, logs.shape[1] - 1) * stats.sem(logs, axis=1)
    return np.exp(logs.mean(1) - half), np.exp(logs.mean(1) + half)


def t_on_ratios(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval of the mean ratio."""
    half = stats.t.ppf(0.975, ratios.shape[1] - 1) * stats.sem(ratios, axis=1)
    return ratios.mean(1) - half, ratios.mean(1) + half


def bootstrap(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of the mean logarithm, 500 draws."""
    logs = np.log(ratios)
    blocks = logs.shape[1]
    draws = np.random.default_rng(1).integers(0, blocks, (500, blocks))
    means = logs[:, draws].mean(2)
    low, high = np.percentile(means, (2.5, 97.5), axis=1)
    return np.exp(low), np.exp(high)


def extremes(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order statistics of the median: the narrowest pair that covers 95 %, else the extremes."""
    blocks = ratios.shape[1]
    k = max(1, int(stats.binom.ppf(0.025, blocks, 0.5)))
    ordered = np.sort(ratios, axis=1)
    return ordered[:, k - 1], ordered[:, blocks - k]


def trimmed(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Yuen's t interval of the mean logarithm, one tenth trimmed at each end (at least one)."""
    logs = np.sort(np.log(ratios), axis=1)
    n = logs.shape[1]
    g = max(1, n // 10)
    if n - 2 * g < 2:
        nothing = np.full(len(logs), np.nan)
        return nothing, nothing
    middle = logs[:, g : n - g].mean(1)
    winsorized = np.clip(logs, logs[:, [g]], logs[:, [n - g - 1]])
    h = n - 2 * g
    error = np.sqrt(winsorized.var(1, ddof=1) * (n - 1) / (h * (h - 1)))
    half = stats.t.ppf(0.975, h - 1) * error
    return np.exp(middle - half), np.exp(middle + half)


METHODS = {
    "t on logs": t_on_logs,
    "t on ratios": t_on_ratios,
    "trimmed t on logs": trimmed,
    "percentile bootstrap": bootstrap,
    "order statistics": extremes,
}


# --- what sweeps claim -----------------------------------------------------------------------

SHAPES = ((1, 2, 3), (2, 3, 3), (5, 2, 5), (40, 2, 3), (40, 2, 5), (20, 3, 10))
KINDS = ("alike", "unlike points", "drift", "outliers", "two modes")
DIFFERENCE = np.log(1.08)


def times(points: int, policies: int, blocks: int, kind: str, seed: int) -> np.ndarray:
    """Logarithms of step times of policies that do not differ, (points, policies, blocks)."""
    random = np.random.default_rng(seed)
    shape = (points, policies, blocks)
    logs = random.normal(0, 0.02, shape)
    if kind == "unlike points":
        logs *= np.exp(random.normal(0, 0.7, (points, 1, 1)))
    elif kind == "drift":
        chance = Random(seed)
        for point in range(points):
            for block, places in enumerate(run_order.balanced(range(policies), blocks, chance)):
                logs[point, places, block] += 0.005 * np.arange(policies)
    elif kind == "outliers":
        logs += 0.26 * (random.random(shape) < 0.05)
    elif kind == "two modes":
        logs += 0.06 * (random.random(shape) < 0.3)
    return logs


def claimed(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which comparisons with the first policy are claimed: by their own interval, and together."""
    ratios = (logs[:, :1] - logs[:, 1:]).reshape(-1, logs.shape[2])
    own = stats.t.ppf(0.975, logs.shape[2] - 1) * stats.sem(ratios, axis=1)
    together = np.array(simultaneous_intervals.half_widths(list(ratios)))
    return np.abs(ratios.mean(1)) > own, np.abs(ratios.mean(1)) > together


def print_claims(sweeps: int) -> None:
    """A row for each shape of a sweep and kind of noise."""
    print(
        "\npoints x policies, blocks; noise     noise sweeps that claim: own, together   8 % found"
    )
    for shape in SHAPES:
        for kind in KINDS:
            noise = [times(*shape, kind, seed) for seed in range(sweeps)]
            lying = np.mean([[c.any() for c in claimed(logs)] for logs in noise], axis=0)
            faster = np.array([1.0] + [0.0] * (shape[1] - 1))[:, None] * DIFFERENCE
            power = np.mean([claimed(logs + faster)[1].mean() for logs in noise[: sweeps // 3]])
            named = f"{shape[0]:>3} x {shape[1]}, {shape[2]:>2} blocks; {kind}"
            print(f"{named:40} {lying[0]:8.1%} {lying[1]:8.1%} {power:12.0%}", flush=True)


# --- accuracies ------------------------------------------------------------------------------

MARGIN = 0.01
IMAGES = (20, 200, 400, 1000, 4000)
APART = {"other images": (0.0, 0.02, 0.0), "same images": (0.02, 0.0, 0.0)}
APART |= {"trainings differ": (0.01, 0.02, 0.005)}


def differing(
    images: int, blocks: int, kind: str, true: float, random: np.random.Generator
) -> np.ndarray:
    """Differences of two policies, 1, 0 or -1, shape (blocks, images), whose mean is `true`."""
    same, each, spread = APART[kind]
    always = _signs(np.tile(random.random(images), (blocks, 1)), same, true if same else 0.0)
    shift = random.normal(0.0 if same else true, spread, (blocks, 1))
    chance = _signs(random.random((blocks, images)), np.maximum(each, abs(shift)), shift)
    return np.where(always != 0, always, chance)


def _signs(uniform: np.ndarray, share: float | np.ndarray, mean: float | np.ndarray) -> np.ndarray:
    """1 and -1 in a share of places, so many that their mean over all is as wanted."""
    up, down = (share + mean) / 2, (share - mean) / 2
    return np.where(uniform < up, 1.0, np.where(uniform > 1 - down, -1.0, 0.0))


def halves_of(differences: np.ndarray) -> tuple[float, float]:
    """Half widths by blocks alone, and by blocks and images; NaN where none is claimed."""
    blocks, known = differences.mean(1), validation_variance.of_pairs(differences, MARGIN)
    alone = simultaneous_intervals.half_widths([blocks])
    both = simultaneous_intervals.half_widths([blocks], more=[(known.variance, known.freedom)])
    few = known.images * MARGIN < validation_variance.NONE_AMONG
    return alone[0], np.inf if few and both[0] < MARGIN else both[0]


def print_accuracies(sweeps: int) -> None:
    """A row for each number of images and of blocks, and kind of difference."""
    head = "held, false equal, equal, false different"
    print(f"\n{'images, blocks; trainings':42} by blocks alone: {head}   and images: the same")
    for images in IMAGES:
        for blocks in (1, 3, 5, 10):
            for kind in APART:
                print(
                    f"{images:5}, {blocks} blocks; {kind:22}",
                    _accuracies(images, blocks, kind, sweeps),
                )


def _accuracies(images: int, blocks: int, kind: str, sweeps: int) -> str:
    random, shares = np.random.default_rng(images + blocks), []
    for true in (MARGIN, 0.0):
        for _ in range(sweeps):
            made = differing(images, blocks, kind, true, random)
            mean = made.mean()
            said = [
                (abs(mean - true) <= half, abs(mean) + half < MARGIN, abs(mean) > half)
                for half in halves_of(made)
            ]
            shares.append(said)
    if blocks < contrast.FEWEST:
        return "     no interval, nothing claimed"
    means = np.array(shares, float).reshape(2, sweeps, 2, 3).mean(1)
    return "   ".join(
        f"{means[0, k, 0]:7.1%} {means[0, k, 1]:6.1%} {means[1, k, 1]:6.1%} {means[1, k, 2]:6.1%}"
        for k in (0, 1)
    )


# --- measured again --------------------------------------------------------------------------

SLOW, MOST_SETS = np.log(1.5), 20
SHARES = (0.0, 0.1, 0.3, 0.5)


def repaired(blocks: int, slow: float, true: float, random: np.random.Generator) -> np.ndarray:
    """Logarithms of two policies' ratios, a row for each set until one's repeats agree, the last.

    With two policies a repeat is held against the other policy's of its block.
    """
    sets: list[np.ndarray] = []
    while not sets or (np.ptp(sets[-1]) > np.log1p(steadiness.APART) and len(sets) < MOST_SETS):
        logs = random.normal(0, 0.01, (2, blocks)) + SLOW * (random.random((2, blocks)) < slow)
        sets.append(logs[0] - logs[1] + true)
    return np.array(sets)


def claimed_of(sets: np.ndarray) -> list[int]:
    """1 for faster, -1 for slower, 0 for neither: of the last set alone, and with all others."""
    if np.ptp(sets[-1]) > np.log1p(steadiness.APART):
        return [0, 0]
    both = [
        simultaneous_intervals.of_ratios([sets[-1]], [what])[0] for what in (sets[-1], sets.ravel())
    ]
    return [int(low > 0) - int(high < 0) for low, high in both]


def print_repairs(sweeps: int) -> None:
    """A row for each number of blocks and share of slow runs."""
    print("\nblocks; slow runs   alone: false, 8 % found, 1.35x found   with all: the same   sets")
    for blocks in (3, 5):
        for slow in SHARES:
            random, cells = np.random.default_rng(blocks), []
            for true in (0.0, DIFFERENCE, np.log(1.35)):
                made = [repaired(blocks, slow, true, random) for _ in range(sweeps)]
                said = np.array([claimed_of(sets) for sets in made])
                cells.append((said != 0 if true == 0 else said > 0).mean(0))
            text = "   ".join(" ".join(f"{c[k]:7.1%}" for c in cells) for k in (0, 1))
            number = np.mean([len(sets) for sets in made])
            print(f"{blocks:3} blocks; {slow:4.0%}   {text}   {number:.1f}", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=4000)
    parser.add_argument("--claims", type=int, default=1500)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--repairs", type=int, default=0)
    options = parser.parse_args()
    if options.repairs:
        print_repairs(options.repairs)
        return
    if options.images:
        print_accuracies(options.images)
        return
    sweeps = options.sweeps
    print(f"{'':22}" + "".join(f"{n:>3} blocks: held, width " for n in BLOCKS))
    for name, method in METHODS.items():
        cells = []
        for blocks in BLOCKS:
            low, high = method(simulated(sweeps, blocks, seed=blocks))
            held = np.mean((low <= TRUE) & (high >= TRUE))
            width = np.median(high - low) / TRUE
            cells.append(
                "         none           "
                if np.isnan(low).all()
                else f"     {held:7.1%} {width:7.1%}    "
            )
        print(f"{name:22}" + "".join(cells))
    print_claims(options.claims)


if __name__ == "__main__":
    main()
