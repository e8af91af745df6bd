"""Fifteen correct programs in unusual styles: own names and classes, several messages for one, other helpers."""

from typing import NamedTuple

import numpy as np

from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.effects import Compute, Mark, Node, Poll, Recv, RunEnded, Send


class Gradient(NamedTuple):
    values: np.ndarray


class Half(NamedTuple):
    number: int
    values: np.ndarray


class Want(NamedTuple):
    clock: int


class Go(NamedTuple):
    pass


class Bye(NamedTuple):
    pass


class Weights(NamedTuple):
    values: np.ndarray
    clock: int
    own: int


def serve(clients, x, steps, sgd, slack, marks=True):
    clock, waiting, version, v = dict.fromkeys(clients, 0), [], 0, sgd.start(x)
    while min(clock.values()) < steps:
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        if marks:
            yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        version += 1
        clock[w] += 1
        waiting.append(w)
        for u in [u for u in waiting if clock[u] <= min(clock.values()) + slack]:
            waiting.remove(u)
            yield Send(u, Model(x, version))
    return x


def ssp_plain(problem, workers, steps, sgd, *, staleness=3):
    ws, ss = names(workers, 1)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    return nodes | {ss[0]: Node(serve(ws, problem.x0, steps, sgd, staleness), role="server")}


def ssp_without_marks(problem, workers, steps, sgd, *, staleness=3):
    ws, ss = names(workers, 1)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    return nodes | {ss[0]: Node(serve(ws, problem.x0, steps, sgd, staleness, marks=False), role="server")}


def dssp_static(problem, workers, steps, sgd, *, lower=3, upper=15):
    return ssp_plain(problem, workers, steps, sgd, staleness=upper)


# -- the model is asked for, in a message of its own ---------------------------------------------------------


def asking(rank, hub, problem, steps, after=()):
    x = problem.x0
    for t in range(steps):
        if t:
            yield Send(hub, Want(t))
            _, (x, _, _) = yield Recv(Weights, src=hub)
        g = yield Compute(problem.gradient, x, rank, t)
        yield Send(hub, Gradient(g))
    for message in after:
        yield Send(hub, message)


def answering(clients, x, steps, sgd, slack):
    """Ends with the last gradient; requests wait in a list of (clock, client)."""
    done, wants, t, v = {c: 0 for c in clients}, [], 0, sgd.start(x)
    while sum(done.values()) < steps * len(clients):
        who, message = yield Recv(Gradient, Want)
        match message:
            case Gradient(values):
                x, v = sgd.step(x, v, values, t)  # without Compute: the update takes no time
                t, done[who] = t + 1, done[who] + 1
            case Want(clock):
                wants.append((clock, who))
        ready = [(c, w) for c, w in wants if c - slack <= min(done.values())]
        wants = [pair for pair in wants if pair not in ready]
        for clock, client in sorted(ready):
            yield Send(client, Weights(x, min(done.values()), clock))
    return x


def ssp_asks(problem, workers, steps, sgd, *, staleness=3):
    clients = [f"client-{'abcdefgh'[i]}" for i in range(workers)]
    nodes = {"hub": Node(answering(clients, problem.x0, steps, sgd, staleness), role="server")}
    for i in reversed(range(workers)):  # ranks against the order of the deployment
        nodes[clients[i]] = Node(asking(i, "hub", problem, steps), rank=i)
    return nodes


def asp_asks(problem, workers, steps, sgd):
    return ssp_asks(problem, workers, steps, sgd, staleness=float("inf"))


def until_all_say_goodbye(clients, x, sgd):
    here, t, v = set(clients), 0, sgd.start(x)
    while here:
        who, message = yield Recv(Gradient, Want, Bye)
        if isinstance(message, Gradient):
            x, v = yield Compute(sgd.step, x, v, message.values, t, kind="update")
            t += 1
        elif isinstance(message, Want):
            yield Send(who, Weights(x, 0, 0))
        else:
            here.discard(who)
    return x


def asp_goodbye(problem, workers, steps, sgd):
    clients = [f"w{i}" for i in range(workers)]
    return {c: Node(asking(i, "ps", problem, steps, [Bye()]), rank=i) for i, c in enumerate(clients)} | {
        "ps": Node(until_all_say_goodbye(clients, problem.x0, sgd), role="server")}


# -- leave to go first, then the model; gradients and models in two halves -----------------------------------


