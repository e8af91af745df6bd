"""What is claimed of compressed gradients: the ledger of each residual, unbiased rounding, and the bytes.

Lin et al., ICLR 2018 (deep gradient compression); Seide et al., Interspeech 2014 (1 bit); Alistarh et al.,
NIPS 2017 (QSGD).
"""

import functools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refsgd.algorithms.codecs import DGC, QSGD, OneBit, Residual, TwoBit, kept, largest
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.sgd import SGD
from refsgd.effects import payload_bytes

#: Multiples of 1/8 up to 64: with momentum 1/2 all sums of a few steps are exact in float64, so ledgers are
#: equalities.
eighths = st.integers(-512, 512).map(lambda k: k / 8)


def gradients(entries, lowest=1, steps=6, **shape):
    """A few gradients of one length, (steps, d)."""
    return st.integers(lowest, 12).flatmap(
        lambda d: st.lists(st.lists(entries, min_size=d, max_size=d), min_size=1, max_size=steps)).map(
            np.array)


reals = st.floats(-1e3, 1e3, width=32)
KEY = (0, 0, 0)


# -- deep gradient compression ---------------------------------------------------------------------------------


def deep_gradient(state, g, momentum, ratio, masking=True, **options):
    return DGC(ratio, masking, momentum=momentum, **options).encode(state, g, KEY)


def said(sent, d):
    """What a message of deep gradient compression adds to the parameters' gradient."""
    return DGC(1.0).decode(sent, d)


def hold_dgc_ledger(compress, gs, momentum, ratio, masking):
    """Run a compressor over gradients (steps, d): sum sent + r = sum u after every step, entries sent are
    zeroed, k are sent."""
    d = gs.shape[1]
    state, sent_so_far, filtered, u = Residual(np.zeros(d),
                                               np.zeros(d)), np.zeros(d), np.zeros(d), np.zeros(d)
    exact = np.zeros(d)  # the momentum-filtered gradient of plain SGD
    for g in gs:
        sent, after = compress(state, g, momentum, ratio, masking)
        u = momentum * state.u + g
        exact = momentum * exact + g
        filtered = filtered + u
        sent_so_far = sent_so_far + said(sent, g.size)
        assert np.array_equal(sent_so_far + after.r,
                              filtered), "what is sent and what is kept sum to all of u"
        assert len(sent[0]) == len(sent[1]) == kept(d, ratio), "k entries"
        assert not np.any(after.r[sent[1]]), "entries sent are forgotten"
        assert np.array_equal(after.u,
                              np.where(np.isin(np.arange(d), sent[1]) & masking, 0,
                                       u)), "masked where sent, else kept"
        if not masking:
            assert np.array_equal(u, exact), "without masking u is momentum's velocity"
        state = after
    return state


@given(gs=gradients(eighths), momentum=st.sampled_from([0.0, 0.5]),
       ratio=st.sampled_from([0.01, 0.25, 0.5, 1.0]), masking=st.booleans())
def test_dgc_what_is_sent_and_what_is_kept_sum_to_what_came_in(gs, momentum, ratio, masking):
    """Lin et al. 2018, section 3.2: u = m u + g, r = r + u, and the residual keeps whatever is not sent;
    masking changes only u."""
    hold_dgc_ledger(deep_gradient, gs, momentum, ratio, masking)


@given(v=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), max_size=12).map(np.array), data=st.data())
def test_dgc_ties_are_broken_by_the_index(v, data):
    """Replicas choose alike: the k largest by (|v|, lowest index), which is what sorting pairs gives."""
    k = data.draw(st.integers(0, v.size))
    best = sorted(range(v.size), key=lambda j: (-abs(v[j]), j))[:k]
    assert largest(v, k).tolist() == sorted(best)


