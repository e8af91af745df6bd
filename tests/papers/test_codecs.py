"""What is claimed of every codec: nothing is lost, bytes are those of the formula, and peers agree.

Karimireddy et al., ICML 2019 (error feedback); Vogels et al., NeurIPS 2019 (PowerSGD); Lin et al., ICLR 2018.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.allreduce import allreduce
from refsgd.algorithms.codecs import DGC, FP16, QSGD, RandK, Residual, Rule
from refsgd.algorithms.compression import Codec, codec
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.powersgd import PowerSGD, orthonormal
from refsgd.algorithms.replica import deploy
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives import ALLREDUCE, ring_allreduce
from refsgd.effects import Node, payload_bytes
from refsgd.problems import integer_gradients, quadratic
from refsgd.problems.shapes import ShapeOnly, shape_only
from refsgd.runtimes.simulator import simulate
from tests.marks import mostly_slow
from tests.strategies import machines, seeds

TEXTS = ["topk:0.1", "randk:0.25", "dgc:0.1", "onebit", "twobit:0.5", "qsgd:4", "qsgd:200,bucket=8", "fp16", "powersgd:2"]
SHAPES = ((3, 3, 2, 8), (8,), (20, 10), (10,))
D = sum(map(math.prod, SHAPES))
KEY = (0, 0, 0, 0)


def draws(d=D, seed=0):
    return np.random.default_rng(seed).standard_normal(d).astype(np.float32)


@dataclass(frozen=True)
class Identity(Rule):
    """Sends everything."""

    linear: ClassVar[bool] = True

    def encode(self, state, s, key):
        return (s,), state

    def decode(self, message, d):
        return message[0]

    def phases(self, d, t):
        return (4 * d,)


def compressed(how, problem, workers, steps, sgd, reduce=ring_allreduce):
    """All-reduce with this codec."""
    coded = replace(problem, exchange=Exchange(codec=how))
    return deploy(coded, workers, how.rule.receiver(sgd),
                  lambda replica, group: allreduce.peer(replica, group, coded, steps, reduce))


def final(deployment, *where):
    """The parameters, the same bits on every peer."""
    values = list(simulate(deployment, *where).values.values())
    assert np.isfinite(values[0]).all(), values
    assert all(np.array_equal(values[0], x) for x in values), f"all replicas are the same bits: {values}"
    return values[0]


# -- nothing is lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("problem", [integer_gradients(), quadratic(noise=1.0)], ids=["integers", "quadratic"])
def test_the_identity_codec_changes_no_bit(problem, feedback):
    sgd = SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(compressed(Codec(Identity(), feedback), problem, 4, 6, sgd)),
                          final(allreduce.allreduce(problem, 4, 6, sgd)))


def hold_ledger(how, gs, exact=False):
    """What is sent and what is kept now are what came in and what was kept before, to one unit in the last
    place of the largest of the three (two roundings to half a unit); and so sum sent + residual = sum of
    gradients."""
    d = gs.shape[1]
    state, sent = how.start(d), np.zeros(d)
    for t, g in enumerate(gs):
        before = state[1]
        message, state = how.encode(state, g, (0, 0, t))
        q = how.decode(message, d)
        s = g.astype(float) + before
        ulp = np.spacing(np.float32(np.max(np.abs([s, q, state[1]]), axis=0)))
        assert np.all(np.abs(q.astype(float) + state[1] - s) <= (0 if exact else ulp)), "sent + kept = came in + kept before"
        sent += q
    rest = sent + state[1] - gs.sum(axis=0, dtype=float)
    scale = np.abs(gs).sum()
    assert np.all(np.abs(rest) <= (0 if exact else 1e-6 * scale)), "sum sent + residual = sum of gradients"


@pytest.mark.parametrize("text", [text for text in TEXTS if "dgc" not in text])
@pytest.mark.parametrize("shapes", [(), SHAPES], ids=["vector", "arrays"])
def test_error_feedback_keeps_the_ledger_to_one_unit_in_the_last_place(text, shapes):
    hold_ledger(codec(text, shapes=shapes), np.array([draws(seed=t) for t in range(8)]))


@pytest.mark.parametrize("text", ["topk:0.1", "randk:0.25", "twobit:4", "fp16"])
@given(gs=st.lists(st.lists(st.integers(-64, 64), min_size=12, max_size=12), min_size=1, max_size=6))
def test_the_ledger_is_exact_on_integers(text, gs):
    hold_ledger(codec(text), np.array(gs, np.float32), exact=True)


@dataclass(frozen=True)
class Dropped(Codec):
    """WRONG: the residual is not kept."""

    def encode(self, state, g, key):
        message, (inner, _) = super().encode(state, g, key)
        return message, (inner, 0 * g)


@dataclass(frozen=True)
class Twice(Codec):
    """WRONG: the residual is added twice."""

    def encode(self, state, g, key):
        return super().encode(state, g + state[1], key)


@pytest.mark.parametrize("wrong", [Dropped, Twice])
def test_a_residual_dropped_or_added_twice_is_caught(wrong):
    gs = np.array([draws(seed=t) for t in range(8)])
    hold_ledger(codec("topk:0.1"), gs)
    with pytest.raises(AssertionError, match="kept before"):
        hold_ledger(wrong(codec("topk:0.1").rule), gs)


@pytest.mark.parametrize("text", ["topk:0.2", "randk:0.2", "twobit:2"])
def test_what_moved_x_and_what_peers_still_owe_sum_to_all_gradients(text):
    """The ledger of a whole run of all-reduce, exactly: gradients are integers, and the rate a power of two."""
    problem, kept = integer_gradients(d=8), {}
    how = codec(text)

    class Watched(Codec):
        def encode(self, state, g, key):
            message, after = super().encode(state, g, key)
            kept[key[1]] = after[1]
            came.append(g)
            return message, after

    came = []
    x = final(compressed(Watched(how.rule), problem, 4, 9, SGD(0.25)))
    assert np.array_equal((problem.x0 - x) / 0.25 + sum(kept.values()), sum(came))


# -- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TEXTS, "dgc:0.01,warmup=3"])
@given(shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), max_size=4), d=st.integers(1, 99), t=st.integers(0, 500))
def test_the_bytes_of_a_message_are_those_of_the_formula(text, shapes, d, t):
    how = codec(text, shapes=shapes)
    d = sum(map(math.prod, shapes)) or d
    message, _ = how.encode(how.start(d), draws(d), (0, 0, t))
    assert payload_bytes(message) == how.nbytes(d, t)


@pytest.mark.parametrize("text, formula", [
    ("topk:0.1", 8 * 37), ("randk:0.25", 4 * 91), ("onebit", -(-362 // 8) + 8 * (8 + 1 + 10 + 1)), ("twobit:0.5", -(-362 // 4)),
    ("qsgd:4", 362 + 4), ("qsgd:200,bucket=8", 2 * 362 + 4 * 46), ("fp16", 2 * 362),
    ("powersgd:2", 4 * (2 * (18 + 8) + 2 * (20 + 10) + 18)), ("dgc:0.1", 8 * (15 + 20) + 4 * 18)])
def test_the_formulas_by_hand(text, formula):
    """362 entries: 18 x 8 and 20 x 10 matrices, biases of 8 and 10."""
    assert codec(text, shapes=SHAPES).nbytes(D) == formula


@pytest.mark.parametrize("text", TEXTS)
def test_shape_only_gradients_cost_the_same_bytes_and_seconds(text):
    problem, machine = quadratic(d=400, noise=1.0), Machine(compute="fixed(1)", latency=0.1, bandwidth=1000.0)
    for how in (codec(text, ranks=4), codec(text, ranks=4, shapes=((30, 12), (40,)))):
        real = simulate(compressed(how, problem, 4, 3, SGD(0.1, 0.9, 0.01)), machine).trace
        hollow = simulate(compressed(how, shape_only(400), 4, 3, SGD(0.1, 0.9, 0.01)), machine).trace
        assert sum(hollow.bytes_sent.values()) == sum(real.bytes_sent.values())
        assert hollow.seconds == pytest.approx(real.seconds)
        message, _ = how.encode(how.start(400), ShapeOnly(400), KEY)
        assert payload_bytes(message) == how.nbytes(400) and how.decode(message, 400).size == 400


# -- all-reduce with each codec --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("text", mostly_slow(TEXTS, "randk:0.25", "dgc:0.1", "onebit", "qsgd:4", "powersgd:2"))
@given(machine=machines, seed=seeds, workers=st.integers(1, 5))
def test_peers_agree_whatever_the_schedule_and_send_the_bytes_of_the_formula(text, machine, seed, workers):
    """Messages of linear codecs are summed in a ring, 2 (n - 1) times each; others go to n - 1 peers."""
    how, problem = codec(text, ranks=workers), quadratic(d=60, workers=workers, noise=1.0)
    def deployed():
        return compressed(how, problem, workers, 4, SGD(0.1, 0.9, 0.01))

    run = simulate(deployed(), machine, seed)
    assert all(np.array_equal(x, final(deployed())) for x in run.values.values())
    times = 2 if how.rule.linear else workers
    assert sum(run.trace.bytes_sent.values()) == 4 * times * (workers - 1) * how.nbytes(60)


@pytest.mark.parametrize("collective", ALLREDUCE)
@pytest.mark.parametrize("text", ["randk:0.25", "fp16", "powersgd:2"])
def test_linear_codecs_pass_through_every_collective(text, collective):
    """To the rounding of sums in another order, in half precision of 4 numbers."""
    how, problem = codec(text, ranks=4), quadratic(d=60, noise=1.0)
    one = final(compressed(how, problem, 4, 4, SGD(0.1)))
    other = final(compressed(how, problem, 4, 4, SGD(0.1), ALLREDUCE[collective]))
    assert np.allclose(one, other, rtol=0, atol=4e-3 if text == "fp16" else 1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_os_processes_and_the_simulator_give_the_same_bits(text):
    def own(problem, workers, steps, sgd):
        return compressed(codec(text, sgd=sgd, ranks=workers), problem, workers, steps, sgd)

    machine = Machine(compute="fixed(0.003)", latency=0.0001)
    runs = [refsgd.run(own, data="quadratic", workers=3, steps=5, lr=0.1, machine=machine, runtime=runtime)
            for runtime in ("simulator", "processes")]
    assert runs[0].parameters_sha256 == runs[1].parameters_sha256
    assert runs[0].measured["bytes_sent_by_node"] == runs[1].measured["bytes_sent_by_node"]


# -- rules -----------------------------------------------------------------------------------------------------


def mean_of(how, v, draws=2000):
    """Mean of what is said, and mean squared error relative to |v|^2."""
    found = np.array([how.decode(how.encode(how.start(v.size), v, (0, 0, t))[0], v.size) for t in range(draws)])
    return found.mean(axis=0), np.mean(np.sum((found - v) ** 2, axis=1)) / np.sum(v**2)


def test_randk_is_unbiased_without_feedback_and_a_contraction_with_it():
    """E|Q - v|^2 = (d/k - 1) |v|^2 and (1 - k/d) |v|^2; an entry's standard error is |v_j| sqrt((d/k - 1) / draws)."""
    v = draws(40)
    mean, error = mean_of(codec("randk:0.25", feedback=False), v)
    assert np.all(np.abs(mean - v) < 5 * np.abs(v) * math.sqrt(3 / 2000)) and error == pytest.approx(3, rel=0.1)
    mean, error = mean_of(codec("randk:0.25"), v)
    assert error == pytest.approx(0.75, rel=0.05) and not np.all(np.abs(mean - v) < 5 * np.abs(v) * math.sqrt(3 / 2000)), "biased"


