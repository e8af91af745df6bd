"""Mistakes: fifteen in programs of `unusual`, fifteen in gates and means of the library, and more all over the
catalogue, each a change of text."""

from tests.grader.unusual import PROGRAMS

#: program of `unusual`, the text that is changed, what it becomes
NEW = [
    ("ssp_plain", "clock[u] <= min(clock.values()) + slack]", "clock[u] < min(clock.values()) + slack]"),
    ("ssp_plain", "clock[u] <= min(clock.values()) + slack]", "clock[u] <= min(clock.values()) + slack + 1]"),
    ("ssp_plain", "clock[u] <= min(clock.values()) + slack]", "clock[u] <= max(clock.values()) + slack]"),
    ("ssp_plain", "for u in [u for u in waiting if", "for u in [u for u in [w] if"),
    ("ssp_plain", "            waiting.remove(u)\n            yield Send(u, Model(x, version))",
     "            waiting.remove(u)\n            Send(u, Model(x, version))"),
    ("ssp_plain", "            waiting.remove(u)\n", ""),  # answered again and again
    ("ssp_plain", "yield Compute(sgd.step, x, v, push.grad, version, kind=\"update\")\n        if marks",
     "yield Compute(sgd.step, x, sgd.start(x), push.grad, version, kind=\"update\")\n        if marks"),
    ("ssp_asks", "yield Send(client, Weights(x, min(done.values()), clock))",
     "yield Send(client, Weights(x0, min(done.values()), clock))"),  # the first model
    ("ssp_asks", "for clock, client in sorted(ready):", "for clock, client in sorted(ready)[:1]:"),
    ("ssp_halves", "table.released():\n                yield Send(client, Go())",
     "table.released():\n                yield Send(who, Go())"),  # the wrong client is let go
    ("ssp_halves", "self.clock[c] - slowest <= self.slack", "self.clock[c] - slowest <= self.slack / 2"),
    ("ssp_cache", "for t in range(cache.own, c):", "for t in range(0, c):"),  # own updates twice
    ("ssp_cache", "for t in range(cache.own, c):", "for t in range(c, c):"),  # and never
    ("bsp_broadcast", "(yield Recv(Gradient, src=p))[1].values)", "(yield Recv(Gradient))[1].values)"),
    ("bsp_chief", "mean = mean + (g - mean) * np.float32(problem.images(k, t) / seen)", "mean = mean + (g - mean) / np.float32(2)"),
]

#: algorithm, its options, the text of the library that is changed, what it becomes
KNOWN = [
    ("ssp", {}, "w in waiting and clock[w] <= slowest + staleness", "w in waiting and clock[w] <= slowest"),
    ("ssp", {"refresh": "lazy"}, "parked.get(w, np.inf) <= slowest", "parked.get(w, np.inf) < slowest"),
    ("ssp", {"refresh": "eager"}, "eager and slowest > before", "eager and slowest > before + 1"),
    ("ssp", {"refresh": "lazy"}, "while min(r.clock for r in row.values()) < c - staleness:",
     "while min(r.clock for r in row.values()) < c - staleness - 1:"),
    ("ssp", {"refresh": "lazy"}, "for t in range(row[s].own, c))", "for t in range(row[s].own, c - 1))"),
    ("ssp", {"refresh": "eager"}, "shard.version, slowest, clock[w])", "shard.version, slowest + 1, clock[w])"),
    ("ssp", {"refresh": "lazy"}, "            clock[w] += 1\n", "            clock[w] = shard.version\n"),
    ("ssp", {}, "slowest = min(clock.values(), default=steps)\n        if clock", "slowest = 0\n        if clock"),
    ("asp", {}, "yield Send(w, Model(shard.x, shard.version))", "yield Send('worker0', Model(shard.x, shard.version))"),
    ("asp", {}, "yield from shard.apply(w, push)", "yield from shard.apply(w, push) if shard.version else ()"),
    ("bsp", {}, "for _ in workers:\n            w, push", "for _ in workers[1:]:\n            w, push"),
    ("bsp", {}, "ordered = [(w, pushes[w]) for w in workers]", "ordered = list(pushes.items())"),
    ("bsp", {}, 'g = mean(*pushes) if aggregation == "mean" else total(*pushes)', "g = pushes[-1].grad"),
    ("bsp", {}, "for w in rotate(workers, shard.part) if rotated else workers:", "for w in workers[:1]:"),
    ("bsp", {}, "for _ in range(steps):  # Li et al.", "for _ in range(steps - 1):  # Li et al."),
]

