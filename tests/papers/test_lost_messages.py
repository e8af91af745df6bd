"""Links are reliable here; what the papers' links may lose, and exactly what is then missing.

One chosen message is not delivered.  Where no node waits for it the run continues, and its ledger is short by
what the message carried.  Where somebody does, the run stops there and says so.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.allreduce import dgc
from refsgd.algorithms.averaging import easgd
from refsgd.algorithms.averaging.easgd import Elastic
from refsgd.algorithms.codecs import DGC
from refsgd.algorithms.gossip import adpsgd, gosgd, sgp
from refsgd.algorithms.gossip.gosgd import Share
from refsgd.algorithms.gossip.sgp import Part
from refsgd.algorithms.server import downpour
from refsgd.algorithms.server.downpour import Accrued
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, RunEnded, Send
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.simulator import Simulator, simulate
from tests.ledger import Ledger, object_of, with_bodies
from tests.strategies import machines, seeds

LOST = Mark("lost")  # what a runtime sees instead of the Send


def without(deployment, src, kind, number, lost):
    """The deployment, in which message `number` of class `kind` from `src` never leaves; its body is
    appended to `lost`."""
    count = 0

    def tap(program):
        nonlocal count
        value = None
        while True:
            try:
                effect = program.throw(value) if isinstance(value, RunEnded) else program.send(value)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Send) and isinstance(effect.body, kind):
                count += 1
                if count == number + 1:
                    lost.append(effect.body)
                    effect = LOST
            try:
                value = yield effect
            except RunEnded as error:
                value = error

    node = deployment[src]
    return {**deployment, src: replace(node, main=tap(node.main), handlers=[tap(h) for h in node.handlers])}


def recording(problem):
    """The same problem, and the list of gradients that it has been asked for."""
    computed = []

    def gradient(x, rank, t):
        computed.append(problem.gradient(x, rank, t))
        return computed[-1]

    return Problem(problem.x0, gradient, problem.loss), computed


def until_it_waits_for_ever(deployment, machine, server, part=lambda local: local["shard"].x):
    """Values of the main programs that ended, and the part at which the server stands that still counts
    on a message; `part` finds it among the server's variables."""
    simulator = Simulator(deployment, machine)
    with pytest.raises(Deadlock, match=f"{server} at .* waits for Recv"):
        simulator.run()
    return simulator.values, next(part(w.locals) for w in simulator.where() if w.node == server)


# -- nobody waits for it ---------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, src=st.integers(0, 3), number=st.integers(0, 5))
def test_gosgd_the_weights_are_short_by_the_lost_weight_and_the_weighted_sum_by_its_mass(
    machine, seed, src, number):
    """Push-sum's conservation (Kempe et al. 2003) is of what arrives; checked at every yield, with
    messages in flight."""
    deployment = gosgd.gosgd(quadratic(d=3, workers=4, noise=1.0, dtype=np.float64), 4, 5, SGD(0.25), p=1.0)
    replicas, moved, lost = {name: object_of(node) for name, node in deployment.items()}, np.zeros(3), []

    def check(ledger):
        everything = [(r.x, r.weight) for r in replicas.values()]
        everything += [share for r in replicas.values()
                       for share in r.queue] + [share for _, share in ledger.messages(Share)]
        missing = sum(float(share.weight) for share in lost)
        assert sum(float(weight)
                   for _, weight in everything) == 1 - missing, "weights are short by the lost one"
        mass = sum(float(weight) * x for x, weight in everything)
        assert np.allclose(mass, moved - sum(float(s.weight) * s.x for s in lost), rtol=0,
                           atol=1e-12), "and the sum of a x by its mass"

    def answered(name, effect, value):
        nonlocal moved
        if isinstance(effect, Compute) and effect.kind == "update":
            moved = moved + replicas[name].weight * (value[0] - effect.args[0])

    simulate(Ledger(without(deployment, f"peer{src}", Share, number, lost), check,
                    answered=answered).deployment, machine, seed)
    assert len(lost) == (number < 5), "p = 1: everybody pushes in each of 5 iterations"


