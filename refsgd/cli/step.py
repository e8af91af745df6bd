"""Step through an algorithm: you decide what happens next.

Runs a small case action by action: type the number of the next action, go back, see the position of each
program.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from textwrap import fill
from typing import Any, TextIO

from refsgd.cli.options import exchange_given, own_given, small_case
from refsgd.cli.outputs import deliver, failure, width
from refsgd.display.player.stepper import WIDTH, Stepper
from refsgd.experiment.prepare import Usage

KEYS = """  number  let this action happen         Enter  the first one
  b       one action back; b 3: three    u      until the next update
  r       run to the end                 w      why each program waits
  d       diagram of what happened       l      lines of what acted last
  h       this help                      q      quit
  w server0  one node, with variables;  l server0  its lines
  u block    until a worker is held back (a program of your own marks it:
             yield Mark("block", worker=w)); u clock, send, receive, return"""

#: words for a key; keys that something may follow; the number of an action
WORDS = {"undo": "b", "back": "b", "run": "r", "where": "w", "why": "w", "until": "u", "diagram": "d",
         "lines": "l", "?": "h", "help": "h", "quit": "q", "exit": "q"}
TAKES, NUMBER = "bulw", re.compile(r"-?[0-9]+")


def converse(stepper: Stepper, lines: Iterable[str], out: TextIO) -> None:
    """Execute commands, one per line, until ``q`` or the last line."""
    say, wide = partial(print, file=out), width() or WIDTH

    told = ""  # once

    def show() -> None:
        nonlocal told
        for text in stepper.last:
            say(f"* {text}")
        if stepper.over:
            end = "deadlock" if stepper.deadlock else "the run is over"
            say(f"{end} (b goes back, d shows it, q quits)" if told == stepper.deadlock else stepper.deadlock)
        told = stepper.deadlock
        for i, said in enumerate(stepper.actions()):
            say(f"  {i}  {said}")
        out.flush()

    acts: dict[str, Callable[[str], Any]] = {
        "": lambda _: stepper.step(), "b": lambda n: stepper.back(int(n or 1)), "r": lambda _: stepper.run(),
        "u": lambda what: stepper.run_until(what or "update"),
        "w": lambda node: say((stepper.where().of(node) if node else stepper.where()).text(bool(node), wide)),
        "d": lambda _: say(stepper.diagram()), "l": lambda node: say(stepper.source(node or None)),
        "h": lambda _: say(KEYS)}
    say(stepper.name)
    say(KEYS)
    show()
    for line in lines:
        command, _, what = line.strip().partition(" ")
        key = WORDS.get(command.lower(), command.lower())
        if key == "q" or failure():
            return
        try:
            if NUMBER.fullmatch(command) and not what:
                stepper.choose(int(command))
            elif key not in acts:
                raise Usage(f"command {line.strip()!r}; expected a number, Enter, b, u, r, w, d, l, h or q")
            elif what and (key not in TAKES or (key == "b" and not NUMBER.fullmatch(what.strip()))):
                raise Usage(f"command {line.strip()!r}; expected {command} alone"
                            + ", or a number" * (key == "b"))
            else:
                acts[key](what.strip())
        except Usage as error:
            say(fill(str(error), wide))
        show()


def _typed() -> Iterator[str]:
    """Lines typed at a terminal, with a history if readline exists."""
    with suppress(ImportError):
        import readline  # noqa: F401
    with suppress(EOFError):
        while True:
            yield input("> ")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on the algorithm."""
    small_case(parser, 3, "iterations of each worker (default 3)")
    parser.add_argument("--lr", type=float, default=0.125, help="learning rate (default 0.125)")
    parser.add_argument("--decisions", action="store_true",
                        help="stop only where messages or programs race, the decisions that `refsgd "
                             "explore` counts; by default stop at every effect")
    parser.add_argument("--schedule", metavar="I,J,...",
                        help="first actions, e.g. those that `refsgd explore` printed (with --decisions)")
    parser.add_argument("--player", metavar="FILE.html",
                        help="at the end, write the steps as a page of the step player")


def do(args: argparse.Namespace) -> None:
    """Step by commands from the terminal or a pipe."""
    if sys.stdin is None:
        raise Usage("standard input is closed; expected a terminal or lines of commands (refsgd step ssp < "
                    "commands.txt)")
    text = (args.schedule or "").strip("[] ")
    try:
        schedule = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise Usage(f"schedule {args.schedule!r}; expected numbers separated by commas, e.g. 0,2,1") from None
    stepper = Stepper(args.algorithm, workers=args.workers, servers=args.servers, steps=args.steps,
                      lr=args.lr, batch=args.batch, grain="decision" if args.decisions else "effect",
                      schedule=schedule, **own_given(args), **exchange_given(args))
    try:
        converse(stepper, _typed() if sys.stdin.isatty() else sys.stdin, sys.stdout)
    finally:
        deliver([(args.player, lambda: stepper.player().html)])
