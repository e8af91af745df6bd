"""Homework D: three formulas for workers of different speeds, a solution.

Messages take no time.  A gradient of worker i takes an exponentially distributed time with mean 1/speeds[i]
seconds, and no two draws depend on each other.
"""

from itertools import combinations


def share(speeds):
    """The share of all updates that each worker makes under ASP: a list that sums to 1."""
    return [s / sum(speeds) for s in speeds]


def staleness(speeds):
    """The mean staleness, in updates, of each worker's gradients under ASP: a list."""
    return [(sum(speeds) - s) / s for s in speeds]  # what the others do while its gradient is computed


def iteration(speeds):
    """The mean time of an iteration of BSP, in seconds."""
    # the mean of the maximum, by inclusion and exclusion: the minimum of some is exponential, too
    return sum((-1) ** (k + 1) / sum(some) for k in range(1, len(speeds) + 1) for some in combinations(speeds, k))