@given(machine=machines, src=st.integers(0, 2), number=st.integers(0, 3))
def test_easgd_a_replica_and_the_centre_together_are_short_by_the_lost_force(machine, src, number):
    """Zhang et al. 2015, algorithm 1: x - e and centre + e; the worker has gone back already when its
    force is lost."""
    problem, computed = recording(quadratic(d=3, workers=3, noise=1.0, dtype=np.float64))
    lost = []
    deployment = easgd.easgd(problem, 3, 8, SGD(0.25), period=2, alpha=0.25)
    replicas, center = until_it_waits_for_ever(without(deployment, f"worker{src}", Elastic, number, lost),
                                               machine, "server0", lambda local: local["center"].x)
    total = sum(replicas.values()) + center
    assert np.allclose(total, 4 * problem.x0 - 0.25 * sum(computed) - lost[0].force, rtol=0, atol=1e-12)


@given(machine=machines, src=st.integers(0, 2), number=st.integers(0, 2), push_every=st.sampled_from([1, 3]))
def test_downpour_the_server_is_short_by_the_lost_window(machine, src, number, push_every):
    """Dean et al. 2012, section 4.1 tolerate it: the parameters lack lr times the gradients of that
    window, and nothing else."""
    problem, computed = recording(integer_gradients(d=3, workers=3))
    lost = []
    deployment = downpour.downpour(problem, 3, 6, SGD(0.25), push_every=push_every)
    _, x = until_it_waits_for_ever(without(deployment, f"worker{src}", Accrued, number, lost), machine,
                                   "server0")
    windows = {1: [1, 1, 1], 3: [1, 3, 2]}
    assert len(lost[0].versions) == windows[push_every][
        number], "1, push_every, ... gradients, and what is left of 6"
    assert np.array_equal(x, problem.x0 - np.float32(0.25) * (sum(computed) - lost[0].grad))


def test_a_ledger_that_misses_nothing_is_not_believed():
    """WRONG: the prediction without the lost window; the test above would notice."""
    problem, computed = recording(integer_gradients(d=3, workers=3))
    lost = []
    deployment = without(downpour.downpour(problem, 3, 6, SGD(0.25)), "worker0", Accrued, 2, lost)
    _, x = until_it_waits_for_ever(deployment, Machine(compute="fixed(1)"), "server0")
    assert np.any(lost[0].grad) and not np.array_equal(x, problem.x0 - np.float32(0.25) * sum(computed))


# -- a receiver that waits, and then takes it for empty ----------------------------------------------------------


def emptied(deployment, src, number, lost, empty, to=None):
    """The deployment, where message `number` of `src` (to one receiver) arrives without contents: lost,
    and given up after a while."""
    count = 0

    def change(name, receiver, body):
        nonlocal count
        if name != src or receiver != (to or receiver):
            return body
        count += 1
        if count != number + 1:
            return body
        lost.append(body)
        return empty(body)

    return with_bodies(deployment, change)


@given(src=st.integers(0, 3), number=st.integers(0, 9), seed=st.integers(0, 99))
def test_sgp_models_stay_a_weighted_mean_of_models_biased_by_what_was_lost(src, number, seed):
    """Numerator and weight are lost together: z = x / w remains a convex combination, and tends to (sum x
    - x_lost) / (n - w_lost)."""
    starts = np.random.default_rng(seed).standard_normal((4, 3))
    problem = Problem(np.zeros(3), lambda x, rank, t: -starts[rank] * (t == 0), lambda x: 0.0)
    lost = []
    deployment = sgp.sgp(problem, 4, 50, SGD(1.0))
    run = simulate(emptied(deployment, f"peer{src}", number, lost,
                           lambda part: Part(0 * part.x, 0 * part.weight)), observe=10**6)
    for e in run.trace.marks("update"):
        assert np.all(starts.min(axis=0) - 1e-12 <= e.values["x"]) and np.all(
            e.values["x"] <= starts.max(axis=0) + 1e-12), "convex"
    short = (starts.sum(axis=0) - lost[0].x) / (4 - lost[0].weight)
    assert np.allclose(list(run.values.values()), short, rtol=0, atol=1e-9)


