"""Fifteen correct programs in further styles, and fifteen mistakes in them, each a change of text."""

import heapq
from collections import Counter, deque
from functools import partial
from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Poll, Recv, Send


class Up(NamedTuple):
    g: np.ndarray
    t: int


class Down(NamedTuple):
    x: np.ndarray


class Tell(NamedTuple):
    what: tuple


class Wish(NamedTuple):
    t: int


def star(problem, workers, client, server):
    names = [f"w{i}" for i in range(workers)]
    return {"store": Node(server(names), role="server")} | {n: Node(client(i), rank=i) for i, n in enumerate(names)}


def ring_of(workers, peer):
    names = [f"p{i}" for i in range(workers)]
    return {n: Node(peer(i, names), rank=i) for i, n in enumerate(names)}


def plain_client(problem, steps, i):
    x = problem.x0
    for t in range(steps):
        g = yield Compute(problem.gradient, x, i, t)
        yield Send("store", Up(g, t))
        _, (x,) = yield Recv(Down)
        yield Mark("clock", t=t)
    return x


class Store:
    """Parameters and their rule, as an object."""

    def __init__(self, problem, sgd):
        self.x, self.v, self.t, self.sgd = problem.x0, sgd.start(problem.x0), 0, sgd

    def absorb(self, g):
        self.x, self.v = yield Compute(self.sgd.step, self.x, self.v, g, self.t, kind="update")
        self.t += 1


# -- bounded staleness ---------------------------------------------------------------------------------------


def ssp_heap(problem, workers, steps, sgd, *, staleness=1):
    """Held workers lie in a heap by their clocks; the least is looked at first."""
    def server(names):
        store, clock, held = Store(problem, sgd), Counter(dict.fromkeys(names, 0)), []
        for _ in range(steps * workers):
            who, (g, _) = yield Recv(Up)
            yield from store.absorb(g)
            clock[who] += 1
            heapq.heappush(held, (clock[who], who))
            while held and held[0][0] <= min(clock.values()) + staleness:
                _, free = heapq.heappop(held)
                yield Send(free, Down(store.x))
        return store.x

    return star(problem, workers, partial(plain_client, problem, steps), server)


def ssp_by_wish(problem, workers, steps, sgd, *, staleness=1):
    """Pushes are not answered; a worker wishes for the model of its next step and gets it in time."""
    def client(i):
        x = problem.x0
        for t in range(steps):
            if t:
                yield Send("store", Wish(t))
                _, (x,) = yield Recv(Down)
            g = yield Compute(problem.gradient, x, i, t)
            yield Send("store", Up(g, t))
        return x

    def server(names):
        store, done, wishes = Store(problem, sgd), Counter(dict.fromkeys(names, 0)), {}
        for _ in range(workers * max(0, 2 * steps - 1)):
            who, message = yield Recv(Up, Wish)
            match message:
                case Up(g=g):
                    yield from store.absorb(g)
                    done[who] += 1
                case Wish(t=t):
                    wishes[who] = t
            slowest = min(done.values())
            for name in [n for n in names if wishes.get(n, float("inf")) - staleness <= slowest]:
                del wishes[name]
                yield Send(name, Down(store.x))
        return store.x

    return star(problem, workers, client, server)


def ssp_queues(problem, workers, steps, sgd, *, staleness=1):
    """One queue for each clock; a queue is emptied when the slowest worker is near enough."""
    def server(names):
        store, queue, count = Store(problem, sgd), {}, [workers] + [0] * steps
        at, low = dict.fromkeys(names, 0), 0
        while count[steps] < workers:
            who, up = yield Recv(Up)
            yield from store.absorb(up.g)
            count[at[who]] -= 1
            at[who] += 1
            count[at[who]] += 1
            queue.setdefault(at[who], deque()).append(who)
            while low < steps and count[low] == 0:
                low += 1
            for clock in sorted(queue):
                while clock - low <= staleness and queue[clock]:
                    yield Send(queue[clock].popleft(), Down(store.x))
        return store.x

    return star(problem, workers, partial(plain_client, problem, steps), server)


