"""Interaction files: commands and the trace that they give, in one file that is read like a story.

The commands pick what happens next in a `refsgd.runtimes.world.World`; `play` runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.programs import describe
from refsgd.runtimes.world import World
from refsgd.trace.diagram import diagram


def _deployment(words: list[str]) -> Callable[[], Deployment]:
    name, *rest = words
    options: dict[str, Any] = {}
    for word in rest:
        key, _, value = word.partition("=")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = float(value) if value == "inf" else value
    workers, steps = options.pop("workers", 2), options.pop("steps", 1)
    lr = options.pop("lr", 0.125)
    function = CATALOGUE[name]
    return lambda: function(integer_gradients(d=2, workers=workers), workers, steps, SGD(lr), **options)


def play(text: str) -> str:
    """Run an interaction file and return it with the outputs that its commands really give.

    A file opens with prose; then blocks follow: a command, a line ``----``, its output, an empty line.
    Commands:

    ========================== =========================================================================
    deploy ALGORITHM key=value a fresh world of `refsgd.runtimes.world`; says what may happen next
    deliver SRC DST            the next message of this channel arrives; shows what follows from it
    go NODE [PROGRAM]          a program goes on, a poll looks
    choose NODE OPTION         a choice is made
    run                        first actions to the end
    state                      where each program is paused
    parameters                 the final parameters
    ========================== =========================================================================
    """
    head, *blocks = text.split("\n\ndeploy ", 1)
    if not blocks:
        raise ValueError(
            "interaction file without a `deploy` command; expected prose, an empty line, then deploy "
            "ALGORITHM ...")
    out, world, seen = [head.rstrip()], None, 0
    for block in ("deploy " + blocks[0]).strip().split("\n\n"):
        command = block.split("\n----")[0].strip()
        words = command.split()
        shown = ""
        try:
            if words[0] == "deploy":
                world, seen = World(_deployment(words[1:])), 0
            assert world is not None
            _act(world, words)
            if words[0] == "state":
                shown = "\n".join(f"{t.node}: {'returned' if t.effect is None else _waits(t.effect)}"
                                  for t in world.all_tasks)
            elif words[0] == "parameters":
                shown = str(final_parameters(world.run()).tolist())
            else:
                enabled = world.enabled()
                events, seen = world.events[seen:], len(world.events)
                shown = diagram(events, world.nodes) if events else ""
                shown += ("\n" if shown else "") + "next: " + (", ".join(map(str, enabled))
                                                               or "nothing, the run is over")
        except AssertionError as error:
            shown = f"{type(error).__name__}: " + str(error).split(": ", 1)[0]
        out.append(f"{command}\n----\n{shown}")
    return "\n\n".join(out) + "\n"


def _waits(effect: Any) -> str:
    return f"waits for {describe(effect)}"


def _act(world: World, words: list[str]) -> None:
    """Perform one command of an interaction file."""
    if words[0] in ("deploy", "state", "parameters"):
        return
    if words[0] == "run":
        while world.enabled():
            world.perform(0)
        return
    for i, action in enumerate(world.enabled()):
        said = str(action).replace("->", "").replace("option", "").split()
        if said == words or (words[0] == "go" and said[0] in ("go", "poll") and said[1:] == words[1:]):
            world.perform(i)
            return
    raise ValueError(
        f"command {' '.join(words)!r}: not possible now; expected one of "
        f"{', '.join(map(str, world.enabled()))}")
