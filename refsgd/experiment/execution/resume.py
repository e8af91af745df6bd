"""Checkpoints: a run writes its record into a folder while it runs, and a later run continues from there.

In virtual time the run is computed again, and its events must match the record; for processes, the programs
are replayed before the fork.  Each attempt after a death has a record of its own: ``record-1``, ...
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from refsgd.effects import Deployment, Died, Factory, roles
from refsgd.experiment.arguments import Usage
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.faults import Fault, Halted, survives_workers
from refsgd.runtimes.fork import LAUNCHERS
from refsgd.runtimes.journal import Journal, Record, lock, read
from refsgd.runtimes.mailbox import Envelope, tag_of
from refsgd.runtimes.replay import Replayer
from refsgd.trace import Computed, Crashed, Event, Returned, Trace, taken
from refsgd.trace.codec import NOTICE, Steps, row_of
from refsgd.trace.schema import json_text

if TYPE_CHECKING:
    from refsgd.runtimes.processes.driver import Beginning

NAME = "record"  #: the file of a run's first attempt in the checkpoint's folder
Listener = Callable[[Event], None]


def file_of(first: Path, attempt: int) -> Path:
    """The record of an attempt, in the same folder as the first one."""
    return first.with_name(f"{first.name}-{attempt}") if attempt else first


def first_file(place: str | Path) -> Path:
    """The record of the first attempt at `place`, a folder or that file."""
    return Path(place) / NAME if Path(place).is_dir() else Path(place)


def stored(place: str | Path) -> list[Record]:
    """The records of all attempts of the run at `place`."""
    first = first_file(place)
    if not first.exists():
        raise Usage(f"no record at {first}; expected a folder that --checkpoint wrote to, or a record")
    found = [read(first)]
    while (path := file_of(first, len(found))).exists():
        found.append(read(path))
    return found


def ready(folder: str | Path, continued: bool, runtime: str) -> int:
    """Create the folder of a checkpoint, or refuse it; it is this run's until the descriptor is closed."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise Usage(f"checkpoint {folder}; expected a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        owner = os.open(folder, os.O_RDONLY)
        _in_order(runtime, lambda first: lock(owner) if first else None)
    except OSError as error:
        raise Usage(
            f"checkpoint {folder} is not writable ({error.strerror}); expected a folder that you may write "
            "to, or a new name in one") from None
    if (folder / NAME).exists() and not continued:
        os.close(owner)
        raise Usage(f"checkpoint {folder} holds the record of a run; expected also --resume {folder}, to "
                    "continue that run, or another folder")
    for unfinished in folder.glob(f".{NAME}*"):
        unfinished.unlink(missing_ok=True)
    return owner


Made = TypeVar("Made")


def _in_order(runtime: str, make: Callable[[bool], Made]) -> Made:
    """Call `make` with True; over MPI and torch only on rank 0, and then with False on the others."""
    if runtime in LAUNCHERS:
        from refsgd.runtimes.processes import mpi

        return mpi.in_order(make, runtime)
    return make(True)


# -- where a resumed run continues -------------------------------------------------------------------------


def revived(record: Record, deployment: Deployment, host: Mapping[str, str]) -> list[str]:
    """The nodes whose death ended a run, and which a resumed run therefore brings back."""
    # under `stop` all, else a server with its host, or the last host of workers if no worker is left
    dead = [e.node for e in sorted((e for rows in record.steps.values() for e in rows
                                    if isinstance(e, Crashed)), key=lambda e: e.time)]
    role, on_death = roles(deployment), record.header["on_death"]
    if record.end is not None or on_death == "stop":
        return dead if record.end is None else []
    last = [node for node in dead if role[node] == "server"]
    alone = "server" not in role.values() or (on_death == "shrink" and not survives_workers(deployment))
    if alone and not last and all(node in dead for node in role if role[node] == "worker"):
        last = dead[-1:]
    return [node for node in dead if host[node] in {host[n] for n in last}]


def dead_in(steps: Steps) -> list[str]:
    """The nodes that die in these steps."""
    return [node for node, done in steps.items() if any(isinstance(step, Crashed) for step in done)]


def standing(factory: Factory, steps: Steps) -> tuple[Beginning, Steps]:
    """Where processes start, and the steps until there, before any unrecorded access to shared memory."""
    from refsgd.runtimes.processes.driver import Beginning

    replayer = Replayer(factory, steps)
    replayer.run(whole=not any(node.cells for node in replayer.deployment.values()))
    steps = {node: rows[: replayer.at[node]] for node, rows in steps.items()}
    dead = dead_in(steps)
    letters = {node: replayer.envelopes(node) for node in replayer.nodes}
    for node, rows in steps.items():
        heard = {message[0] for message in map(taken, rows) if message and message[2] == NOTICE}
        letters[node] += [Envelope(gone, tag_of(Died), (gone,), NOTICE, 0.0, 0)
                          for gone in dead if gone not in heard]
    numbers = {channel: len(bodies) for channel, bodies in replayer.sent.items()}
    seconds = max((e.time for e in replayer.events), default=0.0)
    kept = {node: list(newest) for node, newest in replayer.kept.items()}
    return Beginning(replayer.deployment, seconds, replayer.pending, letters, numbers, replayer.drawn,
                     replayer.tickets, replayer.values, replayer.events, kept, dead), steps


def halted(factory: Factory, steps: Steps) -> Halted:
    """The end of a halted attempt, reproduced from its record."""
    replayer = Replayer(factory, steps)
    run = replayer.run(whole=False)
    dead = dead_in(steps)
    return Halted(run, {node: list(x) for node, x in replayer.kept.items() if node not in dead})


