"""What is claimed of dynamic SSP (Zhao et al., ICDCS 2019)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Model, Push, Shard
from refsgd.algorithms.server import dssp, ssp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes import simulator
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.simulator import simulate
from tests.marks import mostly_slow
from tests.strategies import machines, seeds
from tests.watching import FREE, curved, final
from tests.wrong import wrong_deployment

sizes = {"workers": st.integers(1, 5), "servers": st.integers(1, 3), "steps": st.integers(0, 7)}
UNEQUAL = Machine(compute="exponential(1)", speeds=(1, 1, 6))


@given(machine=machines, seed=seeds, slack=st.integers(0, 4), momentum=st.sampled_from([0.0, 0.9]), **sizes)
def test_an_empty_range_is_ssp_bit_for_bit(machine, seed, slack, momentum, workers, servers, steps):
    problem, sgd = curved(workers=workers), SGD(0.1, momentum)
    dynamic, plain = (simulate(deployment, machine, seed) for deployment in (
        dssp.dssp(problem, workers, steps, sgd, servers, lower=slack, upper=slack),
        ssp.ssp(problem, workers, steps, sgd, servers, staleness=slack)))
    assert np.array_equal(final_parameters(dynamic), final_parameters(plain))
    assert dynamic.trace.seconds == plain.trace.seconds
    assert len(dynamic.trace.marks("block")) == len(plain.trace.marks("block"))


@given(machine=machines, seed=seeds, lower=st.integers(0, 3), more=st.integers(0, 4), **sizes)
def test_the_clock_gap_never_exceeds_upper_and_nothing_is_lost(machine, seed, lower, more, workers, servers,
                                                               steps):
    run = simulate(dssp.dssp(integer_gradients(d=5, workers=workers), workers, steps, SGD(0.25), servers,
                             lower=lower, upper=lower + more),
                   machine, seed)
    assert run.trace.clock_gap <= lower + more and run.trace.lead <= lower + more + 1
    assert all(count == workers * steps for count in run.trace.updates.values())
    assert min((tau for _, tau in run.trace.staleness), default=0) >= 0
    assert sum(run.trace.bytes_sent.values()) == 2 * workers * steps * 20


@pytest.mark.parametrize("lower, upper", [(0, 2), (1, 4), (3, 3)])
def test_the_bound_is_reached_and_lower_alone_is_exceeded(lower, upper):
    problem = integer_gradients(workers=3)
    traces = [simulate(dssp.dssp(problem, 3, 150, SGD(0.25), lower=lower, upper=upper), UNEQUAL, seed).trace
              for seed in range(3)]
    assert max(t.clock_gap for t in traces) == upper


def hasty_server(workers, x, steps, sgd, lower, upper):
    """WRONG: grants upper - lower more iterations at every push beyond `lower`, also to whom has had them."""
    v, clock, granted, waiting = sgd.start(x), dict.fromkeys(workers, 0), dict.fromkeys(workers, 0), set()
    for version in range(steps * len(workers)):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        clock[w] += 1
        waiting.add(w)
        if clock[w] > min(clock.values()) + lower and not granted[w]:
            granted[w] = upper - lower
        for w in [w for w in workers if w in waiting
                  and (granted[w] or clock[w] <= min(clock.values()) + lower)]:
            granted[w] = max(0, granted[w] - 1)
            waiting.remove(w)
            yield Send(w, Model(x, version + 1))
    return x


def test_a_second_grant_beyond_upper_is_caught():
    problem = integer_gradients(workers=3)
    wrong = dict(dssp.dssp(problem, 3, 60, SGD(0.25), lower=1, upper=4)) | {
        "server0": Node(hasty_server([f"worker{i}" for i in range(3)], problem.x0, 60, SGD(0.25), 1, 4), role="server")}
    assert simulate(wrong, UNEQUAL).trace.clock_gap > 4


def test_the_controller_takes_the_shortest_wait_and_of_equals_the_fewest():
    """Pushes at now + r own; the slow one's at its last push + k intervals."""
    assert dssp.extra(now=10, interval=2, slow=9, slow_interval=7, most=4) == 3  # at 16, no wait
    # 16 is out of reach; 14 waits 2
    assert dssp.extra(now=10, interval=2, slow=9, slow_interval=7, most=2) == 2
    # the push is due now, and again at r = 2, 4
    assert dssp.extra(now=10, interval=3, slow=4, slow_interval=6, most=4) == 0
    assert dssp.extra(now=10, interval=2, slow=9, slow_interval=7, most=0) == 0
    # at 18, the slow one's third push from now
    assert dssp.extra(now=10, interval=4, slow=9, slow_interval=3, most=2) == 2


