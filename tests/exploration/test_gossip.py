"""Every schedule of small cases of the algorithms in which replicas meet: what holds in all, and what
some break."""

import numpy as np
import pytest

from refsgd.algorithms.averaging import diloco, local_sgd
from refsgd.algorithms.gossip import adpsgd, dpsgd, gosgd, pair_averaging, sgp
from refsgd.algorithms.gossip.adpsgd import Answer
from refsgd.algorithms.gossip.gosgd import Share
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Recv, Send
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import Counterexample, explore, walk
from refsgd.runtimes.world import Stuck
from tests.marks import mostly_slow
from tests.papers.test_adpsgd import odd_cycle


def constant(workers):
    """Worker i's gradient is the unit vector -i at any x, so the sum of all replicas counts the gradients
    of each."""
    return Problem(np.zeros(workers), lambda x, rank, t: -np.eye(workers)[rank], lambda x: 0.0)


def counts(run):
    return sum(replica.x for replica in run.values.values())


# -- AD-PSGD ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers, steps, graph",
                         mostly_slow([(2, 1, "ring"), (2, 2, "ring"), (3, 1, "bipartite"), (3, 1, "star")],
                                     (2, 1, "ring"), (2, 2, "ring"), (3, 1, "star")))
def test_adpsgd_ends_and_keeps_the_mean_in_every_schedule(workers, steps, graph):
    """Lian et al. 2018, section 3: on a bipartite graph no waiting goes in circles, and no gradient is
    lost."""
    def every_gradient_once(run):
        assert np.array_equal(counts(run), np.full(workers, steps))

    report = explore(lambda: adpsgd.adpsgd(constant(workers), workers, steps, SGD(1.0), graph=graph),
                     every_gradient_once,
                     observe=lambda run: tuple(e.kind for e in run.trace.events if e.node == "peer0"
                                                      and e.kind in ("compute", "send")))
    assert report.complete
    assert len(report.finals) > 1, "the passive peer is averaged before, during and after its gradient"


def late_respond(replica):
    """WRONG: answers first and writes the average into its own replica afterwards; there is a yield in
    between."""
    while True:
        i, ask = yield Recv(adpsgd.Ask)
        average = (replica.x + ask.x) / 2
        yield Send(i, Answer(average))
        replica.x = average


def test_an_average_that_is_split_by_a_yield_loses_a_gradient(monkeypatch):
    monkeypatch.setattr(adpsgd, "respond", late_respond)

    def every_gradient_once(run):
        assert np.array_equal(counts(run), [1, 1]), f"counted {counts(run)}"

    with pytest.raises(Counterexample, match="counted") as found:
        explore(lambda: adpsgd.adpsgd(constant(2), 2, 1, SGD(1.0)), every_gradient_once)
    assert len(found.value.schedule) <= 8, "and the schedule is short enough to be read"


def test_the_symmetric_variant_deadlocks_on_an_odd_cycle_and_the_schedule_is_printed():
    with pytest.raises(Counterexample, match="deadlock") as found:
        explore(odd_cycle)
    assert isinstance(found.value.error, Stuck)
    assert all(f"peer{i}" in found.value.text for i in range(3)) and "Ask" in found.value.text
    assert str(found.value.error).count("waits for Recv(Answer") >= 2


# -- GoSGD and pair averaging ----------------------------------------------------------------------------------


def all_weight_is_back(run):
    assert sum(r.weight for r in run.values.values()) == pytest.approx(1.0), "weight is missing"
    assert not any(r.queue for r in run.values.values())


@pytest.mark.slow
def test_gosgd_loses_no_weight_in_any_schedule():
    assert explore(lambda: gosgd.gosgd(constant(2), 2, 1, SGD(1.0), p=0.5), all_weight_is_back).complete


@pytest.mark.parametrize("workers, steps", [(2, 3), (3, 2)])
def test_gosgd_loses_no_weight_in_random_schedules(workers, steps):
    """Two programs on each node make too many schedules for all of them."""
    walk(lambda: gosgd.gosgd(constant(workers), workers, steps, SGD(1.0), p=0.7), all_weight_is_back,
         runs=300)


def test_gosgd_without_the_final_merge_loses_weight_in_some_schedule(monkeypatch):
    def listen(replica):
        while True:
            _, share = yield Recv(Share)
            replica.queue.append(share)

    monkeypatch.setattr(gosgd, "listen", listen)
    with pytest.raises(Counterexample, match="weight is missing"):
        explore(lambda: gosgd.gosgd(constant(2), 2, 2, SGD(1.0), p=1.0), all_weight_is_back)


@pytest.mark.slow
@pytest.mark.parametrize("workers, steps", [(2, 2), (3, 2)])
def test_pair_averaging_ends_in_random_schedules_and_its_mean_depends_on_them(workers, steps):
    sums = set()

    def every_peer_ends(run):
        assert len(run.values) == workers
        sums.add(tuple(sum(run.values.values())))

    walk(lambda: pair_averaging.pair_averaging(constant(workers), workers, steps, SGD(1.0)), every_peer_ends,
         runs=300)
    assert len(sums) > 1


# -- the synchronous ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers, steps", [(2, 2), (3, 2)])
@pytest.mark.parametrize("deploy", [local_sgd.local_sgd, diloco.diloco, dpsgd.dpsgd, sgp.sgp])
def test_a_synchronous_algorithm_has_one_result(deploy, workers, steps):
    problem = quadratic(d=4, workers=workers, noise=1.0)
    report = explore(lambda: deploy(problem, workers, steps, SGD(0.1, 0.9)),
                     observe=lambda run: parameters_sha256(final_parameters(run)))
    assert report.complete and len(report.finals) == 1


def test_exploring_knows_that_channels_are_first_in_first_out():
    """D-PSGD's messages carry no round number; on a ring of three a fast neighbour can be a round ahead."""
    problem = integer_gradients(workers=3)
    report = explore(lambda: dpsgd.dpsgd(problem, 3, 3, SGD(0.25), order="atc"),
                     observe=lambda run: parameters_sha256(final_parameters(run)))
    assert report.complete and len(report.finals) == 1
