"""Reproduce a recorded run: every program is told what it was told then, in the order of its node.

A record keeps, for each node, which program acted and what a receive, poll or choice returned: never a number
that was computed.  Arguments of a `Compute` are frozen and its function is pure, so the rest follows, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from refsgd.effects import Add, Choose, Compute, Died, Factory, Load, Mark, Poll, Recv, RunEnded, Send, payload_bytes
from refsgd.machine import Draws
from refsgd.runtimes.mailbox import Letter, tag_of
from refsgd.runtimes.programs import add_to, describe, freeze, line_of, perform
from refsgd.schema import ANY, COUNT, SECONDS, TEXT, Row, misfit, one_of, whole
from refsgd.trace import Event, Run, Thinner, Trace

NOTICE = -1  #: the number of a message that tells of its sender's death
#: what each node's programs did, as JSON values (see `step`)
Steps = dict[str, list[list[Any]]]
#: told of a node, how many of its steps are done, and its programs with the effect that each waits for
Observer = Callable[[str, int, Sequence[tuple[Any, Any]]], None]
#: event kinds as single letters in a record
LETTERS = {"compute": "c", "send": "s", "receive": "r", "poll": "p", "choose": "o", "mark": "m", "return": "e",
           "load": "l", "add": "a", "died": "x"}
NAMES = {letter: kind for kind, letter in LETTERS.items()}
_NOTHING, _MESSAGE = one_of(None), {"source": TEXT, "number": whole(NOTICE), "arrival": SECONDS}
#: what a step says behind its time, by letter; where there are two forms, the one that holds less first
TOLD: dict[str, tuple[dict[str, Any], ...]] = {
    "c": ({"start": SECONDS},), "s": ({"start": SECONDS},), "r": (_MESSAGE,), "p": (dict.fromkeys(_MESSAGE, _NOTHING), _MESSAGE),
    "o": ({"option": ANY},), "m": ({},), "e": ({},), "x": ({},), "l": ({"ticket": COUNT},), "a": ({"ticket": COUNT}, {"ticket": COUNT, "since": COUNT})}
#: what a program stands at when it does each; a program that has ended stands at nothing
EFFECTS: dict[str, Any] = {"c": Compute, "s": Send, "r": Recv, "p": Poll, "o": Choose, "m": Mark, "e": type(None), "l": Load, "a": Add}


class ReplayError(RuntimeError):
    """The record and the programs do not fit."""


def step(e: Event, ticket: int = 0, since: int | None = None) -> list[Any]:
    """An event as JSON values."""
    told: list[Any] = [e.program, LETTERS[e.kind], e.time]
    if e.kind in ("receive", "poll"):
        told += [e.data["src"], e.data.get("number"), e.data.get("arrival")]
    elif e.kind == "choose":
        told.append(e.data["option"])
    elif e.kind in ("compute", "send"):
        told.append(e.data["start"])
    elif e.kind in ("load", "add"):
        found = e.data.get("ticket", ticket)
        told.append(ticket if found is None else found)
        if e.kind == "add" and since is not None and "ticket" not in e.data:
            told.append(since)
    return told


def step_misfit(row: Any, nodes: Sequence[str]) -> str:
    """What does not fit in a line of a record or checkpoint, in words."""
    if not isinstance(row, list) or len(row) < 4:
        return misfit(row, Row({"node": TEXT, "program": COUNT, "letter": TEXT, "time": SECONDS}))
    first = {"node": one_of(*nodes), "program": COUNT, "letter": one_of(*TOLD)}
    wrong = misfit(row[:3], Row(first))
    forms = [] if wrong else [misfit(row, Row({**first, "time": SECONDS, **told})) for told in TOLD[row[2]]]
    return wrong or (forms[-1] if all(forms) else "")


class Tickets:
    """Writes events as `step` does, and counts accesses to shared cells where the runtime counts none: there events come as things happen."""

    def __init__(self) -> None:
        self._count = 0
        self._since: dict[tuple[str, int], int] = defaultdict(int)  # a program yields its next effect when it has its answer

    def __call__(self, e: Event) -> list[Any]:
        """The next event of all nodes, as JSON values."""
        told = step(e, self._count, self._since[e.node, e.program])
        self._count += e.kind in ("load", "add")
        self._since[e.node, e.program] = self._count
        return told


def record(trace: Trace) -> Steps:
    """What each node's programs did, in order (see `step`)."""
    if any(e.kind == "add" and e.data.get("ticket") is None for e in trace.of("add")) and len(trace.workers) > 1 and trace.lateness:
        raise ReplayError("additions without a lock happen in no order that could be recorded; expected hogwild --atomic")
    out: Steps = {node: [] for node in trace.nodes}
    tell = Tickets()
    for e in trace.events:
        out[e.node].append(tell(e))
    return out


