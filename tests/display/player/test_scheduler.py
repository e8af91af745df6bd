"""The page on which the reader is the scheduler: it offers what the explorer allows, and knows its goals."""

import json
import random
import re
from typing import NamedTuple

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.display.player.states import action_in_words
from refsgd.display.scheduler import Graph, TooLarge, scheduler_html
from refsgd.display.scheduler.graph import said
from refsgd.effects import Compute, Mark, Node, Poll, Recv, Send
from refsgd.experiment.functions import deployment_function
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.faults import survives_workers
from refsgd.runtimes.world import Stuck, World
from refsgd.testing import explore_algorithm
from refsgd.testing.findings import RATE, finite, ledger
from refsgd.testing.findings import hash_of as result_of

QUICK = ("bsp", "asp", "allreduce", "backup-workers")
#: by far too many states even with two workers and one step
#: those of which a small case has too many schedules for a page
LARGE = {name for name, function in CATALOGUE.items() if not facts_of(function).compared}


def case(name, workers=2, steps=1, **options):
    function = deployment_function(name)[1]
    problem = integer_gradients(d=4, workers=workers)
    return lambda: function(problem, workers, steps, SGD(RATE), **options)


def holds(run):
    finite(run)
    ledger(run)


def goals(graph):
    """By goal: the fewest moves from the start, None if it cannot be reached."""
    far, queue = {0: 0}, [0]
    for state in queue:
        for move in graph.moves[state]:
            if move.to not in far:
                far[move.to] = far[state] + 1
                queue.append(move.to)
    assert len(far) == len(graph.states)
    return {goal["text"]: min((far[s] for s in goal["states"]), default=None) for goal in graph.goals()}


def offers_what_the_explorer_allows(factory, walks, deaths=0):
    """Random walks beside the page: in every state it offers every action, and no other."""
    graph, rng = Graph(factory, holds, result_of, deaths=deaths), random.Random(0)
    texts = list(graph.texts)
    for _ in range(walks):
        world, at = World(factory, every=True, deaths=deaths), 0

        def allowed(world=world):
            """The actions, after the marks of programs that are alone on their node."""
            while True:
                actions = world.enabled()
                lone = [i for i, a in enumerate(actions) if a.kind == "go" and len(world.tasks[a.node]) == 1
                        and isinstance(world.tasks[a.node][0].effect, Mark)]
                if not lone:
                    return actions
                world.perform(lone[0])

        while actions := allowed_or_stuck(allowed):
            offered = {texts[move.text]: move.to for move in graph.moves[at]}
            assert sorted(offered) == sorted(said(world, a) for a in actions)  # in the order of sending
            assert len(offered) == len(actions)
            pick = rng.randrange(len(actions))
            at = offered[said(world, actions[pick])]
            world.perform(pick)
        assert not graph.moves[at] and ("result" in graph.states[at] or graph.states[at]["dead"])


def allowed_or_stuck(allowed):
    try:
        return allowed()
    except Stuck:
        return []


def covers_what_the_explorer_covers(factory):
    graph = Graph(factory, holds, result_of, every=False)
    report = explore(factory, holds, observe=result_of)
    assert sum(map(bool, graph.moves)) == report.states and set(graph.results) == set(report.finals)


@pytest.mark.parametrize("name", QUICK)
def test_every_action_of_the_explorer_is_offered_and_no_other(name):
    offers_what_the_explorer_allows(case(name), 4)
    covers_what_the_explorer_covers(case(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {*QUICK, *LARGE, "sequential"}))
def test_every_action_of_the_other_algorithms_too(name):
    options = {"fragments": 1} if name == "decoupled-diloco" else {}  # four have more than 5000 states
    offers_what_the_explorer_allows(case(name, **options), 10)
    covers_what_the_explorer_covers(case(name, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asp", "bsp", "adpsgd", "hogwild"])
def test_a_worker_may_die_whenever_it_has_not_returned(name):
    offers_what_the_explorer_allows(case(name), 20, deaths=1)


def survives(name):
    return survives_workers(case(name)())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "softsync", "dynsgd", "backup-workers", "adpsgd",
                                  "independent", "allreduce", "strads", "gpipe"])
def test_a_death_blocks_the_others_exactly_if_the_algorithm_does_not_say_that_it_survives(name):
    found = goals(Graph(case(name), holds, result_of, deaths=1))
    assert (found["Block the others by a death"] is None) == survives(name)
    assert found["Find a deadlock"] is None  # nobody has died
    assert found["Break the program: an error, or a gradient lost or applied twice"] is None


def test_a_gradient_is_lost_with_its_worker():
    found = goals(Graph(case("asp"), holds, result_of, deaths=1))
    # it computes one, too, before it dies
    assert found["Lose a gradient with the worker that computed it"] == found[
        "Finish the run although a worker has died"] + 1
    assert "Block the others by a death" not in goals(Graph(case("asp"), holds, result_of))