# -- what a run writes -------------------------------------------------------------------------------------


@dataclass
class Records:
    """The records that a run writes, one for each attempt, and those of the run that it continues."""

    header: Mapping[str, Any]  #: describes the run
    runtime: str
    record: str | Path | None = None  #: the file for the record of the first attempt
    folder: Path | None = None  #: the folder for the records of all attempts, for resuming
    #: iterations of the first worker between flushes of the folder's record to the disk; 0: on request
    every: int = 0
    start: Sequence[Record] = ()  #: the records of the continued run
    place: str | Path = ""  #: their location, for errors
    owner: int = -1  #: the descriptor by which the folder belongs to this run
    journals: list[Journal] = field(default_factory=list)

    def recorded(self, attempt: int, faults: Sequence[Fault], deployment: Deployment,
                 host: Mapping[str, str]) -> tuple[Steps | None, Sequence[Fault]]:
        """The steps of an attempt, if it had begun, and its faults, without the death that ended it."""
        if attempt >= len(self.start):
            return None, faults
        record = self.start[attempt]
        alive = revived(record, deployment, host) if attempt + 1 == len(self.start) else []
        begun = {node: sum(isinstance(step, Computed) for step in record.steps[node]) for node in alive}
        steps = {node: [step for step in rows if node not in alive or not isinstance(step, Crashed)]
                 for node, rows in record.steps.items()}
        return steps, [fault for fault in map(lambda row: Fault(*row), record.header["faults"])
                       if fault.kind not in ("kill", "drop") or fault.step > begun.get(fault.node, -1)]

    def has_ended(self, attempt: int, steps: Steps) -> bool:
        """Whether an attempt of the continued run was halted, or can be halted because a node died."""
        done = all(any(step.program == 0 and isinstance(step, Returned | Crashed) for step in rows)
                   for rows in steps.values())
        return attempt + 1 < len(self.start) or (bool(dead_in(steps)) and not done)

    def again(self, attempt: int, roles: Mapping[str, str], steps: Steps,
              faults: Sequence[Fault]) -> tuple[Listener | None, Callable[[], None]]:
        """The listener of an attempt in virtual time, and the function to call at its end."""
        tell = self.begin(attempt, roles, {}, faults, moved=False)
        rows, left = {node: enumerate(done) for node, done in steps.items()}, sum(map(len, steps.values()))

        def caught_up() -> None:
            if self.folder is not None:
                self.journals[0].move(file_of(self.folder / NAME, attempt))

        if not left:
            caught_up()
            return tell, lambda: None
        place = file_of(Path(self.place), attempt)
        alike = "expected the same library version, data and processor type"

        def follow(event: Event) -> None:
            nonlocal left
            if tell is not None:
                tell(event)
            step, recorded = next(rows.get(event.node, iter(())), (0, None))
            if recorded is None:
                return
            told, expected = row_of(event), row_of(recorded)
            if told != expected and json.loads(json_text(told)) != expected:
                raise ReplayError(f"{place}: {event.node}, step {step}: recorded {expected}, but the program "
                                  f"gives {told}; {alike}")
            left -= 1
            if not left:
                caught_up()

        def ended() -> None:
            if left:
                raise ReplayError(f"{place}: the run ends {left} steps before its record; {alike}")

        return follow, ended

    def begin(self, attempt: int, roles: Mapping[str, str], steps: Steps, faults: Sequence[Fault] = (),
              moved: bool = True) -> Listener | None:
        """The listener of an attempt whose record begins with `steps`, under its final name if `moved`."""
        self._close_journals()
        self.header = {**self.header, "faults": [list(fault) for fault in faults]}
        if self.folder is not None:
            path = file_of(self.folder / NAME, attempt)
            self.journals.append(
                self._made(path.with_name(f".{path.name}"), list(roles), steps, path if moved else None))
        if self.record is not None and not attempt:
            self.journals.append(self._made(self.record, list(roles), steps, None))
        if not self.journals:
            return None
        first, done = next((node for node, role in roles.items() if role == "worker"), ""), 0

        def tell(event: Event) -> None:
            nonlocal done
            for journal in self.journals:
                journal(event)
            done += event.node == first and isinstance(event, Computed) and event.gradient_ended
            if self.every and self.folder is not None and done >= self.every:
                done = 0
                self.journals[0].sync()

        return tell

    def _made(self, path: str | Path, nodes: Sequence[str], steps: Steps, final: Path | None) -> Journal:
        def make(first: bool) -> Journal:
            journal = Journal(path if first else final or path, self.header, nodes, made=not first)
            if first:
                journal.repeat(steps)
                if final:
                    journal.move(final)
            return journal

        try:
            return _in_order(self.runtime, make)
        except OSError as error:
            raise Usage(f"the record {path} cannot be written ({error.strerror}); expected the name of a "
                        "file that you may write") from None

    def flush(self) -> None:
        """Flush the record to the disk now."""
        for journal in self.journals:
            journal.sync()

    def finish(self, trace: Trace, parameters_sha256: str) -> None:
        """Finish the records after a successful run."""
        for journal in self.journals:
            journal.finish(trace, parameters_sha256)

    def close(self) -> None:
        """Close the files, and leave the folder to others."""
        self._close_journals()
        if self.owner >= 0:
            os.close(self.owner)

    def _close_journals(self) -> None:
        while self.journals:
            self.journals.pop().close()


@contextlib.contextmanager
def on_request(do: Callable[[], None] | None) -> Iterator[None]:
    """Call `do` at SIGUSR1 while the block runs; no effect in another thread or without this signal."""
    main = threading.current_thread() is threading.main_thread()
    if do is None or not main or not hasattr(signal, "SIGUSR1"):
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
