"""Every image exactly once an epoch, whoever computes it."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.problems.data import Shards


def visits(shards, epoch):
    """All indices that all workers see in one epoch."""
    steps = range(epoch * shards.steps_per_epoch, (epoch + 1) * shards.steps_per_epoch)
    return np.concatenate([shards.share(worker, step) for step in steps for worker in range(shards.workers)])


numbers = st.tuples(st.integers(1, 200), st.integers(1, 9), st.integers(1, 40), st.integers(0, 5))


@given(numbers, st.booleans(), st.integers(0, 3))
def test_every_image_once_an_epoch(drawn, by_label, epoch):
    images, workers, batch, seed = drawn
    labels = np.arange(images) % 7
    shards = Shards(images, workers, batch, seed, labels, by_label)
    assert sorted(visits(shards, epoch)) == list(range(images))


@given(numbers)
def test_shares_are_even_and_in_rank_order(drawn):
    shards = Shards(*drawn)
    alone = Shards(drawn[0], 1, drawn[1] * drawn[2], drawn[3])
    assert alone.steps_per_epoch == shards.steps_per_epoch
    for step in range(shards.steps_per_epoch):
        shares = [shards.share(worker, step) for worker in range(shards.workers)]
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1 and max(lengths) <= shards.batch
        assert lengths == sorted(lengths, reverse=True)
        assert np.array_equal(np.concatenate(shares), alone.share(0, step))


class Overlapping(Shards):
    """Wrong on purpose: the tail of an epoch is dealt by batch, not evenly, and wraps."""

    def share(self, worker, step):
        share = super().share(worker, step)
        return share if len(share) == self.batch else self._order(step // self.steps_per_epoch)[: self.batch]


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
    shards = Shards(300, 5, 10, 0, labels, by_label=True)
    seen = [set(labels[shards.share(worker, step)]) for worker in range(5)
            for step in range(shards.steps_per_epoch)]
    assert max(map(len, seen)) == 2
    assert shards.share(0, 0).tolist() != shards.share(0, shards.steps_per_epoch).tolist()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1, 1, 0), "images is 0"),
        ((1, 0, 1, 0), "workers is 0"),
        ((1, 1, -2, 0), "batch is -2"),
        ((4, 1, 1, 0, None, True), "labels are none"),
        ((4, 1, 1, 0, [1, 2], True), "one for each of 4 images"),
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
