"""The explorer itself: interleavings counted by hand, and wrong programs that it must find."""

from math import comb, factorial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from refsgd.algorithms.server import asp, bsp, ssp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Choose, Compute, Mark, Node, Poll, Recv, Send
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import integer_gradients, quadratic
from refsgd.runtimes.explorer import Counterexample, explore, follow, walk
from refsgd.runtimes.world import Stuck, World
from refsgd.testing import ledger, server_lead
from tests.marks import mostly_slow


class Note(NamedTuple):
    number: int


class Other(NamedTuple):
    number: int


def talker(count, to="server0"):
    for i in range(count):
        yield Send(to, Note(i))


def listener(count):
    heard = []
    for _ in range(count):
        src, note = yield Recv(Note)
        heard.append((src, note.number))
    return tuple(heard)


def heard(run):
    return run.values["server0"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_two_senders_to_one_receiver_interleave_in_binomially_many_ways(count):
    report = explore(lambda: {"a": Node(talker(count)), "b": Node(talker(count)),
                              "server0": Node(listener(2 * count), role="server")}, observe=heard)
    assert len(report.finals) == comb(2 * count, count) and report.complete
    assert all([n for s, n in order if s == "a"] == list(range(count))
               for order in report.finals), "first-in first-out"


def test_n_senders_arrive_in_n_factorial_orders():
    deploy = {1: lambda: None}
    for n in (2, 3, 4):
        deploy = {f"p{i}": n for i in range(n)}
        report = explore(
            lambda: {p: Node(talker(1)) for p in deploy} | {"server0": Node(listener(len(deploy)), role="server")},
            observe=heard)
        assert len(report.finals) == factorial(n)


def test_what_nothing_can_race_with_is_not_branched():
    def asker():
        for i in range(3):
            yield Send("server0", Note(i))
            yield Recv(Note, src="server0")

    def answerer():
        for i in range(3):
            yield Recv(Note, src="a")
            yield Send("a", Note(i))

    assert explore(lambda: {"a": Node(asker()), "server0": Node(answerer(), role="server")}).runs == 1


def test_what_a_later_receive_takes_races_though_the_program_waits_for_its_sender():
    """The Other of a comes before the Note, which is awaited, and either Other is then the first."""
    def early():
        yield Send("server0", Other(1))
        yield Send("server0", Note(0))

    def late():
        yield Send("server0", Other(2))

    def selective():
        yield Recv(Note, src="a")
        _, other = yield Recv(Other)
        return other.number

    report = explore(lambda: {"a": Node(early()), "b": Node(late()),
                              "server0": Node(selective(), role="server")}, observe=heard)
    assert set(report.finals) == {1, 2} and report.complete


def test_a_poll_sees_the_message_or_not():
    def polling():
        hit = yield Poll(Note)
        return hit is not None

    report = explore(lambda: {"a": Node(talker(1)), "server0": Node(polling(), role="server")}, observe=heard)
    assert set(report.finals) == {True, False}


def test_every_choice_is_taken():
    def choosing():
        first = yield Choose((0, 1, 2))
        second = yield Choose("ab", p=(0.5, 0.5))
        return first, second

    report = explore(lambda: {"server0": Node(choosing(), role="server")}, observe=heard)
    assert len(report.finals) == 6 == report.runs


def test_programs_of_one_node_interleave_at_every_yield():
    """Two increments with a yield between read and write: the explorer finds 1 beside 2."""
    def increment(shared, done):
        seen = shared.x
        yield Mark("between")
        shared.x = seen + 1
        return shared

    def deploy():
        shared = SimpleNamespace(x=0)
        return {"server0": Node(increment(shared, 0), [increment(shared, 1)], role="server")}

    report = explore(deploy, observe=lambda run: run.values["server0"].x)
    assert set(report.finals) == {1, 2}


def test_a_selective_receive_leaves_others_in_the_inbox():
    def mixed():
        yield Send("server0", Other(1))
        yield Send("server0", Note(2))

    def selective():
        _, note = yield Recv(Note)
        _, other = yield Recv(Other)
        return note.number, other.number

    assert set(explore(lambda: {"a": Node(mixed()), "server0": Node(selective(), role="server")}, observe=heard).finals) == {
        (2, 1)}


@pytest.mark.parametrize(("workers", "steps", "runs"), [(2, 2, 4), (3, 2, 36), (3, 1, 6)])
def test_bsp_has_one_result_in_all_orders_of_arrival(workers, steps, runs):
    """(n!)^steps orders: each barrier lets n pushes come in any order."""
    problem = quadratic(d=5, workers=workers, noise=1.0)
    report = explore(lambda: bsp.bsp(problem, workers, steps, SGD(0.1, 0.9)), ledger,
                     observe=lambda run: parameters_sha256(final_parameters(run)))
    assert report.runs == runs and len(report.finals) == 1 and report.complete


@pytest.mark.parametrize("workers", [2, 3])
def test_asp_keeps_the_identity_of_staleness_in_every_schedule(workers):
    problem = integer_gradients(d=2, workers=workers)

    def identity(run):
        ledger(run)
        total = sum(tau for _, tau in run.trace.staleness) + run.trace.outstanding_age
        assert total == (workers - 1) * workers * 2

    assert explore(lambda: asp.asp(problem, workers, 2, SGD(0.25)), identity).complete


@pytest.mark.parametrize(("slack", "refresh"), mostly_slow(
    [(slack, refresh) for slack in (0, 1) for refresh in ("fresh", "lazy", "eager")],
    (0, "fresh"), (0, "lazy"), (0, "eager"), (1, "fresh"), (1, "lazy")))
def test_the_lead_under_ssp_takes_every_value_up_to_slack_plus_one(slack, refresh):
    leads = set()

    def bound(run):
        ledger(run)
        leads.add(server_lead(run))
        assert server_lead(run) <= slack + 1

    problem = integer_gradients(d=2, workers=2)
    assert explore(lambda: ssp.ssp(problem, 2, 3, SGD(0.25), staleness=slack, refresh=refresh),
                   bound).complete
    assert leads == set(range(1, slack + 2))


def test_an_off_by_one_in_ssp_is_found_with_a_short_schedule():
    def bound(run):
        assert server_lead(run) <= 1, "too far ahead"

    problem = integer_gradients(d=2, workers=2)
    with pytest.raises(Counterexample, match="too far ahead") as found:
        explore(lambda: ssp.ssp(problem, 2, 3, SGD(0.25), staleness=1), bound)
    assert len(found.value.schedule) <= 4
    assert "worker0" in found.value.text and "Push#0 -> server0" in found.value.text
    error = follow(lambda: ssp.ssp(problem, 2, 3, SGD(0.25), staleness=1), found.value.schedule, bound)[1]
    assert isinstance(error, AssertionError), "the printed schedule replays the failure"


def crossed(first, second):
    """Both take the one before the other: a deadlock when both are first."""
    yield Send(second, Note(0))
    yield Recv(Other, src=second)
    yield Send(second, Other(0))


def test_a_deadlock_is_found_and_named():
    with pytest.raises(Counterexample,
                       match=r"deadlock: a at .*test_explorer.py:\d+ in crossed waits for Recv\(Other from "
                             r"b\)") as found:
        explore(lambda: {"a": Node(crossed("a", "b")), "b": Node(crossed("b", "a"))})
    assert isinstance(found.value.error, Stuck)


def test_random_walks_find_what_some_schedules_break():
    def last_is_a(run):
        assert heard(run)[-1][0] == "a", "b came last"

    deploy = {"a": 4, "b": 4}
    with pytest.raises(Counterexample, match="b came last"):
        walk(lambda: {p: Node(talker(k)) for p, k in deploy.items()} | {"server0": Node(listener(8), role="server")},
             last_is_a, runs=50, seed=1)


def test_an_exception_in_a_program_is_a_counterexample():
    def fragile():
        _, note = yield Recv(Note)
        first = yield Compute(lambda: note.number)
        assert first == 0
        src, _ = yield Recv(Note)
        if src == "a":
            raise ZeroDivisionError("a came second")

    with pytest.raises(Counterexample, match="ZeroDivisionError: a came second"):
        explore(lambda: {"b": Node(talker(1)), "a": Node(talker(1)), "server0": Node(fragile(), role="server")})


def test_an_exception_before_the_first_pick_is_raised_as_it_is():
    def fragile():
        yield Compute(lambda: 1 // 0)

    for search in (explore, walk, follow):
        with pytest.raises(ZeroDivisionError, match="division"):
            search(lambda: {"server0": Node(fragile(), role="server")})


def test_a_world_is_driven_by_hand():
    world = World(lambda: {"a": Node(talker(2)), "server0": Node(listener(2), role="server")})
    assert [str(a) for a in world.enabled()] == ["deliver a -> server0"]
    world.perform(0)
    world.perform(0)
    assert world.enabled() == [] and world.values["server0"] == (("a", 0), ("a", 1))
    assert np.all(np.diff([e.time for e in world.events]) > 0)
