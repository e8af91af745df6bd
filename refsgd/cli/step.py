"""Step through an algorithm: you decide what happens next.

Runs a small case action by action: type the number of the next action, go back, see the position of each
program.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from refsgd.cli.options import exchange_given, own_given, small_case
from refsgd.cli.outputs import deliver, failure
from refsgd.display.player.stepper import Stepper
from refsgd.experiment.prepare import Usage

KEYS = """  number  let this action happen        Enter  the first one
  b       one action back               u      until the next update
  r       run to the end                w      why each program waits; w server0 with its variables
  d       diagram of what happened      l      lines of the program that acted last; l server0
  h       this help                     q      quit
  u block until a worker is held back (your own program marks it: yield Mark("block", worker=w));
          likewise u clock, u send, u receive, u return"""


def converse(stepper: Stepper, lines: Iterable[str], out: TextIO) -> None:
    """Execute commands, one per line, until ``q`` or the last line."""
    say = partial(print, file=out)

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
        "": lambda _: stepper.step(), "b": lambda _: stepper.back(), "r": lambda _: stepper.run(),
        "u": lambda what: stepper.run_until(what or "update"),
        "w": lambda node: say(repr(stepper.where().of(node)) if node else stepper.where().text()),
        "d": lambda _: say(stepper.diagram()), "l": lambda node: say(stepper.source(node or None)),
        **dict.fromkeys(("h", "?", "help"), lambda _: say(KEYS))}
    say(stepper.name)
    say(KEYS)
    show()
    for line in lines:
        command, _, what = line.strip().partition(" ")
        if command in ("q", "quit") or failure():
            return
        try:
            if command in acts:
                acts[command](what.strip())
            elif command.lstrip("-").isdigit():
                stepper.choose(int(command))
            else:
                raise Usage(f"command {command!r}; expected a number, Enter, b, u, r, w, d, l, h or q")
        except Usage as error:
            say(str(error))
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
