"""Parameter servers with queues *and* gates: the closed network of links, drawn message by message.

Mean-value analysis (`refsgd.theory.server`) knows queues but no gate, the recursion of `refsgd.theory.ssp` knows the
gate but no queue.  Together they have no closed form, yet the network is small: each message passes a server's
incoming link (g = w/K seconds if it carries a slice), its processor (u) and its outgoing link (g), first come first
served, so with h the time at which a head reaches the incoming link

    in = max(in, h) + g,    busy = max(busy, in) + u,    out = max(out, busy) + g

and an answer is with its worker at out + latency + (K-1) g.  Serving the heads in order of time is all there is to
it; many replicas are served side by side, one message each at a time.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952: each of the three lines.
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013: the gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refsgd.machine import Law
from refsgd.theory.prediction import check_count, check_law, check_time
from refsgd.theory.ssp import Path, check_slack

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MESSAGES = 6_000  # of one replica, at most: a longer run is continued at its pace
DRAWS = 60_000  # drawn compute times, over all replicas


@dataclass(frozen=True)
class Network:
    """What messages meet: K servers, w seconds of the whole model on a link, latency of a message, law of an update.

    Parameters
    ----------
    servers : int
        K, at least 1.
    transfer : float
        w, seconds of the whole vector on one link.
    latency : float
        Seconds until the first byte of a message arrives.
    update : Law, optional
        Seconds of one update of all parameters.
    """

    servers: int = 1
    transfer: float = 0.0
    latency: float = 0.0
    update: Law | None = None

    def __post_init__(self) -> None:
        check_count("servers", self.servers)
        check_time("transfer", self.transfer)
        check_time("latency", self.latency)


class _Stations:
    """Incoming link, processor and outgoing link of the servers, in `replicas` runs at once."""

    def __init__(self, network: Network, replicas: int, workers: int, messages: int, asking: int, rng: np.random.Generator) -> None:
        self.g, self.transfer, self.latency, self.servers = network.transfer / network.servers, network.transfer, network.latency, network.servers
        self.update, self.rng, self.rows = network.update, rng, np.arange(replicas)
        self.heads = np.full((replicas, workers, 2), math.inf)  # when each worker's push, request reaches the incoming link
        self.line = np.full((replicas, messages + 1), math.inf)  # when those that have passed it are with the servers, in order
        self.whose = np.zeros((replicas, messages + 1), int)  # twice the worker, + 1 for a request
        self.first, self.end = np.zeros(replicas, int), np.zeros(replicas, int)  # of the line
        self.incoming, self.busy, self.outgoing = (np.zeros(replicas) for _ in range(3))
        self.asking, self.queued = asking, np.zeros(replicas)  # 0: a worker waits from its push on, 1: from its request on

    def heads_first(self) -> tuple[Counts, Counts] | None:
        """Replicas in which a head comes before the next arrival, and twice the worker (+ 1: a request); it joins the line."""
        heads = self.heads.reshape(len(self.rows), -1)
        head = heads.min(axis=1)
        row = np.nonzero((head <= self.line[self.rows, self.first]) & np.isfinite(head))[0]
        if not len(row):
            return None
        which = heads[row].argmin(axis=1)
        heads[row, which] = math.inf
        self.incoming[row] = np.maximum(self.incoming[row], head[row]) + self.g * (which % 2 == 0)
        self.queued[row] += np.where(which % 2 == self.asking, self.incoming[row] - self.g * (which % 2 == 0) - head[row], 0.0)
        place = self.end[row]
        self.line[row, place], self.whose[row, place] = self.incoming[row], which
        self.end[row] += 1
        # A request has no bytes: it arrives in the moment in which the message before it is through, and the lower rank comes first.
        tie = (place > self.first[row]) & (self.line[row, place - 1] == self.incoming[row]) & (self.whose[row, place - 1] > which)
        one, before = row[tie], place[tie] - 1
        self.whose[one, before], self.whose[one, before + 1] = which[tie], self.whose[one, before]
        return row, which

    def serve(self) -> tuple[Mask, Counts, Mask]:
        """Take the next arrival of every replica: which have one, whose it is, whether it is a push."""
        arrival, which = self.line[self.rows, self.first], self.whose[self.rows, self.first]
        live = np.isfinite(arrival)
        self.first += live
        push = live & (which % 2 == 0)
        self.queued += np.where(live & (which % 2 == self.asking), np.maximum(self.busy - arrival, 0.0), 0.0)
        self.busy = np.where(live, np.maximum(self.busy, arrival), self.busy)
        if self.update is not None:
            self.busy += push * self.update.sample(self.rng, len(push))
        return live, which // 2, push

    def answer(self, released: Mask) -> Values:
        """When each released worker has its answer; they leave in worker order.

        Summed as a link sums: with fixed times messages tie, and the last digit of each sum decides who comes first.
        """
        place = np.cumsum(released, axis=1)
        leaves, count = np.maximum(self.outgoing, self.busy), place[:, -1]
        self.queued += count * (leaves - self.busy) + self.g * count * (count - 1) / 2
        self.outgoing = np.where(released.any(axis=1), leaves + self.g * count, self.outgoing)
        return np.asarray(leaves[:, None] + self.g * (place - 1) + self.latency + self.g * self.servers)


def _size(n: int, steps: int, random: bool) -> tuple[int, int]:
    clocks = max(min(steps, MESSAGES // n), min(steps, 40))
    return clocks, max(4, min(256, DRAWS // max(n * clocks, 1))) if random else 1


def parameter_server(laws: Sequence[Law], network: Network, staleness: float, steps: int, refresh: str = "fresh") -> Path:
    """SSP(s) through queues: seconds per clock, end of the run, staleness, reads; s = infinity, fresh: ASP.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    network : Network
    staleness : float
        s >= 0, may be infinite.
    steps : int
        Clocks of each worker, at least 1.
    refresh : {"fresh", "lazy", "eager"}
        As in `refsgd.theory.ssp.recursion`.

    Returns
    -------
    Path
        Exact for one server up to the standard error of its Monte Carlo mean; with several, the order in which
        pushes reach one is taken for all.
    """
    s = check_slack(staleness)
    return _path(laws, network, steps, lambda at, times, _: _GATES[refresh](s, at, times), asking=refresh == "lazy")


def granting(laws: Sequence[Law], network: Network, lower: int, upper: int, steps: int) -> Path:
    """Dynamic SSP through queues: a worker that hits the bound is granted the clocks after which its wait is shortest.

    Parameters
    ----------
    laws, network, steps
        As in `parameter_server`.
    lower, upper : int
        Slack in clocks, 0 <= lower <= upper.

    Returns
    -------
    Path
    """
    low, high = check_count("lower", lower, 0), check_count("upper", upper, 0)
    return _path(laws, network, steps, lambda at, times, _: _Granting(low, high, at, times), asking=False)


def fetching(laws: Sequence[Law], network: Network, steps: int, *, fetch_every: int = 1, push_every: int = 1, elastic: bool = False,
             own: Sequence[Law | None] = ()) -> Path:
    """Workers that fetch the model at t = 0, `fetch_every`, ... and wait for it, and push without waiting.

    Parameters
    ----------
    laws, network, steps
        As in `parameter_server`.
    fetch_every, push_every : int
        Iterations; pushes come after t = 0, `push_every`, ... and the last one (Downpour).
    elastic : bool
        Pushes come right after each fetch instead (EASGD).
    own : sequence of Law or None
        Of each worker's own update after a gradient.

    Returns
    -------
    Path
        Its staleness counts all updates between fetch and application, own ones too; mean over gradients (elastic: forces).
    """
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    return _path(laws, network, steps, lambda at, times, after: _Fetching(at, times, after, f, p, elastic), asking=True, own=own)


def _path(laws: Sequence[Law], network: Network, steps: int, make: Callable[[_Stations, Values, Values], _Fresh], *, asking: bool,
          own: Sequence[Law | None] = ()) -> Path:
    n = check_count("workers", len(laws))
    check_count("steps", steps)
    every = [check_law("compute", law) for law in laws] + [law for law in (network.update, *own) if law is not None]
    random = any(law.family != "fixed" for law in every)
    clocks = max(min(steps, MESSAGES // n), min(steps, 40))
    replicas = max(4, min(256, DRAWS // (n * clocks))) if random else 1
    run = _draw(laws, network, clocks, replicas, make, asking, own)
    long = run if clocks >= 120 else _draw(laws, network, 160, max(4, min(256, DRAWS // (160 * n))) if random else 1, make, asking, own)
    pace = float(np.mean(long.pace))

    def error(values: Values) -> float:
        return float(np.std(values) / math.sqrt(len(values)))

    return Path(pace, error(long.pace), float(np.mean(run.end)) + (steps - clocks) * pace, float(np.mean(run.age)), float(np.mean(run.reads)),
                True, float(np.mean(long.queued)), error(run.end) + (steps - clocks) * error(long.pace), error(run.age))


@dataclass
class _Run:
    """Of each replica: long-run seconds per clock, end of the run, mean staleness; per clock and worker: requests, queueing."""

    pace: Values
    end: Values
    age: Values
    reads: Values
    queued: Values


def _draw(laws: Sequence[Law], network: Network, clocks: int, replicas: int, make: Callable[[_Stations, Values, Values], _Fresh], asking: bool,
          own: Sequence[Law | None]) -> _Run:
    """Serve message by message; all arrays are (replicas, workers) unless said otherwise."""
    n, rng = len(laws), np.random.default_rng(1983)
    at = _Stations(network, replicas, n, (1 + asking) * (n * clocks + n), int(asking), rng)
    times = np.stack([law.sample(rng, replicas * clocks).reshape(replicas, clocks) for law in laws], axis=2)
    after = np.zeros_like(times)
    for i, law in enumerate(own):
        if law is not None:
            after[:, :, i] = law.sample(rng, replicas * clocks).reshape(replicas, clocks)
    gate = make(at, times, after)
    age, reads, last = np.zeros(replicas), np.zeros(replicas), np.zeros(replicas)
    while True:
        while (found := at.heads_first()) is not None:
            row, which = found
            gate.leave(row[which % 2 == 0], which[which % 2 == 0] // 2)
        live, who, push = at.serve()
        if not live.any():
            break
        mine = np.zeros((replicas, n), bool)
        mine[at.rows, who] = live
        row, col = at.rows[push], who[push]
        age[row] += gate.age(row, col)
        gate.version[row] += 1
        gate.done[row, col] += 1
        last[row], reads = at.busy[row], reads + (live & ~push)
        gate.arrive(mine, mine & push[:, None])
    low, high = clocks // 4, max(3 * clocks // 4, clocks // 4 + 1)
    spent = np.maximum((gate.ends[:, high - 1] - gate.ends[:, low - 1]) / (high - low), 1e-300) if low else gate.ends[:, -1] / clocks
    each = float(n) / np.sum(1 / spent, axis=1)
    end = np.maximum(np.maximum(last, gate.final.max(axis=1)), gate.ends.max(axis=(1, 2)))
    return _Run(each, end, age / (n * gate.read_for), reads / (n * clocks), at.queued / (n * clocks))


class _Fresh:
    """Each push is answered as soon as the bound allows it."""

    def __init__(self, s: float, at: _Stations, times: Values) -> None:
        self.s, self.at, self.times, self.transfer = s, at, times, at.transfer
        replicas, self.clocks, n = times.shape
        self.read_for = self.clocks  # reads of each worker that end in an update
        self.version = np.zeros(replicas, int)  # of the servers
        self.done, self.made = (np.zeros((replicas, n), int) for _ in range(2))  # clocks that the servers have; that have left the worker
        self.read, self.own, self.rows = (np.zeros((replicas, n), int) for _ in range(3))  # version, own clocks, clock of the held model
        self.waiting = np.zeros((replicas, n), bool)
        self.known = np.zeros((replicas, clocks := self.clocks, n), int)  # version at which each gradient was computed, own steps added
        self.ends = np.zeros((replicas, clocks, n))  # of the gradients
        self.final, self.leaves = np.zeros((replicas, n)), np.zeros((replicas, n))  # last answer; until when the outgoing link is busy
        self.start(*np.nonzero(np.ones((replicas, n), bool)))

    def start(self, row: Counts, col: Counts) -> None:
        """All start together."""
        self.begin(row, col, np.zeros(len(row)))

    def age(self, row: Counts, col: Counts) -> Values:
        """Staleness of the pushes that are about to be applied."""
        return np.asarray(self.version[row] - self.known[row, self.done[row, col], col])

    def begin(self, row: Counts, col: Counts, start: Values) -> None:
        """Workers start their next gradient, if there is one, and push it at its end."""
        more = self.made[row, col] < self.clocks
        row, col = row[more], col[more]
        clock = self.made[row, col]
        ended = start[more] + self.times[row, clock, col]
        self.known[row, clock, col] = self.read[row, col] + clock - self.own[row, col]
        self.ends[row, clock, col] = ended
        head = np.maximum(ended, self.leaves[row, col])
        self.leaves[row, col] = head + self.transfer
        self.at.heads[row, col, 0] = head + self.at.latency

    def leave(self, row: Counts, col: Counts) -> None:
        """What workers do whose push is on its way."""
        self.made[row, col] += 1

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """What servers do with a message of every replica."""
        self.waiting |= pushed
        answer, row, col = self.release(self.done <= self.done.min(axis=1)[:, None] + self.s)
        self.final[row, col] = answer
        self.begin(row, col, answer)

    def release(self, allowed: Mask) -> tuple[Values, Counts, Counts]:
        """Answer the waiting workers that are allowed: when each has its model, and who they are."""
        released = self.waiting & allowed
        self.waiting &= ~released
        row, col = np.nonzero(released)
        self.read[row, col], self.own[row, col] = self.version[row], self.done[row, col]
        self.rows[row, col] = self.done.min(axis=1)[row]
        return self.at.answer(released)[row, col], row, col


class _Granting(_Fresh):
    """The slack of a worker is at least `lower`; the server grants more, up to `upper`, where that shortens the wait.

    Worker and slowest worker are taken to push on at their last intervals, counted in pushes that the server receives:
    Zhao et al., ICDCS 2019, algorithm 2.
    """

    def __init__(self, lower: int, upper: int, at: _Stations, times: Values) -> None:
        replicas, _, n = times.shape
        self.lower, self.upper = lower, upper
        self.granted, self.before, self.last = (np.zeros((replicas, n), int) for _ in range(3))  # clocks; when the last two pushes came
        self.bound = np.full((replicas, n), lower)
        super().__init__(lower, at, times)

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """Move the bound of the worker that has pushed, and answer all that are within theirs."""
        row, col = np.nonzero(pushed)
        slowest = self.done.min(axis=1)
        self.before[row, col], self.last[row, col] = self.last[row, col], self.version[row]
        ahead = self.done[row, col] - slowest[row]
        hits = (self.granted[row, col] == 0) & (ahead > self.lower)
        if hits.any():
            self.granted[row[hits], col[hits]] = self.grant(row[hits], col[hits], ahead[hits])
        granted = self.granted[row, col]
        self.bound[row, col] = np.maximum(self.lower, ahead - (granted == 0))
        self.granted[row, col] = np.maximum(granted - 1, 0)
        self.waiting |= pushed
        answer, row, col = self.release(self.done <= slowest[:, None] + self.bound)
        self.final[row, col] = answer
        self.begin(row, col, answer)

    def grant(self, row: Counts, col: Counts, ahead: Counts) -> Counts:
        """The fewest clocks after which the predicted push comes soonest before a predicted one of the slowest worker."""
        now, last = self.last[row, col], self.last[row]
        interval = np.maximum(last - self.before[row], now[:, None] - last)
        due = np.where(self.done[row] == self.done[row].min(axis=1)[:, None], last + interval, -1)
        slow = due.shape[1] - 1 - np.argmax(due[:, ::-1], axis=1)  # the last of equals
        each = np.arange(len(row))
        extra = np.arange(self.upper + 1)
        wait = (last[each, slow] - now)[:, None] - extra * (now - self.before[row, col])[:, None]
        wait = np.where(extra <= (self.upper + 1 - ahead)[:, None], wait % interval[each, slow][:, None], np.iinfo(int).max)
        return np.asarray(wait.argmin(axis=1))


class _Lazy(_Fresh):
    """A worker goes on with its cache, and asks where that is older than c - s."""

    def leave(self, row: Counts, col: Counts) -> None:
        """Ask, right behind the own push, or go on at once."""
        ended = self.ends[row, self.made[row, col], col]
        self.made[row, col] += 1
        asks = self.rows[row, col] < self.made[row, col] - self.s
        behind = row[asks], col[asks]
        self.at.heads[(*behind, 1)] = np.where(self.made[behind] < self.clocks, self.leaves[behind] + self.at.latency, math.inf)
        self.begin(row[~asks], col[~asks], ended[~asks])

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """Hold a request until its clock is there."""
        self.waiting |= mine & ~pushed
        answer, row, col = self.release(self.done - self.s <= self.done.min(axis=1)[:, None])
        self.begin(row, col, answer)


class _Eager(_Fresh):
    """Rows go to all when the slowest clock advances; a worker waits only where the newest it has is too old."""

    def __init__(self, s: float, at: _Stations, times: Values) -> None:
        replicas, clocks, n = times.shape
        self.arrives = np.full((replicas, clocks + 2, n), math.inf)  # of row m
        self.arrives[:, 0] = 0.0
        self.versions, self.owns = np.zeros((replicas, clocks + 2), int), np.zeros((replicas, clocks + 2, n), int)
        self.sent = np.zeros(replicas, int)
        super().__init__(s, at, times)

    def leave(self, row: Counts, col: Counts) -> None:
        """Go on where the bound is known to be kept, else wait for a row."""
        self.made[row, col] += 1
        self.waiting[row, col] = True
        self.go_on(row, col)

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """Send a row to all if the slowest clock has advanced."""
        slowest = self.done.min(axis=1)
        row = np.nonzero(slowest > self.sent)[0]
        if not len(row):
            return
        advanced = np.zeros_like(mine)
        advanced[row] = True
        clock = self.sent[row] = slowest[row]
        self.arrives[row, clock] = self.at.answer(advanced)[row]
        self.versions[row, clock], self.owns[row, clock] = self.version[row], self.done[row]
        self.go_on(*np.nonzero(self.waiting & advanced))

    def go_on(self, row: Counts, col: Counts) -> None:
        """Start with the newest row that has come, at least of the clock that the bound asks for."""
        need = np.maximum(self.made[row, col] - self.s, 0)
        ready = need <= self.sent[row]
        row, col, newest = row[ready], col[ready], need[ready].astype(int)
        start = np.maximum(self.ends[row, self.made[row, col] - 1, col], self.arrives[row, newest, col])
        newest = np.maximum(newest, self.rows[row, col])
        # A row that comes in the very moment of the start is missed.
        while (later := self.arrives[row, newest + 1, col] < start).any():
            newest = newest + later
        self.waiting[row, col] = False
        self.rows[row, col], self.read[row, col], self.own[row, col] = newest, self.versions[row, newest], self.owns[row, newest, col]
        self.begin(row, col, start)


class _Fetching(_Fresh):
    """A worker asks now and then and pushes now and then; only the fetch makes it wait."""

    def __init__(self, at: _Stations, times: Values, after: Values, fetch_every: int, push_every: int, elastic: bool) -> None:
        clocks, self.after = times.shape[1], after  # own updates
        self.fetch_every, self.elastic = fetch_every, elastic
        self.pushes = np.array([not elastic and (t % push_every == 0 or t == clocks - 1) for t in range(clocks)])
        halts = self.pushes | np.array([(t + 1) % fetch_every == 0 or t == clocks - 1 for t in range(clocks)])
        self.halt = np.array([t + int(np.argmax(halts[t:])) for t in range(clocks)])  # the gradient after which something is to be done
        self.window = np.concatenate([[0], np.nonzero(self.pushes)[0] + 1])  # first gradient of each push
        super().__init__(math.inf, at, times)
        if elastic:
            self.read_for = -(-clocks // fetch_every)

    def start(self, row: Counts, col: Counts) -> None:
        """Everybody fetches first."""
        self.at.heads[row, col, 1] = self.at.latency

    def begin(self, row: Counts, col: Counts, start: Values) -> None:
        """Compute until something is to be pushed or fetched."""
        more = self.made[row, col] < self.clocks
        row, col, start = row[more], col[more], start[more]
        first = self.made[row, col]
        last = self.halt[first] if len(row) else first
        self.made[row, col] = last + 1
        clock = start
        for ahead in range(int((last - first).max(initial=-1)) + 1):
            t = np.minimum(first + ahead, last)
            clock = np.where(first + ahead <= last, clock + self.times[row, t, col] + self.after[row, t, col], clock)
            self.ends[row, t, col] = clock
            self.known[row, t, col] = self.read[row, col]
        push = self.pushes[last] if len(row) else last.astype(bool)
        self.send(row[push], col[push], self.ends[row, last, col][push])
        self.ask(row[~push], col[~push])

    def send(self, row: Counts, col: Counts, at: Values) -> None:
        """Hand a push to the outgoing link."""
        head = np.maximum(at, self.leaves[row, col])
        self.leaves[row, col] = head + self.transfer
        self.at.heads[row, col, 0] = head + self.at.latency

    def ask(self, row: Counts, col: Counts) -> None:
        """Ask for the model that the next gradient needs, behind what has been pushed."""
        more = self.made[row, col] < self.clocks
        row, col = row[more], col[more]
        ended = self.ends[row, self.made[row, col] - 1, col]
        self.at.heads[row, col, 1] = np.maximum(ended, self.leaves[row, col]) + self.at.latency

    def leave(self, row: Counts, col: Counts) -> None:
        """Fetch, if it is time, or go on."""
        if self.elastic:
            return
        asks = self.made[row, col] % self.fetch_every == 0
        self.ask(row[asks], col[asks])
        row, col = row[~asks], col[~asks]
        self.begin(row, col, self.ends[row, self.made[row, col] - 1, col])

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """Answer every request at once."""
        self.waiting |= mine & ~pushed
        answer, row, col = self.release(np.ones_like(mine))
        if self.elastic:
            self.send(row, col, answer)
        self.begin(row, col, answer)

    def age(self, row: Counts, col: Counts) -> Values:
        """Summed over the gradients of a push."""
        number = self.done[row, col]
        if self.elastic:
            return np.asarray(self.version[row] - self.known[row, number * self.fetch_every, col])
        first, end = self.window[number], self.window[number + 1]
        total = np.zeros(len(row))
        for ahead in range(int((end - first).max(initial=0))):
            t = np.minimum(first + ahead, end - 1)
            total += np.where(first + ahead < end, self.version[row] - self.known[row, t, col], 0)
        return total


_GATES: dict[str, type[_Fresh]] = {"fresh": _Fresh, "lazy": _Lazy, "eager": _Eager}
