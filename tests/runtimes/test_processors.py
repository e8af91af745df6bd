"""Processor sharing: of k programs that compute on c cores of one host each proceeds at rate min(1, c /
k)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster import cores
from refsgd.cluster.cores import Processors
from refsgd.cluster.machine import Machine
from refsgd.effects import Add, Cell, Compute, Mark, Node, Recv, Send
from refsgd.experiment.run import run
from refsgd.runtimes.simulator import simulate
from refsgd.theory import predict
from refsgd.trace import Computed, Received
from tests.marks import mostly_slow
from tests.paced import as_simulated, slipped


class FirstCome(Processors):
    """A wrong one: a core is taken by one program until it ends."""

    def __init__(self, cores, crowding=()):
        super().__init__(cores, crowding)
        self.free, self.ends = [0.0] * cores, {}

    def begin(self, program, now, work):
        self.free.sort()
        self.free[0] = self.ends[program] = max(now, self.free[0]) + work
        return self.ends[program]

    def due(self, program):
        return self.ends[program]


def ends(jobs, cores, kind=Processors):
    """When each of the jobs (begin, work), in order of their beginnings, ends."""
    host = kind(cores)
    for k, (begin, work) in enumerate(jobs):
        host.begin(k, begin, work)
    return [host.due(k) for k in range(len(jobs))]


def test_two_equal_jobs_on_one_core_end_together():
    assert ends([(0, 1), (0, 1)], 1) == [2, 2]
    assert ends([(0, 1), (0, 1)], 1, FirstCome) == [1, 2]


@pytest.mark.parametrize("begin, work", [(1.0, 0.5), (0.0, 1.0), (2.5, 0.25)])
def test_a_short_job_within_a_long_one(begin, work):
    """It takes twice its work, and the long one is later by just that work."""
    assert ends([(0.0, 4.0), (begin, work)], 1) == [4 + work, begin + 2 * work]
    assert ends([(0.0, 4.0), (begin, work)], 1, FirstCome) != [4 + work, begin + 2 * work]


def test_three_on_two_cores():
    """Each at two thirds until the first has ended, then nobody is slowed down."""
    assert ends([(0, 2), (0, 4), (0, 4)], 2) == [3, 5, 5]
    assert ends([(0, 2), (0, 4)], 2) == [2, 4]


def test_who_has_ended_is_not_moved_by_who_begins_later():
    host = Processors(1)
    host.begin("a", 0.0, 1.0)
    host.begin("b", 5.0, 1.0)
    assert (host.due("a"), host.due("b")) == (1.0, 6.0)
    host.begin("a", 5.5, 1.0)
    assert (host.due("b"), host.due("a")) == (6.5, 7.0)


JOBS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=8)


@given(JOBS, st.integers(1, 3))
def test_no_work_is_lost_and_no_core_rests_while_there_is_any(gaps, cores):
    """On one core busy time is work, whatever the order; on c cores jobs end as in small time slices
    dealt in turn."""
    jobs = [(float(sum(gap for gap, _ in gaps[: k + 1])), float(work)) for k, (_, work) in enumerate(gaps)]
    found = ends(jobs, cores)
    assert found == pytest.approx(sliced(jobs, cores), abs=0.05)
    if cores == 1:
        free = 0.0
        for begin, work in jobs:
            free = max(free, begin) + work
        assert max(found) == pytest.approx(free)


def sliced(jobs, cores, step=1 / 256):
    """The same by time slices: in each all who are there get step * min(1, c / k)."""
    left, end, now = [work for _, work in jobs], [0.0] * len(jobs), 0.0
    while any(left):
        here = [k for k, (begin, _) in enumerate(jobs) if begin <= now and left[k]]
        now += step
        for k in here:
            left[k] = max(0.0, left[k] - step * min(1, cores / len(here)))
            end[k] = end[k] if left[k] else now
    return end


def test_time_slices_catch_first_come_first_served():
    jobs = [(0.0, 4.0), (1.0, 1.0)]
    assert ends(jobs, 1, FirstCome) != pytest.approx(sliced(jobs, 1), abs=0.05)


def test_events_say_when_computing_began_and_ended():
    """One and two seconds of work on one core: the first ends at 2, the second at 3; of equals the one that
    began first continues first."""
    def program(count):
        for _ in range(count):
            yield Compute(abs, 1)

    found = simulate({"worker0": Node(program(1), [program(2)])}, Machine(compute="fixed(1)", cores=1)).trace
    assert [(e.program, e.start, e.time)
            for e in found.of(Computed)] == [(0, 0.0, 2.0), (1, 0.0, 2.0), (1, 2.0, 3.0)]
    assert found.seconds == 2.0  # of the main program


def test_an_addition_to_a_cell_is_computing():
    """As an update beside a gradient on one core: both end later."""
    cell = Cell(np.zeros(2, np.float32), 1)

    def adds():
        yield Add(cell, 0, np.ones(2, np.float32))

    def computes():
        yield Compute(abs, 1)

    found = simulate({"worker0": Node(computes(), [adds()], cells=[cell])},
                     Machine(compute="fixed(1)", update=0.5, cores=1)).trace
    assert [(e.kind, e.time) for e in found.events if e.kind != "return"] == [("add", 1.0), ("compute", 1.5)]


def trace(algorithm, steps, machine, runtime="simulator"):
    """Of three workers with a server beside each."""
    found = run(algorithm, data="quadratic", workers=3, servers=3, steps=steps, machine=machine,
                runtime=runtime, seed=2).trace
    assert found is not None
    return found


@pytest.mark.usefixtures("few_draws")
def test_more_cores_than_programs_change_no_bit():
    def shared(cores):
        machine = Machine(compute="exponential(0.02)", update=0.003, latency=0.001, bandwidth=1e6,
                          colocated=True, cores=cores)
        return trace("asp", 20, machine)

    def seen(found):
        return [(e.time, e.node, e.kind, getattr(e, "start", None)) for e in found.events]

    assert seen(shared(None)) == seen(shared(2)) != seen(shared(1))


class Job(NamedTuple):
    """A customer."""

    x: np.ndarray


def station(customers, servers):
    """Jobs come from another host in intervals of the law of gradients; each takes a program that does an
    update."""
    def source():
        for _ in range(customers):
            yield Compute(abs, 1)
            yield Send("station", Job(np.zeros(1)))

    def serve():
        while True:
            yield Recv(Job)
            yield Compute(abs, 1, kind="update")

    def idle():
        yield Mark("open")

    return {"source": Node(source()), "station": Node(idle(), [serve() for _ in range(servers)])}


def sojourn(law, seed, rho=0.6, customers=3000):
    """Mean seconds in the station, which has one core and gets Poisson arrivals, one a second."""
    found = simulate(station(customers, 60), Machine(compute="exponential(1)", update=law, cores=1),
                     seed).trace
    arrival = [e.arrival for e in found.of(Received, "station")]
    assert all(e.time == e.arrival for e in found.of(Received, "station"))  # a program was free
    done = [e.time for e in found.of(Computed, "station")]
    return (sum(done) - sum(arrival)) / customers


LAWS = ("fixed(0.6)", "exponential(0.6)", "straggler(0.6,0.1,8)")


@pytest.mark.slow
@pytest.mark.parametrize("law", mostly_slow(LAWS, LAWS[0], LAWS[2]))
def test_the_mean_time_in_a_shared_processor_depends_on_the_mean_work_only(law):
    """M/G/1 with processor sharing: E[S] / (1 - rho) for every law (Sakata, Noguchi and Oizumi 1971)."""
    found = [sojourn(law, seed) for seed in range(8)]
    assert abs(np.mean(found) - 0.6 / 0.4) <= 4 * np.std(found, ddof=1) / np.sqrt(len(found))


def test_first_come_first_served_is_not_insensitive(monkeypatch):
    """Pollaczek and Khinchine: 0.6 + E[S^2] / (2 (1 - rho)), which is 1.05 for fixed times."""
    monkeypatch.setattr(cores, "Processors", FirstCome)
    found = [sojourn("fixed(0.6)", seed) for seed in range(8)]
    assert np.mean(found) == pytest.approx(1.05, rel=0.05)
    assert abs(np.mean(found) - 0.6 / 0.4) > 4 * np.std(found, ddof=1) / np.sqrt(len(found))


# Times so long that the 5 ms of a busy machine, in which a sleeper wakes up late, are a small share of a
# step.
SHARED = Machine(compute="lognormal(0.09,0.3)", latency=0.003, update=0.024, colocated=True, cores=1)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("runtime", ["processes", "tcp"])
def test_paced_processes_share_as_the_simulator_does(runtime):
    """Three workers with a server beside each, within 5 % on the same draws; without sharing it would be
    10 % less."""
    def updates(found):
        return np.mean([e.time - e.start for e in found.of(Computed) if e.work == "update"])

    expected = trace("asp", 16, SHARED)
    found = trace("asp", 16, SHARED, runtime)
    slips = slipped(found)
    assert as_simulated(found.seconds, expected.seconds, slips)
    assert as_simulated(updates(found), updates(expected), slips / 16, rel=0.1)
    assert expected.seconds > 1.08 * trace("asp", 16, SHARED.with_(cores=None)).seconds
    assert updates(expected) > 1.4 * 0.024


@pytest.mark.usefixtures("few_draws")
def test_formulas_are_given_where_nobody_shares_and_absent_with_a_reason_elsewhere():
    """Under BSP's barrier a worker waits while the server beside it updates; two servers on one core do
    meet."""
    sizes = {"workers": 3, "nbytes": 100, "steps": 7}
    for name, servers, given_ in (("bsp", 3, True), ("bsp", 4, False), ("asp", 1, False), ("ssp", 3, False),
                                  ("allreduce", 1, True)):
        found = predict(name, SHARED, servers=servers, **sizes)
        assert bool(found) == given_, name
        if not given_:
            assert f"that share 1 core: {name} can only" in found.missing["seconds"]
    # an update makes messages meet on the links of its server, whoever computes: to be simulated
    for free, simulated in ((SHARED.with_(cores=2), True), (SHARED.with_(update=None), False),
                            (SHARED.with_(colocated=False), False)):
        found = predict("asp", free, servers=3, **sizes)
        alone = predict("asp", free.with_(cores=None), servers=3, **sizes)
        assert (found, found.open, found.missing) == (alone, alone.open, alone.missing)
        assert ("seconds" in found.open) == simulated == ("seconds" not in found)


def test_the_formula_of_a_barrier_beside_shared_processors():
    """What `predict` gives for BSP with cores=1 is what the simulator takes, to the last digit."""
    machine = SHARED.with_(compute=Machine("fixed(0.09)").compute)
    predicted = predict("bsp", machine, workers=3, servers=3, nbytes=0, steps=9)["seconds"]
    assert predicted.kind == "exact" and trace("bsp", 9,
                                               machine).seconds == pytest.approx(predicted.value, rel=1e-9)


def test_a_machine_says_its_cores():
    assert "cores 1" in str(SHARED) and Machine.from_json(SHARED.to_json()) == SHARED
    with pytest.raises(ValueError, match="cores 0; expected at least 1"):
        Machine(cores=0)
