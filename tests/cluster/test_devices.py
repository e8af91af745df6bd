"""Devices, which price a gradient by its work; times by worker; loads that change in time; servers' speeds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.cli import main
from refsgd.cluster import prices
from refsgd.cluster.cores import Loaded, Processors
from refsgd.cluster.devices import UNLOADED, Device, Load, as_loads, as_times, written
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.advice.advise import Candidate, advise
from refsgd.experiment.arguments import Usage
from refsgd.experiment.prepare import prepare
from refsgd.problems import Problem
from refsgd.problems.nn import nets
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed


class Note(NamedTuple):
    t: int


FIXED = "device(40GFLOPS,0.1ms)"
TINY = 3 * sum(row.flops for row in nets.build("tiny").leaves)  #: operations of a gradient of one image


# -- what a device says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "device"), [
    ("device(5TFLOPS, 2ms, lognormal(1,0.1))",
     Device(5e12, 0.002, math.inf, Distribution("lognormal", (1.0, 0.1)))),
    ("device(40gflops)", Device(4e10)), (" Device( 1e9 , 0.5 ) ", Device(1e9, 0.5)),
    ("device(60GFLOPS,65us,4.6GB/s)", Device(6e10, 65e-6, 4.6e9))])
def test_a_device_is_read_and_written(text, device):
    assert Machine(compute=text).compute == device
    assert Device.parse(str(device)) == device and Device(**device.to_json()) == device


@pytest.mark.parametrize(("text", "expected"), [
    ("device()", "expected a number"), ("device(2ms)", "expected FLOP/s"),
    ("device(0)", "rate 0.0 of a device; expected a finite number > 0"),
    ("device(1e9,-1)", "overhead -1.0 of a device; expected a finite number >= 0"),
    ("device(nan)", "rate nan of a device"), ("device(1e9,0,0)", "memory 0.0 of a device; expected a number > 0"),
    ("device(1e9,0,lognormal(2,0.1))", "noise lognormal(2,0.1) of a device; expected a factor of mean 1"),
    ("device(1,2,3,4)", "expected device(RATE,OVERHEAD[,MEMORY][,NOISE])"),
    ("20ms; x", "compute of worker 1: distribution 'x' not understood")])
def test_what_is_no_device_is_refused_in_one_line(text, expected, capsys):
    assert main(["run", "bsp", "--compute", text, "--steps", "1", "--quiet"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.startswith("refsgd: compute") and (
        expected in line or (expected == "expected a number" and "expected" in line))


def test_the_time_of_a_gradient_is_overhead_and_parameters_and_work():
    device = Device(rate=2e9, overhead=0.5, memory=1e6, noise=Distribution("uniform", (0.5, 1.5)))
    assert device.seconds(work=4e9, nbytes=250_000) == 0.5 + 0.25 + 2
    assert device.time(4e9, 250_000) == Distribution("uniform", (1.375, 4.125))
    assert device.scaled(2).seconds(4e9, 250_000) == 5.5


# -- problems know their work ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 256])
def test_a_net_knows_its_work_and_every_share_has_its_own(batch):
    problem = prepare("bsp", batch=batch, workers=2, steps=1).problem
    steps = problem.describe["steps_per_epoch"]
    for rank in (0, 1):
        for t in (0, steps - 1):
            assert problem.work(rank, t) == TINY * problem.images(rank, t)
    x = np.zeros(3, np.float32)
    assert problem.gradient.work(x, 0, 0) == (TINY * problem.images(0, 0), 12)


def test_own_problems_and_their_copies_say_their_work():
    problem = Problem(np.zeros(2, np.float32), lambda x, rank, t: x + rank, lambda x: 0.0,
                      work=lambda rank, t: 1e9 * (rank + 1))
    copy = replace(problem, describe={"batch": 1})
    assert copy.gradient is problem.gradient and copy.gradient.work(copy.x0, 1, 0) == (2e9, 8)
    assert replace(problem, work=lambda rank, t: 7.0).gradient.work(problem.x0, 1, 0) == (7.0, 8)
    assert (problem.gradient(problem.x0, 3, 0) == 3).all()
    found = refsgd.run("independent", problem, workers=2, steps=2, machine=Machine(compute="device(1e9,1)"))
    assert found.measured["seconds"] == 2 * (1 + 2)


@pytest.mark.parametrize("name", ["quadratic", "integers"])
def test_a_gradient_of_unknown_work_is_refused_on_a_device(name, capsys):
    assert main(["predict", "bsp", "--data", name, "--compute", FIXED]) == 2
    line = capsys.readouterr().err
    assert f"with net {name}, whose work is unknown" in line and line.count("\n") == 1
    with pytest.raises(Usage, match="expected a net such as tiny"):
        refsgd.run("bsp", data=name, machine=Machine(compute=f"3x 20ms; {FIXED}"))


def test_a_program_of_ones_own_that_hides_its_work_is_told():
    def work():
        yield Compute(np.matmul, np.eye(2), np.eye(2))

    with pytest.raises(ValueError, match="prices a gradient by its work, which matmul does not state"):
        simulate({"worker0": Node(work())}, Machine(compute=FIXED))


def test_a_net_in_shape_only_has_its_parameters_and_its_work(capsys):
    real = nets.build("resnet50", (224, 224, 3), classes=1000)
    problem = prepare("bsp", net="shapes:resnet50@224", data="none", batch=[2, 3], workers=2, steps=1).problem
    assert problem.x0.size == real.parameters == 25_557_032 and problem.describe["shape_only"]
    assert [problem.work(rank, 7) for rank in (0, 1)] == [real.work(2), real.work(3)]
    found = refsgd.run("bsp", net="shapes:tiny", data="none", batch=8, workers=2, steps=3,
                       machine=Machine(compute=FIXED))
    assert found.measured["seconds"] == pytest.approx(3 * (0.0001 + 8 * TINY / 40e9))
    for wrong, said in (("nonet", "expected shapes: and a number"), ("tiny@x", "images of size 'x'"),
                        ("tiny@2x2", "expected pixels"), ("resnet18:q@32", "expected resnet18:WIDTH")):
        assert main(["predict", "bsp", "--net", f"shapes:{wrong}", "--compute", FIXED]) == 2
        line = capsys.readouterr().err
        assert said in line and line.count("\n") == 1


# -- simulated times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [4, 256])
def test_a_step_takes_what_its_images_take(batch):
    """To the last digit, the short shares at the end of an epoch included."""
    found = refsgd.run("independent", workers=2, batch=batch, epochs=1, machine=Machine(compute=FIXED),
                       lr=0.01, evaluations=0)
    problem = prepare("independent", workers=2, batch=batch, steps=1).problem
    for rank in range(2):
        now, ends = 0.0, [e.time for e in found.trace.of(Computed, f"peer{rank}") if e.work == "gradient"]
        for t, end in enumerate(ends):
            now += 0.0001 + TINY * problem.images(rank, t) / 40e9
            assert end == now


def test_noise_is_a_factor_and_the_same_draws_serve_every_batch():
    machine = Machine(compute="device(40GFLOPS,0.1ms,lognormal(1,0.5))")

    def times(batch):
        trace = refsgd.run("independent", workers=2, batch=batch, steps=4, machine=machine).trace
        return np.array([e.time - e.start for e in trace.of(Computed) if e.work == "gradient"
                         and e.node == "peer1"])

    few, many = times(1), times(100)
    assert few / (0.0001 + TINY / 40e9) == pytest.approx(many / (0.0001 + 100 * TINY / 40e9))
    assert len(set(few)) == 4


def test_each_worker_has_its_own_time_at_its_own_speed():
    machine = Machine(compute="2x 10ms; device(40GFLOPS,0.1ms)", speeds=(1, 2, 0.5))
    found = refsgd.run("independent", workers=3, batch=8, steps=3, machine=machine).trace
    first = {e.node: e.time for e in reversed(found.of(Computed)) if e.work == "gradient"}
    assert first == {"peer0": 0.01, "peer1": 0.005, "peer2": (0.0001 * 2 + 8 * TINY / 20e9)}


def test_a_server_has_its_own_speed():
    """Two servers, the second at half speed: its updates take twice as long, and BSP waits for it."""
    machine = Machine(compute="1", update="0.25", server_speeds="1,0.5")
    found = refsgd.run("bsp", data="quadratic", workers=2, servers=2, steps=4, machine=machine)
    assert found.measured["seconds"] == 4 * 1.5
    assert found.predicted["seconds"]["kind"] == "simulated" and found.predicted["seconds"]["value"] == 4 * 1.5
    even = machine.with_(server_speeds=(0.5, 0.5))
    found = refsgd.run("bsp", data="quadratic", workers=2, servers=2, steps=4, machine=even)
    assert found.measured["seconds"] == found.predicted["seconds"]["value"] == 6
    assert found.predicted["seconds"]["kind"] == "exact"


# -- loads -------------------------------------------------------------------------------------------------

BUSY = Load.parse("worker0: 1@0, 3@30, 0.5@60")


@pytest.mark.parametrize(("start", "seconds", "end"), [
    (0, 30, 30), (0, 31, 33), (30, 10, 60), (25, 6, 33), (25, 15, 60), (25, 16, 60.5), (100, 4, 102),
    (60, 0, 60), (29, 1, 30)])
def test_what_spans_a_change_is_priced_piece_by_piece(start, seconds, end):
    assert BUSY.end(start, seconds) == end and BUSY.done(start, end) == seconds


def test_a_factor_that_is_asked_only_at_the_beginning_is_caught():
    def wrong(start, seconds):
        return start + seconds * next(factor for until, factor in BUSY.pieces(start))

    assert wrong(25, 6) != 33 and wrong(25, 16) != 60.5 and wrong(0, 30) == 30


factors = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])), max_size=4,
                   unique_by=lambda pair: pair[0]).map(lambda pairs: tuple(sorted(
                       (float(second), factor) for second, factor in pairs)))
loads = factors.map(lambda pairs: Load("worker", 0, pairs))


@given(loads, st.integers(0, 50), st.integers(0, 200), st.integers(0, 200))
def test_pieces_of_a_computation_take_as_long_as_the_whole(load, start, first, second):
    a, b = first / 8, second / 8
    assert load.end(load.end(start, a), b) == load.end(start, a + b)
    assert load.done(start, load.end(start, a)) == a
    assert load.later(start).end(0, a) + start == load.end(start, a)
    assert load.scaled(2).end(2 * start, 2 * a) == 2 * load.end(start, a)


@pytest.mark.parametrize(("text", "expected"), [
    ("worker0", "expected a node and factors from seconds on, such as worker2: 1@0, 3@30, 1@60"),
    ("worker0: 2", "expected a node"), ("worker0: 2@-1", "expected finite factors > 0 and rising seconds"),
    ("worker0: 0@1", "factor 0.0 from 1.0 s"), ("worker0: 2@5, 3@5", "rising seconds"),
    ("worker0: nan@5", "expected finite factors"), ("worker0: 2@1; worker0: 3@2", "worker0 is named twice"),
    ("worker7: 2@1", "there is no worker7; expected one of worker0 to worker3"),
    ("server1: 2@1", "there is no server1; expected one of server0 to server0"), ("disk0: 2@1", "expected a node")])
def test_what_is_no_load_is_refused_in_one_line(text, expected, capsys):
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "1", "--load", text, "--quiet"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "load" in line and expected in line


def test_a_loaded_worker_holds_up_a_synchronous_run_for_as_long_as_it_is_loaded():
    """One second a gradient; from 2.5 on worker 2 takes three times as long, until 7: its third gradient ends
    at 2.5 + 3 x 0.5 = 4, its fourth at 7, and all the others wait."""
    machine = Machine(compute="1", loads="worker2: 3@2.5, 1@7")
    run = refsgd.run("bsp", data="quadratic", workers=3, steps=6, machine=machine)
    ends = [e.time for e in run.trace.of(Computed) if e.work == "gradient" and e.node == "worker2"]
    assert ends == [1, 2, 4, 7, 8, 9] and run.measured["seconds"] == 9
    peers = refsgd.run("allreduce", data="quadratic", workers=3, steps=6, machine=machine)
    assert peers.measured["seconds"] == 9  # a peer is a worker
    alone = refsgd.run("sequential", data="quadratic", steps=6, machine=machine)
    assert alone.measured["seconds"] == 6  # there is no worker 2


def test_a_server_under_load_updates_later():
    machine = Machine(compute="1", update="0.5", loads=["server0: 2@1.25"])
    run = refsgd.run("asp", data="quadratic", workers=1, steps=2, machine=machine)
    assert [e.time for e in run.trace.of(Computed)] == [1, 1.75, 2.75, 3.75]


@pytest.mark.parametrize("kind", ["formulas", "simulated"])
def test_loads_have_no_formula_and_are_simulated(kind):
    found = refsgd.predict("bsp", data="quadratic", steps=3, kind=kind,
                           machine=Machine(compute="1", loads="worker1: 2@1"))
    assert found["seconds"].value == 1 + 2 * 2 and found["seconds"].kind == "simulated"


# -- loads where programs share processors -----------------------------------------------------------------


def shared(cores, jobs, loads):
    """When each of the jobs (begin, work), in order of their beginnings, ends."""
    host = Loaded(cores, dict(enumerate(loads)))
    for k, (begin, work) in enumerate(jobs):
        host.begin(k, begin, work)
    return [host.due(k) for k in range(len(jobs))]


def stepped(cores, jobs, loads):
    """The same in exact arithmetic, from one change to the next."""
    now, left, ends, todo = Fraction(0), {}, {}, list(enumerate(jobs))
    changes = sorted({Fraction(second) for load in loads for second, _ in load.factors})
    while todo or left:
        factor = {k: Fraction(next((f for s, f in reversed(loads[k].factors) if s <= now), 1)) for k in left}
        share = min(Fraction(1), Fraction(cores) / len(left)) if left else Fraction(1)
        times = [Fraction(todo[0][1][0])] if todo else []
        times += [now + work * factor[k] / share for k, work in left.items()]
        times += [next((c for c in changes if c > now), math.inf)]
        until = min(times)
        left = {k: work - (until - now) * share / factor[k] for k, work in left.items()}
        now = until
        for k in [k for k, work in left.items() if work == 0]:
            ends[k] = float(now)
            del left[k]
        while todo and todo[0][1][0] == now:
            k, (_, work) = todo.pop(0)
            left[k] = Fraction(work)
    return [ends[k] for k in range(len(jobs))]


jobs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 16).map(lambda n: n / 2)), min_size=1, max_size=5,
                ).map(lambda pairs: sorted(pairs, key=lambda pair: pair[0]))


@given(st.integers(1, 3), jobs, st.lists(loads, min_size=5, max_size=5))
def test_sharing_under_load_is_what_exact_arithmetic_says(cores, jobs, loads):
    assert shared(cores, jobs, loads) == pytest.approx(stepped(cores, jobs, loads), rel=1e-12)


@given(st.integers(1, 3), jobs)
def test_without_loads_it_is_sharing_as_ever(cores, jobs):
    host = Processors(cores)
    for k, (begin, work) in enumerate(jobs):
        host.begin(k, begin, work)
    assert shared(cores, jobs, [UNLOADED] * 5) == pytest.approx([host.due(k) for k in range(len(jobs))])


def test_programs_with_processors_of_their_own_are_exact_under_load():
    """Nobody's end moves when others begin, not by a rounding either."""
    load = Load.parse("worker0: 3@0.1, 1@0.7")
    assert shared(math.inf, [(0, 0.3), (0.1, 0.1), (0.2, 0.7)], [load, UNLOADED, load]) == [
        load.end(0, 0.3), 0.1 + 0.1, load.end(0.2, 0.7)]