#: the same, in other algorithms of the catalogue
MORE = [
    ("downpour", {"push_every": 2}, "accrued, reads, examples = np.zeros_like(x), [], 0", "reads, examples = [], 0"),
    ("softsync", {}, "[push for _, push in kept]", "[push for _, push in kept[-1:]]"),
    ("backup-workers", {}, "max(1, len(workers) - backups)", "len(workers)"),
    ("staleness-aware", {}, "max(1, late / workers if rule == \"mishchenko\" else late)", "1 + late"),
    ("dc-asgd", {}, "            backup[w] = shard.x\n", ""),
    ("dc-asgd", {}, "g + factor * g * g * drift", "g - factor * g * g * drift"),
    ("dssp", {}, "ahead if granted[w] else ahead - 1)", "ahead)"),
    ("consgd", {}, "workers, steps, staleness))", "workers, steps, 2 * staleness + 1))"),
    ("dynsgd", {}, "images[c] = images.get(c, 0) + message.examples", "images[c] = message.examples"),
    ("dynsgd", {}, "clock[w] <= slowest + staleness]", "clock[w] <= slowest + staleness + 1]"),
    ("easgd", {}, "            x = x - e  # a)\n", ""),
    ("easgd", {}, "0.9 / workers if alpha is None", "0.9 if alpha is None"),
    ("diloco", {}, "start, u = yield Compute(outer_step", "start, _ = yield Compute(outer_step"),
    ("allreduce", {}, "replica.apply(g, t)", "replica.apply(g, 0)"),
    ("dpsgd", {}, "replica.x = yield from average(replica, names, weights)  # line 4",
     "replica.x = (replica.x + (yield from average(replica, names, weights))) / 2"),
    ("dpsgd", {}, "Recv(Model, src=names[j])", "Recv(Model)"),
    ("sgp", {"graph": "star"}, "problem.gradient, replica.x / weight", "problem.gradient, replica.x"),
    ("adpsgd", {}, "replica.x = replica.x + (ask.x - replica.x) / 2  #", "pass  #"),
    ("hogwild", {"parts": 2}, "in enumerate(shared.cut):  # line 4", "in list(enumerate(shared.cut))[:-1]:"),
    ("gpipe", {}, "total[chunk] = total[chunk] + g if chunk in total else g", "total[chunk] = g"),
    ("gpipe", {}, "kept.pop((chunk, j)), j", "kept[chunk, 0], j"),
    ("pipedream", {}, "me.backward(stash[read]", "me.backward(me.x"),
    ("pipedream", {"vertical": True}, "read = max(0, ahead - depth + 1) if vertical else b", "read = b"),
]

FILES = """from refsgd.algorithms import CATALOGUE
from tests.wrong import wrong_deployment

submission = wrong_deployment(CATALOGUE["{name}"], {right!r}, {wrong!r})
"""


def write(folder, unusual):
    """All of them as files: target of `refsgd check`, algorithm, options."""
    found = []
    for i, (name, right, wrong) in enumerate(NEW):
        assert unusual.count(right) == 1, right
        text = unusual.replace(right, wrong)
        if "x0" in wrong:
            text = text.replace("done, wants, t, v = {c: 0", "x0, done, wants, t, v = x, {c: 0")
        path = folder / f"new{i}.py"
        path.write_text(text)
        found.append((f"{path}:{name}", PROGRAMS[name], {}))
    for i, (name, options, right, wrong) in enumerate(KNOWN + MORE):
        path = folder / f"known{i}.py"
        path.write_text(FILES.format(name=name, right=right, wrong=wrong))
        found.append((f"{path}:submission", name, options))
    return found
