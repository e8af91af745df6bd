"""Overlap, pipelines, stability, gossip, memory, backup workers, periodic
exchanges."""

import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.theory import DomainError, predict
from refsgd.theory.phenomena import collectives as c
from refsgd.theory.phenomena import (
    fastest,
    gossip,
    iteration,
    memory,
    pipeline,
    staleness,
)
from refsgd.theory.phenomena.collectives import Link
from refsgd.theory.phenomena.layerwise import first_come

times = st.lists(st.floats(0.01, 5), min_size=1, max_size=7)


def arrivals(forward, backward, exchange):
    """First-come order by the recurrence of its definition."""
    now = free = 0.0
    arrived = {}
    for k in reversed(range(len(forward))):
        now += backward[k]
        free = max(now, free) + exchange[k]
        arrived[k] = free
    end = 0.0
    for k in range(len(forward)):
        end = max(end, arrived[k]) + forward[k]
    return end


@given(data=st.data(), b=times)
def test_overlap(data, b):
    f = data.draw(st.lists(st.floats(0.01, 5), min_size=len(b), max_size=len(b)))
    x = data.draw(st.lists(st.floats(0, 8), min_size=len(b), max_size=len(b)))
    first, computing = first_come(sum(f), b, x), sum(f) + sum(b)
    assert first == pytest.approx(arrivals(f, b, x), rel=1e-9)
    assert max(computing + x[0], sum(f) + sum(x)) - 1e-9 <= first <= computing + sum(x) + 1e-9
    layers = range(len(b))
    assert first == pytest.approx(sum(f) + max(sum(b[k:]) + sum(x[: k + 1]) for k in layers))


def test_the_wrong_overlap_is_caught():
    """Sending layer 1 first (as if gradients came in forward order) is not what the link sees."""
    f, b, x = [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 0.5, 0.5]
    assert first_come(3, b, x) == pytest.approx(arrivals(f, b, x)) == 3 + 6 + 3
    assert first_come(3, b, x[::-1]) != pytest.approx(arrivals(f, b, x))


@pytest.mark.parametrize("m,k", [(1, 1), (1, 4), (4, 4), (16, 4)])
def test_pipeline_bubble(m, k):
    """A grid of k stages and m micro-batches, one slot each."""
    end = {}
    for j in range(m):
        for stage in range(k):
            end[j, stage] = max(end.get((j - 1, stage), 0), end.get((j, stage - 1), 0)) + 1
    total = end[m - 1, k - 1]
    assert pipeline.bubble(m, k).value == pytest.approx(1 - m / total)


@pytest.mark.parametrize("tau", [0, 1, 2, 5, 20])
def test_constant_delay(tau):
    """Roots of z^(tau+1) - z^tau + lr a, just below and just above the limit."""
    limit = staleness.constant_delay(tau).value
    for factor, stable in ((0.999, True), (1.001, False)):
        polynomial = [1.0, -1.0, *[0.0] * tau]
        polynomial[-1] += factor * limit
        assert (np.max(np.abs(np.roots(polynomial))) < 1) == stable


def consensus(x):
    return np.mean((x - x.mean()) ** 2)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_random_pairs_by_enumeration(n):
    """All pairs on one vector: the factor holds for every x, not only on average."""
    x = np.random.default_rng(n).normal(size=n)
    both = []
    for i, j in itertools.permutations(range(n), 2):
        y = x.copy()
        y[i] = y[j] = (x[i] + x[j]) / 2
        both.append(consensus(y))
    assert np.mean(both) / consensus(x) == pytest.approx(gossip.pair(n).value)


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_mixing(n):
    w = sum(np.roll(np.eye(n), k, axis=1) for k in (-1, 0, 1)) / 3
    p = gossip.mixing(w)
    assert p.value == pytest.approx(gossip.ring_mixing(n).value, abs=1e-12)
    x = np.random.default_rng(0).normal(size=n)
    deviation = np.linalg.norm(w @ x - x.mean())
    assert deviation <= p.value * np.linalg.norm(x - x.mean()) + 1e-12


def test_neighbours_lie_between_alone_and_all():
    law, n = Distribution.parse("exponential(1)"), 6
    ring = [[[(i - 1) % n, (i + 1) % n] for i in range(n)]]
    every = [[[j for j in range(n) if j != i] for i in range(n)]]
    slow = gossip.neighbours([law] * n, every, 0.0)
    assert slow.pace.value == pytest.approx(sum(1 / k for k in range(1, n + 1)), abs=5 * slow.pace.error)
    assert 1 < gossip.neighbours([law] * n, ring, 0.0).pace.value < slow.pace.value
    assert gossip.neighbours([Distribution.parse("fixed(1)")] * n, ring, 0.25).pace.value == pytest.approx(1.25)


def test_the_last_of_those_that_gather_does_not_wait():
    """Two that hear each other, exponential times: a round is E max(T_1, T_2) + a, less what of a the
    later one needs not wait for."""
    law, latency = Distribution.parse("exponential(1)"), 0.1
    run = gossip.neighbours([law] * 2, [[[1], [0]]], latency)
    assert run.pace.value < 1.5 + latency - 5 * run.pace.error and run.pace.value > 1.5 + 5 * run.pace.error


