"""What is claimed of decoupled DiLoCo (Douillard et al. 2026)."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import decoupled_diloco, diloco, syncer
from refsgd.algorithms.averaging.outer import mixed
from refsgd.algorithms.averaging.syncer import Push, merge
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives.parts import chunks
from refsgd.effects import Compute, Poll, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes import simulator
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.simulator import simulate
from refsgd.testing.contents import reach
from refsgd.testing.findings import RATE
from refsgd.trace import Received, Returned, Sent
from tests.strategies import machines, seeds
from tests.watching import FREE, RANDOM, curved, final, moments, ragged
from tests.wrong import changed, wrong_deployment

SLOW = Machine(compute="exponential(1)", latency=3.0)  # answers cross merges
DEPLOY = decoupled_diloco.decoupled_diloco
few = st.fixed_dictionaries({"fragments": st.integers(1, 4), "period": st.integers(1, 4), "quorum": st.integers(1, 3),
                             "mix": st.sampled_from([0.0, 0.5, 1.0]), "merge": st.sampled_from(["average", "rda"])})


def deployed(problem, workers, steps, sgd, deploy=DEPLOY, **options):
    return deploy(problem, workers, steps, sgd, **{"period": 2, "fragments": 2, **options})


def deaths(number, seed, steps, workers):
    """The first learners die, each at a gradient of its own."""
    return [Fault("kill", f"worker{i}", (seed + 3 * i) % steps) for i in range(min(number, workers))]


# -- learners do not wait -------------------------------------------------------------------------------------


@given(seed=seeds, options=few, latency=st.sampled_from([0.0, 0.1, 30.0]), speeds=st.sampled_from([(), (1, 0.2, 3)]))
def test_learners_never_wait(seed, options, latency, speeds):
    """Each returns when it has computed its own steps, whatever the network and the others do."""
    machine = Machine(compute="fixed(1)", latency=latency, bandwidth=20.0, speeds=speeds)
    trace = simulate(deployed(curved(workers=3), 3, 9, SGD(0.1), **options), machine, seed).trace
    ends = {e.node: e.time for e in trace.of(Returned) if trace.is_worker(e.node)}
    assert ends == pytest.approx({f"worker{i}": 9 / (speeds[i] if speeds else 1) for i in range(3)})
    assert not trace.of(Received, "worker0")  # it only polls


# -- what is merged -------------------------------------------------------------------------------------------


def hold_merges(deploy, machine, seed, options, dead=0):
    """Versions count the merges of a fragment, moves are of its newest version, and there are no more rounds than in
    any schedule; returns the run."""
    problem, steps, period = ragged(3), 12, options["period"]
    run = simulator.simulate(deployed(problem, 3, steps, SGD(0.1, 0.9), deploy, **options), machine, seed,
                          faults=deaths(dead, seed, steps, 3), on_death="continue")
    trace, versions, answers = run.trace, Counter(), Counter()
    rounds = max((k for k, e in enumerate(trace.events) if isinstance(e, Sent) and e.message == "Global"), default=0)
    running = {"worker0", "worker1", "worker2"}  # as far as the syncer knows
    for k, e in enumerate(trace.events):
        if e.node == "server0" and getattr(e, "message", "") in ("Done", "Died"):
            running.discard(e.src)
        if e.kind == "mark" and e.name == "update":
            p = e.values["part"]
            assert e.values["version"] == versions[p]
            versions[p] += 1
            if k < rounds:  # not of the moves after the last steps
                assert all(version == e.values["version"] for _, version in e.values["reads"])
                assert len(e.values["reads"]) >= options["quorum"] or running <= {w for w, _ in e.values["reads"]}
                answers.update((w, p) for w, _ in e.values["reads"])
    assert all(count <= steps // period for count in answers.values())
    merges = trace.marks("update")
    sent = [e.node for e in trace.of(Sent) if e.message == "Push"]
    known = sum(len(e.values["reads"]) for e in merges) + len(trace.marks("drop"))
    assert (known <= len(sent) if dead else known == len(sent)) and run.values["server0"].shape == (6,)
    assert all(count <= 3 * (steps // period) + 1 for count in versions.values())
    return run


@given(machine=machines, seed=seeds, options=few)
def test_what_is_merged(machine, seed, options):
    run = hold_merges(DEPLOY, machine, seed, options)
    assert run.values["server0"].dtype == np.float32 and np.isfinite(run.values["server0"]).all()


def test_what_comes_too_late_is_marked():
    """With a quorum of two some moves reach no merge, the last ones of the slowest learner among them."""
    says = reach(lambda *case: deployed(*case, SGD(RATE), quorum=2, period=3))
    assert "all reach the model or are dropped" in says


@given(seed=seeds, options=few, dead=st.integers(1, 3))
def test_learners_may_die_at_any_time(seed, options, dead):
    """With any quorum, also of more than are left: the run ends, and the others take all their steps."""
    run = hold_merges(DEPLOY, RANDOM, seed, options, dead)
    assert sorted(run.trace.dead) == [f"worker{i}" for i in range(dead)]
    clocks = Counter(e.node for e in run.trace.marks("clock"))
    assert all(clocks[f"worker{i}"] == 12 for i in range(dead, 3))
    assert dead == 3 or {e.values["part"] for e in run.trace.marks("update")} == set(range(options["fragments"]))


def hold_learners(deploy, seed, options):
    """What learners send, by a copy of their state: moves and steps since a fragment was merged or sent, each answer
    to the newest question; what the syncer counts is of its newest merge."""
    problem, p_of = ragged(3), chunks(6, options["fragments"])
    x, since, base, t, asked, steps = {}, {}, {}, Counter(), {}, 8

    def hear(name, effect, answer):
        if name == "server0":
            return
        x.setdefault(name, problem.x0)
        if isinstance(effect, Compute):
            if effect.kind == "gradient":
                assert np.array_equal(effect.args[0], x[name])
            elif effect.kind == "update":
                x[name], t[name] = answer[0], t[name] + 1
        elif isinstance(effect, Poll) and answer and type(answer[1]).__name__ == "Pull":
            asked[name] = answer[1]
        elif isinstance(effect, Poll) and answer:
            p, merged, version = answer[1]
            asked.pop(name, None)
            x[name] = mixed(x[name], p_of[p], merged, options["mix"])
            base[name, p], since[name, p] = (merged, version), t[name]
        elif isinstance(effect, Send) and type(effect.body).__name__ == "Push":
            push, begun = effect.body, since.get((name, effect.body.fragment), 0)
            old, version = base.get((name, push.fragment), (problem.x0[p_of[push.fragment]], 0))
            assert np.array_equal(push.move, x[name][p_of[push.fragment]] - old) and push.version == version
            assert push.steps == t[name] - begun > 0
            assert push.tokens == sum(problem.images(int(name[-1]), s) for s in range(begun, t[name]))
            assert push.round < 0 or (push.steps >= options["period"] and asked.pop(name) == (push.fragment, push.round))
            base[name, push.fragment], since[name, push.fragment] = (x[name][p_of[push.fragment]], version), t[name]

    for _ in moments(deployed(problem, 3, steps, SGD(0.1), deploy, **options), hear, RANDOM, seed):
        pass


@given(seed=seeds, options=few)
def test_what_learners_send(seed, options):
    hold_learners(DEPLOY, seed, options)


@pytest.mark.parametrize(("right", "wrong"), [
    ("return min(quorum, len(living))", "return quorum"),  # as if all lived
    ("len(answers) >= quorum or", "len(answers) >= least() or"),  # the dead count
    ("elif message.round == number:", "elif message.round >= 0:"),  # late answers, too
    ("base[p], since[p] = x[cut[p]], now  # no step is sent twice", "pass"),
    ("base[p], since[p], x = merged, t + 1,", "base[p], x = merged,"),  # steps from before a merge
    ("            asked = None\n        yield Mark", "        yield Mark"),  # answers the same question again
    ("mixed(x, cut[p], merged, mix)", "mixed(x, cut[p], merged, 0)"),
])
def test_wrong_variants_are_caught(right, wrong):
    deploy = wrong_deployment(DEPLOY, right, wrong)
    with pytest.raises((AssertionError, Deadlock, KeyError)):
        for seed in range(60):
            for options in ({"fragments": 1, "period": 1, "quorum": 2, "mix": 0.5}, {"fragments": 3, "period": 2, "quorum": 1, "mix": 0.5},
                            {"fragments": 2, "period": 3, "quorum": 3, "mix": 0.5}):
                hold_learners(deploy, seed, options)
                hold_merges(deploy, (RANDOM, SLOW)[seed % 2], seed, options, dead=seed % 3 % 2)


def test_bits_depend_on_who_answers_not_on_the_order():
    """All answer each question; whose answer comes first depends on the seed."""
    ends = {final(deployed(ragged(3), 3, 12, SGD(0.1, 0.9), fragments=1, period=12), FREE, seed).tobytes() for seed in range(8)}
    assert len(ends) == 1


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rule", ["average", "rda"])
def test_without_gradients_nothing_moves(mix, rule):
    x0 = np.linspace(-1, 1, 6, dtype=np.float32)
    problem = Problem(x0, lambda x, rank, t: np.zeros_like(x), lambda x: 0.0)
    run = simulate(deployed(problem, 3, 9, SGD(0.1), mix=mix, merge=rule), RANDOM)
    assert np.array_equal(run.values["server0"], x0)
    if mix in (0.0, 1.0):
        assert all(np.array_equal(x, x0) for x in run.values.values())


@pytest.mark.parametrize("workers", [1, 3])
def test_with_all_one_fragment_and_no_mix_it_is_not_diloco(workers):
    """Learners are at least one step ahead when the merge arrives, even without a network."""
    problem, options = curved(workers=workers), {"period": 2, "outer_lr": 0.5, "outer_momentum": 0.0}
    ours = final(DEPLOY(problem, workers, 12, SGD(0.1), fragments=1, mix=0.0, **options), Machine(compute="fixed(1)"))
    theirs = final(diloco.diloco(problem, workers, 12, SGD(0.1), **options), Machine(compute="fixed(1)"))
    assert not np.allclose(ours, theirs, rtol=1e-3)


# -- weights and merges ---------------------------------------------------------------------------------------


def step(moves, shares, rule="average", merging=merge):
    """The move of a plain outer step."""
    pushes = [Push(0, 0, np.asarray(move, np.float64), steps, tokens, 0) for move, (tokens, steps) in zip(moves, shares, strict=True)]
    return merging(np.zeros(len(moves[0])), np.zeros(len(moves[0])), pushes, rule, 1.0, 0.0)[0]


def check_weights(merging=merge):
    """(100 tokens, 10 steps) weigh 1000, (100, 20) weigh 500."""
    assert step([[3.0], [0.0]], [(100, 10), (100, 20)], merging=merging) == pytest.approx([2.0])
    assert step([[3.0], [0.0]], [(200, 20), (100, 10)], merging=merging) == pytest.approx([2.0])


def test_weights_are_tokens_by_tokens_per_step():
    check_weights()


@pytest.mark.parametrize("wrong", ["push.tokens", "push.tokens / push.steps", "push.steps"])
def test_other_weights_are_caught(wrong):
    with pytest.raises(AssertionError):
        check_weights(changed(syncer, "push.tokens**2 / push.steps", wrong).merge)


def test_equal_learners_have_the_plain_mean_bit_for_bit():
    moves = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    pushes = [Push(0, 0, move, 7, 13, 0) for move in moves]
    x = merge(np.zeros(5, np.float32), np.zeros(5, np.float32), pushes, "average", 1.0, 0.0)[0]
    assert np.array_equal(x, (moves[0] + moves[1] + moves[2]) / np.float32(3))


@given(seed=seeds, n=st.integers(1, 5))
def test_facts_of_rda(seed, n):
    rng = np.random.default_rng(seed)
    alone = rng.standard_normal(6)
    assert step([alone], [(3, 2)], "rda") == pytest.approx(alone)
    assert step([alone] * n, [(3, 2)] * n, "rda") == pytest.approx(alone)
    apart = 2.5 * np.linalg.qr(rng.standard_normal((6, 6)))[0][:n]  # orthogonal, of the same length
    assert np.linalg.norm(step(apart, [(1, 1)] * n, "rda")) == pytest.approx(2.5)
    assert np.linalg.norm(step(apart, [(1, 1)] * n)) == pytest.approx(2.5 / math.sqrt(n))
    assert step([alone, -alone], [(1, 1)] * 2, "rda") == pytest.approx(np.zeros(6))  # they cancel: the mean
    assert step([alone, 0 * alone], [(1, 1)] * 2, "rda") == pytest.approx(alone / 2)


# -- schedules, bytes, availability ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "quorum"), [(1, 1), (1, 2)])
def test_every_schedule_ends(steps, quorum):
    """With integer moves the model is the same in all of them."""
    report = explore(lambda: DEPLOY(integer_gradients(d=2, workers=2), 2, steps, SGD(0.25), period=1, fragments=1, quorum=quorum,
                                    outer_lr=1.0, outer_momentum=0.0, mix=0.0), observe=lambda run: tuple(run.values["server0"]))
    assert report.complete and report.runs > 1


def test_random_schedules_end():
    for quorum in (1, 2, 3):
        walk(lambda quorum=quorum: DEPLOY(integer_gradients(d=2, workers=3), 3, 4, SGD(0.25), period=1, fragments=2, quorum=quorum),
             runs=100)


@pytest.mark.parametrize(("workers", "fragments", "quorum", "period"), [(3, 1, 3, 2), (4, 3, 2, 1), (5, 2, 5, 4), (2, 4, 1, 3), (6, 5, 4, 2)])
def test_bytes_are_those_of_answers_and_merges(workers, fragments, quorum, period):
    """M/P up for each answer, late ones and the last moves too; M/P down for each learner that runs."""
    trace = simulate(deployed(quadratic(d=60, workers=workers), workers, 20, SGD(0.1), fragments=fragments, quorum=quorum,
                              period=period), RANDOM).trace
    size = [4 * (part.stop - part.start) for part in chunks(60, fragments)]
    assert len(set(size)) == 1
    up = sum(e.message == "Push" for e in trace.of(Sent))
    assert sum(len(e.values["reads"]) for e in trace.marks("update")) + len(trace.marks("drop")) <= up
    down = sum(e.message == "Global" for e in trace.of(Sent))
    assert sum(trace.bytes_sent.values()) == size[0] * (up + down)
    assert down <= workers * len(trace.marks("update"))


def test_a_quorum_goes_on_without_the_slow_and_the_dead():
    """Eight learners, one is five times slower, two die: DiLoCo ends at the first death."""
    problem = Problem(np.zeros(40), lambda x, rank, t: x - 1, lambda x: float(np.sum((x - 1)**2)))
    machine = Machine(compute="fixed(1)", speeds=(0.2, *[1] * 7), latency=0.1)
    faults = [Fault("kill", f"worker{i}", 20) for i in (6, 7)]
    run = simulator.simulate(DEPLOY(problem, 8, 80, SGD(0.1), quorum=5), machine, 0, faults=faults, on_death="continue")
    early = [e for e in run.trace.marks("update") if e.time <= 80]
    assert len(early) >= 4 * 8  # a merge of each fragment in about nine steps
    assert problem.loss(final_parameters(run)) < 0.1 * problem.loss(problem.x0)


@pytest.mark.parametrize("options", [{"fragments": 0}, {"mix": 1.5}, {"outer_lr": 0.0}, {"outer_momentum": 1.0}, {"period": 0},
                                     {"quorum": 0}, {"quorum": 5}, {"merge": "sum"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*expected"):
        DEPLOY(integer_gradients(), 4, 1, SGD(0.1), **options)
