"""The times of a job by rank and step, from its trace files."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refsgd.cluster.machine import Machine
from refsgd.cluster.units import as_bytes, as_rate, counted, spoken
from refsgd.experiment.profiles import timeline
from refsgd.experiment.profiles.chrome import MARKS, PHASES, File, Kinds, Span, load, refuse

Matrix = npt.NDArray[np.float64]
#: how often a ring of n ranks sends n - 1 messages in a collective: of all that a rank gives, or of 1/n of it
RING = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
WHOLE = "all_gather"
LATE = 0.05  #: of all steps: how long kernels may run after them before steps of the host mislead


@dataclass(frozen=True)
class Job:
    """What trace files say of a job; rows are ranks, columns are steps, times are in seconds."""

    path: str  #: of its first file
    form: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    world: int  #: ranks of the job, of which some may have no file
    recorded: Matrix  #: of each step, from its first to its last operation
    compute: Matrix  #: of each step, without waiting for other ranks
    exchange: float  #: of a mean step: all ranks wait together for collectives, and for the update after them
    ideal: float  #: of a step's computing if all operations of a kind took their mean
    level: Matrix | None  #: as `compute`, with the operations of all pipeline stages equally long
    stages: tuple[float, ...]  #: of a micro-batch in each stage of a pipeline
    phases: dict[str, float]  #: mean seconds of a step's forward and backward pass and optimiser
    #: by bytes and ranks of the group: number in a step, seconds
    collectives: dict[tuple[str, float, int], tuple[float, float | None]]
    #: all-reduced in a step: bytes, numbers, seconds since the one before
    buckets: tuple[tuple[float, float, float], ...]
    link: tuple[float, float] | None  #: latency [s] and bandwidth [bytes/s] fitted to them
    unknown: tuple[str, ...]

    @property
    def synchronous(self) -> float:
        """Seconds of a step that ends with its slowest rank, mean over steps."""
        return float(self.compute.max(axis=0).mean()) + self.exchange

    def machine(self) -> Machine:
        """A machine whose workers replay the computing of the ranks."""
        latency, bandwidth = self.link or (0.0, math.inf)
        times = [{"family": "replayed", "parameters": row.tolist()} for row in self.compute]
        return Machine.from_json({"compute": times, "latency": latency, "bandwidth": bandwidth})

    def net(self, name: str) -> dict[str, Any] | None:
        """Layers for `--net FILE.json`: a bucket is a layer, in the order of the forward pass."""
        size, took = (sum(each[i] for each in self.buckets) for i in (1, 2))
        return {"name": name, "layers": [
            {"name": f"bucket{i}", "parameters": int(numbers), "activations": 0,
             "operations": 2 * size * seconds / took if took else 2 * numbers}
            for i, (_, numbers, seconds) in enumerate(self.buckets[::-1])]} if self.buckets else None

    def summary(self) -> str:
        """What was read, and what could not be known."""
        share = self.compute.mean(axis=1) / self.compute.mean()
        lines = [f"{self.form}: {counted(len(self.ranks), 'rank')} of {self.world}, "
                 f"{counted(len(self.steps), 'step')}",
                 f"step: {spoken(self.recorded.mean())}; computing {spoken(self.compute.mean())} a rank, "
                 f"{spoken(self.compute.max(axis=0).mean())} the slowest of each step; "
                 f"exchange {spoken(self.exchange)}",
                 f"ranks: {share.min():.3f} to {share.max():.3f} of the mean computing, the slowest rank "
                 f"{self.ranks[int(share.argmax())]}; a rank's steps vary by "
                 f"{(self.compute.std(axis=1) / self.compute.mean(axis=1)).mean():.1%}"]
        lines += [f"{phase}: {spoken(seconds)}" for phase, seconds in self.phases.items()]
        lines += [f"stage {i}: {spoken(seconds)} a micro-batch" for i, seconds in enumerate(self.stages)
                  if len(self.stages) > 1]
        lines += [f"{op}: {count:g} a step" + f" of {as_bytes(size)}" * (size > 0)
                  + f" in groups of {group}" * (group != self.world)
                  + (f", {spoken(seconds)}" if seconds is not None else ", of unknown time")
                  for (op, size, group), (count, seconds) in self.collectives.items()]
        if self.link:
            lines.append(f"link: latency {spoken(self.link[0])}, bandwidth {as_rate(self.link[1])}, fitted "
                         "to collectives over a ring")
        return "\n".join([*lines, *(f"unknown: {each}" for each in self.unknown)])


def read(paths: Sequence[str]) -> Job:
    """The job of one file for each rank, or of one with all."""
    files, ranks, where = [load(path) for path in paths], dict[int, Kinds](), dict[int, str]()
    for file in files:
        if not file.numbered and len(files) > 1:
            refuse(file.path, "no rank", "distributedInfo, or rank N in the name of the file or the process")
        for rank, kinds in file.ranks.items():
            if rank in ranks:
                refuse(file.path, f"rank {rank}, as in {where[rank]}", "one file for each rank")
            ranks[rank], where[rank] = kinds, file.path
    worlds, plain = {file.world for file in files} - {0}, {not kinds.get("step") for kinds in ranks.values()}
    if len(worlds) > 1 or len(plain) > 1:
        refuse(paths[-1], f"jobs of {' and '.join(map(str, sorted(worlds)))} ranks" if len(worlds) > 1
               else "a timeline beside a profile", "files of one job")
    ranks = {rank: ranks[rank] for rank in sorted(ranks)}
    each = [{done.step for done in kinds["done"]} if plain == {True} else _whole(file.path, kinds)
            for kinds in ranks.values()]
    if not (steps := sorted(set.intersection(*each))):
        refuse(paths[-1], "no step that all ranks have", "the same steps of each rank")
    groups = [sent.group for kinds in ranks.values() for sent in kinds.get("sent", [])]
    world, lacking = max([len(ranks), *worlds, *groups]), set.union(*each) - set(steps)
    notes = [text for text, holds in (
        (f"the rank, taken as {min(ranks)}", not files[0].numbered),
        (f"{len(lacking)} steps that some ranks lack, left out", lacking),
        (f"the other {world - len(ranks)} ranks: waiting for them counts as exchange", world > len(ranks)),
        ("how steps vary: there is one", len(steps) == 1)) if holds]
    return (_of_timeline if plain == {True} else _of_profile)(files[0], ranks, steps, world, notes)


def _whole(path: str, kinds: Kinds) -> set[int]:
    """The steps in which something is trained; the last may only have begun."""
    numbers = [each.step for each in kinds["step"]]
    if twice := next((step for step in numbers if numbers.count(step) > 1), None):
        refuse(path, f"step {twice} appears twice", "each step of a rank once")
    marks = [mark.start for kind in MARKS for mark in kinds.get(kind, [])]
    return {each.step for each in kinds["step"] if any(each.start <= at < each.end for at in marks)}


def _of_timeline(file: File, ranks: dict[int, Kinds], steps: list[int], world: int, notes: list[str]) -> Job:
    """The job of plain timelines."""
    stage = {rank: timeline.stages(kinds["done"]) for rank, kinds in ranks.items()}
    done = {(rank, step): list[Span]() for rank in ranks for step in steps}
    for rank, kinds in ranks.items():
        for each in kinds["done"]:
            done.get((rank, each.step), []).append(each)
    moves = {key: timeline.moves(some, stage[key[0]]) for key, some in done.items()}
    if not all(moves.values()):
        refuse(file.path, "steps without forward-compute or backward-compute", "the passes of each step")
    every = [move for some in moves.values() for move in some]
    mean = {kind: float(np.mean([m.seconds for m in every if m.kind == kind])) for kind in PHASES[:2]
            if any(m.kind == kind for m in every)}
    hop, count = timeline.hop(e for some in done.values() for e in some), 1 + max(m.stage for m in every)

    def matrix(price: Callable[[list[timeline.Move]], list[timeline.Move]]) -> Matrix:
        return np.array([[timeline.makespan(file.path, price(moves[rank, step]), hop) for step in steps]
                         for rank in ranks])

    ideal = matrix(lambda some: [move._replace(seconds=mean[move.kind]) for move in some])
    others = timeline.exchanges(done, steps)
    by_stage = [sum(float(np.mean([m.seconds for m in every if (m.kind, m.stage) == (kind, s)] or [0.0]))
                    for kind in mean) for s in range(count)]
    recorded = [[max(e.end for e in done[r, s]) - min(done[r, s]).start for s in steps] for r in ranks]
    return Job(
        file.path, "timeline", tuple(ranks), tuple(steps), world, np.array(recorded), matrix(list),
        sum(others.values()), float(ideal.mean()), matrix(timeline.levelled) if count > 1 else None,
        tuple(by_stage), mean, {(name, 0.0, world): (1, took) for name, took in others.items() if took}, (),
        None, (*notes, "bytes of collectives, and so latency and bandwidth", "layers"))


def _of_profile(file: File, ranks: dict[int, Kinds], steps: list[int], world: int, notes: list[str]) -> Job:
    """The job of PyTorch's profiles."""
    recorded, exposed = np.zeros((2, len(ranks), len(steps)))
    phases, sent = defaultdict[str, list[float]](list), defaultdict[Any, list[float]](list)
    for i, kinds in enumerate(ranks.values()):
        autograd = kinds.get("autograd", [])
        computed = kinds.get("kernel") or kinds.get("operator", []) + autograd
        busy = _times(computed)
        both = _times(computed + [e for e in kinds.get("sent", []) if e.thread != "nccl"])
        host, spans = {each.step: each for each in kinds["step"]}, _steps(file.path, kinds)
        parts = {(phase + " on the host" * (not on_gpu and bool(kinds.get("kernel")))): (
            spans if on_gpu else host, _times(on_gpu or kinds.get(phase) or autograd * (phase == "backward")))
            for phase in PHASES for on_gpu in [kinds.get(f"gpu {phase}", [])]}
        for k, number in enumerate(steps):
            step = spans[number]
            recorded[i, k] = step.end - step.start
            exposed[i, k] = _covered(both, step) - _covered(busy, step)
            for phase, (own, some) in parts.items():
                phases[phase].append(_covered(some, own[number]))
            turn = defaultdict[Any, int](int)
            for each in sorted(kinds.get("sent", [])):
                within = host[number] if each.thread == "nccl" else step
                if within.start <= each.start < within.end:
                    key = each.name, each.nbytes, each.group or world, each.thread != "nccl"
                    sent[*key, k, turn[key]].append(each.end - each.start)
                    turn[key] += 1
    taken, kernels = defaultdict[Any, list[float]](list), {key[:2] for key in sent if key[3]}
    for (op, nbytes, group, timed, *_), found in sent.items():  # the last to come waits least
        if timed or (op, nbytes) not in kernels:
            taken[op, nbytes, group, timed].append(min(found))
    collectives = {(op, nbytes, group): (len(took) / len(steps), float(np.median(took)) if timed else None)
                   for (op, nbytes, group, timed), took in taken.items()}
    if all(seconds is None for _, seconds in collectives.values()):
        notes.append("seconds of collectives: " + ("only their launch" if sent else "there are none"))
    link, why = _fitted(collectives)
    first = next(iter(ranks.values()))  # a step of gradient accumulation may have none
    buckets = next(filter(None, (_buckets(file.path, first, step) for step in reversed(steps))), ())
    if buckets and (width := buckets[0][0] / buckets[0][1]) != 4:
        notes.append(f"a net whose numbers have {width:g} bytes, as the job exchanged: --net counts 4 each")
    compute = recorded - exposed
    if not (compute > 0).all():
        refuse(file.path, "steps without computing", "operators or kernels in each step")
    return Job(file.path, "profile of PyTorch", tuple(ranks), tuple(steps), world, recorded, compute,
               float(exposed.min(axis=0).mean()), float(compute.mean()), None, (),
               {phase: float(np.mean(took)) for phase, took in phases.items() if any(took)}, collectives,
               buckets, link,
               (*notes, *why, *["layers: no bucket has its bytes"] * (not buckets)))


