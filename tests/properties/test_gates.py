"""The gates of stale synchronous servers: each answer, and each mark of a worker that is held back,
recomputed from the order of arrival."""

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.problems import integer_gradients
from refsgd.runtimes import simulator
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.faults import Fault
from tests.ledger import with_bodies
from tests.properties.coordinates import UNEQUAL
from tests.wrong import wrong_deployment

INF = float("inf")
STEPS = 5
CASES = [*[("ssp", {"staleness": s, "refresh": refresh}) for s in (0, 1, 3, INF)
           for refresh in ("fresh", "lazy", "eager")],
         *[(name, {"staleness": s}) for s in (0, 1, INF) for name in ("dynsgd", "consgd")]]
KILLED = [(), (0,), (2,), (1, 2), (0, 1, 2)]


def groups(events, *kinds):
    """Events of one node after each one of these kinds, with it."""
    found = []
    for e in events:
        if e.kind in kinds:
            found.append([])
        if found:
            found[-1].append(e)
    return found


def hold_gate(deploy, staleness, refresh="fresh", killed=(), seed=0):
    """Answer w as soon as the slowest living clock is at most `staleness` behind (lazy: has reached what
    it reads), eager: all, when it advances."""
    options = {"staleness": staleness} | ({} if refresh == "fresh" else {"refresh": refresh})
    sent = {}
    tapped = with_bodies(deploy(integer_gradients(workers=3), 3, STEPS, SGD(0.25, 0.5), **options),
                         lambda name, to, body: sent.setdefault((name, to), []).append(body) or body)
    # News of a death comes late, as all that the dead have sent: the others may be held back by then.
    run = simulator.simulate(tapped, UNEQUAL, seed,
                          faults=[f for i in killed
                                  for f in (Fault("delay", f"worker{i}", 0, 3.0 * i),
                                            Fault("kill", f"worker{i}", i))])
    trace, x = run.trace, np.zeros(8, np.float32)
    living = {f"worker{i}" for i in range(3) if i not in killed}
    assert run.values.keys() == living | {"server0"} and all(trace.iterations[w] == STEPS for w in living)
    clock, wanted, version, slowest, ended = {f"worker{i}": 0 for i in range(3)}, {}, 0, 0, False
    taken = {key: iter([b for b in bodies if type(b).__name__ != "Push"]) for key, bodies in sent.items()}
    for arrival, *effects in groups([e for e in trace.events if e.node == "server0"], "receive"):
        assert not ended, "a server ends with the last gradient of those that live"
        w, before = arrival.src, slowest
        if arrival.message == "Died":
            del clock[w]
            wanted.pop(w, None)
        elif arrival.message == "Push":
            clock[w], version = clock[w] + 1, version + 1
            if refresh == "fresh":
                wanted[w] = clock[w] - staleness
        else:
            wanted[w] = next(taken[w, "server0"]).clock
        slowest = min(clock.values(), default=STEPS)
        ready = [u for u in clock if slowest > before] if refresh == "eager" else [
            u for u in clock if wanted.get(u, INF) <= slowest]
        held = [w] if arrival.message == ("Push" if refresh == "fresh"
                                                  else "Read") and w not in ready else []
        x = next((e.values["x"] for e in effects if e.kind == "mark" and e.name == "update"), x)
        assert [e.values["worker"] for e in effects if e.kind == "mark"
                and e.name == "block"] == held, "marked as held back"
        assert [e.to for e in effects if e.kind == "send"] == ready, "answered"
        for u in ready:
            wanted.pop(u, None)
            body = next(taken["server0", u])
            assert np.array_equal(body.x, x) and body[1:] == ((version,) if refresh == "fresh"
                                                              else (version, slowest,
                                                                    clock[u])), "what it is told"
        ended = slowest >= STEPS
    assert ended and np.array_equal(run.values["server0"], x)
    for w in living if refresh != "fresh" else ():
        hold_cache([e for e in trace.events if e.node == w], w, staleness, refresh,
                   sent.get(("server0", w), []), sent[w, "server0"])


def hold_cache(events, w, staleness, refresh, rows, asked):
    """A worker waits for a row, asks for it (lazy) or says that it is held back (eager), only where its
    row is older than c - staleness."""
    newest, taken, reads = 0, iter(rows), iter([b for b in asked if type(b).__name__ == "Read"])
    ends, start = [i for i, e in enumerate(events) if e.kind == "mark" and e.name == "clock"], 0
    for c, end in enumerate(ends):
        effects, start = events[start:end], end
        old, waited = newest < c - staleness, False
        for e in effects:
            if e.kind == "receive":
                assert newest < c - staleness, "waits only for a row that it needs"
                waited = True
            if e.kind == "receive" or (e.kind == "poll" and e.src):
                newest = next(taken).clock
        assert waited == old and newest >= c - staleness
        assert [e for e in effects if e.kind == "poll"][-1].src is None, "takes all that has come"
        if refresh == "lazy":
            assert [next(reads).clock for e in effects if e.kind == "send"
                    and e.message == "Read"] == [c - staleness] * old
        assert [e.values["worker"] for e in effects if e.kind == "mark"
                and e.name == "block"] == [w] * (old and refresh == "eager")


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_answer_and_every_wait_is_that_of_the_bound(name, options):
    for seed, killed in enumerate(KILLED):
        hold_gate(CATALOGUE[name], **options, killed=killed, seed=seed)



@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("ssp", "if clock.get(w, 0) > slowest + staleness", "if clock.get(w, 0) >= slowest + staleness"),
    # the dead are held back
    ("ssp", "if clock.get(w, 0) > slowest + staleness", "if clock.get(w, 1) > slowest + staleness"),
    ("ssp", "w in waiting and clock[w] <= slowest + staleness", "w in waiting and clock[w] <= slowest"),
    ("ssp", "if message.clock > before", "if message.clock >= before"),
    ("ssp", "shard.version, slowest, clock[w])", "shard.version, slowest + 1, clock[w])"),
    ("ssp", "parked.pop(w, None)", "pass"),  # a worker that has asked once is answered at every push
    ("ssp", "eager and slowest > before", "eager and slowest >= before"),
    ("ssp", "if oldest < c - staleness and eager", "if eager"),
    ("ssp", "while hit := (yield Poll(Row))", "if hit := (yield Poll(Row))"),
    ("dynsgd", "slowest = min(clock.values(), default=steps)\n",
     "slowest = 0 if isinstance(message, Died) else min(clock.values())\n"),
    # waits when all are dead
    ("dynsgd", "while min(clock.values(), default=steps)", "while min(clock.values(), default=0)"),
])
def test_a_wrong_gate_is_caught(name, right, wrong):
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    with pytest.raises((AssertionError, Deadlock, StopIteration)):
        for n, options in CASES:
            for seed, killed in enumerate(KILLED):
                if n == name:
                    hold_gate(deploy, **options, killed=killed, seed=seed)


@pytest.mark.parametrize("name", ["ssp", "dynsgd", "consgd"])
def test_a_slack_that_is_none_is_named(name):
    for staleness in (-1, -INF, 0.5, 2.25, float("nan")):
        with pytest.raises(ValueError,
                           match=f"staleness {staleness}; expected a whole number of clocks >= 0, or inf"):
            CATALOGUE[name](integer_gradients(workers=3), 3, 1, SGD(0.25), staleness=staleness)
    for staleness in (0, 1, 4.0, INF):
        CATALOGUE[name](integer_gradients(workers=3), 3, 1, SGD(0.25), staleness=staleness)
