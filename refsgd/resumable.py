"""Runs that write checkpoints: one that is stopped goes on from its last, bit for bit as if it had never been stopped.

It goes on in two steps.  Fresh programs are led to where the old ones stood, by the record of what they received and chose;
what they compute on the way does not matter, so stand-ins of the same shape take its place.  Then everything that the old
ones held is put where the fresh ones hold something.  A program that decides by what it computes comes elsewhere in this
way; then all is computed again.  `refsgd.checkpoint` is the file.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsgd.checkpoint import Checkpoint, CheckpointError, files, read, write
from refsgd.effects import Deployment, Factory, Node
from refsgd.machine import Machine
from refsgd.runtimes.board import anonymous
from refsgd.runtimes.mailbox import Letter
from refsgd.runtimes.node import Beginning, Driver
from refsgd.runtimes.pause import Pause
from refsgd.runtimes.programs import perform as compute
from refsgd.runtimes.replay import Replayer, ReplayError, Steps, record, step
from refsgd.runtimes.simulator import Simulator
from refsgd.runtimes.snapshot import Constants, Mismatch, Snapshot, StandIns, look, restore
from refsgd.trace import Event, Run, is_worker

log = logging.getLogger("refsgd.resumable")

KEPT = 2  #: checkpoints of a folder: the last one, and the one before it in case the last one is damaged


@dataclass
class Plan:
    """Where and when a run writes checkpoints.

    Attributes
    ----------
    folder : Path
    header : dict
        Of all its checkpoints.
    every : int
        Iterations of the first worker between two; 0: only on request.
    requested : bool
        Whether one is wanted now.
    written : list of Path
        Those of this run, oldest first; all but the last `KEPT` have been removed.
    """

    folder: Path
    header: Mapping[str, Any]
    every: int
    requested: bool = False
    written: list[Path] = field(default_factory=list)

    def prepare(self) -> None:
        """Make the folder, remove what a killed run has left unfinished; number new checkpoints behind those that are there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for unfinished in [*self.folder.glob(".part-*"), *self.folder.glob(".checkpoint-*")]:
            unfinished.unlink(missing_ok=True)
        self._number = max((int(path.name[-6:]) for path in files(self.folder)), default=-1) + 1

    def request(self) -> None:
        """Want one now."""
        self.requested = True

    def write(self, steps: Steps, state: Mapping[str, Snapshot], **facts: Any) -> None:
        """Write the next checkpoint and remove what is older than the one before it."""
        path = self.folder / f"checkpoint-{self._number:06d}"
        write(path, Checkpoint({**self.header, **facts}, steps, dict(state)))
        self._number, self.requested = self._number + 1, False
        self.written.append(path)
        for old in files(self.folder)[:-KEPT]:
            old.unlink()


# -- in virtual time ---------------------------------------------------------------------------------------


def simulate(factory: Factory, machine: Machine, seed: int, plan: Plan | None = None, start: Checkpoint | None = None,
             journal: Callable[[Event], None] | None = None) -> Run:
    """Run in virtual time, writing checkpoints or going on from one."""
    if start is None:
        simulator, constants = _fresh(factory, machine, seed)
    else:
        simulator, constants = _forwarded(factory, machine, seed, start)
    for event in simulator.events if journal is not None else ():
        journal(event)  # type: ignore[misc]
    simulator.journal = journal
    advances = start.header["advances"] if start is not None else 0
    seen = len(simulator.events)
    progress = Progress(simulator.nodes, start.header["iterations"] if start is not None else 0)
    while simulator.advance():
        advances += 1
        due = progress.look(simulator.events[seen:], plan)
        seen = len(simulator.events)
        if plan is not None and (due or plan.requested):
            plan.write(_steps(simulator), {"simulator": look(_roots(simulator), constants)}, seconds=simulator.now,
                       iterations=progress.iterations, advances=advances)
    return simulator.run()


class Progress:
    """Counts the iterations of the first worker, by which checkpoints are due.

    Parameters
    ----------
    nodes : sequence of str
    iterations : int
        Of the first worker, done before.
    """

    def __init__(self, nodes: Sequence[str], iterations: int = 0) -> None:
        self.first, self.iterations = next((node for node in nodes if is_worker(node)), ""), iterations

    def look(self, events: Iterable[Event], plan: Plan | None) -> bool:
        """Whether one is due after these events."""
        before = self.iterations
        self.iterations += sum(e.node == self.first and e.kind == "compute" and e.data["work"] == "gradient" for e in events)
        return plan is not None and plan.every > 0 and self.iterations // plan.every > before // plan.every