def test_randk_chooses_alike_on_all_ranks_and_anew_in_each_step_and_part():
    rule = RandK(0.25)
    places = {key: tuple(np.flatnonzero(rule.decode(rule.encode(None, np.ones(40), key)[0], 40)))
              for key in [(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0), (0, 0, 0, 8)]}
    assert places[0, 0, 0, 0] == places[0, 1, 0, 0] and len(set(places.values())) == 4


@pytest.mark.parametrize("levels", [1, 4, 16])
def test_qsgd_with_feedback_is_a_contraction_and_its_residual_stays_small(levels):
    v = draws(512)
    _, error = mean_of(codec(f"qsgd:{levels}"), v, 200)
    w = min(512 / levels**2, math.sqrt(512) / levels)
    assert error <= (1 - 1 / (1 + w)) * 1.02

    def residual(how):
        state = how.start(512)
        for t in range(60):
            _, state = how.encode(state, v, (0, 0, t))
        return np.linalg.norm(state[1]) / np.linalg.norm(v)

    assert residual(codec(f"qsgd:{levels}")) < 2 * (1 + w)
    if levels == 1:  # WRONG: unbiased rounding to few levels errs by more than the vector, and its residual grows
        assert residual(Codec(QSGD(levels, unbiased=True))) > 1e6


