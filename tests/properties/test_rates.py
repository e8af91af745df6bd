"""The learning-rate schedule: every gradient is applied at the rate of the update that its algorithm's
page names."""

from collections import Counter

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import ONE_WORKER
from refsgd.algorithms.sgd import SGD, parse_schedule
from refsgd.collectives.parts import chunks
from refsgd.problems import Problem
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Marked as MarkEvent
from tests.catalogue import having
from tests.properties.coordinates import FREE, HALVING, STAGED, Marked, rank_of
from tests.wrong import wrong_deployment


def of_the_server(run, rank, t, k):
    """Updates of this slice before the one with the gradient."""
    return next(u for u, (_, new) in enumerate(run.updates(k)) if (rank, t) in new)


def of_the_worker(run, rank, t, k):
    """The worker's own iteration."""
    return t


def own_center(run, rank):
    """Number and workers of a worker's data centre."""
    centers = [range(run.workers)[center] for center in chunks(run.workers, 2)]
    found, = [(k, center) for k, center in enumerate(centers) if rank in center]
    return found


def of_the_center(run, rank, t, k):
    """Earlier pushes of the workers in the same data centre, in the order of their server."""
    k, center = own_center(run, rank)
    return [(r, s) for _, new in run.updates(k) for r, s in new if r in center].index((rank, t))


def share_of_the_center(run, rank, t, k):
    """Of the images of all workers in the same data centre in this iteration."""
    return run.images(rank, t) / sum(run.images(i, t) for i in own_center(run, rank)[1])


def whole(run, rank, t, k):
    return 1.0


def one_of_n(run, rank, t, k):
    return 1 / run.workers


def share(run, rank, t, k):
    """Of the images of its update."""
    new = run.updates(k)[of_the_server(run, rank, t, k)][1]
    return run.images(rank, t) / sum(run.images(*g) for g in new)


def share_of_the_step(run, rank, t, k):
    """Of the images of all peers in this iteration."""
    return run.images(rank, t) / sum(run.images(i, t) for i in range(run.workers))


def share_by_staleness(run, rank, t, k):
    mark = run.updates(k)[of_the_server(run, rank, t, k)][0]
    return share(run, rank, t, k) / max(1, mark.values["version"] - dict(mark.values["reads"])[f"worker{rank}"])


def share_of_the_clock_so_far(run, rank, t, k):
    order = [g for _, new in run.updates(k) for g in new if g[1] == t]
    return run.images(rank, t) / sum(run.images(*g) for g in order[:order.index((rank, t)) + 1])


#: algorithm, its options, which update's rate a gradient gets, and its weight in that update (3 workers)
CASES = [
    ("bsp", {}, of_the_server, share),
    ("strads", {"blocks": 1}, of_the_server, share),
    ("bsp", {"aggregation": "sum"}, of_the_server, whole),
    ("asp", {}, of_the_server, whole),
    *[("ssp", {"staleness": s, "refresh": refresh}, of_the_server, whole) for s in (1, 9)
      for refresh in ("fresh", "lazy", "eager")],
    ("downpour", {}, of_the_server, whole),
    ("downpour", {"push_every": 2, "fetch_every": 3}, of_the_server, whole),
    ("downpour", {"adagrad": True}, of_the_server, whole),
    ("backup-workers", {}, of_the_server, share),
    ("softsync", {}, of_the_server, share),
    ("softsync", {"splitting": 3}, of_the_server, whole),
    ("staleness-aware", {}, of_the_server, share_by_staleness),
    ("dc-asgd", {}, of_the_server, whole),
    ("dc-asgd", {"adaptive": True}, of_the_server, whole),
    ("consgd", {"staleness": 1}, of_the_server, one_of_n),
    ("dssp", {"lower": 0, "upper": 2}, of_the_server, whole),
    ("dynsgd", {"staleness": 1}, of_the_worker, share_of_the_clock_so_far),
    ("approximate", {}, of_the_worker, share_of_the_center), ("approximate", {"local": "asp"}, of_the_center, whole),
    ("easgd", {"period": 2}, of_the_worker, whole),
    ("allreduce", {}, of_the_worker, share_of_the_step),
    ("dgc", {}, of_the_worker, share_of_the_step),
    ("dpsgd", {}, of_the_worker, whole),
    ("dpsgd", {"order": "atc"}, of_the_worker, one_of_n),  # in a ring of three all weights are 1/3
    ("sgp", {}, of_the_worker, lambda *_: 1 / 2),
    *[(name, {}, of_the_worker, whole)
      for name in ("sequential", "gosgd", "adpsgd", "pair-averaging", "independent", "hogwild")],
    *[(name, {"period": 2}, of_the_worker, whole) for name in ("local-sgd", "post-local", "diloco", "eager-diloco", "noloco")],
    ("streaming-diloco", {"period": 2}, of_the_worker, whole),
]
CASES += [(name, {}, of_the_server, whole) for name in having(lambda facts: facts.served and facts.mean_of is ONE_WORKER)
          if name not in {name for name, *_ in CASES}]