def test_an_overdue_worker_is_taken_to_be_as_slow_as_it_has_been_silent():
    """Without that, a worker that fell silent after quick pushes would be expected at any moment."""
    clock = {"worker0": 5, "worker1": 2}
    # expected now; 4 a push would say at 32
    assert dssp.grant("worker0", clock, {"worker0": (29, 30), "worker1": (0, 4)}, upper=8) == 0
    # at 48; 46 waits 2
    assert dssp.grant("worker0", clock, {"worker0": (26, 30), "worker1": (0, 24)}, upper=8) == 4


def test_the_slowest_worker_is_the_last_to_come_of_those_with_the_slowest_clock():
    clock = {"worker0": 5, "worker1": 2, "worker2": 2, "worker3": 4}
    pushed = {"worker0": (28, 30), "worker1": (20, 24), "worker2": (10, 22), "worker3": (0, 29)}
    assert dssp.grant("worker0", clock, pushed, upper=8) == 2  # worker2's next push is due at 34


def test_a_grant_is_used_clock_by_clock_and_then_one_push_of_the_slowest_releases(monkeypatch):
    """Not a return to `lower`: the bound of that moment is where the grant has led."""
    monkeypatch.setattr(dssp, "extra", lambda now, interval, slow, slow_interval, most: min(2, most))
    program = dssp.server(Shard(0, np.zeros(1, np.float32), SGD(1.0)), ["worker0", "worker1"], 4, 0, 2)
    effect, answered = program.send(None), []
    for w in ("worker0", "worker0", "worker0", "worker1"):
        answered.append([])
        effect = program.send((w, Push(np.ones(1, np.float32), 1, 0)))
        while not isinstance(effect, Recv):
            if isinstance(effect, Send):
                answered[-1].append(effect.to)
            effect = program.send(effect.fn(*effect.args) if isinstance(effect, Compute) else None)
    assert answered == [["worker0"], ["worker0"], [], ["worker0", "worker1"]]


def answers_by_the_book(order, workers, lower, upper):
    """Who is answered after each push or death (w, False or True), and whether w is held back, simulated from
    the page.

    Predicted pushes are listed one by one, and their waits compared.
    """
    came, left, bound, waiting, answered, now = {w: []
                                                 for w in workers}, dict.fromkeys(
                                                     workers, 0), {}, set(), [], 0
    for w, died in order:
        if died:
            del came[w]
            waiting.discard(w)
            slowest = min(map(len, came.values()))
            ready = {u for u in waiting if len(came[u]) - slowest <= max(lower, bound[u])}
            waiting -= ready
            answered.append((sorted(ready), False))
            continue
        now += 1
        came[w].append(now)
        waiting.add(w)
        clock = {u: len(pushes) for u, pushes in came.items()}
        slowest, ahead = min(clock.values()), clock[w] - min(clock.values())
        use = left[w] > 0
        if not use and ahead > lower:
            # the interval between the last two pushes of u, the start being one; and the silence since
            def lasts(u):
                *_, before, last = [0, 0, *came[u]]
                return last, max(last - before, now - last)

            last, interval = max((lasts(u) for u in came if clock[u] == slowest), key=sum)
            own = now - [0, 0, *came[w]][-2]
            waits = [next(k for k in itertools.count(last + interval, interval) if k >= now + r * own) - now
                     - r * own for r in range(upper + 2 - ahead)]
            left[w] = waits.index(min(waits))
            use = left[w] > 0
        bound[w] = ahead if use else ahead - 1
        left[w] -= use
        ready = {u for u in waiting if clock[u] - slowest <= max(lower, bound[u])}
        waiting -= ready
        answered.append((sorted(ready), w not in ready))
    return answered


def hold_answers(deploy, lower, upper, seed, killed=None, delay=0.0):
    """A worker dies; the news, as all that it sends, comes `delay` later: the others may be held back by
    then."""
    workers = [f"worker{i}" for i in range(3)]
    faults = [] if killed is None else [Fault("delay", f"worker{killed}", 0, delay),
                                        Fault("kill", f"worker{killed}", 1 + seed)]
    trace = simulator.simulate(deploy(integer_gradients(workers=3), 3, 25, SGD(0.25), lower=lower, upper=upper),
                            UNEQUAL, seed, faults=faults).trace
    order, answered = [], []
    for e in trace.events:
        if e.node == "server0" and e.kind == "receive":
            order.append((e.src, e.message == "Died"))
            answered.append(([], False))
        elif e.node == "server0" and e.kind == "send":
            answered[-1][0].append(e.to)
        elif e.node == "server0" and e.kind == "mark" and e.name == "block":
            assert e.values["worker"] == order[-1][0]
            answered[-1] = answered[-1][0], True
    assert answered == answers_by_the_book(order, workers, lower, upper)