def test_a_loaded_program_beside_another_on_one_core():
    """Half a core each; the loaded one does a third of that from second 2 on."""
    loads = [Load.parse("worker0: 3@2"), UNLOADED]
    assert shared(1, [(0, 2), (0, 3)], loads) == pytest.approx([7, 6])
    assert shared(2, [(0, 2), (0, 3)], loads) == [2, 3]


# -- predictions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "allreduce", "local-sgd", "independent", "sequential"])
@pytest.mark.parametrize("batch", [4, 16])
def test_a_prediction_on_a_device_is_exact_where_it_is_for_fixed_times(name, batch):
    options = {"workers": 1 if name == "sequential" else 3, "batch": batch, "steps": 6, "lr": 0.01}
    machine = Machine(compute=FIXED, latency="1ms", bandwidth="50MB/s")
    found = refsgd.run(name, machine=machine, evaluations=0, **options)
    fixed = refsgd.predict(name, machine=prepare(name, machine=machine, **options).priced, **options)
    for figure in ("seconds", "seconds_per_iteration", "idle_ratio"):
        if figure in fixed:
            assert found.predicted[figure]["value"] == fixed[figure].value
            assert found.predicted[figure]["kind"] == fixed[figure].kind
    if fixed["seconds"].kind == "exact":
        assert found.predicted["seconds"]["value"] == pytest.approx(found.measured["seconds"], rel=1e-12)


