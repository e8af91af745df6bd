"""What is claimed of pipelines: Huang et al., NeurIPS 2019 (GPipe), and Narayanan et al., SOSP 2019
(PipeDream)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsgd.algorithms.allreduce.allreduce import allreduce
from refsgd.algorithms.baselines.sequential import sequential as alone
from refsgd.algorithms.pipeline import gpipe as gpipe_module
from refsgd.algorithms.pipeline import pipedream as pipedream_module
from refsgd.algorithms.pipeline.gpipe import gpipe
from refsgd.algorithms.pipeline.pipedream import pipedream
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives import ALLREDUCE
from refsgd.experiment.result import final_parameters
from refsgd.experiment.result import replicas as replicas_of
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.problems.chain import Block, Chain
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import Simulator, simulate
from refsgd.theory.phenomena import pipeline as formulas
from tests.strategies import machines, seeds
from tests.wrong import changed, wrong_deployment

WIDTH, ROWS = 3, 12
SIZE = WIDTH * WIDTH
FIXED = Machine(compute="fixed(1)")
PASSES = ("fill-drain", "1f1b")


def forward(x, a, rows=None):
    """A fully connected layer with tanh, its parameters a vector: a @ W, then tanh."""
    return np.tanh(a @ x.reshape(WIDTH, WIDTH)), a


def backward(x, a, d):
    inner = d * (1 - forward(x, a)[0] ** 2)
    return (a.T @ inner).ravel(), inner @ x.reshape(WIDTH, WIDTH).T


def mlp(depth, passes=lambda k: (forward, backward)):
    """A net of tanh layers with squared error; each step has ROWS fresh rows for each replica."""
    def inputs(rank, t, rows=slice(None)):
        return np.random.default_rng([9, t, rank]).standard_normal((ROWS, WIDTH))[rows]

    def loss_gradient(out, rows):
        return (out - np.sin(3 * inputs(rows.rank, rows.t, slice(rows.first, rows.end)))) / ROWS

    blocks = [Block(f"tanh{k}", slice(k * SIZE, (k + 1) * SIZE), 1.0, 8 * WIDTH, *passes(k))
              for k in range(depth)]
    x0 = np.concatenate([np.random.default_rng(k).standard_normal(SIZE) for k in range(depth)])
    chain = Chain(blocks, lambda rows: inputs(rows.rank, rows.t, slice(rows.first, rows.end)), loss_gradient)

    def gradient(x, rank, t):
        """Plain backpropagation through the whole chain: what one process computes."""
        activations = [inputs(rank, t)]
        xs = x.reshape(depth, SIZE)
        for each in xs:
            activations.append(forward(each, activations[-1])[0])
        d, found = (activations[-1] - np.sin(3 * inputs(rank, t))) / ROWS, []
        for each, a in reversed(list(zip(xs, activations))):
            g, d = backward(each, a, d)
            found.append(g)
        return np.concatenate(found[::-1])

    def loss(x):
        out = inputs(0, 0)
        for each in x.reshape(depth, SIZE):
            out = forward(each, out)[0]
        return 0.5 * np.sum((out - np.sin(3 * inputs(0, 0))) ** 2) / ROWS

    return Problem(x0, gradient, loss, images=lambda rank, t: ROWS, chain=chain)


def sequential(problem, depth, steps, sgd, versions=lambda t, k: t):
    """SGD in one process, where step t takes the gradient at version `versions(t, k)` of stage k; the last
    version."""
    history, v = [problem.x0], sgd.start(problem.x0)
    for t in range(steps):
        x = np.concatenate([history[versions(t, k)][k * SIZE:(k + 1) * SIZE] for k in range(depth)])
        x, v = sgd.step(history[-1], v, problem.gradient(x, 0, t), t)
        history.append(x)
    return history[-1]


def parameters(run):
    """Of the stages in order, whichever ended first."""
    return np.concatenate([run.values[f"stage{k}"].x for k in range(len(run.values))])


def test_the_layers_have_the_gradient_of_their_forward_pass():
    problem = mlp(2)
    e = 1e-6 * np.eye(problem.x0.size)
    numeric = np.array([(problem.loss(problem.x0 + step) - problem.loss(problem.x0 - step)) / 2e-6 for step in e])
    assert np.allclose(problem.gradient(problem.x0, 0, 0), numeric, atol=1e-8)


# -- GPipe -----------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, depth=st.integers(1, 4), micro=st.integers(1, 5),
       momentum=st.sampled_from([0.0, 0.9]), passes=st.sampled_from(PASSES), chunks=st.integers(1, 3))
def test_gpipe_takes_the_gradient_of_the_whole_batch(machine, seed, depth, micro, momentum, passes, chunks):
    """GPipe has the gradient of the full batch, to rounding: one synchronous update with the
    gradients of all micro-batches (also of unequal size), any K, any m, any order of passes, any chunks."""
    chunks = chunks if depth > 1 else 1
    sgd, problem = SGD(0.5, momentum), mlp(depth * chunks)
    found = final_parameters(simulate(gpipe(problem, depth, 3, sgd, micro=micro, passes=passes, chunks=chunks),
                                      machine, seed))
    whole = sequential(problem, depth * chunks, 3, sgd)
    assert np.allclose(found, whole, rtol=0, atol=1e-12)
    if micro == 1:
        assert np.array_equal(found, whole), "model parallelism: the bits of one process"


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("micro", [1, 2, 4, 12])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gpipe_idles_k_minus_1_of_m_plus_k_minus_1(depth, micro, passes):
    """The bubble is (K-1)/(m+K-1) to the last digit for equal stages; a step takes
    (m + K - 1)(t_f + t_b), whichever way the passes are ordered."""
    steps = 3
    trace = simulate(gpipe(mlp(depth), depth, steps, SGD(0.1), micro=micro, passes=passes), FIXED).trace
    assert trace.seconds == pytest.approx((micro + depth - 1) * steps / (depth * micro), rel=1e-12)
    assert trace.idle_ratio == pytest.approx(formulas.bubble(micro, depth).value, rel=1e-12, abs=1e-12)


def hold_the_bubble_of_chunks(deploy, depth, micro, chunks, passes):
    problem = mlp(depth * chunks)
    trace = simulate(deploy(problem, depth, 2, SGD(0.1), micro=micro, chunks=chunks, passes=passes), FIXED).trace
    assert trace.idle_ratio == pytest.approx(formulas.bubble(micro, depth, chunks).value, rel=1e-12)
    assert trace.messages == 2 * 2 * micro * (depth * chunks - 1)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(("depth", "micro"), [(2, 2), (2, 6), (3, 3), (3, 12), (4, 4)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_chunks_divide_the_bubble(depth, micro, chunks, passes):
    """Megatron-LM, section 2.2: (K - 1)/(v m) of the time of the passes; for more than v times as many messages."""
    hold_the_bubble_of_chunks(gpipe, depth, micro, chunks, passes)


def test_a_wrong_order_of_chunks_is_caught():
    """WRONG: each micro-batch by itself through all chunks."""
    wrong = changed(gpipe_module, "range(m * i // many, m * (i + 1) // many) for i in range(many)",
                    "range(i, i + 1) for i in range(m)").gpipe
    with pytest.raises((AssertionError, Deadlock)):
        hold_the_bubble_of_chunks(wrong, 3, 6, 2, "fill-drain")


def in_flight(deploy, depth, micro, chunks=1, **options):
    """The most micro-batches of which each node keeps activations."""
    kept, most = {}, {}

    def watched(k):
        def forward(x, a, rows):
            mine = kept.setdefault(k % depth, set())
            mine.add((k, rows.first))
            most[k % depth] = max(most.get(k % depth, 0), len(mine))
            return a, rows.first

        def backward(x, first, d):
            kept[k % depth].remove((k, first))
            return np.zeros(SIZE), d

        return forward, backward

    simulate(deploy(mlp(depth * chunks, watched), depth, 2, SGD(0.1), micro=micro, chunks=chunks, **options))
    return [most[k] for k in range(depth)]


@pytest.mark.parametrize(("depth", "micro"), [(1, 4), (3, 2), (3, 6), (4, 12)])
def test_one_forward_one_backward_keeps_activations_of_k_minus_k_micro_batches(depth, micro):
    """Megatron-LM, section 2.2.1: of at most K - k in place of all m; its chunks keep a few more of less."""
    assert in_flight(gpipe, depth, micro) == [micro] * depth
    assert in_flight(gpipe, depth, micro, passes="1f1b") == [min(depth - k, micro) for k in range(depth)]
    if micro % depth == 0 and depth > 1:
        found = in_flight(gpipe, depth, micro, 2, passes="1f1b")
        assert found == [min(2 * (depth - k) - 1 + depth, 2 * micro) for k in range(depth)]


def test_too_many_micro_batches_in_flight_are_caught():
    """WRONG: one more than the stages behind it need; with chunks, of too few, which hide no latency."""
    wrong = changed(gpipe_module, "depth - k if chunks == 1", "depth - k + 1 if chunks == 1").gpipe
    assert in_flight(wrong, 3, 6, passes="1f1b") != [3, 2, 1]
    wrong = changed(gpipe_module, "2 * (depth - k) - 1 +", "depth - k +").gpipe
    assert in_flight(wrong, 3, 6, 2, passes="1f1b") != [8, 6, 4] == in_flight(gpipe, 3, 6, 2, passes="1f1b")


def test_both_orders_of_passes_add_the_same_gradients():
    """Two of them give the same bits in either order, and so do any whose sums are exact."""
    for problem, micro in ((mlp(3), 2), (integer_gradients(d=8, workers=1, batches=[8]), 4)):
        runs = [simulate(gpipe(problem, 3, 3, SGD(0.5), micro=micro, passes=passes)) for passes in PASSES]
        assert np.array_equal(*map(final_parameters, runs))


def hold_last_first(deploy, micro=4, depth=3):
    """Section 2.3: every stage runs its backward passes in the reverse order of its forward passes; the
    memory of the last is needed the shortest."""
    seen = {}

    def watched(k):
        def forward(x, a, rows):
            seen.setdefault(k, []).append(("forward", rows.first))
            return a, rows.first

        def backward(x, first, d):
            seen[k].append(("backward", first))
            return np.zeros(SIZE), d

        return forward, backward

    simulate(deploy(mlp(depth, watched), depth, 2, SGD(0.1), micro=micro))
    firsts = [ROWS * j // micro for j in range(micro)]
    order = [("forward", j) for j in firsts] + [("backward", j) for j in reversed(firsts)]
    assert all(calls == 2 * order for calls in seen.values()) and len(seen) == depth


def test_gpipe_goes_back_last_first():
    hold_last_first(gpipe)


def test_going_back_in_the_order_of_the_forward_passes_is_caught():
    with pytest.raises(AssertionError):
        hold_last_first(changed(gpipe_module, "there[::-1]", "there").gpipe)


@pytest.mark.parametrize("deploy", [gpipe, pipedream])
def test_a_stage_marks_its_updates_with_what_it_has_become(deploy):
    run = simulate(deploy(mlp(3), 3, 5, SGD(0.1)), FIXED)
    for k in range(3):
        marks = [e.values for e in run.trace.marks("update") if e.node == f"stage{k}"]
        assert [(m["part"], m["version"], m["t"]) for m in marks] == [(k, t, t) for t in range(5)]
        assert np.array_equal(marks[-1]["x"],
                              run.values[f"stage{k}"].x) and not np.array_equal(marks[-2]["x"], marks[-1]["x"])


def test_without_micro_batches_model_parallelism_is_no_faster_than_one_node():
    """Model parallelism alone gains nothing (Jia et al. 2020, section II-B)."""
    for depth in (2, 4):
        split = simulate(gpipe(mlp(depth), depth, 2, SGD(0.1), micro=1), FIXED).trace
        one = simulate(alone(mlp(depth), 1, 2, SGD(0.1)), FIXED).trace
        assert split.seconds == pytest.approx(one.seconds, rel=1e-12)
        assert simulate(gpipe(mlp(depth), depth, 2, SGD(0.1), micro=4), FIXED).trace.seconds < one.seconds


@pytest.mark.parametrize("micro", [1, 3])
def test_each_cut_carries_its_activations_there_and_their_gradients_back(micro):
    """The bytes are twice the sum of the cuts."""
    trace = simulate(gpipe(mlp(4), 4, 2, SGD(0.1), micro=micro), FIXED).trace
    assert sum(trace.bytes_sent.values()) == 2 * 2 * 3 * (8 * ROWS * WIDTH)
    assert trace.messages == 2 * 2 * 3 * micro


# -- several replicas ------------------------------------------------------------------------------------------


def hold_the_mean_of_all_replicas(deploy, depth, replicas, micro, collective="ring"):
    """Each stage's update is that of sequential SGD with the batches of all replicas together."""
    problem, sgd = mlp(depth), SGD(0.5, 0.9)

    def mean(x, rank, t):
        return sum(problem.gradient(x, r, t) for r in range(replicas)) / replicas

    whole = sequential(replace(problem, gradient=mean), depth, 3, sgd)
    found = replicas_of(simulate(deploy(problem, depth * replicas, 3, sgd, stages=depth, micro=micro,
                                        collective=collective), Machine(compute="exponential(1)", latency=0.1)))[1]
    assert len(found) == replicas
    assert all(np.allclose(x, whole, rtol=0, atol=1e-6) for x in found)
    assert all(np.array_equal(x, found[0]) for x in found), "the same bits on all replicas"


