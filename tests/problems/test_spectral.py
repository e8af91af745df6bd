"""The quadratic with a spectrum: its noise, all rates in one run, and mean replicas path by path."""

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import prepare
from refsgd.problems.spectral import generated, spectral, spectrum
from refsgd.runtimes.simulator import simulate

SPECTRUM = spectrum(0.05, 1, 6, 0.1)
MACHINE = Machine(compute="lognormal(20ms,0.5)", latency="1ms", speeds=(1, 1, 1, 0.5))
RATES = 0.05, 0.2, 0.6


def models(name, rates=RATES, steps=12, machine=MACHINE, **options):
    """The mean replica, or the server's model, after each update of it."""
    problem, seen = spectral(SPECTRUM, 20, 0, rates), {}
    run = simulate(CATALOGUE[name](problem, 4, steps, SGD(1.0), **options), machine, 0, observe=10**6)
    for mark in run.trace.marks("update"):
        seen.setdefault(mark.node, []).append(mark.values["x"])
    return np.array([np.mean(each, axis=0, dtype=float) for each in zip(*seen.values(), strict=True)])


REPLICAS = [("local-sgd", {"period": 1}), ("local-sgd", {"period": 3}), ("local-sgd", {"period": 8}),
            ("post-local", {"switch": 4, "period": 4}), ("dpsgd", {}), ("dpsgd", {"order": "atc"}),
            ("dpsgd", {"graph": "star"}), ("sgp", {}), ("sgp", {"graph": "ring"}), ("independent", {}),
            ("allreduce", {})]


def apart(name, **options):
    """How far the mean replica is from BSP's model, relative to it, in the worst of 12 iterations."""
    there, here = models("bsp"), models(name, **options)
    return np.max(np.linalg.norm(here - there, axis=1) / np.linalg.norm(there, axis=1))


@pytest.mark.parametrize(("name", "options"), REPLICAS)
def test_mean_replicas_are_the_model_of_bsp(name, options):
    assert apart(name, **options) < 1e-5


@pytest.mark.parametrize(("name", "options"), [
    ("adpsgd", {}), ("gosgd", {"p": 0.5}), ("pair-averaging", {}), ("sgp", {"graph": "star"})])
def test_other_mean_replicas_are_not(name, options):
    """The wrong claim: that it holds for all averaging."""
    assert apart(name, **options) > 1e-3


ALL_RATES = [("asp", {}), ("ssp", {"staleness": 1}), ("gosgd", {"p": 0.5}), ("easgd", {}), ("softsync", {}),
             ("adpsgd", {}), ("staleness-aware", {}), ("downpour", {"push_every": 2}), ("sgp", {}),
             ("hogwild", {}), ("dssp", {}), ("consgd", {}), ("dynsgd", {}), ("pair-averaging", {}),
             ("backup-workers", {}), ("bsp", {}), ("dpsgd", {}), ("local-sgd", {}), ("diloco", {})]


@pytest.mark.parametrize(("name", "options"), ALL_RATES)
def test_a_run_of_all_rates_is_a_run_of_each(name, options):
    """Bit for bit, on links whose time does not depend on the size of the vector; a ring adds the parts of a
    longer vector in other orders."""
    together = models(name, **options)
    for rate, block in zip(RATES, np.split(together, len(RATES), axis=1), strict=True):
        rounding = 1e-6 * np.abs(block).max() * facts_of(CATALOGUE[name], options).collective
        np.testing.assert_allclose(block, models(name, (rate,), **options), rtol=0, atol=rounding)


def test_a_rule_that_is_not_linear_mixes_up_rates():
    """Top-k keeps the largest entries of all rates together."""
    def found(rates):
        return refsgd.run("bsp", spectral(SPECTRUM, 20, 0, rates), lr=1.0, steps=6, machine=MACHINE,
                          compress="topk:0.1").parameters

    assert not np.allclose(found(RATES)[:120], found(RATES[:1]))


@pytest.mark.parametrize("name", ["zero", "gpipe"])
def test_the_model_of_other_synchronous_algorithms_is_that_of_a_mean(name):
    """Of all workers' gradients, or of the one replica's that a pipeline has."""
    like = "bsp" if name == "zero" else "sequential"
    losses = [refsgd.run(each, data="quadratic:0.05,1,6,0.1", steps=20, machine=MACHINE.for_workers(n), workers=n).loss
              for each, n in ((name, 4), (like, 4 if name == "zero" else 1))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_noise_is_that_of_a_step_and_has_the_variance_that_is_asked_for():
    problem = spectral(SPECTRUM, 5000, 3, (1.0, 0.5))
    at, again, other = (problem.gradient(problem.x0, *key).reshape(2, 6, -1) for key in ((1, 7), (1, 7), (2, 7)))
    np.testing.assert_array_equal(at, again)
    np.testing.assert_array_equal(at[0], 2 * at[1])
    assert not np.array_equal(at, other)
    slope = SPECTRUM.values * SPECTRUM.start
    np.testing.assert_allclose(at[0].var(1), SPECTRUM.noise, rtol=0.1)
    assert np.all(np.abs(at[0].mean(1) - slope) < 4 * np.sqrt(SPECTRUM.noise / 5000))
    assert problem.loss(problem.x0) == pytest.approx(1)


def test_the_command_line_reads_a_spectrum(capsys):
    assert main(["run", "bsp", "--data", "quadratic:0.01,1,8,0.05", "--steps", "60", "--lr", "0.5"]) == 0
    assert "2048 parameters" in capsys.readouterr().out
    assert generated("quadratic:1,1,1,0").spectrum.values == [1]
    plain = prepare("bsp", data="quadratic")
    assert plain.problem.x0.size == 10 and plain.problem.spectrum is None


@pytest.mark.parametrize("text", ["quadratic:", "quadratic:1,0.1,8,0", "quadratic:0,1,8,0", "quadratic:0.1,1,1.5,0",
                                  "quadratic:0.1,1,8,-1", "quadratic:0.1,1,1e6,0", "quadratic:0.1,inf,8,0",
                                  "quadratic:0.1,1,8", "quadratic:0.1,1,nan,0", "quadratic:0.1,1,0,0"])
def test_a_spectrum_that_is_none_is_refused(text, capsys):
    assert main(["run", "bsp", "--data", text]) == 2
    assert "such as quadratic:0.01,1,8,0.05" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "said"), [
    (["--batch", "3,1"], "expected one batch"), (["--shards", "by-label"], "no labels"),
    (["--net", "tiny"], "not of a net"), (["--batch", "8"], "not of images")])
def test_its_workers_are_all_alike(flags, said, capsys):
    flags = flags if flags[1] != "3,1" else [*flags, "--workers", "2"]
    assert main(["run", "bsp", "--data", "quadratic:0.01,1,8,0.05", *flags]) == 2
    assert said in capsys.readouterr().err
