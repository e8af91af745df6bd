"""SSP: the lumped chain against the full one, the closed form and the process; the bound on staleness is
reached."""

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
from refsgd.theory.phenomena import ssp, staleness
from refsgd.theory.phenomena.stragglers import atoms
from tests.marks import mostly_slow


def gate(law, n, s, clocks, seed, latency=0.0, may_start=lambda clock, slowest, s: clock - slowest <= s):
    """The process itself on a heap: seconds, staleness of each update, largest completed lead."""
    rng = np.random.default_rng(seed)
    completed, read, waiting = [0] * n, [0] * n, set()
    heap = [(law.sample(rng, 1)[0] + latency, i) for i in range(n)]
    heapq.heapify(heap)
    version, ages, lead, now = 0, [], 0, 0.0
    while heap:
        now, i = heapq.heappop(heap)
        ages.append(version - read[i])
        version += 1
        completed[i] += 1
        waiting.add(i)
        lead = max(lead, completed[i] - min(completed))
        for j in sorted(waiting):
            if may_start(completed[j], min(completed), s):
                waiting.discard(j)
                read[j] = version
                if completed[j] < clocks:
                    heapq.heappush(heap, (now + 2 * latency + law.sample(rng, 1)[0], j))
    return now + latency, ages, lead


def full_chain(n, s):
    """Blocked share from the chain on all vectors of leads, not lumped."""
    states = [lags for lags in itertools.product(range(s + 2), repeat=n) if min(lags) == 0]
    index = {x: i for i, x in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    for x in states:
        for i in range(n):
            if x[i] <= s:
                y = list(x)
                y[i] += 1
                y = tuple(v - min(y) for v in y)
                generator[index[y], index[x]] += 1
                generator[index[x], index[x]] -= 1
    generator[-1] = 1
    share = np.linalg.solve(generator, np.eye(len(states))[-1])
    return float(sum(p * sum(v == s + 1 for v in x) for p, x in zip(share, states, strict=True))) / n


@pytest.mark.parametrize("s", [0, 1, 2, 3, 10])
def test_two_workers(s):
    """1/(2s+3), exactly; the throughput 2 (2s+2)/(2s+3)."""
    assert ssp.blocked_share(2, s) == pytest.approx(1 / (2 * s + 3), rel=1e-12)
    assert ssp.chain_size(2, s) == s + 2


@pytest.mark.parametrize("n,s", [(3, 0), (3, 1), (3, 2), (4, 1)])
def test_lumping_changes_nothing(n, s):
    assert ssp.blocked_share(n, s) == pytest.approx(full_chain(n, s), rel=1e-10)


def test_slack_zero_is_a_barrier():
    """Blocked 1 - 1/H_n."""
    for n in (2, 5, 9):
        assert ssp.blocked_share(n, 0) == pytest.approx(1 - 1 / sum(1 / k for k in range(1, n + 1)))


@pytest.mark.parametrize("n,s", [(2, 0), (2, 3), (4, 1), (8, 4)])
def test_the_process_agrees(n, s):
    law, clocks = Distribution.parse("exponential(1)"), 1500
    seconds, _, lead = gate(law, n, s, clocks, 1)
    # 4 standard errors at 1,500 clocks
    assert seconds / clocks == pytest.approx(1 / (1 - ssp.blocked_share(n, s)), rel=0.05)
    assert lead == s + 1


def test_an_off_by_one_gate_is_caught():
    """A gate that says `<` waits too long; the chain and the lead both see it."""
    wrong = gate(Distribution.parse("exponential(1)"), 4, 2, 1500, 1,
                 may_start=lambda clock, slowest, s: clock - slowest < s)
    assert wrong[2] != 3
    assert abs(wrong[0] / 1500 * (1 - ssp.blocked_share(4, 2)) - 1) > 0.05


LAWS, GATES = ["uniform(0.5,1.5)", "exponential(1)", "straggler(1,0.1,6)"], [(3, 1, 0.0), (5, 2, 0.1), (2, 0, 0.3)]


@pytest.mark.parametrize("text,n,s,latency",
                         mostly_slow([(text, *case) for case in GATES for text in LAWS],
                                     *((text, *case) for text, case in zip(LAWS, GATES, strict=True))))
def test_recursion_for_any_law(text, n, s, latency):
    law, clocks = Distribution.parse(text), 300
    path = ssp.gated([law] * n, [2 * latency] * n, s, clocks)
    runs = [gate(law, n, s, clocks, seed, latency) for seed in range(8)]
    mean, error = np.mean([r[0] for r in runs]), np.std([r[0] for r in runs]) / math.sqrt(7)
    assert abs(path.end(clocks).value - mean) <= 4.5 * math.hypot(error, path.excess.error)
    if not atoms(law):  # else updates at one moment have no order
        assert path.staleness.value == pytest.approx(np.mean([np.mean(r[1]) for r in runs]), rel=0.04)


def test_recursion_meets_the_chain():
    law = Distribution.parse("exponential(1)")
    for n, s in ((2, 0), (4, 1), (6, 3)):
        pace = ssp.gated([law] * n, [0.0] * n, s, 600).pace
        assert abs(pace.value - 1 / (1 - ssp.blocked_share(n, s))) <= 4.5 * pace.error


@given(n=st.integers(1, 5), s=st.integers(0, 3), seed=st.integers(0, 10**6), clocks=st.integers(1, 12))
def test_staleness_never_exceeds_its_bound(n, s, seed, clocks):
    _, ages, lead = gate(Distribution.parse("straggler(1,0.4,20)"), n, s, clocks, seed)
    assert max(ages) <= staleness.ssp_bound(n, s, clocks).value
    assert lead <= s + 1


def test_the_bound_on_staleness_is_reached():
    """(2s+1)(n-1); s (n-1), which bounds what a read lacks, is not a bound on the age in updates."""
    for n, s in ((2, 0), (2, 1), (3, 1), (2, 2)):
        oldest = max(max(gate(Distribution.parse("straggler(1,0.4,20)"), n, s, 200, seed)[1]) for seed in range(4))
        assert oldest == staleness.ssp_bound(n, s, 200).value == (2 * s + 1) * (n - 1) > s * (n - 1)


@given(n=st.integers(2, 6), s=st.integers(0, 4))
def test_slack_shortens_the_wait(n, s):
    """Between no bound and the barrier, falling in s and rising in n."""
    here, more = (1 / (1 - ssp.blocked_share(n, slack)) for slack in (s, s + 1))
    harmonic = sum(1 / k for k in range(1, n + 1))
    assert 1 <= more <= here <= harmonic * (1 + 1e-12)
    assert here <= 1 / (1 - ssp.blocked_share(n + 1, s))


def test_limits():
    def step(compute, workers, staleness, **more):
        machine = Machine(compute=compute, latency=0.25, **more)
        return predict("ssp", machine, workers=workers, steps=200,
                       options={"staleness": staleness})["seconds_per_iteration"].value

    assert step("fixed(2)", 5, 0) == 2.5
    assert step("exponential(1)", 1, 0) == step("exponential(1)", 3, math.inf) == 1.5
    assert step("fixed(1)", 2, 2, speeds=(1, 1 / 3)) == pytest.approx(3.5, rel=0.02)  # the slowest's pace


@pytest.mark.parametrize("n,s,steps", [(2, 1, 20_000), (4, 2, 20_000), (4, 2, 400), (3, 0, 5_000), (6, 1, 3_000)])
def test_a_long_run_continues_at_the_pace_of_the_chain(n, s, steps):
    """No draw has a part in the pace of a run whose long run is known: 25,000 s, idle 0.2, for two workers."""
    found = predict("ssp", Machine(compute="exponential(1)"), workers=n, steps=steps, options={"staleness": s})
    pace = 1 / (1 - ssp.blocked_share(n, s))
    run, idle = found["seconds"], found["idle_ratio"]
    assert found["seconds_per_iteration"].value == pytest.approx(pace)
    assert -1e-6 <= run.value - steps * pace + 4 * run.error <= 12 * (s + 2)  # the last worker's lead
    assert run.error < 3e-4 * run.value if steps > 1_000 else run.error < 3e-3 * run.value
    assert idle.value == pytest.approx(1 - steps / run.value)
    if steps == 20_000:
        assert run.value == pytest.approx(steps * pace, rel=1e-3) and idle.value == pytest.approx(1 - 1 / pace, rel=1e-3)


@pytest.mark.parametrize("speeds,latency", [((1, 0.5, 2), 0.0), ((1, 1, 1, 0.9), 0.004), ((2, 1.3), 0.001)])
def test_unequal_fixed_times_go_at_the_pace_of_the_slowest(speeds, latency):
    found = predict("ssp", Machine(compute="fixed(0.02)", speeds=speeds, latency=latency), workers=len(speeds),
                    steps=9_000, options={"staleness": 3})
    slowest = 0.02 / min(speeds) + 2 * latency
    assert found["seconds"].value == pytest.approx(9_000 * slowest) and found["seconds"].kind == "exact"
    assert found["seconds_per_iteration"].value == pytest.approx(slowest) and "staleness_mean" in found.open


def test_domain():
    with pytest.raises(DomainError, match="at least 0"):
        ssp.check_slack(math.nan)