def test_sgp_losing_the_numerator_alone_leaves_the_convex_hull():
    """WRONG link: the weight arrives without its numerator; equal models are then no longer a fixed point."""
    problem = Problem(np.zeros(3), lambda x, rank, t: -np.ones(3) * (t == 0), lambda x: 0.0)
    lost = []
    run = simulate(emptied(sgp.sgp(problem, 4, 50, SGD(1.0)), "peer1", 2, lost,
                           lambda part: part._replace(x=0 * part.x)))
    assert np.allclose(list(run.values.values()), (4 - lost[0].x) / 4) and np.any(lost[0].x)


@given(src=st.integers(0, 3), to=st.integers(0, 3), number=st.integers(0, 5), masking=st.booleans())
def test_dgc_a_receiver_lacks_the_lost_entries_for_ever(src, to, number, masking):
    """Lin et al. 2018, algorithm 4: the sender has cleared them; the receiver's replica is off by lr
    times them."""
    gradients = integer_gradients(d=10)
    # whatever x is
    problem = Problem(gradients.x0, lambda x, rank, t: gradients.gradient(0 * x, rank, t), gradients.loss)
    sgd = SGD(0.25, 0.5)
    intact = simulate(dgc.dgc(problem, 4, 6, sgd, ratio=0.2, masking=masking)).values["peer0"]
    lost = []
    deployment = dgc.dgc(problem, 4, 6, sgd, ratio=0.2, masking=masking)
    run = simulate(emptied(deployment, f"peer{src}", number, lost,
                           lambda m: m._replace(message=tuple(field[:0] for field in m.message)), f"peer{to}"))
    assert len(lost) == (src != to)
    for name, x in run.values.items():
        missing = DGC(1.0).decode(lost[0].message, x.size) if lost and name == f"peer{to}" else 0 * x
        assert np.array_equal(x, intact + np.float32(0.25) * missing)


# -- somebody waits for it -------------------------------------------------------------------------------------


@given(machine=machines, number=st.integers(0, 4))
def test_adpsgd_the_sum_of_a_pair_is_off_by_the_half_step_that_only_one_side_made(machine, number):
    """Lian et al. 2018: an average is atomic on both sides; the passive one has moved when its answer is
    lost."""
    g = np.array([[1.0, 0], [0, 8]])
    problem = Problem(np.zeros(2), lambda x, rank, t: g[rank], lambda x: 0.0)
    deployment, lost = adpsgd.adpsgd(problem, 2, 5, SGD(0.25)), []
    passive, active = (object_of(node) for node in deployment.values())
    with pytest.raises(Deadlock, match="peer1 at .* waits for Recv"):
        simulate(without(deployment, "peer0", adpsgd.Answer, number, lost), machine)
    moved = -0.25 * (5 * g[0] + number * g[1])
    assert np.allclose(passive.x + active.x, moved + (active.x - lost[0].x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["bsp", "ssp", "allreduce", "dgc", "sgp", "dpsgd", "adpsgd", "local-sgd"])
def test_where_somebody_waits_for_it_the_run_stops_and_says_who(name):
    """No timeouts: a lost message of a synchronous exchange is found as a deadlock that names the waiting
    program."""
    lost = []
    deployment = CATALOGUE[name](quadratic(d=8, workers=4), 4, 8, SGD(0.1))
    src = next(node for node in deployment if not node.startswith("server"))
    with pytest.raises(Deadlock, match="waits for Recv"):
        simulate(without(deployment, src, object, 1, lost), Machine(compute="fixed(1)"))
    assert len(lost) == 1
