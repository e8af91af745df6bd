"""What follows from the number of workers follows from those that are left after a death: rates, schedules, limits of
codecs, forces, thresholds, groups."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest

import refsgd
from refsgd.experiment.prepare import Usage, prepare
from refsgd.problems import Problem
from refsgd.trace import Sent

ONES = Problem(np.zeros(1, np.float32), lambda x, rank, t: np.ones(1, np.float32), lambda x: float(x[0]), describe={"batch": 1})
EVEN = refsgd.Machine(compute="fixed(0.01)")
RACKS = EVEN.with_(hosts=[["peer0", "peer1"], ["peer2", "peer3"]])


def moved(name, node, policy, machine=EVEN, dead=(3,), **options):
    """How far gradients of 1 move the parameters, of four workers of which some die in step 5 of 10."""
    run = refsgd.run(name, ONES, workers=4, steps=10, lr=0.125, machine=machine, on_death=policy,
                     faults=[f"kill {node} {rank} at step 5" for rank in dead], **options)
    assert not run.predicted, "formulas know no deaths"
    return -float(run.parameters[0])


@pytest.mark.parametrize(("name", "node", "policy", "options", "expected"), [
    ("bsp", "worker", "shrink", {"scale_lr": True}, 0.125 * (5 * 4 + 5 * 3)),
    ("bsp", "worker", "restart", {"scale_lr": True}, 0.125 * 10 * 4),
    ("allreduce", "peer", "shrink", {"scale_lr": True}, 0.125 * (5 * 4 + 5 * 3)),
    ("local-sgd", "peer", "shrink", {"scale_lr": True, "period": 1}, 0.125 * (5 * 4 + 5 * 3)),
    ("bsp", "worker", "shrink", {}, 0.125 * 10),
    ("bsp", "worker", "shrink", {"aggregation": "sum"}, 0.125 * (5 * 4 + 5 * 3)),
    # the rate of one worker, at first, to that of all after four updates; of three from step 5 on, all of them
    ("bsp", "worker", "shrink", {"scale_lr": True, "warmup": 8},
     0.125 * (sum(1 + 3 * t / 8 for t in range(5)) + sum(1 + 2 * min(t / 8, 1) for t in range(5, 10)))),
    # constant rates 1/n: the updates of a clock move the model by their mean, before and after
    ("consgd", "worker", "continue", {}, 0.125 * 10), ("consgd", "worker", "shrink", {}, 0.125 * 10),
    ("consgd", "worker", "continue", {"staleness": 0, "servers": 1}, 0.125 * 10),
    ("dynsgd", "worker", "continue", {}, 0.125 * 10),
    # a backup for one death, and means of three gradients; after two deaths, means of one
    ("backup-workers", "worker", "shrink", {"scale_lr": True}, 0.125 * 10 * 3),
    ("backup-workers", "worker", "shrink", {"scale_lr": True, "dead": (2, 3)}, 0.125 * (5 * 3 + 5)),
    # a host dies with both of its peers
    ("allreduce", "peer", "shrink", {"collective": "hierarchical", "machine": RACKS, "scale_lr": True}, 0.125 * (5 * 4 + 5 * 2)),
    ("allreduce", "peer", "shrink", {"compress": "fp16", "scale_lr": True}, 0.125 * (5 * 4 + 5 * 3))])
def test_the_movement_after_a_death_is_that_of_the_workers_that_are_left(name, node, policy, options, expected):
    assert moved(name, node, policy, **options) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("runtime", ["processes", "tcp"])
def test_in_processes_as_well(runtime):
    assert moved("bsp", "worker", "shrink", scale_lr=True, runtime=runtime) == pytest.approx(4.375)


def rest(name, done=4, updates=4, **options):
    """The rest after four steps of a run of four workers, with three."""
    return prepare(name, workers=4, steps=10, data="quadratic", lr=0.5, **options).continued(3, done, updates)


@pytest.mark.parametrize(("name", "options", "scale"), [
    ("bsp", {}, 3), ("backup-workers", {}, 2), ("backup-workers", {"backups": 2}, 1), ("softsync", {"splitting": 2}, 1), ("softsync", {}, 3), ("dpsgd", {}, 3),
    ("dynsgd", {}, 3), ("gosgd", {}, 3)])
def test_linear_scaling_is_by_the_gradients_that_are_left(name, options, scale):
    assert rest(name, scale_lr=True, **options).sgd.lr == 0.5 * scale


@pytest.mark.parametrize(("name", "updates", "options", "last"), [
    ("asp", 17, {}, 17 + 3 * 6), ("softsync", 9, {"splitting": 2}, 9 + 3 * 6), ("bsp", 4, {}, 10), ("allreduce", 4, {}, 10),
    ("downpour", 14, {"push_every": 2}, 14 + 3 * (1 + 3)), ("consgd", 16, {}, 16 + 3 * 6)])
def test_a_cosine_ends_with_the_last_update_of_those_that_are_left(name, updates, options, last):
    schedule = rest(name, 4, updates, schedule="cosine", **options).sgd.schedule
    assert [schedule(t) for t in range(4)] == pytest.approx([(1 + math.cos(math.pi * (updates + t) / last)) / 2 for t in range(4)])
    assert schedule(last - updates) == 0 < schedule(last - updates - 1)
    fixed = rest(name, 4, updates, schedule="cosine(50)", **options).sgd.schedule
    assert fixed(0) == pytest.approx((1 + math.cos(math.pi * updates / 50)) / 2)


def test_limits_of_codecs_are_those_of_the_ranks_that_are_left():
    """Sums over three ranks may be larger, and a gradient of each is clipped at clip sqrt(3); sparsity and random
    places count on from the steps before."""
    fp16, dgc = (rest("allreduce", compress=text).problem.exchange.codec for text in ("fp16", "dgc:0.1,clip=3,warmup=2"))
    assert (fp16.rule.ranks, dgc.rule.ranks) == (3, 3)
    g = np.full(1, 20_000, np.float32)  # above 65504 / 4, below 65504 / 3
    assert fp16.decode(fp16.encode(fp16.start(1), g, fp16.key(0, 0))[0], 1) == pytest.approx(20_000, rel=1e-3)
    assert dgc.ready(g, 0 * g) == pytest.approx(3 * math.sqrt(3))
    assert dgc.key(1, 2) == (0, 1, 6, 0)


def locals_of(experiment, node, name):
    return inspect.getgeneratorlocals(experiment.deploy()[node].main)[name]


def test_forces_of_easgd_are_those_of_the_workers_that_are_left():
    """0.9 / n, as in the paper; a given one is kept."""
    assert locals_of(rest("easgd"), "worker0", "alpha") == pytest.approx(0.3)
    assert locals_of(rest("easgd", alpha=0.2), "worker0", "alpha") == 0.2


@pytest.mark.parametrize("kill", [0, None])
def test_iterations_of_gaia_are_those_of_its_living_workers(kill):
    """A change of 0.9 % is kept at 1 %, and sent in the second iteration of whoever is left, where the limit is
    1 % / sqrt(2); an iteration is one update of one worker, or two of two."""
    problem = replace(ONES, x0=np.ones(1, np.float32), gradient=lambda x, rank, t: np.full(1, -0.009 * (t == 0 and rank == 1), np.float32))
    faults = [] if kill is None else [f"kill worker {kill} at step 0"]
    run = refsgd.run("approximate", problem, workers=4, steps=5, lr=1.0, centers=2, threshold=0.01, local="asp", machine=EVEN,
                     faults=faults, on_death="continue")
    sent = [e.nbytes for e in run.trace.of(Sent, "server0") if e.message == "Significant"]
    assert [bool(n) for n in sent] == ([False, True, False, False, False] if faults else [False, False, True] + 7 * [False])


@pytest.mark.parametrize("name", ["consgd", "dynsgd", "gosgd"])
def test_a_rate_for_all_workers_is_refused_where_the_others_would_continue_with_it(name):
    with pytest.raises(Usage, match=f"on_death continue with scale_lr and {name}, whose rate would remain that of 4"):
        refsgd.run(name, data="quadratic", steps=3, scale_lr=True, on_death="continue")
    for right in ("softsync", "backup-workers"):
        refsgd.run(right, data="quadratic", steps=3, scale_lr=True, on_death="continue")
