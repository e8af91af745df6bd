"""Exchange times against an independent simulation of links, byte ledgers, limits between patterns."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsgd.theory import DomainError
from refsgd.theory.phenomena import collectives as c
from refsgd.theory.phenomena.collectives import Link
from tests.theory import network

CASES = [(latency, byte_time, gamma) for latency in (0.0, 3e-4, 0.02) for byte_time in (1e-6, 1e-7)
         for gamma in (0.0, 1e-7, 2e-6)]
M = 2**9 * 3**2 * 5 * 7.0


def link(latency, byte_time, gamma=0.0):
    return Link(latency, 1 / byte_time, gamma)


def holds(exchange, seconds):
    """Exact to the last digits, bounds never crossed."""
    value = exchange.time.value
    if exchange.time.kind == "exact":
        return math.isclose(value, seconds, rel_tol=1e-9, abs_tol=1e-12)
    side = exchange.time.bound
    return value <= seconds * (1 + 1e-9) if side == "lower" else seconds <= value * (1 + 1e-9)


def last(programs, latency, byte_time, **options):
    return max(network.run(programs, latency, byte_time, **options).values())


@pytest.mark.parametrize("n", range(2, 18))
def test_collectives(n):
    for latency, byte_time, gamma in CASES:
        the = link(latency, byte_time, gamma)
        run = {
            c.ring: {i: network.ring_allreduce(i, n, M / n, gamma) for i in range(n)},
            c.halving_doubling: {i: network.halving_doubling(i, n, M, gamma) for i in range(n)},
            c.recursive_doubling: {i: network.halving_doubling(i, n, M, gamma, halving=False)
                                   for i in range(n)},
            c.broadcast: {i: network.binomial_broadcast(i, n, M) for i in range(n)},
            c.reduce: {i: network.binomial_reduce(i, n, M, gamma) for i in range(n)},
        }
        for formula, programs in run.items():
            assert holds(formula(n, M, the),
                         last(programs, latency, byte_time)), (formula.__name__, latency, byte_time, gamma)


def test_the_wrong_order_of_halving_is_caught():
    """Partners 1, 2, 4 apart: the textbook formula is too low where ranks fold, and the check sees it."""

    def near_first(i, n, size):
        log = n.bit_length() - 1
        extra = n - (1 << log)
        if i < 2 * extra and i % 2 == 0:
            yield from network.sendrecv(i + 1, size, "f", i + 1)
            return
        if i < 2 * extra:
            yield ("recv", network.from_(i - 1))
        rank = i // 2 if i < 2 * extra else i - extra
        part = size
        for down in (True, False):
            for d in range(log) if down else reversed(range(log)):
                part = part / 2 if down else part
                r = rank ^ (1 << d)
                other = 2 * r + 1 if r < extra else r + extra
                yield from network.sendrecv(other, part, f"{down}{d}", other)
                part = part if down else part * 2
        if i < 2 * extra:
            yield ("send", i - 1, size, "f")

    seconds = last({i: near_first(i, 6, M) for i in range(6)}, 1e-4, 1e-6)
    assert not holds(c.halving_doubling(6, M, link(1e-4, 1e-6)), seconds)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_several_rings(n, k):
    def ranks(i):
        # every ring sends its next piece as soon as the last one of its own is in
        for j in range(k):
            yield ("send", (i + 1) % n, M / (k * n), (j, 0))
        for _ in range(k * 2 * (n - 1)):
            _, (j, step) = yield ("recv",)
            if step + 1 < 2 * (n - 1):
                yield ("send", (i + 1) % n, M / (k * n), (j, step + 1))

    for latency, byte_time, _ in CASES:
        seconds = last({i: ranks(i) for i in range(n)}, latency, byte_time)
        assert holds(c.several_rings(n, M, link(latency, byte_time), k), seconds), (latency, byte_time, seconds)


@pytest.mark.parametrize("x,y", [(1, 4), (4, 1), (2, 3), (3, 3), (4, 2)])
def test_torus(x, y):
    def steps(i, step, nodes, size, tag, gamma):
        mine = nodes.index(i)
        for t in range(step):
            yield from network.sendrecv(nodes[(mine + 1) % len(nodes)], size, (tag, t), nodes[mine - 1])
            if gamma:
                yield ("work", gamma * size)

    def rank(i, gamma):
        row = [i // x * x + j for j in range(x)]
        column = [i % x + x * j for j in range(y)]
        yield from steps(i, x - 1, row, M / x, "scatter", gamma)
        yield from steps(i, y - 1, column, M / (x * y), "down", gamma)
        yield from steps(i, y - 1, column, M / (x * y), "up", 0.0)
        yield from steps(i, x - 1, row, M / x, "gather", 0.0)

    for latency, byte_time, gamma in CASES:
        seconds = last({i: rank(i, gamma) for i in range(x * y)}, latency, byte_time)
        assert holds(c.torus(x, y, M, link(latency, byte_time, gamma)), seconds)


@pytest.mark.parametrize("n", [2, 4, 7])
def test_root_and_pscpu(n):
    def root(i, r, size, gamma, tag):
        if i == r:
            for _ in range(n - 1):
                yield ("recv", lambda m: m[1] == tag)
            yield ("work", (n - 1) * size * gamma)
            for j in range(1, n):
                yield ("send", (r + j) % n, size, (tag, "back"))
        else:
            yield ("send", r, size, tag)
            yield ("recv", lambda m: m[1] == (tag, "back"))

    def every(i, gamma):
        for j in range(1, n):
            yield ("send", (i + j) % n, M / n, (i + j) % n)
        for _ in range(n - 1):
            yield ("recv", lambda m: m[1] == i)
        yield ("work", (n - 1) * M / n * gamma)
        for j in range(1, n):
            yield ("send", (i + j) % n, M / n, "back")
        for _ in range(n - 1):
            yield ("recv", lambda m: m[1] == "back")

    for latency, byte_time, gamma in CASES:
        the = link(latency, byte_time, gamma)
        assert holds(c.root_reduce(n, M, the),
                     last({i: root(i, 0, M, gamma, "r") for i in range(n)}, latency, byte_time))
        assert holds(c.pscpu(n, M, the), last({i: every(i, gamma) for i in range(n)}, latency, byte_time))


def test_hierarchical_is_the_sum_of_its_stages():
    out, inn = link(1e-3, 1e-7, 1e-8), link(1e-5, 1e-9, 1e-8)
    whole = c.hierarchical(4, 3, M, out, inn)
    star, between = c.root_reduce(4, M, inn), c.ring(3, M, out)
    assert math.isclose(whole.time.value, star.time.value + between.time.value, rel_tol=1e-12)
    assert whole.total == 2 * 11 * M
    assert math.isclose(c.hierarchical(1, 5, M, out, inn).time.value, c.ring(5, M, out).time.value)
    assert math.isclose(c.hierarchical(5, 1, M, out, inn).time.value, c.root_reduce(5, M, inn).time.value)


def test_double_tree_is_within_a_third():
    """Two binary trees on halves of the vector, pipelined in chunks up and down."""

    def parent_children(n, mirrored):
        """In-order binary tree over n-1 nodes below rank 0's position; `mirrored` shifts ranks by one."""
        tree = {}

        def build(low, high, parent):
            if low > high:
                return
            mid = (low + high + 1) // 2
            tree[mid] = [parent, []]
            if parent is not None:
                tree[parent][1].append(mid)
            build(low, mid - 1, mid)
            build(mid + 1, high, mid)

        build(0, n - 1, None)
        shift = (lambda i: (i + 1) % n) if mirrored else (lambda i: i)
        return {shift(i): (None if p is None else shift(p), [shift(k) for k in ch])
                for i, (p, ch) in tree.items()}

    def rank(i, n, trees, chunks, size):
        got = {}
        downs = 0
        need = 2 * chunks
        for t in (0, 1):
            for q in range(chunks):
                got[t, q] = 0
        sent = set()

        def advance(t, q):
            parent, children = trees[t][i]
            if got[t, q] == len(children) and (t, q) not in sent:
                sent.add((t, q))
                if parent is not None:
                    return [("send", parent, size, ("up", t, q))]
                return [("send", k, size, ("down", t, q)) for k in children] + ["done"]
            return []

        for q in range(chunks):
            for t in (0, 1):
                for effect in advance(t, q):
                    if effect == "done":
                        downs += 1
                    else:
                        yield effect
        while downs < need:
            _, (way, t, q) = yield ("recv",)
            if way == "up":
                got[t, q] += 1
                for effect in advance(t, q):
                    if effect == "done":
                        downs += 1
                    else:
                        yield effect
            else:
                downs += 1
                for k in trees[t][i][1]:
                    yield ("send", k, size, ("down", t, q))

    worst = 0.0
    for n in (4, 8, 16):
        trees = [parent_children(n, False), parent_children(n, True)]
        for latency, chunks in ((1e-4, 64), (1e-3, 32), (0.0, 64)):
            size = M / 2 / chunks
            seconds = last({i: rank(i, n, trees, chunks, size) for i in range(n)}, latency, 1e-6)
            formula = c.double_tree(n, M, link(latency, 1e-6), chunk=size).time.value
            worst = max(worst, abs(formula / seconds - 1))
    assert worst < 0.33, worst


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(0, 10**8), latency=st.floats(0, 0.1),
       bandwidth=st.floats(1e3, 1e12))