def test_links_of_neighbours():
    """Two peers on fixed times: T + latency + w a round; with three that all hear all, in rotation, T +
    latency + 2 w; to the lowest first, later."""
    law, pair, three = Distribution.parse("fixed(1)"), [[[1], [0]]], [[[1, 2], [0, 2], [0, 1]]]
    for steps in (1, 7, 1000):
        run = gossip.neighbours([law] * 2, pair, 0.25, 0.1, steps=steps)
        assert run.pace.value == pytest.approx(1.35) and run.end.value == pytest.approx(
            1.35 * steps) and run.pace.error == 0
    assert gossip.neighbours([law] * 2, pair, 0.25, 0.1, before=True).pace.value == pytest.approx(1.0)
    assert gossip.neighbours([law] * 3, three, 0.25, 0.1, rotated=True).pace.value == pytest.approx(1.45)
    assert gossip.neighbours([law] * 3, three, 0.25, 0.1, steps=1).end.value == pytest.approx(1.55)


def test_memory():
    p = memory.worker(1000, 50.0, 8, optimiser="momentum", buffers=4000)
    assert p.value == 4000 * 4 + 400 and p.binding in ("parameters", "gradient")
    assert memory.worker(1000, 50.0, 8, forward_only=True).value == 4000
    assert memory.server(1000, 4, workers=8, collects=True, optimiser="momentum").value == 1000 * 2 + 8 * 1000


def backups_by_heap(law, n, k, rounds, seed, cancel=False):
    """Seconds per round; late workers finish their gradient before they start on the new model."""
    rng = np.random.default_rng(seed)
    heap = [(law.sample(rng, 1)[0], i, 0) for i in range(n)]
    heapq.heapify(heap)
    now = 0.0
    for t in range(rounds):
        ready = []
        while len(ready) < n - k:
            now, i, started = heapq.heappop(heap)
            if started == t:
                ready.append(i)
            else:
                heapq.heappush(heap, (now + law.sample(rng, 1)[0], i, t))
        if cancel:
            ready += [i for _, i, _ in heap]
            heap = []
        for i in ready:
            heapq.heappush(heap, (now + law.sample(rng, 1)[0], i, t + 1))
    return now / rounds


@pytest.mark.parametrize("text", ["exponential(1)", "uniform(0.5,1.5)", "straggler(1,0.1,5)"])
@pytest.mark.parametrize("n,k", [(3, 1), (6, 2), (4, 0)])
def test_backup_workers(text, n, k):
    law = Distribution.parse(text)
    p = fastest.backup_workers([law] * n, k)
    assert p.value == pytest.approx(backups_by_heap(law, n, k, 6000, 1), rel=0.03)
    assert p.lower * (1 - 1e-9) <= p.value <= p.upper * (1 + 5e-3)
    cancelled = fastest.backup_workers([law] * n, k, cancelled=True)
    assert cancelled.value == pytest.approx(backups_by_heap(law, n, k, 6000, 2, cancel=True), rel=0.03)


def test_backup_recursion_is_not_the_order_statistic():
    """The believable formula, E[T_(N:n)], is too short where late workers finish."""
    assert fastest.of_step(5, 0)[0] == pytest.approx(sum(1 / k for k in range(1, 6)))
    assert fastest.of_step(4, 2)[0] > 1.1 * fastest.backup_workers([Distribution.parse("exponential(1)")] * 6, 2,
                                                                    cancelled=True).value


def test_local_sgd():
    law, n, h = Distribution.parse("exponential(1)"), 4, 5
    quiet = c.ring(n, 0, Link()).time
    draws = law.sample(np.random.default_rng(0), 40_000 * n * h).reshape(-1, n, h).sum(axis=2).max(axis=1) / h
    assert iteration.allreduce([law] * n, quiet, period=h).value == pytest.approx(draws.mean(), rel=0.01)
    loud = c.ring(n, 100, Link(0.1, 1e3)).time
    fixed = iteration.allreduce([Distribution.parse("fixed(1)")] * n, loud, period=h)
    assert fixed.kind == "exact" and fixed.value == pytest.approx(1 + loud.value / h)
    assert iteration.allreduce([law] * n, quiet).value == pytest.approx(25 / 12)


def test_easgd_and_downpour():
    slow = Machine(compute="fixed(1)", latency=0.1, bandwidth=1e3)

    def step(name, machine, workers, figure="seconds_per_iteration", **options):
        return predict(name, machine, workers=workers, nbytes=200, steps=200, options=options)[figure]

    assert step("easgd", slow, 1, period=4).value == pytest.approx(1 + (0.2 + 0.2) / 4)
    # saturated: n w per exchange
    saturated = step("easgd", slow.with_(bandwidth=100), 4, "seconds", period=1)
    assert saturated.value / 200 == pytest.approx(8.0, rel=0.02)
    quiet = slow.with_(bandwidth=math.inf)
    assert step("downpour", quiet, 4, fetch_every=2).value == pytest.approx(1 + 0.2 / 2)
    assert step("downpour", quiet, 4).kind == "exact"


@pytest.mark.parametrize("call,assumption", [
    (lambda: pipeline.bubble(0, 1), "whole number"),
    (lambda: staleness.constant_delay(-1), "at least 0"),
    (lambda: gossip.pair(1), "at least 2"),
    (lambda: gossip.mixing(np.eye(2) * 2), "rows that sum to 1"),
    (lambda: memory.worker(1, -1, 1), "both >= 0"),
    (lambda: memory.server(1, optimiser="magic"), "expected one of"),
    (lambda: fastest.backup_workers([Distribution.parse("fixed(1)")] * 2, 2), "at least one that counts"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()