def test_peers_round_independently():
    """Four peers with the same gradient: the mean of what they say has a quarter of the variance."""
    said = []

    class Watched(Codec):
        def encode(self, state, g, key):
            message, state = super().encode(state, g, key)
            said.append(message[0].tobytes())
            return message, state

    problem = replace(quadratic(d=60), gradient=lambda x, rank, t: np.ones(60, np.float32))
    final(compressed(Watched(codec("qsgd:2", feedback=False).rule, False), problem, 4, 3, SGD(0.1)))
    assert len(set(said)) == 12


@given(g=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), ranks=st.integers(1, 300))
def test_fp16_saturates_and_so_do_sums_over_the_ranks(g, ranks):
    rule, g = FP16(ranks), np.array(g, np.float32)
    (half,), _ = rule.encode(None, g, KEY)
    assert half.dtype == np.float16 and np.all(np.isfinite(half))
    total = half
    with np.errstate(over="raise"):
        for _ in range(ranks - 1):
            total = total + half
    assert np.all(np.isfinite(rule.decode((total,), g.size)))
    if ranks == 1:
        assert np.allclose(half.astype(float), np.clip(g, -65504, 65504), rtol=2**-11, atol=2**-25)


# -- PowerSGD --------------------------------------------------------------------------------------------------