def test_ledgers_and_floors(n, m, latency, bandwidth):
    """Every allreduce moves at least 2 (n-1) M in all, and no node is done before the ring's bandwidth
    term."""
    the = Link(latency, bandwidth)
    for name in c.ALLREDUCE:
        e = c.allreduce(name, n, m, the)
        assert e.total >= 2 * (n - 1) * m - 1e-6
        assert e.time.value >= 0 and math.isclose(sum(e.time.terms.values()), e.time.value, rel_tol=1e-9,
                                                  abs_tol=1e-12)
        if n > 1 and e.time.bound != "upper" and name != "double-tree":
            assert e.time.value >= 2 * (n - 1) / n * m / bandwidth * (1 - 1e-9)


def test_limits():
    """One node sends nothing; a torus of one row is a ring; two ranks: ring = halving-doubling."""
    the = link(1e-3, 1e-7, 1e-8)
    for name in c.ALLREDUCE:
        assert c.allreduce(name, 1, M, the).time.value == 0
    assert c.torus(6, 1, M, the).time.value == pytest.approx(c.ring(6, M, the).time.value, rel=1e-12)
    assert c.several_rings(5, M, link(1e-3, 1e-7),
                   1).time.value == pytest.approx(c.ring(5, M, link(1e-3, 1e-7)).time.value, rel=1e-12)
    assert c.halving_doubling(2, M, the).time.value == pytest.approx(c.ring(2, M, the).time.value, rel=1e-12)


