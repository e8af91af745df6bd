"""Planned faults mean the same in virtual time and among real processes, and every algorithm's outcome is
the stated one."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import struct
import time
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.effects import Mark, Node
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Usage, prepare
from refsgd.experiment.result import final_parameters
from refsgd.problems import quadratic
from refsgd.runtimes import faults
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import Fault, Plan, draw, parse, survives_workers
from refsgd.runtimes.processes.local import run as run_processes
from refsgd.runtimes.processes.reports import Outbox, in_crash_log
from refsgd.runtimes.transports.shared_memory import Rings
from refsgd.trace import Computed, Crashed, Marked, Received, Sent
from refsgd.trace.waiting import waiting_by_cause
from tests.cli.test_mistakes import three_roles
from tests.paced import as_simulated, slipped
from tests.runtimes import outcomes
from tests.runtimes.deployments import exchange

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
LINK = Machine(compute="fixed(0.02)", latency=0.001, bandwidth=1e7)
REAL = ["processes", "tcp"]
WORLDS = ["simulator", "processes", pytest.param("tcp", marks=pytest.mark.slow)]
ROOT = Path(refsgd.__file__).parent.parent

run = partial(refsgd.run, data="quadratic", lr=0.1)


def deployment(**numbers):
    def idle():
        yield Mark("idle")

    return {f"{role}{i}": Node(idle(), role=role) for role, count in numbers.items() for i in range(count)}


# -- the plan ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text",
                         ["kill worker 2 at step 10", "drop peer 0 at step 0",
                          "pause worker 1 at step 5 for 0.5",
                                  "slow server 0 at step 3 by 4", "delay worker 1 at step 2 by 0.2",
                                  "delay worker 1 to server 0 at step 2 by 0.2",
                                  "drop worker 1 to server 0 at step 2"])
def test_a_line_of_a_plan_reads_as_it_is_written(text):
    assert str(Fault.parse(text)) == text
    assert Fault.parse(f"  {text.replace(' 1 ', '1 ').replace(' at ', '   at ')} ") == Fault.parse(text)


@pytest.mark.parametrize("text",
                         ["", "kill at step 3", "kill worker 1", "stop worker 1 at step 2",
                          "kill worker 1 at step 2 for 3",
                                  "pause worker 1 at step 2", "pause worker 1 at step 2 by 3",
                                  "slow worker 1 at step 2 for 3",
                                  "kill worker 1 to server 0 at step 2",
                                  "delay worker 1 to at step 2 by 1",
                                  "kill worker 1 at step -2", "random 3", "random x seed 7"])
def test_a_line_that_is_not_understood_says_what_was_expected(text):
    with pytest.raises(ValueError,
                       match=r"^fault '.*' not understood; expected kill.drop ROLE RANK at step STEP, "
                             r".*random COUNT seed SEED$"):
        parse([text], deployment(worker=1, server=1), 10)


def test_amounts_and_nodes_are_checked():
    with pytest.raises(ValueError, match=r"slow worker1 .*: 0\.5; expected a finite number >= 1$"):
        Fault.parse("slow worker1 at step 0 by 0.5")
    with pytest.raises(ValueError, match="inf; expected a finite number >= 0$"):
        Fault.parse("pause worker 1 at step 3 for 1e999")
    with pytest.raises(ValueError, match="a finite number as amount"):
        parse([Fault("pause", "worker0", 3, float("inf"))], deployment(worker=1), 10)
    with pytest.raises(ValueError, match="there is no server3; expected one of worker0, server0$"):
        parse(["delay worker 0 to server 3 at step 0 by 1"], deployment(worker=1, server=1), 10)
    with pytest.raises(ValueError, match="there is no worker; expected one of worker0$"):
        parse(["kill worker at step 3"], deployment(worker=1), 10)
    for line in ("drop server 0 to worker 0 at step 1", "drop worker 0 to worker 1 at step 1",
                 "drop worker 0 to worker 0 at step 1"):
        with pytest.raises(ValueError,
                           match="if two nodes lose their connection, the worker ends, .* expected that one "
                                 "first"):
            parse([line], deployment(worker=2, server=1), 10)
    with pytest.raises(ValueError, match="one end for each node"):
        parse(["kill worker 0 at step 1", "drop worker 0 at step 2"], deployment(worker=1), 10)


def test_of_two_that_lose_their_connection_both_know_who_ends():
    nodes = {"server0": "server", "worker0": "worker", "worker1": "worker", "server1": "server"}
    for one, other in permutations(nodes, 2):
        assert faults.gives_up(one, other, nodes) == faults.gives_up(other, one, nodes)
    assert [faults.gives_up("worker1", other, nodes)
            for other in ("server0", "server1", "worker0")] == ["worker1"] * 3
    assert faults.gives_up("server0", "server1", nodes) == "server1"


def test_random_faults_leave_somebody_alive_and_depend_on_their_seed_alone():
    nodes = [f"worker{i}" for i in range(3)]
    seen = set()
    for seed in range(50):
        some = draw(6, seed, nodes, 20)
        assert some == draw(6, seed, nodes,
                            20) and len({f.node for f in some if f.kind in ("kill", "drop")}) < 3
        assert all(0 <= f.step < 20 and parse([str(f)], deployment(worker=3), 20) == [f] for f in some)
        seen |= {f.kind for f in some}
    assert seen == set(faults.KINDS)


def test_a_plan_counts_gradients_of_workers_and_updates_of_servers():
    plan = Plan([Fault("kill", "worker0", 1), Fault("slow", "server0", 0, 3.0),
                 Fault("delay", "worker0", 0, 0.5, "server0")], {"worker0": "worker", "server0": "server"})
    assert [bool(plan.begins("worker0", kind))
            for kind in ("gradient", "update", "gradient", "gradient")] == [False, False, True, False]
    assert plan.slower("server0") == 1.0 and plan.begins("server0",
                                                         "update") == [] and plan.slower("server0") == 3.0
    assert plan.late("worker0", "server0", 1.0, 0.2) == 1.5 and plan.late("worker0", "worker1", 1.0, 0.2) == 1.0
    assert plan.late("worker0", "server0", 1.1, 0.2) == 1.7, "as one message after the other leaves"


# -- times ---------------------------------------------------------------------------------------------------

SLOWING = {
    "pause": ["pause worker 1 at step 5 for 0.3"],
    "pause a server": ["pause server 0 at step 5 for 0.3"],
    "slow": ["slow worker 1 at step 5 by 4"],
    "delay": ["delay worker 2 at step 3 by 0.02"],
    "delay of a link": ["delay server 0 to worker 1 at step 3 by 0.03"],
    "all": ["pause worker 0 at step 2 for 0.2", "slow worker 1 at step 5 by 2",
            "delay worker 2 at step 3 by 0.01"],
}


#: "all" pauses, slows and delays workers
QUICK = [("bsp", "processes", "pause a server"), ("bsp", "processes", "delay of a link"),
         ("bsp", "processes", "all"), ("bsp", "tcp", "all")]
COMBINATIONS = [pytest.param(runtime, algorithm, plan, id=f"{runtime}-{algorithm}-{name}",
                             marks=() if (algorithm, runtime, name) in QUICK else pytest.mark.slow)
                for runtime, algorithm, (name, plan) in product(REAL, ["bsp", "ssp"], SLOWING.items())]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("runtime", "algorithm", "plan"), COMBINATIONS)
def test_faults_that_cost_time_cost_as_much_in_processes_as_in_the_simulator(runtime, algorithm, plan):
    """Within the 5 % of the pacing; and each costs more than that, or the test would show nothing."""
    virtual = run(algorithm, steps=15, workers=3, machine=LINK, faults=plan).measured["seconds"]
    found = run(algorithm, steps=15, workers=3, machine=LINK, faults=plan, runtime=runtime).trace
    assert as_simulated(found.seconds, virtual, slipped(found))
    assert virtual > 1.1 * run(algorithm, steps=15, workers=3, machine=LINK).measured["seconds"]


def test_what_a_fault_costs_in_virtual_time_can_be_counted():
    """BSP, 10 steps of 1 s: a pause of 3 s, a worker that is 4 times as slow from step 6 on, messages 0.5
    s late from step 8 on."""
    machine = Machine(compute="fixed(1)")

    def seconds(*plan):
        return run("bsp", steps=10, workers=2, machine=machine, faults=plan).measured["seconds"]

    assert seconds() == 10
    assert seconds("pause worker 1 at step 5 for 3") == 13 == seconds("pause server 0 at step 5 for 3")
    assert seconds("slow worker 1 at step 6 by 4") == 6 + 4 * 4
    assert seconds("delay worker 1 at step 8 by 0.5") == 11 == seconds(
        "delay worker 1 to server 0 at step 8 by 0.5")
    assert seconds("delay worker 1 to worker 0 at step 8 by 0.5") == 10


@pytest.mark.slow
@pytest.mark.alone
def test_an_unpaced_process_is_slowed_and_its_messages_delayed():
    """Where nothing is emulated: computing takes real time, and messages are there at once."""
    took = mmap.mmap(-1, 8 * 20)  # shared with the process: the seconds of each gradient, by its own clock

    def works(x, rank, t):
        began = time.monotonic()
        time.sleep(0.01)
        struct.pack_into("d", took, 8 * t, time.monotonic() - began)
        return x

    def halves(*plan):
        """For the steps before 10 and those from there on: medians of slowness, of a message's seconds, and the
        longest time between two steps.  What a busy machine adds to a step is in the step's own seconds."""
        trace = run_processes(partial(exchange, n=1, steps=20, gradient=works), faults=plan).trace
        computed = [e for e in trace.of(Computed, "worker0") if e.work == "gradient"]
        slowness = [(e.time - e.start) / t for e, t in zip(computed, struct.unpack("20d", took), strict=True)]
        transit = [m.received - m.sent for m in trace.transits if m.src == "worker0"]
        between = np.diff([0.0, *(e.time for e in computed)])
        return [(np.median(slowness[half]), np.median(transit[half]), max(between[half]))
                for half in (slice(10), slice(10, None))]

    for slow, transit, _ in halves():
        assert 1 <= slow < 2 and transit < 0.05
    (before, *_), (after, *_) = halves(Fault("slow", "worker0", 10, 4.0))
    assert before < 2 and 4 <= after < 5
    (_, before, _), (_, after, _) = halves(Fault("delay", "worker0", 10, 0.05))
    assert before < 0.05 <= after
    (*_, before), (*_, after) = halves(Fault("pause", "worker0", 10, 0.8))
    assert before < 0.8 <= after


