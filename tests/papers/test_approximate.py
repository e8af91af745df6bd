"""What is claimed of approximate synchronous parallel (Gaia: Hsieh et al., NSDI 2017)."""

import math
from collections import Counter, defaultdict
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import asp, bsp, mirrors, ssp
from refsgd.algorithms.server.approximate import approximate, members_of
from refsgd.algorithms.server.mirrors import Barrier, Copy, Significant, Taken, significant
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.simulator import Faulty, simulate
from refsgd.trace import Returned, Sent
from tests.strategies import machines, seeds
from tests.watching import LOCKSTEP, RANDOM, constant, curved, final, moments, recorded
from tests.wrong import wrong_deployment

INF = float("inf")
thresholds = st.sampled_from([0.0, 0.01, 0.3, 2.0, 1e6])
bounds = st.sampled_from([0, 1, 3, INF])
options = st.fixed_dictionaries({"threshold": thresholds, "local": st.sampled_from(["bsp", "ssp", "asp"]),
                                 "staleness": st.sampled_from([0, 2]), "barrier": bounds, "ahead": bounds})
SLOW = Machine(compute="exponential(1)", latency=3.0, bandwidth=20.0)
TIGHT = {"barrier": 0, "ahead": 0}  #: barriers as early, and a mirror clock as narrow as can be


def told_by(deployment, kinds, machine=RANDOM, seed=0):
    """(sender, message) of every message of some classes."""
    out = []
    for _ in moments(deployment, lambda node, effect, answer: out.append((node, effect.body))
                     if isinstance(effect, Send) and isinstance(effect.body, kinds) else None, machine, seed):
        pass
    return out


def copies_of(deploy, run):
    """What `run` gives for a deployment, and the copies that its servers were made with."""
    made = []

    def copy(*args, **more):
        made.append(Copy(*args, **more))
        return made[-1]

    with patch.dict(deploy.__globals__, Copy=copy):
        return run(), made


def equal_copies(made, centers, exactly=True):
    """Whether the copies of each part are equal."""
    parts = [made[k:k + centers] for k in range(0, len(made), centers)]
    same = np.array_equal if exactly else lambda a, b: np.allclose(a, b, atol=1e-5)
    return all(same(part[0].x, other.x) for part in parts for other in part)


# -- what is exact -----------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 6), steps=st.integers(0, 5),
       centers=st.integers(1, 3), servers=st.integers(1, 2), options=options)
def test_after_the_last_flush_all_copies_hold_every_gradient(machine, seed, workers, steps, centers, servers,
                                                             options):
    """Integers and a power of two, so exact, but for means of three; a piece of the result is read from
    each copy."""
    centers = min(centers, workers)
    problem, seen = recorded(integer_gradients(d=5, workers=workers))
    run, made = copies_of(approximate, lambda: simulate(
        approximate(problem, workers, steps, SGD(0.25), servers, centers=centers, **options), machine, seed))
    if options["local"] == "bsp":
        size = {i: len(center) for center in members_of(workers, centers, None) for i in center}
        total = sum((g / size[rank] for rank, *_, g in seen), np.zeros(5))
        assert np.allclose(final_parameters(run), problem.x0 - 0.25 * total, atol=1e-4)
    else:
        total = sum((g for *_, g in seen), np.zeros(5, np.float32))
        assert np.array_equal(final_parameters(run), problem.x0 - np.float32(0.25) * total)
    assert len(made) == centers * servers
    assert equal_copies(made, centers, options["local"] != "bsp")
    assert len(seen) == workers * steps
    taus = [tau for _, tau in run.trace.staleness]
    assert len(taus) == len(seen) * centers * servers and min(taus, default=0) >= 0