def ssp_relay(problem, workers, steps, sgd, *, staleness=1):
    """A relay between workers and store, which only passes on what it gets, in order."""
    def client(i):
        x = problem.x0
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            yield Send("relay", Up(g, t))
            _, (x,) = yield Recv(Down)
        return x

    def relay(names):
        for _ in range(2 * steps * workers):
            src, message = yield Recv(Up, Tell)
            if isinstance(message, Up):
                yield Send("store", Tell((src, message.g)))
            else:
                to, x = message.what
                yield Send(to, Down(x))

    def server(names):
        store, clock, held = Store(problem, sgd), dict.fromkeys(names, 0), set()
        for _ in range(steps * workers):
            _, (what,) = yield Recv(Tell)
            who, g = what
            yield from store.absorb(g)
            clock[who] += 1
            held.add(who)
            for free in sorted(n for n in held if clock[n] <= min(clock.values()) + staleness):
                held.remove(free)
                yield Send("relay", Tell((free, store.x)))
        return store.x

    names = [f"w{i}" for i in range(workers)]
    return star(problem, workers, client, server) | {"relay": Node(relay(names), role="server")}


def ssp_mask(problem, workers, steps, sgd, *, staleness=1):
    """Clocks in an array; who may go is a mask."""
    def server(names):
        store, clock, held = Store(problem, sgd), np.zeros(workers, int), np.zeros(workers, bool)
        for _ in range(steps * workers):
            who, (g, _) = yield Recv(Up)
            yield from store.absorb(g)
            clock[names.index(who)] += 1
            held[names.index(who)] = True
            for j in np.flatnonzero(held & (clock <= clock.min() + staleness)):
                held[j] = False
                yield Send(names[j], Down(store.x))
        return store.x

    return star(problem, workers, partial(plain_client, problem, steps), server)


# -- asynchronous --------------------------------------------------------------------------------------------


def asp_entries(problem, workers, steps, sgd):
    """Gradients travel entry by entry, as numbers."""
    def client(i):
        x = problem.x0
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            for k, value in enumerate(g.tolist()):
                yield Send("store", Tell((k, value)))
            _, (x,) = yield Recv(Down)
        return x

    def server(names):
        store, parts = Store(problem, sgd), {n: np.zeros_like(problem.x0) for n in names}
        left, seen = steps * workers, Counter()
        while left:
            who, ((k, value),) = yield Recv(Tell)
            parts[who] = np.where(np.arange(problem.x0.size) == k, np.float32(value), parts[who])
            seen[who] += 1
            if seen[who] == problem.x0.size:
                yield from store.absorb(parts[who])
                seen[who], left = 0, left - 1
                yield Send(who, Down(store.x))
        return store.x

    return star(problem, workers, client, server)


def asp_difference(problem, workers, steps, sgd):
    """The store answers with what has changed since the worker's last answer."""
    def client(i):
        x = problem.x0
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            yield Send("store", Up(g, t))
            _, (move,) = yield Recv(Down)
            x = x + move
        return x

    def server(names):
        store, has = Store(problem, sgd), dict.fromkeys(names, problem.x0)
        for _ in range(steps * workers):
            who, up = yield Recv(Up)
            yield from store.absorb(up.g)
            yield Send(who, Down(store.x - has[who]))
            has[who] = store.x
        return store.x

    return star(problem, workers, client, server)


# -- bulk-synchronous ----------------------------------------------------------------------------------------


def weighted(problem, gradients, t):
    """The mean over images, in the order of ranks."""
    share = [np.float32(problem.images(i, t)) for i in range(len(gradients))]
    return sum(b * g for b, g in zip(share, gradients)) / np.float32(sum(share))


