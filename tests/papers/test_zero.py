"""What is claimed of ZeRO (Rajbhandari et al. 2020)."""

import ctypes
import inspect
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import GeneratorType, MethodType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.allreduce import allreduce, zero
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Node
from refsgd.experiment.result import final_parameters
from refsgd.problems import classification, data, quadratic
from refsgd.problems.layers import Part, by_work, whole
from refsgd.problems.nn import nets
from refsgd.problems.shapes import of_net
from refsgd.runtimes.simulator import simulate
from refsgd.theory.phenomena import memory
from refsgd.trace.moments import joined
from tests.strategies import machines, seeds
from tests.wrong import changed

MOMENTUM = SGD(0.1, momentum=0.9, weight_decay=0.01, schedule=StepDecay(2, 0.5))
CALM = Machine(compute="fixed(1)")
stages = pytest.mark.parametrize("stage", [1, 2, 3])


def in_parts(d, edges, workers, **more):
    """A noisy quadratic with layers between these edges, and shares of 0 to 3 images."""
    found = quadratic(d=d, workers=workers, noise=1.0)

    def gradient(x, rank, t):
        return found.gradient(x, rank, t) * np.float32(images(rank, t) > 0)

    def images(rank, t):
        return (rank + t) % 4

    edges = [0, *sorted({edge for edge in edges if 0 < edge < d}), d]
    parts = [Part(f"layer{k}", slice(a, b), b - a) for k, (a, b) in enumerate(pairwise(edges))]
    layers = by_work(parts, whole([part.slice for part in parts], gradient))
    return refsgd.Problem(np.linspace(-1, 1, d, dtype=np.float32), gradient, found.loss, images=images, layers=layers, **more)


def whole_models(run):
    """The parameters after each update, joined of what the owners say of their shards."""
    found = {}
    for mark in run.trace.marks("update"):
        found.setdefault(mark.values["version"], {})[mark.values["part"]] = mark.values["x"]
    return [joined(shards.items())[0] for _, shards in sorted(found.items())]


def hold_bits(deploy, stage, problem, workers, steps=4, machine=CALM, seed=0, flat=False):
    """Every update, and the end, are those of a ring all-reduce, of each layer if these are divided; each
    shard has one owner, all together the vector."""
    run = simulate(deploy(problem, workers, steps, MOMENTUM, stage=stage, flat=flat), machine, seed)
    summed = problem if flat or stage == 1 else replace(problem, exchange=Exchange(overlap="backward"))
    ring = simulate(allreduce.allreduce(summed, workers, steps, MOMENTUM), CALM)
    assert np.array_equal(final_parameters(run), final_parameters(ring))
    right = [mark.values["x"] for mark in ring.trace.marks("update") if mark.node == "peer0"]
    np.testing.assert_array_equal(whole_models(run), right)
    marks = run.trace.marks("update")
    assert {(mark.node, mark.values["part"]) for mark in marks} == {(f"peer{k}", k) for k in range(workers)}
    assert all(tau == 0 for _, tau in run.trace.staleness) and len(run.trace.staleness) == steps * workers**2
    assert run.trace.clock_gap == 0 and run.trace.lead <= 1


@given(machine=machines, seed=seeds, stage=st.integers(1, 3), workers=st.integers(1, 6), d=st.integers(1, 14),
       edges=st.sets(st.integers(1, 13)), flat=st.booleans())
def test_all_stages_take_the_steps_of_a_ring_all_reduce_bit_for_bit(machine, seed, stage, workers, d, edges, flat):
    """For any shards and layers, unequal shares, any schedule."""
    hold_bits(zero.zero, stage, in_parts(d, edges, workers), workers, 3, machine, seed, flat)


@stages
@pytest.mark.parametrize("net", ["tiny", "resnet18:2"])
def test_nets_take_the_same_steps(stage, net):
    digits = data.load("digits")
    hold_bits(zero.zero, stage, classification(digits, nets.build(net, (8, 8, 1)), 3, [9, 5, 2]), 3, 2)


@pytest.mark.parametrize("runtime", ["processes", "tcp"])
@stages
def test_real_processes_take_the_same_steps(stage, runtime):
    common = {"workers": 3, "steps": 3, "data": "digits", "net": "tiny", "batch": "9,5,2", "momentum": 0.9}
    machine = refsgd.Machine() if runtime == "processes" else Machine(compute="fixed(0.03)")
    found = refsgd.run("zero", stage=stage, runtime=runtime, machine=machine, **common)
    ring = refsgd.run("allreduce", runtime="simulator", overlap="backward" if stage > 1 else "none", **common)
    assert found.parameters_sha256 == ring.parameters_sha256


