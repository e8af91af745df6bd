"""Memory, processes and processors: what a gradient may cost."""
import gc
import multiprocessing
import os
import statistics
import time
import tracemalloc

import numpy as np
import pytest

from refsgd.problems.nn import nets
from refsgd.problems.nn.steps import DefinedStep
from tests.problems.passes import layered


def batch(net, b, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((b, *net.input_shape)).astype(np.float32), random.integers(
        0, net.classes, b)


def peak(task, warm=False):
    """Result of a call, and bytes that it had allocated at the worst moment; ``warm``: beyond what the call
    before it left.

    A call that replaces numbers it keeps (addresses, views) allocates the new ones before it frees the old:
    unless the old ones are traced too, they look like memory that was added.
    """
    gc.collect()
    tracemalloc.start()
    try:
        if warm:
            task()  # and fills Python's own lists of free tuples
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = task()
        return result, tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name",
                         ["tiny", "shallow", "lenet5", "mlp", "resnet18:16", "inception:16", "vgg16:16"])
def test_a_step_allocates_its_gradient_and_nothing_else(name):
    net = nets.build(name)
    x = net.init(0)
    images, labels = batch(net, 8)
    net.gradient(x, images, labels)
    net.loss_and_accuracy(x, images, labels)

    def below(most, task):  # in one of three attempts: Python itself may allocate now and then
        return any(peak(task, warm=True)[1] < most for _ in range(3))

    own = 4_000  # Python's numbers and views
    assert below(x.nbytes + own, lambda: net.gradient(x, images, labels))
    assert below(x.nbytes + own, lambda: net.gradient(x, images[:5], labels[:5]))
    assert below(own, lambda: net.loss_and_accuracy(x, images, labels))


@pytest.mark.parametrize("name", ["tiny", "shallow", "resnet18:16", "vgg16:16"])
def test_a_gradient_by_layer_allocates_the_gradient_and_nothing_else(name):
    net = nets.build(name)
    x = net.init(0)
    images, labels = batch(net, 8)

    def by_layer():
        passed = layered(net, images, labels)
        for k, part in enumerate(net.parts):
            passed.forward(k, x[part.slice])
        return [passed.backward(k, x[net.parts[k].slice]) for k in reversed(range(len(net.parts)))]

    by_layer()
    own = 4_000 + 200 * len(net.parts)  # Python's numbers and views
    assert any(peak(by_layer, warm=True)[1] < x.nbytes + own for _ in range(3))


def test_the_count_notices_an_allocation():
    assert peak(lambda: np.zeros(100_000, np.float32))[1] > 400_000


PYTHON = 100_000  # bytes: the objects of a plan, which are no numbers


def described(net, b):
    """Bytes of parameters, activations and their gradients. Borders and scratch cost memory beyond them,
    relu and pooling that are fused with their convolution save it."""
    return 2 * (4 * net.parameters + b * sum(row.activation_bytes for row in net.leaves))


@pytest.mark.parametrize(
    "name, batches",
    [
        ("tiny", (1, 16, 64, 256)), ("shallow", (1, 16, 64, 256)),
        *(pytest.param(*rest, marks=pytest.mark.slow)
          for rest in (("resnet18:16", (1, 16, 64, 256)), ("inception:16", (1, 16, 64)), ("vgg16:16", (1, 16)),
                       ("resnet18", (1, 16)), ("vgg16", (1,)), ("inception", (1,)))),
    ],
)
def test_memory_is_what_the_description_says(name, batches):
    """From the first parameter to the first gradient."""
    nets.build(name).compile()
    for b in batches:
        net = nets.build(name)
        images, labels = batch(net, b)

        def train(net=net, images=images, labels=labels):
            x = net.init(0)
            return x, net.gradient(x, images, labels)

        assert peak(train)[1] < 1.2 * described(net, b) + PYTHON, b


def test_a_copy_of_the_parameters_more_is_noticed():
    net = nets.build("shallow")
    images, labels = batch(net, 1)

    def train():
        x = net.init(0)
        return x, x.copy(), net.gradient(x, images, labels)

    net.compile()
    net = nets.build("shallow")
    assert peak(train)[1] > 1.2 * described(net, 1) + PYTHON


def test_an_evaluation_keeps_no_activations():
    net = nets.build("vgg16:16")
    x, (images, labels) = net.init(0), batch(net, 256)
    net.compile()
    _, most = peak(lambda: nets.build("vgg16:16").loss_and_accuracy(x, images, labels))
    rows = net.leaves
    kept = sum(row.activation_bytes for row in rows)
    chunk = 64
    assert most < 0.5 * chunk * kept
    assert most < 4 * chunk * max(row.activation_bytes for row in rows) + 4 * net.parameters * 5


def _train(name, seconds, answers):
    net = nets.build(name)
    x, (images, labels) = net.init(0), batch(net, 32)
    net.gradient(x, images, labels)
    count, start, own = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        net.gradient(x, images, labels)
        count += 1
    answers.put((count / (time.perf_counter() - start),
                 (time.process_time() - own) / (time.perf_counter() - start)))


def _rates(n, seconds=0.5):
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_train, args=("shallow", seconds, answers)) for _ in range(n)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(rate for rate, _ in found), min(share for _, share in found)


@pytest.mark.long
def test_two_processes_side_by_side_do_nearly_twice_the_work_of_one():
    """Rounds in which another program took part of a core say nothing, and are left out.

    A wall-clock figure: for a quiet machine whose two processors are two cores, not two threads of one.
    """
    nets.build("shallow").compile()
    ratios = []
    for _ in range(40):
        (one, quiet), (two, also_quiet) = _rates(1), _rates(2)
        if min(quiet, also_quiet) > 0.95:
            ratios.append(two / one)
        if len(ratios) == 5:
            break
    if len(ratios) < 3:
        pytest.skip("other programs keep the processors busy: no round was quiet")
    assert statistics.median(ratios) >= 1.9


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_memory_counts_what_activations_keep_for_the_backward_pass(activation):
    """A relu is part of the product before it and keeps nothing; others keep their values."""
    plain, net = nets.build("mlp:8", (28, 28, 1)), nets.build(f"mlp:8,{activation}", (28, 28, 1))
    for each in (plain, net):  # which sizes the scratch
        each.gradient(each.init(0), np.zeros((16, 28, 28, 1), np.float32), np.zeros(16, int))
    (plan,) = (plan for plans in net.idle.values() for plan in plans)
    kept = sum(step.kept.nbytes for step in plan.steps if isinstance(step, DefinedStep))
    assert kept > 0 and net.held(16) == plain.held(16) + kept
