"""Problems in stages: gradients of every net, the choice of cuts, what crosses them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.pipeline import pipedream as pipedream_module
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.problems import classification
from refsgd.problems.chain import Block, Chain
from refsgd.problems.data import load
from refsgd.problems.data.sets import Dataset
from refsgd.problems.nn import kernel_cache, nets
from refsgd.theory.phenomena.pipeline import bubble
from tests.wrong import changed


def images(shape, classes=10, count=32):
    random = np.random.default_rng(3)
    x = random.random((count, *shape), np.float32)
    y = random.integers(0, classes, count)
    return Dataset("noise", x, y, x, y, classes)


def through(problem, stages, micro, t=0, cut="balance"):
    """The gradient of a step by its stages, and the bytes of activations that crossed their cuts."""
    found, total, crossed = problem.split(stages, cut), [0.0] * stages, 0
    for rows in found[0].micro_batches(0, t, micro):
        a, kept = None, []
        for stage in found:
            a, values = stage.forward(stage.x0, rows, a)
            kept.append(values)
            crossed += 0 if a is None else a.nbytes
        d = None
        for k in reversed(range(stages)):
            g, d = found[k].backward(found[k].x0, rows, kept[k], d)
            total[k] = total[k] + g
        assert d is None
    return np.concatenate(total), crossed


#: a net, its images, and whether batch norm takes statistics of each micro-batch
NETS = [("tiny", (8, 8, 1), False), ("tiny:tanh,squared", (8, 8, 1), False),
        ("mlp:16", (8, 8, 1), False), ("softmax", (8, 8, 1), False),
        ("lenet5", (28, 28, 1), False), ("shallow", (28, 28, 1), False), ("vgg16:2", (32, 32, 3), False),
        ("vgg16:1", (224, 224, 3), False),  # the only one with dropout
        ("resnet18:2", (16, 16, 3), True), ("inception:4", (16, 16, 3), True),
        pytest.param("resnet50:2", (16, 16, 3), True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(("name", "shape", "normed"), NETS)
def test_stages_have_the_gradient_of_the_whole_net(name, shape, normed, kernels, monkeypatch):
    """For any shipped net, GPipe has the gradient of the full batch, to rounding; batch norm of
    micro-batches excepted."""
    problem = classification(images(shape), nets.build(name, shape), 1, 6)
    if not kernels:
        monkeypatch.setattr(kernel_cache, "has_kernels", lambda: False)
    whole = problem.gradient(problem.x0, 0, 0)
    blocks = problem.chain.blocks
    for stages, micro in ((1, 1), (2, 1), (min(4, len(blocks)), 1 if normed else 4)):
        g, crossed = through(problem, stages, micro)
        assert g.dtype == np.float32
        assert np.allclose(g, whole, rtol=0, atol=2e-5 * np.abs(whole).max())
        cuts = problem.chain.cut(stages)
        assert crossed == sum(6 * blocks[end - 1].nbytes for end in cuts), "skip connections are inside blocks"


def test_a_gradient_without_the_weights_of_micro_batches_is_caught():
    """WRONG: each micro-batch's mean counts whole."""
    problem = classification(images((8, 8, 1)), nets.build("tiny"), 1, 6)
    chain, whole = problem.chain, problem.gradient(problem.x0, 0, 0)
    wrong = Chain(chain.blocks, chain.inputs, lambda out, rows: chain.loss_gradient(out, rows) / rows.share)
    object.__setattr__(problem, "chain", wrong)
    assert not np.allclose(through(problem, 2, 3)[0], whole, rtol=0, atol=1e-2 * np.abs(whole).max())


def test_two_micro_batches_in_flight_keep_their_own_activations():
    problem = classification(images((8, 8, 1)), nets.build("tiny"), 1, 6)
    stage, = problem.split(1)
    first, second = stage.micro_batches(0, 0, 2)
    alone = stage.backward(stage.x0, first, stage.forward(stage.x0, first, None)[1], None)[0]
    kept = stage.forward(stage.x0, first, None)[1]
    stage.forward(stage.x0, second, None)
    assert np.array_equal(stage.backward(stage.x0, first, kept, None)[0], alone)


def chains(sizes):
    return Chain([Block(f"b{k}", slice(0, 0), work, nbytes, None, None) for k, (work, nbytes) in enumerate(sizes)],
                 None, None)


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
       speeds=st.lists(st.sampled_from([0.25, 0.5, 1, 1, 3]), min_size=1, max_size=8))