def _steps(path: str, kinds: Kinds) -> dict[int, Span]:
    """A rank's steps, each until host and GPU are done: the host may run ahead, and launch later steps."""
    host, gpu = sorted(kinds["step"]), kinds.get("gpu step", [])
    late = max((each.end for each in kinds.get("kernel", [])), default=0.0) - host[-1].end
    if not gpu and late > LATE * sum(each.end - each.start for each in host):
        refuse(path, f"kernels end {spoken(late)} after the last step, whose marks are the host's",
               "marks of steps on the GPU, gpu_user_annotation, or torch.cuda.synchronize() before p.step()")
    found, at = dict[int, Span](), -math.inf
    for each in host:
        own = [mark for mark in gpu if mark.step == each.step]
        end = max([each.end, *(mark.end for mark in own)])
        behind = not found and end > each.end  # kernels of steps before the first are not recorded
        at = min(mark.start for mark in own) if behind else max(at, each.start)
        found[each.step] = each._replace(start=at, end=end)
        at = end
    return found


def _times(some: Sequence[Span]) -> Matrix:
    """Beginnings and ends, by beginning."""
    return np.array(sorted(each[:2] for each in some)).reshape(-1, 2)


def _covered(some: Matrix, step: Span) -> float:
    """Seconds of a step that some spans cover."""
    found = np.clip(some[(some[:, 1] > step.start) & (some[:, 0] < step.end)], step.start, step.end)
    before = np.maximum.accumulate(np.append(step.start, found[:-1, 1]))[:len(found)]
    return float(np.maximum(found[:, 1] - np.maximum(found[:, 0], before), 0).sum())


