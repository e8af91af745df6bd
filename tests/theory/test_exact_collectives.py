"""What is called exact of a collective is exact, also for vectors that ranks cannot divide equally."""

import pytest

import refsgd
from refsgd.experiment.prepare import prepare
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.theory.phenomena.collectives import ALLREDUCE
from refsgd.trace.metrics import measure

MACHINE = refsgd.Machine(compute="fixed(0.02)", latency=1e-3, bandwidth=1e6)
OPTIONS = [*({"collective": name} for name in (*ALLREDUCE, "rings")), {"collective": "rings", "rings": 3}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values())))
def test_exact_seconds_and_bytes_are_those_of_a_run(options):
    known = 0
    for workers in (2, 3, 4):
        for size in (7, 36, 37):
            e = prepare("allreduce", quadratic(d=size, workers=workers), workers=workers, steps=5, lr=0.1,
                        machine=MACHINE, **options)
            found, run = e.formulas(), measure(simulate(e.deploy(), MACHINE).trace)
            for name in {"seconds", "bytes_sent"} & found.keys():
                if found[name].kind == "exact":
                    known += 1
                    assert found[name].value == pytest.approx(run[name], rel=1e-9), (workers, size, name)
    assert known