def _fresh(factory: Factory, machine: Machine, seed: int) -> tuple[Simulator, Constants]:
    deployment = factory()
    constants = Constants(_programs(deployment))
    return Simulator(deployment, machine, seed), constants


def _forwarded(factory: Factory, machine: Machine, seed: int, start: Checkpoint) -> tuple[Simulator, Constants]:
    """A simulator that stands where the checkpoint was made: with stand-ins, or by computing all again."""
    for evaluate in (StandIns(), compute):
        simulator, constants = _fresh(factory, machine, seed)
        simulator.evaluate = evaluate
        try:
            for _ in range(start.header["advances"]):
                if not simulator.advance():
                    raise Mismatch("the run has ended before")
            if _steps(simulator) != start.steps:
                raise Mismatch("another schedule")
            restore(_roots(simulator), constants, start.state["simulator"])
        except (Mismatch, ArithmeticError, ValueError, LookupError, TypeError) as error:
            if evaluate is compute:
                raise CheckpointError(f"{start.path}: the programs do not arrive where the checkpoint was made ({error}); expected the same "
                                      "library version, data and kind of processor") from None
            log.info("stand-ins lead elsewhere (%s): computing everything again up to the checkpoint", error)
            continue
        simulator.evaluate = compute
        if evaluate is not compute:
            simulator.forget_parameters()
        break
    return simulator, constants


def _steps(simulator: Simulator) -> Steps:
    return record(simulator.trace())


def _roots(simulator: Simulator) -> Any:
    """Everything that decides how a simulation goes on, but for what its schedule decides."""
    programs = [(p.program, p.waiting) for p in simulator.processes]
    letters = [[tuple(letter) for letter in box.letters] for box in simulator.boxes.values()]
    return programs, letters, simulator.pending(), simulator.values, simulator.cells


# -- in real processes -------------------------------------------------------------------------------------


class Meeting:
    """What the processes of a run do with checkpoints: made before the fork, used in each of them.

    Parameters
    ----------
    factory, machine
        Of the run.
    plan : Plan, optional
        When and where to write.
    start : Checkpoint, optional
        Where to begin.
    memory : callable
        As of `refsgd.runtimes.pause.Pause`.

    Attributes
    ----------
    pause : Pause or None
    beginning : Beginning or None
        For `refsgd.runtimes.processes.run`.
    """

    def __init__(self, factory: Factory, machine: Machine, plan: Plan | None, start: Checkpoint | None,
                 memory: Callable[[int], Any] = anonymous) -> None:
        self._plan, self._start = plan, start
        self.beginning: Beginning | None = None
        if start is not None:
            self.beginning, self._constants = _beginning(factory, start)
            self.deployment = self.beginning.deployment
        else:
            self.deployment = factory()
            self._constants = Constants(_programs(self.deployment))
        self._host = machine.hosts(self.deployment)
        self._hosts = list(dict.fromkeys(self._host.values()))
        self.pause = Pause(list(self.deployment), self._hosts, self._save, self._gather, memory) if plan is not None else None
        self._progress = Progress(list(self.deployment), start.header["iterations"] if start is not None else 0)

    def journal(self, event: Event) -> None:
        """Told of each event of a process: ask for a checkpoint when one is due."""
        if event.kind == "add" and event.data["ticket"] is None:
            raise ReplayError("additions without a lock happen in no order that could be recorded; expected hogwild --atomic")
        if self._progress.look((event,), self._plan) and self.pause is not None:
            self.pause.want()

    def _part(self, host: str) -> Path:
        assert self._plan is not None
        return self._plan.folder / f".part-{self._hosts.index(host)}"

    def _save(self, driver: Driver) -> None:
        """In every process: what its nodes did and hold."""
        nodes = list(driver.boxes)
        steps: Steps = {node: list(self._start.steps[node]) if self._start is not None else [] for node in nodes}
        for event in driver.events:
            steps[event.node].append(step(event))
        state = {node: look(_node_roots(driver.programs(node), driver.letters(node), driver.values.get(node), self.deployment[node]),
                            self._constants) for node in nodes}
        write(self._part(driver.here), Checkpoint({"nodes": nodes, "seconds": driver.now, "iterations": self._progress.iterations},
                                                  steps, state))

    def _gather(self) -> None:
        """In one process: join the parts of all."""
        assert self._plan is not None
        parts = [read(self._part(host), part=True) for host in self._hosts]
        steps = {node: found for part in parts for node, found in part.steps.items()}
        self._plan.write({node: steps[node] for node in self.deployment}, {k: v for part in parts for k, v in part.state.items()},
                         seconds=max(part.header["seconds"] for part in parts),
                         iterations=max(part.header["iterations"] for part in parts))
        for host in self._hosts:
            self._part(host).unlink()


