"""One run of a race: when it stops, and of which model."""

import math

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.experiment.arguments import Usage
from refsgd.experiment.compare import prepared
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.experiment.race.race import Entrant, _plan
from refsgd.experiment.race.target import Point, Target, crossing, models, of_iterations, to_target
from refsgd.experiment.result import final_parameters
from refsgd.problems.layers import equal
from refsgd.problems.problem import Problem, integer_gradients
from refsgd.trace import Computed

EQUAL = refsgd.Machine(compute="lognormal(0.015,0.3)", latency=0.001, bandwidth=50e6)


def points(values, step=1.0):
    return [Point(step * i, 10 * i, value) for i, value in enumerate(values)]


@pytest.mark.parametrize("target", [0.5, 0.11, 0.02])
def test_interpolation_on_an_exponential_is_exact(target):
    seconds, gradients = crossing(points(np.exp(-0.3 * np.arange(40))), Target("loss", target))
    assert seconds == pytest.approx(-math.log(target) / 0.3, rel=1e-12)
    assert gradients == pytest.approx(10 * seconds, rel=1e-12)


def test_a_spike_below_the_target_is_not_its_end():
    assert crossing(points([2, 0.05, 1, 0.5, 0.05, 0.04]), Target("loss", 0.1))[0] > 3
    assert crossing(points([2, 0.05, 1, 0.5, 0.05]), Target("loss", 0.1)) is None
    wrong = next(p.seconds for p in points([2, 0.05, 1, 0.5, 0.05, 0.04]) if p.value <= 0.1)
    assert wrong == 1


def test_accuracies_are_interpolated_linearly():
    assert crossing(points([0.1, 0.5, 0.9, 0.9]), Target("validation", 0.8))[0] == pytest.approx(1.75)


@pytest.mark.parametrize("text", ["0.1", "loss=-1", "loss=nan", "validation=1.5", "accuracy=0.9", "loss", ""])
def test_a_target_that_is_none_is_refused(text):
    with pytest.raises(Usage, match="expected"):
        Target.read(text)


def experiment(name, machine=EQUAL, problem=None, **more):
    given = {"workers": 8, "lr": 0.3, "seed": 2, "steps": 2000, **more}
    return prepare(name, problem, machine=machine.for_workers(given["workers"]), **given)


@pytest.mark.parametrize("name", ["bsp", "asp", "gosgd", "local-sgd"])
def test_a_run_to_a_target_is_the_beginning_of_a_longer_one(name):
    e = experiment(name, lr=0.05)
    value = Target.read("loss=1").of(e)
    short = to_target(e, Target("loss", 1.0), value, 12, 1e9)
    long = to_target(e, Target("loss", 0.5), value, 12, 1e9)
    assert short.ended == long.ended == "reached" and len(short.points) < len(long.points)
    assert short.points == long.points[:len(short.points)]


def test_a_run_that_never_arrives_says_why():
    e = experiment("bsp")
    value, target = Target.read("loss=0.01").of(e), Target("loss", 0.01)
    assert to_target(e, target, value, 12, 24) == to_target(e, target, value, 12, 24)
    assert to_target(e, target, value, 12, 24)[::3] == (math.inf, "passes")
    assert to_target(experiment("bsp", lr=300.0), target, value, 12, 1e9).ended == "diverged"
    with pytest.raises(Usage, match="met before the first step"):
        to_target(e, Target("loss", 100.0), value, 12, 24)


def bowl(workers):
    """A quadratic without noise, the same for all workers."""
    curvature = np.geomspace(0.02, 1, 8).astype(np.float32)

    def gradient(x, rank, t):
        return curvature * x

    return Problem(np.ones(8, np.float32), gradient, lambda x: float(np.sum(curvature * x * x)) / 2,
                   layers=equal(8, gradient), describe={"workers": workers})


def seconds_of(name, machine, models=None, **more):
    e = experiment(name, machine, bowl(8), **{"lr": 0.5, "seed": 0, "steps": 4000, **more})
    target = Target("loss", e.problem.loss(e.problem.x0) / 20)
    if models is None:
        return to_target(e, target, e.problem.loss, 8, 1e9).seconds
    known = [Point(0.0, 0, e.problem.loss(e.problem.x0))]
    for seconds, gradients, newest in models(e, 8):
        x = np.mean(list(newest.values()), axis=0)
        known.append(Point(seconds, gradients, e.problem.loss(x)))
        if found := crossing(known[-3:], target):
            return found[0]
    return math.inf


def slowdown(name, **more):
    """Seconds with one worker at a quarter of the speed by those with equal ones, times the total speed."""
    slow = EQUAL.with_(speeds=(1,) * 7 + (0.25,))
    return seconds_of(name, slow, **more) * 7.25 / 8 / seconds_of(name, EQUAL, **more)


@pytest.mark.parametrize("name,near,more", [("adpsgd", 0.1, {}), ("asp", 0.1, {"lr": 0.06}), ("gosgd", 0.4, {"p": 0.1})])
def test_the_model_is_that_of_the_moment(name, near, more):
    """An asynchronous algorithm with one slow worker loses about as much time as the speed that is missing."""
    assert slowdown(name, **more) == pytest.approx(1, abs=near)


def test_the_same_iterations_of_all_workers_are_no_moment():
    """The wrong variant: the replicas' mean of equal iterations is dated by the slowest worker."""
    assert slowdown("adpsgd", models=of_iterations) > 2.5
    assert slowdown("bsp") > 2  # which waits for it


def test_every_worker_has_its_steps_left_until_the_end():
    """However unequal, no worker of a race ends before the others have computed all that the race allows."""
    machine = EQUAL.with_(speeds=(100, 1, 1, 1))
    turn, = prepared(["asp"], {}, (), {"workers": 4, "machine": machine})
    entrant = Entrant(turn, _plan("loss=0.1", 3, 1, None, 2, 1 / 8, None))
    assert entrant.steps >= entrant.most == 2 * entrant.per_pass


def test_models_are_those_of_the_servers_joined():
    """With several servers, and with replicas, the evaluated vector is the run's own at its end."""
    for name, more in (("bsp", {"servers": 3}), ("bsp", {}), ("allreduce", {}), ("dpsgd", {}), ("zero", {})):
        problem = integer_gradients(8, 4)
        e = prepare(name, problem, workers=4, steps=6, lr=0.25, machine=EQUAL.for_workers(4), **more)
        *_, (_, gradients, x) = models(e, 4)
        assert gradients == 24
        again = prepare(name, problem, workers=4, steps=6, lr=0.25, machine=EQUAL.for_workers(4), **more)
        np.testing.assert_array_equal(x, final_parameters(perform(again, "simulator")))


@pytest.mark.parametrize(("name", "more"), [
    # the net in stages and the line searches of four are no races
    *((name, {"period": 1} if name == "decoupled-diloco" else {}) for name in CATALOGUE
      if name not in ("gpipe", "pipedream", "sandblaster", "strads")),
    ("bsp", {"servers": 3, "overlap": "both"}), ("fedavg", {"sampled": 2, "period": 4}), ("scaffold", {"period": 5})])
def test_gradients_are_those_that_were_computed(name, more):
    """Also where an update is a round of several steps, or of some of the workers only."""
    e = prepare(name, integer_gradients(8, 4), workers=4, steps=6, lr=0.25, machine=EQUAL.for_workers(4), **more)
    counts = [gradients for _, gradients, _ in models(e, 1)]
    computed = sum(event.gradient_ended for event in perform(e, "simulator").trace.of(Computed))
    assert counts[-1] == computed and counts == sorted(set(counts))
