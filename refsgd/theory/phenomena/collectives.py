"""What a collective costs: seconds until the last worker has its result, and bytes, of every pattern of
workers alone.

The links, the letters and what is assumed of them: `refsgd.theory.phenomena.exchange`.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005.
Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009.
Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: halving and doubling.
Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", ParCo 35,
2009. Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", 2018: the 2D torus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from refsgd.theory.phenomena.exchange import Exchange, Link, nothing_sent, priced, sizes
from refsgd.theory.prediction import DomainError, Kind, check_count


def root_reduce(workers: int, nbytes: float, link: Link) -> Exchange:
    """One root adds all vectors after the last arrival and sends the sum back (PSCPU with one root)."""
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    w, reduce = link.wire(m), (n - 1) * m * link.reduction
    return priced(2 * link.latency + 2 * (n - 1) * w + reduce, "exact", 2 * link.latency, 2 * (n - 1) * w,
                  reduce,
                  "2 alpha + 2 (n-1) w + (n-1) M gamma", "definition", (n - 1) * m, 2 * (n - 1) * m)


def pscpu(workers: int, nbytes: float, link: Link) -> Exchange:
    """Even slices whose roots go round the workers: as `root_reduce` on every slice at once, rotated."""
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    share = (n - 1) / n
    w, reduce = link.wire(m), share * m * link.reduction
    return priced(2 * link.latency + 2 * share * w + reduce, "exact", 2 * link.latency, 2 * share * w, reduce,
                  "2 alpha + 2 (n-1)/n w + (n-1)/n M gamma", "definition", 2 * share * m, 2 * (n - 1) * m)


def ring(workers: int, nbytes: float, link: Link, chunk: float | None = None) -> Exchange:
    """Ring allreduce: n-1 steps of reduce-scatter, n-1 of allgather; each moves the largest chunk, `chunk`
    bytes.
    """
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    piece = m / n if chunk is None else chunk
    a, reduce = 2 * (n - 1) * link.latency, (n - 1) * piece * link.reduction
    wire = 2 * (n - 1) * link.wire(piece)
    return priced(a + wire + reduce, "exact", a, wire, reduce, "2 (n-1) (alpha + m beta) + (n-1) m gamma",
                  "Patarasuk and Yuan 2009", 2 * (n - 1) / n * m, 2 * (n - 1) * m)


def rings(workers: int, nbytes: float, link: Link, count: int) -> Exchange:
    """`count` rings at once in the same order, each on M/count; gamma = 0.

    A step of one ring costs alpha + w/(kn), and the link must carry k such pieces a step, w/n; 2n-3 steps
    pass at the slower of the two, the last one is alpha + w/n behind.
    """
    n, m = sizes(workers, nbytes)
    k = check_count("rings", count)
    if link.reduction:
        raise DomainError(f"reduction {link.reduction} s/byte; the formula of several rings assumes 0")
    if n == 1:
        return nothing_sent()
    w, a = link.wire(m), link.latency
    step = max(a + w / (k * n), w / n)
    value = (2 * n - 3) * step + a + w / n
    wire = 2 * (n - 1) * w / n
    return priced(value, "exact", value - wire, wire, 0.0, "(2n-3) max(alpha + w/(kn), w/n) + alpha + w/n",
                  "Patarasuk and Yuan 2009", 2 * (n - 1) / n * m, 2 * (n - 1) * m)


def _power(n: int) -> tuple[int, int, int]:
    """q = 2^floor(log2 n), log2 q, and 1 if n > q: the ranks that fold."""
    log = n.bit_length() - 1
    return 1 << log, log, int(n != 1 << log)


def halving_doubling(workers: int, nbytes: float, link: Link) -> Exchange:
    """Recursive halving, partners q/2, q/4, ..., 1 apart, then doubling back; exact for n = q or gamma = 0.

    The first 2 (n-q) ranks fold in pairs before and unfold after.  Where n > q and reducing takes time, ranks
    that need not fold run ahead, and their messages can keep a late rank's incoming link busy: a lower bound
    then (up to 13 % low for n <= 32).  Partners 1, 2, 4, ... apart collide in this way even with gamma = 0.
    """
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    q, log, f = _power(n)
    half = (q - 1) / q
    a, wire = 2 * (log + f) * link.latency, (2 * half + 2 * f) * link.wire(m)
    add = (half + f) * m * link.reduction
    return priced(a + wire + add, "bound" if f and add else "exact", a, wire, add,
                  "2 (log2 q + f) alpha + (2 (q-1)/q + 2 f) w + ((q-1)/q + f) M gamma",
                  "Rabenseifner 2004; Thakur et al. 2005", (2 * half + f) * m, 2 * (n - 1) * m, side="lower")


def recursive_doubling(workers: int, nbytes: float, link: Link) -> Exchange:
    """log2 q exchanges of the whole vector between partners 1, 2, 4, ... apart; fold as in
    `halving_doubling`.

    Exact for n = q and for n - q > q/2; else some folded ranks meet only unfolded ones in the first rounds,
    and it is an upper bound.
    """
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    q, log, f = _power(n)
    steps = log + 2 * f
    reduce = (log + f) * m * link.reduction
    kind: Kind = "exact" if n == q or n - q > q / 2 else "bound"
    a, wire = steps * link.latency, steps * link.wire(m)
    return priced(a + wire + reduce, kind, a, wire, reduce,
                  "(log2 q + 2 f)(alpha + w) + (log2 q + f) M gamma",
                  "Thakur et al. 2005, section 4.4", (log + f) * m, (q * log + 2 * (n - q)) * m)


def broadcast(workers: int, nbytes: float, link: Link) -> Exchange:
    """Binomial tree from one root, largest subtree first: floor(log2 n) alpha + ceil(log2 n) w."""
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    low, high = n.bit_length() - 1, (n - 1).bit_length()
    a, wire = low * link.latency, high * link.wire(m)
    return priced(a + wire, "exact", a, wire, 0.0, "floor(log2 n) alpha + ceil(log2 n) w",
                  "Thakur et al. 2005",
                  high * m, (n - 1) * m)


def reduce(workers: int, nbytes: float, link: Link) -> Exchange:
    """Binomial tree to one root: ceil(log2 n) (alpha + w + M gamma); exact for n = q, else an upper bound."""
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    high = (n - 1).bit_length()
    a, wire, add = high * link.latency, high * link.wire(m), high * m * link.reduction
    return priced(a + wire + add, "exact" if n == _power(n)[0] else "bound", a, wire, add,
                  "ceil(log2 n) (alpha + w + M gamma)", "Thakur et al. 2005", high * m, (n - 1) * m)


def tree(workers: int, nbytes: float, link: Link) -> Exchange:
    """Allreduce as a binomial reduce and a binomial broadcast, one after the other."""
    up, down = reduce(workers, nbytes, link), broadcast(workers, nbytes, link)
    kind: Kind = up.time.kind
    a, wire, add = (up.time.terms.get(t, 0.0) + down.time.terms.get(t, 0.0)
                    for t in ("latency", "wire", "reduction"))
    return priced(up.time.value + down.time.value, kind, a, wire, add, "binomial reduce + binomial broadcast",
                  "Thakur et al. 2005", max(up.busiest, down.busiest), up.total + down.total)


def double_tree(workers: int, nbytes: float, link: Link, chunk: float | None = None) -> Exchange:
    """Two binary trees, each on half the vector, pipelined in chunks; an approximation, up to a third low.

    Each chunk travels up and down ceil(log2 n) levels, and every node passes the whole vector up and down
    once; the chunk defaults to the best one, sqrt(M alpha bandwidth / log2 n).
    """
    n, m = sizes(workers, nbytes)
    if n == 1:
        return nothing_sent()
    levels = (n - 1).bit_length()
    if chunk is None:
        best = math.sqrt(m * link.latency * link.bandwidth / levels) if math.isfinite(link.bandwidth) else m
        chunk = min(max(best, 1.0), m)
    a, wire = 2 * levels * link.latency, 2 * levels * link.wire(chunk) + 2 * link.wire(m)
    return priced(a + wire, "approximation", a, wire, 0.0, "2 ceil(log2 n) (alpha + m beta) + 2 w",
                  "Sanders, Speck, Traeff 2009", 2 * m, 2 * (n - 1) * m)


def torus(columns: int, rows: int, nbytes: float, link: Link) -> Exchange:
    """2D torus of X columns and Y rows: reduce-scatter along rows, ring allreduce of M/X along columns,
    allgather.
    """
    x, y = check_count("columns", columns), check_count("rows", rows)
    n, m = sizes(x * y, nbytes)
    if n == 1:
        return nothing_sent()
    w = link.wire(m)
    a = (2 * (x - 1) + 2 * (y - 1)) * link.latency
    wire = 2 * (x - 1) * w / x + 2 * (y - 1) * w / (x * y)
    add = (n - 1) / n * m * link.reduction
    return priced(a + wire + add, "exact", a, wire, add,
                  "2 (X-1)(alpha + w/X) + 2 (Y-1)(alpha + w/(XY)) + (XY-1)/(XY) M gamma",
                  "Mikami et al. 2018",
                  2 * (n - 1) / n * m, 2 * (n - 1) * m)


def hierarchical(per_node: int, nodes: int, nbytes: float, link: Link, inner: Link) -> Exchange:
    """g ranks per node, m nodes: star to the leader inside, ring between leaders, star back.

    `inner` is the link inside a node (alpha', beta').  `busiest` is a leader's traffic between nodes.
    """
    g, nodes = check_count("per_node", per_node), check_count("nodes", nodes)
    n, m = sizes(g * nodes, nbytes)
    if n == 1:
        return nothing_sent()
    inside = 2 * inner.latency + 2 * (g - 1) * inner.wire(m) if g > 1 else 0.0
    a = (2 * inner.latency if g > 1 else 0.0) + 2 * (nodes - 1) * link.latency
    between = 2 * (nodes - 1) * (link.latency + link.wire(m) / nodes)
    add = ((g - 1) + (nodes - 1) / nodes) * m * link.reduction
    value = inside + between + add
    return priced(value, "exact", a, value - add - a, add,
                  "2 alpha' + 2 (g-1) M beta' + 2 (m-1)(alpha + w/m) + (g-1 + (m-1)/m) M gamma", "definition",
                  2 * (nodes - 1) / nodes * m, 2 * (n - 1) * m)


def factors(n: int) -> tuple[int, int]:
    """X >= Y with X Y = n, as square as possible: the torus of n ranks."""
    y = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    return n // y, y


ALLREDUCE: dict[str, Callable[[int, float, Link], Exchange]] = {
    "ring": ring, "recursive-doubling": recursive_doubling, "halving-doubling": halving_doubling,
    "tree": tree,
    "double-tree": double_tree, "root": root_reduce, "pscpu": pscpu,
    "torus": lambda n, m, link: torus(*factors(n), m, link),
}


def allreduce(collective: str, workers: int, nbytes: float, link: Link, **options: Any) -> Exchange:
    """An allreduce by name: a key of `ALLREDUCE`, "rings" (with ``count``) or "hierarchical" (``per_node``,
    ``inner``).
    """
    name = collective.replace("_", "-")
    if name == "rings":
        k = int(options.get("count", 2))
        if link.reduction:  # as one ring, whose reductions nothing hides
            return ring(workers, nbytes, link)
        return rings(workers, nbytes, link, k)
    if name == "hierarchical":
        per_node = int(options.get("per_node", factors(workers)[0]))
        if per_node < 1 or workers % per_node:
            raise DomainError(f"{workers} workers, {per_node} per node; the formula assumes full nodes")
        return hierarchical(per_node, workers // per_node, nbytes, link, options.get("inner") or link)
    if name not in ALLREDUCE:
        raise DomainError(
            f"collective {collective!r}; expected one of {', '.join([*ALLREDUCE, 'rings', 'hierarchical'])}")
    return ALLREDUCE[name](workers, nbytes, link)
