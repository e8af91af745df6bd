"""A death of each worker at each step, for every algorithm that continues: nothing that had been sent is
lost, and no node waits for the dead."""

from collections import Counter

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.problems import quadratic
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.faults import Fault, survives_workers
from refsgd.trace import Received, Sent
from tests.properties.coordinates import UNEQUAL, Marked, rank_of
from tests.wrong import wrong_deployment

WORKERS, STEPS = 3, 4

def continuing():
    """The algorithms of the catalogue whose other nodes go on after the death of a worker."""
    deployments = {name: deploy(quadratic(workers=3), 3, 1, SGD(0.1)) for name, deploy in CATALOGUE.items()
                   if name != "sequential"}
    return {name for name, deployment in deployments.items() if survives_workers(deployment)}


#: algorithms and their options
GO_ON = [
    ("asp", {}), ("downpour", {}), ("downpour", {"push_every": 2, "fetch_every": 3}), ("backup-workers", {}),
    ("softsync", {}),
    ("staleness-aware", {"splitting": 1}), ("dc-asgd", {}), ("consgd", {"staleness": 1}),
    ("dynsgd", {"staleness": 1}),
    *[("ssp", {"staleness": s, "refresh": refresh}) for s in (0, 1, 9)
      for refresh in ("fresh", "lazy", "eager")],
    ("dssp", {"lower": 0, "upper": 2}), ("approximate", {}), ("easgd", {"period": 1}),
    ("hogwild", {}), ("independent", {}), ("gosgd", {"p": 0.7}), ("pair-averaging", {}), ("adpsgd", {}),
    ("adpsgd", {"graph": "star"}), *[(name, {"period": 1}) for name in ("fedavg", "scaffold", "fedbuff", "fedasync", "async-diloco")],
    ("decoupled-diloco", {"period": 1, "fragments": 1}),
]
GO_ON += [(name, {}) for name in sorted(continuing() - {n for n, _ in GO_ON}) if name != "sandblaster"]  # its own tests


def applied(run, living):
    """The gradients that the final parameters of the servers or of the shared memory contain; of replicas
    those of their owner."""
    final = {node: getattr(value, "x", value) for node, value in run.run.values.items()}
    if "worker0" not in run.world.nodes:
        return {g for w in living for g in run.contents(final[w]) if g[0] == rank_of(w)}
    if servers := [n for n in run.world.nodes if n.startswith("server")]:
        final = {"": np.concatenate([final[s] for s in servers])}
    x = final.popitem()[1]
    found = [run.contents(run.part(x, k)) for k in range(run.slices)]
    assert all(part == found[0] for part in found)
    return found[0]


def hold_death(deploy, options, dead, step, seed=0):
    """Kill one worker before its gradient number `step`."""
    roles = deploy(quadratic(workers=WORKERS), WORKERS, STEPS, SGD(0.1), **options)
    name, = (n for n in roles if n in (f"worker{dead}", f"peer{dead}"))
    run = Marked(deploy, WORKERS, STEPS, 2 if deploy.__name__ == "approximate" else 1, UNEQUAL, seed,
                 [Fault("kill", name, step)], **options)
    trace = run.trace
    living = [w for w in trace.workers if w != name]
    computed = Counter(rank for rank, _ in run.read)
    if deploy.__name__ == "backup_workers":  # one that is late skips steps, and may have no such gradient
        assert trace.updates == {"server0": STEPS} and computed[dead] <= step
        assert all([e.values["t"] for e in trace.marks("clock") if e.node == w][-1] == STEPS - 1
                   for w in living)
    elif deploy.__name__ == "ringleader":  # the others compute what the dead one has not
        total = WORKERS * STEPS - (name in trace.dead)  # of which a slow one may not come to that step
        assert computed[dead] <= step and computed.total() == total
    else:
        assert name in trace.dead and computed == {rank_of(w): STEPS
                                                   for w in living} | ({dead: step} if step else {})
    assert run.run.values.keys() == {*trace.nodes} - trace.dead.keys(), "all others return"
    kept, dropped = set(run.read), Counter(rank_of(e.values["worker"]) for e in trace.marks("drop"))
    if "push_every" in options:  # lost with the dead: the window that it had not pushed
        kept -= {(dead, t)
                 for t in range(max((t for t in range(step) if t % options["push_every"] == 0),
                                    default=-1) + 1, step)}
    if deploy.__name__ == "easgd":  # the force of an iteration is sent before its gradient
        assert trace.updates["server0"] == len(living) * STEPS + step + 1
    else:
        arrived = kept if "worker0" in roles else {g for g in kept if g[0] != dead}
        found = applied(run, living)
        if deploy.__name__ == "decoupled_diloco":  # lost: steps since the dead one's last answer, or before a merge
            arrived &= found
        assert found <= arrived and Counter(rank for rank, _ in arrived - found) == dropped, "what had arrived counts"
    asked = Counter(e.src for e in trace.of(Received)
                    if e.message in ("Push", "Fetch", "Pull"))
    answered = Counter(e.to for e in trace.of(Sent) if e.message == "Model")
    assert answered <= asked, "at most one answer to a question"
    told = set()
    for e in trace.events:
        if e.kind == "receive" and e.message == "Died":
            told.add(e.node)
        assert not (e.kind == "send" and e.to == name
                    and e.node in told), f"{e.node} knows that {name} is dead, and sends to it"