def of_rank(r, rows=12, columns=9, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, r)) @ rng.standard_normal((r, columns))).astype(np.float32)


@pytest.mark.parametrize("r, rank", [(1, 1), (1, 3), (2, 2), (2, 4), (0, 2)])
def test_powersgd_of_a_matrix_of_no_higher_rank_is_exact(r, rank):
    """Vogels et al. 2019: one power iteration finds the columns' space, which P P^T M leaves as it is."""
    m = of_rank(r).ravel()
    how = codec(f"powersgd:{rank}", shapes=[(12, 9)])
    state = how.start(108)
    for _ in range(3):
        message, state = how.encode(state, m, KEY)
        assert np.allclose(how.decode(message, 108), m, atol=1e-5)


def test_powersgd_finds_the_best_approximation_by_warm_starts():
    """Power iteration over the steps: the error tends to that of the singular value decomposition."""
    m = of_rank(9)
    best = math.sqrt(np.sum(np.linalg.svd(m, compute_uv=False)[2:] ** 2))
    rule, errors = PowerSGD(2, ((108, 9),)), []
    state = rule.start(108)
    for _ in range(40):
        message, state = rule.encode(state, m.ravel(), KEY)
        errors.append(np.linalg.norm(rule.decode(message, 108) - m.ravel()))
    assert errors[0] > 1.05 * best and errors[-1] == pytest.approx(best, rel=1e-2)
    cold = rule.encode(rule.start(108), m.ravel(), KEY)[0]  # WRONG: without the warm start
    assert np.linalg.norm(rule.decode(cold, 108) - m.ravel()) == errors[0]


def test_powersgd_has_one_first_q_for_all_ranks_of_a_simulation():
    """128 ranks with their own of a large model would fill the memory; nobody may write to it."""
    first, second = (PowerSGD(2, ((108, 9),)).start(108).q for _ in range(2))
    assert first is second and not first.flags.writeable


