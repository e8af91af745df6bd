"""Homework D: three formulas for workers of different speeds.

Messages take no time.  A gradient of worker i takes an exponentially distributed time with mean 1/speeds[i]
seconds, and no two draws depend on each other.
"""


def share(speeds):
    """The share of all updates that each worker makes under ASP: a list that sums to 1."""
    return [1 / len(speeds) for _ in speeds]  # TODO


def staleness(speeds):
    """The mean staleness, in updates, of each worker's gradients under ASP: a list."""
    return [len(speeds) - 1 for _ in speeds]  # TODO


def iteration(speeds):
    """The mean time of an iteration of BSP, in seconds."""
    return 1 / min(speeds)  # TODO