@given(depth=st.integers(1, 3), replicas=st.integers(1, 4), micro=st.integers(1, 4),
       collective=st.sampled_from(list(ALLREDUCE)))
@settings(max_examples=15)
def test_replicas_of_stages_take_the_step_of_all_their_batches(depth, replicas, micro, collective):
    """Data and model parallel: stages of one depth reduce among themselves."""
    hold_the_mean_of_all_replicas(gpipe, depth, replicas, micro, collective)


@pytest.mark.parametrize(("right", "wrong"), [
    ("if len(self.group) > 1:", "if len(self.group) < 1:"),  # WRONG: each replica for itself
    ("[each[k] for each in names]", "own"),  # WRONG: the mean over the stages of a replica
    ("micro_batches(me.rank, t, micro)", "micro_batches(0, t, micro)"),  # WRONG: all replicas take one batch
])
def test_replicas_that_do_not_average_are_caught(right, wrong):
    with pytest.raises((AssertionError, ValueError, Deadlock)):
        hold_the_mean_of_all_replicas(wrong_deployment(gpipe, right, wrong), 2, 2, 2)


@pytest.mark.parametrize("collective", ["ring", "tree", "halving-doubling"])
def test_replicas_of_one_stage_have_the_bits_of_all_reduce(collective):
    """With unequal batches too."""
    problem = quadratic(d=37, workers=4, noise=1.0, batches=[3, 1, 5, 2])
    peers = simulate(allreduce(problem, 4, 5, SGD(0.1, 0.5), collective=collective))
    for deploy, more in ((gpipe, {"micro": 1}), (pipedream, {})):
        run = simulate(deploy(problem, 4, 5, SGD(0.1, 0.5), stages=1, collective=collective, **more))
        assert np.array_equal(final_parameters(run), final_parameters(peers))
        assert run.trace.messages == peers.trace.messages and run.trace.seconds == peers.trace.seconds


