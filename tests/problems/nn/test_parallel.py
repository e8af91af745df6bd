"""Threads that share a batch, and threads that share a net."""
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.parallel import Parallel
from refsgd.problems.data import Shards
from refsgd.problems.nn import nets
from refsgd.problems.nn.net import Net
from tests.problems.passes import layered, run


@pytest.fixture
def three():
    parallel = Parallel([nets.build("tiny") for _ in range(3)], least=0)
    yield parallel
    parallel.close()


def test_the_gradient_is_that_of_the_whole_batch(three):
    net, random = nets.build("tiny"), np.random.default_rng(0)
    x = net.init(0)
    for b in (64, 7, 2, 1, 0):
        images = random.standard_normal((b, 8, 8, 1)).astype(np.float32)
        labels = random.integers(0, 10, b)
        loss, g = three.gradient(x, images, labels)
        wanted_loss, wanted = net.gradient(x, images, labels)
        assert loss == pytest.approx(wanted_loss)
        assert np.abs(g - wanted).max() <= 2e-6 * np.abs(wanted).max()
        again, h = three.gradient(x, images, labels)
        assert (loss, g.tobytes()) == (again, h.tobytes())


def test_an_error_in_a_thread_reaches_the_caller(three):
    images, labels = np.zeros((6, 8, 8, 1), np.float32), np.zeros(6, int)
    labels[5] = 10
    with pytest.raises(ValueError, match=r"labels lie in 0\.\.10"):
        three.gradient(nets.build("tiny").init(0), images, labels)
    labels[5] = 0
    assert three.gradient(nets.build("tiny").init(0), images, labels)[0] > 0


def test_a_small_batch_is_one_part():
    """With parts too small to pay for their hand-over, the bits are those of one thread."""
    net, random = nets.build("tiny"), np.random.default_rng(0)
    parallel = Parallel([nets.build("tiny"), nets.build("tiny")])
    x = net.init(0)
    for b, alone in ((8, True), (2000, False)):
        images, labels = random.standard_normal((b, 8, 8, 1)).astype(np.float32), random.integers(0, 10, b)
        loss, g = parallel.gradient(x, images, labels)
        wanted_loss, wanted = net.gradient(x, images, labels)
        assert (loss == wanted_loss and np.array_equal(g, wanted)) == alone
    parallel.close()


class OnePlan(Net):
    """A wrong one: all threads compute in the same buffers."""

    @contextmanager
    def _planned(self, keep):
        with super()._planned(keep) as plan:
            pass  # given back at once
        yield plan


def whole(net, x, images, labels):
    return net.gradient(x, images, labels)[1]


def by_layer(net, x, images, labels):
    return run(layered(net, images, labels), x, [part.slice for part in net.parts])


def in_threads(kind, gradient):
    """Whether four threads that use one net get the bits that each gets alone, and the sets of buffers."""
    net, random = nets.build("tiny"), np.random.default_rng(0)
    net.__class__ = kind
    images = random.standard_normal((4, 64, 8, 8, 1)).astype(np.float32)
    labels, x = random.integers(0, 10, (4, 64)), net.init(0)
    alone = [whole(net, x, images[k], labels[k]).tobytes() for k in range(4)]

    def many(k):
        return [gradient(net, x, images[k], labels[k]).tobytes() == alone[k] for _ in range(40)]

    with ThreadPoolExecutor(4) as pool:
        same = [one for found in pool.map(many, range(4)) for one in found]
    return all(same), len(net.idle[True])


@pytest.mark.parametrize("gradient", [whole, by_layer])
def test_threads_may_use_one_net_at_the_same_time(gradient):
    """As the nodes of one host do: each gets the bits that it gets alone."""
    same, buffers = in_threads(Net, gradient)
    assert same and 1 <= buffers <= 4  # no more sets of buffers than threads


def test_threads_that_share_buffers_are_caught():
    """In a process of their own, because a kernel may read what another thread has freed, and then it ends."""
    wrong = "from tests.problems.nn.test_parallel import *; sys.exit(0 if in_threads(OnePlan, whole)[0] else 3)"
    done = subprocess.run([sys.executable, "-c", "import sys; " + wrong], capture_output=True, text=True, timeout=100,
                          cwd=Path(__file__).parents[3])
    assert done.returncode == 3 or done.returncode < 0, done.stderr


@pytest.mark.parametrize("kind", [Net, OnePlan])
def test_passes_may_take_turns_in_one_net(kind):
    net, random = nets.build("tiny"), np.random.default_rng(0)
    net.__class__ = kind
    images = random.standard_normal((2, 16, 8, 8, 1)).astype(np.float32)
    labels, x, parts = random.integers(0, 10, (2, 16)), net.init(0), [part.slice for part in net.parts]
    alone = [by_layer(net, x, images[k], labels[k]).tobytes() for k in range(2)]
    passes = [layered(net, images[k], labels[k]) for k in range(2)]
    for layer, part in enumerate(parts):
        for each in passes:
            each.forward(layer, x[part])
    found = [[each.backward(layer, x[parts[layer]]) for each in passes] for layer in reversed(range(len(parts)))]
    together = [np.concatenate([row[k] for row in found[::-1]]).tobytes() for k in range(2)]
    assert (together == alone) == (kind is Net)


def test_threads_may_ask_for_shares_of_any_epoch():
    """Orders of a few epochs are kept; a worker that needs another one draws it again."""
    shards, alone = Shards(40, 2, 5, seed=0), Shards(40, 2, 5, seed=0)
    steps = [int(t) for t in np.random.default_rng(0).integers(0, 80, 400)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda t: shards.share(t % 2, t), steps))
    assert all(np.array_equal(one, alone.share(t % 2, t)) for one, t in zip(found, steps))
