"""Costs of collectives: seconds until the last worker has its result, and bytes; see docs/collectives.md.

All nodes start together.  A lone message of m bytes takes alpha + m beta (alpha the latency, beta =
1/bandwidth).  Each node's outgoing and incoming link serves one message at a time, full duplex, cut-through,
on a non-blocking switch.  w = M beta is the time of the whole vector on a link, gamma that of reducing a
byte. A node forwards a message only when all of it has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, Uncovered, Values, certain, check_count, sampled
from refsgd.theory.prediction import DomainError, Kind, Prediction, Side

STEPS = 12_000  # of the ring, in one replica; a longer run is continued at its pace
DRAWS = 60_000  # compute times drawn for all replicas


class Link(NamedTuple):
    """Cost of a message: latency [s], bandwidth [bytes/s], reduction [s/byte]."""

    latency: float = 0.0
    bandwidth: float = math.inf
    reduction: float = 0.0

    def wire(self, nbytes: float) -> float:
        """Seconds of a message of this size on a link, without latency."""
        return nbytes / self.bandwidth


class Exchange(NamedTuple):
    """Cost of one exchange: its time, and bytes sent by all nodes."""

    time: Prediction
    total: float


def _priced(latency: float, wire: float, reduction: float, formula: str, source: str, total: float,
            kind: Kind = "exact", bound: Side = "") -> Exchange:
    """An exchange from the seconds of its terms and its bytes; a bound if a side is given."""
    terms = {"latency": latency, "wire": wire, **({"reduction": reduction} if reduction else {})}
    time = Prediction(latency + wire + reduction, "s", "bound" if bound else kind, terms, formula, source,
                      "all start together; full duplex; non-blocking switch; first come first served",
                      bound=bound)
    return Exchange(time, total)


def _linear(m: float, link: Link, latencies: float, vectors: float, reduced: float, formula: str, source: str,
            total: float, bound: Side = "") -> Exchange:
    """latencies x alpha + vectors x M beta + reduced x M gamma; traffic is also in vectors of M bytes."""
    return _priced(latencies * link.latency, vectors * link.wire(m), reduced * m * link.reduction, formula,
                   source, total * m, bound=bound)


#: of a lone worker
NOTHING = _priced(0.0, 0.0, 0.0, "one node: nothing is sent", "definition", 0.0)


def root_reduce(n: int, m: float, link: Link) -> Exchange:
    """One root adds all vectors after the last arrival and sends the sum back (PSCPU with one root)."""
    return _linear(m, link, 2, 2 * (n - 1), n - 1, "2 alpha + 2 (n-1) w + (n-1) M gamma", "definition",
                   2 * (n - 1))


def pscpu(n: int, m: float, link: Link) -> Exchange:
    """`root_reduce` of n equal parts at once, each with another worker as its root, in rotated order."""
    share = (n - 1) / n
    return _linear(m, link, 2, 2 * share, share, "2 alpha + 2 (n-1)/n w + (n-1)/n M gamma", "definition",
                   2 * (n - 1))


def ring(n: int, m: float, link: Link, chunk: float | None = None) -> Exchange:
    """Ring allreduce: n-1 steps of reduce-scatter, n-1 of allgather, of at most `chunk` bytes each."""
    piece, steps = m / n if chunk is None else chunk, 2 * (n - 1)
    return _priced(steps * link.latency, steps * link.wire(piece), (n - 1) * piece * link.reduction,
                   "2 (n-1) (alpha + m beta) + (n-1) m gamma", "Patarasuk and Yuan 2009",
                   2 * (n - 1) * m)


def sharded(n: int, layers: Sequence[float], link: Link, gathers: int) -> Exchange:
    """Layers that go round a ring one after another: each is reduced once, and gathered some times, in n-1
    steps of its largest chunk, m_l bytes."""
    pieces = [4 * math.ceil(m / (4 * n)) for m in layers]
    times = (gathers + 1) * (n - 1)
    return _priced(times * len(pieces) * link.latency, times * link.wire(math.fsum(pieces)),
                   (n - 1) * math.fsum(pieces) * link.reduction,
                   f"(n-1) sum_l ({gathers + 1} (alpha + m_l beta) + m_l gamma)", "Rajbhandari et al. 2020",
                   times * math.fsum(layers))


def several_rings(n: int, m: float, link: Link, k: int) -> Exchange:
    """k rings at once in the same order, each on M/k; gamma = 0.

    A step of one ring takes alpha + w/(kn), and the link carries k such pieces per step in w/n: the first
    2n-3 steps take the longer of the two.
    """
    w, a = link.wire(m), link.latency
    value = (2 * n - 3) * max(a + w / (k * n), w / n) + a + w / n
    wire = 2 * (n - 1) * w / n
    return _priced(value - wire, wire, 0.0, "(2n-3) max(alpha + w/(kn), w/n) + alpha + w/n",
                   "Patarasuk and Yuan 2009", 2 * (n - 1) * m)


def _power(n: int) -> tuple[int, int, int]:
    """q = 2^floor(log2 n), log2 q, and 1 if n > q, so that ranks fold."""
    log = n.bit_length() - 1
    return 1 << log, log, int(n != 1 << log)


def halving_doubling(n: int, m: float, link: Link) -> Exchange:
    """Recursive halving, partners q/2, q/4, ..., 1 apart, then doubling back.

    The first 2 (n-q) ranks fold in pairs before and unfold after.  Exact if all ranks fold but one, or none,
    or at least q/4 pairs and gamma = 0; otherwise a lower bound, up to 13 % low for n <= 32, because ranks
    that do not fold are ahead, and their messages occupy a late rank's link.
    """
    q, log, f = _power(n)
    half, pairs = (q - 1) / q, n - q
    return _linear(m, link, 2 * (log + f), 2 * half + 2 * f, half + f,
                   "2 (log2 q + f) alpha + (2 (q-1)/q + 2 f) w + ((q-1)/q + f) M gamma",
                   "Rabenseifner 2004; Thakur et al. 2005", 2 * (n - 1),
                   "lower" if 0 < pairs < q - 1 and (m * link.reduction or pairs < q / 4) else "")


def recursive_doubling(n: int, m: float, link: Link) -> Exchange:
    """log2 q exchanges of the whole vector, partners 1, 2, 4, ... apart; folds as in `halving_doubling`.

    Exact for n = q and for n - q > q/2; otherwise an upper bound, because some folded ranks exchange only
    with unfolded ones in the first rounds.
    """
    q, log, f = _power(n)
    return _linear(m, link, log + 2 * f, log + 2 * f, log + f,
                   "(log2 q + 2 f)(alpha + w) + (log2 q + f) M gamma", "Thakur et al. 2005, section 4.4",
                   q * log + 2 * (n - q), "" if n == q or n - q > q / 2 else "upper")


def broadcast(n: int, m: float, link: Link) -> Exchange:
    """Binomial tree from one root, largest subtree first: floor(log2 n) alpha + ceil(log2 n) w."""
    low, high = n.bit_length() - 1, (n - 1).bit_length()
    return _linear(m, link, low, high, 0, "floor(log2 n) alpha + ceil(log2 n) w", "Thakur et al. 2005",
                   n - 1)


def reduce(n: int, m: float, link: Link) -> Exchange:
    """Binomial tree to one root: ceil(log2 n) (alpha + w + M gamma); exact for n = q, else an upper bound."""
    high = (n - 1).bit_length()
    return _linear(m, link, high, high, high, "ceil(log2 n) (alpha + w + M gamma)", "Thakur et al. 2005",
                   n - 1, "" if n == _power(n)[0] else "upper")


def tree(n: int, m: float, link: Link) -> Exchange:
    """Allreduce as a binomial reduce and a binomial broadcast, one after the other."""
    up, down = reduce(n, m, link), broadcast(n, m, link)
    latency, wire = (up.time.terms[name] + down.time.terms[name] for name in ("latency", "wire"))
    return _priced(latency, wire, up.time.terms.get("reduction", 0.0), "binomial reduce + binomial broadcast",
                   "Thakur et al. 2005", up.total + down.total, bound=up.time.bound)


def double_tree(n: int, m: float, link: Link, chunk: float | None = None) -> Exchange:
    """Two binary trees, each for half the vector, pipelined in chunks, for gamma = 0; an approximation, up to
    a third low.

    Each chunk, by default an eighth of a tree's half, travels up and down ceil(log2 n) levels, and every node
    sends the whole vector up and down once.  Two peers send each half once.
    """
    levels, piece = (n - 1).bit_length(), m / 16 if chunk is None else chunk
    wire = 2 * levels * link.wire(piece) + 2 * link.wire(m) if n > 2 else link.wire(m)
    return _priced(2 * levels * link.latency, wire, 0.0,
                   "2 ceil(log2 n) (alpha + m beta) + 2 w; for n = 2, 2 alpha + w",
                   "Sanders, Speck, Traeff 2009", 2 * (n - 1) * m, "approximation")


def torus(columns: int, rows: int, nbytes: float, link: Link) -> Exchange:
    """2D torus, X columns, Y rows: reduce-scatter in rows, ring allreduce of M/X in columns, allgather."""
    x, y = check_count("columns", columns), check_count("rows", rows)
    n = x * y
    return _linear(nbytes, link, 2 * (x - 1) + 2 * (y - 1), 2 * (x - 1) / x + 2 * (y - 1) / n, (n - 1) / n,
                   "2 (X-1)(alpha + w/X) + 2 (Y-1)(alpha + w/(XY)) + (XY-1)/(XY) M gamma",
                   "Mikami et al. 2018", 2 * (n - 1))


def hierarchical(group: int, hosts: int, nbytes: float, link: Link, inner: Link, chunk: float | None = None,
                 repeated: bool = False) -> Exchange:
    """g ranks per host, m hosts: star to the leader of each host, ring between leaders, star back.

    `inner` is the link inside a host (alpha', beta'), `chunk` the ring's largest chunk.  If it is `repeated`
    after equal times, vectors arrive staggered, since the leader's last answers left one by one.
    """
    g, m = check_count("group", group), check_count("hosts", hosts)
    piece, steps = nbytes / m if chunk is None else chunk, 2 * (m - 1)
    vectors, told = (g * (g > 1), "g") if repeated else (2 * (g - 1), "2 (g-1)")
    return _priced(2 * inner.latency * (g > 1) + steps * link.latency,
                   vectors * inner.wire(nbytes) + steps * link.wire(piece),
                   ((g - 1) * nbytes + (m - 1) * piece) * link.reduction,
                   f"2 alpha' + {told} M beta' + 2 (m-1)(alpha + w/m) + (g-1 + (m-1)/m) M gamma",
                   "definition", 2 * (g * m - 1) * nbytes)


def gather(n: int, m: float, link: Link) -> Exchange:
    """Allgather of messages of m bytes, each peer's to its right neighbour first: alpha + (n-1) m beta."""
    if n == 1:
        return NOTHING
    return _linear(m, link, 1, n - 1, 0, "alpha + (n-1) m beta", "definition", n * (n - 1))