class Overtaking(Plan):
    """A wrong one: a message that is less late passes one that is more."""

    def late(self, node, to, start, seconds):
        self._left.clear()
        return super().late(node, to, start, seconds)


@pytest.mark.filterwarnings("ignore:real computing overran")
def test_of_a_delay_that_ends_the_messages_keep_their_order(monkeypatch):
    def parameters(*plan, runtime="simulator"):
        return run("dpsgd", steps=10, workers=4, machine=LINK, faults=plan, runtime=runtime).parameters_sha256

    plan = ["delay peer 1 at step 2 by 0.2", "delay peer 1 at step 3 by 0"]
    assert parameters() == parameters(*plan) == parameters(*plan, runtime="processes")
    monkeypatch.setattr("refsgd.runtimes.simulator.Plan", Overtaking)
    assert parameters(*plan) != parameters()


# -- deaths --------------------------------------------------------------------------------------------------


def test_a_run_survives_where_its_servers_say_so_or_without_servers_all_workers():
    def idle():
        yield Mark("idle")

    def survives(workers, servers):
        return survives_workers(
            {f"w{i}": Node(idle(), survives=s) for i, s in enumerate(workers)}
            | {f"s{i}": Node(idle(), role="server", survives=s) for i, s in enumerate(servers)})

    assert survives([False], [True]) and survives([True, True], [])
    assert not survives([True], [False, True]) and not survives([True, False], [])


