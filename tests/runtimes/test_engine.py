"""One engine under all runtimes: one place tells effects apart, and a wrong program is refused in the same
words everywhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import refsgd
from refsgd.effects import Compute, Deployment, Mark, Node, Recv, Send
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.replay import record, replay
from refsgd.runtimes.simulator import simulate
from refsgd.runtimes.world import World
from refsgd.trace import Polled

PACKAGE = Path(refsgd.__file__).parent
EFFECTS = {"Compute", "Send", "Recv", "Poll", "Mark", "Choose", "Load", "Add"}


def told_apart(tree: ast.AST) -> set[str]:
    """The effects with which a piece of code compares a value or its class."""
    found = set()
    for node in ast.walk(tree):
        compared: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            compared = list(node.comparators)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            compared = list(node.args[1:])
        elif isinstance(node, ast.MatchClass):
            compared = [node.cls]
        found |= {name.id for one in compared for name in ast.walk(one) if isinstance(name, ast.Name)}
    return found & EFFECTS


def dispatches(text: str) -> list[str]:
    """Functions that tell more than half of the effects apart."""
    return [node.name for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and len(told_apart(node)) > len(EFFECTS) // 2]


def test_one_place_tells_effects_apart():
    """Whatever the runtime: a second dispatch would drift away from the first."""
    found = [(path.relative_to(PACKAGE).as_posix(), name) for path in sorted(PACKAGE.rglob("runtimes/**/*.py"))
             for name in dispatches(path.read_text())]
    assert found == [("runtimes/engine.py", "act")]


@pytest.mark.parametrize("text", [
    "def act(effect):\n kind = type(effect)\n if kind in (Compute, Send): f()\n elif kind is Recv: g()\n"
    " elif kind is Poll or kind is Mark: h()",
    "def act(e):\n return isinstance(e, Compute | Send | Recv) or isinstance(e, (Load, Add))",
    "def act(e):\n match e:\n  case Compute() | Send() | Recv() | Load() | Add():\n   pass"])
def test_a_second_dispatch_is_seen(text: str):
    assert dispatches(text) == ["act"]


class Note(NamedTuple):
    """A message."""

    text: str


def right() -> Iterator[Any]:
    """What was recorded."""
    yield Compute(abs, -1)
    yield Mark("done")


def forgetful() -> Iterator[Any]:
    """Builds an effect and does not yield it."""
    Send("peer1", Note("lost"))
    yield Compute(abs, -1)


def misdirected() -> Iterator[Any]:
    """Sends to nobody."""
    yield Send("peer9", Note("lost"))


def plain() -> Iterator[Any]:
    """Sends what is no message."""
    yield Send("peer1", [1, 2])


def aimless() -> Iterator[Any]:
    """Yields a number."""
    yield 3


def listener() -> Iterator[Any]:
    """Takes what the wrong programs would send."""
    yield Recv(Note)


def in_world(every: bool) -> Callable[[Callable[[], Deployment]], None]:
    """Runs programs in a `World`, first actions first."""
    def follow(factory: Callable[[], Deployment]) -> None:
        world = World(factory, every)
        while world.enabled():
            world.perform(0)

    return follow


RUNTIMES: dict[str, Callable[[Callable[[], Deployment]], Any]] = {
    "simulator": simulate, "world": in_world(False), "stepper": in_world(True), "processes": run}
WRONG: dict[Callable[[], Iterator[Any]], str] = {
    forgetful: r"peer0: 2 effects were built before .*test_engine.py:\d+ in forgetful and one was yielded",
    misdirected: r"peer0: .*test_engine.py:\d+ in misdirected sends to 'peer9'; expected one of peer0, peer1",
    plain: r"peer0: .*test_engine.py:\d+ in plain sends a message of type list; expected an instance of a",
    aimless: r"peer0: .*test_engine.py:\d+ in aimless yielded 3; expected an effect \(a sub-program needs"}


def deployment(program: Callable[[], Iterator[Any]]) -> Callable[[], Deployment]:
    """One node with the program, and one to which it may send."""
    return lambda: {"peer0": Node(program()), "peer1": Node(listener())}  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("program", WRONG)
def test_a_wrong_program_is_refused_in_the_same_words(program: Callable[[], Iterator[Any]], runtime: str):
    with pytest.raises(Exception, match=WRONG[program]):
        RUNTIMES[runtime](deployment(program))


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "processes"])
def test_a_forgotten_yield_at_the_end_is_refused(runtime: str):
    def trailing() -> Iterator[Any]:
        yield Compute(abs, -1)
        Mark("lost")

    with pytest.raises(ForgottenYield, match="1 effect was built before the end of trailing and none"):
        RUNTIMES[runtime](lambda: {"peer0": Node(trailing())})  # type: ignore[arg-type]


@pytest.mark.parametrize(("program", "steps"), [
    (forgetful, right), (aimless, right), (misdirected, None), (plain, None)])
def test_a_replay_refuses_a_wrong_program_in_the_same_words(program: Callable[[], Iterator[Any]],
                                                            steps: Callable[[], Iterator[Any]] | None):
    def sends() -> Iterator[Any]:
        yield Send("peer1", Note("kept"))

    def alone(main: Callable[[], Iterator[Any]]) -> Callable[[], Deployment]:
        return lambda: {"peer0": Node(main()), "peer1": Node(right())}  # type: ignore[arg-type]

    told = record(simulate(alone(steps or sends)).trace)
    with pytest.raises(Exception, match=WRONG[program]):
        replay(alone(program), told)


def test_polls_and_reductions_are_the_same_in_a_replay():
    """Both had drifted: a poll lost its fields in some runtimes, a replay priced a reduction by its first
    argument."""
    import numpy as np

    from refsgd.effects import Poll
    from refsgd.runtimes.replay import Replayer

    def sender() -> Iterator[Any]:
        yield Compute(np.add, np.zeros(3, np.float32), np.zeros(5, np.float32)[:3], kind="reduction")
        yield Send("peer1", Note("here"))

    def looker() -> Iterator[Any]:
        yield Poll(Note)
        yield Compute(abs, -1)
        yield Poll(Note)

    def factory() -> Deployment:
        return {"peer0": Node(sender()), "peer1": Node(looker())}  # type: ignore[arg-type]

    machine = refsgd.Machine(compute="fixed(1)", latency=0.25)
    trace = simulate(factory, machine).trace
    steps = record(trace)
    assert trace.of(Polled) == replay(factory, steps).trace.of(Polled)
    assert [e.src for e in trace.of(Polled)] == [None, "peer0"]
    world = World(factory)
    while actions := world.enabled():
        world.perform(next((i for i, a in enumerate(actions) if a.kind == "deliver"), 0))
    assert {type(e) for e in world.events if e.kind == "poll"} == {Polled}
    replayer = Replayer(factory, steps)
    replayer.run()
    (draw,) = replayer.drawn["peer0", 0]
    assert draw.keywords["kind"] == "reduction"  # type: ignore[attr-defined]
