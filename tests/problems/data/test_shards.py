"""Every image exactly once an epoch, whichever worker computes it."""
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.problems.data import Shards, apportion


def visits(shards, epoch):
    """All indices that all workers see in one epoch."""
    steps = range(epoch * shards.steps_per_epoch, (epoch + 1) * shards.steps_per_epoch)
    return np.concatenate([shards.share(worker, step) for step in steps for worker in range(shards.workers)])


divisions = st.sampled_from(["iid", "by-label", "dirichlet:0.01", "dirichlet:1"])
numbers = st.tuples(st.integers(1, 200), st.integers(1, 9), st.integers(1, 40), st.integers(0, 5))


@given(numbers, divisions, st.integers(0, 3))
def test_every_image_once_an_epoch(drawn, how, epoch):
    images, workers, batch, seed = drawn
    labels = np.arange(images) % 7
    shards = Shards(images, workers, batch, seed, labels, how)
    assert sorted(visits(shards, epoch)) == list(range(images))


@given(numbers)
def test_shares_are_even_and_in_rank_order(drawn):
    shards = Shards(*drawn)
    alone = Shards(drawn[0], 1, drawn[1] * drawn[2], drawn[3])
    assert alone.steps_per_epoch == shards.steps_per_epoch
    for step in range(shards.steps_per_epoch):
        shares = [shards.share(worker, step) for worker in range(shards.workers)]
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1 and max(lengths) <= shards.batches[0]
        assert lengths == sorted(lengths, reverse=True)
        assert np.array_equal(np.concatenate(shares), alone.share(0, step))


batches = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(st.integers(1, 200), batches, divisions, st.integers(0, 3))
def test_unequal_batches_visit_every_image_once_an_epoch(images, each, how, epoch):
    shards = Shards(images, len(each), each, 1, np.arange(images) % 7, how)
    assert sorted(visits(shards, epoch)) == list(range(images))
    assert all(len(shards.share(w, s)) <= b for w, b in enumerate(each) for s in range(shards.steps_per_epoch))


@given(st.integers(1, 200), batches)
def test_unequal_batches_deal_the_sequential_order_in_rank_order(images, each):
    shards, alone = Shards(images, len(each), each, 1), Shards(images, 1, sum(each), 1)
    assert alone.steps_per_epoch == shards.steps_per_epoch
    for step in range(shards.steps_per_epoch):
        shares = [shards.share(worker, step) for worker in range(len(each))]
        assert np.array_equal(np.concatenate(shares), alone.share(0, step))
        if step < shards.steps_per_epoch - 1:
            assert [len(share) for share in shares] == each


def test_the_rest_of_an_epoch_is_dealt_in_proportion_to_the_batches():
    shards = Shards(50, 3, (12, 6, 2), 0)
    assert [[len(shards.share(w, s)) for w in range(3)] for s in range(3)] == [[12, 6, 2], [12, 6, 2], [6, 3, 1]]


def test_shards_by_label_are_as_large_as_batches_in_proportion():
    shards = Shards(300, 2, (20, 10), 0, np.repeat(np.arange(10), 30), how="by-label")
    assert shards.steps_per_epoch == 10
    assert all([len(shards.share(w, s)) for w in (0, 1)] == [20, 10] for s in range(10))


shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=9)


@given(st.integers(0, 500), shares)
def test_largest_remainder_shares_out_all_near_the_quota_and_more_to_larger_weights(total, weights):
    found = apportion(total, weights)
    assert sum(found) == total
    for w, share in zip(weights, found):
        assert abs(share - total * w / sum(weights)) < 1 + 1e-9
        assert all(share >= other for v, other in zip(weights, found) if w > v)


@given(st.integers(1, 50), st.integers(1, 9), st.floats(0.01, 100))
def test_equal_weights_share_equally(each, workers, weight):
    assert apportion(each * workers, [weight] * workers) == [each] * workers


@given(st.integers(0, 500), shares, st.integers(0, 60), st.integers(0, 60))
def test_within_bounds_the_others_share_in_proportion(total, weights, least, more):
    most = least + more
    if not len(weights) * least <= total <= len(weights) * most:
        with pytest.raises(ValueError, match=f"whose sum is {total}"):
            apportion(total, weights, least, most)
        return
    found = apportion(total, weights, least, most)
    assert sum(found) == total and all(least <= share <= most for share in found)
    assert bounded_by(weights, found, least, most)


def bounded_by(weights, found, least, most):
    """Whether some level times each weight, within the bounds and but for rounding, is its share."""
    low = max((share - 1) / w for w, share in zip(weights, found) if share > least or least == most) if any(
        share > least for share in found) else 0.0
    high = min(((share + 1) / w for w, share in zip(weights, found) if share < most), default=math.inf)
    return low <= high + 1e-9 and all(a >= b for v, a in zip(weights, found) for w, b in zip(weights, found) if v > w)