def ledger_error(deployment, machine, seed):
    """Largest |unsent + sent - own changes| of a server, and |copy - x0 - own changes - received|, over
    all moments; sent is what has left or waits in the queue of the first mirror."""
    own, out, into, worst = {}, {}, {}, 0.0

    def spread(message):
        return np.bincount(message.entries, message.change, minlength=6)

    def told(node, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, Significant):
            out[node, effect.to] = out.get((node, effect.to), 0) + spread(effect.body)
        elif isinstance(effect, Recv) and node.startswith("server") and isinstance(answer[1], Significant):
            into[node] = into.get(node, 0) + spread(answer[1])
        elif isinstance(effect, Compute) and effect.kind == "update" and isinstance(answer, tuple):
            own[node] = own.get(node, 0) + (answer[0] - effect.args[1])

    for nodes in moments(deployment, told, machine, seed):
        for name, server in nodes.items():
            if name.startswith("server") and "copy" in server.local and isinstance(server.effect, Recv):
                local, mine = server.local, own.get(name, np.zeros(6))
                for m in local["mirrors"]:
                    queued = sum((spread(update) for update in m.queue), np.zeros(6))
                    error = local["copy"].unsent + out.get((name, m.name), 0) + queued - mine
                    worst = max(worst, np.max(np.abs(error)))
                worst = max(worst, np.max(np.abs(local["copy"].x - mine - into.get(name, 0))))
    return worst


@given(machine=machines, seed=seeds, workers=st.integers(3, 5), centers=st.integers(2, 3), options=options,
       momentum=st.sampled_from([0.0, 0.9]))
def test_sent_and_unsent_are_all_own_changes_at_every_moment(machine, seed, workers, centers, options,
                                                             momentum):
    """And a copy is its own changes and what it has received."""
    problem = curved(workers=workers, dtype=np.float64)
    deployment = approximate(problem, workers, 5, SGD(0.1, momentum), centers=centers, **options)
    assert ledger_error(deployment, machine, seed) < 1e-12


def with_filter(monkeypatch, wrong):
    right = significant
    monkeypatch.setattr(mirrors, "significant",
                        lambda x, unsent, limit, share: wrong(right, x, unsent, limit))


def test_a_filter_that_forgets_is_caught(monkeypatch):
    """WRONG: what is not significant is not worth keeping."""
    with_filter(monkeypatch,
                lambda right, x, unsent, limit: (right(x, unsent, limit)[0], np.zeros_like(unsent)))
    problem = curved(workers=3, dtype=np.float64)
    assert ledger_error(approximate(problem, 3, 5, SGD(0.1), threshold=0.3), RANDOM, 0) > 1e-3


@given(machine=machines, seed=seeds, steps=st.integers(0, 6), threshold=thresholds)
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, steps, threshold):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(approximate(problem, 1, steps, sgd, threshold=threshold), machine, seed),
                          final(sequential.sequential(problem, 1, steps, sgd)))


@pytest.mark.parametrize(("inside", "alone"), [
    ("bsp", bsp.bsp), ("asp", asp.asp),
    ("ssp", lambda *args, **more: ssp.ssp(*args, staleness=1, **more))])
@pytest.mark.parametrize("servers", [1, 2])
def test_one_data_centre_is_the_algorithm_inside_it_bit_for_bit(inside, alone, servers):
    problem, sgd = curved(d=7), SGD(0.1, 0.9, 0.01)
    for seed in range(3):
        found = simulate(approximate(problem, 4, 6, sgd, servers, centers=1, local=inside, staleness=1),
                         RANDOM, seed)
        expected = simulate(alone(problem, 4, 6, sgd, servers), RANDOM, seed)
        assert np.array_equal(final_parameters(found), final_parameters(expected))
        assert found.trace.seconds == expected.trace.seconds
        assert found.trace.staleness == expected.trace.staleness


def test_every_change_sent_and_no_lead_is_bsp_of_centres():
    """threshold 0 and ahead 0: both centres step, then both hear of it; the changes add up."""
    problem = integer_gradients(d=4, workers=4)
    found = final(approximate(problem, 4, 4, SGD(0.25), threshold=0.0, ahead=0))
    expected = final(bsp.bsp(problem, 4, 4, SGD(0.5)))  # the mean of four is half the sum of two means of two
    assert np.array_equal(found, expected)


# -- the significance filter -------------------------------------------------------------------------------


