"""What studies read from traces, where it can be reckoned by hand."""

import pytest

from benchmarks.studies.looks import ages, exchanges, pace
from refsgd.cluster.machine import Machine
from refsgd.experiment.run import run
from refsgd.trace import Computed


def test_parts_of_an_exchange():
    """One worker, its server beside it: a push is there at once, and the pull is the update, which nobody
    slows down."""
    machine = Machine(compute="fixed(1)", update=0.25, latency=0.1, colocated=True, cores=1)
    found = exchanges(run("asp", data="quadratic", workers=1, steps=3, machine=machine))
    assert found == pytest.approx({"gradient": 1, "update": 0.25, "push": 0, "pull": 0.25, "way": 0,
                                   "computing": 0.5})  # a machine without hosts: each node counts alone
    apart = exchanges(run("bsp", data="quadratic", workers=2, steps=3,
                          machine=machine.with_(colocated=False, speeds=(1, 0.5))))
    assert apart == pytest.approx({"gradient": 1.5, "update": 0.25, "push": (1 + 0.1 + 0.1) / 2, "pull": 0.35,
                                   "way": 0.1, "computing": (1 + 2 + 0.25) / (3 * 2.45)})  # on three hosts


def test_an_update_beside_a_gradient_takes_twice_as_long_and_so_does_its_pull():
    """Worker 1, which is fast, is served beside the one gradient of worker 0: each update and each pull
    take twice 0.25."""
    machine = Machine(compute="fixed(10)", update=0.25, latency=0.1, colocated=True, cores=1, speeds=(1, 10))
    trace = run("asp", data="quadratic", workers=2, steps=4, machine=machine).trace
    updates = [e.time - e.start for e in trace.of(Computed) if e.work == "update"]
    assert updates[:4] == pytest.approx([0.5] * 4)  # of worker 1, while worker 0 computes
    first = next(e for e in trace.of(Computed, "worker0"))
    assert first.time - first.start == pytest.approx(10 + 4 * 0.25)


def test_ages_and_pace():
    """Two equal workers in turn: one update comes between read and use, but for the first."""
    result = run("asp", data="quadratic", workers=2, steps=8, machine=Machine(compute="fixed(1)"))
    assert ages(result)["ages"][-1] == [1.0, pytest.approx(15 / 16), 0, 1]
    assert pace(result)["pace"] == pytest.approx(2)
