"""Which machines of a cloud are close to each other: groups from a table of latencies between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refsgd.cluster import units
from refsgd.cluster.checks import prefixed
from refsgd.cluster.links import Link
from refsgd.cluster.machine import Machine

CLEAR = 2.0  #: the least factor between latencies within groups and across them


def read_latencies(path: str) -> NDArray[np.float64]:
    """A table of latencies [s], shape (hosts, hosts), from a CSV file: a line for each host, times with or
    without units; the diagonal does not count.  Raises ValueError."""
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    with prefixed(f"{path}: "):
        rows = [[units.seconds(cell) for cell in line.split(",")] for line in lines]
    if len(rows) < 2 or any(len(row) != len(rows) for row in rows):
        lengths = ", ".join(str(len(row)) for row in rows[:8])
        raise ValueError(f"{path}: lines of {lengths} times; expected as "
                         "many lines as times in each, for two hosts or more")
    found = np.array(rows)
    apart = found[~np.eye(len(rows), dtype=bool)]
    if not (np.isfinite(apart).all() and (apart > 0).all()):
        raise ValueError(f"{path}: latencies from {apart.min():g} to {apart.max():g} s; expected times > 0")
    return found


def close(latencies: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
    """The groups of hosts of which each is closer to one of its group than any to another group.

    Single linkage, cut at the largest factor between two consecutive latencies of its merges; no groups if
    that is below `CLEAR`.

    >>> near, far = 1e-4, 1e-2
    >>> close(np.array([[0, far, near], [far, 0, far], [near, far, 0]]))
    ((0, 2), (1,))
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    both = (latencies + latencies.T) / 2
    tree = linkage(squareform(both * (1 - np.eye(len(both))), checks=False), "single")
    heights = tree[:, 2]
    factors = heights[1:] / heights[:-1]
    if not factors.size or factors.max() < CLEAR:
        return ()
    low = heights[int(np.argmax(factors))]
    group = fcluster(tree, low * CLEAR ** 0.5, "distance")
    found = [tuple(np.flatnonzero(group == g).tolist()) for g in dict.fromkeys(group.tolist())]
    return tuple(found)


def with_groups(machine: Machine, latencies: NDArray[np.float64]) -> Machine:
    """The machine with these groups, a host for each line of the table, and the median latencies: within
    groups that of its links, and what crossing adds as that of the uplinks, of the same bandwidth."""
    groups, count = close(latencies), len(latencies)
    group = np.zeros(count, int)  # of each host
    for g, members in enumerate(groups):
        group[list(members)] = g
    same = np.equal.outer(group, group)
    within = latencies[same & ~np.eye(count, dtype=bool)]
    across = float(np.median(latencies[~same])) if groups else 0.0
    near = float(np.median(within))
    # chains of close hosts make groups whose other pairs may be further apart than the groups
    uplink = Link(max(0.0, across - near), machine.bandwidth) if groups else None
    return machine.with_(hosts=machine.hosts or f"cyclic:{count}", groups=groups, uplink=uplink,
                         latency=near)
