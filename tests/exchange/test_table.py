"""Each option of an exchange with each algorithm: switched on, with its effect and its invariants, or refused alike."""

from itertools import pairwise

import numpy as np
import pytest

import refsgd
import refsgd.testing
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.exchange import Exchange, of
from refsgd.algorithms.facts import EXCHANGE, facts_of
from refsgd.effects import ranks
from refsgd.experiment.compare import compare
from refsgd.problems import integer_gradients
from refsgd.problems.layers import Part, by_work, whole
from refsgd.trace import Computed, Received, Sent
from tests.catalogue import taking

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
SLOW = refsgd.Machine(compute="fixed(0.01)", bandwidth=5e3)  # a gradient takes as long as 50 of its 256 bytes
#: an option to test, and those that it needs to show
HOW = {"layout": {"layout": "layers"}, "balance": {"layout": "layers", "balance": "size", "servers": 2},
       "priority": {"layout": "layers", "priority": True}, "overlap": {"overlap": "backward", "servers": 2},
       "overlap both": {"layout": "layers", "overlap": "both"}, "bucket": {"overlap": "backward", "bucket": 100},
       "compress": {"compress": "topk:0.1"}, "feedback": {"compress": "topk:0.1", "feedback": False}}
ALGORITHMS = [*dict.fromkeys(name for option in EXCHANGE for name in taking(option) if name != "allreduce"),
              "allreduce ring", "allreduce halving-doubling"]
TAKEN = [(name, key) for name in ALGORITHMS for key in HOW if name.split()[0] in taking(key)]


def covered():
    """Every algorithm with one of its options, and every option: each time the one that was used least."""
    used = dict.fromkeys(HOW, 0)
    for name in ALGORITHMS:
        key = min((key for taker, key in TAKEN if taker == name), key=used.__getitem__)
        used[key] += 1
        yield name, key


COVER = list(covered())  #: in real processes; all of the table is slow
TCP = [("bsp", "compress"), ("ssp", "balance"), ("allreduce ring", "overlap")]
REFUSED = [(name, option) for name in CATALOGUE for option in EXCHANGE if name not in taking(option)]
VALUES = {"layout": "layers", "balance": "size", "priority": True, "overlap": "backward", "bucket": 64,
          "compress": "topk:0.5", "feedback": False}


def problem():
    """Integers, so that sums are exact in any order, in four unequal layers."""
    found, edges = integer_gradients(d=64, workers=2), [0, 4, 44, 48, 64]
    parts = [Part(f"layer{k}", slice(a, b), b - a) for k, (a, b) in enumerate(pairwise(edges))]
    layers = by_work(parts, whole([part.slice for part in parts], found.gradient))
    return refsgd.Problem(found.x0, found.gradient, found.loss, layers=layers)


def run(name, runtime="simulator", **how):
    name, *collective = name.split()
    how |= {"collective": collective[0]} if collective else {}
    if not facts_of(CATALOGUE[name]).served:
        how = {key: value for key, value in how.items() if key != "servers"}
    machine = SLOW if runtime == "simulator" else refsgd.Machine()
    return refsgd.run(name, problem(), runtime=runtime, machine=machine, evaluations=0, **{
        "workers": 2, "steps": 3, "lr": 0.25, **how})


def uploaded(found):
    return sum(sent for node, sent in found.measured["bytes_sent_by_node"].items() if found.trace.is_worker(node))


def shows(name, key, found, runtime):
    """The effect that a reader has asked for is in the trace."""
    trace, deployment, how = found.trace, found.deploy(), HOW[key]
    servers = [node for node in trace.nodes if not trace.is_worker(node)]
    parts = problem().layers.parts
    if "layout" in how:
        assert len(servers) == len(parts) == 4
    if key == "balance":
        home = Exchange("layers", "size").deal(parts, 2)
        assert [ranks(deployment)[s] for s in servers] == home == [1, 0, 1, 1] != Exchange("layers").deal(parts, 2)
    if key == "priority":
        assert [deployment[s].priority for s in servers] == [0, 1, 2, 3]
    if key.startswith("overlap"):
        for w in trace.workers:
            ends = [e.time for e in trace.of(Computed, w) if e.piece and e.piece[:2] == ("backward", 0)]
            assert min(e.time for e in trace.of(Sent, w)) < ends[0]
    if key == "overlap both":  # of the second step: later layers arrive while earlier ones compute
        mine = [e for e in trace.events if e.node == "worker0" and isinstance(e, Computed | Received)]
        forward = [k for k, e in enumerate(mine) if isinstance(e, Computed) and e.piece and e.piece[0] == "forward"]
        assert any(isinstance(e, Received) for e in mine[forward[4]:forward[7]])
    if key == "bucket":
        assert found.measured["messages"] < run(name, overlap="backward").measured["messages"]
    if "compress" in how:
        assert uploaded(found) < 0.5 * uploaded(run(name))
    if key == "feedback" and runtime == "simulator":
        kept = run(name, **HOW["compress"])
        assert uploaded(kept) == uploaded(found) and kept.parameters_sha256 != found.parameters_sha256


