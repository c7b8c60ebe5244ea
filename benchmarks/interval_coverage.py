"""How often the interval of a speedup holds the truth, and how wide it is, by simulation.

    python benchmarks/interval_coverage.py [--sweeps 4000]

Each simulated sweep has some blocks; a block drifts by 3 % (standard deviation, both policies
alike), a run has 1 % noise of its own, and 5 % of the runs are slowed by an exponential of mean
10 %. Printed: the share of sweeps whose nominal 95 % interval holds the true ratio, and the
interval's median width in percent of the ratio, for each method and number of blocks.

mptexp uses "t on logs" (`mptexp.analysis.contrast.paired`).
"""

import argparse

import numpy as np
from scipy import stats

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


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=4000)
    sweeps = parser.parse_args().sweeps
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


if __name__ == "__main__":
    main()
