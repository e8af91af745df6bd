"""Shape-only vectors: the same times and bytes as real ones, for models that would not fit."""

import time
from dataclasses import replace

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.problems import quadratic
from refsgd.problems.shapes import NoContents, ShapeOnly, shape_only
from tests.marks import mostly_slow

MACHINE = Machine(compute="exponential(0.1)", latency=0.001, bandwidth=1e6)
pytestmark = pytest.mark.usefixtures("few_draws_throughout")
#: what is sent depends on the entries, unless their share is given
SHARES = {"approximate": {"share": 0.1}}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "sandblaster"])
def test_a_shape_only_net_takes_the_time_and_the_bytes_of_a_vector(name):
    workers = 1 if name == "sequential" else 4
    common = {"workers": workers, "steps": 5, "machine": MACHINE, **SHARES.get(name, {})}
    real = refsgd.run(name, replace(quadratic(d=1003, workers=4), layers=None), **common).measured
    timed = refsgd.run(name, shape_only(1003), **common).measured
    for key in ("seconds", "bytes_sent_by_node", "messages", "idle_ratio", "staleness_histogram"):
        assert timed[key] == real[key], key


def test_a_model_of_vgg_16_is_timed_without_being_allocated():
    result = refsgd.run("bsp", net="shapes:138357544", data="none", workers=16, servers=4, steps=10,
                        machine=Machine(compute="fixed(1)", bandwidth=125e6))
    w = 4 * 138357544 / 125e6
    assert result.measured["seconds_per_iteration"] == pytest.approx(1 + (16 / 4 + 1) * w, rel=0.1)
    assert result.parameters_sha256 == ""


@pytest.mark.parametrize("name", mostly_slow(["bsp", "asp"], "bsp"))
def test_a_thousand_workers_are_simulated_in_seconds(name):
    started = time.process_time()
    result = refsgd.run(name, net="shapes:25557032", data="none", workers=1000, servers=8, steps=1,
                        machine=Machine(compute="exponential(1)", bandwidth=1.25e9))
    assert result.measured["updates"] == (1 if name == "bsp" else 1000)
    assert time.process_time() - started < 60


@pytest.mark.parametrize(("name", "options"), [("approximate", {}), ("downpour", {"adagrad": True}),
                                                 ("sandblaster", {})])
def test_an_algorithm_that_decides_by_entries_is_refused_in_one_line(name, options):
    with pytest.raises(ValueError,
                       match=f"{name} reads the entries of its vectors, and net shapes:1000 has none; "
                             "expected another net"):
        refsgd.run(name, net="shapes:1000", data="none", steps=2, **options)


@pytest.mark.parametrize("act", [lambda x: x > 0, lambda x: x.astype(float), lambda x: x.__setitem__(3, 0),
                                 lambda x: x[3], lambda x: np.linalg.norm(x), lambda x: x + ShapeOnly(3),
                                 lambda x: np.add.reduce(x), lambda x: x @ x, lambda x: np.ones(10) @ x, np.asarray,
                                 lambda x: x.sum(), lambda x: x.dot(x), lambda x: x.reshape(2, 5), float, bool,
                                 lambda x: x == x, lambda x: x != 0, lambda x: 0 in x])
def test_what_needs_contents_is_refused(act):
    with pytest.raises((NoContents, ValueError), match="expected"):
        act(ShapeOnly(10))


def test_every_elementwise_operator_gives_a_vector_of_the_same_size():
    x, two = ShapeOnly(10), np.float32(2)
    for y in (abs(x), -x, x**2, 2**x, 1 / x, x // 2, x % 2, two * x, two / x, np.sqrt(x)):
        assert y.size == 10
    assert not hasattr(x, "layers") and {x: 1}[x] == 1


def test_a_shape_only_net_does_not_run_as_processes():
    with pytest.raises(ValueError, match="expected the simulator"):
        refsgd.run("bsp", net="shapes:1000", data="none", steps=1, runtime="processes")


@pytest.mark.parametrize(("arguments", "said"), [
    ("--net shapes:1000 --data foo",
     "data 'foo' with net shapes:1000, which cannot learn; expected none"),
    ("--net shapes:1000 --data mnist", "data 'mnist' with net shapes:1000"),
    ("--net shapes:1000 --data quadratic", "data 'quadratic' with net"),
    ("--net shapes:0 --data none",
     "net 'shapes:0'; expected shapes: and a number of parameters, at least 1"),
    ("--net shapes:1000 --batch 0", "batch 0; expected at least 1"),
    ("--net shapes:1000 --batch -3", "batch -3; expected at least 1"),
    ("--data quadratic --batch 0", "batch 0; expected at least 1"),
    ("--data integers --batch -1", "batch -1; expected at least 1")])
def test_what_other_data_and_nets_are_refused_for_a_shape_only_net_is_too(arguments, said, capsys):
    assert main(["run", "bsp", *arguments.split(), "--steps", "2", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments",
                         [{"net": "shapes:1000", "data": "none"}, {"data": "quadratic"},
                          {"data": "integers"}])
def test_shards_are_checked_for_a_shape_only_net_too(arguments):
    with pytest.raises(refsgd.experiment.prepare.Usage, match="shards 'foo'; expected iid, by-label, or dirichlet:ALPHA"):
        refsgd.run("bsp", shards="foo", steps=1, **arguments)


def test_a_shape_only_net_needs_no_data_to_be_named():
    assert refsgd.run("bsp", net="shapes:1000", steps=2).problem["data"] == "none"


@pytest.mark.parametrize("wrong", [(0,), (-1,), (2.5,), (10, 0), (10, 2.5)])
def test_a_shape_only_net_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="expected a whole number, at least 1"):
        shape_only(*wrong)