def test_replicas_of_pipedream_have_the_delays_of_one():
    """The mean of the replicas' gradients at versions that are K - 1 - k updates old."""
    problem, sgd = mlp(3), SGD(0.5, 0.9)
    whole = replace(problem, gradient=lambda x, rank, t: sum(problem.gradient(x, r, t) for r in range(2)) / 2)
    found = final_parameters(simulate(pipedream(problem, 6, 6, sgd, stages=3)))
    assert np.allclose(found, sequential(whole, 3, 6, sgd, lambda t, k: max(0, t - (2 - k))), rtol=0, atol=1e-6)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_a_stage_sends_its_part_round_the_ring_of_its_replicas(replicas):
    """2 (n - 1)/n of a stage's parameters out of each node, besides what crosses the cuts."""
    trace = simulate(gpipe(mlp(4), 4 * replicas, 2, SGD(0.1), stages=4), FIXED).trace
    crossing, summed = 2 * 3 * (8 * ROWS * WIDTH) * replicas, 4 * 2 * (replicas - 1) * (8 * SIZE)
    assert sum(trace.bytes_sent.values()) == 2 * (crossing + summed)


# -- PipeDream -------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, depth=st.integers(1, 4), batches=st.integers(0, 9),
       momentum=st.sampled_from([0.0, 0.9]),
       vertical=st.booleans())