@pytest.mark.parametrize(("runtime", "name", "key"), [
    *(("simulator", *case) for case in TAKEN),
    *(pytest.param("processes", *case, marks=() if case in COVER else pytest.mark.slow) for case in TAKEN),
    *(pytest.param("tcp", *case, marks=() if case in TCP else pytest.mark.slow) for case in TAKEN)])
def test_an_accepted_option_shows_and_keeps_the_invariants(runtime, name, key):
    """Gradients are applied once or dropped, parameters are finite; where the schedule decides nothing, the bits
    are those of the simulator and, uncompressed, of the whole gradient."""
    found = run(name, runtime, **HOW[key])
    shows(name, key, found, runtime)
    refsgd.testing.ledger(found)
    assert np.all(np.isfinite(found.parameters))
    if name.split()[0] in ("bsp", "allreduce", "dgc"):
        assert found.parameters_sha256 == run(name, **HOW[key]).parameters_sha256
        if "compress" not in HOW[key] and name != "dgc":  # which chooses entries of each bucket
            assert found.parameters_sha256 == run(name).parameters_sha256
            assert found.measured["bytes_sent"] == run(name).measured["bytes_sent"]
    elif name != "easgd" and (runtime == "simulator" or (name, key) not in {*COVER, *TCP}):
        alone = {"workers": 1, **HOW[key]}
        whole = alone if "compress" in HOW[key] else {"workers": 1}
        assert run(name, runtime, **alone).parameters_sha256 == run(name, **whole).parameters_sha256


@pytest.mark.parametrize("name", [name for name in taking("priority") if name in taking("overlap")])
def test_a_lower_layer_overtakes_where_links_serve_by_priority(name):
    """Its gradient is the last that is computed, and leaves before some that were sent before it."""
    def overtakes(**how):
        sent = [e for e in run(name, layout="layers", overlap="backward", **how).trace.of(Sent, "worker0") if "part" in e.to]
        return any(a.time < b.time and a.start > b.start and a.to > b.to for a in sent for b in sent)

    assert overtakes(priority=True) and not overtakes()


def test_every_algorithm_and_every_option_runs_in_real_processes_by_default():
    assert {name for name, _ in COVER} == set(ALGORITHMS) and {key for _, key in COVER} == set(HOW)
    assert {*COVER, *TCP} <= set(TAKEN)


@pytest.mark.parametrize(("name", "option"), REFUSED)
def test_a_refused_option_is_refused_alike_with_its_reason(name, option):
    """By everything that takes an algorithm and its options."""
    value, said = VALUES[option], set()
    how, word = {option: value}, {True: "on", False: "off"}.get(value, value)
    for refuses in (lambda: refsgd.run(name, data="integers", steps=1, **how),
                    lambda: refsgd.predict(name, data="integers", steps=1, **how),
                    lambda: compare([f"{name} {option}={word}"], runtime="simulator", data="integers", steps=1),
                    lambda: refsgd.Stepper(name, steps=1, **how),
                    lambda: refsgd.testing.explore_algorithm(name, steps=1, **how)):
        with pytest.raises(ValueError, match=f"^{option} {value} with {name}: ") as error:
            refuses()
        said.add(str(error.value))
    assert len(said) == 1 and facts_of(CATALOGUE[name]).refusal(option) in said.pop()


# -- the identity in every seat ------------------------------------------------------------------------------

IDENTITY = {"layout": "equal", "balance": "robin", "priority": False, "overlap": "none", "bucket": 0, "compress": "",
            "feedback": True}


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_identity_in_every_seat_gives_bits_times_and_bytes_of_before(name):
    """"The identity in every seat (--layout equal, --overlap none, no codec) gives the bits, times and bytes of before":
    the golden record holds those of a run that says nothing, this test that saying it changes nothing."""
    assert set(IDENTITY) == set(EXCHANGE)
    how = {"data": "integers", "steps": 4, "workers": 4, "lr": 0.25, "evaluations": 2}
    plain, said = refsgd.run(name, **how), refsgd.run(name, **how, **IDENTITY)
    assert said.to_json() == plain.to_json() and said.schedule_sha256 == plain.schedule_sha256
    assert [*map(str, said.trace.events)] == [*map(str, plain.trace.events)]
    prepared = refsgd.experiment.prepare.prepare(name, **{k: v for k, v in how.items() if k != "evaluations"}, **IDENTITY)
    assert prepared.problem.exchange is None and of(prepared.problem) == Exchange()


@pytest.mark.parametrize("name", ["bsp", "asp", "easgd"])
def test_equal_parts_cannot_be_balanced(name):
    for option, value in (("balance", "size"), ("balance", "hash"), ("priority", True)):
        with pytest.raises(ValueError, match=f"^{option} {value} with layout equal; expected layout layers, or chunks:BYTES$"):
            run(name, layout="equal", **{option: value})


@pytest.mark.parametrize("name", ["bsp", "asp", "downpour", "allreduce ring"])
def test_a_codec_that_leaves_nothing_out_changes_no_bit(name):
    """All entries, of which each sum of gathered messages is exact on integers."""
    assert run(name, compress="topk:1").parameters_sha256 == run(name).parameters_sha256
