"""Threads that share a batch."""
import numpy as np
import pytest

from benchmarks.parallel import Parallel
from refsgd.problems.nn import nets


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
