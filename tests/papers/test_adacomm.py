"""What is claimed of AdaComm (Wang and Joshi, MLSys 2019)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.averaging import adacomm, local_sgd
from refsgd.algorithms.averaging.adacomm import shorter
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from refsgd.trace import Marked, Sent
from tests.strategies import machines, seeds
from tests.watching import RANDOM, curved, final, ragged
from tests.wrong import wrong_deployment

RULE = SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))
OWN = ("            replica.x = start = start + move\n            since = t + 1\n            if averaged and since < steps:\n"
       "                yield from averaged(since, start)\n")
#: WRONG: the loss of the peer's own replica, as it was before the average
ALONE = OWN.replace("start = start", "start = (mine := replica.x) * 0 + start").replace("since, start", "since, mine")


def periods(run):
    """The rounds of every peer, by their numbers of steps: where it sends between its update and the end of its step."""
    found = {}
    for node in run.trace.workers:
        ends, sent, t = [-1], False, 0
        for e in run.trace.events:
            if e.node == node and isinstance(e, Sent):
                sent = True
            elif e.node == node and isinstance(e, Marked) and e.name == "clock":
                ends, sent, t = ends + [t] * sent, False, t + 1
        found[node] = np.diff(ends).tolist()
    return found


def far(workers=3, dtype=np.float32):
    """A loss that falls from 18 to about 0."""
    q = quadratic(d=4, workers=workers, noise=0.1, dtype=dtype)
    return Problem(q.x0 + dtype(3), q.gradient, q.loss, images=q.images)


# -- limits ----------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 12), period=st.integers(1, 5))
def test_without_adaptation_it_is_local_sgd_bit_for_bit(machine, seed, workers, steps, period):
    problem = ragged(workers)
    ours, theirs = (simulate(d, machine, seed) for d in (
        adacomm.adacomm(problem, workers, steps, RULE, period=period, interval=math.inf),
        local_sgd.local_sgd(problem, workers, steps, RULE, period=period)))
    assert np.array_equal(final_parameters(ours), final_parameters(theirs))
    assert ours.trace.seconds == theirs.trace.seconds


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_with_rounds_of_one_step_it_is_bsp_bit_for_bit(workers):
    problem, sgd = integer_gradients(workers=workers), SGD(0.25, 0.5)
    assert np.array_equal(final(adacomm.adacomm(problem, workers, 8, sgd, period=1)), final(bsp.bsp(problem, workers, 8, sgd)))


# -- the period ------------------------------------------------------------------------------------------------


def by_hand(problem, n, steps, lr, period, interval):
    """x and the periods, from the definition."""
    x, h, rounds, t, start = problem.x0, period, [], 0, problem.loss(problem.x0)
    while t < steps:
        ends = []
        for i in range(n):
            y = x
            for s in range(t, min(t + h, steps)):
                y = y - lr * problem.gradient(y, i, s)
            ends.append(y)
        rounds.append(min(h, steps - t))
        t, x = t + h, x + np.mean([y - x for y in ends], axis=0)
        if len(rounds) % interval == 0:
            wanted = math.ceil(math.sqrt(problem.loss(x) / start) * period)
            h = wanted if wanted < h else max(1, h // 2)
    return x, rounds


@pytest.mark.parametrize(("workers", "period", "interval"), [(3, 7, 1), (2, 9, 2), (4, 16, 3), (3, 5, 2)])
def test_it_is_the_definition(workers, period, interval):
    problem = far(workers, np.float64)
    x, rounds = by_hand(problem, workers, 60, 0.05, period, interval)
    run = simulate(adacomm.adacomm(problem, workers, 60, SGD(0.05), period=period, interval=interval), RANDOM)
    assert periods(run) == dict.fromkeys(run.trace.workers, rounds)
    assert len(set(rounds)) > 1 and np.allclose(final_parameters(run), x, rtol=1e-10)


def check_alike(run):
    """All peers have the same rounds, none of them longer than the one before."""
    rounds, *others = periods(run).values()
    assert all(each == rounds for each in others), "rounds of peers differ"
    assert rounds == sorted(rounds, reverse=True)


@given(machine=machines, seed=seeds, workers=st.integers(2, 4), steps=st.integers(0, 30), interval=st.integers(1, 3))
def test_periods_never_rise_and_are_the_same_at_all_peers(machine, seed, workers, steps, interval):
    """Also where the loss rises: at a rate of 3 a quadratic diverges."""
    for problem, rate in ((ragged(workers), 0.1), (far(workers), 3.0)):
        run = simulate(adacomm.adacomm(problem, workers, steps, SGD(rate), period=6, interval=interval), machine, seed)
        check_alike(run)
        ledger(run)


def apart(rates=(-2, -1)):
    """Peers go towards the minimum at 4, each at its own pace."""
    return Problem(np.zeros(1), lambda x, rank, t: np.full(1, float(rates[rank])), lambda x: float((x[0] - 4) ** 2))


def check_every_schedule(deploy):
    def observe(run):
        check_alike(run)
        assert periods(run)["peer0"] == [3, 2]
    assert explore(lambda: deploy(apart(), 2, 5, SGD(0.5), period=3), observe).complete  # all are alike: each hears from one


def test_every_schedule_of_a_small_case():
    check_every_schedule(adacomm.adacomm)


def test_the_rule_and_its_ends():
    """Periods of a share of the loss; a loss that has not fallen, or is no number, halves the period."""
    assert [shorter(16, 16, left) for left in (1, 0.9, 0.25, 0.01, 1e-12)] == [8, 8, 8, 2, 1]
    assert [shorter(h, 16, 0.5) for h in (16, 12, 5, 1)] == [12, 6, 2, 1]
    for loss in (math.nan, math.inf, 0.0, -1.0):
        flat = Problem(np.zeros(2, np.float32), lambda x, rank, t: x + rank, lambda x, loss=loss: loss)
        assert periods(simulate(adacomm.adacomm(flat, 2, 14, SGD(0.1), period=8)))["peer1"] == [8, 4, 2]


# -- times -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "period", "interval", "bandwidth", "latency"), [
    (2, 16, 1, 100.0, 0.0), (3, 12, 2, 40.0, 0.01), (4, 8, 1, math.inf, 0.3), (5, 16, 1, 1000.0, 0.0), (8, 6, 2, 64.0, 0.1)])
def test_times_and_bytes_of_given_periods(workers, period, interval, bandwidth, latency):
    """Exact at fixed times: a round takes H T + e, and sends 2 (n - 1) M bytes; e is the ring's."""
    machine = Machine(compute="fixed(1)", bandwidth=bandwidth, latency=latency)
    q = quadratic(d=120, workers=workers)
    problem = Problem(q.x0 + np.float32(9), q.gradient, q.loss)
    trace = (run := simulate(adacomm.adacomm(problem, workers, 60, SGD(0.1), period=period, interval=interval), machine)).trace
    rounds = periods(run)["peer0"]
    e = 2 * (workers - 1) * (latency + 480 / workers / bandwidth)
    assert sum(rounds) == 60 and len(set(rounds)) > 2
    assert trace.seconds == pytest.approx(sum(h + e for h in rounds))
    assert sum(trace.bytes_sent.values()) == 2 * (workers - 1) * 480 * len(rounds)
    # what the formulas say before the loss decides, which is all of local SGD
    options = {"period": period, "interval": interval}
    known = predict("adacomm", machine, workers=workers, nbytes=480, steps=period * interval, options=options)
    assert known["seconds"].value == pytest.approx(interval * (period + e)) and known["seconds"].kind == "exact"
    later = predict("adacomm", machine, workers=workers, nbytes=480, steps=60, options=options)
    assert "seconds" not in later and "bytes_sent" not in later and later["updates"].value == 60
    assert trace.clock_gap <= later["clock_gap_max"].value and trace.lead <= later["lead_max"].value