@pytest.mark.parametrize("runtime", WORLDS)
@pytest.mark.parametrize("algorithm", ["bsp", "allreduce"])
def test_shrinking_is_the_same_algorithm_with_fewer_workers_from_there_on(algorithm, runtime):
    """Bit for bit: 6 iterations of four, then 9 of the three that are left, on their own data."""
    role = "peer" if algorithm == "allreduce" else "worker"
    plan = {"faults": [f"kill {role} 1 at step 6"], "on_death": "shrink"}
    found = run(algorithm, steps=15, workers=4, machine=LINK, runtime=runtime, **plan)
    first = run(algorithm, steps=6, workers=4, machine=LINK)
    problem = prepare(algorithm, data="quadratic", steps=1, workers=4).problem
    kept = [0, 2, 3]
    later = replace(problem, x0=first.parameters,
                          gradient=lambda x, rank, t: problem.gradient(x, kept[rank], t + 6),
                          images=lambda rank, t: problem.images(kept[rank], t + 6))
    expected = refsgd.run(algorithm, later, steps=9, workers=3, lr=0.1, machine=LINK)
    assert found.parameters_sha256 == expected.parameters_sha256
    assert found.trace.iterations[f"{role}3"] >= 15 and found.trace.iterations[f"{role}1"] <= 7
    assert [e.node for e in found.trace.of(Crashed)] == [f"{role}1"]