def test_pipedream_applies_gradients_of_versions_delayed_by_k_minus_1_minus_k(
    machine, seed, depth, batches, momentum, vertical):
    """Stage k of PipeDream delays by exactly K-1-k: w(t+1) = w(t) - lr grad
    f(w_0(t-K+1), ..., w_K-1(t)), bit for bit; with vertical sync all at t-K+1."""
    sgd, problem = SGD(0.5, momentum), mlp(depth)
    run = simulate(pipedream(problem, depth, batches, sgd, vertical=vertical), machine, seed)
    expected = sequential(problem, depth, batches, sgd,
                          lambda t, k: max(0, t - (depth - 1 - k * (not vertical))))
    assert np.array_equal(parameters(run), expected)
    for e in run.trace.marks("update"):
        (_, read), = e.values["reads"]
        delay = depth - 1 - e.values["part"] * (not vertical)
        assert e.values["version"] - read == min(delay, e.values["version"])


def hold_one_version_and_few_in_flight(depth, batches=8, machine=FIXED, vertical=False, deploy=pipedream):
    """Watch every stage's functions: a batch's backward pass uses the x of its forward pass; at most K -
    k are in flight."""
    most, seen = {}, {}

    def watched(k):
        def watched_forward(x, a, rows):
            seen[k, a.tobytes()] = x.tobytes()
            most[k] = max(most.get(k, 0), sum(stage_of == k for stage_of, _ in seen))
            return forward(x, a)

        def watched_backward(x, a, d):
            assert seen.pop((k, a.tobytes())) == x.tobytes(), "forward and backward use one version"
            return backward(x, a, d)

        return watched_forward, watched_backward

    run = simulate(deploy(mlp(depth, watched), depth, batches, SGD(0.5), vertical=vertical), machine)
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
    deployment, most = pipedream(mlp(depth), depth, 8, SGD(0.5), vertical=vertical), {}
    for _ in Simulator(deployment):
        for name, node in deployment.items():
            if node.main.gi_frame is not None:
                most[name] = max(most.get(name, 0), len(node.main.gi_frame.f_locals.get("stash", ())))
    assert most == {f"stage{k}": depth - k * (not vertical) for k in range(depth)}