#: the update, its mark, and the gathering
AFTER = inspect.getsource(zero.train).partition("again=True)\n")[2].partition("        yield Mark")[0]
#: text of the program, what a wrong one says instead, stages in which it is noticed
WRONG = {
    "two owners of a shard": ("self.owned(unit, unit)[rank] for", "self.owned(unit, unit)[rank // 2] for", (1, 2, 3)),
    "two that update it": ("self.problem, self.sgd, self.units = rank,",
                           "self.problem, self.sgd, self.units = rank - rank % 2,", (1, 2, 3)),
    "gathered before the update": (AFTER, "".join(AFTER.splitlines(True)[i] for i in (3, 5, 1, 2)), (1, 2)),
    "not divided": ("mean[own] = g / np.float32(whole)", "mean[own] = g", (1, 2, 3)),
    "one layer not divided": ("mean[own] = g / np.float32(whole)",
                              "mean[own] = g / np.float32(whole if part.start else 1)", (1, 2, 3)),
    "the velocity of other parameters": ("        yield from me.mark",
                                         "        state = np.roll(state, 1)\n        yield from me.mark", (1, 2, 3)),
    "a share without its weight": ("if share[self.rank] != 1:", "if False:", (1, 2, 3)),
    "a layer's section of the neighbour": ("shard[own], cut", "np.roll(shard, 1)[own], cut", (1, 2, 3))}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_programs_are_caught(case):
    right, wrong, noticed = WRONG[case]
    deploy = changed(zero, right, wrong).zero
    for stage in noticed:
        with pytest.raises(Exception):  # noqa: B017 - wrong sizes end a run before its bits are compared
            hold_bits(deploy, stage, in_parts(12, [2, 7], 4), 4)


@pytest.mark.parametrize(("stage", "flat"), [(1, False), *((stage, flat) for stage in (2, 3) for flat in (False, True))])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_bytes_are_those_of_the_paper(stage, workers, flat):
    """Section 7: 2 M a step in stages 1 and 2, 3 M in stage 3, times (n-1)/n; uneven shards and layers as
    well, by peer to one number a message."""
    for d, edges in ((60, [7, 20, 33]), (61, [7, 20, 33]), (3, [1, 2])):
        problem, n = in_parts(d, edges, workers), workers
        deployed, times = zero.zero(problem, n, 2, SGD(0.1), stage=stage, flat=flat), 3 if stage == 3 else 2
        found = simulate(deployed, CALM).trace.bytes_sent
        assert sum(found.values()) == 2 * times * (n - 1) * 4 * d
        figures = refsgd.predict("zero", problem, workers=n, steps=2, stage=stage, flat=flat, machine=CALM)
        assert figures["bytes_sent"].value == sum(found.values()) and figures["bytes_sent"].kind == "exact"
        if d % n == 0 and (flat or stage == 1):
            assert set(found.values()) == {2 * times * (n - 1) * 4 * d / n} or n == 1


@pytest.mark.parametrize("machine", [
    Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4e4, update=0.003, reduction=1e-5),
    Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4e4, speeds=(1, 0.5, 2)),
    Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4e4, hosts="worker0,worker1;worker2")])
@stages
def test_seconds_are_those_of_a_run(stage, machine):
    layered = in_parts(61, [7, 20, 33], 3)
    for problem in (layered, refsgd.Problem(layered.x0, layered.gradient, layered.loss)):
        found = refsgd.run("zero", problem, workers=3, steps=6, stage=stage, machine=machine, evaluations=0)
        told, steady = found.predicted["seconds"], stage > 1 and not (machine.speeds or machine.hosts)
        assert told["kind"] == ("approximation" if steady else "simulated")  # of chunks of few numbers, where one more is much
        assert told["value"] == pytest.approx(found.measured["seconds"], rel=0.03 if steady else 1e-9)


def test_stage_1_takes_the_time_of_its_formula():
    n, m, alpha, beta, gamma, u = 4, 4 * 15, 0.001, 1 / 4e4, 1e-5, 0.003
    machine = Machine(compute="fixed(0.02)", latency=alpha, bandwidth=1 / beta, update=u, reduction=gamma)
    told = refsgd.predict("zero", in_parts(60, [7], n), workers=n, steps=3, stage=1, machine=machine)
    step = 0.02 + 2 * (n - 1) * (alpha + m * beta) + (n - 1) * m * gamma + u
    assert told["seconds"].value == pytest.approx(3 * step) and told["seconds"].kind == "exact"