@pytest.mark.parametrize("runtime", WORLDS)
@pytest.mark.parametrize("algorithm", ["bsp", "allreduce"])
def test_a_restart_leaves_no_mark_on_what_has_no_memory(algorithm, runtime):
    """Without momentum a synchronous algorithm's state is its parameters: the same bits as if nobody had
    died."""
    role = "peer" if algorithm == "allreduce" else "worker"
    plan = {"faults": [f"kill {role} 1 at step 4", f"drop {role} 2 at step 9"], "on_death": "restart"}
    found = run(algorithm, steps=15, workers=3, machine=LINK, runtime=runtime, **plan)
    whole = run(algorithm, steps=15, workers=3, machine=LINK)
    assert found.parameters_sha256 == whole.parameters_sha256
    assert sorted(e.node for e in found.trace.of(Crashed)) == [f"{role}1", f"{role}2"]
    with_memory = [run(algorithm, steps=15, workers=3, machine=LINK, momentum=0.9, **p).parameters_sha256
                   for p in (plan, {})]
    assert with_memory[0] != with_memory[1]


def test_the_lives_of_a_run_are_one_trace():
    """Times, versions, iterations and message numbers count on."""
    found = run("bsp", steps=12, workers=3, machine=LINK, faults=["kill worker 0 at step 5"],
                on_death="shrink").trace
    assert [e.time for e in found.events] == sorted(e.time for e in found.events)
    assert [e.values["version"] for e in found.marks("update")] == list(range(12)) == sorted(
        {e.values["t"] for e in found.marks("clock")})
    numbers = [e.number for e in found.of(Sent, "worker2")]
    assert numbers == list(range(len(numbers))) and {w for e in found.marks("update")[6:]
                                                     for w, _ in e.values["reads"]} == {"worker1", "worker2"}
    assert all(tau == 0 for _, tau in found.staleness) and 0 <= found.idle_ratio <= 1 and all(
        each >= 0 for each in waiting_by_cause(found).values())


def test_a_server_without_a_part_takes_no_part_of_the_parameters():
    """Racks forward gradients to one server; a death leaves that server's parameters, not a cut of them."""
    problem = quadratic(d=6, workers=4)
    found = refsgd.run(three_roles("rack"), problem, workers=4, steps=12, lr=0.1, machine=LINK,
                       faults=["kill worker 1 at step 5"], on_death="restart")
    assert found.parameters.shape == (6,) and found.loss < problem.loss(problem.x0)


def test_a_run_that_dies_again_at_once_is_not_restarted_for_ever():
    problem = prepare("bsp", data="quadratic", steps=1, workers=2).problem

    def gradient(x, rank, t):
        if (rank, t) == (1, 3):
            raise FloatingPointError("NaN in layer 3")
        return problem.gradient(x, rank, t)

    with pytest.raises(RunFailed,
                       match=r"worker1 .*NaN in layer 3.*; it died again before every worker had completed an "
                             r"iteration"):
        refsgd.run("bsp", replace(problem, gradient=gradient), steps=8, workers=2, machine=LINK,
                   runtime="processes", on_death="restart")


def test_backup_workers_mask_as_many_deaths_as_there_are_backups():
    plan = ["kill worker 1 at step 3", "kill worker 3 at step 5"]
    masked = run("backup-workers", steps=10, workers=5, backups=2, machine=LINK, faults=plan,
                 on_death="continue")
    assert masked.measured["updates"] == 10
    with pytest.raises(Deadlock, match="after the death of worker1, worker3, worker4"):
        run("backup-workers", steps=10, workers=5, backups=2, machine=LINK,
            faults=[*plan, "kill worker 4 at step 6"], on_death="continue")