def test_an_entry_is_significant_by_its_own_value_and_any_change_of_a_zero_is():
    x, unsent = np.array([10, 1, 0, 0, -2], np.float32), np.array([0.5, 0.5, 1e-9, 0, 0.3], np.float32)
    entries, rest = significant(x, unsent, 0.1)
    assert entries.tolist() == [1, 2, 4] and entries.dtype == np.int32
    assert np.array_equal(rest, np.array([0.5, 0, 0, 0, 0], np.float32))


@given(st.lists(st.tuples(st.floats(-3, 3, width=32), st.floats(-3, 3, width=32)), max_size=8),
       st.sampled_from([0.0, 0.01, 1.0, 1e6]), st.sampled_from([None, 0.3, 1.0]))
def test_what_stays_is_small_and_what_goes_is_whole(pairs, limit, share):
    """|unsent| <= limit |x| after each scan; with a share it is at most what goes."""
    x, unsent = (np.array([p[i] for p in pairs], np.float32) for i in (0, 1))
    entries, rest = significant(x, unsent, limit, share)
    if share is None:
        assert np.all(np.abs(rest) <= np.float32(limit) * np.abs(x))
    else:
        assert len(entries) == (math.ceil(share * len(x)) if limit else len(x))
        assert np.max(np.abs(rest), initial=0) <= np.min(np.abs(unsent[entries]), initial=np.inf)
    whole = rest.copy()
    whole[entries] += unsent[entries]
    assert np.array_equal(whole, unsent)


