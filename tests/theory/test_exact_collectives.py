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


def test_ranks_that_run_ahead_make_a_figure_low():
    """Halving and doubling of nine ranks was called exact for gamma = 0."""
    machine = refsgd.Machine(compute="fixed(0.02)", latency=0.24, bandwidth=4e4)
    told = {"workers": 9, "steps": 1, "net": "shapes:10000", "data": "none", "machine": machine,
            "collective": "halving-doubling"}
    found, run = refsgd.predict("allreduce", **told)["seconds"], refsgd.run("allreduce", **told).measured["seconds"]
    assert found.kind == "approximation" and run > 1.01 * found.value


@pytest.mark.parametrize("collective", ["recursive-doubling", "hierarchical", "ring", "tree"])
@pytest.mark.parametrize("name", ["gpipe", "pipedream"])
def test_replicas_of_a_stage_send_what_their_collective_does(name, collective):
    """All sent as much as the ring."""
    told = {"workers": 8, "stages": 2, "steps": 3, "collective": collective}
    found = refsgd.predict(name, **told)["bytes_sent"]
    assert found.kind == "exact" and found.value == refsgd.run(name, **told).measured["bytes_sent"]