def test_the_check_of_bounds_notices_shares_cut_off_and_given_to_the_first():
    cut = [min(share, 10) for share in apportion(24, [6, 1, 1])]
    assert not bounded_by([6, 1, 1], [10, 3 + 24 - sum(cut), 3], 0, 10)
    assert bounded_by([6, 1, 1], apportion(24, [6, 1, 1], 0, 10), 0, 10)


def rounded(total, weights):
    """Wrong on purpose: shares rounded one by one."""
    return [round(total * w / sum(weights)) for w in weights]


def test_the_check_of_sums_notices_shares_rounded_one_by_one():
    assert sum(rounded(10, [1, 1, 1])) != 10


class Overlapping(Shards):
    """Wrong on purpose: the tail of an epoch is dealt by batch, not evenly, and wraps."""

    def share(self, worker, step):
        share = super().share(worker, step)
        full = self.batches[worker]
        return share if len(share) == full else self._order(step // self.steps_per_epoch)[:full]


def test_the_cover_check_notices_a_wrapped_tail():
    assert sorted(visits(Overlapping(10, 2, 3, 0), 0)) != list(range(10))


def test_a_share_is_a_pure_function_of_its_arguments():
    first, second = Shards(100, 3, 7, seed=1), Shards(100, 3, 7, seed=1)
    backwards = {step: second.share(2, step).tolist() for step in reversed(range(60))}
    assert all(first.share(2, step).tolist() == backwards[step] for step in range(60))
    assert first.share(0, 0).tolist() != Shards(100, 3, 7, seed=2).share(0, 0).tolist()
    assert first.share(0, 0).tolist() != first.share(0, first.steps_per_epoch).tolist()


def test_more_workers_than_images_leave_some_with_nothing():
    shards = Shards(3, 5, 2, seed=0)
    assert [len(shards.share(worker, 0)) for worker in range(5)] == [1, 1, 1, 0, 0]


def test_by_label_gives_each_worker_few_classes():
    labels = np.repeat(np.arange(10), 30)
    shards = Shards(300, 5, 10, 0, labels, how="by-label")
    seen = [set(labels[shards.share(worker, step)]) for worker in range(5)
            for step in range(shards.steps_per_epoch)]
    assert max(map(len, seen)) == 2
    assert shards.share(0, 0).tolist() != shards.share(0, shards.steps_per_epoch).tolist()


def distance(alpha, seed=0):
    """Total variation between a worker's classes and those of the data, mean of the workers."""
    labels = np.repeat(np.arange(10), 100)
    shards = Shards(1000, 5, 200, seed, labels, f"dirichlet:{alpha}")
    counts = [np.bincount(labels[shards.share(w, 0)], minlength=10) / 200 for w in range(5)]
    return np.mean(np.abs(np.array(counts) - 0.1).sum(1)) / 2


def test_classes_of_a_dirichlet_are_the_more_unequal_the_smaller_alpha():
    distances = [np.mean([distance(alpha, seed) for seed in range(20)]) for alpha in (1e-6, 0.5, 5, 1e6)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.7 and distances[-1] < 0.1


@pytest.mark.slow
def test_the_first_worker_of_a_dirichlet_has_the_moments_of_the_distribution():
    """Its classes are not exhausted: the share of one has mean p and variance p (1 - p) / (alpha + 1)."""
    labels = np.repeat([0, 1], [6000, 2000])
    shares = [np.mean(labels[Shards(8000, 40, 200, s, labels, "dirichlet:3").share(0, 0)]) for s in range(400)]
    assert np.mean(shares) == pytest.approx(0.25, abs=4 * np.sqrt(0.1875 / 4 / 400))
    assert np.var(shares) == pytest.approx(0.1875 * (1 / 4 + 1 / 200), rel=0.3)
    assert len({tuple(Shards(80, 4, 5, s, labels[:80], "dirichlet:3").share(0, 0)) for s in range(9)}) == 9


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1, 1, 0), "images is 0"),
        ((1, 0, 1, 0), "workers is 0"),
        ((1, 1, -2, 0), "batch is -2"),
        ((9, 2, (3, 0), 0), "batch is 0"),
        ((9, 2, (3, 1, 1), 0), "batch has 3 numbers, expected one for each of 2 workers"),
        ((4, 1, 1, 0, None, "by-label"), "labels are none"),
        ((4, 1, 1, 0, [1, 2], "by-label"), "one for each of 4 images"),
        ((4, 1, 1, 0, [1] * 4, "dirichlet"), "dirichlet:0.5"),
        ((4, 1, 1, 0, [1] * 4, "dirichlet:0"), "dirichlet:0.5"),
        ((4, 1, 1, 0, [1] * 4, "dirichlet:nan"), "dirichlet:0.5"),
        ((4, 1, 1, 0, [1] * 4, "by-lable"), "expected iid, by-label"),
    ],
)
def test_wrong_use(arguments, message):
    with pytest.raises(ValueError, match=message):
        Shards(*arguments)


def test_wrong_worker_or_step():
    with pytest.raises(ValueError, match="worker is 2, expected 0 to 1"):
        Shards(4, 2, 1, 0).share(2, 0)
    with pytest.raises(ValueError, match="step is -1"):
        Shards(4, 2, 1, 0).share(0, -1)