def _buckets(path: str, kinds: Kinds, number: int) -> tuple[tuple[float, float, float], ...]:
    """All-reduces from a step's backward pass to its optimiser: bytes, numbers, seconds since the last."""
    sent = [each for each in sorted(kinds.get("sent", [])) if each.name == "all_reduce"]
    kernels = [each for each in sent if each.thread == "kernel"]
    launched = [each for each in sent if each.thread != "kernel"]
    if len(launched) == len(kernels):  # without record_shapes only kernels have sizes, in the same order
        launched = [each if each.nbytes else each._replace(nbytes=kernel.nbytes, numbers=kernel.numbers)
                    for each, kernel in zip(launched, kernels, strict=True)]
    host = {each.step: each for each in kinds["step"]}
    for some, where, steps in (launched, "", host), (kernels, "gpu ", _steps(path, kinds)):
        step, passes = steps[number], kinds.get(where + "backward") or kinds.get(where + "autograd", [])
        at = min((each.start for each in passes if step.start <= each.start < step.end), default=step.start)
        end = min([step.end, *(each.start for each in kinds.get(where + "optimiser", []) if each.start > at)])
        found = [each for each in some if each.nbytes and at <= each.start < end]
        if found:
            starts = [at, *(each.start for each in found)]
            return tuple((each.nbytes, each.numbers, each.start - before)
                         for each, before in zip(found, starts, strict=False))
    return ()


def _fitted(collectives: Mapping[tuple[str, float, int], tuple[float, float | None]]
            ) -> tuple[tuple[float, float] | None, list[str]]:
    """Latency and bandwidth of a ring from sizes that differ, or why there are none."""
    rows = np.array([(RING[op] * (n - 1), RING[op] * (n - 1) * size / (1 if op == WHOLE else n), seconds)
                     for (op, size, n), (_, seconds) in collectives.items()
                     if op in RING and n > 1 and size and seconds]).reshape(-1, 3)
    if not len(rows) or rows[:, 1].max() < 2 * rows[:, 1].min():
        why = "collectives of one size do not tell them apart" if len(rows) else "no collective has both"
        return None, [f"latency and bandwidth: {why}"]
    (latency, each), *_ = np.linalg.lstsq(rows[:, :2] / rows[:, 2:], np.ones(len(rows)), rcond=None)
    if latency < 0:
        latency, each = 0.0, float(np.mean(rows[:, 2] / rows[:, 1]))
    if each <= 0:
        return None, ["latency and bandwidth: larger collectives take no longer"]
    return (float(latency), float(1 / each)), []
