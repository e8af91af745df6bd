"""Sending gradients while the backward pass still runs: wait-free backpropagation, priorities, buckets.

Layers 1..L with forward times f_l, backward times b_l, and c_l the seconds that layer l's exchange keeps the
link.  The backward pass goes from L to 1, so layer l's gradient is ready at b_L + ... + b_l; its weights are
needed first when l is small, which is the wrong order.

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

from refsgd.theory.prediction import DomainError, Prediction, check_count, check_time

Layers = Sequence[float]


def _check(forward: Layers, backward: Layers, exchange: Layers) -> None:
    if not forward or not len(forward) == len(backward) == len(exchange):
        raise DomainError(f"{len(forward)} forward, {len(backward)} backward, {len(exchange)} exchange times; "
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
    """Nothing overlaps: sum f + sum b + sum c.

    Parameters
    ----------
    forward : sequence of float
        f_l, seconds of each layer's forward pass.
    backward : sequence of float
        b_l, seconds of each layer's backward pass.
    exchange : sequence of float
        c_l, seconds of each layer's exchange.

    Returns
    -------
    Prediction
    """
    _check(forward, backward, exchange)
    total = math.fsum(forward) + math.fsum(backward) + math.fsum(exchange)
    return _prediction(total, forward, backward, exchange, "sum f + sum b + sum c", "definition", total, total)


def first_come(forward: Layers, backward: Layers, exchange: Layers) -> Prediction:
    """Seconds per iteration when gradients are sent as they come (layer L first).

    Sending of layer l starts at max(its gradient's end, end of sending l+1), so the last to leave, layer 1, is
    through at max_l (sum_{j>=l} b_j + sum_{j<=l} c_j).  The next forward pass starts with layer 1, hence then:

        iteration = sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j)

    At least c_1 stays exposed.

    Parameters
    ----------
    forward, backward, exchange : sequence of float
        Seconds of layers 1..L.

    Returns
    -------
    Prediction
    """
    _check(forward, backward, exchange)
    layers = range(len(forward))
    last = max(math.fsum(backward[l:]) + math.fsum(exchange[: l + 1]) for l in layers)
    total = math.fsum(forward) + last
    f, b, c = math.fsum(forward), math.fsum(backward), math.fsum(exchange)
    return _prediction(total, forward, backward, exchange, "sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j)",
                       "Zhang et al. 2017", max(f + b + exchange[0], f + c), f + b + c)


def priority(forward: Layers, backward: Layers, exchange: Layers) -> Prediction:
    """Seconds per iteration when the link always serves the lowest layer first, interrupting others (P3).

    A layer that becomes ready goes before all deeper ones; the forward pass takes layers as they arrive.  All
    exchanges of an iteration end within the next forward pass, so the recurrence closes after one iteration.

        max(sum f + sum b + c_1, sum c + b_L + f_L) <= iteration <= first come

    Parameters
    ----------
    forward : sequence of float
        f_l, seconds of each layer's forward pass.
    backward : sequence of float
        b_l, seconds of each layer's backward pass.
    exchange : sequence of float
        c_l, seconds of each layer's exchange.

    Returns
    -------
    Prediction
    """
    _check(forward, backward, exchange)
    depth = len(forward)
    ready, now = [0.0] * depth, 0.0
    for l in reversed(range(depth)):
        now += backward[l]
        ready[l] = now
    left, done, at = list(exchange), [0.0] * depth, 0.0
    waiting: list[int] = []
    for l in range(depth - 1, -2, -1):  # -1: nothing more becomes ready
        until = ready[l] if l >= 0 else math.inf
        while waiting and at < until:
            top = waiting[-1]  # the lowest layer came last
            if at + left[top] <= until:
                at += left[top]
                done[waiting.pop()] = at
            else:
                left[top] -= until - at
                at = until
        if l >= 0:
            at = max(at, until)
            waiting.append(l)
    end = 0.0
    for l in range(depth):
        end = max(end, done[l]) + forward[l]
    f, b, c = math.fsum(forward), math.fsum(backward), math.fsum(exchange)
    return _prediction(end, forward, backward, exchange, "lowest layer first, preemptive; forward as layers arrive",
                       "Jayarajan et al. 2019", max(f + b + exchange[0], backward[-1] + c + forward[-1]),
                       first_come(forward, backward, exchange).value)


def merge(layers: Layers, sizes: Sequence[int]) -> list[float]:
    """Sum consecutive layers into buckets of the given sizes (tensor fusion).

    A bucket is ready with its last gradient, which is its lowest layer's: as one layer with summed times.

    Parameters
    ----------
    layers : sequence of float
        A value for each layer.
    sizes : sequence of int
        Layers of each bucket; they sum to the number of layers.

    Returns
    -------
    list of float
        A sum for each bucket.

    Examples
    --------
    >>> merge([1, 2, 3, 4], [1, 3])
    [1.0, 9.0]
    """
    if any(size < 1 for size in sizes) or sum(sizes) != len(layers):
        raise DomainError(f"buckets {list(sizes)} of {len(layers)} layers; the formula assumes sizes >= 1 that add up")
    out, at = [], 0
    for size in sizes:
        out.append(math.fsum(layers[at: at + size]))
        at += size
    return out


def buckets(forward: Layers, backward: Layers, nbytes: Layers, sizes: Sequence[int], latency: float,
            bandwidth: float) -> Prediction:
    """First-come order with layers merged into buckets: fewer latencies, later starts.

    A bucket of m bytes keeps the link for 2 (latency + m/bandwidth): its push and its pull.

    Parameters
    ----------
    forward, backward : sequence of float
        f_l and b_l, seconds of layers 1..L.
    nbytes : sequence of float
        Bytes of layers 1..L.
    sizes : sequence of int
        Layers in each bucket, from layer 1.
    latency, bandwidth : float
        Of the link [s, bytes/s].

    Returns
    -------
    Prediction
    """
    check_time("latency", latency)
    if not bandwidth > 0:
        raise DomainError(f"bandwidth {bandwidth} bytes/s; the formula assumes a number > 0")
    exchange = [2 * (latency + m / bandwidth) for m in merge(nbytes, sizes)]
    return first_come(merge(forward, sizes), merge(backward, sizes), exchange)


def fuse(nbytes: Layers, least: float) -> list[int]:
    """Layers of each bucket, filled from the last layer on until it has at least so many bytes.

    The last layers' gradients come first, so buckets are filled backwards; what is left over is a smaller one.

    Parameters
    ----------
    nbytes : sequence of float
        Bytes of layers 1..L.
    least : float
        Bytes of a full bucket, >= 0; 0: every layer is one.

    Returns
    -------
    list of int
        From layer 1 on, for `buckets`.

    Examples
    --------
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