def test_the_dead_do_nothing_and_their_last_messages_arrive():
    """worker0 sends and dies: its push is taken, and then its `Died`."""
    world = World(case("ssp", staleness=0), deaths=1)
    pick = {str(action): i for i, action in enumerate(world.enabled())}
    assert sum(name.startswith("die") for name in pick) == 2
    world.perform(pick["die worker0"])
    assert not any(a.kind == "die" or a.node == "worker0" for a in world.enabled())
    heard = []
    while actions := world.enabled():
        heard += [type(world.envelope(a).body).__name__ for a in actions[:1] if a.src == "worker0"]
        world.perform(0)
    assert heard == ["Push", "Died"] and world.values.keys() == {"worker1", "server0"}


def test_goals_have_their_fewest_moves():
    ssp, asp = (goals(Graph(case(name, **options), holds, result_of))
                for name, options in (("ssp", {"staleness": 0}), ("asp", {})))
    wait = "Make worker0 wait for another worker"
    assert ssp[wait] == 5  # computes, sends, arrives, is taken, and the update is computed
    assert asp[wait] is None and asp["Find a deadlock"] is None
    old = "Let a gradient be 1 update old"
    assert (ssp[old], asp[old]) == (10, 11)  # the server of asp has to answer first
    assert asp["Break the program: an error, or a gradient lost or applied twice"] is None


class Ask(NamedTuple):
    """peer -> its neighbour."""


class Answer(NamedTuple):
    """The answer."""


def polite(peers=3):
    """Each peer answers a question that has arrived, then asks, and answers nothing while it waits."""
    def peer(left, right):
        asked = yield Poll(Ask)
        if asked:
            yield Send(left, Answer())
        yield Send(right, Ask())
        yield Recv(Answer)
        if not asked:
            yield Recv(Ask)
            yield Send(left, Answer())

    return {f"peer{i}": Node(peer(f"peer{(i - 1) % peers}", f"peer{(i + 1) % peers}")) for i in range(peers)}


def test_a_deadlock_is_found_with_its_fewest_moves():
    graph = Graph(polite, lambda run: None, lambda run: "", every=False)
    # three times: look, and the question arrives
    assert goals(graph)["Find a deadlock"] == 6 and goals(graph)["Finish the run"] is not None
    ends = {state["end"] for state in graph.states if state.get("deadlock")}
    assert len(ends) == 1 and "deadlock: peer0" in ends.pop()
    assert "peer0 looks for Ask" in set(graph.texts)  # it does not wait
    assert not any("gradient be" in goal for goal in goals(graph))  # there are none


class Push(NamedTuple):
    """worker -> server."""

    grad: np.ndarray


def forgets(problem, workers, steps, sgd):
    """A server that loses every gradient that comes right after one of worker0."""
    def worker(rank):
        g = yield Compute(problem.gradient, problem.x0, rank, 0)
        yield Send("server0", Push(g))
        return problem.x0

    def server():
        x, before = problem.x0, ""
        for _ in range(workers):
            w, push = yield Recv(Push)
            if before != "worker0":
                x = yield Compute(np.subtract, x, push.grad, kind="update")
                yield Mark("update", part=0, version=0, reads=((w, 0),), x=x)
            before = w
        return x

    nodes = {f"worker{i}": Node(worker(i), role="worker") for i in range(workers)}
    return nodes | {"server0": Node(server(), role="server")}


def test_a_wrong_program_of_the_readers_own_gets_its_page(tmp_path):
    with pytest.raises(AssertionError, match=f"page: {tmp_path / 'page.html'}, "):
        explore_algorithm(forgets, steps=1, page=tmp_path / "page.html")
    data = data_of((tmp_path / "page.html").read_text())
    found = {goal["text"]: goal["states"] for goal in data["goals"]}
    assert found["Break the program: an error, or a gradient lost or applied twice"]
    assert found["Finish the run"] and any("gradients" in text for text in data["texts"])


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="graph">(.*?)</script>', html, re.S)[1])


def test_the_page_is_small_self_contained_and_written_by_one_option(tmp_path):
    path = tmp_path / "page.html"
    assert f"page: {path}, " in explore_algorithm("bsp", steps=1, page=path)
    html = path.read_text()
    assert len(html.encode()) < 150_000
    assert set(re.findall(r"https?://[^\s\"'<)]+", html)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:|#)", html)


def test_a_case_that_is_too_large_falls_back_to_decisions_or_is_refused():
    def states(most):
        html = scheduler_html(case("bsp"), holds, result_of, most=most)
        return len(data_of(html)["states"])

    assert states(100) == 53 and states(20) == 5
    with pytest.raises(TooLarge, match="more than 3 states"):
        states(3)


def test_actions_are_said_as_in_the_stepper():
    world = World(case("bsp"), every=True)
    assert next(action_in_words(world, a) for a in world.enabled()) == "worker0 computes: gradient"
    assert said(world, world.enabled()[0]) == "worker0 computes a gradient"
    with pytest.raises(Stuck):
        world = World(lambda: {"peer0": Node((lambda: (yield Recv(Ask)))())})
        world.enabled()
