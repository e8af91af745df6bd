"""A small independent simulation: generator programs on links, to hold the formulas to.

A program yields ``("send", to, bytes, what)``, ``("recv",)`` (answered with (src, what), in order of
arrival), ``("recv", test)`` (the first that passes the test) or ``("work", seconds)``.
"""

from __future__ import annotations

import heapq


def run(programs, latency=0.0, byte_time=0.0, host=None, half_duplex=()):
    """Run programs {name: generator}; returns the time at which each ends."""
    host = host or {}
    at = {name: host.get(name, name) for name in programs}
    out_free, in_free, inbox = {}, {}, {name: [] for name in programs}
    waiting, ends, heap, count = {}, {}, [], 0
    order = {name: i for i, name in enumerate(programs)}

    def later(time, rank, kind, *args):
        nonlocal count
        count += 1
        heapq.heappush(heap, (time, kind, rank, count, args))

    def go(name, now, value=None):
        while True:
            try:
                effect = programs[name].send(value)
            except StopIteration:
                ends[name] = now
                return
            if effect[0] == "work":
                later(now + effect[1], order[name], 0, name)
                return
            if effect[0] == "recv":
                test = effect[1] if len(effect) > 1 else lambda m: True
                for i, m in enumerate(inbox[name]):
                    if test(m):
                        value = inbox[name].pop(i)
                        break
                else:
                    waiting[name] = test
                    return
                continue
            _, to, size, what = effect
            value = None
            if at[to] == at[name]:
                later(now, order[name], 2, name, to, what)
                continue
            a = at[name]
            start = max(now, out_free.get(a, 0.0))
            out_free[a] = start + size * byte_time
            if a in half_duplex:
                in_free[a] = max(in_free.get(a, 0.0), out_free[a])
            later(start + latency, order[name], 1, name, to, size, what)

    for name in programs:
        go(name, 0.0)
    while heap:
        now, kind, _, _, args = heapq.heappop(heap)
        if kind == 0:
            go(args[0], now)
        elif kind == 1:
            src, to, size, what = args
            b = at[to]
            in_free[b] = max(now, in_free.get(b, 0.0)) + size * byte_time
            if b in half_duplex:
                out_free[b] = max(out_free.get(b, 0.0), in_free[b])
            later(in_free[b], order[src], 2, src, to, what)
        else:
            src, to, what = args
            message = (src, what)
            if to in waiting and waiting[to](message):
                del waiting[to]
                go(to, now, message)
            else:
                inbox[to].append(message)
    assert len(ends) == len(programs), f"deadlock: {sorted(set(programs) - set(ends))}"
    return ends


def from_(src, what=None):
    """A test for `recv`: a message of this sender (and of this content)."""
    return lambda m: m[0] == src and (what is None or m[1] == what)


def sendrecv(to, size, what, src):
    """Send, then wait for the same from `src`."""
    yield ("send", to, size, what)
    yield ("recv", from_(src, what))


def ring_allreduce(i, n, size, gamma=0.0, tag=""):
    """2 (n-1) steps of chunks of `size` bytes to the next rank."""
    for step in range(2 * (n - 1)):
        yield from sendrecv((i + 1) % n, size, f"{tag}{step}", (i - 1) % n)
        if gamma and step < n - 1:
            yield ("work", gamma * size)


def halving_doubling(i, n, size, gamma=0.0, halving=True):
    """Fold, halve with partners q/2, ..., 1 apart and double back, unfold; whole vectors, 1, 2, ... if
    not `halving`."""
    log = n.bit_length() - 1
    q = 1 << log
    extra = n - q
    if i < 2 * extra and i % 2 == 0:
        yield ("send", i + 1, size, "fold")
        yield ("recv", from_(i + 1, "unfold"))
        return
    if i < 2 * extra:
        yield ("recv", from_(i - 1, "fold"))
        yield ("work", gamma * size)
    rank = i // 2 if i < 2 * extra else i - extra
    def node(r):
        return 2 * r + 1 if r < extra else r + extra
    part = float(size)
    for d in reversed(range(log)) if halving else range(log):
        if halving:
            part /= 2
        other = node(rank ^ (1 << d))
        yield from sendrecv(other, part, f"down{d}", other)
        yield ("work", gamma * part)
    if halving:
        for d in range(log):
            other = node(rank ^ (1 << d))
            yield from sendrecv(other, part, f"up{d}", other)
            part *= 2
    if i < 2 * extra:
        yield ("send", i - 1, size, "unfold")


def binomial_broadcast(i, n, size):
    """Root 0; node i passes on to i + 2^k, largest subtree first."""
    high = (n - 1).bit_length()
    level = high
    if i:
        level = (i & -i).bit_length() - 1
        yield ("recv",)
    for k in reversed(range(level)):
        if i + (1 << k) < n:
            yield ("send", i + (1 << k), size, "x")


def binomial_reduce(i, n, size, gamma=0.0):
    """Node i takes i + 1, i + 2, i + 4, ... in this order, then hands in at i - its lowest bit."""
    high = (n - 1).bit_length()
    level = (i & -i).bit_length() - 1 if i else high
    for k in range(level):
        if i + (1 << k) < n:
            yield ("recv", from_(i + (1 << k)))
            yield ("work", gamma * size)
    if i:
        yield ("send", i - (1 << level), size, "x")


def worker(i, n, servers, size, steps, draw, rotated=False):
    """Push K slices and wait for K answers, `steps` times."""
    k = len(servers)
    order = [servers[(i + j) % k] for j in range(k)] if rotated else servers
    for t in range(steps):
        yield ("work", draw(i, t))
        for s in order:
            yield ("send", s, size / k, t)
        for s in order:
            yield ("recv", from_(s))


def bsp_server(index, n, size, steps, update=0.0, rotated=False):
    """Collect n pushes, update, answer all in order."""
    order = [(index + j) % n for j in range(n)] if rotated else range(n)
    for t in range(steps):
        for _ in range(n):
            yield ("recv", lambda m, t=t: m[1] == t)
        yield ("work", update)
        for i in order:
            yield ("send", i, size, t)


def asp_server(pushes, size, update=lambda: 0.0):
    """Answer each push."""
    for _ in range(pushes):
        i, t = yield ("recv",)
        yield ("work", update())
        yield ("send", i, size, t)