def test_cuts_are_the_best_of_all(sizes, speeds):
    """By brute force: the fewest bytes; the quickest slowest stage, and then the fewest bytes."""
    chain, stages = chains(sizes), len(speeds)
    if stages > len(sizes):
        with pytest.raises(ValueError, match=f"^stages {stages}; expected 1 to {len(sizes)}, a block or more"):
            chain.cut(stages)
        return

    def slowest(cut, pace=(1,) * stages):
        return max(sum(chain.costs[a:b]) / s for (a, b), s in zip(itertools.pairwise([0, *cut, len(sizes)]), pace))

    def crossing(cut):
        return sum(sizes[end - 1][1] for end in cut)

    every = list(itertools.combinations(range(1, len(sizes)), stages - 1))
    least = min(map(crossing, every))
    found = chain.cut(stages, "mincut")
    assert crossing(found) == least
    assert slowest(found) == pytest.approx(min(slowest(cut) for cut in every if crossing(cut) == least))
    for how, pace in (("balance", (1,) * stages), ("speed", speeds)):
        best, found = min(slowest(cut, pace) for cut in every), chain.cut(stages, how, speeds)
        assert slowest(found, pace) == pytest.approx(best)
        assert crossing(found) == min(crossing(cut) for cut in every if slowest(cut, pace) <= best * (1 + 1e-9))


@pytest.mark.parametrize("how", ["1", "1,1", "2,1", "0,2", "1,4", "1,x", "balanced", ""])
def test_a_wrong_cut_is_named(how):
    with pytest.raises(ValueError, match=f"^cut '{how}' for 3 stages; expected balance, speed, mincut, or the 2 blocks "
                                         "after which to cut, ascending and within 1 to 3$"):
        chains([(1, 1)] * 4).cut(3, how)
    assert chains([(1, 1)] * 4).cut(3, "1,3") == [1, 3]


@pytest.mark.parametrize("options", [{}, {"stages": 2}, {"chunks": 2}])
def test_a_cut_by_speed_gives_slow_nodes_less_and_is_recorded_as_its_ends(options):
    """WRONG: equal work, which waits for the slow node."""
    slow = Machine(compute="fixed(0.8)", speeds=(1, 1, 0.5, 1))
    given = {"workers": 4, "micro": 64, "net": "shapes:4800", "data": "none", "batch": 64, "steps": 3,
             "machine": slow, **options}
    took = {cut: refsgd.run("gpipe", cut=cut, runtime="simulator", evaluations=0, **given)
            for cut in ("balance", "speed")}
    fast, even = (took[cut].measured["seconds"] for cut in ("speed", "balance"))
    assert fast < 0.8 * even
    assert took["speed"].options["cut"].replace(",", "").isdecimal()
    assert refsgd.predict("gpipe", cut="speed", **given)["seconds"].value == pytest.approx(fast)


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7),
       limits=st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_cuts_within_limits_are_the_quickest_of_those_that_fit(sizes, limits):
    """By brute force, each block with bytes of its own."""
    chain, stages = chains([size[:2] for size in sizes]), len(limits)
    if stages > len(sizes):
        return

    def fits(stage, first, end):
        return sum(size[2] for size in sizes[first:end]) <= limits[stage]

    def slowest(cut):
        return max(sum(chain.costs[a:b]) for a, b in itertools.pairwise([0, *cut, len(sizes)]))

    every = [cut for cut in itertools.combinations(range(1, len(sizes)), stages - 1)
             if all(fits(k, *ends) for k, ends in enumerate(itertools.pairwise([0, *cut, len(sizes)])))]
    if not every:
        with pytest.raises(ValueError, match="^no cut into .* fits the memory of their nodes"):
            chain.cut(stages, fits=fits)
        return
    found = chain.cut(stages, fits=fits)
    assert tuple(found) in every and slowest(found) == pytest.approx(min(map(slowest, every)))


@pytest.mark.parametrize("algorithm", ["gpipe", "pipedream"])
def test_a_cut_within_memory_is_the_quickest_whose_stages_are_predicted_to_fit(algorithm):
    """Of all cuts by hand, each node's memory as `predict` has it."""
    given = {"workers": 2, "net": "resnet18:16", "data": "digits", "steps": 4,
             "machine": Machine(compute="fixed(0.8)")}

    def memory(cut):
        from refsgd.experiment.memory import of_nodes
        from refsgd.experiment.prepare import prepare

        e = prepare(algorithm, cut=cut, **given)
        return [held.value for held in of_nodes(e).values()], e.own["cut"], max(
            stage.share for stage in e.problem.split(2, e.own["cut"]))

    free, balanced, least = memory("balance")
    limits = [max(free) * 2, 0.9 * free[1]]
    found, ends, slowest = memory("balance:" + ",".join(f"{limit:.0f}" for limit in limits))
    assert found[1] <= limits[1] < free[1] and ends != balanced and slowest >= least
    blocks = len(classification(load("digits"), nets.build("resnet18:16", (8, 8, 1)), 1, 8).blocks.blocks)
    by_hand = [memory(f"{end}") for end in range(1, blocks)]
    assert slowest == min(share for held, _, share in by_hand if all(h <= m for h, m in zip(held, limits)))


