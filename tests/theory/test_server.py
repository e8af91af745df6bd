"""The asynchronous server: saturation reached by fixed times, mean-value analysis within 8 %, exact
queues."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.distributions import Distribution
from refsgd.theory import DomainError
from refsgd.theory.phenomena import iteration
from tests.theory import network


def simulated(draw, n, k, w, alpha, steps, update=lambda: 0.0):
    """Seconds per iteration of ASP on links: n / total rate, from 20 % of the run to the first end."""
    marks = {i: [] for i in range(n)}

    def worker(i):
        for t in range(steps):
            yield ("work", draw(i, t))
            marks[i].append(None)
            for s in names:
                yield ("send", s, w / k, t)
            for s in names:
                yield ("recv", network.from_(s))

    names = [f"server{j}" for j in range(k)]
    programs = {i: worker(i) for i in range(n)}
    programs.update({s: network.asp_server(n * steps, w / k, update) for s in names})
    ends = network.run(programs, alpha, 1.0)
    return [ends[i] for i in range(n)]


def drawn(law, n, steps, seed=0):
    times = law.sample(np.random.default_rng(seed), n * steps).reshape(n, steps)
    return lambda i, t: times[i, t]


@pytest.mark.parametrize("n", [1, 2, 4, 7])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("w,alpha,u", [(0.1, 0.02, 0.0), (0.6, 0.0, 0.0), (0.05, 0.1, 0.4), (2.0, 0.1, 0.05)])
def test_fixed_times_reach_the_bound(n, k, w, alpha, u):
    step = iteration.asp([Distribution.parse("fixed(1)")] * n, servers=k, transfer=w, latency=alpha,
                      update=Distribution("fixed", (u,)))
    bound = max(1 + 2 * alpha + (1 + 1 / k) * w + u, n * w / k, n * u)  # no round is shorter
    runs = [max(simulated(lambda i, t: 1.0, n, k, w, alpha, steps, lambda: u)) for steps in (12, 16)]
    assert step.kind == "exact" and step.value == pytest.approx((runs[1] - runs[0]) / 4, rel=1e-9)
    assert step.value == pytest.approx(bound)
    assert sum(step.terms.values()) == pytest.approx(step.value)


@pytest.mark.parametrize("text", ["exponential(1)", "uniform(0.5,1.5)", "gamma(1,4)"])
@pytest.mark.parametrize("n,k,w,u", [
    (2, 1, 0.3, 0.0), (4, 1, 0.25, 0.0), (8, 1, 0.1, 0.0), (8, 2, 0.4, 0.0), (6, 1, 0.02, 0.2),
    (8, 1, 0.3, 0.0)])
def test_mean_value_analysis_is_within_8_percent(text, n, k, w, u):
    law, steps = Distribution.parse(text), 500
    step = iteration.asp([law] * n, servers=k, transfer=w, latency=0.02, update=Distribution("fixed", (u,)))
    ends = simulated(drawn(law, n, steps), n, k, w, 0.02, steps, lambda: u)
    seconds = np.mean(ends) / steps  # workers are alike; the last of them end without company
    assert step.value == pytest.approx(seconds, rel=0.08)
    assert step.lower <= seconds * 1.03


def queue(draw, service, n, updates, seed):
    """Updates per second of one first-come server without links."""
    rng = np.random.default_rng(seed)
    heap = [(draw(rng), i) for i in range(n)]
    heapq.heapify(heap)
    free = 0.0
    for _ in range(updates):
        at, i = heapq.heappop(heap)
        free = max(free, at) + service(rng)
        heapq.heappush(heap, (free + draw(rng), i))
    return updates / free


@pytest.mark.parametrize("draw", [lambda r: r.exponential(1), lambda r: 1.0, lambda r: r.uniform(0, 2)])
@pytest.mark.parametrize("n,u", [(1, 0.5), (3, 0.3), (8, 0.2)])
def test_repairman_for_any_law_of_compute_times(draw, n, u):
    x = queue(draw, lambda r: r.exponential(u), n, 30_000, 3)
    # 30,000 correlated updates: 1 % standard error
    assert iteration.repairman(n, 1.0, u) == pytest.approx(x, rel=0.03)


@given(n=st.integers(1, 30), r=st.floats(0.1, 10), d=st.floats(0, 5), cv2=st.floats(0, 4))
def test_mean_value_analysis_obeys_the_bounds(n, r, d, cv2):
    d = min(d, r)
    rate, wait = iteration.mean_value_analysis(n, r, d, cv2)
    assert rate <= n / r * (1 + 1e-9) or cv2 < 1
    assert not d or rate <= 1 / d * (1 + 1e-9)
    assert wait >= d * (1 - 1e-9) or cv2 < 1


def test_limits():
    """n = 1 meets nobody; many workers saturate; negligible service: n / sum 1/R_i."""
    law = Distribution.parse("exponential(1)")
    assert iteration.asp([law], transfer=0.3, latency=0.1).value == pytest.approx(1 + 0.2 + 0.6)
    assert iteration.asp([law] * 200, transfer=0.1).value == pytest.approx(200 * 0.1, rel=1e-6)
    mixed = [law, law.scaled(0.25)]
    assert iteration.asp(mixed, latency=0.1).value == pytest.approx(2 / (1 / 1.2 + 1 / 0.45))
    assert iteration.asp(mixed, latency=0.1).kind == "exact"
    assert iteration.repairman(3, 0.0, 0.5) == 2.0
    assert iteration.repairman(3, 1.0, 1e-9) == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("call,assumption", [
    (lambda: iteration.asp([Distribution.parse("fixed(1)")], latency=-1), "finite time"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()
