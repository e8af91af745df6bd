"""When a parameter server answers, and what its workers do meanwhile: one class for each rule, driven message by message.

`Fresh` is SSP that answers each push, `Granting` is dynamic SSP, `Lazy` and `Eager` are SSP on caches, `Fetching` is Downpour
and EASGD.  A gate tells the stations (`refsgd.theory.stations`) what is sent when, and is told by `refsgd.theory.queueing`
what has arrived.  All replicas of a run go on side by side: arrays are (replicas, workers) unless said otherwise.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019.
"""

from __future__ import annotations

import math

import numpy as np

from refsgd.theory.stations import Counts, Mask, Stations, Values


class Fresh:
    """Each push is answered as soon as the bound allows it.

    Parameters
    ----------
    s : float
        Slack in clocks, may be infinite.
    at : Stations
        What the messages pass.
    times : float64, (replicas, clocks, workers)
        Seconds of each gradient.
    """

    def __init__(self, s: float, at: Stations, times: Values) -> None:
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
        """All start together.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        """
        self.begin(row, col, np.zeros(len(row)))

    def age(self, row: Counts, col: Counts) -> Values:
        """Staleness of the pushes that are about to be applied.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.

        Returns
        -------
        array, shape of row
            Updates.
        """
        return np.asarray(self.version[row] - self.known[row, self.done[row, col], col])

    def begin(self, row: Counts, col: Counts, start: Values) -> None:
        """Workers start their next gradient, if there is one, and push it at its end.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        start : float64, shape of row
            Seconds.
        """
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
        """What workers do whose push is on its way.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        """
        self.made[row, col] += 1

    def arrive(self, mine: Mask, pushed: Mask) -> None:
        """What servers do with a message of every replica.

        Parameters
        ----------
        mine : array of bool, (replicas, workers)
            Whose message it is.
        pushed : array of bool, (replicas, workers)
            The same where it is a push, not a request.
        """
        self.waiting |= pushed
        answer, row, col = self.release(self.done <= self.done.min(axis=1)[:, None] + self.s)
        self.final[row, col] = answer
        self.begin(row, col, answer)

    def release(self, allowed: Mask) -> tuple[Values, Counts, Counts]:
        """Answer the waiting workers that are allowed: when each has its model, and who they are.

        Parameters
        ----------
        allowed : array of bool, (replicas, workers)

        Returns
        -------
        answer : float64
            Seconds at which each of them has its model.
        row, col : array of int, shape of answer
            Replicas and workers.
        """
        released = self.waiting & allowed
        self.waiting &= ~released
        row, col = np.nonzero(released)
        self.read[row, col], self.own[row, col] = self.version[row], self.done[row, col]
        self.rows[row, col] = self.done.min(axis=1)[row]
        return self.at.answer(released)[row, col], row, col


class Granting(Fresh):
    """The slack of a worker is at least `lower`; the server grants more, up to `upper`, where that shortens the wait.

    Worker and slowest worker are taken to push on at their last intervals, counted in pushes that the server receives:
    Zhao et al., ICDCS 2019, algorithm 2.

    Parameters
    ----------
    lower, upper : int
        Slack in clocks.
    """

    def __init__(self, lower: int, upper: int, at: Stations, times: Values) -> None:
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
        """The fewest clocks after which the predicted push comes soonest before a predicted one of the slowest worker.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        ahead : array of int, shape of row
            Clocks before the slowest worker.

        Returns
        -------
        array of int, shape of row
            Clocks granted.
        """
        now, last = self.last[row, col], self.last[row]
        interval = np.maximum(last - self.before[row], now[:, None] - last)
        due = np.where(self.done[row] == self.done[row].min(axis=1)[:, None], last + interval, -1)
        slow = due.shape[1] - 1 - np.argmax(due[:, ::-1], axis=1)  # the last of equals
        each = np.arange(len(row))
        extra = np.arange(self.upper + 1)
        wait = (last[each, slow] - now)[:, None] - extra * (now - self.before[row, col])[:, None]
        wait = np.where(extra <= (self.upper + 1 - ahead)[:, None], wait % interval[each, slow][:, None], np.iinfo(int).max)
        return np.asarray(wait.argmin(axis=1))


class Lazy(Fresh):
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


class Eager(Fresh):
    """Rows go to all when the slowest clock advances; a worker waits only where the newest it has is too old."""

    def __init__(self, s: float, at: Stations, times: Values) -> None:
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
        """Start with the newest row that has come, at least of the clock that the bound asks for.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        """
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


class Fetching(Fresh):
    """A worker asks now and then and pushes now and then; only the fetch makes it wait.

    Parameters
    ----------
    after : float64, shape of times
        Seconds of the worker's own update after each gradient.
    fetch_every, push_every : int
        Iterations.
    elastic : bool
        Whether a push comes right after each fetch instead.
    """

    def __init__(self, at: Stations, times: Values, after: Values, fetch_every: int, push_every: int, elastic: bool) -> None:
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
        """Hand a push to the outgoing link.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        at : float64, shape of row
            Seconds.
        """
        head = np.maximum(at, self.leaves[row, col])
        self.leaves[row, col] = head + self.transfer
        self.at.heads[row, col, 0] = head + self.at.latency

    def ask(self, row: Counts, col: Counts) -> None:
        """Ask for the model that the next gradient needs, behind what has been pushed.

        Parameters
        ----------
        row, col : array of int
            Replicas and workers, as many of each.
        """
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