def test_short_shares_make_an_approximation():
    found = refsgd.predict("bsp", workers=4, batch=100, epochs=1, machine=Machine(compute=FIXED))
    assert found["seconds"].kind == "approximation" and found["updates"].kind == "exact"
    assert "shares of an epoch's last step are smaller" in found["seconds"].assumptions
    measured = refsgd.run("bsp", workers=4, batch=100, epochs=1, machine=Machine(compute=FIXED)).measured
    assert found["seconds"].value == pytest.approx(measured["seconds"], rel=0.01)


@pytest.mark.parametrize("name", ["bsp", "ssp", "allreduce", "independent"])
def test_times_that_differ_by_worker_are_predicted(name):
    machine = Machine(compute="20ms; 30ms; 45ms", latency="1ms")
    found = refsgd.run(name, data="quadratic", workers=3, steps=40, machine=machine)
    seconds = found.predicted["seconds"]
    within = 1e-9 if seconds["kind"] == "exact" else 0.05
    assert seconds["value"] == pytest.approx(found.measured["seconds"], rel=within)


def test_times_of_too_many_workers_are_refused(capsys):
    assert main(["run", "bsp", "--data", "quadratic", "--compute", "3x 20ms; 40ms", "--workers", "3"]) == 2
    assert "for 4 workers in a run with 3; expected one for each, or one for all" in capsys.readouterr().err
    assert main(["run", "bsp", "--data", "quadratic", "--server-speeds", "1,2"]) == 2
    assert "server_speeds 1,2 for 1 server; expected a speed for each" in capsys.readouterr().err


