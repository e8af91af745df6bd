"""Eight correct programs of other algorithms than those of `unusual`, each in a style of its own."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Add, Cell, Choose, Compute, Load, Mark, Node, Poll, Recv, Send


class Ask(NamedTuple):
    t: int


class Vector(NamedTuple):
    x: np.ndarray
    t: int


class Step(NamedTuple):
    g: np.ndarray
    t: int


def star(problem, workers, client, server):
    """Clients c0, c1, ... around one server, called hub."""
    clients = [f"c{i}" for i in range(workers)]
    nodes = {c: Node(client(i), rank=i) for i, c in enumerate(clients)}
    return {"hub": Node(server(clients), role="server")} | nodes


def all_to_all(problem, workers, peer):
    group = [f"p{i}" for i in range(workers)]
    return {name: Node(peer(i, group), rank=i) for i, name in enumerate(group)}


def local_sgd_broadcast(problem, workers, steps, sgd, *, period=8):
    """Every peer sends its replica to all others; all take the mean, in the order of ranks."""
    def peer(i, group):
        since, x, v = 0, problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            if (t + 1) % period == 0 or t == steps - 1:
                for other in group:
                    if other != group[i]:
                        yield Send(other, Vector(x, t))
                replicas = {group[i]: x}
                for other in group:
                    if other != group[i]:
                        replicas[other] = (yield Recv(Vector, src=other))[1].x
                first = replicas[group[0]]
                whole = [sum(problem.images(j, s) for s in range(since, t + 1)) for j in range(workers)]
                x = first + sum((replicas[p] - first) * np.float32(b / sum(whole)) for p, b in zip(group, whole))
                since = t + 1
        return x

    return all_to_all(problem, workers, peer)


def diloco_broadcast(problem, workers, steps, sgd, *, period=8, outer_lr=0.7, outer_momentum=0.9):
    """Every peer sends its move to all others, and all take the same outer step."""
    def peer(i, group):
        x, v, start = problem.x0, sgd.start(problem.x0), problem.x0
        since, velocity, lr, momentum = 0, np.zeros_like(x), np.float32(outer_lr), np.float32(outer_momentum)
        for t in range(steps):
            g = yield Compute(problem.gradient, x, i, t)
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            if (t + 1) % period == 0 or t == steps - 1:
                moves = {group[i]: start - x}
                for other in group:
                    if other != group[i]:
                        yield Send(other, Vector(start - x, t))
                for other in group:
                    if other != group[i]:
                        moves[other] = (yield Recv(Vector, src=other))[1].x
                whole = [sum(problem.images(j, s) for s in range(since, t + 1)) for j in range(workers)]
                outer = sum(moves[p] * np.float32(b / sum(whole)) for p, b in zip(group, whole))
                since = t + 1
                velocity = momentum * velocity + outer
                x = start = start - lr * (outer + momentum * velocity)
        return x

    return all_to_all(problem, workers, peer)


def adpsgd_half_way(problem, workers, steps, sgd):
    """The passive side keeps the mean and sends the difference, which the active side adds."""
    class Me:
        pass

    peers = []
    for i in range(workers):
        me = Me()
        me.x, me.v, me.i = problem.x0, sgd.start(problem.x0), i
        peers.append(me)
    even = [f"n{i}" for i in range(0, workers, 2)]

    def active(me):
        for t in range(steps):
            partner = yield Choose(even)
            sent = me.x
            yield Send(partner, Vector(sent, t))
            g = yield Compute(problem.gradient, me.x, me.i, t)
            _, change = yield Recv(Vector, src=partner)
            me.x, me.v = sgd.step(sent + change.x, me.v, g, t)
            yield Mark("update", part=0, version=t, reads=((f"n{me.i}", t),), x=me.x)
        return me

    def passive(me):
        for t in range(steps):
            g = yield Compute(problem.gradient, me.x, me.i, t)
            me.x, me.v = sgd.step(me.x, me.v, g, t)
            yield Mark("update", part=0, version=t, reads=((f"n{me.i}", t),), x=me.x)
        return me

    def listen(me):
        while True:
            who, other = yield Recv(Vector)
            half = (other.x - me.x) / 2
            me.x = me.x + half
            yield Send(who, Vector(-half, other.t))

    return {f"n{me.i}": Node(active(me)) if me.i % 2 else Node(passive(me), [listen(me)], rank=me.i)
            for me in peers}


def easgd_one_answer(problem, workers, steps, sgd, *, period=4):
    """The worker sends its replica; the centre computes the force, moves, and sends it back."""
    alpha = np.float32(0.9 / workers)

    def client(i):
        x, v = problem.x0, sgd.start(problem.x0)
        for t in range(steps):
            z = x + np.float32(sgd.momentum) * v
            if t % period == 0:
                yield Send("hub", Vector(x, t))
                _, force = yield Recv(Vector)
                x = x - force.x
            g = yield Compute(problem.gradient, z, i, t)
            v = yield Compute(lambda v=v, g=g, t=t: sgd.momentum * v - sgd.rate(t) * g, kind="update")
            x = x + v
        return x

    def server(clients):
        x = problem.x0
        for _ in range(len(clients) * -(-steps // period)):
            who, replica = yield Recv(Vector)
            force = alpha * (replica.x - x)
            x = x + force
            yield Send(who, Vector(force, replica.t))
        return x

    return star(problem, workers, client, server)


def asks(problem, steps):
    """A client that asks for the model before each gradient."""
    def client(i):
        for t in range(steps):
            yield Send("hub", Ask(t))
            _, model = yield Recv(Vector)
            g = yield Compute(problem.gradient, model.x, i, t)
            yield Send("hub", Step(g, model.t))

    return client


def staleness_aware_asks(problem, workers, steps, sgd):
    def server(clients):
        x, v, version = problem.x0, sgd.start(problem.x0), 0
        while version < steps * workers:
            who, message = yield Recv(Ask, Step)
            if isinstance(message, Ask):
                yield Send(who, Vector(x, version))
                continue
            g = message.g / np.float32(max(1, version - message.t))
            x, v = yield Compute(sgd.step, x, v, g, version, kind="update")
            yield Mark("update", part=0, version=version, reads=((who, message.t),), x=x)
            version += 1
        return x

    return star(problem, workers, asks(problem, steps), server)


def dc_asgd_asks(problem, workers, steps, sgd, *, compensation=0.04):
    """The server remembers the model that each client has asked for last."""
    def server(clients):
        x, v, version, given = problem.x0, sgd.start(problem.x0), 0, {}
        while version < steps * workers:
            who, message = yield Recv(Ask, Step)
            if isinstance(message, Ask):
                given[who] = x
                yield Send(who, Vector(x, version))
                continue
            g = message.g + np.float32(compensation) * message.g**2 * (x - given[who])
            x, v = yield Compute(sgd.step, x, v, g, version, kind="update")
            yield Mark("update", part=0, version=version, reads=((who, message.t),), x=x)
            version += 1
        return x

    return star(problem, workers, asks(problem, steps), server)


def dpsgd_polls(problem, workers, steps, sgd):
    """On a complete graph of two or three peers, the ring: replicas are stored as they arrive."""
    def peer(i, group):
        x, v, stored = problem.x0, sgd.start(problem.x0), {}
        near = sorted({(i - 1) % workers, i, (i + 1) % workers})
        for t in range(steps):
            for j in near:
                if j != i:
                    yield Send(group[j], Vector(x, t))
            g = yield Compute(problem.gradient, x, i, t)
            stored[i, t] = x
            while (found := (yield Poll(Vector))) is not None:
                stored[group.index(found[0]), found[1].t] = found[1].x
            while any((j, t) not in stored for j in near):
                who, model = yield Recv(Vector)
                stored[group.index(who), model.t] = model.x
            first = stored[near[0], t]
            x = first + sum(stored.pop((j, t)) - first for j in near) / np.float32(len(near))
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        return x

    return all_to_all(problem, workers, peer)


def hogwild_by_entry(problem, workers, steps, sgd):
    """Additions of one entry each, in the order of size."""
    cell = Cell(problem.x0, problem.x0.size)

    def work(i):
        for t in range(steps):
            x = []
            for k in range(problem.x0.size):
                x.append((yield Load(cell, k)))
            g = yield Compute(problem.gradient, np.concatenate(x), i, t)
            for k in np.argsort(-np.abs(g)):
                yield Add(cell, int(k), -sgd.rate(t) * g[k:k + 1])
        return cell

    return {f"t{i}": Node(work(i), cells=[cell], rank=i) for i in range(workers)}


PROGRAMS = {"local_sgd_broadcast": "local-sgd", "diloco_broadcast": "diloco", "adpsgd_half_way": "adpsgd",
            "easgd_one_answer": "easgd", "staleness_aware_asks": "staleness-aware", "dc_asgd_asks": "dc-asgd", "dpsgd_polls": "dpsgd",
            "hogwild_by_entry": "hogwild"}