def test_sparse_bytes():
    """8 bytes an entry to each other worker: n rho times what a ring sends."""
    rho, n, d = 0.001, 16, 1_000_000
    sent = c.sparse_gather(n, 4 * d, Link(), rho)
    assert sent.total == 8 * 1000 * n * (n - 1)
    assert sent.total / c.ring(n, 4 * d, Link()).total == pytest.approx(n * rho)


@pytest.mark.parametrize("call,assumption", [
    (lambda: c.allreduce("ring", 0, 1, Link()), "whole number"),
    (lambda: c.sparse_gather(2, 40, Link(), 0.0), "share"),
    (lambda: c.allreduce("mystery", 2, 1, Link()), "expected one of"),
    (lambda: c.allreduce("torus", 6, 1, Link(), columns=4), "full ones"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()


def test_random_sizes_never_cross_a_bound():
    rng = random.Random(5)
    for _ in range(60):
        n, m = rng.randint(2, 20), float(rng.choice([64, 4096, 10**5]))
        latency, byte_time, gamma = rng.choice([0, 1e-4, 0.03]), rng.choice([1e-6, 1e-8]), rng.choice(
            [0, 1e-7, 5e-6])
        the = link(latency, byte_time, gamma)
        for formula, halving in ((c.halving_doubling, True), (c.recursive_doubling, False)):
            programs = {i: network.halving_doubling(i, n, m, gamma, halving) for i in range(n)}
            assert holds(formula(n, m, the), last(programs, latency, byte_time)), (n, m, the, halving)