@pytest.mark.parametrize("lower, upper", [(0, 2), (0, 6), (1, 5), (2, 9), (3, 15)])
def test_every_answer_is_that_of_the_page(lower, upper):
    """Grants are given where there is none, used clock by clock, and predicted from the last two pushes."""
    for seed in range(4):
        hold_answers(dssp.dssp, lower, upper, seed)
        for killed, delay in ((2, 5.0), (0, 1.0), (1, 0.0)):
            hold_answers(dssp.dssp, lower, upper, seed, killed, delay)


@pytest.mark.parametrize("right, wrong", [
    # renewed at every push
    ("if not granted[w] and clock[w] > slowest + lower", "if clock[w] > slowest + lower"),
    # before it is needed, for other intervals than then
    ("if not granted[w] and clock[w] > slowest + lower", "if not granted[w]"),
    ("pushed[w] = pushed[w][1], shard.version", "pushed[w] = 0, shard.version"),  # intervals from the start
    ("interval = max(last - previous, now - last)", "interval = last - previous"),
    ("next_push[max(next_push)]", "next_push[min(next_push)]"),
    ("no longer wait for it\n            slowest = min(clock.values(), default=steps)",
     "no longer wait for it\n            pass"),
])
def test_a_wrong_grant_is_caught(right, wrong):
    with pytest.raises((AssertionError, ZeroDivisionError, Deadlock)):
        for seed in range(4):
            for lower, upper in ((0, 6), (3, 15)):
                hold_answers(wrong_deployment(dssp.dssp, right, wrong), lower, upper, seed,
                             2 if "no longer" in right else None, 5.0)


@pytest.mark.parametrize("lower, upper", mostly_slow([(1, 4), (3, 15)], (1, 4)))
def test_grants_wait_no_longer_than_ssp_with_lower_and_no_less_than_with_upper(lower, upper):
    """At constant unequal speeds, and at random ones on average over seeds."""
    def waited(deploy, machine, **options):
        return np.mean(
            [simulate(deploy(integer_gradients(d=1, workers=3), 3, 120, SGD(0.0), **options), machine, seed,
                      observe=1)
                        .trace.marks("update")[-1].time for seed in range(4 if machine is FREE else 1)])

    for machine in (Machine(compute="fixed(1)", speeds=(1, 1.7, 2.3)), FREE):
        quick, dynamic, slow = (waited(ssp.ssp, machine, staleness=upper),
                                waited(dssp.dssp, machine, lower=lower, upper=upper),
                                waited(ssp.ssp, machine, staleness=lower))
        assert quick - 1e-9 <= dynamic <= slow + 1e-9


@given(machine=machines, seed=seeds, steps=st.integers(0, 6), servers=st.integers(1, 3))
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, steps, servers):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(dssp.dssp(problem, 1, steps, sgd, servers), machine, seed),
                          final(sequential.sequential(problem, 1, steps, sgd)))


@pytest.mark.parametrize("workers, steps, lower, upper, reached",
                         [(2, 4, 1, 2, 3), (2, 5, 1, 3, 4), (3, 3, 0, 0, 1)])
def test_every_schedule_of_a_small_case_keeps_the_bound(workers, steps, lower, upper, reached):
    """Leads at the server, of completed clocks: at most upper + 1, which is met."""
    def lead(run):
        clock, worst = dict.fromkeys(run.trace.workers, 0), 0
        for e in run.trace.marks("update"):
            clock[e.values["reads"][0][0]] += 1
            worst = max(worst, max(clock.values()) - min(clock.values()))
        return worst

    problem = integer_gradients(d=1, workers=workers)
    report = explore(lambda: dssp.dssp(problem, workers, steps, SGD(0.25), lower=lower, upper=upper),
                     observe=lead)
    assert report.complete and max(report.finals) == reached <= upper + 1


@pytest.mark.parametrize("lower, upper", [(-1, 2), (3, 2), (0, float("inf"))])
def test_a_wrong_range_is_named(lower, upper):
    with pytest.raises(ValueError, match="expected"):
        dssp.dssp(curved(), 4, 1, SGD(0.1), lower=lower, upper=upper)
