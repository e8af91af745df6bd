"""One run on several computers: each has a launcher that starts and watches its own processes; the first one decides.

The launchers talk over one authenticated connection each to the first (`refsgd.runtimes.talk`).  The first launcher sees
the others' processes as rows of its own notice board, so it starts, counts and ends the run as on one machine.  Whoever
loses its connection, or fails, ends the run everywhere with one error.
"""

from __future__ import annotations

import hmac
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from refsgd.effects import Deployment
from refsgd.machine import Machine
from refsgd.runtimes.board import (
    BEAT,
    CLOSE,
    COMMAND,
    DONE,
    DUE,
    EFFECTS,
    GOT,
    IDLE,
    NOTICED,
    READY,
    SENT,
    SINCE,
    START,
    TEXT,
)
from refsgd.runtimes.launcher import Launch
from refsgd.runtimes.reports import Report
from refsgd.runtimes.simulator import RunFailed
from refsgd.runtimes.talk import Line
from refsgd.runtimes.tcp import HandshakeError, Listeners, answer, call
from refsgd.runtimes.watch import Watch
from refsgd.runtimes.wire import LARGEST_PAYLOAD
from refsgd.trace import Event, Run

log = logging.getLogger("refsgd.sites")

SILENCE = 30.0  # seconds without a word from a launcher after which its computer counts as lost
SAMPLE = 0.25  # seconds between two words about the state and processor time of processes
JOINING = 600.0  # seconds in which all computers must have joined
READYING = 300.0  # seconds in which those that have joined must be ready to start: they may have to load data and to compile
MIRRORED = (READY, DONE, IDLE, SENT, GOT, EFFECTS, NOTICED, DUE)
Build = Callable[[dict[str, Any]], tuple[Deployment, Machine, int]]
Child = Callable[[Launch, str, int, int], None]


class _Anybody:
    """Whoever knows the secret may join."""

    def __contains__(self, place: object) -> bool:
        return True