def bsp_tree(problem, workers, steps, sgd):
    """Gradients go up a binary tree as lists, and the root sums them in order."""
    def peer(i, names):
        x, v = problem.x0, sgd.start(problem.x0)
        below = [j for j in (2 * i + 1, 2 * i + 2) if j < workers]
        for t in range(steps):
            found = {i: (yield Compute(problem.gradient, x, i, t))}
            for j in below:
                _, (what,) = yield Recv(Tell, src=names[j])
                found |= dict(what)
            if i:
                yield Send(names[(i - 1) // 2], Tell(tuple(found.items())))
                _, (x,) = yield Recv(Down)
            else:
                g = weighted(problem, [found[j] for j in range(workers)], t)
                x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            for j in below:
                yield Send(names[j], Down(x))
        return x

    return ring_of(workers, peer)


def bsp_token(problem, workers, steps, sgd):
    """A token with all gradients goes round a ring; the last one steps and sends the model round."""
    def peer(i, names):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            token = ()
            if i:
                _, (token,) = yield Recv(Tell, src=names[i - 1])
            token = (*token, g)
            if i < workers - 1:
                yield Send(names[i + 1], Tell(token))
                _, (x,) = yield Recv(Down, src=names[i + 1])
            else:
                x, v = yield Compute(sgd.step, x, v, weighted(problem, token, t), t, kind="update")
            if i:
                yield Send(names[i - 1], Down(x))
        return x

    return ring_of(workers, peer)


def bsp_patient(problem, workers, steps, sgd):
    """The server polls; whatever comes is filed by its step."""
    def server(names):
        store, files = Store(problem, sgd), {}
        while store.t < steps:
            hit = yield Poll(Up)
            if hit is None:
                hit = yield Recv(Up)
            who, up = hit
            page = files.setdefault(up.t, {})
            page[who] = up.g
            if len(page) == workers:
                yield from store.absorb(weighted(problem, [files[up.t][n] for n in names], up.t))
                for name in names:
                    yield Send(name, Down(store.x))
        return store.x

    return star(problem, workers, partial(plain_client, problem, steps), server)


# -- all-reduce, local steps, gossip -------------------------------------------------------------------------


def all_chain(problem, workers, steps, sgd):
    """Up a chain the weighted sum grows, down it the result is copied."""
    def peer(i, names):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            share = [problem.images(j, t) for j in range(workers)]
            total = np.float32(share[i]) * (yield Compute(problem.gradient, x, i, t))
            if i:
                total = (yield Recv(Down, src=names[i - 1]))[1].x + total
            if i < workers - 1:
                yield Send(names[i + 1], Down(total))
                _, (total,) = yield Recv(Down, src=names[i + 1])
            if i:
                yield Send(names[i - 1], Down(total))
            x, v = yield Compute(sgd.step, x, v, total / np.float32(sum(share)), t, kind="update")
        return x

    return ring_of(workers, peer)


def all_pieces(problem, workers, steps, sgd):
    """Everyone owns a piece of the vector, of unequal lengths, sums it and sends it to all."""
    def peer(i, names):
        x, v, others = problem.x0, sgd.start(problem.x0), [j for j in range(workers) if j != i]
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            pieces = np.array_split(g, workers)
            for j in others:
                yield Send(names[j], Up(pieces[j], t))
            mine = {i: pieces[i]}
            for j in others:
                mine[j] = (yield Recv(Up, src=names[j]))[1].g
            done = {i: weighted(problem, [mine[j] for j in range(workers)], t)}
            for j in others:
                yield Send(names[j], Down(done[i]))
            for j in others:
                done[j] = (yield Recv(Down, src=names[j]))[1].x
            mean = np.concatenate([done[j] for j in range(workers)])
            x, v = yield Compute(sgd.step, x, v, mean, t, kind="update")
        return x

    return ring_of(workers, peer)


def local_by_store(problem, workers, steps, sgd, *, period=8):
    """A store averages the replicas at the end of each period."""
    def rounds():
        start = 0
        while start < steps:
            yield start, min(start + period, steps)
            start += period

    def client(i):
        x, v = problem.x0, sgd.start(problem.x0)
        for first, last in rounds():
            for t in range(first, last):
                g = yield Compute(problem.gradient, x, i, t)
                x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            yield Send("store", Up(x, last))
            _, (x,) = yield Recv(Down)
        return x

    def server(names):
        x = problem.x0
        for first, last in rounds():
            got = {}
            for _ in names:
                who, up = yield Recv(Up)
                got[who] = up.g
            images = [sum(problem.images(i, t) for t in range(first, last)) for i in range(workers)]
            x = x + sum(np.float32(b / sum(images)) * (got[n] - x) for n, b in zip(names, images))
            for name in names:
                yield Send(name, Down(x))

    return star(problem, workers, client, server)


def mix(x, got, degree, near, i):
    """Metropolis weights."""
    for j in near:
        x = x + np.float32(1 / (1 + max(degree(i), degree(j)))) * (got[j] - got[i])
    return x


def dpsgd_matrix(problem, workers, steps, sgd):
    """Models are exchanged first; the gradient is that of the model before."""
    def around(i):
        return sorted({(i - 1) % workers, (i + 1) % workers} - {i})

    def peer(i, names):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            for j in around(i):
                yield Send(names[j], Down(x))
            g = yield Compute(problem.gradient, x, i, t)
            got = {i: x}
            for j in around(i):
                got[j] = (yield Recv(Down, src=names[j]))[1].x
            x, v = yield Compute(sgd.step, mix(x, got, lambda k: len(around(k)), around(i), i), v, g, t, kind="update")
        return x

    return ring_of(workers, peer)


def alone(problem, workers, steps, sgd):
    """No message at all."""
    def peer(i, names):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        return x

    return ring_of(workers, peer)


PROGRAMS = {"ssp_heap": "ssp", "ssp_by_wish": "ssp", "ssp_queues": "ssp", "ssp_relay": "ssp", "ssp_mask": "ssp", "asp_entries": "asp",
            "asp_difference": "asp", "bsp_tree": "bsp", "bsp_token": "bsp", "bsp_patient": "bsp",
            "all_chain": "allreduce", "all_pieces": "allreduce", "local_by_store": "local-sgd",
            "dpsgd_matrix": "dpsgd", "alone": "independent"}

#: program, the text that is changed, what it becomes
MISTAKES = [
    ("ssp_heap", "while held and held[0][0]", "if held and held[0][0]"),  # one at a time
    ("ssp_heap", "_, free = heapq.heappop(held)", "_, free = held.pop()"),  # not the least
    ("ssp_by_wish", "- staleness <= slowest]", "- staleness < slowest]"),
    ("ssp_by_wish", "if t:", "if t > 1:"),  # the second step reads the first model
    ("ssp_queues", "queue.setdefault(at[who],", "queue.setdefault(low,"),  # nobody is held
    ("ssp_queues", "while low < steps and count[low] == 0:", "while low < steps and count[low] < workers - 1:"),
    ("ssp_relay", "Tell((src, message.g))", "Tell((src, message.g + message.g))"),  # the full rate twice
    ("asp_entries", "seen[who], left = 0, left - 1", "seen[who], left = 0, left - 1\n                parts = "
     "{n: np.zeros_like(problem.x0) for n in names}"),  # half a gradient of another worker is gone
    ("asp_difference", "            has[who] = store.x\n", ""),
    ("bsp_tree", "for j in (2 * i + 1, 2 * i + 2) if j < workers]", "for j in (2 * i + 1,) if j < workers]"),
    ("bsp_token", "weighted(problem, token, t), t, kind", "np.float32(1 / workers) * sum(token), t, kind"),
    ("all_chain", "+ total\n            if i < workers - 1:", "+ total * np.float32(i == workers - 1 or t % 2 == 0)\n"
     "            if i < workers - 1:"),
    ("all_pieces", "np.array_split(g, workers)", "[g[k::workers] for k in range(workers)]"),  # put together wrongly
    ("local_by_store", "x = x + sum(np.float32(b / sum(images)) * (got[n] - x)",
     "x = 0 * x + sum(np.float32(1 / workers) * got[n]"),  # equal weights
    ("dpsgd_matrix", "(1 + max(degree(i), degree(j)))", "(2 + max(degree(i), degree(j)))"),
]
