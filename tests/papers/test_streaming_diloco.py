"""What is claimed of streaming DiLoCo (Douillard et al. 2025)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import diloco, local_sgd, streaming_diloco
from refsgd.algorithms.averaging.outer import Fragment, Merged
from refsgd.algorithms.baselines import independent
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives.parts import chunks
from refsgd.effects import Recv, Send
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from refsgd.trace import Sent
from tests.strategies import machines, seeds
from tests.watching import RANDOM, constant, curved, final, moments, ragged, recorded
from tests.wrong import wrong_deployment

DILOCO = {"fragments": 1, "delay": 0, "mix": 0.0}
OVERLAP = {"period": 4, "fragments": 1, "delay": 4, "outer_lr": 1.0, "form": "heavy-ball"}
FORMS = st.sampled_from(["nesterov", "heavy-ball"])


def deployed(problem, workers, steps, sgd, deploy=streaming_diloco.streaming_diloco, **options):
    return deploy(problem, workers, steps, sgd, **{"period": 4, "outer_lr": 0.5, "outer_momentum": 0.0, **options})


# -- identities ----------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 9), momentum=st.sampled_from([0.0, 0.9]), form=FORMS)
def test_one_fragment_without_delay_and_mix_is_diloco_bit_for_bit(machine, seed, workers, steps, momentum, form):
    problem, sgd, outer = ragged(workers), SGD(0.1, 0.9, 0.01), {"outer_momentum": momentum, "form": form}
    ours = simulate(deployed(problem, workers, steps, sgd, **outer, **DILOCO), machine, seed)
    theirs = simulate(deployed(problem, workers, steps, sgd, diloco.diloco, **outer), machine, seed)
    assert all(np.array_equal(x, theirs.values[name]) for name, x in ours.values.items())
    assert sum(ours.trace.bytes_sent.values()) == sum(theirs.trace.bytes_sent.values())


@given(machine=machines, seed=seeds, workers=st.integers(2, 4), steps=st.integers(0, 9))
def test_with_a_full_outer_step_it_is_local_sgd_bit_for_bit(machine, seed, workers, steps):
    problem, sgd = ragged(workers), SGD(0.1, 0.9, 0.01)
    ours = final(deployed(problem, workers, steps, sgd, outer_lr=1.0, **DILOCO), machine, seed)
    assert np.array_equal(ours, final(local_sgd.local_sgd(problem, workers, steps, sgd, period=4), machine, seed))


@pytest.mark.parametrize("changed", [{"fragments": 2}, {"delay": 1}, {"mix": 0.5}])
def test_each_option_alone_makes_another_run(changed):
    problem = curved()
    theirs = final(deployed(problem, 4, 12, SGD(0.1), diloco.diloco))
    assert not np.allclose(final(deployed(problem, 4, 12, SGD(0.1), **{**DILOCO, **changed})), theirs, rtol=1e-4)


@given(machine=machines, seed=seeds, fragments=st.integers(1, 8), delay=st.integers(0, 4))
def test_with_mix_1_replicas_are_independent(machine, seed, fragments, delay):
    """No mean reaches them, though the starts move.  With a delay of H: Overlap Local SGD without a pull."""
    problem, sgd, reads = curved(workers=3), SGD(0.1, 0.9), []
    for deploy, options in ((streaming_diloco.streaming_diloco, {"fragments": fragments, "delay": delay, "mix": 1.0, "period": 4}),
                            (independent.independent, {})):
        watched, seen = recorded(problem)
        simulate(deploy(watched, 3, 10, sgd, **options), machine, seed)
        reads.append({(rank, t): x for rank, t, x, _ in seen})
    assert all(np.array_equal(x, reads[1][key]) for key, x in reads[0].items())
    assert not np.array_equal(final(deployed(problem, 3, 10, sgd, mix=1.0)), problem.x0)


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 10), fragments=st.integers(1, 8),
       delay=st.integers(0, 4), mix=st.sampled_from([0.0, 0.5, 1.0]), form=FORMS)
def test_the_schedule_changes_nothing_and_all_peers_return_one_model(machine, seed, workers, steps, fragments, delay, mix, form):
    problem, sgd, options = ragged(workers), SGD(0.1, 0.9), {"fragments": fragments, "delay": delay, "mix": mix, "form": form}
    run, reference = (simulate(deployed(problem, workers, steps, sgd, outer_momentum=0.9, **options), m, s)
                      for m, s in ((machine, seed), (RANDOM, 0)))
    assert all(np.array_equal(x, reference.values["peer0"]) for x in run.values.values())
    assert all(x.dtype == np.float32 for x in run.values.values())
    assert run.trace.lead <= 4 + delay and run.trace.clock_gap <= 3 + delay


def by_hand(problem, n, steps, lr, fragments, delay, mix, momentum):
    """The recursion without programs and messages, H = 4."""
    cut = chunks(problem.x0.size, fragments)
    x, start, u, since = np.zeros((n, 6)), np.zeros(6), np.zeros(6), [0] * fragments
    way = []
    for t in range(steps):
        x = x - lr * np.array([problem.gradient(x[i], i, t) for i in range(n)])
        last = t == steps - 1
        for sends in (False, True) if last or delay == 4 else (True,):
            for p, part in enumerate(cut):
                k = Fraction(t + 1) - (4 * p // fragments)
                if sends and (last or (k > 0 and k % 4 == 0)):
                    if delay == 4 and not since[p]:
                        x[:, part] = mix * x[:, part] + (1 - mix) * start[part]
                    share = np.array([sum(problem.images(i, s) for s in range(since[p], t + 1)) for i in range(n)], float)
                    share = share / share.sum() if share.sum() else np.full(n, 1 / n)
                    way.append((t + delay, part, share @ (x[:, part] - start[part])))
                    since[p] = t + 1
            for turn in [w for w in way if last or w[0] == t]:
                way.remove(turn)
                _, part, move = turn
                u[part] = momentum * u[part] + move
                start[part] = start[part] + 0.5 * (move + momentum * u[part])
                x[:, part] = mix * x[:, part] + (1 - mix) * start[part]
    return start


GRID = [(1, 0, 0.0), (3, 1, 0.5), (2, 3, 0.25), (4, 2, 0.5), (6, 1, 0.0), (2, 2, 1.0), (1, 4, 0.4), (3, 4, 0.5)]


def check_by_hand(deploy=streaming_diloco.streaming_diloco, grid=GRID):
    problem = ragged(3, dtype=np.float64)
    for fragments, delay, mix in grid:
        for steps in (1, 3, 4, 7, 13):
            ours = final(deployed(problem, 3, steps, SGD(0.125), deploy, fragments=fragments, delay=delay, mix=mix,
                                  outer_momentum=0.8))
            assert np.allclose(ours, by_hand(problem, 3, steps, 0.125, fragments, delay, mix, 0.8), rtol=1e-11, atol=1e-13)


def test_it_is_the_recursion_by_hand():
    check_by_hand()


@pytest.mark.parametrize(("right", "wrong"), [
    ("outer_step, start[p], u[p]", "outer_step, replica.x[cut[p]], u[p]"),  # on what the peer has become
    ("now = t + period * last", "now = t"),  # the last means are lost
    ("            yield from merge(now)  #", "            pass  #"),  # the last moves count twice
    ("        yield from merge(now)\n        yield Mark", "        yield Mark"),  # no delay is one of a turn
    ("since[p] = t + 1", "since[0] = t + 1"),  # weights since another fragment's turn
    ("number(1 - mix) * start", "number(1 - mix) * x[part]"),  # the mean never arrives
    ("turn > 0 and turn", "turn"),  # a turn before anything has moved
    ("if last or delay == period:", "if last:"),  # a move that is under way is sent again
    ("if delay == period and not since[p]:", "if False:"),  # no pull towards x0
])
def test_wrong_variants_are_caught(right, wrong):
    with pytest.raises((AssertionError, LookupError)) as caught:
        check_by_hand(wrong_deployment(streaming_diloco.streaming_diloco, right, wrong))
    assert "places read" not in str(caught.value)


# -- Overlap Local SGD: one fragment, whose mean arrives at its next turn ---------------------------------------


def check_overlap(deploy=streaming_diloco.streaming_diloco):
    """Its authors' rule, in which each peer adds the anchor's momentum, in gradients, before the mean is taken."""
    n, lr, beta = 3, 0.125, 0.7
    for mix in (0.4, 0.75):
        problem = curved(workers=n, dtype=np.float64)
        x, z, buffer = np.zeros((n, 6)), np.zeros(6), np.zeros((n, 6))
        for r in range(5):
            for t in range(4 * r, 4 * r + 4):
                x = x - lr * np.array([problem.gradient(x[i], i, t) for i in range(n)])
            x = mix * x + (1 - mix) * z
            buffer = beta * buffer - (x - z) / lr
            z = (z - lr * buffer).mean(axis=0)
        ours = final(deployed(problem, n, 20, SGD(lr), deploy, mix=mix, outer_momentum=beta, **OVERLAP))
        assert np.allclose(ours, z, rtol=1e-11)


def test_a_delay_of_a_round_is_overlap_local_sgd():
    check_overlap()


@pytest.mark.parametrize(("right", "wrong"), [
    ("mean = yield from mean_move(rank, names, move, images)", "mean = move"),  # the own anchor, before it was averaged
    ("if last or delay == period:", "if last:"), ("if delay == period and not since[p]:", "if False:"),
    ("number(mix) * x[part] + number(1 - mix) * start", "number(1 - mix) * x[part] + number(mix) * start"),
])
def test_wrong_anchors_are_caught(right, wrong):
    with pytest.raises(AssertionError):
        check_overlap(wrong_deployment(streaming_diloco.streaming_diloco, right, wrong))


@given(machine=machines, seed=seeds, steps=st.integers(0, 13), momentum=st.sampled_from([0.0, 0.7]))
def test_pulled_all_the_way_to_the_anchor_the_model_never_moves(machine, seed, steps, momentum):
    problem, seen = recorded(curved(workers=3))
    run = simulate(deployed(problem, 3, steps, SGD(0.1, 0.9), mix=0.0, outer_momentum=momentum, **OVERLAP), machine, seed)
    assert all(np.array_equal(x, problem.x0) for x in run.values.values())
    assert all(np.array_equal(x, problem.x0) for _, t, x, _ in seen if t % 4 == 0)


@pytest.mark.parametrize("mix", [0.25, 0.4, 1.0])
def test_only_the_consensus_is_late(mix):
    """Without momentum the mean of the replicas moves by the mix times the mean of their moves, and has no delay."""
    problem, seen = recorded(curved(workers=3, dtype=np.float64))
    simulate(deployed(problem, 3, 20, SGD(0.125), mix=mix, **OVERLAP), RANDOM)
    x = {(rank, t): x for rank, t, x, _ in seen}
    end = {(rank, t): x - 0.125 * g for rank, t, x, g in seen}
    start = np.array([[x[i, 4 * r] for i in range(3)] for r in range(5)])
    move = np.array([[end[i, 4 * r + 3] for i in range(3)] for r in range(5)]) - start
    assert np.allclose(np.diff(start.mean(axis=1), axis=0), mix * move.mean(axis=1)[:4], rtol=1e-11)


@pytest.mark.parametrize(("mix", "momentum"), [(0.4, 0.0), (0.4, 0.7), (0.7, 0.9), (1.0, 0.5)])
def test_momentum_gives_back_a_part_of_what_the_pull_takes(mix, momentum):
    """Of moves of 1 a round gains (1 - alpha)/(1 - alpha beta), with alpha = 1 - mix."""
    ends = [final(deployed(constant(lambda rank, t: -0.25, dtype=np.float64), 3, 4 * rounds, SGD(1.0), mix=mix, outer_momentum=momentum,
                           **OVERLAP))[0] for rounds in (150, 250)]
    assert (ends[1] - ends[0]) / 100 == pytest.approx(mix / (1 - (1 - mix) * momentum), rel=1e-6)


def test_without_gradients_replicas_come_together_by_the_mix():
    """Each round leaves the mix of what parts them; a mean that is a round old is as good as a new one."""
    noise = np.random.default_rng(3).standard_normal((3, 6))
    problem, seen = recorded(Problem(np.zeros(6), lambda x, rank, t: noise[rank] * (t == 0), lambda x: 0.0))
    simulate(deployed(problem, 3, 24, SGD(1.0), mix=0.4, **OVERLAP), RANDOM)
    apart = np.array([np.std([x for _, t, x, _ in seen if t == 4 * r], axis=0) for r in range(1, 6)])
    assert np.allclose(apart[1:], 0.4 * apart[:-1], rtol=1e-11)


# -- turns ---------------------------------------------------------------------------------------------------


def turns(steps, fragments, delay=1, period=8, workers=2):
    """(fragment, step after which it is sent) of peer 0."""
    run = simulate(deployed(constant(lambda rank, t: 1.0, d=16), workers, steps, SGD(0.1), period=period, fragments=fragments,
                            delay=delay), Machine(compute="fixed(1)"))
    found = [e for e in run.trace.of(Sent) if e.node == e.to == "peer0" and e.message == "Fragment"]
    return [round(e.time) for e in found], run.trace


@pytest.mark.parametrize(("fragments", "steps"), [(1, 32), (2, 32), (3, 34), (4, 40), (8, 32), (5, 29)])
def test_each_fragment_has_one_turn_in_each_period(fragments, steps):
    """In any window of H steps from the first turn of all on, before the last step, which synchronises all again."""
    times, _ = turns(steps, fragments)
    assert len(times) == sum(max(1, -(-(steps - 8 * p // fragments) // 8)) for p in range(fragments))
    for begin in range(8 + 8, steps - 8 + 1):
        assert sum(begin <= k < begin + 8 for k in times) == fragments
    assert [k for k in times if k < steps][:fragments] == [8 + 8 * p // fragments for p in range(fragments)][:len(times)]


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (2, 0), (4, 2), (8, 7), (3, 5)])
def test_bytes_of_whole_rounds_are_those_of_diloco(fragments, delay):
    _, trace = turns(32, fragments, delay, workers=3)
    theirs = simulate(deployed(constant(lambda rank, t: 1.0, d=16), 3, 32, SGD(0.1), diloco.diloco, period=8), RANDOM).trace
    assert sum(trace.bytes_sent.values()) == sum(theirs.bytes_sent.values())
    largest = max(e.nbytes for e in trace.of(Sent) if e.node == e.to and e.message == "Fragment")
    assert largest == 4 * -(-16 // fragments)


@pytest.mark.parametrize(("fragments", "delay", "mix"), [(1, 0, 0.0), (3, 2, 0.5), (2, 3, 0.0), (6, 1, 1.0)])
def test_what_peers_send_is_what_they_merge_and_their_starts_are_equal(fragments, delay, mix):
    """Conservation: a mean is that of the moves sent, and each turn moves all starts alike."""
    sent, merged, starts = {}, {}, {}

    def hear(name, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, Fragment):
            sent.setdefault((effect.body.number, name), []).append(effect.body)
        if isinstance(effect, Recv) and isinstance(answer[1], Merged):
            merged.setdefault((answer[1].number, name), []).append(answer[1].move)

    for watched in moments(deployed(curved(workers=3), 3, 13, SGD(0.1), fragments=fragments, delay=delay, mix=mix),
                           hear, RANDOM, 0):
        for name, program in watched.items():
            if program.program.gi_frame is not None and "start" in program.local:
                starts.setdefault((name), []).append(np.concatenate(program.local["start"]))
    for p in range(fragments):
        assert len(sent[p, "peer0"]) == len(merged[p, "peer0"]) > 2
        for turn, mean in enumerate(merged[p, "peer0"]):
            assert all(np.array_equal(merged[p, f"peer{i}"][turn], mean) for i in range(3))
            assert np.allclose(np.mean([sent[p, f"peer{i}"][turn].move for i in range(3)], axis=0), mean, rtol=1e-5, atol=1e-7)
    distinct = [list(dict.fromkeys(x.tobytes() for x in starts[f"peer{i}"])) for i in range(3)]
    assert distinct[0] == distinct[1] == distinct[2] and len(distinct[0]) > 3


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_steps_of_a_delay_are_lost_with_mix_0(delay):
    """A lone peer with full outer steps: each of three rounds but the last loses `delay` of its own steps, and with
    a mix of 1 none."""
    for mix, lost in ((0.0, 2 * delay), (1.0, 0)):
        x = final(deployed(constant(lambda rank, t: -1.0), 1, 12, SGD(2.0), fragments=1, delay=delay, mix=mix, outer_lr=1.0))
        assert np.array_equal(x, [2 * (12 - lost)] * 2)


# -- schedules and times -------------------------------------------------------------------------------------


def small(steps):
    return deployed(integer_gradients(d=2, workers=2), 2, steps, SGD(0.25), period=2, fragments=2)


@pytest.mark.slow
def test_every_schedule_of_a_step():
    report = explore(lambda: deployed(integer_gradients(d=2, workers=2), 2, 1, SGD(0.25), period=1, fragments=1, delay=0), ledger,
                     observe=lambda run: tuple(run.values["peer1"]))
    assert report.complete and report.runs > 1 and len(report.finals) == 1


def test_schedules_of_three_turns():
    """Two programs of a node make too many for all of them."""
    finals = set()

    def check(run):
        ledger(run)
        finals.add(tuple(run.values["peer1"]))

    walk(lambda: small(3), check, runs=200)
    assert len(finals) == 1


SETTINGS = [  # workers, period, fragments, delay, latency, transfer of the model, update
    (3, 4, 2, 1, 0.1, 6.0, None), (4, 8, 4, 3, 0.2, 20.0, None), (5, 6, 3, 0, 0.3, 7.5, 0.25), (2, 8, 2, 7, 0.5, 2.0, 1.5),
    (6, 12, 4, 2, 0.0, 9.0, None), (1, 5, 2, 3, 1.0, 4.0, 0.5), (4, 5, 3, 2, 0.1, 9.0, None), (2, 3, 5, 1, 0.1, 4.0, 0.1),
    (4, 6, 1, 6, 0.2, 5.0, None), (3, 4, 1, 4, 0.1, 9.0, 0.5), (4, 8, 2, 8, 0.2, 20.0, 0.25), (5, 8, 4, 8, 0.1, 3.0, 0.5), (2, 1, 1, 1, 0.5, 2.0, None)]


@pytest.mark.parametrize(("workers", "period", "fragments", "delay", "latency", "transfer", "update"), SETTINGS)
def test_the_end_of_a_run_is_exact(workers, period, fragments, delay, latency, transfer, update):
    d, options = 60 * workers * fragments, {"period": period, "fragments": fragments, "delay": delay}
    machine = Machine(compute="fixed(1)", latency=latency, bandwidth=4 * d / transfer, update=update)
    problem = quadratic(d=d, workers=workers)
    for steps in (1, period, 3 * period, 7 * period + 1):
        p = predict("streaming-diloco", machine, workers=workers, steps=steps, nbytes=4 * d, options=options)
        trace = simulate(deployed(problem, workers, steps, SGD(0.1), **options), machine).trace
        assert p["seconds"].kind == "exact" and p["seconds"].value == pytest.approx(trace.seconds, rel=1e-9)
        assert p["idle_ratio"].value == pytest.approx(trace.idle_ratio, abs=1e-9)
        assert p["bytes_sent"].value == sum(trace.bytes_sent.values())


@pytest.mark.parametrize(("workers", "period", "fragments", "delay", "latency", "transfer", "update"),
                         [s for s in SETTINGS if s[1] % s[2] == 0])
def test_a_round_stalls_for_what_the_delays_do_not_hide(workers, period, fragments, delay, latency, transfer, update):
    """H T + P max(0, e - min(tau, H/P) T), exactly; from a delay of H/P on the outer update hides as well,
    unless the next turn is the fragment's own."""
    d, options = 60 * workers * fragments, {"period": period, "fragments": fragments, "delay": delay}
    machine = Machine(compute="fixed(1)", latency=latency, bandwidth=4 * d / transfer, update=update)
    ends = [simulate(deployed(quadratic(d=d, workers=workers), workers, rounds * period, SGD(0.1), **options), machine).trace.seconds
            for rounds in (20, 40)]
    u, e = update or 0.0, 2 * (workers - 1) * (latency + transfer / fragments / workers)
    stall = max(0.0, e - min(delay, period / fragments) * (1 + u) - u * (delay >= period / fragments and fragments > 1))
    by_hand = period * (1 + u) + fragments * (u + stall)
    p = predict("streaming-diloco", machine, workers=workers, steps=40 * period, nbytes=4 * d, options=options)
    assert p["seconds_per_iteration"].value * period == pytest.approx(by_hand)
    assert (ends[1] - ends[0]) / 20 == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("options", [{"fragments": 0}, {"delay": 5}, {"delay": -1}, {"mix": 1.5}, {"mix": -0.1}, {"outer_lr": 0.0},
                                     {"outer_momentum": 1.0}, {"period": 0}, {"form": "heavy"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*expected"):
        deployed(Problem(np.zeros(2), lambda x, rank, t: x, lambda x: 0.0), 2, 1, SGD(0.1), **options)