def test_a_gradient_lasts_from_its_own_forward_pass_to_its_backward_pass():
    """The trace's gradients, of batches between which others began: of 6 s a stage forward takes 1, backward 2."""
    trace = simulate(pipedream(mlp(2), 2, 4, SGD(0.1)), Machine(compute="fixed(6)")).trace
    assert [(e.start, e.time) for e in trace.gradients if e.node == "stage0"] == [
        (0, 6), (1, 9), (6, 12), (9, 15)]
    assert [(e.start, e.time) for e in trace.gradients if e.node == "stage1"] == [
        (1, 4), (4, 7), (7, 10), (10, 13)]
    trace = simulate(gpipe(mlp(2), 2, 2, SGD(0.1), micro=2, passes="1f1b"), Machine(compute="fixed(12)")).trace
    assert [(e.start, e.time) for e in trace.gradients if e.node == "stage0"] == [(0, 9), (9, 18)]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_pipedream_works_at_the_rate_of_one_stage(depth):
    """One batch per t_f + t_b in steady state; filling and draining happen once, not once a batch."""
    batches = 12
    trace = simulate(pipedream(mlp(depth), depth, batches, SGD(0.1)), FIXED).trace
    assert trace.seconds == pytest.approx((batches + depth - 1) / depth, rel=1e-12)


@given(depth=st.integers(1, 5), vertical=st.booleans(), batches=st.integers(1, 8))
def test_any_problem_is_divided_parameters_travel_where_it_knows_no_activations(depth, vertical, batches):
    """The whole gradient at the stages' versions, on a quadratic."""
    problem, sgd = quadratic(d=7, workers=1, noise=1.0), SGD(0.25, 0.5)
    ends = np.cumsum([stage.x0.size for stage in problem.split(depth)])[:-1]
    history, v = [problem.x0], sgd.start(problem.x0)
    for t in range(batches):
        old = [np.split(history[max(0, t - (depth - 1 - k * (not vertical)))], ends)[k] for k in range(depth)]
        x, v = sgd.step(history[-1], v, problem.gradient(np.concatenate(old), 0, t), t)
        history.append(x)
    run = simulate(pipedream(problem, depth, batches, sgd, vertical=vertical))
    assert np.array_equal(parameters(run), history[-1])


