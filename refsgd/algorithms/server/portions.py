"""Load balancing with backup tasks, for `sandblaster`: many more portions than workers, handed out on demand.

Fast workers take more portions, and a worker that finds none left repeats one that another has not finished.
The first answer counts: shards drop the second (see `vector_shards`), and the coordinator learns which worker
is idle.  Portions of a worker that has died are handed out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refsgd.algorithms.parts import Objective, Servers
from refsgd.effects import Array, Compute, Died, Program, Recv, Send


class Begin(NamedTuple):
    """coordinator -> shard, and back as an answer: an evaluation at register X begins."""

    evaluation: int


class Portion(NamedTuple):
    """coordinator -> worker: compute this portion; and back as an answer: done."""

    evaluation: int
    portion: int


class Piece(NamedTuple):
    """worker -> shard: the shard's part of a portion's gradient."""

    grad: Array  # (part,)
    portion: int
    evaluation: int


class Stop(NamedTuple):
    """coordinator -> worker, and on to every shard: nothing comes after this."""

    evaluations: int


class Crew:
    """The living workers, and those of them without a portion."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.living, self.idle = list(workers), list(workers)

    def report(self) -> Program[Portion | Died]:
        """The next report: a portion is done, or a worker has died."""
        w, message = yield Recv(Portion, Died)
        assert isinstance(message, Portion | Died)
        if isinstance(message, Died):  # of a shard too, which the run cannot outlive
            self.living = [other for other in self.living if other != w]
            self.idle = [other for other in self.idle if other != w]
        else:
            self.idle.append(w)
        return message


def evaluate(shards: Sequence[str], crew: Crew, number: int, portions: int) -> Program[None]:
    """Have the gradient at X computed into G; near the end unfinished portions are handed out once more."""
    for shard in shards:
        yield Send(shard, Begin(number))
    for shard in shards:
        yield Recv(Begin, src=shard)
    ahead, done = list(range(portions)) * 2, set[int]()
    while len(done) < portions:
        while crew.idle and (left := [p for p in ahead if p not in done]):
            ahead = left[1:]
            yield Send(crew.idle.pop(0), Portion(number, left[0]))
        report = yield from crew.report()
        if isinstance(report, Died):
            ahead += range(portions)  # the dead may have had both copies of one
        elif report.evaluation == number:
            done.add(report.portion)


def dismiss(crew: Crew, evaluations: int) -> Program[None]:
    """Wait for stragglers' copies, which no longer count, and stop all workers and shards."""
    while len(crew.idle) < len(crew.living):
        yield from crew.report()
    for w in crew.living:
        yield Send(w, Stop(evaluations))


def worker(coordinator: str, shards: Sequence[str], problem: Objective) -> Program[None]:
    """Compute the gradient of each assigned portion, at an x fetched once per evaluation."""
    fetched, there = -1, Servers(shards, problem)
    while True:
        _, message = yield Recv(Portion, Stop)
        if isinstance(message, Stop):
            break
        if message.evaluation != fetched:
            fetched = message.evaluation
            x = yield from there.fetch(fetched)
        g: Array = yield Compute(problem.gradient, x, 0, message.portion)
        for shard in shards:
            yield Send(shard, Piece(g[there.part[shard]], message.portion, fetched))
        yield Send(coordinator, message)
    for shard in shards:
        yield Send(shard, message)
