"""Why a program waits, in one sentence, from the events of a run and the positions of its programs.

A wait has stages: the request is on the wire, is in an inbox, is being served, the answer is held back, the
answer is on the wire.  If the answer is held back, the sentence names the deciding line: the statement that
keeps the other program from the ``Send``, or, if a program holds itself back, the condition around its
``Mark("block", worker=...)``.
"""

from __future__ import annotations

import linecache
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from refsgd.display.player.gates import around, between, bound
from refsgd.display.player.listing import title
from refsgd.display.player.states import ENDED, Program, Stand, States, value_at
from refsgd.trace import Computed, Marked, Polled, Received, Sent, Trace, taken

Message = tuple[str, str, int]  #: from, to, number on this channel
WORKS = {"gradient": "a gradient", "update": "the update", "reduction": "a reduction",
         "codec": "a codec's step", "forward": "the forward pass"}
PIECE = re.compile(r"^(forward|backward) (\d+)$")
LONG = 60  #: longer values are shown by their keys only
#: a value that is a number, or numbers by name
NUMBERS = re.compile(r"(-?[\d.]+(e[-+]?\d+)?|inf)|\{(\w+: -?[\d.]+(, )?)*\}")


class Reason(NamedTuple):
    """The reason for a wait."""

    text: str  #: follows "worker0 waits"
    cause: str  #: one of `refsgd.trace.CAUSES`; empty in a deadlock
    held: bool = False  #: it ends when another program proceeds, not with a message on the wire or an update
    #: number of the file and line at which the awaited program holds the answer back, or is suspended
    place: tuple[int, int] | None = None


