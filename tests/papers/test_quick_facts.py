"""The Quick facts of every algorithm's docstring: all of them are there, and messages and bytes are those
of a run."""

import inspect
import re

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.server import downpour
from refsgd.algorithms.sgd import SGD
from refsgd.runtimes.simulator import simulate
from refsgd.theory.phenomena import memory
from refsgd.trace import Computed, Sent
from tests.watching import RANDOM, curved

FACTS = ("synchronous", "centralised", "roles", "messages", "bytes", "staleness", "clock gap", "momentum",
         "aggregation", "deterministic")
PARALLEL = [name for name in CATALOGUE if name != "sequential"]


def quick_facts(name):
    """What and value of each fact."""
    doc = inspect.getdoc(inspect.getmodule(CATALOGUE[name]))
    paragraph = " ".join(doc.split("Quick facts\n-----------\n")[1].split("\n\n")[0].split())
    return {what.strip(): value.strip()
            for what, _, value in (fact.partition(":") for fact in paragraph.split(" | "))}


def lacking(facts):
    """Those of `FACTS` that no key names."""
    return [word for word in FACTS if not any(re.search(rf"\b{word}\b", key) for key in facts)]


def per_iteration(deployment):
    """For each worker: messages out, messages in and bytes out, all for each of its gradients."""
    trace, out = simulate(deployment, RANDOM).trace, {}
    for w in trace.workers:
        gradients = sum(e.work == "gradient" for e in trace.of(Computed, w))
        sent, answers = len(trace.of(Sent, w)), sum(e.to == w for e in trace.of(Sent))
        out[w] = sent / gradients, answers / gradients, trace.bytes_sent[w] / gradients
    return out


@pytest.mark.parametrize("name", PARALLEL)
def test_every_fact_is_there(name):
    assert not lacking(quick_facts(name))


def test_a_missing_fact_is_caught():
    facts = quick_facts("asp")
    assert lacking({key: value for key, value in facts.items() if key != "clock gap"}) == ["clock gap"]


def pushing():
    """Algorithms whose facts say that a worker sends to each server once, and is answered once, in each
    iteration."""
    found = [name for name in PARALLEL
             if re.fullmatch("[K1] up, [K1] down",
                             quick_facts(name).get("messages per worker and iteration", ""))]
    assert {"bsp", "asp", "backup-workers", "softsync", "staleness-aware", "dc-asgd", "consgd", "dynsgd",
            "dssp"} <= set(found)
    return found


@pytest.mark.parametrize("name", pushing())
def test_a_worker_sends_and_gets_what_the_facts_say(name):
    several = facts_of(CATALOGUE[name]).served
    assert quick_facts(name)["messages per worker and iteration"] == ("K up, K down" if several
                                                                      else "1 up, 1 down")
    assert quick_facts(name)["bytes per worker and iteration"].startswith("M up, M down")
    for servers in (1, 3) if several else (1,):
        deployment = CATALOGUE[name](curved(workers=3), 3, 8, SGD(0.1), *[servers] * several)
        assert set(per_iteration(deployment).values()) == {(servers, servers, 24)}


def test_requests_beside_the_pushes_are_caught():
    assert set(per_iteration(downpour.downpour(curved(workers=3), 3, 8, SGD(0.1), 3)).values()) == {
        (6, 3, 24)}


def test_a_peer_of_zero_holds_what_the_facts_say():
    """For each stage, with one vector of state."""
    told = re.sub(r"(?<=[\ds)]) ?(?=[ML])", "*", quick_facts("zero")["memory"]).partition(", for")[0]
    for stage, formula in enumerate(told.split("; "), start=1):
        held = eval(formula, {"M": 4000, "n": 4, "s": 1, "L": 1200})
        assert held == memory.zero(1000, 4, stage, 300, optimiser="momentum").value


@pytest.mark.parametrize("name", [n for n in PARALLEL if n not in ("hogwild", "approximate", "sandblaster")])
def test_a_velocity_never_travels(name):
    """Wherever the momentum is, no message is added and none is longer (approximate: its filter looks at
    the changes; sandblaster refuses it)."""
    traces = [simulate(CATALOGUE[name](curved(workers=3), 3, 8, SGD(0.1, momentum)), RANDOM).trace
              for momentum in (0.0, 0.9)]
    assert traces[0].messages == traces[1].messages and traces[0].bytes_sent == traces[1].bytes_sent