@pytest.mark.parametrize("stage, times", [(2, 2), (3, 3)])
def test_layers_are_divided_so_that_all_links_carry_them(stage, times):
    """ResNet-50, 16 nodes, 10 Gbps, no latency: a step sends 2 or 3 (n-1)/n M from each node, 153 or 230 ms; shards of
    the vector as a whole leave most links idle."""
    def step(**options):
        return refsgd.predict("zero", net="shapes:resnet50@224", data="none", workers=16, steps=1, stage=stage, batch=1,
                              machine=Machine(compute="fixed(0)", latency=0, bandwidth=1.25e9), **options)["seconds"].value

    assert step() == pytest.approx(times * 15 / 16 * 4 * 25_557_032 / 1.25e9, rel=0.01)
    assert step(flat=True) > 3 * step()


def test_a_net_with_layers_in_name_only_is_predicted_too():
    found = refsgd.run("zero", of_net("resnet18:4@32x32x3", 4), workers=4, steps=2, stage=3, evaluations=0,
                       machine=Machine(compute="fixed(1)", latency=0.001, bandwidth=1e6))
    assert found.predicted["seconds"]["value"] == pytest.approx(found.measured["seconds"], rel=1e-4)


@pytest.mark.parametrize("stage", [2, 3])
def test_layers_that_can_be_divided_equally_are_predicted_exactly(stage):
    """T + (n-1) sum_l (stage (alpha + m_l beta) + m_l gamma) + u: each layer is reduced once, and gathered once or twice."""
    n, alpha, beta, gamma, u = 4, 0.001, 1 / 4e4, 1e-5, 0.003
    machine = Machine(compute="fixed(0.02)", latency=alpha, bandwidth=1 / beta, update=u, reduction=gamma)
    found = refsgd.run("zero", in_parts(60, [8, 20, 36], n), workers=n, steps=3, stage=stage, machine=machine, evaluations=0)
    chunks = [4 * size / n for size in (8, 12, 16, 24)]
    step = 0.02 + (n - 1) * sum(stage * (alpha + m * beta) + m * gamma for m in chunks) + u
    assert found.predicted["seconds"]["kind"] == "exact"
    assert 3 * step == pytest.approx(found.predicted["seconds"]["value"]) == pytest.approx(found.measured["seconds"])


# -- memory --------------------------------------------------------------------------------------------------


def arrays(thing, seen):
    """The arrays that a program can reach in its frames: its own, those of its shard, of a pass."""
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray):
        seen["arrays"].append(thing)
    elif isinstance(thing, GeneratorType):
        arrays(thing.gi_frame.f_locals if thing.gi_frame else {}, seen)
        arrays(thing.gi_yieldfrom, seen)
    elif isinstance(thing, dict):
        arrays(list(thing.values()), seen)
    elif isinstance(thing, list | tuple):
        for each in thing:
            arrays(each, seen)
    elif isinstance(thing, MethodType):
        arrays(thing.__self__, seen)
    elif type(thing).__module__.startswith(("refsgd.algorithms", "refsgd.problems.layers", "functools")):
        arrays(vars(thing) | {"args": getattr(thing, "keywords", {})}, seen)


def holds(program, problem, images):
    """Bytes that a program reaches, without the starting point, which nobody copies, and the images."""
    seen = {"arrays": []}
    arrays(program, seen)
    total = end = 0
    for first, nbytes in sorted((a.ctypes.data, a.nbytes) for a in seen["arrays"] if a.dtype == np.float32 and not (
            np.may_share_memory(a, problem.x0) or a.size in images)):
        total += max(first + nbytes - max(first, end), 0)  # of views of one array, what each adds
        end = max(end, first + nbytes)
    return total


def watched(program, problem, images, most):
    """The program, and the most that it held at any effect."""
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        most[0] = max(most[0], holds(program, problem, images))
        answer = yield effect
        del effect