def test_a_death_is_told_where_messages_wait_for_their_turn():
    """Only what is sent has an event that says when it left: with priorities the notice of a death has none."""
    found = refsgd.run("asp", workers=3, steps=6, machine=LINK, layout="layers", priority=True,
                       faults=["kill worker 1 at step 3"], on_death="continue")
    assert {e.node for e in found.trace.of(Crashed)} == {"worker1"}
    assert all(e.start >= e.time for e in found.trace.of(Sent))


def test_ssp_removes_the_dead_from_its_clock():
    """The others are never more than the bound ahead of the slowest of the living, and complete all their
    iterations."""
    for refresh in ("fresh", "lazy", "eager"):
        found = run("ssp", steps=20, workers=4, staleness=1, refresh=refresh,
                    machine=LINK.with_(speeds=(1, 1, 1, 0.5)),
                    faults=["kill worker 3 at step 2"], on_death="continue")
        assert found.trace.iterations == {"worker0": 20, "worker1": 20, "worker2": 20, "worker3": 2}


def test_refusals_come_before_anything_runs(caplog):
    with pytest.raises(Usage,
                       match=r"on_death continue with bsp, whose programs wait for every worker \(no Node says "
                             r"survives=True\); expected stop, shrink or restart"):
        run("bsp", steps=5, on_death="continue")
    with pytest.raises(Usage, match="on_death shrink with 1 worker would leave none"):
        run("sequential", steps=5, on_death="shrink")
    with pytest.raises(Usage, match="on_death 'ignore'; expected one of stop, continue, shrink, restart"):
        run("bsp", steps=5, on_death="ignore")
    with pytest.raises(Usage, match="graph 'hypercube'|splitting|graph"):
        run("softsync", steps=5, workers=4, splitting=4, on_death="shrink")
    with pytest.raises(Usage, match="record with on_death restart; expected stop or continue"):
        run("asp", steps=5, on_death="restart", record="nowhere")
    with pytest.raises(Usage, match="faults and on_death over mpi"):
        perform(prepare("asp", data="quadratic", steps=5), "mpi", on_death="restart")


# -- figures -------------------------------------------------------------------------------------------------

DEATHS = {"one": ["kill worker 2 at step 10"], "at once": ["kill worker 1 at step 0"],
          "all": [f"kill worker {k} at step 19" for k in range(4)]}


def fixed(faults, runtime="simulator", algorithm="asp", **options):
    """Gradients of exactly 50 ms; `seconds_per_iteration` is 0.05, whichever worker dies."""
    return run(algorithm, steps=20, workers=4, machine=Machine(compute="fixed(0.05)"), faults=faults,
               on_death="continue", runtime=runtime, **options)


@pytest.mark.parametrize(("death", "gradients", "rate"), [("one", 70, 70), ("at once", 60, 60), ("all", 76, 80)])
def test_a_worker_counts_until_its_death(death, gradients, rate):
    """Nobody ever waits, so nobody idles; without a completed iteration there is no rate to count."""
    found = fixed(DEATHS[death])
    m = found.measured
    assert m["seconds_per_iteration"] == pytest.approx(0.05) and m["images_per_second"] == pytest.approx(rate)
    assert m["idle_ratio"] == pytest.approx(0,
                                            abs=1e-9) and sum(m["idle_by_cause"].values()) == pytest.approx(
                                                0, abs=1e-9)
    assert found.history[-1][2] == gradients == sum(found.trace.iterations.values())


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("runtime", WORLDS[1:])
def test_figures_after_a_death_are_the_same_among_processes(runtime, death):
    """What the dead had done outlives it; times agree within a few percent, and what a busy machine adds."""
    virtual, found = fixed(DEATHS[death]), fixed(DEATHS[death], runtime)
    v, m = virtual.measured, found.measured
    assert found.trace.iterations == virtual.trace.iterations and found.history[-1][2] == virtual.history[-1][
        2]
    assert m["messages"] == v["messages"] and m["bytes_sent_by_node"] == v[
        "bytes_sent_by_node"] and found.trace.updates == virtual.trace.updates
    # The dead slip, too, and take a moment to be missed.
    missed = max((e.time - max((c.time for c in found.trace.of(Computed, e.node)), default=0.0)
                  for e in found.trace.of(Crashed)), default=0.0)
    more = 0.05 + (slipped(found.trace) + missed) / m["seconds"] + sum(e.late for e in found.trace.of(Computed)
                                                          if e.node in found.trace.dead)
    assert 0.99 < m["seconds_per_iteration"] / v["seconds_per_iteration"] < 1 + more
    assert 1 / (1 + more) < m["images_per_second"] / v["images_per_second"] < 1.01
    assert v["idle_ratio"] - 0.01 < m["idle_ratio"] < v["idle_ratio"] + more
    assert sum(m["idle_by_cause"].values()) == pytest.approx(m["idle_ratio"])


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_the_clock_gap_is_that_of_the_living(runtime):
    """SSP keeps its bound: the dead do not stay behind forever."""
    found = run("ssp", steps=12, workers=4, staleness=1, machine=MACHINE, faults=["kill worker 3 at step 2"],
                on_death="continue", runtime=runtime)
    assert found.trace.clock_gap <= 1 and found.trace.lead <= 2


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_the_history_of_peers_goes_on_after_a_death(runtime):
    """Replicas are averaged over the living, and the dead one's updates still count."""
    found = run("independent", steps=20, workers=4, machine=LINK, faults=["kill peer 2 at step 10"],
                on_death="continue", runtime=runtime)
    assert found.history[-1][1:3] == [70, 70] and found.history[-2][1] > 60
    for row in found.history:
        assert row[1] == sum(e.time <= row[0] for e in found.trace.marks("update"))


