"""Replayed times come in the order of their list, again and again, on each node and in each runtime."""

import json

import numpy as np
import pytest

import refsgd
from refsgd import Machine
from refsgd.cluster import files
from refsgd.cluster.distributions import Distribution
from refsgd.theory.phenomena.stragglers import mean_of_maximum, mean_of_order, sum_of
from refsgd.theory.prediction import DomainError
from refsgd.trace import Computed
from tests.paced import as_simulated, slipped

LISTS = "replayed(10ms,20ms,30ms); replayed(30ms,10ms,10ms); replayed(20ms,20ms,50ms)"
SHAPES = {"net": "shapes:1000", "data": "none", "workers": 3}
MAXIMA = [0.03, 0.02, 0.05]  # of the columns


def test_moments_and_draws():
    time = Distribution.parse("replayed(10ms, 20ms, 60ms)")
    assert time.mean == pytest.approx(0.03)
    assert time.variance == pytest.approx(np.var([0.01, 0.02, 0.06]))
    assert time.cdf(0.02) == pytest.approx(2 / 3)
    drawn = time.sample(np.random.default_rng(0), 7)
    assert drawn.tolist() == [0.01, 0.02, 0.06, 0.01, 0.02, 0.06, 0.01]
    assert Distribution.parse(str(time)) == time
    assert time.scaled(2).parameters == (0.02, 0.04, 0.12)


@pytest.mark.parametrize("text", ["replayed()", "replayed(-1)", "replayed(inf)"])
def test_a_list_without_durations_is_refused(text):
    with pytest.raises(ValueError, match="replayed"):
        Distribution.parse(text)


def test_a_machine_file_has_a_list_for_each_worker(tmp_path):
    machine = Machine(compute=LISTS)
    for name, toml in (("m.json", False), ("m.toml", True)):
        (tmp_path / name).write_text(files.written(machine, toml))
        assert files.read(str(tmp_path / name))[0].compute == machine.compute
    assert json.loads((tmp_path / "m.json").read_text())["compute"][0] == {
        "family": "replayed", "parameters": [0.01, 0.02, 0.03]}


@pytest.mark.parametrize("seed", [0, 1])
def test_each_worker_goes_through_its_own_list(seed):
    run = refsgd.run("bsp", machine=Machine(compute=LISTS), steps=7, seed=seed, **SHAPES)
    for rank, (worker, own) in enumerate(zip(run.trace.workers, Machine(compute=LISTS).compute)):
        took = [e.time - e.start for e in run.trace.of(Computed, worker) if e.work == "gradient"]
        assert took == pytest.approx(np.resize(own.parameters, 7)), rank


@pytest.mark.parametrize("length", [300, 1000])
def test_a_long_list_is_replayed_beyond_a_block_of_draws(length):
    times = tuple(0.001 * (1 + k % 7) + 1e-6 * k for k in range(length))
    run = refsgd.run("sequential", machine=Machine(compute=Distribution("replayed", times)), net="shapes:10",
                     data="none", steps=length + 5)
    assert run.trace.seconds == pytest.approx(sum(times) + sum(times[:5]))


@pytest.mark.parametrize("algorithm", ["bsp", "allreduce"])
def test_synchronous_rounds_take_the_largest_of_each_column(algorithm):
    steps = 8
    exact = float(np.resize(MAXIMA, steps).sum())
    found = refsgd.predict(algorithm, machine=Machine(compute=LISTS), steps=steps, **SHAPES)
    assert found["seconds"].value == pytest.approx(exact)
    assert found["seconds"].kind == "simulated"
    # the same durations in any order have another maximum
    shuffled = refsgd.predict(algorithm, machine=Machine(compute=LISTS.replace("replayed", "empirical")),
                              steps=steps, **SHAPES)
    assert shuffled["seconds"].value > 1.05 * exact


@pytest.mark.alone
def test_processes_keep_the_order():
    run = refsgd.run("bsp", machine=Machine(compute=LISTS), net="tiny", data="digits", workers=3, steps=6,
                     runtime="processes")
    assert as_simulated(run.trace.seconds, 2 * sum(MAXIMA), slipped(run.trace))
    for worker, own in zip(run.trace.workers, Machine(compute=LISTS).compute):
        took = [e.time - e.start for e in run.trace.of(Computed, worker) if e.work == "gradient"]
        assert np.all(np.array(took) >= np.resize(own.parameters, 6) - 1e-3)


def test_one_worker_alone_takes_the_sum_of_its_times():
    found = refsgd.predict("sequential", machine=Machine(compute="replayed(10ms,20ms,60ms)"), steps=4,
                           net="shapes:1000", data="none")
    assert found["seconds"].value == pytest.approx(0.1)
    assert found["seconds"].kind == "exact"


def test_order_statistics_go_by_columns_and_sums_are_refused():
    times = Machine(compute=LISTS).compute
    assert mean_of_maximum(times) == pytest.approx(np.mean(MAXIMA))
    assert mean_of_maximum((times[0], Distribution("fixed", (0.025,)))) == pytest.approx(0.08 / 3)
    assert mean_of_order([times[0]] * 3, 1) == pytest.approx(times[0].mean)  # equal in each column
    with pytest.raises(DomainError, match="replayed"):
        mean_of_maximum((times[0], Distribution.parse("exponential(1)")))
    with pytest.raises(DomainError, match="replayed"):
        sum_of(times[0], 2)
