"""BSP through parameter servers: the renewal formula against an independent simulation, bounds, link
models."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.distributions import Distribution
from refsgd.theory import DomainError
from refsgd.theory.phenomena import collectives as c
from refsgd.theory.phenomena import iteration
from refsgd.theory.phenomena.collectives import Link
from tests.theory import network


def simulated(draw, n, k, w, alpha, u, steps, colocated=False, rotated=False, half=False):
    """Seconds of a run of `steps` iterations."""
    names = [f"server{j}" for j in range(k)]
    programs = {i: network.worker(i, n, names, w, steps, draw, rotated) for i in range(n)}
    programs.update({s: network.bsp_server(j, n, w / k, steps, u, rotated) for j, s in enumerate(names)})
    host = {s: j % n for j, s in enumerate(names)} if colocated else None
    return max(network.run(programs, alpha, 1.0, host=host, half_duplex=names if half else ()).values())


def drawn(law, n, steps, seed=0):
    times = law.sample(np.random.default_rng(seed), n * steps).reshape(n, steps)
    return lambda i, t: times[i, t]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_fixed_times_are_exact(n, k):
    """To the last digit, from the second iteration, and the whole run: T + 2 alpha + u + (n/K + 1) w."""
    for w, alpha, u in ((0.0, 0.0, 0.0), (0.7, 0.0, 0.0), (0.2, 0.05, 0.03), (3.0, 0.1, 0.0)):
        laws, update = [Distribution.parse("fixed(1)")] * n, Distribution.parse(f"fixed({u})")
        step = iteration.bsp(laws, servers=k, transfer=w, latency=alpha, update=update)
        assert step.kind == "exact"
        assert step.value == pytest.approx(1 + 2 * alpha + u + (n / k + 1) * w if w else 1 + 2 * alpha + u,
                                           rel=1e-12)
        run = [simulated(lambda i, t: 1.0, n, k, w, alpha, u, steps) for steps in (3, 4)]
        assert run[1] - run[0] == pytest.approx(step.value, rel=1e-9)
        _, whole = iteration.bsp_run(laws, 4, servers=k, transfer=w, latency=alpha, update=update)
        assert whole.value == pytest.approx(run[1], rel=1e-9)
        assert sum(step.terms.values()) == pytest.approx(step.value)


def test_the_textbook_formula_is_caught():
    """T + 2 alpha + 2 n w: every worker waits for n pushes and n answers. Believable, and too long from
    step 2 on."""
    n, w = 4, 0.2
    runs = [simulated(lambda i, t: 1.0, n, 1, w, 0.0, 0.0, steps) for steps in (3, 4)]
    assert not math.isclose(runs[1] - runs[0], 1 + 2 * n * w, rel_tol=1e-3)
    # true of the first only
    assert math.isclose(simulated(lambda i, t: 1.0, n, 1, w, 0.0, 0.0, 1), 1 + 2 * n * w)


@pytest.mark.parametrize("text", ["exponential(1)", "uniform(0.5,1.5)", "straggler(1,0.1,5)"])
@pytest.mark.parametrize("n,k", [(4, 1), (3, 2), (2, 5), (6, 3)])
def test_random_times(text, n, k):
    """Mean of 400 simulated iterations within 4.5 standard errors, for any K: the renewal formula."""
    law, steps, w, alpha = Distribution.parse(text), 400, 0.3, 0.02
    step = iteration.bsp([law] * n, servers=k, transfer=w, latency=alpha)
    run = iteration.bsp_run([law] * n, steps, servers=k, transfer=w, latency=alpha)[1].value
    seconds = simulated(drawn(law, n, steps), n, k, w, alpha, 0.0, steps)
    assert step.kind == "numerical"
    # iterations are independent; one differs from E[max] by less than the largest draw's spread
    spread = np.std(np.sort(law.sample(np.random.default_rng(1), 10_000 * n).reshape(-1, n), axis=1)[:, -1])
    assert abs(seconds - run) <= 4.5 * spread * math.sqrt(steps)
    assert step.lower <= step.value * (1 + 1e-3) and step.value <= step.upper * (1 + 1e-3)


def test_no_network_is_the_order_statistic():
    law = Distribution.parse("exponential(2)")
    step = iteration.bsp([law] * 8, servers=3)
    assert step.value == pytest.approx(2 * sum(1 / k for k in range(1, 9)), rel=1e-12)
    assert "standard error" not in step.terms


@pytest.mark.parametrize("n", [2, 3, 6])
def test_colocated(n):
    fixed = [Distribution.parse("fixed(1)")] * n
    for w, alpha in ((0.2, 0.0), (0.3, 0.05)):
        one = iteration.bsp(fixed, transfer=w, latency=alpha, colocated=True)
        runs = [simulated(lambda i, t: 1.0, n, 1, w, alpha, 0.0, steps, colocated=True) for steps in (3, 4)]
        assert one.value == pytest.approx(runs[1] - runs[0], rel=1e-9) == pytest.approx(1 + 2 * alpha + n * w)
        assert iteration.bsp_run(fixed, 4, transfer=w, latency=alpha,
                                 colocated=True)[1].value == pytest.approx(runs[1], rel=1e-9)
        every = iteration.bsp(fixed, servers=n, transfer=w, latency=alpha, colocated=True)
        runs = [simulated(lambda i, t: 1.0, n, n, w, alpha, 0.0, steps, colocated=True, rotated=True)
                for steps in (3, 4)]
        assert every.kind == "exact" and every.value == pytest.approx(runs[1] - runs[0], rel=1e-9)


def test_one_colocated_worker_has_no_network():
    step = iteration.bsp([Distribution.parse("exponential(1)")], transfer=5.0, latency=1.0, colocated=True)
    assert step.value == 1.0


@given(n=st.integers(1, 9), k=st.integers(1, 5), w=st.floats(0, 5), alpha=st.floats(0, 1),
       law=st.sampled_from(["fixed(1)", "exponential(1)", "gamma(1,3)", "straggler(1,0.2,4)"]))
def test_bounds_hold(n, k, w, alpha, law):
    step = iteration.bsp([Distribution.parse(law)] * n, servers=k, transfer=w, latency=alpha)
    slack = 6 * step.terms.get("standard error", 0.0) + 1e-9
    assert step.lower - slack <= step.value <= step.upper + slack
    assert all(v >= 0 for v in step.terms.values())


@pytest.mark.parametrize("n", [2, 4, 7])
@pytest.mark.parametrize("t", [0.1, 1.0, 4.0])
def test_half_duplex(n, t):
    w, alpha = 0.3, 0.02
    step = iteration.bsp([Distribution("fixed", (t,))] * n, transfer=w, latency=alpha, duplex="half")
    runs = [simulated(lambda i, _: t, n, 1, w, alpha, 0.0, steps, half=True) for steps in (20, 21)]
    assert step.kind == "exact" and step.value == pytest.approx(runs[1] - runs[0], rel=1e-9)


@pytest.mark.parametrize("w", [0.1, 0.5])
def test_half_duplex_at_random_times(w):
    """Every answer is on the link before the first push: exact for any law; a link that interleaves them
    would be faster."""
    n, steps, law = 4, 40, Distribution.parse("gamma(1,2)")
    step = iteration.bsp([law] * n, transfer=w, latency=0.02, duplex="half")
    runs = [(simulated(drawn(law, n, steps, seed), n, 1, w, 0.02, 0.0, steps, half=True)
             - simulated(drawn(law, n, steps, seed), n, 1, w, 0.02, 0.0, 1, half=True)) / (steps - 1)
             for seed in range(60)]
    error = math.hypot(np.std(runs) / math.sqrt(59), step.terms["standard error"])
    assert step.kind == "numerical" and abs(np.mean(runs) - step.value) <= 4.5 * error
    full = iteration.bsp([law] * n, transfer=w, latency=0.02).value
    assert full < step.value and (w < 0.3 or abs(np.mean(runs) - full) > 4.5 * error)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_serial(n):
    """With a barrier before computing every iteration is like the first one: T + 2 latency + u + 2 n w."""
    w, alpha = 0.3, 0.02
    assert simulated(lambda i, t: 1.0, n, 1, w, alpha, 0.1, 1) == pytest.approx(1 + 2 * alpha + 0.1 + 2 * n * w,
                                                                                rel=1e-9)


def test_link_models_meet_the_thesis():
    """ResNet-50 (102 MB) on 1 Gbps, batch 32 per node: ceilings 39 and 19.6 images/s; 16 nodes 1.42,
    1.64, 2.19 s."""
    w, b = 102e6 / 125e6, 32
    t = 8.8  # seconds of one batch on one node

    def step(nodes, duplex):
        return iteration.bsp([Distribution("fixed", (t,))] * nodes, transfer=w, duplex=duplex).value

    assert [step(16, "full") / 16, step(16, "half") / 16, (t + 2 * 16 * w) / 16] == pytest.approx(
        [1.42, 1.63, 2.18], abs=0.02)
    assert 1000 * b / step(1000, "full") == pytest.approx(39, rel=0.02)
    assert 1000 * b / step(1000, "half") == pytest.approx(19.6, rel=0.01)


def test_allreduce_sgd():
    link, n = Link(0.01, 1e3), 5
    exchange = c.ring(n, 100, link).time
    fixed = iteration.allreduce([Distribution.parse("fixed(1)")] * n, exchange)
    assert fixed.kind == "exact" and fixed.value == 1 + exchange.value
    steps = 5

    def rank(i, draw):
        for t in range(steps):
            yield ("work", draw(i, t))
            yield from network.ring_allreduce(i, n, 100 / n, tag=f"{t}/")

    def seconds(draw):
        return max(network.run({i: rank(i, draw) for i in range(n)}, 0.01, 1e-3).values())

    assert seconds(lambda i, t: 1.0) == pytest.approx(steps * fixed.value)
    law = Distribution.parse("exponential(1)")
    random = iteration.allreduce([law] * n, exchange)
    runs = [seconds(drawn(law, n, steps, seed)) for seed in range(300)]
    assert random.kind == "approximation"
    assert random.lower * steps <= np.mean(runs) + 4 * np.std(runs) / math.sqrt(300)
    assert np.mean(runs) <= random.value * steps + 4 * np.std(runs) / math.sqrt(300)


@pytest.mark.parametrize("call,assumption", [
    (lambda: iteration.bsp([]), "whole number"),
    (lambda: iteration.bsp([Distribution.parse("fixed(1)")], servers=0), "servers 0"),
    (lambda: iteration.bsp([Distribution.parse("fixed(1)")], transfer=-1.0), "finite time"),
    (lambda: iteration.bsp([Distribution.parse("fixed(1)")], latency=math.nan), "finite time"),
    (lambda: iteration.bsp([Distribution.parse("fixed(1)")], duplex="double"), "expected full, or half"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()