@pytest.mark.parametrize(("name", "options"), GO_ON)
def test_a_death_of_each_worker_at_each_step(name, options):
    for dead in range(WORKERS):
        for step in range(STEPS):
            hold_death(CATALOGUE[name], options, dead, step, seed=step)


#: not backup workers, who survive as many deaths as there are backups
@pytest.mark.parametrize(("name", "options"), [case for case in GO_ON if facts_of(CATALOGUE[case[0]], case[1]).served])
def test_when_all_workers_are_dead_the_servers_return_what_they_have(name, options):
    run = Marked(CATALOGUE[name], WORKERS, STEPS, 2 if name == "approximate" else 1, UNEQUAL, 1,
                 [Fault("kill", f"worker{i}", 1 + i) for i in range(WORKERS)], **options)
    assert run.run.values.keys() == {n for n in run.world.nodes
                                     if n.startswith("server")} and len(run.trace.dead) == WORKERS
    if name != "easgd" and "push_every" not in options:  # whose last gradients are in no push
        assert len(run.read) - len(applied(run, [])) == len(run.trace.marks("drop"))


def test_more_deaths_than_backups_are_a_deadlock():
    with pytest.raises(Deadlock, match="after the death of worker0, worker1: worker2 at .*server0 at"):
        Marked(CATALOGUE["backup-workers"], WORKERS, STEPS,
               faults=[Fault("kill", "worker0", 1), Fault("kill", "worker1", 1)])


def test_these_are_the_algorithms_that_go_on():
    assert {name for name, _ in GO_ON} == continuing() - {"sandblaster"}


# -- wrong programs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("asp", "with suppress(RunEnded):", "if True:"),
    ("downpour", "with suppress(RunEnded):", "if True:"),
    ("softsync", "        w = None\n", ""),  # answers who came last once more
    # the gradients of an update that is filled no more are forgotten
    ("softsync", "(last and kept)", "(not left and kept)"),
    ("ssp", "clock.pop(w, None)  # the others no longer wait for it\n        else", "pass\n        else"),
    ("ssp", "clock.pop(w, None)  # the others no longer wait for it\n        elif", "pass\n        elif"),
    ("dssp", "clock.pop(w, None)", "pass"),
    ("dynsgd", "clock.pop(w, None)", "pass"),
    ("adpsgd", "passive = [i for i in passive if i != j]", "pass"),
    ("pair-averaging", "others = [i for i in others if i != j]", "pass"),
])
def test_a_death_that_is_not_survived_is_caught(name, right, wrong):
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    with pytest.raises((AssertionError, Deadlock)):
        for n, options in GO_ON:
            for dead in range(WORKERS):
                for step in range(STEPS):
                    if n == name:
                        hold_death(deploy, options, dead, step, seed=step)
