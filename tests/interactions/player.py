"""The dialogues of the pages of algorithms: commands, and what the programs then do.

`play` runs the commands in a stepper that stops only where messages or programs race.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import groupby
from textwrap import fill
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.display.player.states import called, shown
from refsgd.display.player.stepper import Stepper
from refsgd.problems import integer_gradients
from refsgd.trace.diagram import deed

WIDTH = 90  #: columns of an output
SEED = 276  #: in one dimension the first gradients are 2, 4 and 6


def play(text: str, catalogue: Mapping[str, Any] = CATALOGUE) -> str:
    """A dialogue with the outputs that its commands really give.

    Empty lines divide it into blocks.  One that begins with ``>`` is a command with its output; others are
    prose.  Commands:

    =============================== ====================================================================
    deploy ALGORITHM key=value ...  programs begin; gradients are small integers in `d` dimensions
    Push#0 of worker0 arrives ...   an action in the words of `Stepper.actions`
    worker0 continues               its actions, until it waits or chooses
    run, run until EVENT            first actions, to the end or to an event, as `Stepper.run_until`
    next                            what may happen next
    why, why NODE                   why each program waits, or what it does
    show NODE NAME ...              local variables of a program, or what it has returned
    show Push#0 of worker0          a message on the wire
    =============================== ====================================================================
    """
    dialogue = Dialogue(catalogue)
    blocks = text.strip("\n").split("\n\n")
    return "\n\n".join(block if not block.startswith("> ") else dialogue.answer(block.partition("\n")[0])
                       for block in blocks) + "\n"


class Dialogue:
    """A stepper, and how far its events have been shown."""

    def __init__(self, catalogue: Mapping[str, Any]) -> None:
        self.catalogue, self.seen = catalogue, 0
        self.stepper: Stepper

    def answer(self, line: str) -> str:
        """A command and its output."""
        command, _, rest = line.removeprefix("> ").partition(" ")
        if command == "deploy":
            self.deploy(*rest.split())
        elif command == "run":
            self.stepper.run_until(rest.removeprefix("until ")) if rest else self.stepper.run()
        elif command in ("next", "why", "show"):
            return "\n".join([line, *getattr(self, command)(*rest.split())])
        elif rest == "continues":
            while len(own := [a for a in self.stepper.actions() if a.startswith(f"{command} ")]) == 1:
                self.stepper.choose(self.stepper.actions().index(own[0]))
        elif (action := line.removeprefix("> ")) in (actions := self.stepper.actions()):
            self.stepper.choose(actions.index(action))
        else:
            raise ValueError(f"command {action!r}: not possible now; expected one of {'; '.join(actions)}")
        return "\n".join([line, *self.happened()])

    def deploy(self, name: str, *options: str) -> None:
        """Begin."""
        usual = {"workers": 2, "steps": 1, "lr": 1.0, "grain": "decision"}
        given: dict[str, Any] = usual | dict(map(_read, options))
        problem = integer_gradients(given.pop("d", 1), given["workers"], SEED, given.pop("batches", ()))
        self.stepper, self.seen = Stepper(self.catalogue[name], problem, **given), 0

    def happened(self) -> list[str]:
        """New events, one line for each turn of a program. The mark of an update says that it was computed."""
        new, self.seen = self.stepper.events[self.seen:], len(self.stepper.events)
        lines = []
        for who, turn in groupby(new, key=lambda e: called(e.node, e.program)):
            events = list(turn)
            said = [deed(e) for e, after in zip(events, [*events[1:], None])
                    if [getattr(e, "work", ""), getattr(after, "name", "")] != ["update", "update"]]
            lines.append(fill(f"{who}: {'; '.join(said)}", WIDTH, subsequent_indent="    "))
        if self.stepper.over:
            lines.append(self.stepper.deadlock or "The run is over.")
        return lines

    def next(self) -> list[str]:
        """What may happen next."""
        return self.stepper.actions()

    def why(self, *nodes: str) -> list[str]:
        """A sentence for each program; without the line, which changes with every edit of the file."""
        return [fill(where.why.partition("; ")[0], WIDTH, subsequent_indent="    ")
                for where in self.stepper.where() if where.node in nodes or not nodes]

    def show(self, what: str, *names: str) -> list[str]:
        """A message on the wire, what a program has returned, or values of its local variables."""
        if names[:1] == ("of",):
            sent = {f"{type(m.body).__name__}#{m.number} of {m.src}": shown(m.body)
                    for sent in self.stepper.world.wire.values() for m in sent}
            said = sent[f"{what} of {names[1]}"]
        elif what in self.stepper.values:
            value = self.stepper.values[what]  # of a replica, or memory that is shared, the parameters
            said = f"{what} has returned {shown(getattr(value, 'x', value))}"
        else:
            known = self.stepper.where().of(what)[0].locals
            for holder in ("self", "shard", "center", "copy", "replica"):  # what has an `x`
                known = getattr(known.get(holder), "__dict__", {}) | known
            said = f"{what}: " + ", ".join(f"{name} {shown(known[name])}" for name in names)
        return [fill(said, WIDTH, subsequent_indent="    ")]


def _read(word: str) -> tuple[str, Any]:
    """``staleness=1`` as a name and a value."""
    key, _, value = word.partition("=")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
