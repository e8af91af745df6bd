"""A step again, in its order, with other durations: timelines of micro-batches in stages of a pipeline.

Passes keep their order in each stage.  One begins when the one before it and the same micro-batch in the
stage that it depends on have ended (Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI 2025).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refsgd.experiment.profiles.chrome import Span, refuse

PASS, MESSAGE = re.compile(r"(forward|backward)(?!.*(send|recv))"), re.compile(r".*(send|recv)")


class Move(NamedTuple):
    """A pass of a micro-batch through a stage."""

    kind: str  #: "forward" or "backward"
    stage: int
    chunk: int  #: of the layers of an interleaved stage
    number: int  #: of the micro-batch
    seconds: float


def stages(done: Sequence[Span]) -> dict[str, int]:
    """The stage of each thread that computes: threads with both passes, by their first forward pass."""
    first, kinds = dict[str, tuple[int, float]](), defaultdict[str, set[str]](set)
    for each in sorted(done, key=lambda each: (each.step, each.start)):
        if kind := PASS.match(each.name):
            kinds[each.thread].add(kind[1])
            first.setdefault(each.thread, (each.step, each.start))
    apart = all(len(some) == 2 for some in kinds.values())
    return {thread: i * apart for i, thread in enumerate(sorted(first, key=first.__getitem__))}


def moves(done: Sequence[Span], stage: Mapping[str, int]) -> list[Move]:
    """The passes of a rank's step, by their beginning."""
    found, turn = list[Move](), defaultdict[tuple[str, int, int], int](int)
    for each in sorted(done):
        if kind := PASS.match(each.name):
            key = kind[1], stage[each.thread], each.chunk
            found.append(Move(*key, turn[key], each.end - each.start))
            turn[key] += 1
    return found


def levelled(some: Sequence[Move]) -> list[Move]:
    """The passes with the mean over stages of each micro-batch's."""
    took = defaultdict[tuple[str, int], list[float]](list)
    for each in some:
        took[each.kind, each.number].append(each.seconds)
    return [each._replace(seconds=float(np.mean(took[each.kind, each.number]))) for each in some]


def hop(done: Iterable[Span]) -> float:
    """Seconds of a message between stages: few wait for nothing, so a low quantile."""
    took = [each.end - each.start for each in done if MESSAGE.match(each.name)]
    return float(np.quantile(took, 0.1)) if took else 0.0


def makespan(path: str, some: Sequence[Move], hop: float) -> float:
    """Seconds of a step whose passes keep their order in each stage."""
    last, top = max(each.stage for each in some), max(each.chunk for each in some)
    queues = [[each for each in some if each.stage == stage][::-1] for stage in range(last + 1)]
    waiting, free = {each[:4] for each in some}, [0.0] * (last + 1)
    ended = dict[tuple[str, int, int, int], float]()
    while any(queues):
        before = len(ended)
        for stage, queue in enumerate(queues):
            while queue:
                kind, _, chunk, number, seconds = queue[-1]
                step = 1 if kind == "backward" else -1
                need = kind, stage + step, chunk, number
                if not 0 <= need[1] <= last and 0 <= chunk + step <= top:  # at the other end of another chunk
                    need = kind, need[1] % (last + 1), chunk + step, number
                if need in waiting and need not in ended:
                    break
                free[stage] = max(free[stage], ended.get(need, -hop) + hop) + seconds
                ended[kind, stage, chunk, number] = free[stage]
                queue.pop()
        if len(ended) == before:
            refuse(path, "passes that wait for each other", "one order of micro-batches in all stages")
    return max(free)


def exchanges(done: Mapping[tuple[int, int], Sequence[Span]], steps: Sequence[int]) -> dict[str, float]:
    """Seconds in a step of each kind of other operation, by the rank that waits least: the last one."""
    took = defaultdict[tuple[str, int, int, str], float](float)
    for (rank, step), some in done.items():
        for each in some:
            if not PASS.match(each.name) and not MESSAGE.match(each.name):
                took[each.name, step, rank, each.thread] += each.end - each.start
    longest, least = defaultdict[tuple[str, int, int], float](float), dict[tuple[str, int], float]()
    for (name, step, rank, _), seconds in took.items():
        longest[name, step, rank] = max(longest[name, step, rank], seconds)
    for (name, step, _), seconds in longest.items():
        least[name, step] = min(least.get((name, step), seconds), seconds)
    return {name: float(np.mean([least.get((name, step), 0.0) for step in steps]))
            for name in sorted({name for name, _ in least})}
