"""What is claimed of n-softsync (Gupta, Zhang and Wang, ICDM 2016)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.algorithms.server import asp, bsp, softsync
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, ragged


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), servers=st.integers(1, 3),
       steps=st.integers(0, 6),
       momentum=st.sampled_from([0.0, 0.9]))
def test_as_many_splits_as_workers_is_asp_bit_for_bit(machine, seed, workers, servers, steps, momentum):
    """n = lambda, so c = 1; the same schedule too."""
    problem, sgd = curved(workers=workers), SGD(0.1, momentum, 0.01, StepDecay(3, 0.5))
    soft, plain = (simulate(deployment, machine, seed) for deployment in (
        softsync.softsync(problem, workers, steps, sgd, servers, splitting=workers),
        asp.asp(problem, workers, steps, sgd, servers)))
    assert np.array_equal(final_parameters(soft), final_parameters(plain))
    assert soft.trace.seconds == plain.trace.seconds and soft.trace.staleness == plain.trace.staleness


@pytest.mark.parametrize("machine", [LOCKSTEP, RANDOM])
def test_one_split_is_not_bsp(machine):
    """There is no barrier: staleness is not 0, not even in lockstep, where all but the last push of a
    step are answered before it."""
    soft, sync = (simulate(deploy(curved(), 4, 12, SGD(0.1)), machine)
                  for deploy in (softsync.softsync, bsp.bsp))
    assert not np.array_equal(final_parameters(soft), final_parameters(sync))
    assert soft.trace.updates == sync.trace.updates and max(tau for _, tau in soft.trace.staleness) >= 1


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), split=st.integers(1, 5),
       servers=st.integers(1, 3), steps=st.integers(0, 7))
def test_every_gradient_is_used_once_c_at_a_time(machine, seed, workers, split, servers, steps):
    """version = floor(pushes / c); the last update takes what is left."""
    split = min(split, workers)
    c, problem = workers // split, integer_gradients(d=7, workers=workers)
    trace = simulate(softsync.softsync(problem, workers, steps, SGD(0.25), servers, splitting=split), machine,
                     seed).trace
    total = workers * steps
    for k in range(servers):
        updates = [e for e in trace.marks("update") if e.values["part"] == k]
        assert [len(e.values["reads"]) for e in updates] == [c] * (total // c) + [total % c] * (total % c > 0)
        counts = [w for e in updates for w, _ in e.values["reads"]]
        assert all(counts.count(w) == steps for w in trace.workers)
        order = [[int(w.removeprefix("worker")) for w, _ in e.values["reads"]] for e in updates]
        assert all(ranks == sorted(ranks) for ranks in order), "added in worker order"
    assert min((tau for _, tau in trace.staleness), default=0) >= 0
    assert sum(trace.bytes_sent.values()) == 2 * total * 28 and trace.messages == 2 * total * servers


@pytest.mark.slow
@pytest.mark.parametrize("splitting, c", [(1, 6), (2, 3), (3, 2), (4, 1), (6, 1)])
def test_mean_staleness_is_the_others_pushes_over_c(splitting, c):
    """(n - 1)/c updates, whatever the speeds; the paper measures about `splitting`.  3 % at 12,000 pushes."""
    run = simulate(softsync.softsync(integer_gradients(d=1), 6, 2000, SGD(0.0), splitting=splitting), FREE,
                   observe=1)
    assert np.mean([tau for _, tau in run.trace.staleness]) == pytest.approx(5 / c, rel=0.03)


def test_an_update_is_the_mean_not_the_sum():
    """(1/c) sum of c gradients, so unit gradients move by lr an update."""
    unit = constant(lambda rank, t: 1.0)
    for splitting, c in ((1, 4), (2, 2), (4, 1)):
        assert np.allclose(final(softsync.softsync(unit, 4, 6, SGD(0.5), splitting=splitting)), -0.5 * 24 / c)


def replayed(run, problem, update):
    """The run from its log alone: which gradients, read where, made up each update."""
    versions, clock = [problem.x0], dict.fromkeys(run.trace.workers, 0)
    for e in run.trace.marks("update"):
        pushes = []
        for w, read in e.values["reads"]:
            rank = int(w.removeprefix("worker"))
            pushes.append(Push(problem.gradient(versions[read], rank, clock[w]),
                               problem.images(rank, clock[w]), read))
            clock[w] += 1
        versions.append(update(versions[-1], pushes))
    return versions[-1]


def weighted(x, pushes):
    return bsp.update(SGD(0.1), x, x, pushes, 0, "mean")[0]


def mean_of_means(x, pushes):
    """WRONG: weighs a share of one image like one of three."""
    return x - np.float32(0.1) * np.mean([push.grad for push in pushes], axis=0, dtype=np.float32)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), split=st.integers(1, 5),
       steps=st.integers(0, 6))
def test_a_log_of_who_read_what_replays_to_the_same_bits(machine, seed, workers, split, steps):
    """Also with shares of 0 to 3 images, which weigh by images."""
    problem = ragged(workers)
    run = simulate(softsync.softsync(problem, workers, steps, SGD(0.1), splitting=min(split, workers)),
                   machine, seed)
    assert np.array_equal(final_parameters(run), replayed(run, problem, weighted))


def test_a_mean_of_means_is_caught():
    run = simulate(softsync.softsync(ragged(4), 4, 6, SGD(0.1)), RANDOM)
    assert not np.allclose(final_parameters(run), replayed(run, ragged(4), mean_of_means), rtol=1e-3)


def late_server(x, pushes, sgd, size):
    """WRONG: keeps gradients while fewer than or exactly c are held, so an update has c + 1."""
    v, version, kept = sgd.start(x), 0, []
    for left in reversed(range(pushes)):
        w, push = yield Recv(Push)
        kept.append((w, push))
        if len(kept) > size or not left:
            x, v = yield Compute(bsp.update, sgd, x, v, [push for _, push in kept], version, "mean",
                                 kind="update")
            yield Mark("update", part=0, version=version, reads=tuple((w, push.version) for w, push in kept),
                       x=x)
            version, kept = version + 1, []
        yield Send(w, Model(x, version))
    return x


def test_an_off_by_one_in_the_window_is_caught():
    problem, (ws, ss) = integer_gradients(), names(4, 1)
    wrong = {w: Node(worker(i, ss, problem, 6))
             for i, w in enumerate(ws)} | {"server0": Node(late_server(problem.x0, 24, SGD(0.25), 2), role="server")}
    trace = simulate(wrong, FREE).trace
    assert trace.updates != {"server0": 24 // 2}
    assert np.mean([tau for _, tau in trace.staleness]) < 0.9 * np.mean(
        [tau
         for _, tau in simulate(softsync.softsync(problem, 4, 6, SGD(0.25), splitting=2),
                                FREE).trace.staleness])


@pytest.mark.parametrize("workers", [2, 3])
def test_every_schedule_of_a_small_case(workers):
    problem = ragged(workers)

    def check(run):
        assert [len(e.values["reads"]) for e in run.trace.marks("update")] == [workers] * 2
        assert all(0 <= tau <= 1 for _, tau in run.trace.staleness)
        assert np.array_equal(final_parameters(run), replayed(run, problem, weighted))

    report = explore(lambda: softsync.softsync(problem, workers, 2, SGD(0.1)), check)
    assert report.complete and report.runs > 1


@pytest.mark.parametrize("splitting", [0, 5])
def test_a_wrong_splitting_is_named(splitting):
    with pytest.raises(ValueError, match="expected 1 to 4"):
        softsync.softsync(curved(), 4, 1, SGD(0.1), splitting=splitting)


@pytest.mark.parametrize("algorithm", ["softsync", "staleness-aware"])
@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_after_a_death_the_last_update_takes_what_is_left(algorithm, runtime):
    """15 gradients of three workers and 2 of the dead one, 4 at a time."""
    run = refsgd.run(algorithm, data="quadratic", workers=4, servers=2, steps=5, splitting=1,
                     machine=Machine(compute="fixed(0.02)"), runtime=runtime,
                     faults="kill worker 1 at step 2", on_death="continue")
    for k in range(2):
        assert [len(e.values["reads"]) for e in run.trace.marks("update")
                if e.values["part"] == k] == [4, 4, 4, 4, 1]
    ledger(run)


def test_after_a_death_nothing_is_applied_where_nothing_is_left():
    run = refsgd.run("softsync", data="quadratic", workers=4, steps=4, splitting=2,
                     machine=Machine(compute="fixed(0.02)"),
                     faults="kill worker 1 at step 2", on_death="continue")
    assert [len(e.values["reads"]) for e in run.trace.marks("update")] == [2] * 7