@given(d=st.integers(0, 5000), hundredths=st.integers(1, 100))
def test_dgc_sends_the_ceiling_of_ratio_times_d(d, hundredths):
    """Also where ratio times d is an integer that floating point misses."""
    assert kept(d, hundredths / 100) == -(-d * hundredths // 100)


def trajectory(gs, step, x0=0.0):
    """Parameters after each gradient; `step` turns a gradient into a movement."""
    x, xs = np.full(gs.shape[1], x0), []
    for g in gs:
        x = x - 0.25 * step(g)
        xs.append(x)
    return np.array(xs)


def everything_sent(masking):
    """Deep gradient compression at sparsity 0, as a function of the gradient."""
    state = None

    def step(g):
        nonlocal state
        sent, state = deep_gradient(state or Residual(0 * g, 0 * g), g, 0.5, 1.0, masking)
        return said(sent, g.size)
    return step


@given(gs=gradients(eighths))
@example(gs=np.array([[1.0], [1.0]]))
def test_dgc_with_all_entries_sent_is_momentum_sgd_without_masking_and_sgd_without_momentum_with_it(gs):
    """The trap: masking clears u in every step, and the momentum is gone; implementations go dense at
    ratio 1."""
    x, v, momentum = np.zeros(gs.shape[1]), np.zeros(gs.shape[1]), []
    for t, g in enumerate(gs):
        x, v = SGD(0.25, 0.5).step(x, v, g, t)
        momentum.append(x)
    assert np.array_equal(trajectory(gs, everything_sent(masking=False)), momentum)
    assert np.array_equal(trajectory(gs, everything_sent(masking=True)), trajectory(gs, lambda g: g))
    if len(gs) > 1 and np.any(gs[0]):
        assert not np.array_equal(momentum, trajectory(gs, lambda g: g)), "and the two are not the same"


@given(gs=gradients(eighths, lowest=2), lost=st.integers(0, 5))
def test_dgc_a_lost_message_is_missing_from_the_sum_and_from_the_residual(gs, lost):
    """The sender has zeroed what it sent: the deficit of the receiver's sum is that message, forever."""
    state, arrived, missing, total = Residual(0 * gs[0], 0 * gs[0]), 0 * gs[0], 0 * gs[0], 0 * gs[0]
    for t, g in enumerate(gs):
        total = total + 0.5 * state.u + g
        sent, state = deep_gradient(state, g, 0.5, 0.3)
        arrived = arrived + (t != lost) * said(sent, g.size)
        missing = missing + (t == lost) * said(sent, g.size)
    assert np.array_equal(total - (arrived + state.r), missing)


def clears_before_sending(state, g, momentum, ratio, masking):
    """WRONG: entries are zeroed in place and read afterwards, so zeros are sent."""
    u = momentum * state.u + g
    r = state.r + u
    chosen = largest(r, kept(r.size, ratio))
    r[chosen] = 0
    if masking:
        u[chosen] = 0
    return (r[chosen], chosen, r[:0]), Residual(u, r)


def clears_everything(state, g, momentum, ratio, masking):
    """WRONG: no error feedback; what was not sent is dropped."""
    sent, after = deep_gradient(state, g, momentum, ratio, masking)
    return sent, after._replace(r=0 * after.r)


def keeps_what_it_sent(state, g, momentum, ratio, masking):
    """WRONG: the residual is not cleared, so the same mass is sent again and again."""
    sent, after = deep_gradient(state, g, momentum, ratio, masking)
    return sent, after._replace(r=state.r + momentum * state.u + g)


def masks_always(state, g, momentum, ratio, masking):
    """WRONG: the option is ignored."""
    return deep_gradient(state, g, momentum, ratio, True)


def momentum_after_summing(state, g, momentum, ratio, masking):
    """WRONG: no momentum correction; the gradient is accumulated, and momentum would act on what arrives."""
    return deep_gradient(state._replace(u=0 * state.u), g, 0.0, ratio, masking)


def everything_above_a_threshold(state, g, momentum, ratio, masking):
    """WRONG: the k-th largest as a threshold; with ties more than k entries pass it."""
    r = state.r + momentum * state.u + g
    least = np.sort(np.abs(r))[-kept(r.size, ratio)]
    return deep_gradient(state, g, momentum, np.count_nonzero(np.abs(r) >= least) / r.size, masking)


@pytest.mark.parametrize("wrong, broken", [
    (clears_before_sending, "sum to all"), (clears_everything, "sum to all"),
    (keeps_what_it_sent, "sum to all"),
    (masks_always, "masked where sent"), (momentum_after_summing, "sum to all"),
    (everything_above_a_threshold, "k entries")])
def test_dgc_wrong_variants_are_caught(wrong, broken):
    gs = np.array([[1, 2, 2, -4], [1, 1, 1, 1], [3, 0, 0, 0.5]])
    hold_dgc_ledger(deep_gradient, gs, 0.5, 0.5, False)
    with pytest.raises(AssertionError, match=broken):
        hold_dgc_ledger(wrong, gs, 0.5, 0.5, False)


def test_dgc_counts_eight_bytes_an_entry():
    sent, _ = deep_gradient(Residual(np.zeros(1000, np.float32), np.zeros(1000, np.float32)),
                            np.ones(1000, np.float32), 0.9, 0.01)
    assert payload_bytes(sent) == 8 * 10 and sent[0].dtype == np.float32


# -- quantisation with error feedback --------------------------------------------------------------------------


def with_feedback(rule, e, g):
    """What is said of g, and the new error."""
    codec = Codec(rule)
    message, (_, error) = codec.encode((None, e), g, KEY)
    return codec.decode(message, g.size).astype(g.dtype), error


def one_bit_vector(e, g):
    """1 bit with the vector as one column."""
    return with_feedback(OneBit(), e, g)


def two_bit_vector(e, g):
    return with_feedback(TwoBit(0.5), e, g)


def hold_feedback_ledger(quantise, gs):
    """q + e_new = g + e_old in every step, to the rounding of the two operations; and so sum q + e = sum
    g."""
    e, sent = 0 * gs[0], np.zeros(gs.shape[1])
    for t, g in enumerate(gs):
        q, after = quantise(e, g)
        s = g + e
        # s - q and q + (s - q) are rounded once each, of numbers not above 2 max(|s|, |q|).
        assert np.all(np.abs(q + after - s) <= 2
                      * np.spacing(np.maximum(np.abs(s), np.abs(q)))), "q + e_new = g + e_old"
        sent, e = sent + q, after
        # e is below twice the largest s so far; each step adds its two roundings once more.
        assert np.allclose(sent + e, gs[: t + 1].sum(axis=0, dtype=float), rtol=0,
                           atol=1e-5 * (1 + np.abs(gs).sum())), "sum q + e = sum g"
    return sent, e


@pytest.mark.parametrize("quantise", [one_bit_vector, two_bit_vector])
@given(gs=gradients(reals).map(np.float32))
def test_error_feedback_loses_nothing(quantise, gs):
    """Seide et al. 2014: the error of this gradient's quantisation is added to the next."""
    hold_feedback_ledger(quantise, gs)


@given(gs=gradients(st.integers(-64, 64).map(float)))
def test_two_bit_ledger_is_exact_where_the_arithmetic_is(gs):
    sent, e = hold_feedback_ledger(two_bit_vector, gs)
    assert np.array_equal(sent + e, gs.sum(axis=0))


@given(a=st.lists(st.lists(reals, min_size=3, max_size=3), min_size=1, max_size=9).map(np.float32))
def test_one_bit_has_two_values_per_column_the_means_of_its_sides(a):
    """Seide et al. 2014: reconstruction values per column that minimise the squared error, that is means."""
    rule = OneBit(((a.size, 3),))
    message, _ = rule.encode(None, a.ravel(), KEY)
    q = rule.decode(message, a.size).reshape(a.shape)
    for column, quantised in zip(a.T, q.T):
        assert len(set(quantised.tolist())) <= 2
        for side in (column > 0, column <= 0):
            if side.any():
                assert quantised[side] == pytest.approx(column[side].mean(dtype=float), rel=1e-5, abs=1e-30)
    columns = min(3, a.size)
    assert message[0].nbytes == math.ceil(a.size / 8)
    assert payload_bytes(message) == math.ceil(a.size / 8) + 8 * columns


@given(g=st.lists(reals, max_size=12).map(np.float32), threshold=st.sampled_from([0.25, 1.0, 100.0]))
def test_two_bit_sends_the_threshold_where_it_is_reached(g, threshold):
    message, _ = TwoBit(threshold).encode(None, g, KEY)
    q, e = with_feedback(TwoBit(threshold), 0 * g, g)
    assert np.array_equal(q, np.where(np.abs(g) >= threshold, threshold * np.sign(g), 0))
    assert np.array_equal(e, g - q)
    assert payload_bytes(message) == math.ceil(g.size / 4)


def no_feedback(e, g):
    """WRONG: the error is not kept."""
    return one_bit_vector(0 * g, g)[0], 0 * g


def error_of_the_gradient_alone(e, g):
    """WRONG: the new error forgets the old one: e = g - q instead of g + e - q."""
    q, _ = one_bit_vector(e, g)
    return q, g - q


def feedback_with_the_wrong_sign(e, g):
    """WRONG: e = q - (g + e); errors grow instead of being made good."""
    q, after = one_bit_vector(e, g)
    return q, -after


@pytest.mark.parametrize("wrong", [no_feedback, error_of_the_gradient_alone, feedback_with_the_wrong_sign])
def test_wrong_feedback_is_caught(wrong):
    gs = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    hold_feedback_ledger(one_bit_vector, gs)
    with pytest.raises(AssertionError, match="q \\+ e_new"):
        hold_feedback_ledger(wrong, gs)


@pytest.mark.parametrize("quantise, converges", [(one_bit_vector, True), (no_feedback, False)])
def test_without_feedback_small_entries_are_never_heard(quantise, converges):
    """One entry is a thousand times the others, always: with feedback the mean of what is sent is the
    gradient."""
    g = np.array([-1000, 1, 2, 3], np.float32)
    e, sent = 0 * g, np.zeros(4)
    for _ in range(4000):
        q, e = quantise(e, g)
        sent += q
    assert (np.max(np.abs(sent / 4000 - g)) < 0.5) == converges


# -- QSGD ------------------------------------------------------------------------------------------------------


def qsgd(v, s, key, bucket=512):
    return QSGD(s, bucket, unbiased=True).encode(None, v, key)[0]


def qsgd_decode(message, s, bucket=512):
    return QSGD(s, bucket, unbiased=True).decode(message, message[0].size)


VECTOR = np.random.default_rng(7).standard_normal(40)
DRAWS = 3000


@functools.cache
def moments(compress, s):
    """Mean over draws, and mean squared error relative to |v|^2."""
    draws = np.array([qsgd_decode(compress(VECTOR, s, (0, 0, t), 64), s, 64) for t in range(DRAWS)])
    return draws.mean(axis=0), np.mean(np.sum((draws - VECTOR) ** 2, axis=1)) / np.sum(VECTOR**2)


def hold_unbiased(compress, s):
    """The mean of each entry is its value: to five standard errors.

    One entry's rounding has a standard deviation of at most norm / (2 s): a Bernoulli step of norm / s.  Of
    40 entries at five standard errors a false alarm has probability 40 x 6e-7; the draws are seeded, so that
    it never recurs.
    """
    mean, _ = moments(compress, s)
    tolerance = 5 * np.linalg.norm(VECTOR) / (2 * s) / np.sqrt(DRAWS)
    assert np.max(np.abs(mean - VECTOR)) < tolerance, "biased"


@pytest.mark.parametrize("s", [1, 2, 4, 16])
def test_qsgd_is_unbiased_with_bounded_variance(s):
    """Alistarh et al. 2017, lemma 3.1: E Q = v, and E |Q - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2."""
    hold_unbiased(qsgd, s)
    d = VECTOR.size
    assert moments(qsgd, s)[1] <= min(d / s**2, math.sqrt(d) / s)
    a = s * np.abs(VECTOR) / np.linalg.norm(VECTOR) % 1
    assert moments(qsgd, s)[1] == pytest.approx(np.sum(a * (1 - a)) / s**2,
                                                rel=0.1), "the variance of its Bernoulli draws"


def rounds_to_nearest(v, s, key, bucket):
    """WRONG: deterministic rounding; small entries are always 0."""
    return np.round(s * v / np.linalg.norm(v)).astype(np.int8), qsgd(v, s, key, bucket)[1]


def rounds_by_a_coin(v, s, key, bucket):
    """WRONG: up or down with probability 1/2, wherever between two levels the entry is."""
    up = np.random.default_rng(key).random(v.size) < 0.5
    levels = np.sign(v) * (np.floor(s * np.abs(v) / np.linalg.norm(v)) + up)
    return levels.astype(np.int8), qsgd(v, s, key, bucket)[1]


@pytest.mark.parametrize("wrong", [rounds_to_nearest, rounds_by_a_coin])
def test_wrong_rounding_is_biased(wrong):
    with pytest.raises(AssertionError, match="biased"):
        hold_unbiased(wrong, 4)


@given(v=st.lists(reals, max_size=20).map(np.float32), s=st.sampled_from([1, 4, 127, 1000, 2**20]),
       bucket=st.integers(1, 25),
       key=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
def test_qsgd_levels_are_next_to_the_entry_in_their_bucket_and_a_function_of_the_key(v, s, bucket, key):
    """Section 3.1: xi is one of the two levels around |v_j| / |v|, within [0, 1]; signs are kept; zero
    stays zero."""
    levels, norms = message = qsgd(v, s, key, bucket)
    again = qsgd(v, s, key, bucket)
    assert np.array_equal(levels, again[0]) and np.array_equal(norms, again[1])
    q = qsgd_decode(message, s, bucket)
    assert q.shape == v.shape and q.dtype == np.float32
    for k in range(0, v.size, bucket):
        part, norm = v[k:k + bucket].astype(float), float(norms[k // bucket])
        assert norm == pytest.approx(np.linalg.norm(part), rel=1e-6, abs=1e-44)
        assert np.all(np.abs(q[k:k + bucket] - part) <= norm / s * (1 + 1e-3) + 1e-6 * np.abs(part))
    assert np.all(np.abs(levels.astype(int)) <= s)
    assert np.all(q * v >= 0) and not np.any(q[v == 0])


def test_qsgd_with_very_many_levels_is_the_identity():
    assert np.allclose(qsgd_decode(qsgd(VECTOR, 2**30, KEY), 2**30), VECTOR, atol=1e-8)


def test_the_rest_of_two_bits_keeps_the_precision_of_the_residual():
    """0.1 is another number in the gradient's half precision."""
    _, (_, e) = Codec(TwoBit(0.1)).encode((None, np.zeros(2, np.float32)), np.float16([1, 0]), KEY)
    assert e.dtype == np.float32 and np.array_equal(e, [1 - np.float32(0.1), 0])


def test_qsgd_of_a_bucket_of_zeros_is_zeros_and_divides_by_nothing():
    v = np.float32([0, 0, 0, 0, 1, -2, 2, 0])
    with np.errstate(all="raise"):
        message = qsgd(v, 3, (0, 0, 0), 4)
        assert np.array_equal(message[0], [0, 0, 0, 0, 1, -2, 2, 0]) and np.array_equal(message[1], [0, 3])
        assert np.array_equal(qsgd_decode(message, 3, 4), v)


@pytest.mark.parametrize("s, each", [(1, 1), (127, 1), (128, 2), (40000, 4)])
def test_qsgd_bytes(s, each):
    assert payload_bytes(qsgd(np.ones(1000, np.float32), s, (0, 0, 0), 250)) == 1000 * each + 4 * 4


def test_different_workers_and_steps_round_differently():
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({qsgd(VECTOR, 4, key)[0].tobytes() for key in keys}) == len(keys)
