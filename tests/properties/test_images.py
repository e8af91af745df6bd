"""Images per second: the images of gradients that had an effect, each once, over the seconds of the run."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refsgd
from refsgd import Machine
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.experiment.prepare import Usage
from refsgd.runtimes.faults import Fault
from refsgd.trace import Marked as MarkEvent
from refsgd.trace.metrics import number_images
from tests.properties.coordinates import AGAIN, SHARDED, STAGED, Marked, rank_of
from tests.wrong import wrong_deployment

OPTIONS = {"strads": {"blocks": 1}, "dgc": {"ratio": 1.0}, "easgd": {"period": 2}, "downpour": {"push_every": 3}}
#: algorithms whose parameters say which gradients they contain; a mix keeps a part of what no answer counts
TELLING = [name for name in CATALOGUE if name not in (*STAGED, *SHARDED, *AGAIN, "sequential", "decoupled-diloco")]


def in_parameters(run):
    """Images of the gradients that some parameters contain, in the slice of which that is true for most."""
    slices = [set() for _ in range(run.slices)]
    for e in run.trace.of(MarkEvent):
        if "x" in e.values:
            whole = e.values["x"].size > run.size  # of a replica beside servers
            for k in range(run.slices) if whole else [e.values.get("part", 0)]:
                slices[k] |= run.contents(run.part(e.values["x"], k) if whole else e.values["x"])
    return max(sum(run.images(*gradient) for gradient in found) for found in slices)


def images(run):
    """The images that the metric counts."""
    number_images(run.trace, lambda worker, t: run.images(rank_of(worker), t))
    return run.trace.images_per_second * run.trace.seconds


def of_computed(run):
    """The old rate, of all gradients computed, at the mean of the batches."""
    each = [run.images(rank, t) for rank, t in run.read]
    return sum(each) / len(each) * run.trace.iteration_rate * run.trace.seconds


def hold(name, deploy=None, counted=images, **given):
    deploy = deploy or CATALOGUE[name]
    run = Marked(deploy, 3, slices=2 if facts_of(deploy).served else 1, **given, **OPTIONS.get(name, {}))
    assert counted(run) == pytest.approx(in_parameters(run))


@pytest.mark.parametrize("name", TELLING)
def test_images_are_those_of_the_gradients_that_are_in_the_parameters(name):
    """Shares of one to five images, workers of three speeds."""
    hold(name, steps=4)


@given(st.sampled_from(["asp", "ssp", "dynsgd", "downpour", "softsync", "backup-workers", "gosgd", "adpsgd",
                        "independent", "hogwild", "easgd"]),
       st.integers(0, 9), st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_nor_does_a_gradient_count_that_died_with_its_worker(name, seed, rank, step):
    node = f"{'peer' if name in ('gosgd', 'adpsgd', 'independent') else 'worker'}{rank}"
    hold(name, steps=4, seed=seed, faults=[Fault("kill", node, step)])


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("asp", "images=images", "images=1"), ("ssp", "sum(push.examples for", "sum(1 for"),
    ("easgd", "images=0)", "images=9)"), ("easgd", "images=problem.images(rank, t), ", ""),
    ("downpour", "np.zeros_like(x), [], 0", "np.zeros_like(x), [], examples"),
    ("approximate", "*of_pushes(pushes), clock", "(), 0, clock"), ("independent", "t=t, x=x", "t=t+1, x=x"),
    ("strads", "sum(p.examples for p in partials)", "len(partials)")])
def test_wrong_marks_are_noticed(name, right, wrong):
    with pytest.raises(AssertionError):
        hold(name, wrong_deployment(CATALOGUE[name], right, wrong), steps=4)


@pytest.mark.parametrize("name", ["backup-workers", "asp", "gosgd"])
def test_the_rate_of_computed_gradients_at_a_nominal_batch_is_another(name):
    with pytest.raises(AssertionError):
        hold(name, counted=of_computed, steps=4)


# -- whole runs ----------------------------------------------------------------------------------------------

PERIODS = {name: {"period": 1} for name in ("fedavg", "scaffold", "fedbuff", "fedasync", "async-diloco")}  # a read for each gradient
EACH = (3, 1, 2, 2)  # images of each worker's gradients


def by_reads(result):
    """Images by the reads of marks: of the part of the parameters that has got most; of replicas, and where a
    force is no gradient, one for each iteration of each."""
    counted, seen = Counter(), set()
    for e in result.trace.marks("clock" if result.algorithm == "easgd" else "update"):
        for worker, _ in e.values.get("reads", ((e.node, None),)):
            once = (worker, e.values["t"]) if "t" in e.values else None
            if once is None or once not in seen:
                counted[e.values.get("part", 0)] += EACH[rank_of(worker)]
                seen.add(once)
    return max(counted.values(), default=0)


@pytest.mark.parametrize("policy", ["continue", "shrink", "restart"])
@pytest.mark.parametrize("name", TELLING)
def test_after_a_death_what_is_done_again_from_older_parameters_counts_once(name, policy):
    machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e6, speeds=(1, 1, 0.5, 2))
    try:
        result = refsgd.run(name, data="quadratic", batch=EACH, workers=4, steps=8, lr=0.05, machine=machine,
                            servers=2 if name in ("asp", "ssp", "bsp") else 1, seed=3, on_death=policy, **PERIODS.get(name, {}),
                            faults=["kill worker 1 at step 4"])
    except Usage as refused:
        assert "on_death" in str(refused)
        return
    assert result.trace.images() == by_reads(result) > 0
    assert result.measured["images_per_second"] == pytest.approx(by_reads(result) / result.measured["seconds"])
    assert result.history[-1][2] == result.trace.images()


@pytest.mark.parametrize("name", CATALOGUE)
def test_short_and_empty_shares_count_as_what_they_are(name):
    """1,437 images in steps of 4 x 359: every other step has a single image, and three of its shares are empty;
    a formula that says it is exact has the same number."""
    result = refsgd.run(name, data="digits", net="softmax", workers=2 if name in STAGED else 4, batch=359, steps=5,
                        lr=0.01, machine=Machine(compute="fixed(1.0)"))
    m, rate = result.measured, result.predicted.get("images_per_second")
    found, whole = m["images_per_second"] * m["seconds"], 2 * 1437 + 1436
    if name in ("sequential", *STAGED):  # one share of 359 images: only the fifth step has a single one
        whole = 1437
    if name == "sandblaster":
        assert found % 1437 == pytest.approx(0) and found
    elif result.trace.marks("drop"):
        assert found < whole and (rate is None or rate["kind"] in ("approximation", "simulated"))
    else:
        assert found == pytest.approx(whole)
        assert rate is None or rate["value"] == pytest.approx(m["images_per_second"])
    rows = [row[2] for row in result.history]
    assert rows == sorted(rows) and rows[-1] == pytest.approx(found)