def hold_rates(deploy, options, index, weight, seed=0):
    """The value with which each gradient's coordinate first appears is minus its rate."""
    slices = 2 if deploy.__name__ == "approximate" else 1
    run = Marked(deploy, 1 if deploy.__name__ == "sequential" else 3, slices=slices, seed=seed, **options)
    for k in range(slices):
        first = {}
        for e in run.trace.of(MarkEvent):
            if e.values.get("part", k) == k and "x" in e.values:
                for g in run.contents(e.values["x"]) - first.keys():
                    first[g] = -e.values["x"][run.place(*g)] / (1 + k)
        dropped = Counter(rank_of(e.values["worker"]) for e in run.trace.marks("drop"))
        assert Counter(rank for rank, _ in run.read.keys() - first.keys()) == dropped, (
            "every gradient is applied or dropped")
        for (rank, t), value in first.items():
            expected = 0.5 ** (index(run, rank, t, k)) * weight(run, rank, t, k)
            assert value == pytest.approx(expected,
                                          rel=1e-5), f"gradient {t} of worker {rank} was applied at rate {value}; expected {expected}"


@pytest.mark.parametrize(("every", "factor", "rates"),
                         [(1, 0.5, [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
                          (3, 0.1, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
                                                        (2, 1.0, [1, 1, 1, 1])])
def test_a_step_schedule_multiplies_after_each_so_many_updates(every, factor, rates):
    schedule = SGD(2.0, schedule=parse_schedule(f"step({every},{factor})"))
    assert [schedule.rate(t) for t in range(len(rates))] == pytest.approx([2 * rate for rate in rates])


@pytest.mark.parametrize(("name", "options", "index", "weight"), CASES)
def test_each_gradient_is_applied_at_the_rate_of_its_update(name, options, index, weight):
    for seed in range(3):
        hold_rates(CATALOGUE[name], options, index, weight, seed)


#: those whose velocity sees whole gradients, one after the other
WITH_MOMENTUM = ("sequential", "independent", "bsp", "asp", "ssp", "downpour", "backup-workers", "softsync",
                 "staleness-aware", "dc-asgd", "dssp", "allreduce", "strads")


def hold_momentum(deploy, options, index, weight):
    """A gradient moves its coordinate at each later update too, by what the velocity has of it; what
    decays is the coordinate of then."""
    sgd = SGD(1.0, 0.5, 0.25, HALVING)
    run = Marked(deploy, 1 if deploy.__name__ == "sequential" else 3, sgd=sgd, **options)
    for rank, t in run.read.keys() - {(rank_of(e.values["worker"]), e.values["t"])
                                      for e in run.trace.marks("drop")}:
        node, = {"server0", f"worker{rank}", f"peer{rank}"} & run.trace.updates.keys()
        first, x, v = index(run, rank, t, 0), 0.0, 0.0
        for u in range(first, run.trace.updates[node]):
            v = 0.5 * v + weight(run, rank, t, 0) * (u == first) + 0.25 * x
            x -= sgd.rate(u) * v
        assert run.run.values[node][run.place(rank, t)] == pytest.approx(x, rel=1e-4)


@pytest.mark.parametrize(("name", "options", "index", "weight"),
                         [case for case in CASES if case[0] in WITH_MOMENTUM and "adagrad" not in case[1]])
def test_velocity_and_decay_act_at_each_update(name, options, index, weight):
    hold_momentum(CATALOGUE[name], options, index, weight)


def hold_own_steps(deploy, index, **options):
    """A copy that is never refreshed contains the worker's own gradients at the rates that its page
    states."""
    run = Marked(deploy, steps=6, **options)
    for (rank, t), (x, _) in run.read.items():
        assert run.contents(x) == {(rank, s) for s in range(t)}
        assert [-x[run.place(rank, s)] for s in range(t)] == [0.5 ** (index(s)) for s in range(t)]


def test_own_steps_on_a_cache_have_the_rate_that_the_server_has_when_all_have_come_so_far():
    hold_own_steps(CATALOGUE["ssp"], lambda t: 3 * t, staleness=float("inf"), refresh="lazy")
    for push_every in (1, 2, 4):
        hold_own_steps(CATALOGUE["downpour"], lambda t: 3 * -(-t // push_every), push_every=push_every,
                       fetch_every=9)


def hold_pipeline_rates(deploy):
    steps = 5
    problem = Problem(np.zeros(3 * steps, np.float32),
                      lambda x, rank, t: np.tile(np.eye(steps, dtype=np.float32)[t], 3), lambda x: 0.0)
    for stage in simulate(deploy(problem, 3, steps, SGD(1.0, schedule=HALVING)), FREE).values.values():
        assert np.array_equal(stage.x, [-0.5 ** (t) for t in range(steps)])


@pytest.mark.parametrize("name", STAGED)
def test_a_stage_counts_its_updates(name):
    hold_pipeline_rates(CATALOGUE[name])


# -- wrong programs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("bsp", "ordered], shard.version", "ordered], 0"),  # stuck
    ("bsp", "ordered], shard.version", "ordered], shard.version + 1"),  # early
    ("asp", "push.grad, self.version", "push.grad, max(0, self.version - 1)"),  # late
    ("ssp", "yield from shard.apply(w, message)\n            clock[w] += 1\n            waiting",  # by the worker's clock
     "yield from shard.update([(w, message)], lambda sgd, x, v, g: sgd.step(x, v, g, clock[w]), message.grad)\n"
     "            clock[w] += 1\n            waiting"),
    ("downpour", "message.grad,\n                                                     shard.version", "message.grad, 0"),
    ("approximate", "push in pushes], self.own)", "push in pushes], self.version)"),
    ("dynsgd", "message.grad, share, c)", "message.grad, share, shard.version)"),
    ("allreduce", "replica.apply(g, t)", "replica.apply(g, t + 1)"),
    ("dgc", "replica.apply(g, t)", "replica.apply(g, 0)"),
    *[("sequential", "sgd.step, x, v, g, t,", f"sgd.step, x, v, g, {t},")
      for t in ("0", "t + 1", "max(0, t - 1)")],
    ("independent", "self.v, g, t,", "self.v, g, t + 1,"),
    ("pair-averaging", "replica.apply(g, t)", "replica.apply(g, 2 * t)"),  # counts averages too
    ("hogwild", "-sgd.rate(t)", "-sgd.rate(3 * t)"),  # by everybody's updates
    ("easgd", "nesterov, sgd, x, v, z, g, t,", "nesterov, sgd, x, v, z, g, t // period,"),
])
def test_a_wrong_schedule_is_caught(name, right, wrong):
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    with pytest.raises(AssertionError, match="was applied at rate"):
        for n, options, index, weight in CASES:
            if n == name:
                hold_rates(deploy, options, index, weight)


def test_wrong_rates_of_own_steps_are_caught():
    for rate in ("0", "c", "(c + 1) * workers"):
        with pytest.raises(AssertionError):
            hold_own_steps(wrong_deployment(CATALOGUE["ssp"], "sgd.rate(c * workers)", f"sgd.rate({rate})"),
                           lambda t: 3 * t,
                           staleness=float("inf"), refresh="lazy")
    for rate in ("t", "workers * (t // push_every)"):
        with pytest.raises(AssertionError):
            hold_own_steps(wrong_deployment(CATALOGUE["downpour"], "sgd.rate(workers * -(-t // push_every))",
                                            f"sgd.rate({rate})"),
                           lambda t: 3 * -(-t // 2), push_every=2, fetch_every=9)


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("asp", "self.sgd, self.x, self.state, *given", "self.sgd, self.x, self.x, *given"),
    ("bsp", "self.x, self.state = yield", "self.x, _ = yield"),
    ("independent", "self.x, self.v = yield", "self.x, _ = yield"),
])
def test_a_wrong_velocity_is_caught(name, right, wrong):
    with pytest.raises(AssertionError):
        for n, options, index, weight in CASES:
            if n == name:
                hold_momentum(wrong_deployment(CATALOGUE[name], right, wrong), options, index, weight)


@pytest.mark.parametrize(("name", "right", "wrong"),
                         [("gpipe", "self.step(g, t)", "self.step(g, 0)"),
                          ("pipedream", "self.step(g, t)", "self.step(g, read)")])
def test_a_wrong_schedule_of_a_stage_is_caught(name, right, wrong):
    with pytest.raises(AssertionError):
        hold_pipeline_rates(wrong_deployment(CATALOGUE[name], right, wrong))