def of_net(parameters: Sequence[int], flops: Sequence[float], *, batch: int, speed: float, bandwidth: float, latency: float = 0.0,
           bucket: float = 25e6) -> dict[str, Prediction]:
    """An iteration of a net by its layers under each schedule, from what `refsgd.nn` says of them.

    A layer's forward pass takes batch x flops / speed seconds and its backward pass twice that; its exchange, a push and
    a pull, keeps the link for 2 (latency + 4 parameters / bandwidth).  Layers without parameters count with the layer
    before them.

    Parameters
    ----------
    parameters : sequence of int
        Of each layer, from the input on.
    flops : sequence of float
        Of each layer's forward pass for one image.
    batch : int
        Images at once.
    speed : float
        FLOPs per second that the processor reaches.
    bandwidth, latency : float
        Of the link [bytes/s, s].
    bucket : float
        Bytes that are sent at once where layers are fused.

    Returns
    -------
    dict of str to Prediction
        "serial", "first-come", "priority", "buckets": seconds per iteration.

    Examples
    --------
    ResNet-50 at 224 pixels, batch 32, 4 TFLOP/s and 10 Gbps, as fast as no exchange at all would be 0.197 s:

    >>> from refsgd.nn import nets
    >>> rows = nets.build("resnet50", (224, 224, 3), 1000).describe()
    >>> found = of_net([r.parameters for r in rows], [r.flops for r in rows], batch=32, speed=4e12, bandwidth=1.25e9, latency=5e-5)
    >>> {name: round(p.value, 3) for name, p in found.items()}
    {'serial': 0.371, 'first-come': 0.24, 'priority': 0.197, 'buckets': 0.237}
    """
    check_count("batch", batch)
    if not speed > 0 or not bandwidth > 0:
        raise DomainError(f"speed {speed}, bandwidth {bandwidth}; the formula assumes rates > 0")
    work, nbytes = layered(parameters, flops)
    forward, backward = [batch * f / speed for f in work], [2 * batch * f / speed for f in work]
    exchange = [2 * (latency + m / bandwidth) for m in nbytes]
    return {"serial": serial(forward, backward, exchange), "first-come": first_come(forward, backward, exchange),
            "priority": priority(forward, backward, exchange),
            "buckets": bucketed(parameters, flops, 3 * math.fsum(forward), lambda m: 2 * (latency + m / bandwidth), bucket)}


def layered(parameters: Sequence[int], flops: Sequence[float]) -> tuple[list[float], list[float]]:
    """FLOPs and bytes of a net's layers; a layer without parameters counts with the one before it.

    Parameters
    ----------
    parameters : sequence of int
        Of each layer, from the input on.
    flops : sequence of float
        Of each layer's forward pass.

    Returns
    -------
    (list of float, list of float)
        FLOPs and bytes (float32) of each layer with parameters.

    Examples
    --------
    >>> layered([10, 0, 5], [100.0, 1.0, 50.0])
    ([101.0, 50.0], [40.0, 20.0])
    """
    if len(parameters) != len(flops):
        raise DomainError(f"{len(parameters)} parameter counts, {len(flops)} FLOPs; the formula assumes one of each for every layer")
    work, nbytes = list[float](), list[float]()
    for count, each in zip(parameters, flops):
        if (count and (not nbytes or nbytes[-1])) or not nbytes:
            work.append(0.0)
            nbytes.append(0.0)
        work[-1] += each
        nbytes[-1] += 4.0 * count
    return work, nbytes


def bucketed(parameters: Sequence[int], flops: Sequence[float], seconds: float, exchange: Callable[[float], float],
             bucket: float = 25e6) -> Prediction:
    """Iteration of a net whose gradients are exchanged bucket by bucket during the backward pass, as PyTorch's DDP does.

    The forward pass takes a third of the compute time and the backward pass the rest, divided among layers by FLOPs.

    Parameters
    ----------
    parameters : sequence of int
        Of each layer, from the input on.
    flops : sequence of float
        Of each layer's forward pass.
    seconds : float
        Compute time of one gradient.
    exchange : callable
        Seconds that the exchange of a number of bytes takes.
    bucket : float
        Bytes from which on a bucket is sent.

    Returns
    -------
    Prediction
        Seconds per iteration.

    Examples
    --------
    The second layer's exchange is hidden behind the first layer's backward pass, the first layer's is not:

    >>> bucketed([1, 1], [1.0, 1.0], 3.0, lambda m: 0.5, bucket=4).value
    3.5
    """
    work, nbytes = layered(parameters, flops)
    sizes = fuse(nbytes, bucket)
    forward = [seconds / 3 * f / math.fsum(work) for f in merge(work, sizes)]
    return first_come(forward, [2 * f for f in forward], [exchange(m) for m in merge(nbytes, sizes)])