class _Exchange(Watch):
    """Deadlines are the first launcher's business; all go on talking until their own processes have ended."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, None)
        self._site = site

    def look(self) -> None:
        """Judge the processes of all computers, if this is the first."""
        if not self._site.site:
            super().look()
        else:
            self._looked = time.monotonic()

    def closing(self) -> None:
        """The run is over here: hear whether it is elsewhere."""
        self._site.exchange()
        super().closing()


class Site(Launch):
    """The processes of this computer, and rows for those of the others.

    Parameters
    ----------
    child, deployment, machine, seed
        As of `Launch`.
    site : int
        Which computer this is; 0 decides.
    sites : mapping of str to int
        On which computer each process lives.
    secret : bytes
        Of this run.
    address : str
        Where this computer's processes listen.
    lines : list of Line
        On computer 0 those to all others, else the one to computer 0.
    largest : int
        Most payload bytes of a message.
    """

    def __init__(self, child: Child, deployment: Deployment, machine: Machine, seed: int, site: int, sites: Mapping[str, int],
                 secret: bytes, address: str, lines: list[Line], largest: int = LARGEST_PAYLOAD) -> None:
        self.mine = [host for host, where in sites.items() if where == site]
        network = partial(Listeners, address=address, secret=secret, mine=self.mine, largest=largest)
        super().__init__(child, deployment, machine, seed, network, None, 64, "pipe", "stop", ())
        self.site, self.sites, self.lines = site, dict(sites), lines
        self.clocks = {line: 0.0 for line in lines}  #: what their monotonic clocks show more than ours [s]
        self._fresh: set[Line] = set()
        self._told, self._taken, self._spoke, self._sampled = False, False, 0.0, 0.0
        self._lengths = dict.fromkeys(self.mine, 0)  # of the texts on the board that the first computer has
        self._far: dict[str, tuple[Line, int, str, float]] = {}  # process number, state, processor time there
        self._watch = _Exchange(self)

    def start(self) -> None:
        """Fork this computer's processes."""
        everywhere, self.hosts = self.hosts, self.mine
        super().start()
        self.hosts = everywhere
        for host in set(everywhere) - set(self.mine):
            self.board.of(host)[BEAT] = time.monotonic_ns()
        for line in self.lines:  # until now each waited for the slowest to make ready
            line.heard = time.monotonic()

    def state(self, host: str) -> str:
        """The state of a process, of other computers as they last said."""
        return super().state(host) if host in self.pids else self._far[host][2] if host in self._far else "gone"

    def used(self, host: str) -> float:
        """Seconds of processor time of a process, of other computers as they last said."""
        return super().used(host) if host in self.pids else self._far[host][3] if host in self._far else 0.0

    def whereabouts(self, host: str) -> str:
        """A process in words: its number, and its computer where that is another one."""
        return super().whereabouts(host) if host in self.pids else f"pid {self._far[host][1]} on {self._far[host][0].who}"

    def _begin(self) -> None:
        self.exchange()
        if not self.site:
            super()._begin()
            if self.board.words[START] and not self._told:
                self._told = True
                for line in self.lines:
                    line.say(start=self.board.words[START] / 1e9 + self.clocks[line])

    def _count(self) -> None:
        # Only after all have told how they stand since the last look: two equal looks must be two.
        if not self.site and len(self._fresh) == len(self.lines):
            self._fresh.clear()
            super()._count()

    def _end_with(self, command: int) -> None:
        super()._end_with(command)
        for line in self.lines:
            line.say(command=command)

    def exchange(self) -> None:
        """Tell and hear how all stand."""
        now = time.monotonic()
        if self.site:
            self.lines[0].say(rows={host: self._row(host) for host in self.mine})
            if now - self._sampled > SAMPLE:
                self._sampled = now
                self.lines[0].say(processes={h: [self.pids[h], self.state(h), self.used(h)] for h in self.mine})
        elif now - self._spoke > 1.0:
            self._spoke = now
            for line in self.lines:
                line.say(alive=True)
        for line in self.lines:
            for said in line.hear(SILENCE):
                self._listen(line, said)

    def _row(self, host: str) -> list[Any]:
        """How a process here stands: its words, the age of its beat, where its programs are, and text that is new since the last row."""
        words, programs = self.board.of(host), [self.board.slot(*key).tolist() for key in self.board.programs[host]]
        length = self.words(host, TEXT)  # after the programs' words, which tell lines of it
        text = bytes(self.board.text(host)[:length]).decode() if length > self._lengths[host] else None
        self._lengths[host] = length
        return [[words[k] for k in MIRRORED], time.monotonic_ns() - words[BEAT], programs, text]

    def _mirror(self, line: Line, host: str, row: Sequence[int], age: int, programs: Sequence[Sequence[int]], text: str | None) -> None:
        """Let this board show how a process of another computer stands, on this computer's clock."""
        words = self.board.of(host)
        for k, value in zip(MIRRORED, row, strict=True):
            words[k] = value
        words[BEAT] = time.monotonic_ns() - age
        if text is not None:
            data = text.encode()
            self.board.text(host)[: len(data)] = data
            words[TEXT] = len(data)
        for key, values in zip(self.board.programs[host], programs, strict=True):
            slot = self.board.slot(*key)
            for k, value in enumerate(values):
                slot[k] = max(0, value - int(self.clocks[line] * 1e9)) if k == SINCE and value else value

    def _listen(self, line: Line, said: dict[str, Any]) -> None:
        words = self.board.words
        if "failed" in said:
            raise RunFailed(f"{said['failed']} (on {line.who})")
        if "rows" in said and not self.site:
            self._fresh.add(line)
            for host, told in said["rows"].items():
                self._mirror(line, host, *told)
        elif "processes" in said and not self.site:
            self._far.update({host: (line, *told) for host, told in said["processes"].items()})
        elif "start" in said and self.site:
            words[START] = int(said["start"] * 1e9)
            self._ring()
        elif "command" in said and self.site:
            self._closing = said["command"] == CLOSE
            words[COMMAND] = said["command"]
            self._ring()
        elif "bye" in said and self.site:
            self._taken = True
        elif "reports" in said and not self.site:
            for host, (values, events, seconds, late) in said["reports"].items():
                report: Report = values, [Event(*e) for e in events], seconds, late
                self._results[host] = "ok", report, {}

    def gather(self) -> None:
        """Computer 0: wait for the results of the others."""
        while len(self._results) < len(self.hosts):
            self.exchange()
            time.sleep(0.005)

    def give(self) -> None:
        """The others: send the results of their processes, and wait until they have been taken."""
        reports = {}
        for host in self.mine:
            values, events, seconds, late = self._results[host][1]
            reports[host] = (values, [tuple(e) for e in events], seconds, late)
        self.lines[0].say(reports=reports)
        while not self._taken:
            self.exchange()
            self.lines[0].wait(0.05)


# -- the two sides -----------------------------------------------------------------------------------------


def _same_secret(secret: bytes, nonce: str) -> bytes:
    """The secret of one run, from the secret that all computers were given."""
    return hmac.digest(secret, b"run" + nonce.encode(), "sha256")


def _offset(line: Line) -> tuple[float, float]:
    """How much the other's clock shows more than ours, and by how much that may be wrong; the best of a few tries [s]."""
    tries = []
    for _ in range(8):
        began = time.monotonic()
        line.say(clock=True)
        theirs = line.ask("clock")
        ended = time.monotonic()
        tries.append(((ended - began) / 2, theirs - (began + ended) / 2))
    wrong, offset = min(tries)
    return offset, wrong