@pytest.mark.usefixtures("few_draws")
def test_advice_prices_a_device_by_the_model(capsys, monkeypatch):
    """--rate is a device without overhead: the same advice, and times of the model's work."""
    some = (Candidate("bsp", {}), Candidate("allreduce", {"collective": "ring"}), Candidate("gosgd", {"p": 0.1}))
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", partial(advise, candidates=some))
    model = ["advise", "--net", "tiny", "--image", "8,8,1", "--batch", "64", "--workers", "2", "--json", "-"]
    found = []
    for machine in (["--rate", "40GFLOPS", "--spread", "0.2"],
                    ["--compute", "device(40GFLOPS,0,lognormal(1,0.2))"]):
        assert main([*model, *machine]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    (gossip,) = [s for s in json.loads(found[0])["strategies"] if s["algorithm"] == "gosgd"]
    assert gossip["metrics"]["seconds_per_iteration"]["value"] == pytest.approx(64 * TINY / 40e9)
    assert main(["advise", "--parameters", "1000", "--compute", FIXED]) == 2
    assert "without the model's work; expected --flops, or --net" in capsys.readouterr().err
    assert main([*model, "--compute", "20ms", "--load", "worker0: 2@1"]) == 2
    assert "expected a machine without loads" in capsys.readouterr().err


# -- files, slow motion, deaths ----------------------------------------------------------------------------

ALL = Machine(compute="2x lognormal(20ms,0.3); device(40GFLOPS,0.1ms,5GB/s,lognormal(1,0.1))", update="1ms",
              server_speeds=(0.5, 2), speeds=(1, 2, 0.3), loads="worker2: 3@0.1, 1@0.7; server1: 2@3.3")


def test_a_machine_with_all_of_it_is_written_and_read(tmp_path):
    assert Machine.from_json(ALL.to_json()) == ALL and ALL.to_json()["loads"] == {
        "worker2": "3.0@0.1, 1.0@0.7", "server1": "2.0@3.3"}
    assert as_times("compute", written(ALL.compute)) == ALL.compute
    assert as_loads(ALL.to_json()["loads"]) == ALL.loads
    flat = Machine(compute="1").to_json()
    assert "loads" not in flat and "server_speeds" not in flat


def test_slow_motion_slows_devices_and_loads():
    machine = Machine(compute=FIXED, loads="worker0: 3@0.001, 1@0.003", latency="0.1ms")
    fast, slow = (refsgd.run("asp", workers=2, steps=5, machine=m, evaluations=0).trace
                  for m in (machine, machine.slow_motion(8)))
    assert [8 * e.time for e in fast.events] == pytest.approx([e.time for e in slow.events])


def test_after_a_death_the_others_keep_their_times_and_loads():
    machine = Machine(compute="1; 2; 4", loads="worker2: 2@10, 1@30; worker0: 5@1; server0: 3@7")
    left = prices.left(machine, [1, 2], 12.0)
    assert left.compute == Machine(compute="2;4").compute
    assert left.loads == as_loads("worker1: 2@0, 1@18; server0: 3@0")
    run = refsgd.run("allreduce", data="quadratic", workers=3, steps=4, faults=["kill worker 0 at step 2"],
                     on_death="shrink", machine=Machine(compute="1; 2; 4"))
    assert run.measured["seconds"] >= 16


# -- real processes ----------------------------------------------------------------------------------------


def exchange(n=2, steps=6):
    """Workers that compute and a server that answers each."""
    def worker():
        for t in range(steps):
            yield Compute(abs, -t)
            yield Send("server0", Note(t))
            yield Recv(Note)
            yield Mark("clock", t=t)

    def server():
        for t in range(n * steps):
            src, _ = yield Recv(Note)
            yield Compute(abs, -t, kind="update")
            yield Send(src, Note(t))

    return {**{f"worker{i}": Node(worker(), host="left") for i in range(n)},
            "server0": Node(server(), role="server")}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("transport", "cores"), [("shm", None), ("shm", 1), ("tcp", 1)])