def test_every_schedule_of_two_stages_ends_with_the_same_bits():
    for deploy in (lambda: pipedream(mlp(2), 2, 3, SGD(0.5)), lambda: gpipe(mlp(2), 2, 1, SGD(0.5), micro=2),
                   lambda: gpipe(mlp(2), 4, 1, SGD(0.5), stages=2, micro=1)):
        finals = set()
        report = explore(deploy, lambda run: finals.add(final_parameters(run).tobytes()), max_runs=3000)
        assert report.complete and len(finals) == 1


@pytest.mark.parametrize("deploy",
                         [lambda: pipedream(mlp(3), 3, 4, SGD(0.5)),
                          lambda: gpipe(mlp(4), 4, 2, SGD(0.5), stages=2, micro=4, chunks=2, passes="1f1b")])
def test_processes_agree_with_the_simulator_bit_for_bit(deploy):
    real = processes.run(deploy, Machine(compute="fixed(0.009)"), 0, transport="shm")
    assert np.array_equal(final_parameters(real), final_parameters(simulate(deploy())))


# -- wrong programs --------------------------------------------------------------------------------------------


def test_without_stashing_the_mixed_versions_are_caught():
    """WRONG: the backward pass uses the newest parameters; it runs, and it is the gradient of no function."""
    hold_one_version_and_few_in_flight(3)
    wrong = changed(pipedream_module, "me.backward(stash[read], rows, kept,",
                    "me.backward(me.x, rows, kept,").pipedream
    with pytest.raises(AssertionError, match="one version"):
        hold_one_version_and_few_in_flight(3, deploy=wrong)
    expected = sequential(mlp(3), 3, 6, SGD(0.5), lambda t, k: max(0, t - (2 - k)))
    assert not np.allclose(parameters(simulate(wrong(mlp(3), 3, 6, SGD(0.5)))), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("right, wrong", [
    # WRONG: every stage fills the pipe alike; the last ones hold K batches too
    ("min(b + depth - k, batches)", "min(b + depth, batches)"),
    ("min(b + depth - k, batches)", "min(b + 1, batches)"),  # WRONG: one batch at a time: no pipeline
])
def test_too_many_or_too_few_batches_in_flight_are_caught(right, wrong):
    # KeyError: the version of a batch too many is stashed no more
    with pytest.raises((AssertionError, Deadlock, KeyError)):
        hold_one_version_and_few_in_flight(3, deploy=changed(pipedream_module, right, wrong).pipedream)


def test_a_wrong_number_of_micro_batches_or_stages_is_named():
    with pytest.raises(ValueError, match="^micro 0; expected at least 1"):
        gpipe(mlp(2), 2, 1, SGD(0.1), micro=0)
    with pytest.raises(ValueError, match="^passes 'zigzag'; expected fill-drain or 1f1b$"):
        gpipe(mlp(2), 2, 1, SGD(0.1), passes="zigzag")
    for stages, chunks in ((2, 0), (1, 2)):
        with pytest.raises(ValueError, match=f"^chunks {chunks} with {stages} stages; expected at least 1"):
            gpipe(mlp(2), 2, 1, SGD(0.1), stages=stages, chunks=chunks)
    for deploy in (gpipe, pipedream):
        for stages in (3, 0, 8):
            with pytest.raises(ValueError, match=f"^stages {stages} on 4 workers; expected a divisor of 4: each worker"):
                deploy(mlp(4), 4, 1, SGD(0.1), stages=stages)
        with pytest.raises(ValueError, match="^collective star; expected|^collective 'star'; expected one of ring"):
            deploy(mlp(4), 4, 1, SGD(0.1), stages=2, collective="star")
        with pytest.raises(ValueError, match="^stages 3; expected 1 to 2, a block or more for each: tanh0, tanh1$"):
            deploy(mlp(2), 3, 1, SGD(0.1))


@pytest.mark.parametrize("deploy, module, each_way",
                         [(lambda: gpipe(mlp(3), 3, 5, SGD(0.1), micro=4), gpipe_module, 4 * 5),
                          (lambda: pipedream(mlp(3), 3, 5, SGD(0.1)), pipedream_module, 5)])
def test_a_message_goes_each_way_per_cut_and_micro_batch_or_batch(deploy, module, each_way):
    assert simulate(deploy()).trace.messages == 2 * 2 * each_way
    said = " ".join(module.__doc__.split())
    assert "messages: one each way per cut and " + ("micro-batch" if module is gpipe_module else "batch") in said