@pytest.mark.parametrize(("cut", "says"), [
    ("mincut:1MB", "expected balance or speed with bytes"), ("speed:1MB,1MB,1MB", "expected balance or speed with bytes"),
    ("balance:much", "'much' not understood"), ("balance:1kB", "no cut into 4 stages fits the memory")])
def test_limits_of_memory_that_make_no_sense_are_refused(cut, says):
    with pytest.raises(Usage, match=says):
        refsgd.predict("gpipe", workers=4, cut=cut, steps=2)


@pytest.mark.parametrize("micro", [1, 2, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_bubble_of_equal_stages_is_predicted_to_the_last_digit(stages, micro):
    """It is (K-1)/(m+K-1)."""
    found = refsgd.predict("gpipe", workers=stages, micro=micro, net="shapes:960", data="none", batch=8, steps=50,
                           machine=Machine(compute="fixed(0.8)"))
    step = (micro + stages - 1) * 0.8 / stages / micro
    assert found["seconds_per_iteration"].kind == found["idle_ratio"].kind == "exact"
    assert found["seconds_per_iteration"].value == pytest.approx(step, rel=1e-12)
    assert found["idle_ratio"].value == pytest.approx(bubble(micro, stages).value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("machine", [Machine(compute="fixed(0.02)"),
                                     Machine(compute="fixed(0.02)", latency=0.002, bandwidth=20e6, update="fixed(0.003)"),
                                     Machine(compute="fixed(0.02)", latency=0.001, bandwidth=2e6, speeds=(1, 0.5, 1, 2)),
                                     Machine(compute="device(20MFLOPS,1ms)", bandwidth=5e6, hosts="2x2")])
@pytest.mark.parametrize("options", [{"algorithm": "gpipe"}, {"algorithm": "gpipe", "micro": 1, "cut": "1,4,6"},
                                     {"algorithm": "gpipe", "micro": 3, "cut": "mincut"},
                                     {"algorithm": "gpipe", "stages": 2, "chunks": 3, "passes": "1f1b"},
                                     {"algorithm": "gpipe", "micro": 8, "passes": "1f1b"},
                                     {"algorithm": "pipedream"}, {"algorithm": "pipedream", "vertical": True},
                                     {"algorithm": "pipedream", "stages": 2}])
def test_unequal_stages_are_predicted_as_they_run_at_fixed_times(options, machine):
    """Bytes (twice the cuts) and staleness K-1-k exactly; times without draws by one run."""
    arguments = {**options, "machine": machine, "net": "shapes:tiny", "data": "none", "steps": 9}
    result, found = refsgd.run(**arguments, runtime="simulator"), refsgd.predict(**arguments)
    m = result.measured
    for key, value in (("seconds", m["seconds"]), ("idle_ratio", m["idle_ratio"]),
                       ("bytes_sent", m["bytes_sent"]),
                       ("staleness_mean", m["staleness_mean"]), ("staleness_max", m["staleness_max"])):
        assert found[key].kind == ("simulated" if key in ("seconds", "idle_ratio") else "exact")
        assert found[key].value == pytest.approx(value, rel=1e-9) and not found[key].error, key
    assert m["clock_gap_max"] <= found["clock_gap_max"].value
    assert m["lead_max"] <= found["lead_max"].value
    assert "the bubble" in found.missing["idle_by_cause"]


@pytest.mark.parametrize("epochs", [0.2, pytest.param(5.5, marks=pytest.mark.slow)])
def test_gpipe_trains_as_sequential_sgd_does_and_pipedream_nearly(epochs):
    """A net in four stages on digits.  GPipe takes the same steps; PipeDream with gradients
    of old versions stays within one point."""
    common = {"data": "digits", "epochs": epochs, "machine": Machine(compute="fixed(0.02)"), "evaluations": 0,
              "runtime": "simulator"}
    alone = refsgd.run("sequential", **common)
    piped = refsgd.run("gpipe", micro=4, **common)
    assert abs(piped.accuracy["test"] - alone.accuracy["test"]) < 0.005
    if epochs < 1:
        assert np.allclose(piped.parameters, alone.parameters, rtol=0, atol=1e-5)
    else:
        assert abs(refsgd.run("pipedream", **common).accuracy["test"] - alone.accuracy["test"]) <= 0.01


def accuracies(algorithm, seeds, **options):
    return [refsgd.run(algorithm, seed=seed, machine=Machine(compute="fixed(0.02)"), evaluations=0, runtime="simulator",
                       **options).accuracy["test"] for seed in range(seeds)]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [
    {"data": "digits", "batch": 16},
    pytest.param({"data": "mnist", "batch": 64, "epochs": 0.15}, marks=pytest.mark.long)])
def test_gpipe_reaches_the_accuracy_of_sequential_sgd_within_its_seeds(arguments):
    """On digits and MNIST; with replicas of stages too."""
    alone = accuracies("sequential", 3, **arguments)
    halves = {**arguments, "batch": arguments["batch"] // 2}
    for options in ({**arguments, "passes": "1f1b"}, {**halves, "stages": 2}):
        assert min(alone) <= accuracies("gpipe", 1, **options)[0] <= max(alone), options


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "arguments"), [
    (3, {"data": "digits"}),
    pytest.param(1, {"data": "mnist", "net": "tiny", "lr": 0.05, "epochs": 0.3}, marks=pytest.mark.long)])
def test_pipedream_of_four_stages_stays_within_one_point_of_sequential_sgd(seeds, arguments):
    """On digits, the mean of three seeds; on MNIST at the rate with the least training loss, of 0.15, 0.05 and
    0.02 for PipeDream: at 0.15 it diverges, and sequential SGD does not."""
    alone, piped = (np.mean(accuracies(name, seeds, **arguments)) for name in ("sequential", "pipedream"))
    assert abs(piped - alone) <= 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numbers that have become infinite
def test_without_stashing_pipedream_diverges_where_it_trained():
    """WRONG: a backward pass at the newest parameters."""
    wrong = changed(pipedream_module, "me.backward(stash[read], rows, kept,", "me.backward(me.x, rows, kept,")
    with pytest.raises(FloatingPointError, match="the run diverged"):
        accuracies(wrong.pipedream, 1, data="digits")


def test_stages_share_one_batch():
    """Whose parts, if parts are given, it takes together, as sequential SGD does."""
    runs = [refsgd.run(name, batch=batch, steps=2, runtime="simulator", evaluations=0, micro=1).problem["batch"]
            for name, batch in (("gpipe", 21), ("gpipe", "20,1"), ("gpipe", "auto:21"))]
    assert runs == [21] * 3


def test_replicas_of_a_net_in_stages_train_as_all_reduce_does():
    """Data and model parallel: 4 workers are two replicas of two stages, with two shares of
    the data; losses, accuracies, images and updates are those of two peers."""
    common = {"data": "digits", "epochs": 0.5, "machine": Machine(compute="fixed(0.02)"), "runtime": "simulator"}
    peers = refsgd.run("allreduce", workers=2, **common)
    piped = refsgd.run("gpipe", workers=4, stages=2, **common)
    assert np.allclose(piped.parameters, peers.parameters, rtol=0, atol=1e-5) and piped.consensus_distance == 0
    losses = [{row[1]: row[3] for row in result.history} for result in (piped, peers)]
    common = sorted(losses[0].keys() & losses[1].keys())  # between them, the later stage is ahead
    assert len(common) > 2 and [losses[0][u] for u in common] == pytest.approx([losses[1][u] for u in common], abs=1e-4)
    assert piped.history[-1][2] == peers.history[-1][2] and piped.trace.replica_spread[-1][1] == 0


def test_what_a_pipeline_does_not_take_is_refused_in_one_line():
    for options, message in (({"stages": 3, "workers": 4}, "^stages 3 on 4 workers; expected a divisor of 4: each"),
                             ({"overlap": "backward"}, "^overlap backward with gpipe: its stages exchange activations"),
                             ({"net": "softmax"}, "^stages 4; expected 1 to 2, a block or more for each: flatten1"),
                             ({"on_death": "shrink"}, "^on_death shrink with gpipe: a worker has the only copy of its stage's parameters"),
                             ({"micro": 0}, "^micro 0; expected at least 1 micro-batch$")):
        with pytest.raises(ValueError, match=message):
            refsgd.run("gpipe", steps=1, **options)
    problem = classification(load("digits"), nets.build("tiny"), 4, 16)
    with pytest.raises(ValueError, match=r"^problem for 4 workers, run with 1 \(one for all stages of a replica\)"):
        refsgd.run("gpipe", problem, steps=1)
