"""What an algorithm tells observers: its marks, and what kind of work each computation is."""

from collections import Counter

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.trace import Computed
from tests.properties.coordinates import AGAIN, SHARDED, STAGED, Marked, rank_of
from tests.wrong import wrong_deployment

STEPS = 4
ONE_PART = {"strads": {"blocks": 1}, "decoupled-diloco": {"fragments": 1}}
CASES = [*[(name, ONE_PART.get(name, {})) for name in CATALOGUE
           if name not in (*STAGED, *SHARDED, *AGAIN)], ("downpour", {"adagrad": True}),
         ("easgd", {"mode": "sync", "period": 2}), ("dpsgd", {"order": "atc"}),
         *[("ssp", {"refresh": refresh}) for refresh in ("lazy", "eager")], ("approximate", {"local": "asp"})]
#: replicas whose last update is what they return, and workers that return the last model that answered a push
#: of theirs
ENDS = ["sequential", "independent", "allreduce", "dgc", "dpsgd", "sgp", "pair-averaging"]
ANSWERED = ["asp", "dssp", "dc-asgd", "consgd", "dynsgd", "approximate"]


def updates_of(name, node, marks):
    """Computations of kind "update" that a node is charged for, by its marks."""
    if name in ("adpsgd", "hogwild"):  # plain Python, and additions
        return 0
    if name in ("easgd", "fedavg", "scaffold", "fedbuff", "fedasync", "async-diloco", "decoupled-diloco") and node.startswith("worker"):
        return STEPS
    return marks + {"diloco": 1, "eager-diloco": 1, "noloco": 1, "streaming-diloco": 4}.get(name, 0)  # the outer steps of the only round


def hold_marks(name, deploy, **options):
    slices = 2 if facts_of(deploy).served else 1
    run = Marked(deploy, 1 if name == "sequential" else 3, STEPS, slices, **options)
    trace, values = run.trace, run.run.values
    assert {e.work for e in trace.of(Computed)} <= {"gradient", "update", "reduction", "codec", "evaluation"}
    work = Counter((e.node, e.work) for e in trace.of(Computed))
    assert sum(count for (_, kind), count in work.items()
               if kind == "gradient") == len(run.read), "nothing else is a gradient"
    servers = [n for n in trace.nodes if n.startswith("server")]
    for node in trace.nodes:
        marks = [e.values for e in trace.marks("update") if e.node == node]
        assert work[node, "update"] == updates_of(name, node, len(marks))
        for u, mark in enumerate(marks):
            assert mark["part"] == (servers.index(node) if servers else 0)
            assert mark.get("t") == (None if servers or name == "sequential" else u)
            assert mark["x"].shape == (run.size,)
        if (servers and marks) or name in ENDS:
            assert np.array_equal(marks[-1]["x"], values[node]), "the last update is the result"


    for drop in trace.marks("drop"):
        assert drop.node in servers and drop.values.keys() == {"worker", "t", "reason"}
        assert (rank_of(drop.values["worker"]), drop.values["t"]) in run.read
    for w in [w for w in trace.workers if servers]:
        own = {(rank_of(w), t) for t in range(STEPS)}
        if name in ("bsp", "backup-workers"):
            assert np.array_equal(values[w],
                                  np.concatenate(
                                      [values[s] for s in servers])), "all end with the servers' model"
        elif name in ANSWERED:
            assert own <= run.contents(run.part(values[w], 0))
        elif name == "ssp" and options.get("refresh", "fresh") != "fresh":
            assert np.array_equal(values[w],
                                  run.read[rank_of(w), STEPS - 1][0]), "the cache of the last iteration"
        elif name == "downpour":
            assert own == {g for g in run.contents(run.part(values[w], 0)) if g[0] == rank_of(w)}


@pytest.mark.parametrize(("name", "options"), CASES)
def test_marks_tell_the_slice_the_iteration_and_the_parameters(name, options):
    hold_marks(name, CATALOGUE[name], **options)


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("backup-workers", ', reason="late")', ")"),
    ("asp", "Model(shard.x, shard.version)", "Model(shard.state, shard.version)"),
    ("sequential", 'g, t, kind="update"', "g, t"), ("asp", '*given, kind="update")', "*given)"),
    ("asp", "part=self.part", "part=0"),
    ("independent", "t=t, x=x", "x=x"),
    ("ssp", "x=self.x)", "x=self.state)"),
    ("sgp", "replica.mark(t, replica.x / weight)", "replica.mark(t, part.x)"),
])
def test_wrong_marks_are_caught(name, right, wrong):
    with pytest.raises((AssertionError, KeyError)):
        hold_marks(name, wrong_deployment(CATALOGUE[name], right, wrong))