def _programs(deployment: Deployment) -> list[Any]:
    return [p for node in deployment.values() for p in (node.main, *node.responders)]


def _node_roots(programs: Sequence[tuple[Any, Any]], letters: Sequence[Letter], value: Any, node: Node) -> Any:
    """Everything that a node holds; what a message holds is its fields, whichever way it came."""
    return programs, [(letter.src, letter.number, tuple(letter.body)) for letter in letters], value, [cell.x for cell in node.cells]


def _beginning(factory: Factory, start: Checkpoint) -> tuple[Beginning, Constants]:
    """Programs that stand where the checkpoint was made: with stand-ins, or by computing all again."""
    for evaluate in (StandIns(), compute):
        fresh = factory()
        constants = Constants(_programs(fresh))
        replayer = Replayer(lambda fresh=fresh: fresh, start.steps, evaluate=evaluate)  # type: ignore[misc]
        try:
            replayer.run()
            letters = {node: replayer.letters(node) for node in fresh}
            for node in fresh:
                restore(_node_roots(replayer.standing(node), letters[node], replayer.values.get(node), fresh[node]), constants,
                        start.state[node])
        except (Mismatch, ReplayError, ArithmeticError, ValueError, LookupError, TypeError) as error:
            if evaluate is compute:
                raise CheckpointError(f"{start.path}: the programs do not arrive where the checkpoint was made ({error}); expected the same "
                                      "library version, data and kind of processor") from None
            log.info("stand-ins lead elsewhere (%s): computing everything again up to the checkpoint", error)
            continue
        if evaluate is not compute:
            for event in replayer.events:
                if event.kind == "mark":
                    event.data.pop("x", None)
        break
    numbers = {channel: len(bodies) for channel, bodies in replayer.sent.items()}
    return Beginning(fresh, start.header["seconds"], replayer.pending, letters, numbers, replayer.drawn, replayer.tickets, replayer.values,
                     replayer.events), constants


def perform(factory: Factory, machine: Machine, seed: int, runtime: str, plan: Plan | None, start: Checkpoint | None,
            journal: Callable[[Event], None] | None = None, on_start: Callable[[dict[str, int]], None] | None = None,
            largest: int | None = None) -> Run:
    """Run in virtual time or as OS processes, writing checkpoints or going on from one."""
    if plan is not None:
        plan.prepare()
    if runtime == "simulator":
        with on_request(plan.request if plan is not None else None):
            return simulate(factory, machine, seed, plan, start, journal)
    from refsgd.runtimes import mpi, processes

    meeting = Meeting(factory, machine, plan, start, mpi.shared_bytes if runtime == "mpi" else anonymous)

    def tell(event: Event) -> None:
        meeting.journal(event)
        if journal is not None:
            journal(event)

    for event in meeting.beginning.events if meeting.beginning is not None and journal is not None else ():
        journal(event)  # type: ignore[misc]
    with on_request(meeting.pause.want if meeting.pause is not None else None):
        if runtime == "mpi":
            run = mpi.run(meeting.deployment, machine, seed, everywhere=True, journal=tell, pause=meeting.pause,
                          beginning=meeting.beginning, largest=largest)
            assert run is not None
            return run
        return processes.run(meeting.deployment, machine, seed, transport="shm" if runtime == "processes" else runtime, on_start=on_start,
                             journal=tell, pause=meeting.pause, beginning=meeting.beginning, largest=largest)


@contextlib.contextmanager
def on_request(do: Callable[[], None] | None) -> Iterator[None]:
    """Call `do` at SIGUSR1, while the block runs; nothing where a signal has no use (another thread, no such signal)."""
    if do is None or not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
