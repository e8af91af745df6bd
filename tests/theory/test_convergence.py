"""Expected loss on quadratics: every recursion against the simulator, and against wrong variants of it."""

import io
import itertools
import json
import math
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import RECURSIONS, facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.display.plots import approach_figure
from refsgd.experiment.convergence import approach, course, schedule
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.spectral import spectral, spectrum
from refsgd.runtimes.simulator import simulate
from refsgd.theory.phenomena import convergence
from refsgd.theory.phenomena.convergence import delayed, elastic, exponential, unequal
from refsgd.theory.phenomena.staleness import constant_delay
from refsgd.theory.prediction import Figures
from tests.marks import mostly_slow

SPECTRUM = spectrum(0.05, 1, 6, 0.1)
A, S2, V0 = SPECTRUM.values, SPECTRUM.noise, SPECTRUM.start**2
HALF = np.array([0.125, 0.25, 0.5, 1])  # of half the limit of stability
N = 4
FIXED, RANDOM = Machine(compute="fixed(1)"), Machine(compute="exponential(1)")
ONE_SLOW = RANDOM.with_(speeds=(1, 1, 1, 0.25))


def expected(recursion, rates, updates):
    """The expected loss, (updates, rates), from the first update on."""
    return np.array(list(itertools.islice(convergence.losses(recursion, A, rates, S2, V0), updates + 1)))[1:]


def observed(name, rates, updates, machine=FIXED, seeds=4, copies=400, momentum=0.0, **options):
    """Losses of all copies in simulated runs, (seeds, updates, rates, copies), of the mean of the replicas."""
    out = []
    for seed in range(seeds):
        problem = spectral(SPECTRUM, copies, seed, rates)
        found = simulate(CATALOGUE[name](problem, N, updates, SGD(1.0, momentum), **options), machine, seed,
                         observe=10**6)
        replicas = {}
        for mark in found.trace.marks("update"):
            replicas.setdefault(mark.node, []).append(mark.values["x"])
        means = [np.mean(each, axis=0, dtype=float) for each in zip(*replicas.values(), strict=True)][:updates]
        out.append([(A[:, None] / 2 * x.reshape(len(rates), len(A), copies) ** 2).sum(1) for x in means])
    return np.array(out)


def deviation(seen, wanted, drawn=False):
    """The largest deviation in standard errors, those of copies or, if schedules are drawn, of seeds."""
    seen = seen.mean(3) if drawn else np.concatenate(seen, axis=2)[None].swapaxes(0, 3)[..., 0]
    error = seen.std(0, ddof=1) / np.sqrt(len(seen))
    return np.max(np.abs(seen.mean(0) - wanted) / (error + 1e-6 * wanted))


def limit(recursion, memory=0):
    """The limit of stability."""
    return convergence.best_rate(recursion, A, S2, V0, 0.1, memory=memory)[2]


def mean_of(m, momentum=0.0):
    """SGD with the mean of m gradients."""
    return lambda a, rate, s2, v0: delayed(a, rate, s2 / m, v0, [[[0]]], momentum)


TIMELESS = {
    "bsp": ("bsp", mean_of(N), {}),
    "momentum": ("bsp", mean_of(N, 0.6), {"momentum": 0.6}),
    "backup": ("backup-workers", mean_of(N - 1), {}),
    "local": ("local-sgd", mean_of(N), {"period": 3}),
    "local momentum": ("local-sgd", mean_of(N, 0.6), {"period": 3, "momentum": 0.6}),
    "asp fixed": ("asp", partial(delayed, staleness=[[[N - 1]]]), {}),
    "asp fixed momentum": ("asp", partial(delayed, staleness=[[[N - 1]]], momentum=0.5), {"momentum": 0.5}),
    "easgd": ("easgd", partial(elastic, workers=N, period=2, alpha=0.2),
              {"period": 2, "alpha": 0.2, "mode": "sync"}),
}


