"""Samples: how they are taken in turn, and what is written of them."""

import collections
import statistics

MS = 1e3


def collect(one_round, rounds, warm_up=0):
    """Calls `one_round`, which returns a sample for each name, and returns the samples of each name.

    The samples of the first `warm_up` calls are dropped; `rounds` follow.
    """
    samples = collections.defaultdict(list)
    for number in range(warm_up + rounds):
        for name, sample in one_round().items():
            if number >= warm_up:
                samples[name].append(sample)
    return dict(samples)


def interleave(ways, rounds, warm_up=0):
    """Takes a sample of each way in turn: A B A B. `ways` has a function for each name."""
    return collect(lambda: {name: take() for name, take in ways.items()}, rounds, warm_up)


def walls(runs):
    return [run.wall for run in runs]


def cpus(runs):
    return [run.cpu for run in runs]


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def interquartile_mean(values):
    """As steady as a median, and finer than the clock's tick."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.mean(ordered[quarter : len(ordered) - quarter])


def spread(values, unit=MS, digits=1, name="ms"):
    """`median (95th percentile, minimum–maximum)`."""
    values = [value * unit for value in values]
    low, high = min(values), max(values)
    return (
        f"{statistics.median(values):.{digits}f} {name} "
        f"(p95 {quantile(values, 0.95):.{digits}f}, {low:.{digits}f}–{high:.{digits}f})"
    )


def span(values, unit="s"):
    """`median (minimum–maximum, n = count)`, and the value alone if there is one."""
    text = f"{statistics.median(values):.2f} {unit}"
    return text + (f" ({min(values):.2f}–{max(values):.2f}, n = {len(values)})" if len(values) > 1 else "")


def ratio(ours, theirs):
    """The median of the ratios pair by pair, and a text with their interquartile range."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    median = statistics.median(pairs)
    middle = f"{quantile(pairs, 0.25):.2f}–{quantile(pairs, 0.75):.2f}"
    return median, f"{median:.2f} × (IQR of {len(pairs)} pairs {middle})"
