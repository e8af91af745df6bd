"""Groups of ranks that run one collective, and the checks that every all-reduce must pass."""

import numpy as np

from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node
from refsgd.runtimes.simulator import simulate

SIZES = range(1, 18)


def names(n):
    return [f"peer{i}" for i in range(n)]


def late(rank, program):
    """The program of a rank that first computes for a while, so that the ranks do not start together."""
    yield Compute(abs, rank)
    return (yield from program)


def together(collective, xs, machine=None, seed=0, **options):
    """Run one collective on the vectors `xs`, a rank each, all starting at once."""
    peers = names(len(xs))
    return simulate({p: Node(collective(i, peers, xs[i], **options)) for i, p in enumerate(peers)},
                    machine or Machine(), seed)


def staggered(collective, xs, machine, seed, **options):
    """As `together`, after a gradient on every rank."""
    peers = names(len(xs))
    return simulate({p: Node(late(i, collective(i, peers, xs[i], **options))) for i, p in enumerate(peers)},
                    machine, seed)


def sums(run):
    """What the ranks returned, in rank order."""
    return [run.values[name] for name in run.trace.nodes]


def check_each_part_counts_once(collective, n, d, machine=None, seed=0, **options):
    """Rank i hands in 8^i (or twice that): in base 8 every digit of every element of the sum is the count
    of a rank's part."""
    factor = 1 + np.arange(d) % 2  # neighbours differ, so that a chunk in the wrong place is seen
    xs = [factor * 8.0**i for i in range(n)]
    before = [x.copy() for x in xs]
    run = staggered(collective, xs, machine, seed,
                    **options) if machine else together(collective, xs, **options)
    want = factor * float(sum(8**i for i in range(n)))
    for total in sums(run):
        assert total.shape == (d,) and total.dtype == np.float64
        assert np.array_equal(total, want)
    assert all(np.array_equal(a, b) for a, b in zip(xs, before)), "an input was modified"
    return run


def check_chunks_are_in_place(collective, n, d, **options):
    """Every element differs from every other one."""
    total = n * np.arange(d, dtype=np.float32)
    for got in sums(together(collective, [np.arange(d, dtype=np.float32)] * n, **options)):
        assert np.array_equal(got, total) and got.dtype == np.float32


def check_all_ranks_have_the_same_bits(collective, n, d=50, machine=None, seed=0, **options):
    """float32 numbers of very different sizes, whose sum depends on the order; the same ones for every
    schedule."""
    rng = np.random.default_rng([n, d])
    xs = [(rng.standard_normal(d) * 10.0 ** rng.integers(-4, 5, d)).astype(np.float32) for _ in range(n)]
    run = staggered(collective, xs, machine, seed,
                    **options) if machine else together(collective, xs, **options)
    first = sums(run)[0]
    assert all(np.array_equal(first, other) for other in sums(run)[1:]), "ranks differ"
    exact = np.sum(xs, axis=0, dtype=np.float64)
    scale = np.sum(np.abs(xs), axis=0, dtype=np.float64)
    assert np.all(np.abs(first - exact) <= n * np.finfo(np.float32).eps * scale)
    return first