def _draw(kind: str, nbytes: int, draws: Draws) -> None:
    draws.duration(kind, nbytes)


class Replayer:
    """Programs on their way along a record.

    Parameters
    ----------
    factory, steps
        As of `replay`.
    observe : callable, optional
        As of `watch`.
    evaluate : callable
        Answers a `Compute`.
    """

    def __init__(self, factory: Factory, steps: Mapping[str, list[list[Any]]], observe: Observer | None = None,
                 evaluate: Callable[[Compute], Any] = perform) -> None:
        deployment = factory()
        self.deployment, self.evaluate = deployment, evaluate
        self._observe = observe
        if set(deployment) != set(steps):
            raise ReplayError(f"the record is of nodes {', '.join(steps)}; the programs are for {', '.join(deployment)}")
        self.nodes = list(deployment)
        self.steps = {n: steps[n] for n in self.nodes}
        self.at = dict.fromkeys(self.nodes, 0)
        self.programs = {n: [deployment[n].main, *deployment[n].responders] for n in self.nodes}
        self.pending: dict[tuple[str, int], Any] = {}
        self.sent: dict[tuple[str, str], list[Any]] = {}
        self.events: list[Event] = []
        self.values: dict[str, Any] = {}
        self._thin = Thinner()
        #: what each program has taken from its random streams
        self.drawn: dict[tuple[str, int], list[Callable[[Draws], Any]]] = defaultdict(list)
        self.latest: dict[str, Any] = {}  #: the parameters of each node's last update
        self.tickets = 0
        self._reads: dict[int, set[tuple[str, int]]] = defaultdict(set)  # additions that begin after so many accesses: node and step
        self._seen: dict[tuple[str, int], Any] = {}  # what they have read
        self._told = set[int]()  # accesses
        for node in self.nodes:
            for k, (_, letter, _, *rest) in enumerate(self.steps[node]):
                if letter in ("l", "a"):
                    self._told.add(rest[0])
                    if len(rest) > 1:
                        self._reads[rest[1]].add((node, k))
        self._untold = max(self._told, default=-1) + 1 - len(self._told)  # accesses of nodes that died before they could say so
        self._since: dict[tuple[str, int], float] = {}  # when a program yielded what it waits for
        for node in self.nodes:
            for index in range(len(self.programs[node])):
                self._answer(node, index, None)
            self._show(node)

    def _show(self, node: str) -> None:
        if self._observe is not None:
            self._observe(node, self.at[node], [(p, self.pending[node, i]) for i, p in enumerate(self.programs[node])])

    def _answer(self, node: str, index: int, value: Any) -> None:
        program = self.programs[node][index]
        try:
            thrown = isinstance(value, RunEnded)
            self.pending[node, index] = program.throw(value) if thrown else program.send(value)
        except StopIteration as stop:
            self.pending[node, index] = None
            if index == 0:
                self.values[node] = stop.value
        except RunEnded:
            self.pending[node, index] = None

    def _misfit(self, node: str, index: int, letter: str, effect: Any) -> ReplayError:
        where = line_of(self.programs[node][index])
        kind = NAMES.get(letter, letter)
        return ReplayError(f"{node}, step {self.at[node]}: recorded {kind}, but the program is at {describe(effect)} ({where}); "
                           "expected the algorithm and options that were recorded")

    def _try(self, node: str) -> bool:
        """As `_step`; what a program raises that was told what it never was told is an error of the record."""
        at = self.at[node]
        try:
            return self._step(node)
        except ReplayError:
            raise
        except Exception as error:
            raise ReplayError(f"{node}, step {at}: the program ended with {type(error).__name__}: {error}; expected the algorithm and options that "
                              "were recorded") from error

    def _step(self, node: str) -> bool:
        """Perform the next recorded step of a node; False if it must wait for another node."""
        index, letter, time, *rest = self.steps[node][self.at[node]]
        if not 0 <= index < len(self.programs[node]):
            raise ReplayError(f"{node}, step {self.at[node]}: recorded program {index}; the node has {len(self.programs[node])}")
        if letter == "x":
            if self._untold and self._at_cell(node):
                return False  # its access may be one that nobody has told of
            self._die(node, time)
            return True
        effect: Any = self.pending[node, index]
        if isinstance(effect, Recv) and type(effect) is Recv and letter not in "rp":
            self._answer(node, index, RunEnded())
            effect = self.pending[node, index]
        if EFFECTS.get(letter) is not type(effect):
            raise self._misfit(node, index, letter, effect)
        me = node, self.at[node]
        if letter == "a" and len(rest) > 1 and me in self._reads[rest[1]]:
            return self._read_before_adding(me, effect, rest[1])
        happened = self._happen(node, index, letter, effect, time, rest)
        if happened is None:
            return False
        value, data = happened
        self.events.append(Event(time, node, index, NAMES[letter], data))
        self._thin(self.events[-1])
        self.at[node] += 1
        self._since[node, index] = time
        if letter != "e":
            self._answer(node, index, value)
        self._show(node)
        return True

    def _happen(self, node: str, index: int, letter: str, effect: Any, time: float, rest: list[Any]) -> tuple[Any, dict[str, Any]] | None:
        """What the effect returns and its event's data; None if it must wait for another node."""
        if letter == "c":
            freeze(effect.args)
            self.drawn[node, index].append(partial(_draw, effect.kind, payload_bytes(effect.args[:1])))
            return self.evaluate(effect), {"start": rest[0], "work": effect.kind}
        if letter == "s":
            return None, self._send(node, effect, rest[0] if rest else time)
        if letter in "rp":
            return self._receive(node, index, letter, effect, time, rest)
        if letter in "la":
            return self._access(node, index, effect, rest[0])
        if letter == "o":
            matches = [option for option in effect.options if option == rest[0]]
            if not matches:
                raise self._misfit(node, index, letter, effect)
            self.drawn[node, index].append(partial(Draws.choose, options=effect.options, p=effect.p))
            return matches[0], {"option": matches[0]}
        if letter == "m":
            freeze(effect.values.values())
            if effect.name == "update" and "x" in effect.values:
                self.latest[node] = effect.values["x"]
            return None, {"name": effect.name, **effect.values}
        return None, {}  # a program's end

    def _send(self, node: str, effect: Send, start: float) -> dict[str, Any]:
        freeze(effect.body)
        channel = self.sent.setdefault((node, effect.to), [])
        channel.append(effect.body)
        return {"to": effect.to, "message": type(effect.body).__name__, "number": len(channel) - 1, "bytes": payload_bytes(effect.body), "start": start}

    def _receive(self, node: str, index: int, letter: str, effect: Any, time: float, rest: list[Any]) -> tuple[Any, dict[str, Any]] | None:
        src, number, *arrival = rest
        if src is None:
            return None, {"src": None}
        channel = [Died(src)] if number == NOTICE else self.sent.get((src, node), [])
        if number >= len(channel):
            return None
        body = channel[number]
        if type(body) not in effect.kinds or effect.src not in (None, src):
            raise self._misfit(node, index, letter, effect)
        channel[number] = None
        return (src, body), {"src": src, "message": type(body).__name__, "number": number, "bytes": payload_bytes(body),
                             "since": self._since.get((node, index), 0.0), "arrival": arrival[0] if arrival else time}

    def _read_before_adding(self, me: tuple[str, int], effect: Add, since: int) -> bool:
        """An addition in virtual time reads, unless it is atomic, when it begins: after `since` accesses."""
        if since != self.tickets:
            return False
        self._reads[since].remove(me)
        self._seen[me] = None if effect.atomic else effect.cell.x[effect.cell.cut[effect.part]].copy()
        return True

    def _access(self, node: str, index: int, effect: Any, ticket: int) -> tuple[Any, dict[str, Any]] | None:
        """One-sided accesses happen in the order of all nodes together."""
        if ticket != self.tickets or self._reads[ticket]:
            return None
        self.tickets += 1
        now = effect.cell.x[effect.cell.cut[effect.part]].copy()
        data = {"part": effect.part, "ticket": ticket}
        if isinstance(effect, Load):
            return now, data
        freeze((effect.delta,))
        add_to(effect, self._seen.pop((node, self.at[node]), now))
        self.drawn[node, index].append(partial(_draw, "update", 0))
        return None, data

    def standing(self, node: str) -> list[tuple[Any, Any]]:
        """The programs of a node, with the effects at which they stand."""
        return [(program, self.pending[node, i]) for i, program in enumerate(self.programs[node])]

    def letters(self, node: str) -> list[Letter]:
        """What has been sent to a node and not been received; by sender and number."""
        return [Letter(src, tag_of(type(body)), body, number, 0.0, payload_bytes(body)) for src in self.nodes
                for number, body in enumerate(self.sent.get((src, node), ())) if body is not None]

    def _die(self, node: str, time: float) -> None:
        for index, program in enumerate(self.programs[node]):
            program.close()
            self.pending[node, index] = None
        self.events.append(Event(time, node, 0, "died", {"reason": "as recorded"}))
        self.at[node] += 1
        self._show(node)

    def _at_cell(self, node: str) -> list[Any]:
        """The accesses to shared cells at which programs of a node stand."""
        found = [self.pending[node, i] for i in range(len(self.programs[node]))]
        return [effect for effect in found if type(effect) in (Load, Add)]

    def _tell(self) -> bool:
        """Make up for an access of which its node could not tell any more: if only one of the dead stands at one, it was that."""
        dead = [n for n in self.nodes if all(row[1] == "x" for row in self.steps[n][self.at[n] :])]
        at = [(n, effect) for n in dead for effect in self._at_cell(n)]
        if not self._untold or self.tickets in self._told or len(at) != 1:
            return False
        (node, effect), = at
        if type(effect) is Add:
            freeze((effect.delta,))
            add_to(effect, None)
        self._untold -= 1
        self.tickets += 1
        for index in range(len(self.programs[node])):
            self.pending[node, index] = None
        return True

    def advance(self) -> None:
        """Perform whatever the record allows."""
        moved = True
        while moved:
            moved = False
            for node in self.nodes:
                while self.at[node] < len(self.steps[node]) and self._try(node):
                    moved = True
            moved = moved or self._tell()

    def run(self, whole: bool = True) -> Run:
        """Go to the record's end; `whole`: refuse one that ends in the middle."""
        self.advance()
        stuck = [n for n in self.nodes if self.at[n] < len(self.steps[n])]
        if stuck and whole:
            node = stuck[0]
            _, letter, _, *rest = self.steps[node][self.at[node]]
            what = f"access {self.tickets} to shared memory, which nobody makes" if letter in "lax" else f"message {rest}, which nobody sends"
            raise ReplayError(f"{node}, step {self.at[node]}: waits for {what}; the record is damaged or of another run")
        kinds = ("return",) if whole else tuple(NAMES.values())
        end = max((e.time for e in self.events if e.kind in kinds and e.program == 0), default=0.0)
        self.events.sort(key=lambda e: e.time)
        return Run(Trace(self.events, self.nodes, end), self.values)


def replay(factory: Factory, steps: Mapping[str, list[list[Any]]]) -> Run:
    """Run programs along a record."""
    return Replayer(factory, steps).run()


def replay_beginning(factory: Factory, steps: Mapping[str, list[list[Any]]]) -> tuple[Run, int]:
    """Run programs along a record that a crash has cut off, as far as it goes."""
    replayer = Replayer(factory, steps)
    run = replayer.run(whole=False)
    return Run(run.trace, {**replayer.latest, **run.values}), sum(replayer.at.values())


def watch(factory: Factory, steps: Mapping[str, list[list[Any]]], observe: Observer) -> None:
    """Run programs along the beginning of a record, and show where they stand after every step."""
    Replayer(factory, steps, observe).advance()