@stages
@pytest.mark.parametrize("name", ["tiny", pytest.param("resnet18:16", marks=pytest.mark.slow)])
def test_a_peer_never_holds_more_than_the_formula(stage, name):
    """Counted at every effect: parameters, gradients, velocity, the layer that is gathered or reduced; without
    activations, images, and the kernels' buffers."""
    net = nets.build(name, (8, 8, 1))
    problem, n = classification(data.load("digits"), net, 4, 2), 4
    images, most = {2 * 64, 1797 * 64}, [[0] for _ in range(n)]
    nodes = zero.zero(problem, n, 2, MOMENTUM, stage=stage)
    simulate({name: Node(watched(node.main, problem, images, most[node.rank]), rank=node.rank)
              for name, node in nodes.items()}, CALM)
    layer = max(part.slice.stop - part.slice.start for part in net.parts)
    told = memory.zero(net.parameters, n, stage, layer, optimiser="momentum")
    # The ring does not add in place, and before it is gathered a shard stands beside the old parameters.
    more = {1: 4 * net.parameters * (1 + 1 / n), 2: net.parameters, 3: 0}[stage]
    assert 0.9 * told.value < max(map(max, most)) <= told.value + more + 4 * 64, (most, told)


def test_zero_3_of_resnet18_16_holds_a_quarter_and_a_layer():
    """Of parameters and velocity, on 4 workers; that no peer ever holds more is counted above."""
    net = nets.build("resnet18:16", (32, 32, 3))
    layer = max(part.slice.stop - part.slice.start for part in net.parts)
    told = memory.zero(net.parameters, 4, 3, layer, optimiser="momentum").terms
    assert told["parameters"] + told["optimiser state"] <= 2 * net.parameters + 8
    assert told["largest layer"] == 8 * layer


def note(folder, t):
    """Note the private memory of this process, without what malloc keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text()
    kilobytes = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    with (folder / str(os.getpid())).open("a") as file:
        file.write(f"{t} {1024 * kilobytes}\n")


def resident(folder, name, width, **options):
    """Most private bytes of each worker's process in step 1, when it sums gradients; later ones also keep
    parameters of earlier updates, for the history."""
    problem = classification(data.load("digits"), nets.build(f"resnet18:{width}", (8, 8, 1)), 4, 1)
    folder, launcher = folder / f"{name}{width}", os.getpid()
    folder.mkdir()

    def images(rank, t):
        if rank == 0 and os.getpid() != launcher:
            note(folder, t)
        return problem.images(rank, t)

    refsgd.run(name, replace(problem, images=images, work=None), workers=4, steps=2, momentum=0.9, evaluations=0,
               runtime="processes", machine=refsgd.Machine(), **options)
    rows = [[line.split() for line in file.read_text().splitlines()] for file in folder.iterdir()]
    return [max(int(nbytes) for t, nbytes in each if t == "1") for each in rows if len(each) > 1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from Linux's /proc")
def test_resident_memory_is_that_of_the_formula_within_a_fifth(tmp_path):
    """Private memory of the four processes beyond that of the same run with a net of 11,000 parameters: stage 3
    beside all-reduce, with 6.3 million parameters and a batch of one small image."""
    net = nets.build("resnet18:48", (8, 8, 1))
    layer = 4 * max(part.slice.stop - part.slice.start for part in net.parts)  # kernels keep one turned layer
    told = {"zero": memory.zero(net.parameters, 4, 3, layer // 4, optimiser="momentum").value + layer,
            "allreduce": memory.worker(net.parameters, 0.0, 1, optimiser="momentum").value + layer}
    for name, options in (("zero", {"stage": 3}), ("allreduce", {})):
        wide, narrow = (resident(tmp_path, name, width, **options) for width in (48, 2))
        assert len(wide) == len(narrow) == 4
        grown = max(wide) - max(narrow)
        assert grown == pytest.approx(told[name], rel=0.2), (name, wide, narrow, told)


def test_formulas_of_memory_by_hand():
    for stage, held in ((1, 40 + 40 + 10), (2, 40 + 10 + 10 + 24), (3, 10 + 10 + 10 + 24)):
        assert memory.zero(10, 4, stage, 3, optimiser="momentum").value == pytest.approx(held, abs=6)
    assert memory.zero(12, 4, 3, 0).value == 2 * 12


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, message", [
    ({"stage": 4}, "^stage 4; expected 1, 2 or 3$"), ({"stage": 0}, "^stage 0; expected 1, 2 or 3$"),
    ({"overlap": "backward"}, "^overlap backward with zero: its stage says what is exchanged and when"),
    ({"on_death": "shrink"}, "^on_death shrink with zero: a worker has the only copy of its shard; expected stop$")])
def test_what_zero_does_not_take_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        refsgd.run("zero", steps=1, runtime="simulator", **options)
