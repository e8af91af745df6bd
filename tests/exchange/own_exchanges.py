"""A reader's own codecs and exchanges, as `refsgd check FILE:NAME` takes them: a right one of each, and wrong ones."""

from dataclasses import dataclass, replace

import numpy as np

from refsgd.algorithms.codecs import DGC, RandK, Residual, TopK, largest
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.parts import Model, Push, Servers, Shard, deploy
from refsgd.algorithms.replica import deploy as deploy_peers
from refsgd.algorithms.server.asp import asp
from refsgd.algorithms.server.asp import server as answering
from refsgd.collectives.parts import Part, Total
from refsgd.effects import Compute, Mark, Poll, Recv, Send

# -- the residual ---------------------------------------------------------------------------------------------


class Kept(Codec):
    """Error feedback, written by hand."""

    def encode(self, state, g, key):
        inner, rest = state
        s = g + rest
        message, inner = self.rule.encode(inner, s, key)
        return message, (inner, s - self.rule.decode(message, s.size))


class Dropped(Kept):
    """WRONG: what is not sent is forgotten."""

    def encode(self, state, g, key):
        message, (inner, rest) = super().encode(state, g, key)
        return message, (inner, 0 * rest)


class Twice(Kept):
    """WRONG: what is not sent is added twice."""

    def encode(self, state, g, key):
        message, (inner, rest) = super().encode(state, g, key)
        return message, (inner, 2 * rest)


kept, dropped, twice = (kind(TopK(0.25)) for kind in (Kept, Dropped, Twice))


def compressed(problem, workers, steps, sgd, *, wrong=False):
    """ASP with such a codec."""
    return asp(replace(problem, exchange=Exchange(codec=dropped if wrong else kept)), workers, steps, sgd)


# -- the mask -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unmasked(DGC):
    """WRONG: what is sent clears the residual, and not the velocity."""

    def encode(self, state, s, key):
        u = s.dtype.type(self.momentum) * state.u + s
        r = state.r + u
        chosen = largest(r, -(-s.size // 4))
        message = r[chosen], chosen, r[:0]
        r[chosen] = 0
        return message, Residual(u, r)


masked, unmasked = DGC(0.25), Unmasked(0.25)

# -- the order of buckets -------------------------------------------------------------------------------------


def peer(replica, group, problem, steps, wrong):
    """The mean of two buckets, each by a root of its own."""
    buckets = list(enumerate(np.array_split(np.arange(replica.x.size), 2)))
    if wrong and replica.rank == 1:
        buckets.reverse()  # WRONG: one peer begins with the other bucket
    for t in range(steps):
        g, mean = (yield Compute(problem.gradient, replica.x, replica.rank, t)), np.zeros_like(replica.x)
        for k, part in buckets:
            root = group[k % len(group)]
            if group[replica.rank] == root:
                total = np.copy(g[part])
                for other in group:
                    if other != root:
                        total = total + (yield Recv(Part, src=other))[1][0]
                for other in group:
                    if other != root:
                        yield Send(other, Total(total))
            else:
                yield Send(root, Part(g[part]))
                total = (yield Recv(Total, src=root))[1][0]
            mean[part] = total / np.float32(len(group))
        yield from replica.apply(mean, t)
        yield Mark("clock", t=t)
    return replica.x


def buckets(problem, workers, steps, sgd, *, wrong=False):
    """All-reduce SGD in two buckets."""
    return deploy_peers(problem, workers, sgd, lambda replica, group: peer(replica, group, problem, steps, wrong))


# -- the version of a message ---------------------------------------------------------------------------------


class Places(Codec):
    """Entries at random places that sender and receiver draw from the step: a message holds values only."""

    def encode(self, state, g, key):
        message, state = super().encode(state, g, key)
        return (message[-1],), state

    def decode(self, message, d, t):
        return super().decode((self.seed, t, self.begin, *message), d)


class Versioned(Shard):
    """A part whose server decodes pushes by a step."""

    def receive(self, codec, wrong):
        w, push = yield Recv(Push)
        t = self.version if wrong else push.version  # WRONG: others have pushed since the sender drew
        return w, push._replace(grad=(yield Compute(codec.decode, *push.grad, self.x.size, t, kind="codec")))


def places(problem, workers, steps, sgd, *, wrong=False):
    """ASP that sends entries of gradients by `Places`."""
    codec = Places(RandK(0.5))

    def client(rank, servers):
        there, state, x = Servers(servers, problem), codec.start(problem.x0.size), problem.x0
        for t in range(steps):
            version = there.version["server0"]
            g = yield Compute(problem.gradient, x, rank, t)
            message, state = yield Compute(codec.encode, state, g, codec.key(rank, version), kind="codec")
            yield Send("server0", Push((message,), 1, version))
            x = yield from there.pull()
            yield Mark("clock", t=t)
        return x

    def server(shard, ws):
        shard = Versioned(shard.part, shard.x, shard.sgd)
        for _ in range(len(ws) * steps):
            w, push = yield from shard.receive(codec, wrong)
            yield from shard.apply(w, push)
            yield Send(w, Model(shard.x, shard.version))
        return shard.x

    return deploy(problem, workers, steps, sgd, 1, False, server, client, survives=False)


# -- priorities -----------------------------------------------------------------------------------------------


def urgent(problem, workers, steps, sgd, *, wrong=False):
    """ASP in layers of which the lowest go first."""
    problem = replace(problem, exchange=Exchange("layers", priority=True))

    def client(rank, servers):
        there, x = Servers(servers, problem), problem.x0
        for t in range(steps):
            yield from there.gradient(x, rank, t, there.pushes(1))
            if not wrong:
                x = yield from there.pull()
                continue
            while hit := (yield Poll(Model)):  # WRONG: it computes on while parts wait behind those of later steps
                there.x[hit[0]], there.version[hit[0]] = hit[1]
            x = np.concatenate(list(there.x.values()))
        return x

    return deploy(problem, workers, steps, sgd, 1, False, lambda shard, ws: answering(shard, len(ws) * steps), client)


# -- answers of several servers -------------------------------------------------------------------------------


def pairs(problem, workers, steps, sgd, *, servers=1):
    """WRONG with several parts: each server answers the first two workers that it hears, and servers may
    choose different pairs, of which none gets its whole model."""
    def server(shard, ws):
        left, held = dict.fromkeys(ws, steps), {}
        while any(left.values()):
            w, push = yield from shard.recv(Push)
            left[w] -= 1
            held[w] = push
            if len(held) < min(2, sum(1 for w in ws if left[w] or w in held)):
                continue
            g = sum(push.grad for _, push in sorted(held.items())) / len(held)
            yield from shard.update(list(held.items()), type(shard.sgd).step, g, shard.version)
            for w in held:
                yield Send(w, Model(shard.x, shard.version))
            held = {}
        return shard.x

    return deploy(problem, workers, steps, sgd, servers, False, server, survives=False)