@pytest.mark.parametrize(("rate", "noise", "time"), [(0.1, 1.0, 10.0), (0.01, 4.0, 60.0), (0.05, 0.5, 200.0)])
def test_the_bound_is_least_at_a_period_as_the_root_of_the_loss(rate, noise, time):
    """2 F (T + e/H)/(rate t) + rate L s2/n + rate^2 L^2 s2 (H - 1), with T = L = 1, e = 5."""
    h = np.linspace(1, 700, 700_000)
    for loss in (1.0, 4.0, 9.0):
        bound = 2 * loss * (1 + 5 / h) / (rate * time) + rate**2 * noise * (h - 1)
        best = math.sqrt(2 * loss * 5 / (rate**3 * noise * time))
        assert 1 < best < 700 and h[bound.argmin()] == pytest.approx(best, rel=1e-3)


# -- others, and wrong ones --------------------------------------------------------------------------------------


def test_the_rule_of_paddle_begins_at_the_root_and_rises_again():
    """ceil(sqrt(F/F_0 H_0)), 1 to 16, and never halved."""
    paddle = wrong_deployment(adacomm.adacomm, "found = math.ceil(math.sqrt(left) * first)",
                              "return min(16, max(1, math.ceil(math.sqrt(left * first))))")
    losses = {0: 1.0, 16: 0.25, 18: 0.5, 21: 1.0}
    problem = Problem(np.zeros(1), lambda x, rank, t: -np.ones(1), lambda x: losses.get(round(x[0]), 2.0))  # x counts steps
    assert periods(simulate(paddle(problem, 2, 40, SGD(1.0), period=16)))["peer0"] == [16, 2, 3, 4, 4, 4, 4, 3]
    assert periods(simulate(adacomm.adacomm(problem, 2, 40, SGD(1.0), period=16)))["peer0"][:3] == [16, 8, 4]


def test_a_loss_of_each_peers_own_replica_is_caught():
    """WRONG: peers average different rounds, and at the end one waits for ever."""
    deploy = wrong_deployment(adacomm.adacomm, OWN, ALONE)
    with pytest.raises(Exception, match="deadlock"):
        simulate(deploy(apart(), 2, 40, SGD(0.05), period=8), RANDOM)
    with pytest.raises(Exception, match="deadlock"):
        check_every_schedule(deploy)


@pytest.mark.parametrize(("right", "wrong"), [
    ("math.sqrt(left) * first", "math.sqrt(left) * period"),  # of the current period
    ("found if found < period else max(1, period // 2)", "max(1, found)"),  # no halving
    ("end = t + ", "end = t + 1 + "),
])
def test_a_wrong_rule_is_caught(right, wrong, monkeypatch):
    monkeypatch.setattr(adacomm, "adacomm", wrong_deployment(adacomm.adacomm, right, wrong))
    with pytest.raises(AssertionError):
        test_it_is_the_definition(3, 7, 1)


@pytest.mark.parametrize("options", [{"period": 0}, {"interval": 0}, {"interval": 1.5}, {"interval": math.nan}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        adacomm.adacomm(curved(), 4, 1, SGD(0.1), **options)


def test_a_net_of_sizes_alone_has_no_loss():
    sizes = {"data": "none", "net": "shapes:100", "workers": 2, "steps": 40, "machine": Machine(compute="fixed(1)")}
    with pytest.raises(Usage, match="net shapes:100 has none"):
        refsgd.run("adacomm", **sizes)
    assert refsgd.run("adacomm", **sizes, interval=math.inf).measured["seconds"] == 40
