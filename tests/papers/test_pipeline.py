"""What is claimed of pipelines: Huang et al., NeurIPS 2019 (GPipe), and Narayanan et al., SOSP 2019
(PipeDream)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.pipeline import pipeline
from refsgd.algorithms.pipeline.pipeline import Chain, Stage, gpipe, pipedream
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import Deadlock, Simulator, simulate
from refsgd.theory.phenomena import pipeline as formulas
from tests.strategies import machines, seeds
from tests.wrong import changed

WIDTH, ROWS = 3, 12
FIXED = Machine(compute="fixed(1)")


def layer(seed):
    """A fully connected layer with tanh, its parameters a vector: a @ W, then tanh."""
    def forward(x, a):
        return np.tanh(a @ x.reshape(WIDTH, WIDTH))

    def backward(x, a, d):
        inner = d * (1 - forward(x, a) ** 2)
        return (a.T @ inner).ravel() / len(a), inner @ x.reshape(WIDTH, WIDTH).T

    return Stage(np.random.default_rng(seed).standard_normal(WIDTH * WIDTH), forward, backward)


def mlp(depth, micro=1, stages=layer):
    """A net of tanh layers with squared error; each step has ROWS fresh rows, dealt to micro-batches."""
    def rows(t, j):
        return np.random.default_rng([9, t]).standard_normal((ROWS, WIDTH))[
            ROWS * j // micro:ROWS * (j + 1) // micro]

    return Chain([stages(k) for k in range(depth)], rows, lambda out, t, j: out - np.sin(3 * rows(t, j)))


def gradients(chain, xs, t, j=0):
    """Plain backpropagation through the whole chain at parameters xs: what one process computes."""
    activations = [chain.inputs(t, j)]
    for stage, x in zip(chain.stages, xs):
        activations.append(stage.forward(x, activations[-1]))
    d, found = chain.loss_gradient(activations[-1], t, j), []
    for stage, x, a in reversed(list(zip(chain.stages, xs, activations))):
        g, d = stage.backward(x, a, d)
        found.append(g)
    return found[::-1]


def sequential(chain, steps, sgd, versions=lambda t, k: t):
    """SGD in one process, where step t takes the gradient at version `versions(t, k)` of stage k; all
    versions."""
    history = [[stage.x0 for stage in chain.stages]]
    velocity = [sgd.start(x) for x in history[0]]
    for t in range(steps):
        gs = gradients(chain, [history[versions(t, k)][k] for k in range(len(chain.stages))], t)
        pairs = [sgd.step(x, v, g, t) for x, v, g in zip(history[-1], velocity, gs)]
        history.append([x for x, _ in pairs])
        velocity = [v for _, v in pairs]
    return history


def parameters(run):
    """Of the stages in order, whichever ended first."""
    return [run.values[f"stage{k}"] for k in range(len(run.values))]


def test_the_layer_has_the_gradient_of_its_forward_pass():
    chain = mlp(2)
    xs = [stage.x0 for stage in chain.stages]

    def loss(x):
        out = chain.stages[1].forward(xs[1], chain.stages[0].forward(x, chain.inputs(0, 0)))
        return 0.5 * np.sum((out - np.sin(3 * chain.inputs(0, 0))) ** 2) / ROWS

    e = 1e-6 * np.eye(xs[0].size)
    numeric = np.array([(loss(xs[0] + step) - loss(xs[0] - step)) / 2e-6 for step in e])
    assert np.allclose(gradients(chain, xs, 0)[0], numeric, atol=1e-8)


# -- GPipe -----------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, depth=st.integers(1, 4), micro=st.integers(1, 5),
       momentum=st.sampled_from([0.0, 0.9]))
def test_gpipe_takes_the_gradient_of_the_whole_batch(machine, seed, depth, micro, momentum):
    """Section 2.2: one synchronous update with the gradients of all micro-batches (also of unequal size):
    any K, any m."""
    sgd = SGD(0.5, momentum)
    run = simulate(gpipe(mlp(depth, micro), 3, sgd, micro=micro), machine, seed)
    whole = sequential(mlp(depth), 3, sgd)[-1]
    assert all(np.allclose(a, b, rtol=0, atol=1e-6)
               for a, b in zip(parameters(run), whole)), "weights of the mean are float32"
    if micro == 1:
        assert all(np.array_equal(a, b)
                   for a, b in zip(parameters(run), whole)), "model parallelism: the bits of one process"


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gpipe_idles_k_minus_1_of_m_plus_k_minus_1(depth, micro):
    """Section 2.3: T = (m + K - 1)(t_f + t_b) a step; a stage works 2 m of these slots."""
    steps = 3
    trace = simulate(gpipe(mlp(depth, micro), steps, SGD(0.1), micro=micro), FIXED).trace
    assert trace.seconds == 2 * (micro + depth - 1) * steps
    assert trace.idle_ratio == pytest.approx(formulas.bubble(micro, depth).value, rel=1e-12, abs=1e-12)


def hold_last_first(deploy, micro=4, depth=3):
    """Section 2.3: every stage runs its backward passes in the reverse order of its forward passes; the
    memory of the last is needed the shortest."""
    seen = {}

    def watched(k):
        def forward(x, a):
            seen.setdefault(k, []).append(("forward", float(a[0, 0])))
            return a

        def backward(x, a, d):
            seen[k].append(("backward", float(a[0, 0])))
            return np.zeros(1), d

        return Stage(np.zeros(1), forward, backward)

    simulate(
        deploy(Chain([watched(k) for k in range(depth)], lambda t, j: np.full((1, 1), 1.0 * j),
                     lambda out, t, j: out), 2, SGD(0.1), micro=micro))
    order = [("forward", j) for j in range(micro)] + [("backward", j) for j in reversed(range(micro))]
    assert all(calls == 2 * order for calls in seen.values()) and len(seen) == depth


def test_gpipe_goes_back_last_first():
    hold_last_first(gpipe)


def test_going_back_in_the_order_of_the_forward_passes_is_caught():
    with pytest.raises(AssertionError):
        hold_last_first(changed(pipeline, "for j in reversed(range(micro)):", "for j in range(micro):").gpipe)


@pytest.mark.parametrize("deploy", [gpipe, pipedream])
def test_a_stage_marks_its_updates_with_what_it_has_become(deploy):
    run = simulate(deploy(mlp(3, 4 if deploy is gpipe else 1), 5, SGD(0.1)), FIXED)
    for k in range(3):
        marks = [e.values for e in run.trace.marks("update") if e.node == f"stage{k}"]
        assert [(m["part"], m["version"], m["t"]) for m in marks] == [(k, t, t) for t in range(5)]
        assert np.array_equal(marks[-1]["x"],
                              run.values[f"stage{k}"]) and not np.array_equal(marks[-2]["x"], marks[-1]["x"])


def test_without_micro_batches_model_parallelism_is_no_faster_than_one_node():
    assert simulate(gpipe(mlp(4), 2, SGD(0.1), micro=1), FIXED).trace.seconds == 2 * 2 * 4


@pytest.mark.parametrize("micro", [1, 3])
def test_each_cut_carries_its_activations_there_and_their_gradients_back(micro):
    trace = simulate(gpipe(mlp(4, micro), 2, SGD(0.1), micro=micro), FIXED).trace
    assert sum(trace.bytes_sent.values()) == 2 * 2 * 3 * (8 * ROWS * WIDTH)
    assert trace.messages == 2 * 2 * 3 * micro


# -- PipeDream -------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, depth=st.integers(1, 4), batches=st.integers(0, 9),
       momentum=st.sampled_from([0.0, 0.9]),
       vertical=st.booleans())
def test_pipedream_applies_gradients_of_versions_delayed_by_k_minus_1_minus_k(
    machine, seed, depth, batches, momentum, vertical):
    """Section 3.3: w(t+1) = w(t) - lr grad f(w_0(t-K+1), ..., w_K-1(t)), bit for bit; with vertical sync
    all at t-K+1."""
    sgd = SGD(0.5, momentum)
    run = simulate(pipedream(mlp(depth), batches, sgd, vertical=vertical), machine, seed)
    expected = sequential(mlp(depth), batches, sgd,
                          lambda t, k: max(0, t - (depth - 1 - k * (not vertical))))[-1]
    assert all(np.array_equal(a, b) for a, b in zip(parameters(run), expected))
    for e in run.trace.marks("update"):
        (_, read), = e.values["reads"]
        delay = depth - 1 - e.values["part"] * (not vertical)
        assert e.values["version"] - read == min(delay, e.values["version"])


def hold_one_version_and_few_in_flight(depth, batches=8, machine=FIXED, vertical=False):
    """Watch every stage's functions: a batch's backward pass uses the x of its forward pass; at most K -
    k are in flight."""
    most, seen = {}, {}

    def watched(k):
        stage = layer(k)

        def forward(x, a):
            seen[k, a.tobytes()] = x.tobytes()
            most[k] = max(most.get(k, 0), sum(stage_of == k for stage_of, _ in seen))
            return stage.forward(x, a)

        def backward(x, a, d):
            assert seen.pop((k, a.tobytes())) == x.tobytes(), "forward and backward use one version"
            return stage.backward(x, a, d)

        return Stage(stage.x0, forward, backward)

    run = simulate(pipedream(mlp(depth, stages=watched), batches, SGD(0.5), vertical=vertical), machine)
    assert most == {k: min(depth - k, batches) for k in range(depth)}, "in flight"
    return run


@given(machine=machines, depth=st.integers(1, 4), vertical=st.booleans())
def test_pipedream_uses_one_version_per_stage_and_batch_with_at_most_k_minus_k_in_flight(
    machine, depth, vertical):
    """Section 3.3, weight stashing; section 3.2, one forward and one backward in turn."""
    hold_one_version_and_few_in_flight(depth, machine=machine, vertical=vertical)


@pytest.mark.parametrize("vertical", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_stage_keeps_the_versions_that_batches_in_flight_need(depth, vertical):
    """K - k at stage k, none but the newest at the last one; with vertical sync K everywhere."""
    deployment, most = pipedream(mlp(depth), 8, SGD(0.5), vertical=vertical), {}
    for _ in Simulator(deployment):
        for name, node in deployment.items():
            if node.main.gi_frame is not None:
                most[name] = max(most.get(name, 0), len(node.main.gi_frame.f_locals.get("stash", ())))
    assert most == {f"stage{k}": depth - k * (not vertical) for k in range(depth)}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_pipedream_works_at_the_rate_of_one_stage(depth):
    """One batch per t_f + t_b in steady state; filling and draining happen once, not once a batch."""
    batches = 12
    trace = simulate(pipedream(mlp(depth), batches, SGD(0.1)), FIXED).trace
    assert trace.seconds == 2 * batches + 2 * (depth - 1)


def test_pipedream_of_one_stage_is_sgd():
    run = simulate(pipedream(mlp(1), 6, SGD(0.5, 0.9)))
    assert np.array_equal(run.values["stage0"], sequential(mlp(1), 6, SGD(0.5, 0.9))[-1][0])


def test_every_schedule_of_two_stages_ends_with_the_same_bits():
    for deploy in (lambda: pipedream(mlp(2), 3, SGD(0.5)), lambda: gpipe(mlp(2, 2), 1, SGD(0.5), micro=2)):
        finals = set()
        report = explore(deploy, lambda run: finals.add(b"".join(x.tobytes() for x in parameters(run))),
                         max_runs=3000)
        assert report.complete and len(finals) == 1


@pytest.mark.parametrize("deploy",
                         [lambda: pipedream(mlp(3), 4, SGD(0.5)),
                          lambda: gpipe(mlp(3, 4), 2, SGD(0.5), micro=4)])
def test_processes_agree_with_the_simulator_bit_for_bit(deploy):
    real = processes.run(deploy, Machine(compute="fixed(0.003)"), 0, transport="shm")
    assert all(np.array_equal(a, b) for a, b in zip(parameters(real), parameters(simulate(deploy()))))


# -- wrong programs --------------------------------------------------------------------------------------------


def test_without_stashing_the_mixed_versions_are_caught(monkeypatch):
    """WRONG: the backward pass uses the newest parameters; it runs, and it is the gradient of no function."""
    hold_one_version_and_few_in_flight(3)
    monkeypatch.setattr(pipeline, "pipedream_stage",
                        changed(pipeline, "backward(k, chain, stash[read], a, d)",
                                "backward(k, chain, x, a, d)").pipedream_stage)
    with pytest.raises(AssertionError, match="one version"):
        hold_one_version_and_few_in_flight(3)
    run = simulate(pipedream(mlp(3), 6, SGD(0.5)))
    expected = sequential(mlp(3), 6, SGD(0.5), lambda t, k: max(0, t - (2 - k)))[-1]
    assert not np.allclose(run.values["stage0"], expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("right, wrong", [
    # WRONG: every stage fills the pipe alike; the last ones hold K batches too
    ("min(b + depth - k, batches)", "min(b + depth, batches)"),
    ("min(b + depth - k, batches)", "min(b + 1, batches)"),  # WRONG: one batch at a time: no pipeline
])
def test_too_many_or_too_few_batches_in_flight_are_caught(monkeypatch, right, wrong):
    monkeypatch.setattr(pipeline, "pipedream_stage", changed(pipeline, right, wrong).pipedream_stage)
    # KeyError: the version of a batch too many is stashed no more
    with pytest.raises((AssertionError, Deadlock, KeyError)):
        hold_one_version_and_few_in_flight(3)


def test_a_mean_of_means_is_caught_where_micro_batches_are_unequal(monkeypatch):
    """WRONG: 12 rows in 5 micro-batches of 2 or 3, and each counts the same."""
    monkeypatch.setattr(pipeline, "gpipe_stage",
                        changed(pipeline, "[len(a) for a, _ in kept]", "[1] * micro").gpipe_stage)
    run = simulate(gpipe(mlp(2, 5), 3, SGD(0.5), micro=5))
    assert not np.allclose(run.values["stage0"], sequential(mlp(2), 3, SGD(0.5))[-1][0], rtol=0, atol=1e-6)


def test_a_wrong_number_of_micro_batches_is_named():
    with pytest.raises(ValueError, match="micro 0; expected at least 1"):
        gpipe(mlp(2), 1, SGD(0.1), micro=0)


@pytest.mark.parametrize("deploy, each_way",
                         [(lambda: gpipe(mlp(3, 4), 5, SGD(0.1), micro=4), 4 * 5),
                          (lambda: pipedream(mlp(3), 5, SGD(0.1)), 5)])
def test_a_message_goes_each_way_per_cut_and_micro_batch_or_batch(deploy, each_way):
    trace = simulate(deploy()).trace
    assert trace.messages == 2 * 2 * each_way
    assert "messages: one each way per cut and micro-batch (GPipe) or batch" in " ".join(
        pipeline.__doc__.split())