def test_paced_processes_take_the_simulated_time_under_load(transport, cores):
    """Two workers on one host, of which one is loaded for some time; a server of half the speed."""
    machine = Machine(compute="0.06; 0.09", update="0.01", server_speeds=(0.5,), cores=cores,
                      loads="worker0: 3@0.1, 1@0.4; server0: 2@0.3")
    expected = simulate(exchange, machine, 1).trace
    for _ in range(3):  # a machine that is busy with other things may spoil one run
        found = processes.run(exchange, machine, 1, transport=transport).trace
        if abs(found.seconds / expected.seconds - 1) < 0.05:
            break
    assert found.seconds == pytest.approx(expected.seconds, rel=0.05)
    plain = simulate(exchange, machine.with_(loads=()), 1).trace
    assert expected.seconds > 1.1 * plain.seconds


def test_the_text_of_a_long_list_is_short():
    measured = Distribution("empirical", tuple(float(k) for k in range(1, 101)))
    assert str(measured) == "empirical(1,2,...,100)"
    assert len(str(Machine(compute=Device(1e9, noise=measured.scaled(1 / measured.mean))))) < 150
    assert Machine.from_json(Machine(compute=measured).to_json()).compute == measured
    with pytest.raises(ValueError):
        Machine(compute=str(measured))