def hold_filter(deploy, threshold, inside="asp", workers=5, steps=5):
    """What is sent after own update number u (from 0) of a centre with p updates an iteration: entries that
    have changed by more than v / sqrt(1 + u // p), at last all."""
    x, old, unsent, done = {}, {}, {}, {}
    members = {"server0": workers // 2, "server1": workers - workers // 2}
    each = {name: m if inside == "asp" else 1 for name, m in members.items()}

    def told(node, effect, answer):
        if isinstance(effect, Compute) and effect.kind == "update":
            own = isinstance(answer, tuple)
            old[node], x[node] = effect.args[own], answer[0] if own else answer
        elif isinstance(effect, Send) and isinstance(effect.body, Significant):
            update = done.get(node, 0)
            done[node] = update + 1
            waits = unsent.get(node, np.zeros(6, np.float32)) + (x[node] - old[node])
            limit = 0.0 if update == each[node] * steps - 1 else threshold / np.sqrt(1 + update // each[node])
            goes = np.abs(waits) > np.float32(limit) * np.abs(x[node])
            assert effect.body.entries.tolist() == np.flatnonzero(goes).tolist() and np.array_equal(
                effect.body.change, waits[goes])
            unsent[node] = np.where(goes, np.float32(0), waits)

    problem = Problem(np.full(6, 2, np.float32), curved(workers=workers).gradient, lambda x: 0.0)
    for _ in moments(deploy(problem, workers, steps, SGD(0.1, 0.5), threshold=threshold, local=inside,
                            barrier=INF), told, RANDOM, 0):
        pass
    assert done == {node: m * steps for node, m in each.items()}


@pytest.mark.parametrize("inside", ["bsp", "asp"])
@pytest.mark.parametrize("threshold", [0.0, 0.03, 0.1, 0.5])
def test_what_is_sent_are_the_entries_above_the_limit_of_that_iteration(threshold, inside):
    hold_filter(approximate, threshold, inside)


@pytest.mark.parametrize("right, wrong", [
    ("-(-sum(clock.values()) // max(1, len(clock)))", "1 + sum(clock.values()) // max(1, len(clock))"),
    ("-(-sum(clock.values()) // max(1, len(clock)))", "copy.version"),
    ("t**0.5\n", "t\n"), ("significant(self.x, self", "significant(self.x + 1, self"),
    ("        self.unsent = rest\n", ""), ("0.0 if now == steps else", "0.0 if now > steps else"),
    ("-(-sum(clock.values()) // max(1, len(clock)))", "sum(clock.values())"),
])
def test_another_filter_is_caught(right, wrong):
    with pytest.raises((AssertionError, ValueError)):
        for threshold in (0.03, 0.1, 0.5):
            hold_filter(wrong_deployment(approximate, right, wrong), threshold)


def test_small_changes_add_up_until_they_are_significant():
    """Each step moves 8 by 1/8, 1.6 %: with a limit of 5 % / sqrt(t) it takes several updates, not for
    ever."""
    problem = constant(lambda rank, t: -1.0, d=2)
    deployment = approximate(Problem(np.full(2, 8, np.float32), problem.gradient, problem.loss), 2, 12,
                             SGD(0.125), threshold=0.05)
    sizes = [len(body.entries) for node, body in told_by(deployment, Significant) if node == "server0"]
    assert sizes[0] == 0 and sizes[-1] == 2 and 1 < sum(map(bool, sizes)) < 12


@pytest.mark.parametrize(("inside", "expected"), [("asp", [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]),
                                                  ("bsp", [0, 1, 0, 0, 1])])
def test_the_threshold_falls_as_one_over_the_root_of_the_iteration(inside, expected):
    """Of a value of about 1, 0.9 % is kept at the first iteration and sent at the second, where the limit is
    1 % / sqrt(2).

    Iterations are counted, not updates: the second worker's push of the first iteration sends nothing.
    """
    changes = [0.009, 0.0, -0.0025, 0.0, 0.0]  # the second one is below 1 % / sqrt(5) until the flush
    each = 2 if inside == "bsp" else 1  # the mean of a worker with the change and one without
    problem = constant(lambda rank, t: -each * changes[t] if rank == 0 else 0.0, d=1)
    deployment = approximate(Problem(np.ones(1, np.float32), problem.gradient, problem.loss), 4, 5, SGD(1.0),
                             threshold=0.01, local=inside)
    assert [len(body.entries) for node, body in told_by(deployment, Significant, LOCKSTEP)
            if node == "server0"] == expected


@pytest.mark.parametrize("workers", [2, 5])
def test_threshold_zero_sends_every_change_and_a_huge_one_only_the_flush(workers):
    problem = curved(workers=workers)
    everything = told_by(approximate(problem, workers, 6, SGD(0.1), threshold=0.0, local="asp"), Significant)
    assert all(len(body.entries) == 6 for _, body in everything) and len(everything) == workers * 6
    nonzero = Problem(np.ones(6, np.float32), problem.gradient, problem.loss)
    isolated = told_by(approximate(nonzero, workers, 6, SGD(0.1), threshold=1e9), Significant)
    assert sum(len(body.entries) for _, body in isolated) == 2 * 6, "each server once, at its last update"


def test_bytes_are_8_an_entry_and_fall_with_the_threshold():
    problem = curved(d=50)
    crossing = []
    for threshold in (0.0, 0.01, 0.1, 1.0):
        trace = simulate(approximate(problem, 4, 30, SGD(0.02), threshold=threshold, local="asp"),
                         RANDOM).trace
        between = [e.nbytes for e in trace.of(Sent) if e.message == "Significant"]
        crossing.append(sum(between))
        assert all(b % 8 == 0 for b in between) and len(between) == 4 * 30
        ahead = sum(e.nbytes for e in trace.of(Sent) if e.message == "Barrier")
        assert sum(trace.bytes_sent.values()) == 2 * 4 * 30 * 200 + crossing[-1] + ahead
    assert crossing == sorted(crossing, reverse=True)
    assert crossing[0] == 4 * 30 * 400 and crossing[-1] < 0.5 * crossing[0]


def test_without_the_flush_a_copy_lacks_what_was_never_significant(monkeypatch):
    """WRONG: a last update that is filtered like any other."""
    with_filter(monkeypatch, lambda right, x, unsent, limit: right(x, unsent, limit or 10.0))
    problem, seen = recorded(integer_gradients(workers=2))
    offset = Problem(np.full(8, 64, np.float32), problem.gradient, problem.loss)
    x = final(approximate(offset, 2, 5, SGD(0.25), threshold=10.0))
    assert not np.array_equal(x, offset.x0 - np.float32(0.25) * sum(g for *_, g in seen))


# -- the selective barrier ---------------------------------------------------------------------------------


def hold_barrier(deploy, machine=SLOW, seed=0, workers=4, barrier=1, inside="bsp", **more):
    """Entries that are significant are named to every mirror at once, by their values or by a barrier, whose
    values follow in order; nobody reads between the two.  Returns how many barriers there were."""
    due, barred, under_way, barriers = defaultdict(list), defaultdict(list), Counter(), []
    window = {f"server{c}": barrier * (1 if inside == "bsp" else len(center))
              for c, center in enumerate(members_of(workers, 3, None))}

    def told(node, effect, answer):
        sent = effect.body if isinstance(effect, Send) else None
        kind, pair = type(sent).__name__, (node, getattr(effect, "to", None))  # a wrong copy has other classes
        if kind == "Barrier":
            due[pair].append(sent.entries.tolist())
            barriers.append(pair)
            assert under_way[pair] > window[node], "the link is not behind"
        elif kind == "Significant":
            if sent.announced:
                assert due[pair].pop(0) == sent.entries.tolist(), "the values of the oldest barrier"
            assert not sent.entries.size or under_way[pair] <= window[node], "the link is behind"
            under_way[pair] += bool(sent.entries.size) and sent.clock < 6
        elif kind == "Model":
            assert not any(barred[src, node] for src in servers), "a read of entries that are on their way"
        elif isinstance(effect, Recv) and node in servers:
            src, got = answer
            kind = type(got).__name__
            if kind == "Taken":
                under_way[node, src] -= 1
            elif kind == "Barrier":
                barred[src, node].append(got.entries.tolist())
                assert got.entries.size, "nobody waits for nothing"
            elif kind == "Significant" and got.announced:
                assert barred[src, node].pop(0) == got.entries.tolist()

    deployment = deploy(curved(workers=workers), workers, 6, SGD(0.1), centers=3, local=inside,
                        barrier=barrier, **more)
    servers = [name for name, node in deployment.items() if node.role == "server"]
    for _ in moments(deployment, told, machine, seed):
        pass
    assert not any(due.values()) and not any(barred.values()) and not any(under_way.values())
    return len(barriers)


@given(machine=machines, seed=seeds, barrier=st.integers(0, 2), inside=st.sampled_from(["bsp", "ssp", "asp"]),
       ahead=bounds, threshold=thresholds)
def test_a_barrier_blocks_reads_until_the_values_have_come(machine, seed, barrier, inside, ahead, threshold):
    hold_barrier(approximate, machine, seed, barrier=barrier, inside=inside, ahead=ahead, threshold=threshold)


def test_barriers_come_where_the_link_is_behind_and_only_there():
    assert hold_barrier(approximate, SLOW, barrier=0) > 5
    assert hold_barrier(approximate, SLOW, barrier=6) == 0, "all six updates may be under way"
    assert hold_barrier(approximate, Machine(compute="fixed(1)", latency=0.1), barrier=0) == 0
    assert not told_by(approximate(curved(), 4, 6, SGD(0.1), barrier=INF), (Barrier, Taken), SLOW)


@pytest.mark.parametrize("right, wrong", [
    ("blocked = now - min((m.clock for m in mirrors), default=now), any(m.awaited for m in mirrors)",
     "blocked = now - min((m.clock for m in mirrors), default=now), False"),
    ("any(m.awaited for m in mirrors)\n", "any(m.awaited for m in mirrors[:1])\n"),
    ("            yield Send(self.name, Barrier(update.entries, update.clock))\n", ""),
    ("self.queue.append(update._replace(announced=True))", "yield from self.send(update._replace(announced=True))"),
    ("self.queue.popleft()", "self.queue.pop()"),
    ("self.awaited -= message.announced", "self.awaited = 0"),
    ("not update.entries.size", "False"), ("self.under_way > self.window", "self.under_way >= self.window"),
])
def test_another_barrier_is_caught(right, wrong):
    deploy = wrong_deployment(approximate, right, wrong)
    with pytest.raises((AssertionError, IndexError, Deadlock)):
        for seed in range(20):
            hold_barrier(deploy, seed=seed, workers=6, barrier=0, threshold=(0.0, 0.3, 2.0)[seed % 3],
                         inside=("bsp", "asp")[seed % 2], ahead=INF)


# -- the mirror clock --------------------------------------------------------------------------------------


def hold_lead(run, centers, ahead):
    """A server that answers is at most `ahead` clocks ahead of each other data centre; the largest lead."""
    clock, largest = Counter(), 0
    server = {w: c for c, center in enumerate(centers) for w in center}
    for e in run.trace.events:
        if e.kind == "receive" and e.message == "Push":
            clock[e.src] += 1
        elif e.kind == "send" and e.message == "Model":
            now = [min(clock[w] for w in center) for center in centers]
            lead = now[server[e.to]] - min(now)
            largest = max(largest, lead)
            assert lead <= ahead, f"{e.node} answers with a lead of {lead}"
    return largest


@given(machine=machines, seed=seeds, ahead=bounds, barrier=bounds, inside=st.sampled_from(["bsp", "ssp", "asp"]))
def test_a_data_centre_is_at_most_so_many_clocks_ahead(machine, seed, ahead, barrier, inside):
    run = simulate(approximate(curved(workers=5), 5, 6, SGD(0.1), centers=3, ahead=ahead, barrier=barrier,
                               local=inside), machine, seed)
    hold_lead(run, [["worker0"], ["worker1", "worker2"], ["worker3", "worker4"]], ahead)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_mirror_clock_holds_in_every_schedule_and_is_met(ahead):
    """Two data centres of one worker, every schedule: no deadlock, no longer lead, equal copies."""
    leads = set()
    problem = constant(lambda rank, t: 1.0 + rank)

    def check(run):
        leads.add(hold_lead(run, [["worker0"], ["worker1"]], ahead))
        assert np.array_equal(final_parameters(run), np.full(2, -0.25 * 2 * 3, np.float32))
        assert min(tau for _, tau in run.trace.staleness) >= 0

    report = explore(lambda: approximate(problem, 2, 2, SGD(0.25), threshold=0.5, barrier=0, ahead=ahead), check)
    assert report.complete and max(leads) == ahead
    trace = simulate(approximate(problem, 2, 6, SGD(0.25), ahead=ahead), Machine(compute="fixed(1)", speeds=(1, 0.1))).trace
    assert (trace.clock_gap, trace.lead) == (ahead, ahead + 1)


@pytest.mark.parametrize("right, wrong", [
    ("lead <= ahead", "lead <= ahead + 1"), ("lead <= ahead", "True"),
    ("self.clock = max(self.clock, message.clock)", "self.clock = max(self.clock, message.clock + (message.clock == 3))"),
    ("min((m.clock for m in mirrors), default=now)", "max((m.clock for m in mirrors), default=now)"),
])
def test_another_mirror_clock_is_caught(right, wrong):
    deploy = wrong_deployment(approximate, right, wrong)
    with pytest.raises((AssertionError, Deadlock), match="lead"):
        for seed in range(3):
            run = simulate(deploy(curved(workers=3), 3, 6, SGD(0.1), centers=3, ahead=1),
                           Machine(compute="exponential(1)", speeds=(1, 5, 0.2)), seed)
            hold_lead(run, [["worker0"], ["worker1"], ["worker2"]], 1)


def test_random_schedules_of_three_data_centres_end():
    problem = integer_gradients(d=3, workers=5)
    for inside in ("bsp", "asp"):
        walk(lambda inside=inside: approximate(problem, 5, 3, SGD(0.25), centers=3, threshold=0.5,
                                               local=inside, **TIGHT), runs=15)


def test_a_worker_waits_for_the_other_data_centre_only_at_the_mirror_clock():
    """Without one its server answers before the other has heard: the other may be as slow as it likes."""
    slow = Machine(compute="fixed(1)", speeds=(1, 1, 0.001, 0.001))
    for ahead in (INF, 10, 4, 0):
        trace = simulate(approximate(curved(), 4, 10, SGD(0.1), ahead=ahead, barrier=INF), slow).trace
        end = {e.node: e.time for e in trace.of(Returned)}
        # with a bound, its iteration t + 1 + ahead begins when the other has completed t
        assert end["worker0"] == end["worker1"] == (10 if ahead >= 10 else (10 - ahead) * 1000.0), ahead
        assert end["worker2"] == 10_000


# -- runs --------------------------------------------------------------------------------------------------


def test_a_server_steps_by_its_own_schedule():
    """It counts own updates: 1 + 1 + 1/2 + 1/2 at each, whatever has come from the other."""
    run = simulate(approximate(constant(lambda rank, t: 1.0), 2, 4, SGD(0.5, schedule=StepDecay(2, 0.5)),
                               threshold=0.0), RANDOM)
    assert np.array_equal(final_parameters(run), np.full(2, -0.5 * 2 * 3, np.float32))


def test_staleness_counts_the_updates_that_a_reader_did_not_know_of():
    """A copy's version counts own and remote updates; equal fixed times give n - 1, as ASP, once all have
    come."""
    run = simulate(approximate(curved(), 4, 8, SGD(0.1), threshold=0.0, local="asp"), LOCKSTEP)
    plain = simulate(asp.asp(curved(), 4, 8, SGD(0.1)), LOCKSTEP)
    assert max(tau for _, tau in run.trace.staleness) <= 2 * max(tau for _, tau in plain.trace.staleness)
    assert np.mean([tau for _, tau in run.trace.staleness]) == pytest.approx(3, abs=1)


def hold_death(deploy, dead, step, inside, **more):
    """All copies end equal after a death, and with all that had arrived."""
    problem = integer_gradients(d=4, workers=5)
    faults = [Fault("kill", f"worker{w}", step + i) for i, w in enumerate(dead)]
    run, made = copies_of(deploy, lambda: Faulty(
        deploy(problem, 5, 5, SGD(0.25), centers=3, threshold=0.5, local=inside, **more), RANDOM, 0, 1000,
        faults, "continue").run())
    assert 0 < len(run.trace.dead) <= len(dead) and equal_copies(made, 3, inside != "bsp")


@pytest.mark.parametrize("inside", ["bsp", "ssp", "asp"])
@pytest.mark.parametrize("dead", [(0,), (3,), (1, 2), (0, 1, 2, 3, 4)])
def test_after_deaths_all_copies_end_equal(dead, inside):
    """worker0 is a data centre of its own: its server flushes when it hears of the death."""
    for step in range(4):
        hold_death(approximate, dead, step, inside, **(TIGHT if step % 2 else {}))


def test_a_server_that_waits_for_the_last_push_of_the_dead_is_caught():
    wrong = wrong_deployment(approximate, "clock.pop(message.node, None)", "clock.get(message.node, None)")
    with pytest.raises(Exception, match="waits for"):
        hold_death(wrong, (1,), 2, "bsp")


@pytest.mark.parametrize("more", [{"local": "asp", "centers": 3}, {"servers": 2, **TIGHT}, {"centers": 4}])
def test_processes_agree_with_the_simulator_where_no_schedule_matters(more):
    """Integers and powers of two: every order of additions has the same bits, once all is flushed."""
    draws = np.random.default_rng(0).integers(-8, 9, (4, 4, 6)).astype(np.float32)
    problem = Problem(np.full(6, 3, np.float32), lambda x, rank, t: draws[rank, t % 4], lambda x: 0.0)
    machine = Machine(compute="exponential(0.005)", latency=0.001)
    hashes = {refsgd.run("approximate", problem, workers=4, steps=4, lr=0.25, machine=machine, runtime=runtime,
                         **more).parameters_sha256 for runtime in ("simulator", "processes")}
    assert len(hashes) == 1


# -- data centres ------------------------------------------------------------------------------------------


def test_groups_are_data_centres_and_their_servers_live_among_their_workers():
    """A co-located server k lives with worker k mod n, and one that is dealt in turn, too: the rank of a
    server is that of a worker of its data centre."""
    groups = [0, 1, 1, 0, 2, 2]
    nodes = approximate(curved(workers=6), 6, 1, SGD(0.1), 2, groups)
    ranks = [node.rank % 6 for node in nodes.values() if node.role == "server"]
    assert [groups[rank] for rank in ranks] == [0, 1, 2, 0, 1, 2]
    assert len({node.rank for node in nodes.values() if node.role == "server"}) == 6
    assert members_of(6, 3, groups) == [[0, 3], [1, 2], [4, 5]]
    assert members_of(6, 2, groups) == [[0, 1, 2], [3, 4, 5]], "another number: by the workers' order"


@pytest.mark.parametrize("wrong", [{"threshold": -0.1}, {"threshold": INF}, {"threshold": math.nan},
                                   {"share": 0.0}, {"share": 1.5}, {"local": "gossip"}, {"centers": 5},
                                   {"centers": 0}, {"barrier": -1}, {"ahead": 0.5}, {"staleness": math.nan}])
def test_wrong_options_are_named(wrong):
    (name, _), = wrong.items()
    with pytest.raises(ValueError, match=f"^{name} .*; expected"):
        approximate(curved(), 4, 1, SGD(0.1), **wrong)


# -- what it is for ----------------------------------------------------------------------------------------

LAN = Machine(compute="lognormal(0.02,0.2)", latency=0.0002, bandwidth=10e6, colocated=True)
WAN = LAN.with_(groups="2x4", uplink="20ms,1MB/s")  #: a tenth of the LAN's bandwidth


def test_the_groups_of_a_machine_are_the_data_centres():
    """Servers live in the group of their workers, and only what mirrors say crosses between groups."""
    for hosts, servers in (("", 1), ("cyclic:8", 2)):
        machine = WAN.with_(hosts=hosts)
        result = refsgd.run("approximate", data="quadratic", workers=8, servers=servers, steps=4, machine=machine)
        network = Network(machine, result.deploy())
        across = {e.message for e in result.trace.of(Sent) if len(network.way(e.node, e.to)) > 2}
        assert across <= {"Significant", "Barrier", "Taken"} and "Significant" in across
        assert result.servers == 2 * servers


def to_accuracy(algorithm, machine, target=0.92, **options):
    """Seconds until a test accuracy, the final one, and bytes over the uplinks."""
    result = refsgd.run(algorithm, machine=machine, data="digits", workers=8, epochs=8, **options)
    network = Network(machine, result.deploy())
    across = sum(e.nbytes for e in result.trace.of(Sent) if len(network.way(e.node, e.to)) > 2)
    return next(row[0] for row in result.history if row[4] >= target), result.accuracy["test"], across


@pytest.mark.slow
def test_on_a_wan_ten_times_slower_it_saves_time_and_bytes_at_equal_accuracy():
    """Hsieh et al.: 1.8 to 53.5 times as fast as BSP and the like across a WAN, 0.94 to 1.40 times a LAN's time.
    Here 3.1 times as fast as BSP and 2.5 times as ASP, at 1.9 times a LAN's time; see the algorithm's page."""
    lan, accuracy, _ = to_accuracy("bsp", LAN, servers=8, lr=0.2)
    wan, same, all_bytes = to_accuracy("bsp", WAN, servers=8, lr=0.2)
    free, _, _ = to_accuracy("asp", WAN, servers=8, lr=0.05)
    gaia, gained, some_bytes = to_accuracy("approximate", WAN, threshold=0.05, lr=0.1)
    assert same == accuracy and gained > accuracy - 0.01
    assert wan > 1.8 * gaia and free > 1.8 * gaia and some_bytes < 0.3 * all_bytes
    assert gaia < 2.5 * lan < wan
    more, _, most_bytes = to_accuracy("approximate", WAN, threshold=0.0, lr=0.2)
    assert more > gaia and most_bytes > 2 * some_bytes, "the filter saves, not only the servers of each centre"