class Why:
    """Explains waits; without `arrivals` the arrival of a message that no program has taken is estimated."""

    def __init__(self, trace: Trace, states: States, arrivals: Mapping[Message, float] | None = None) -> None:
        self.trace, self.states, self.events, self.arrivals = trace, states, trace.events, arrivals
        # numbers of events: of each program, that sent and took each message, that mark a worker as held back
        self.of: dict[Program, list[int]] = defaultdict(list)
        self.sent: dict[Message, int] = {}
        self.taken: dict[Message, int] = {}
        self.marked: dict[str, list[int]] = defaultdict(list)
        for i, e in enumerate(self.events):
            self.of[e.node, e.program].append(i)
            if isinstance(e, Sent):
                self.sent[e.node, e.to, e.number] = i
            elif (message := taken(e)) is not None:
                self.taken[message] = i
            elif isinstance(e, Marked) and e.name == "block":
                self.marked[e.values["worker"]].append(i)
        self.files = list(states.files)
        self.sources = ["".join(linecache.getlines(name)) for name in self.files]

    def sentence(self, node: str, program: int, k: int) -> str:
        """Why a program waits, or what it does, after k events."""
        reason = self.reason((node, program), k)
        return node + (f"[{program}] " if program else " ") + (f"waits{reason.text}" if reason
                                                               else self._doing((node, program), k))

    def reason(self, key: Program, k: int) -> Reason | None:
        """Why a program waits after k events; None if it does not wait."""
        stand, node = self._stand(key, k), key[0]
        if not stand.kinds:
            return None
        if key[1]:
            return Reason(f" for {' or '.join(stand.kinds)}", "")
        if (answer := self._answer(key, stand, k)) is not None:
            return Reason(f": {self._on_its_way(answer, k, ' ')}", "transfer")
        marked, works = self._mark(node, k), self.trace.is_worker(node)
        if marked is not None and self.events[marked].node == node:
            place, values = self._decided(key, marked, key, k)
            return Reason(f": it holds itself back{values}{self._at(place)}", "slack", True, place)
        src = stand.src or (self._source(key, k) if works else None)
        request = self._request(key, src, k) if src or works else None
        other = src or (request[1] if request else None)
        if other is None:
            said, cause = self._meanwhile(key, k)
            return Reason(f": no {' or '.join(stand.kinds)} has arrived{said}", cause, True)
        if request and self.taken.get(request, k) >= k:
            return self._under_way(key, request, other, k)
        return self._asked(key, stand, request, other, marked, k)

    def _under_way(self, key: Program, request: Message, other: str, k: int) -> Reason:
        """Why a program waits whose request has not been taken."""
        what = self._name(request)
        if self.arrived(request) > self._now(k):
            return Reason(f": its {what} is on the wire to {other}", "transfer")
        its_next = self._answer((other, 0), self._stand((other, 0), k), k)
        said = "takes it next" if its_next == request else self._doing((other, 0), k, (key[0],))
        return Reason(f": its {what} is in the inbox of {other}, which {said}", "queueing",
                      place=self._line((other, 0), k))

    def _asked(self, key: Program, stand: Stand, request: Message | None, other: str, marked: int | None,
               k: int) -> Reason:
        """Why a program waits for one other program, which has taken its request or got none."""
        taken = self.taken[request] if request else -1
        its = other, self.events[taken].program if request else self._sender(key, k)
        theirs, place = self._stand(its, k), self._line(its, k)
        cause = "partner" if request else "slack"
        if self.trace.is_worker(other) != bool(request):
            cause = "straggling"
        has = (f"{other} has its {self._name(request)} and " if request
               else f"{other} has not sent {' or '.join(stand.kinds)} yet: it ")
        bounded = marked is not None and request is not None and marked > taken
        cause = "slack" if bounded else cause
        if bounded and not theirs.says.endswith(f" to {key[0]}"):
            has = f"{other} holds the answer to {self._name(request)} back" if request else has
        elif not theirs.kinds:
            ended, work = theirs.says in ENDED, theirs.work
            if not bounded:
                serves = self._serves(its, taken, k) if request and not work else work not in ("", "gradient")
                own = "codec" if work == "codec" else "update"
                cause = "" if ended else own if serves else cause
            return Reason(f": {has}{self._doing(its, k)}{self._at(place)}", cause,
                          work == "gradient" or ended, place)
        elif not request or theirs.src:
            said, moving = self._doing(its, k, (key[0],)), self._meanwhile(key, k)[1]
            # a chain of messages, each waiting for the previous one
            wire = said.endswith("is on the wire")
            return Reason(f": {has}{said}{self._at(place)}", "transfer" if wire else cause if moving else "",
                          not wire, place)
        else:
            has, marked = f"{has}does not answer yet", None
        decided, values = self._decided(its, marked, key, k)
        trigger, decided = self._trigger(key, k), decided or place
        said, moving = ("", cause) if trigger else self._meanwhile(key, k)
        # a handler passes it to its main program
        if its[1] and not trigger and self._stand((other, 0), k).says not in ENDED:
            said = f", while {other} {self._doing((other, 0), k, (key[0],))}"
        return Reason(f"{' for ' + trigger if trigger else ''}: {has}{values}{said}{self._at(decided)}",
                      cause if moving else "", True, decided)

    def _serves(self, its: Program, taken: int, k: int) -> bool:
        """Whether a program has computed anything but a gradient since it took a request."""
        done = [self.events[i] for i in self.of[its] if taken < i < k]
        return any(isinstance(e, Computed) and e.work != "gradient" for e in done)

    # -- what has happened ---------------------------------------------------------------------------------

    def _now(self, k: int) -> float:
        return self.events[k - 1].time if k else 0.0

    def _stand(self, key: Program, k: int) -> Stand:
        return value_at(self.states.stands.get(key, []), k) or Stand(-1, "")

    def _send(self, message: Message) -> Sent:
        e = self.events[self.sent[message]]
        assert isinstance(e, Sent)
        return e

    def _name(self, message: Message) -> str:
        return f"{self._send(message).message}#{message[2]}"

    def _on_its_way(self, message: Message, k: int, which: str) -> str:
        """A message that has been sent, and whether it has arrived."""
        there = "has arrived" if self.arrived(message) <= self._now(k) else "is on the wire"
        return f"{self._name(message)} of {message[0]}{which}{there}"

    def _next(self, key: Program, k: int) -> Received | None:
        """The event that ends the wait of a program, if it is known."""
        own = self.of.get(key, [])
        at = bisect_left(own, k)
        e = self.events[own[at]] if at < len(own) else None
        return e if isinstance(e, Received) else None

    def _answer(self, key: Program, stand: Stand, k: int) -> Message | None:
        """The message that a program waits for, if it has been sent."""
        if (e := self._next(key, k)) is not None:
            message = e.src, e.node, e.number
            return message if self.sent.get(message, k) < k else None
        return next((message for message, i in self.sent.items() if i < k and message[1] == key[0]
                     and stand.src in (None, message[0]) and self._send(message).message in stand.kinds
                     and self.taken.get(message, k) >= k), None)

    def arrived(self, message: Message) -> float:
        """When a message arrived in its inbox."""
        if message in self.taken:
            e = self.events[self.taken[message]]
            assert isinstance(e, Received | Polled)
            return e.arrival
        if self.arrivals is not None:
            return self.arrivals.get(message, float("inf"))
        sent = self._send(message)
        latency, bandwidth = self.trace.wire(sent.node, sent.to)
        known = latency or bandwidth != float("inf")
        return sent.start + latency + sent.nbytes / bandwidth if known else float("inf")

    def _source(self, key: Program, k: int) -> str | None:
        e = self._next(key, k)
        return e.src if e else None

    def _sender(self, key: Program, k: int) -> int:
        """The program that will send the awaited message; the main one if that is not known."""
        e = self._next(key, k)
        i = self.sent.get((e.src, e.node, e.number)) if e else None
        return self.events[i].program if i is not None else 0

    def _request(self, key: Program, src: str | None, k: int) -> Message | None:
        """The last message that a program has sent to `src`, or to any node, since it last received one."""
        own = self.of.get(key, [])
        for e in (self.events[i] for i in reversed(own[:bisect_left(own, k)])):
            if isinstance(e, Sent) and src in (None, e.to):
                return e.node, e.to, e.number
            if isinstance(e, Received) and src in (None, e.src):
                return None
        return None

    def _mark(self, node: str, k: int) -> int | None:
        """The event that marks a worker as held back, if it has taken nothing since."""
        mark = max((i for i in self.marked.get(node, []) if i < k), default=None)
        own = self.of[node, 0]
        since = own[bisect_left(own, mark):bisect_left(own, k)] if mark is not None else []
        return None if any(isinstance(self.events[i], Received) for i in since) else mark

    def _trigger(self, key: Program, k: int) -> str:
        """The message of another program that will release the answer, if it is known."""
        e = self._next(key, k)
        i = self._taken_before.get((e.src, e.node, e.number)) if e else None
        before = self.events[i] if i is not None and i >= k else None
        if not isinstance(before, Received | Polled) or before.src == key[0]:
            return ""
        return f"{before.message}#{before.number} of {before.src}"

    @cached_property
    def _taken_before(self) -> dict[Message, int]:
        """By message: the event in which its sender last took a message before, in the order of events."""
        latest, found = dict[Program, int](), dict[Message, int]()
        for i, e in enumerate(self.events):
            if taken(e):
                latest[e.node, e.program] = i
            elif isinstance(e, Sent) and (e.node, e.program) in latest:
                found[e.node, e.to, e.number] = latest[e.node, e.program]
        return found

    # -- what the others do --------------------------------------------------------------------------------

    def _doing(self, key: Program, k: int, waiting: tuple[str, ...] = ()) -> str:
        """What a program does; if it waits for another program, also what that one does."""
        stand = self._stand(key, k)
        if not stand.kinds:
            verb, _, work = stand.says.partition(": ")
            if verb == "computes":
                return "computes " + (WORKS.get(work) or PIECE.sub(r"the \1 pass of layer or batch \2", work))
            if stand.says in ENDED:
                return f"has {stand.says}"
            return re.sub(r"^(send|mark|choose)s\b", r"is about to \1", stand.says) or "has not begun"
        src, kinds = stand.src or self._source(key, k), " or ".join(stand.kinds)
        if (answer := self._answer(key, stand, k)) is not None:
            return f"waits for {self._on_its_way(answer, k, ', which ')}"
        if src is None or len(waiting) > 3:
            return f"waits for {kinds}" + (f" of {src}" if src else "")
        if src in waiting:
            return f"waits for {src}" + (": a cycle" if src == waiting[0] else "")
        return f"waits for {src}, which {self._doing((src, self._sender(key, k)), k, (*waiting, key[0]))}"

    def _meanwhile(self, key: Program, k: int) -> tuple[str, str]:
        """What happens while a program waits, and the cause; empty if nothing happens."""
        stands = {other: self._stand(other, k) for other in self.states.stands if other != key}
        busy = [node for (node, _), stand in stands.items() if stand.says.startswith("computes")]
        if busy:
            some = " and ".join(busy) if len(busy) < 3 else f"{', '.join(busy[:2])} and {len(busy) - 2} more"
            return f", while {some} compute{'s' if len(busy) == 1 else ''}", "straggling"
        for other, stand in stands.items():
            if not stand.kinds and stand.says not in ENDED and stand.says:
                return f", while {other[0]} {self._doing(other, k)}", "straggling"
            if stand.kinds and (answer := self._answer(other, stand, k)) is not None:
                return f", while {self._name(answer)} of {answer[0]} is on the wire", "straggling"
        return ", and no program can continue", ""

    # -- lines ---------------------------------------------------------------------------------------------

    def _line(self, key: Program, k: int) -> tuple[int, int] | None:
        """The position of a program: file and line of its innermost frame."""
        place = self._stand(key, k).place
        return self.states.places[place][-1] if place >= 0 else None

    def _at(self, place: tuple[int, int] | None) -> str:
        return f"; {title(self.files[place[0]]).rsplit('/', 1)[-1]}:{place[1]}" if place else ""

    def _decided(self, key: Program, marked: int | None, waiting: Program,
                 k: int) -> tuple[tuple[int, int] | None, str]:
        """The line at which a program holds another one back, and the values of its variables there."""
        at, there = self._stand(key, k).place, self._line(key, marked) if marked is not None else None
        for file, line in reversed(self.states.places[at]) if at >= 0 else ():
            found = None
            if key != waiting:
                found = between(self.sources[file], line, self._stand(waiting, k).kinds)
            if found is None and there is not None and there[0] == file:
                found = around(self.sources[file], there[1], line)
            if found is not None:
                return (file, found[0]), self._values(key, found[1], bound(self.sources[file], line),
                                                      waiting[0], k, marked)
        return there, ""

    def _values(self, key: Program, names: tuple[str, ...], binds: frozenset[str], waiting: str, k: int,
                marked: int | None) -> str:
        """The values of a condition's variables; names bound by a Recv are read at the mark, if there is one,
        since they may already belong to the next message."""
        out: dict[str, str] = {}
        for name in dict.fromkeys(names):
            column = self.states.locals.get(key, {}).get(name, [])
            text = value_at(column, (marked if marked is not None else -1) if name in binds else k)
            number = text is not None and NUMBERS.fullmatch(text)
            fixed = len(column) < 3 and sum(value is not None for _, value in column) == 1
            if text is None or text == waiting or name.startswith("_") or (
                fixed and not number and name not in binds):
                continue
            keys = re.findall(r"(?:^\{|, )(\w+): ", text) if len(text) > LONG and not number else []
            out[name] = f"{{{', '.join(keys)}}}" if keys else text
        # named numbers are more useful than names alone
        if any(re.match(r"\{\w+: ", text) for text in out.values()):
            out = {name: text for name, text in out.items() if not re.fullmatch(r"\{\w+(, \w+)*\}", text)}
        return f" ({', '.join(f'{name} {text}' for name, text in out.items())})" if out else ""
