"""The runs of a race: several algorithms ask for theirs at the same time, a pool of processes makes them.

Which runs are made depends only on results, never on which process was faster; a log saves repeating them.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refsgd.experiment.arguments import Usage
from refsgd.experiment.race.target import Heat, Point
from refsgd.experiment.race.tune import Asked
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import can_fork
from refsgd.trace.schema import as_number, json_text

Run = Callable[[int, Asked], Heat]  #: a run of an algorithm, which is a number
Program = Generator[list[Asked], list[Heat], Any]  #: asks for runs of one algorithm


def as_json(heat: Heat) -> dict[str, Any]:
    """A run as JSON values."""
    return {"seconds": heat.seconds, "gradients": heat.gradients, "ended": heat.ended,
            "points": [list(point) for point in heat.points]}


def from_json(said: dict[str, Any]) -> Heat:
    """The run that `as_json` described; "inf" is never."""
    points = [Point(at, count, as_number(value)) for at, count, value in said["points"]]
    return Heat(as_number(said["seconds"]), as_number(said["gradients"]), points, said["ended"])


class Log:
    """Runs in a file, one a line, found again by a text that says all that they depend on."""

    def __init__(self, path: str | None, race: str, sources: Mapping[str, str] | None = None) -> None:
        self.path, self.race, self.known, self.sources = path, race, dict[str, Heat](), sources or {}
        if path and Path(path).exists():
            *lines, cut = Path(path).read_bytes().split(b"\n")
            begun = b'{"run":'.startswith(cut[:7])  # a run that was not written to its end
            for number, line in enumerate(lines if begun else [*lines, cut], 1):
                try:
                    said = json.loads(line)
                    self.known[said["run"]] = from_json(said)
                except (ValueError, KeyError, TypeError):
                    raise Usage(f"{path}, line {number}: not a run of a race; expected a log that a race "
                                "has written, or a new file") from None
            if cut:  # by the end of a race; the next run would be written behind it
                os.truncate(path, os.path.getsize(path) - len(cut))

    def _name(self, label: str, asked: Asked) -> str:
        return " ".join([self.race, label, self.sources.get(label, ""), *map(repr, asked[:3])])

    def find(self, label: str, asked: Asked) -> Heat | None:
        """A run that has been made before."""
        return self.known.get(self._name(label, asked))

    def keep(self, label: str, asked: Asked, heat: Heat) -> None:
        """Write a run."""
        name = self._name(label, asked)
        if name not in self.known and self.path:
            with Path(self.path).open("a", encoding="utf-8") as file:
                file.write(json_text({"run": name, **as_json(heat)}, separators=(",", ":")) + "\n")
        self.known[name] = heat


_run: Run  #: in a process of the pool


def _begin(run: Run) -> None:
    """Prepare a process of the pool: only the first process answers Ctrl-C."""
    global _run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _run = run


def _made(number: int, asked: Asked) -> Heat:
    return _run(number, asked)


def carried_out(programs: Sequence[Program], labels: Sequence[str], run: Run, log: Log, jobs: int,
                done: Callable[[int, Asked, Heat], None], ended: Callable[[int, Any], None]) -> None:
    """Make the runs for which programs ask, and tell `done` of each, `ended` of what a program returns."""
    asked = list[list[Asked]]([[] for _ in programs])
    answers = list[dict[int, Heat]]([{} for _ in programs])
    queue = deque[tuple[int, int]]()  # runs to make, by program and place in what it asked

    def go_on(number: int, heats: list[Heat] | None) -> None:
        try:
            asked[number], answers[number] = programs[number].send(heats), {}  # type: ignore[arg-type]
        except StopIteration as stop:
            ended(number, stop.value)
        else:
            queue.extend((number, i) for i in range(len(asked[number])))

    def answer(number: int, i: int, heat: Heat) -> None:
        log.keep(labels[number], asked[number][i], heat)
        done(number, asked[number][i], heat)
        answers[number][i] = heat
        if len(answers[number]) == len(asked[number]):
            go_on(number, [heat for _, heat in sorted(answers[number].items())])

    for number in range(len(programs)):
        go_on(number, None)
    with _pool(jobs, run) as made:
        waiting = dict[Future[Heat], tuple[int, int]]()
        while queue or waiting:
            while queue and (made is not None or not waiting):
                number, i = queue.popleft()
                if (known := log.find(labels[number], asked[number][i])) is not None:
                    answer(number, i, known)
                elif made is None:
                    answer(number, i, run(number, asked[number][i]))
                else:
                    waiting[made.submit(_made, number, asked[number][i])] = number, i
            for future in wait(waiting, return_when=FIRST_COMPLETED).done if waiting else ():
                answer(*waiting.pop(future), future.result())


@contextmanager
def _pool(jobs: int, run: Run) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that make runs, ended at once if the race is; None if all runs are made in this process."""
    if jobs == 1 or not can_fork():
        yield None
        return
    others = set(mp.active_children())
    pool = ProcessPoolExecutor(jobs, mp.get_context("fork"), _begin, (run,))
    try:
        yield pool
    except BrokenProcessPool:
        raise RunFailed("a process of the race was killed, perhaps for lack of memory; expected it to end "
                        "its run: fewer jobs need less") from None
    except BaseException:
        for child in set(mp.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