def test_events_outlive_their_process():
    """Whole ones, without the arrays of marks."""
    crash_log, heard = Outbox(), []
    tell = in_crash_log(crash_log, heard.append)
    events = [Computed(0.5, "worker0", 0, 0.0, "gradient"),
              Marked(0.5, "worker0", 0, "update", {"version": np.int64(3), "x": np.ones(1000)})]
    child = os.fork()
    if not child:
        for event in events:
            tell(event)
        os.write(crash_log._fd, b"\x80\x05\x95\x10\x00")  # cut short
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert crash_log.messages() == [events[0], events[1]._replace(values={"version": 3})]
    tell(events[0])
    assert heard == events[:1]
    crash_log.close()


SURVIVORS = sorted(set(CATALOGUE) - set(outcomes.WAITS) - set(outcomes.STAGED) - {"sequential"})


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize(("algorithm", "runtime"), [
    pytest.param(name, runtime, marks=() if name in ("ssp", "adpsgd", "backup-workers") and runtime != "tcp"
                 else pytest.mark.slow)
    for name, runtime in product(SURVIVORS, ["simulator", *REAL])])
def test_the_record_of_a_run_that_survives_a_death_replays(algorithm, runtime, tmp_path):
    """Bit for bit: the others are told of it where they were told then, and the dead does nothing more."""
    options = {"atomic": True} if algorithm == "hogwild" else {}
    victim = next(iter(prepare(algorithm, data="quadratic", steps=1, workers=4).deploy()))[:-1] + "1"
    found = run(algorithm, steps=15, workers=4, machine=MACHINE, runtime=runtime, on_death="continue",
                faults=[f"kill {victim} at step 4"],
                record=tmp_path / "record", **options)
    replayed = refsgd.replay(tmp_path / "record")
    assert replayed.parameters_sha256 == found.parameters_sha256
    assert [e.node for e in replayed.trace.of(Crashed)] == [victim] and replayed.trace.iterations[victim] <= 4


def test_a_record_has_what_was_sent_by_who_was_killed_right_after(monkeypatch, tmp_path):
    """The server has received it, so a replay must find it: it is written before it goes."""
    post = Rings.post

    def last_words(rings, host, body, src, to, number, stamp):
        post(rings, host, body, src, to, number, stamp)
        if (src, number) == (1, 5):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Rings, "post", last_words)
    found = run("asp", steps=15, workers=3, machine=MACHINE, runtime="processes", on_death="continue",
                record=tmp_path / "record")
    assert any(e.src == "worker1" and e.number == 5
               for e in found.trace.of(Received, "server0"))
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256