def in_halves(rank, server, problem, steps):
    x = problem.x0
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        yield from send_halves(server, g)
        yield Recv(Go, src=server)
        yield Send(server, Want(t))
        x = yield from receive_halves(server)
    return x


def send_halves(to, vector):
    middle = len(vector) // 2
    for number, values in enumerate((vector[:middle], vector[middle:])):
        yield Send(to, Half(number, values))


def receive_halves(src):
    _, first = yield Recv(Half, src=src)
    _, second = yield Recv(Half, src=src)
    assert (first.number, second.number) == (0, 1)
    return np.concatenate([first.values, second.values])


class Table:
    """State of the gate as an object with methods."""

    def __init__(self, clients, slack):
        self.clock, self.held, self.slack = {c: 0 for c in clients}, set(), slack

    def tick(self, client):
        self.clock[client] += 1
        self.held.add(client)

    def released(self):
        slowest = min(self.clock.values())
        free = {c for c in self.held if self.clock[c] - slowest <= self.slack}
        self.held -= free
        return sorted(free)


def halves_server(clients, x, steps, sgd, slack):
    table, v, t, first, answers = Table(clients, slack), sgd.start(x), 0, {}, 0
    while answers < steps * len(clients):
        who, message = yield Recv(Half, Want)
        if isinstance(message, Want):
            yield from send_halves(who, x)
            answers += 1
        elif message.number == 0:
            first[who] = message.values
        else:
            g = np.concatenate([first.pop(who), message.values])
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            t += 1
            table.tick(who)
            for client in table.released():
                yield Send(client, Go())
    return x


def ssp_halves(problem, workers, steps, sgd, *, staleness=3):
    clients = [f"node{i}" for i in range(workers)]
    return {c: Node(in_halves(i, "zeus", problem, steps), rank=i) for i, c in enumerate(clients)} | {
        "zeus": Node(halves_server(clients, problem.x0, steps, sgd, staleness), role="server")}


def bsp_go(problem, workers, steps, sgd):
    def server(clients, x):
        v = sgd.start(x)
        for t in range(steps):
            total = {}
            while len(total) < len(clients):
                who, half = yield Recv(Half)
                _, other = yield Recv(Half, src=who)
                total[who] = np.concatenate([half.values, other.values])
            share = [problem.images(i, t) for i in range(workers)]
            g = sum(np.float32(b) * total[c] for b, c in zip(share, clients)) / np.float32(sum(share))
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            for c in clients:
                yield Send(c, Go())
            for _ in clients:
                who, _ = yield Recv(Want)
                yield from send_halves(who, x)
        return x

    clients = [f"n{i}" for i in range(workers)]
    return {"s": Node(server(clients, problem.x0), role="server")} | {
        c: Node(in_halves(i, "s", problem, steps), rank=i) for i, c in enumerate(clients)}


# -- a cache at the worker, after Ho et al. ------------------------------------------------------------------


def caching(rank, server, problem, steps, sgd, slack):
    cache, mine = Weights(problem.x0, 0, 0), []
    for c in range(steps):
        if cache.clock < c - slack:
            yield Send(server, Want(c - slack))
            _, cache = yield Recv(Weights)
        while hit := (yield Poll(Weights)):
            _, cache = hit
        x = cache.values
        for t in range(cache.own, c):
            x = x - sgd.rate(t) * mine[t]
        g = yield Compute(problem.gradient, x, rank, c)
        mine.append(g)
        yield Send(server, Gradient(g))


def ssp_cache(problem, workers, steps, sgd, *, staleness=3):
    def server(clients, x):
        done, parked, t, v = dict.fromkeys(clients, 0), {}, 0, sgd.start(x)
        while min(done.values()) < steps:
            who, message = yield Recv(Gradient, Want)
            if isinstance(message, Want):
                parked[who] = message.clock
            else:
                x, v = yield Compute(sgd.step, x, v, message.values, t, kind="update")
                t, done[who] = t + 1, done[who] + 1
            for u in [u for u in parked if parked[u] <= min(done.values())]:
                del parked[u]
                yield Send(u, Weights(x, min(done.values()), done[u]))
        return x

    clients = [f"worker{i}" for i in range(workers)]
    return {c: Node(caching(i, "table", problem, steps, sgd, staleness), rank=i)
            for i, c in enumerate(clients)} | {"table": Node(server(clients, problem.x0), role="server")}


