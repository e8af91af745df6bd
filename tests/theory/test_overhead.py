"""Formulas on machines whose messages have an overhead, beside the simulator."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.cluster.machine import Machine

WAYS = st.builds(lambda o, b, latency: {"overhead": f"{o}us,{b}ns/B", "latency": f"{latency}us"},
                 st.integers(1, 3000), st.sampled_from([0, 1, 200]), st.integers(0, 4000))


@pytest.mark.slow
@given(WAYS, st.integers(2, 9), st.sampled_from([None, 1e6]))
def test_a_ring_is_exact(way, workers, bandwidth):
    """Of equal chunks and equal gradients; 2520 numbers divide into up to nine."""
    machine = Machine(compute="20ms", update="1ms", **way, **({"bandwidth": bandwidth} if bandwidth else {}))
    run = refsgd.run("allreduce", net="shapes:2520", data="none", workers=workers, steps=6, machine=machine)
    assert run.predicted["seconds"]["kind"] == "exact"
    for name in ("seconds", "seconds_per_iteration", "idle_ratio"):
        assert run.predicted[name]["value"] == pytest.approx(run.measured[name], rel=1e-9)


@pytest.mark.slow
@given(WAYS, st.integers(1, 9))
def test_a_server_is_exact(way, workers):
    """In the long run."""
    machine = Machine(compute="20ms", update="1ms", **way)
    runs = [refsgd.run("bsp", net="shapes:720", data="none", workers=workers, steps=steps, machine=machine)
            for steps in (20, 40)]
    step = (runs[1].measured["seconds"] - runs[0].measured["seconds"]) / 20
    assert runs[1].predicted["seconds_per_iteration"]["value"] == pytest.approx(step, rel=1e-9)
    assert runs[1].predicted["seconds_per_iteration"]["kind"] == "exact"


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind"), [("bsp", "numerical"), ("allreduce", "simulated")])
def test_random_gradients(algorithm, kind):
    """At a server each message takes its turn.  In a ring, a late peer finds messages that have arrived, which costs it
    an overhead and no latency: no other machine is like that."""
    machine = Machine(compute="exponential(20ms)", latency="1ms", overhead="2ms")
    options = {"net": "shapes:720", "data": "none", "workers": 4, "steps": 400, "machine": machine}
    formula, simulated = (refsgd.predict(algorithm, kind=kind, **options)["seconds_per_iteration"]
                          for kind in ("formulas", "simulated"))
    assert formula.kind == kind
    assert formula.value == pytest.approx(simulated.value, rel=0.02)


@pytest.mark.parametrize("algorithm", ["sequential", "independent", "hogwild"])
def test_an_overhead_means_nothing_without_messages(algorithm):
    plain, other = (refsgd.predict(algorithm, data="quadratic", workers=3, steps=5,
                                   machine=Machine(compute="20ms", overhead=o)) for o in (0, "9ms"))
    assert plain["seconds"].value == other["seconds"].value and other["seconds"].kind == plain["seconds"].kind


@pytest.mark.parametrize(("algorithm", "more"), [
    ("bsp", {"bandwidth": 1e6}), ("bsp", {"hosts": "cyclic:1"}), ("bsp", {"updating": 1e-9}), ("asp", {}), ("dpsgd", {}),
    ("allreduce", {"crowding": (1, 2)}), ("allreduce", {"inside": "1us,1GB/s", "hosts": "2x2"})])
def test_what_has_no_formula_is_simulated(algorithm, more):
    machine = Machine(compute="20ms", overhead="1ms", **more)
    options = {"net": "shapes:720", "data": "none", "workers": 4, "steps": 5, "machine": machine}
    found, run = refsgd.predict(algorithm, **options), refsgd.run(algorithm, **options)
    assert found["seconds"].kind == "simulated" and found["bytes_sent"].kind == "exact"
    assert found["seconds"].value == pytest.approx(run.measured["seconds"])