def test_the_log_says_what_died_and_how_the_run_continues(caplog):
    with caplog.at_level(logging.WARNING):
        run("allreduce", steps=8, workers=3, machine=LINK, faults=["kill peer 0 at step 4"],
            on_death="shrink")
    (line,) = [r.getMessage() for r in caplog.records if "continues" in r.getMessage()]
    assert line == "peer0 was killed as planned at step 4; the run continues from iteration 4 with peer0 (was peer1), peer1 (was peer2)"


# -- the table of outcomes -------------------------------------------------------------------------------------

CASES = [*product(["kill"], ["worker", "server"], faults.POLICIES), ("drop", "worker", "stop"),
         ("drop", "worker", "continue"),
         ("drop", "worker", "shrink"), ("pause", "worker", "stop"), ("slow", "worker", "stop"),
         ("delay", "worker", "stop"), ("slow", "server", "stop")]
AMOUNT = {"pause": " for 0.15", "slow": " by 3", "delay": " by 0.03"}
MACHINE = Machine(compute="exponential(0.004)", latency=0.0005, update="fixed(0.0005)")


def observe(algorithm, fault, member, on_death, runtime):
    """The outcome of one run, and the seconds from each victim's last sign of life until its end was
    known (none in virtual time)."""
    experiment = prepare(algorithm, data="quadratic", lr=0.1, steps=12, workers=4, machine=MACHINE)
    nodes = list(experiment.deploy())
    victim = "server 0" if member == "server" else nodes[0][:-1] + (" 0" if len(nodes) == 1 else " 1")
    try:
        found = perform(experiment, runtime, faults=[f"{fault} {victim} at step 2{AMOUNT.get(fault, '')}"],
                        on_death=on_death)
    except Usage:
        return "refused", []
    except (RunFailed, Deadlock) as error:
        assert victim.replace(" ", "") in str(error) and "\n" not in str(error)
        return "ends", [error.silent] if on_death == "stop" and runtime != "simulator" else []
    x = final_parameters(found)
    assert np.all(np.isfinite(x))
    if fault in ("kill", "drop"):
        assert [e.node for e in found.trace.of(Crashed)] == [victim.replace(" ", "")]
        return "continues", [e.silent for e in found.trace.of(Crashed) if runtime != "simulator"]
    return ("same bits" if np.array_equal(x, final_parameters(perform(experiment, "simulator")))
            else "continues"), []


def check_cases(algorithm, runtime):
    for fault, member, on_death in CASES:
        if member == "server" and not facts_of(CATALOGUE[algorithm]).served and algorithm not in (
            "approximate", "backup-workers"):
            continue
        expected = outcomes.outcome(algorithm, fault, on_death, member == "server")
        found, silences = observe(algorithm, fault, member, on_death, runtime)
        # Two random schedules may end at the same bits.
        assert found == expected or (found, expected) == ("same bits", "continues"), (fault, member, on_death)
        assert all(0 < silent < 2.0 for silent in silences), (fault, member, on_death)
        if found in ("ends", "continues") and fault in ("kill",
                                                      "drop") and on_death == "stop" and runtime != "simulator":
            assert silences, (fault, member)


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("algorithm", CATALOGUE)
def test_every_outcome_in_the_simulator_is_the_stated_one(algorithm):
    check_cases(algorithm, "simulator")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize(("algorithm", "runtime"), [
    *((name, "processes") for name in CATALOGUE),
    *(pytest.param(name, "tcp", marks=() if name in ("bsp", "ssp", "approximate", "allreduce", "gosgd", "gpipe") else pytest.mark.long)
      for name in CATALOGUE)])
def test_every_outcome_among_processes_is_the_stated_one(algorithm, runtime):
    check_cases(algorithm, runtime)


def test_the_documentation_prints_the_table_that_is_tested():
    """The site makes it from `outcomes.table`, so that a new algorithm has a row."""
    assert "```{outcome-table}\n```" in (ROOT / "docs" / "faults.md").read_text()
    assert [row.split(" | ")[0] for row in outcomes.table().splitlines()[2:]] == [f"| {name}" for name in sorted(CATALOGUE)]


def test_a_run_with_faults_keeps_as_few_vectors_as_one_without():
    for plan in ([], ["slow worker 1 at step 3 by 4"]):
        run = refsgd.run("asp", data="quadratic", steps=9, workers=2, evaluations=0, faults=plan)
        assert not any("x" in mark.values for mark in run.trace.marks("update"))
