"""Tables of nccl-tests (and of rccl-tests): the link of each node, from an all-reduce of many sizes.

``all_reduce_perf -b 8 -e 128M -f 2`` prints, after a line for each rank, a line for each size: bytes, count,
type, operation, root, and for the exchange out of place and in place its time in microseconds, bytes per time
("algbw") and the bytes that pass each link ("busbw").  A ring of n ranks takes 2 (n-1) (alpha + s/(n B))
seconds for s bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np


def is_table(value: Any) -> bool:
    """Whether a value names a file: as a bandwidth, a table that gives the latency too."""
    return isinstance(value, str) and value.strip().startswith("@")


def link_of(path: str) -> tuple[float, float]:
    """Latency [s] and bandwidth [bytes/s] of a step of the ring, fitted to all sizes with equal relative
    weight."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; expected a table of nccl-tests") from None
    ranks = sum(bool(re.match(r"#\s+Rank\s+\d+", line)) for line in lines)
    form = r"\s*(\d+)\s+\d+\s+\w+\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s"
    found = [row.groups() for line in lines if (row := re.match(form, line))]
    rows = [(float(size), 1e-6 * float(us)) for size, _, _, us, *_ in found if float(size) and float(us)]
    if ranks < 2 or len({size for size, _ in rows}) < 2:
        raise ValueError(f"{path}: {ranks} ranks and {len(rows)} sizes; expected the output of "
                         "all_reduce_perf, with a line '# Rank' for each of two or more, and two sizes")
    steps = 2 * (ranks - 1)
    for _, operation, root, _, alg, bus in found:  # both bandwidths are rounded to 0.01
        apart = abs(float(bus) - steps / ranks * float(alg))
        if operation == "none" or root != "-1" or apart > 0.02 + 0.01 * float(bus):
            raise ValueError(f"{path}: redop {operation}, root {root}, busbw {bus} at algbw {alg}: not an "
                             f"all-reduce of {ranks} ranks; expected the output of all_reduce_perf")
    from scipy.optimize import nnls

    terms = np.array([[steps / seconds, steps * size / ranks / seconds * 1e-9] for size, seconds in rows])
    latency, per_gigabyte = nnls(terms, np.ones(len(rows)))[0]
    if not per_gigabyte:
        raise ValueError(f"{path}: larger exchanges took no longer; expected sizes up to some megabytes")
    return float(latency), 1e9 / float(per_gigabyte)