@pytest.mark.parametrize("case", TIMELESS)
def test_expected_losses_are_those_of_the_simulator(case):
    name, recursion, options = TIMELESS[case]
    rates, period = limit(recursion) / 2 * HALF, options.get("period", 1) if name == "easgd" else 1
    seen = observed(name, rates, 40, **options)[:, :40 // period]
    assert deviation(seen, expected(recursion, rates, seen.shape[1])) < 4


def test_a_slip_of_one_update_or_of_the_noise_is_noticed():
    """One gradient less in the mean, one update less of staleness, and EASGD whose gradient is taken after
    the exchange, not before it."""
    rates = limit(mean_of(N)) / 2 * HALF
    assert deviation(observed("bsp", rates, 40), expected(mean_of(N - 1), rates, 40)) > 6
    right, wrong = (partial(delayed, staleness=[[[tau]]]) for tau in (N - 1, N - 2))
    rates = limit(right) / 2 * HALF
    assert deviation(observed("asp", rates, 40), expected(wrong, rates, 40)) > 6
    name, right, options = TIMELESS["easgd"]
    rates = limit(right) / 2 * HALF
    assert deviation(observed(name, rates, 40, **options)[:, :20], expected(late, rates, 20)) > 6


def late(a, rate, s2, v0, n=N, period=2, alpha=0.2):
    """EASGD whose replicas first exchange and then take the gradient: moments of centre and mean replica."""
    keep = 1 - rate * a
    cc = cx = xx = v0 + 0 * keep
    while True:
        yield cc
        for force in (alpha, *[0.0] * (period - 1)):
            b = n * force
            cc, cx, xx = ((1 - b) ** 2 * cc + 2 * b * (1 - b) * cx + b * b * xx,
                          force * (1 - b) * cc + ((1 - b) * (1 - force) + b * force) * cx + b * (1 - force) * xx,
                          force**2 * cc + 2 * force * (1 - force) * cx + (1 - force) ** 2 * xx)
            cx, xx = keep * cx, keep**2 * xx + rate**2 * s2 / n


DRAWN = {
    "asp": ("asp", partial(exponential, workers=N), RANDOM, {}),
    "asp, one slow": ("asp", partial(unequal, shares=np.array([1, 1, 1, 0.25]) / 3.25), ONE_SLOW, {}),
    "softsync": ("softsync", partial(exponential, workers=N, collected=N), RANDOM, {}),
    "softsync of 2": ("softsync", partial(exponential, workers=N, collected=2), RANDOM, {"splitting": 2}),
}


def drawn(case, recursion=None, seeds=40):
    """The deviation of random schedules, until no worker has ended."""
    name, right, machine, options = DRAWN[case]
    rates = limit(right) / 2 * HALF
    seen = observed(name, rates, 40, machine, seeds, 1600 // seeds, **options)[:, :30]
    return deviation(seen, expected(recursion or right, rates, seen.shape[1]), drawn=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", DRAWN)
def test_expected_losses_of_exponential_times_are_those_of_the_simulator(case):
    assert drawn(case) < 4


def four_moments(a, rate, s2, v0, n, share=None):
    """A, B, C and D of ASP with equal exponential times; `share` of C' is that of the worker's own update."""
    A = B = C = D = v0 + 0 * rate * a
    share = 1 / n if share is None else share
    while True:
        yield A
        Y = B - rate * a * D
        A = A - 2 * rate * a * B + rate**2 * (a * a * C + s2)
        B, C, D = A / n + (1 - 1 / n) * Y, share * A + (1 - share) * C, 2 / n * Y + (1 - 2 / n) * D


def test_a_worker_that_always_reads_is_noticed():
    """The wrong variant: C' = A', without the 1/n."""
    assert drawn("asp", partial(four_moments, n=N)) < 4 < 6 < drawn("asp", partial(four_moments, n=N, share=1))


def test_special_cases_agree():
    """Softsync of one gradient is ASP, equal shares are equal times, one worker is SGD, whatever computes it."""
    rates = np.array([0.1, 0.4])
    asp = expected(partial(exponential, workers=N), rates, 100)
    for same in (partial(four_moments, n=N), partial(unequal, shares=[1 / N] * N)):
        np.testing.assert_allclose(expected(same, rates, 100), asp, rtol=1e-12)
    alone = expected(mean_of(1), rates, 100)
    for same in (partial(exponential, workers=1), partial(unequal, shares=[1.0]),
                 partial(elastic, workers=1, period=1, alpha=0.0)):
        seen = expected(same, rates, 100)
        if same.func is elastic:  # its centre never moves
            assert np.allclose(seen, A @ V0 / 2)
        else:
            np.testing.assert_allclose(seen, alone, rtol=1e-12)


SLOW = Machine(compute="lognormal(20ms,0.5)", latency="1ms", bandwidth="10MB/s", speeds=(1, 1, 1, 0.25))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), mostly_slow([
    ("asp", {}), ("ssp", {"staleness": 1}), ("downpour", {}), ("softsync", {}), ("asp", {"momentum": 0.5}),
    ("dssp", {"lower": 1, "upper": 2})], ("asp", {}), ("ssp", {"staleness": 1})))
def test_a_schedule_alone_gives_the_expected_loss(name, options):
    """Log-normal times with one slow worker: the staleness in one shape-only run is enough."""
    rates, seen = 0.4 * HALF, []
    for seed in range(4):  # of the noise
        e = prepare(name, spectral(SPECTRUM, 400, seed, rates), lr=1.0, machine=SLOW, steps=128, **options)
        marks = perform(e, "simulator", observe=10**6).trace.marks("update")
        seen.append([(A[:, None] / 2 * mark.values["x"].reshape(len(rates), len(A), -1) ** 2).sum(1)
                     for mark in marks])
    ages = schedule(e, e.seed)
    seen = np.array(seen)[:, :len(ages)]
    recursion = partial(delayed, staleness=[ages], momentum=options.get("momentum", 0.0))
    wrong = partial(recursion, staleness=[[[N - 1] * len(ages[0])]])
    assert deviation(seen, expected(recursion, rates, len(ages))) < 4
    assert deviation(seen, expected(wrong, rates, len(ages))) > 6


def test_a_target_is_interpolated_in_the_logarithm():
    curve = ([np.array([np.exp(-0.3 * k)]) for k in range(50)])
    assert convergence.first(curve, 0.1)[0] == pytest.approx(np.log(10) / 0.3)
    assert convergence.first(iter([np.array([0.05])]), 0.1) == (0.0, 0)
    assert convergence.first([np.array([1.0])] * 3, 0.1)[0] == np.inf


def test_limits_of_stability_are_known_ones():
    assert limit(mean_of(1)) == pytest.approx(2, rel=2e-3)
    assert limit(mean_of(1, 0.5)) == pytest.approx(3, rel=2e-3)
    for tau in (1, 3, 7, 63):
        assert limit(partial(delayed, staleness=[[[tau]]]), tau) == pytest.approx(constant_delay(tau).value, rel=5e-3)


@pytest.mark.parametrize("n", [1, 8, 64, 512])
def test_the_limit_of_many_workers_with_exponential_times_is_known(n):
    """Where c (c - 1) = 2 n for c = n times the rate: too few updates call rates unstable that only oscillate."""
    assert n * limit(partial(exponential, workers=n), n) == pytest.approx((1 + math.sqrt(1 + 8 * n)) / 2, rel=3e-3)


@pytest.mark.parametrize("gradients", [7, 100, 600])
def test_a_schedule_has_whole_updates_of_as_many_gradients_as_are_asked_for(gradients):
    """Also more than the usual schedule has, and not the rest with which the run ends."""
    e = prepare("async-rl", spectral(SPECTRUM, 3, 0), workers=3, steps=4000, machine=FIXED, gradients=gradients)
    found = schedule(e, 0, gradients)
    assert len(found) >= 5 and {len(update) for update in found} == {gradients}


def test_a_rate_that_moves_nothing_yet_is_stable():
    """Of eigenvalues so small that 1 - rate a is 1."""
    a = np.array([1e-12, 1.0])
    assert convergence.best_rate(mean_of(1), a, 0 * a, a**0, 0.6)[2] == pytest.approx(2, rel=2e-3)


@pytest.mark.parametrize(("alpha", "period"), [(0.45, 2), (0.2, 2), (0.45, 4), (0.3, 1), (0.3, 3), (0.0, 2)])
def test_replicas_of_elastic_averaging_part_where_their_distance_grows(alpha, period):
    limit = convergence.parting(alpha, period)

    def grown(h):
        return abs((1 - alpha - h) * (1 - h)**(period - 1))

    assert grown(limit * 0.999) < 1 <= grown(limit * 1.001)


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_slow(["bsp", "asp fixed", "easgd"], "bsp"))
def test_no_rate_of_a_fine_grid_is_better(case):
    recursion = TIMELESS[case][1]
    rate, updates, limit = convergence.best_rate(recursion, A, S2, V0, 0.1)
    arrivals = [convergence.first(convergence.losses(recursion, A, np.array([r]), S2, V0), 0.1)[0]
                for r in np.geomspace(limit / 10, limit, 60)]
    assert updates <= min(arrivals) * 1.001
    assert arrivals[int(np.argmin(arrivals))] < arrivals[0]
    at = convergence.first(convergence.losses(recursion, A, np.array([rate]), S2, V0), 0.1)[0]
    assert at == pytest.approx(updates)