@pytest.mark.parametrize("text", [
    "20ms\n30ms\n0.05\n", "rank,seconds\n0,20ms\n1,30ms\n2,50ms\n", "# of a job\n0\t0.02\n1\t0.03\n\n2\t0.05\n",
    "\ufeffworker  time\n0  20ms\n1  30ms\n2  50ms"])
def test_a_column_of_a_file_has_a_time_for_each_worker(tmp_path, text):
    (tmp_path / "times.csv").write_text(text, encoding="utf-8")
    assert Machine(compute=f"@{tmp_path / 'times.csv'}") == Machine(compute="20ms; 30ms; 50ms")


def test_a_column_may_have_distributions(tmp_path):
    (tmp_path / "times.txt").write_text("0, lognormal(20ms,0.1)\n1, exponential(30ms)\n")
    assert Machine(compute=f"@{tmp_path / 'times.txt'}") == Machine(compute="lognormal(20ms,0.1); exponential(30ms)")


@pytest.mark.parametrize(("text", "said"), [(None, "No such file"), ("", "no times"), ("20ms\nfast\n", "of worker 1")])
def test_a_file_without_times_is_one_line(tmp_path, text, said, capsys):
    path = tmp_path / "times.csv"
    if text is not None:
        path.write_text(text)
    assert main(["predict", "bsp", "--data", "quadratic", "--workers", "2", "--compute", f"@{path}"]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