def test_powersgd_between_ranks_is_that_of_the_sum():
    """P and Q are each summed: four ranks with matrices of rank 1 and one sum of rank 4, in two steps."""
    each = [of_rank(1, seed=i).ravel() for i in range(4)]
    how, names = codec("powersgd:4", shapes=[(12, 9)], feedback=False), [f"peer{i}" for i in range(4)]

    def program(rank):
        state = how.start(108)
        for t in range(2):
            total, state = yield from how.summed(state, each[rank], how.key(rank, t),
                                                 lambda x: ring_allreduce(rank, names, x))
        return total, state[0].q

    found = simulate({name: Node(program(i)) for i, name in enumerate(names)}).values
    assert all(np.allclose(total, sum(each), atol=1e-5) for total, _ in found.values())
    assert all(np.array_equal(q, found["peer0"][1]) for _, q in found.values()), "ranks go on from the same Q"


def test_powersgd_sends_vectors_whole_and_a_column_that_was_not_needed_starts_anew():
    how = codec("powersgd:2", shapes=[(12, 9), (5,)])
    state = how.start(113)
    for r in (1, 2, 0, 2):
        m = np.concatenate([of_rank(r, seed=r).ravel(), np.arange(5, dtype=np.float32)])
        message, state = how.encode(state, m, KEY)
        assert np.allclose(how.decode(message, 113), m, atol=1e-4)


@given(seed=st.integers(0, 99), r=st.integers(0, 4))
def test_orthonormal_columns_are_orthonormal_or_zero(seed, r):
    q = orthonormal(of_rank(r, 9, 4, seed))
    assert np.allclose(q.T @ q, np.diag([1.0] * r + [0.0] * (4 - r)), atol=1e-5)


# -- deep gradient compression ---------------------------------------------------------------------------------


def trajectory(rule, gs):
    """Sums of what is sent."""
    state, sent = rule.start(gs.shape[1]), []
    for t, g in enumerate(gs):
        message, state = rule.encode(state, g, (0, 0, t))
        sent.append(rule.decode(message, g.size))
    return np.array(sent), state


GS = np.random.default_rng(5).integers(-8, 9, (6, 10)).astype(np.float32)


def nesterov(gs):
    """Steps of Nesterov's momentum of 1/2, as of torch.optim.SGD(nesterov=True)."""
    v, out = 0, []
    for g in gs:
        v = 0.5 * v + g
        out.append(g + 0.5 * v)
    return np.array(out)


def test_dgc_with_nesterov_and_everything_sent_is_nesterov_sgd():
    rule = DGC(1.0, masking=False, nesterov=True, momentum=0.5)
    assert np.array_equal(trajectory(rule, GS)[0], nesterov(GS))
    left_out = replace(rule, nesterov=False)  # WRONG
    assert not np.array_equal(trajectory(left_out, GS)[0], nesterov(GS))


@pytest.mark.parametrize("nesterov", [True, False])
def test_dgc_masks_the_momentum_of_what_it_sends(nesterov):
    rule = DGC(0.3, nesterov=nesterov, momentum=0.5)

    def hold(rule):
        message, after = rule.encode(Residual(GS[0], GS[1]), GS[2], KEY)
        assert not np.any(after.u[message[1]]) and not np.any(after.r[message[1]])

    hold(rule)
    with pytest.raises(AssertionError):
        hold(replace(rule, masking=False))  # WRONG


def test_dgc_sends_biases_whole_with_their_momentum():
    """Of them it is momentum SGD, also with masking."""
    rule = codec("dgc:0.1", sgd=SGD(0.1, 0.5), shapes=[(3, 2), (4,)]).rule
    sent, _ = trajectory(rule, GS)
    v, steps = 0, []
    for g in GS[:, 6:]:
        v = 0.5 * v + g
        steps.append(v)
    assert np.array_equal(sent[:, 6:], steps) and np.all(np.count_nonzero(sent[:, :6], axis=1) <= 1)