def listen(child: Child, about: dict[str, Any], deployment: Deployment, machine: Machine, seed: int, address: tuple[str, int],
           sites: int, secret: bytes, say: Callable[[str], None] = log.info, largest: int = LARGEST_PAYLOAD) -> Run:
    """Be the first computer of a run: wait for the others, then run with them.

    Parameters
    ----------
    child : callable
        What a process does (of `refsgd.runtimes.processes`).
    about : dict
        What is run, as JSON values, for the others to build.
    deployment, machine, seed
        As of `refsgd.runtimes.processes.run`; the machine must not be paced.
    address : (str, int)
        Where to wait; the processes here listen at the same host.
    sites : int
        Computers in all.
    secret : bytes
        That all must know.
    say : callable
        Told, in a line each, who joined and how well the clocks agree.
    largest : int
        Most payload bytes of a message, here and for those who join.

    Returns
    -------
    Run
        Of all computers; times between them are known as well as their clocks agree.

    Raises
    ------
    RunFailed
        As on one machine; also if a computer is lost.
    """
    hosts = list(dict.fromkeys(machine.hosts(deployment).values()))
    if sites > len(hosts):
        raise ValueError(f"{sites} hosts for {len(hosts)} processes; expected at most one host for each")
    where = {host: k * sites // len(hosts) for k, host in enumerate(hosts)}
    lines: list[Line] = []
    launch: Site | None = None
    with socket.create_server(address, backlog=16) as server:
        where_to = f"{address[0]}:{server.getsockname()[1]}"
        say(f"waiting for {sites - 1} more at {where_to}")
        try:
            joined = answer(server, secret, 0, _Anybody(), JOINING, sites - 1)
        except TimeoutError:
            raise RunFailed(f"not all {sites} hosts joined within {JOINING:g} s; expected `refsgd run --join {where_to}` on the others, "
                            "with the same secret") from None
    try:
        lines += [Line(s, "{}:{}".format(*s.getpeername()[:2])) for s in joined.values()]
        nonce, worst = os.urandom(16).hex(), 0.0
        for k, line in enumerate(lines, 1):
            line.say(run={"about": about, "site": k, "sites": where, "nonce": nonce, "largest": largest})
        launch = Site(child, deployment, machine, seed, 0, where, _same_secret(secret, nonce), address[0], lines, largest)
        addresses = dict(launch.network.addresses)  # type: ignore[attr-defined]
        for line in lines:
            addresses.update({h: tuple(a) for h, a in line.ask("addresses", READYING).items()})
            launch.clocks[line], wrong = _offset(line)
            worst = max(worst, wrong)
        say(f"{sites} hosts; their clocks are known to within {worst * 1e3:.2f} ms, and so are times between them")
        for line in lines:
            line.say(addresses=addresses)
        launch.network.addresses = addresses  # type: ignore[attr-defined]
        launch.start()
        launch.watch()
        launch.gather()
        for line in lines:
            line.say(bye=True)
        return launch.result()
    except BaseException as error:
        for line in lines:
            try:
                line.say(failed=str(error) or type(error).__name__)
            except RunFailed:
                pass
        raise
    finally:
        if launch is not None:
            launch.end()
        for line in lines:
            line.close()


def join(child: Child, build: Build, address: tuple[str, int], secret: bytes, say: Callable[[str], None] = log.info) -> None:
    """Take part in a run that another computer listens for, to its end.

    Parameters
    ----------
    child, secret, say
        As of `listen`.
    build : callable
        Gives deployment, machine and seed for what `listen` was told to be `about`.
    address : (str, int)
        Where the first computer listens.

    Raises
    ------
    RunFailed
        If nobody listens there, or does not know the secret; and the error of the run.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        s = call(address, secret, random.SystemRandom().randrange(1, 1 << 32), 0)
    except (OSError, HandshakeError) as error:
        raise RunFailed(f"cannot join {where}: {getattr(error, 'strerror', None) or error}; expected `refsgd run ... --listen` there, "
                        "with the same secret") from None
    line, launch = Line(s, where), None
    try:
        told = line.ask("run", JOINING)
        deployment, machine, seed = build(told["about"])
        say(f"joined {where}: {told['about']['algorithm']}, host {told['site']}")
        launch = Site(child, deployment, machine, seed, told["site"], told["sites"], _same_secret(secret, told["nonce"]),
                      s.getsockname()[0], [line], int(told["largest"]))
        line.say(addresses=launch.network.addresses)  # type: ignore[attr-defined]
        addresses = None
        end = time.monotonic() + READYING
        while addresses is None:
            if time.monotonic() > end:
                raise RunFailed(f"{where} did not say within {READYING:g} s where all listen")
            line.wait(0.05)
            for said in line.hear():
                if "clock" in said:
                    line.say(clock=time.monotonic())
                if "failed" in said:
                    raise RunFailed(f"{said['failed']} (on {where})")
                addresses = said.get("addresses", addresses)
        launch.network.addresses = {h: tuple(a) for h, a in addresses.items()}  # type: ignore[attr-defined]
        launch.start()
        launch.watch()
        launch.give()
    except BaseException as error:
        try:
            line.say(failed=str(error) or type(error).__name__)
        except RunFailed:
            pass
        raise
    finally:
        if launch is not None:
            launch.end()
        line.close()


