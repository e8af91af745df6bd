"""Figures without a formula come from the simulator: one run if nothing is drawn, else until they are precise."""

import pytest

from refsgd.cluster.machine import Machine
from refsgd.experiment import simulated
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.shapes import shape_only

FIXED = Machine(compute="fixed(0.02)", latency=0.001, bandwidth=1e6)


def experiment(name, machine, steps, **options):
    return prepare(name, shape_only(1200), workers=3, steps=steps, machine=machine, **options)


@pytest.mark.parametrize("name,steps", [("downpour", 60), ("downpour", 900), ("zero", 400)])
def test_a_long_run_of_fixed_times_is_continued_at_its_pace(name, steps, monkeypatch):
    """As if it had been simulated to its end, with a tenth of the events."""
    e = experiment(name, FIXED, steps, **({"flat": True} if name == "zero" else {}))
    monkeypatch.setattr(simulated, "EVENTS", 1500)
    found, trace = e.predictions(), perform(e, "simulator", observe=0).trace
    assert found["seconds"].kind == "simulated" and not found["seconds"].error
    assert found["seconds"].value == pytest.approx(trace.seconds, rel=1e-3)
    assert found["idle_ratio"].value == pytest.approx(trace.idle_ratio, abs=1e-3)


def test_drawn_times_are_simulated_until_their_mean_is_precise():
    e = experiment("zero", FIXED.with_(compute="gamma(0.02,9)"), 60)
    found = e.predictions()["seconds"]
    assert found.kind == "simulated" and "runs on a shape-only problem" in found.formula
    assert 0 < found.error <= 0.005 * found.value


def test_what_has_a_formula_is_not_simulated(monkeypatch):
    monkeypatch.setattr(simulated, "means", None)
    for name in ("bsp", "asp", "ssp", "allreduce", "gosgd", "adpsgd"):
        assert "seconds" in experiment(name, FIXED.with_(compute="exponential(0.02)"), 20).predictions()