def test_replicas_of_dpsgd_part_before_their_mean_diverges():
    """Its mean stays BSP's up to 2/a, but beyond (1 + smallest eigenvalue of W)/a each replica grows."""
    e = prepare("dpsgd", data="quadratic:0.05,1,6,0.1", steps=120)
    most = course(e).most
    assert most == pytest.approx(2 / 3)
    spread = []
    for rate in (0.9 * most, 1.2 * most):
        trace = perform(replace(e, sgd=SGD(rate)), "simulator").trace
        spread.append(trace.replica_spread[-1][1])
    assert 1e6 * spread[0] < spread[1]


def predicted(name, *flags):
    """The figures of `refsgd predict NAME` with a target."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["predict", name, "--data", "quadratic:0.01,1,8,0.05", "--target", "loss=0.1", "--json", "-",
                     *flags]) == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize("name", mostly_slow(CATALOGUE, "bsp", "ssp", "gosgd", "strads"))
def test_every_algorithm_has_figures_or_a_reason(name):
    found = predicted(name, *(["--mode", "sync"] if name == "easgd" else []))
    kind = facts_of(CATALOGUE[name]).recursion
    known = not isinstance(kind, str) or kind in RECURSIONS  # easgd in its mode sync
    for figure in ("updates_to_target", "best_rate"):
        assert (figure in found) == known and (figure in found["absent"]) != known
    if known:
        assert found["best_rate"]["terms"]["updates at it"] <= found["updates_to_target"]["value"]


def kinds(machine):
    """The kinds of the two figures of ASP."""
    found = Figures()
    approach(prepare("asp", data="quadratic:0.05,1,4,0.1", machine=machine), "loss=0.2", found)
    return [found[figure].kind for figure in ("updates_to_target", "best_rate")]


@pytest.mark.parametrize("price", [{"overhead": 0.1}, {"updating": 1e-4}, {"crowding": (1, 1.5), "hosts": "4x1"},
                                   {"update": 0.1}, {"cores": 1, "hosts": "4x1"}])
def test_exponential_times_are_the_whole_schedule_only_if_nothing_else_takes_time(price):
    e = prepare("asp", data="quadratic:0.05,1,4,0.1", workers=N, machine=RANDOM.with_(hosts="2x2"))
    assert "schedule" not in course(e).formula and course(e).length == np.inf
    assert "simulated schedule" in course(replace(e, machine=RANDOM.with_(**price))).formula


def test_ringmaster_is_asp_only_if_it_drops_nothing():
    """With R = 1 no gradient is stale, as with one worker."""
    one, none, asp, alone = (predicted(*flags, "--compute", "exponential(20ms)")["best_rate"]["value"]
                             for flags in (["ringmaster", "--threshold", "1"], ["ringmaster", "--threshold", "inf"],
                                           ["asp"], ["sequential"]))
    assert one == pytest.approx(alone) and none == asp < 0.9 * alone


def test_a_schedule_ends_when_a_worker_has_pushed_its_last_gradient_even_if_it_was_dropped():
    """Later the other one is alone, and its gradients are fresh."""
    e = prepare("ringmaster", data="quadratic:0.05,1,4,0.1", workers=2, machine=RANDOM, threshold=2)
    assert all((1,) in schedule(e, seed)[-30:] for seed in range(4))


@pytest.mark.slow
def test_a_figure_says_how_it_is_known():
    assert [kinds(m) for m in (RANDOM, ONE_SLOW, FIXED)] == [["exact"] * 2] * 3
    assert kinds(RANDOM.with_(latency=0.1)) == ["simulated"] * 2


@pytest.mark.slow
def test_the_picture_of_an_algorithm_without_a_recursion_has_its_run(tmp_path, capsys):
    picture = tmp_path / "a.png"
    assert main(["predict", "gosgd", "--data", "quadratic:0.01,1,8,0.05", "--target", "loss=0.1", "--steps", "50",
                 "--plot", str(picture)]) == 0
    assert picture.stat().st_size and "only by running it" in capsys.readouterr().out
    e = prepare("bsp", data="quadratic:0.01,1,8,0.05", steps=50)
    found = approach(e, "loss=0.1", e.predictions())
    drawn = approach_figure(found, found.simulated()).axes
    for ax, scale in zip(drawn, (1, found.pace), strict=True):
        points, line = (np.array(each.get_xydata()) for each in ax.lines[:2])
        near = np.interp(points[:, 0], line[:, 0], line[:, 1])
        assert np.all(np.abs(points[:, 1] / near - 1) < (0.1 if scale == 1 else 0.2)) and len(line) == 51


@pytest.mark.parametrize(("flags", "said"), [
    (["--target", "0.1"], "expected loss=V"), (["--target", "validation=0.1"], "expected loss=V"),
    (["--target", "accuracy=0.1"], "must not be tuned on test images"),
    (["--target", "loss=1"], "below that of the start, 1"),
    (["--target", "loss=0.1", "--data", "digits"], "or `refsgd race`"),
    (["--target", "loss=0.1", "--sweep", "workers=1:4"], "expected one of them"),
    (["--plot", "a.png"], "or --target")])
def test_a_target_that_has_no_meaning_is_refused(flags, said, capsys):
    assert main(["predict", "bsp", "--data", "quadratic:0.01,1,8,0.05", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "said"), [
    (["--compress", "topk:0.1"], "compression is not linear"), (["--optimiser", "adam"], "are of SGD"),
    (["--aggregation", "sum"], "aggregation mean"), (["--lr", "3"], "the limit of stability is")])
def test_the_reason_for_a_missing_figure_is_the_true_one(flags, said):
    assert said in predicted("bsp", *flags)["absent"]["updates_to_target"]