def test_dgc_chooses_array_by_array():
    """The second array's entries are a thousand times smaller, and one in ten is sent nevertheless."""
    g = np.concatenate([1000 + np.arange(20), np.arange(20)]).astype(np.float32)
    rule = codec("dgc:0.1", shapes=[(4, 5), (5, 4)]).rule
    assert rule.encode(rule.start(40), g, KEY)[0][1].tolist() == [18, 19, 38, 39]


def test_dgc_warms_up_as_the_paper_does():
    """Section 3.4: sparsity 75, 93.75, 98.4375 and 99.6 %, then 99.9 %."""
    how = codec("dgc:0.001,warmup=4", epoch=10)
    sent = [how.nbytes(10**6, t) / 8e6 for t in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert sent == pytest.approx([0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.00390625, 0.001, 0.001], abs=1e-6)


def test_dgc_clips_each_gradient_at_its_share_of_the_norm():
    """Section 3.2: the threshold times n^-1/2 for 1/n of a gradient, so times n^1/2 for the whole one; before momentum
    and weight decay.  Independent gradients whose mean is as long as the threshold stay as they are."""
    how = codec("dgc:0.1,clip=2", sgd=SGD(0.1, 0.9, 0.5), ranks=4)
    g, x = np.float32([3, 4]), np.float32([2, 2])
    assert np.allclose(how.ready(g, x), g / 5 * 4 + 0.5 * x)
    assert np.allclose(how.ready(g / 100, x), g / 100 + 0.5 * x), "what is small stays as it is"
    independent = 4 * np.eye(4, dtype=np.float32)
    assert np.linalg.norm(independent.mean(axis=0)) == 2
    assert all(np.allclose(how.ready(each, 0 * each), each) for each in independent)


# -- parts and texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_parts_of_a_vector_have_codecs_of_their_own(text):
    how, v = codec(text, shapes=SHAPES), draws()
    for at in (slice(0, 144), slice(100, 300), slice(300, D), slice(7, 7)):
        part = how.part(at)
        message, state = part.encode(part.start(v[at].size), v[at], part.key(0, 0))
        assert payload_bytes(message) == part.nbytes(v[at].size) and part.key(0, 0)[3] == at.start
        kept = state[0].r if "dgc" in text else state[1]
        assert np.allclose(part.decode(message, v[at].size) + kept, v[at], atol=1e-5)


@pytest.mark.parametrize("text, says", [
    ("gzip", "expected topk:0.01"), ("topk", "names no ratio"), ("topk:2", r"in \(0, 1\]"), ("topk:nan", r"in \(0, 1\]"),
    ("topk:x", "not understood"), ("onebit:3", "not understood"), ("dgc:0.1,wormup=3", "'wormup=3' is not understood"),
    ("dgc:0.1,momentum=0.9", "not understood"), ("twobit:-1", "positive"), ("qsgd:0", "at least 1"), ("powersgd:0", "at least 1"),
    ("dgc:0.1,masking=perhaps", "not understood"), ("dgc:0.1,clip=0", "expected a norm")])
def test_a_wrong_text_is_refused_in_one_line(text, says):
    with pytest.raises(ValueError, match=says) as caught:
        codec(text)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_dgc_cannot_be_without_its_residual():
    with pytest.raises(ValueError, match="expected feedback, or topk"):
        codec("dgc:0.1", feedback=False)


# -- accuracy --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_topk_with_feedback_is_as_accurate_on_digits_and_without_it_is_not():
    """One entry of a hundred, eight epochs: within a point of dense gradients, and five points below."""
    def accuracy(how):
        def own(problem, workers, steps, sgd):
            if how is None:
                return allreduce.allreduce(problem, workers, steps, sgd)
            return compressed(how, problem, workers, steps, sgd)

        return np.mean([refsgd.run(own, workers=4, epochs=8, seed=seed).accuracy["test"] for seed in range(2)])

    dense, kept, dropped = map(accuracy, (None, codec("topk:0.01"), codec("topk:0.01", feedback=False)))
    assert kept > dense - 0.01 and dropped < dense - 0.05