def ssp_two_servers(problem, workers, steps, sgd, *, staleness=3):
    ws, ss = names(workers, 2)
    middle = problem.x0.size // 2
    parts = [problem.x0[:middle], problem.x0[middle:]]
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    return nodes | {s: Node(serve(ws, part, steps, sgd, staleness, marks=False), role="server")
                    for s, part in zip(ss, parts)}


def asp_two_servers(problem, workers, steps, sgd):
    return ssp_two_servers(problem, workers, steps, sgd, staleness=float("inf"))


def ssp_handler(problem, workers, steps, sgd, *, staleness=3):
    """The gate serves in a handler of worker 0's node, which keeps the model in a shared object."""
    class State:
        x, v, t = problem.x0, sgd.start(problem.x0), 0

    clients = [f"p{i}" for i in range(workers)]

    def gate():
        done, wants = dict.fromkeys(clients, 0), {}
        try:
            while True:
                who, message = yield Recv(Gradient, Want)
                if isinstance(message, Gradient):
                    State.x, State.v = sgd.step(State.x, State.v, message.values, State.t)
                    State.t, done[who] = State.t + 1, done[who] + 1
                else:
                    wants[who] = message.clock
                for u in [u for u, c in wants.items() if c <= min(done.values()) + staleness]:
                    yield Send(u, Weights(State.x, 0, wants.pop(u)))
        except RunEnded:
            return

    def first():
        yield from asking(0, "p0", problem, steps)
        yield Send("p0", Want(0))
        for _ in range(workers - 1):
            yield Recv(Bye)
        yield Recv(Weights)  # behind every gradient
        return State.x

    nodes = {c: Node(asking_bye(i, problem, steps), rank=i) for i, c in enumerate(clients) if i}
    return {"p0": Node(first(), handlers=[gate()], rank=0)} | nodes


def asking_bye(rank, problem, steps):
    yield from asking(rank, "p0", problem, steps)
    yield Send("p0", Want(0))
    yield Recv(Weights)
    yield Send("p0", Bye())


# -- bulk-synchronous without a server -----------------------------------------------------------------------


def everybody_tells_everybody(rank, peers, problem, steps, sgd):
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        for p in peers:
            if p != peers[rank]:
                yield Send(p, Gradient(g))
        got = []
        for p in peers:  # in the order of ranks
            got.append(g if p == peers[rank] else (yield Recv(Gradient, src=p))[1].values)
        share = np.array([problem.images(i, t) for i in range(len(peers))], np.float32)
        mean = share @ np.array(got) / share.sum()
        x, v = yield Compute(sgd.step, x, v, mean, t, kind="update")
    return x


def bsp_broadcast(problem, workers, steps, sgd):
    peers = [f"peer{i}" for i in range(workers)]
    return {p: Node(everybody_tells_everybody(i, peers, problem, steps, sgd)) for i, p in enumerate(peers)}


def allreduce_broadcast(problem, workers, steps, sgd):
    return bsp_broadcast(problem, workers, steps, sgd)


def bsp_chief(problem, workers, steps, sgd):
    """Worker 0 collects, in the order of ranks; the mean is computed step by step."""
    def chief(others):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            mean = yield Compute(problem.gradient, x, 0, t)
            seen = problem.images(0, t)
            for k, other in enumerate(others, 1):
                _, (g,) = yield Recv(Gradient, src=other)
                seen += problem.images(k, t)
                mean = mean + (g - mean) * np.float32(problem.images(k, t) / seen)
            x, v = yield Compute(sgd.step, x, v, mean, t, kind="update")
            for other in others:
                yield Send(other, Weights(x, t, t))
        return x

    def member(rank):
        x = problem.x0
        for t in range(steps):
            g = yield Compute(problem.gradient, x, rank, t)
            yield Send("chief", Gradient(g))
            _, (x, _, _) = yield Recv(Weights)
        return x

    return {"chief": Node(chief([f"m{i}" for i in range(1, workers)]), rank=0)} | {
        f"m{i}": Node(member(i), rank=i) for i in range(1, workers)}


PROGRAMS = {"ssp_plain": "ssp", "ssp_without_marks": "ssp", "ssp_asks": "ssp", "ssp_halves": "ssp",
            "ssp_cache": "ssp", "ssp_two_servers": "ssp", "ssp_handler": "ssp", "dssp_static": "dssp",
            "asp_asks": "asp", "asp_goodbye": "asp", "asp_two_servers": "asp", "bsp_go": "bsp", "bsp_broadcast": "bsp",
            "bsp_chief": "bsp", "allreduce_broadcast": "allreduce"}
