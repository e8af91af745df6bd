"""Overlap of exchanges with the backward pass: wait-free backpropagation, priorities, buckets.

Layers 1..L have forward times f_l and backward times b_l; c_l is the time that layer l's exchange occupies
the link.  The backward pass goes from L to 1, so layer l's gradient is ready at b_L + ... + b_l.  The next
forward pass needs the weights of small l first, which is the opposite order.

References
----------
Zhang et al., "Poseidon: an efficient communication architecture for distributed deep learning on GPU
clusters", USENIX ATC 2017: wait-free backpropagation.
Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019: P3.
Jia, Saha, Bhimani, Mi, "Performance and consistency analysis for distributed deep learning applications",
IPCCC 2020, Fig. 4: the wait that remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from refsgd.theory.estimate import check_time
from refsgd.theory.prediction import DomainError, Prediction

Layers = Sequence[float]


def _check(forward: Layers, backward: Layers, exchange: Layers) -> None:
    if not forward or not len(forward) == len(backward) == len(exchange):
        raise DomainError(
            f"{len(forward)} forward, {len(backward)} backward, {len(exchange)} exchange times; "
                          "the formula assumes one of each for at least one layer")
    for name, times in (("forward", forward), ("backward", backward), ("exchange", exchange)):
        for t in times:
            check_time(name, t)


def _prediction(total: float, forward: Layers, backward: Layers, exchange: Layers, formula: str, source: str,
                lower: float, upper: float) -> Prediction:
    compute = math.fsum(forward) + math.fsum(backward)
    return Prediction(total, "s", "exact", {"forward": math.fsum(forward), "backward": math.fsum(backward),
                                            "exposed exchange": total - compute,
                                            "hidden exchange": math.fsum(exchange) - (total - compute)},
                      formula, source, "one link; times do not vary", lower=lower, upper=upper)


def serial(forward: Layers, backward: Layers, exchange: Layers) -> Prediction:
    """Nothing overlaps: sum f + sum b + sum c."""
    _check(forward, backward, exchange)
    total = math.fsum(forward) + math.fsum(backward) + math.fsum(exchange)
    return _prediction(total, forward, backward, exchange, "sum f + sum b + sum c", "definition", total,
                       total)


def first_come(forward: Layers, backward: Layers, exchange: Layers) -> Prediction:
    """Seconds per iteration if gradients are sent when they are ready (layer L first).

    Sending of layer l starts at max(its gradient's end, end of sending l+1), so the last exchange, that of
    layer 1, ends at max_l (sum_{j>=l} b_j + sum_{j<=l} c_j).  The next forward pass starts with layer 1,
    hence then:

        iteration = sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j)

    At least c_1 stays exposed.
    """
    _check(forward, backward, exchange)
    layers = range(len(forward))
    last = max(math.fsum(backward[l:]) + math.fsum(exchange[: l + 1]) for l in layers)
    total = math.fsum(forward) + last
    f, b, c = math.fsum(forward), math.fsum(backward), math.fsum(exchange)
    return _prediction(total, forward, backward, exchange, "sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j)",
                       "Zhang et al. 2017", max(f + b + exchange[0], f + c), f + b + c)


def merge(layers: Layers, sizes: Sequence[int]) -> list[float]:
    """Sum consecutive layers into buckets of the given sizes (tensor fusion).

    A bucket is ready with its last gradient, that of its lowest layer: it behaves as one layer with summed
    times.

    >>> merge([1, 2, 3, 4], [1, 3])
    [1.0, 9.0]
    """
    if any(size < 1 for size in sizes) or sum(sizes) != len(layers):
        raise DomainError(
            f"buckets {list(sizes)} of {len(layers)} layers; the formula assumes sizes >= 1 that add up")
    out, at = [], 0
    for size in sizes:
        out.append(math.fsum(layers[at: at + size]))
        at += size
    return out


def fuse(nbytes: Layers, least: float) -> list[int]:
    """Layers of each bucket, filled from the last layer on until it has at least this many bytes.

    The last layers' gradients come first, so buckets are filled backwards; the rest is a smaller bucket.

    >>> fuse([10, 1, 1, 1, 5], 3)
    [1, 3, 1]
    """
    check_time("bucket", least)
    sizes, held, count = list[int](), 0.0, 0
    for m in reversed(nbytes):
        held, count = held + m, count + 1
        if held >= least:
            sizes.append(count)
            held, count = 0.0, 0
    return [*([count] if count else []), *reversed(sizes)]


def layered(parameters: Sequence[int], flops: Sequence[float]) -> tuple[list[float], list[float]]:
    """FLOPs and bytes of a net's layers; a layer without parameters counts with the one before it.

    >>> layered([10, 0, 5], [100.0, 1.0, 50.0])
    ([101.0, 50.0], [40.0, 20.0])
    """
    if len(parameters) != len(flops):
        raise DomainError(
            f"{len(parameters)} parameter counts, {len(flops)} FLOPs; the formula assumes one of each for "
            "every layer")
    work, nbytes = list[float](), list[float]()
    for count, each in zip(parameters, flops):
        if (count and (not nbytes or nbytes[-1])) or not nbytes:
            work.append(0.0)
            nbytes.append(0.0)
        work[-1] += each
        nbytes[-1] += 4.0 * count
    return work, nbytes


def bucketed(parameters: Sequence[int], flops: Sequence[float], seconds: float,
             exchange: Callable[[float], float],
             bucket: float = 25e6) -> Prediction:
    """Iteration of a net whose gradients are exchanged bucket by bucket during the backward pass, as
    PyTorch's DDP does.

    The forward pass takes a third of the compute time and the backward pass the rest, divided among layers by
    FLOPs.

    The second layer's exchange is hidden behind the first layer's backward pass, the first layer's is not:

    >>> bucketed([1, 1], [1.0, 1.0], 3.0, lambda m: 0.5, bucket=4).value
    3.5
    """
    work, nbytes = layered(parameters, flops)
    sizes = fuse(nbytes, bucket)
    forward = [seconds / 3 * f / math.fsum(work) for f in merge(work, sizes)]
    return first_come(forward, [2 * f for f in forward], [exchange(m) for m in merge(nbytes, sizes)])