def sparse_gather(n: int, m: float, link: Link, ratio: float) -> Exchange:
    """Allgather of the k = ceil(ratio x parameters) largest of M/4 entries, rotated, of 8 bytes each: a value
    and an index."""
    if not 0 < ratio <= 1:
        raise DomainError(f"ratio {ratio}; the formula assumes a share in (0, 1]")
    if n == 1:
        return NOTHING
    k = math.ceil(ratio * (m // 4) * (1 - 1e-12))  # whatever the product's rounding
    return _linear(8.0 * k, link, 1, n - 1, 0, "alpha + (n-1) 8 k beta, k = ceil(ratio d)",
                   "Lin et al., ICLR 2018", n * (n - 1))


def factors(n: int) -> tuple[int, int]:
    """X >= Y with X Y = n, as nearly square as possible."""
    y = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    return n // y, y


ALLREDUCE: dict[str, Callable[[int, float, Link], Exchange]] = {
    "ring": ring, "recursive-doubling": recursive_doubling, "halving-doubling": halving_doubling,
    "tree": tree, "double-tree": double_tree, "root": root_reduce, "pscpu": pscpu,
}


def allreduce(collective: str, workers: int, nbytes: float, link: Link, *, rings: int | None = None,
              columns: int | None = None) -> Exchange:
    """An allreduce by name: a key of `ALLREDUCE`, "rings" or "torus"."""
    name = collective.replace("_", "-")
    check_count("workers", workers)
    if name == "torus":
        x = int(columns or factors(workers)[0])
        if x < 1 or workers % x:
            raise DomainError(f"{workers} workers in {x} columns; the formula assumes full ones")
        return torus(x, workers // x, nbytes, link)
    if name not in (*ALLREDUCE, "rings"):
        raise DomainError(f"collective {collective!r}; expected one of {', '.join(ALLREDUCE)}, rings, torus")
    if workers == 1:
        return NOTHING
    if name in ("rings", "double-tree") and nbytes * link.reduction:
        raise Uncovered(f"no formula of {name} covers reductions, which its pieces hide in part")
    if name == "rings":
        return several_rings(workers, nbytes, link, rings or 2)
    return ALLREDUCE[name](workers, nbytes, link)


@dataclass(frozen=True)
class Rounds:
    """The pace of a run in rounds, and its end."""

    pace: Estimate  #: seconds of a round, mean over the ranks
    end: Estimate  #: seconds of the run
    steady: bool = True  #: whether the pace is that of the long run
    whole: bool = True  #: whether the run was evaluated to its end
    more: int = 0  #: rounds that the end is without, as long as the last but one


def summary(ends: Values, gradients: Sequence[int], random: bool) -> Rounds:
    """Pace of the first rounds and end, from the times at which rounds ended (replicas, rounds, peers)."""
    mean, seen, first = ends.mean(axis=2), ends.shape[1], gradients[0]
    evaluated = [*gradients[:seen - 1], gradients[-1]]
    equal = next((k for k, h in enumerate(evaluated) if h != first), seen)
    low, unseen = equal // 3, gradients[seen - 1:-1]
    middle, alike = (low + equal) // 2, unseen.count(first)

    def pace(a: int, b: int) -> Values:
        return np.asarray((mean[:, b - 1] - (mean[:, a - 1] if a else 0.0)) / (b - a))

    each = Estimate.of(pace(low, equal))
    steady = random or (low > 0 and math.isclose(float(pace(low, middle)[0]), each.value, rel_tol=1e-9))
    return Rounds(each, Estimate.of(ends[:, -1].max(axis=1)).continued(alike, each), steady,
                  random or not unseen, len(unseen) - alike)


def rounds(times: Sequence[Distribution], gradients: Sequence[int], chunk: float, link: Link,
           updates: Sequence[Distribution | None], *, before: int = 0, after: int = 0) -> Rounds:
    """Rounds of a fixed number of gradients and a ring allreduce, from the max-plus recursion of messages.

    Only one rank sends to an incoming link, so messages cannot overtake each other, and no agenda is needed.
    Let rank i be ready for a step of the ring at t_i, its outgoing and incoming links be free at o_i and e_i,
    a chunk take c seconds on a link and r seconds to add, and alpha be the latency.  Then

        start_i = max(t_i, o_i),   o_i = start_i + c,
        e_i = max(start_{i-1} + alpha, e_i) + c,   t_i = max(t_i, e_i) [+ r]

    2 (n-1) times in an exchange.  A late rank delays only the ranks that wait for it, and early ones send in
    the meantime, so this takes less than E[max T] + exchange, the time of ranks that start together.  Of a
    long run, the first rounds and the last are evaluated.
    """
    n, own = len(times), list(updates)
    most = max(STEPS // max(2 * (n - 1), 1), 12)
    seen = [*gradients[:most - 1], *gradients[most - 1:][-1:]]
    random = not certain(*times, *own)
    replicas = max(4 if n > 500 else 8, min(256, DRAWS // (n * sum(seen) + 1))) if random else 1
    rng = np.random.default_rng(2009)
    ready, outgoing, incoming = (np.zeros((replicas, n)) for _ in range(3))
    ends = np.zeros((replicas, len(seen), n))
    for k, h in enumerate(seen):
        computing = sampled(rng, times, replicas, h).sum(axis=2)
        ready += computing + sampled(rng, own, replicas, h * before).sum(axis=2)
        _exchange(ready, outgoing, incoming, chunk, link)
        ready += sampled(rng, own, replicas, after).sum(axis=2)
        ends[:, k] = ready
    return summary(ends, gradients, random)


def _exchange(ready: Values, outgoing: Values, incoming: Values, chunk: float, link: Link) -> None:
    """One allreduce in all replicas: changes when each rank is ready and its links are free."""
    wire, start, head = link.wire(chunk), np.empty_like(ready), np.empty_like(ready)
    n = ready.shape[1]
    for step in range(2 * (n - 1)):
        np.maximum(ready, outgoing, out=start)
        np.add(start, wire, out=outgoing)
        np.add(start[:, :-1], link.latency, out=head[:, 1:])  # from the previous rank
        np.add(start[:, -1], link.latency, out=head[:, 0])
        np.maximum(head, incoming, out=incoming)
        incoming += wire
        np.maximum(ready, incoming, out=ready)
        if step < n - 1:
            ready += link.reduction * chunk
