"""Times of a study are of the machines that its document names, or compared with times of these."""

import pytest

from benchmarks.studies import NAMES, jia2020, ko_runs, parts_of
from benchmarks.studies.lab import Trial
from refsgd.effects import Node

TRAINS = "nothing is timed"


def on_four(workers):
    """Jia et al.'s four virtual machines, to which workers are dealt in turn."""
    return min(workers, 4)


def fours(workers):
    """Ko et al.'s machines of four GPUs, filled one after the other."""
    return -(-workers // 4)


def a_node_each(workers):
    """Graur's nodes of DAS-5, one worker on each: a machine without hosts is the document's."""
    return workers


#: on how many machines the document has the workers of each part; or why a part has none of the document's
DOCUMENTED = {
    "jia2020": {**dict.fromkeys(("table2", "figure7", "figure8", "figure9", "stages", "balance"), on_four),
                "figure10": TRAINS + ": passes of four workers, each on one of the four machines",
                "figure4": "one worker, one server: the layers of one exchange",
                "figure11": "nodes on machines of their own, so that only latency makes them idle, as in its formula",
                "idleness": "the sweeps of figure11, on the same machines",
                "summary": "one machine is slower: the text names no cluster",
                "resources": "processes of this computer"},
    "ko2021": {**dict.fromkeys(("scalability", "waiting"), fours), "table3": TRAINS, "sensitivity": TRAINS,
               "techniques": "a link for each worker and server: not yet on the six machines"},
    "graur2019": {**dict.fromkeys(("chapter3", "chapter4", "chapter5", "series", "extra", "terms"), a_node_each),
                  "survey": "other groups' systems: the text names no cluster; 256 GPUs are on hosts of eight"},
    "pani2020": {**dict.fromkeys(("batches", "deeper", "same_learning"), TRAINS),
                 "devices": "the devices of one host, each with its way to the bus",
                 "local": "one device alone", "unequal": "two devices", "here": "processes of this computer"}}


def test_every_part_says_whose_machines_it_is_timed_on():
    assert {name: set(parts) for name, parts in DOCUMENTED.items()} == {
        name: {f.__name__ for f in parts_of(name)[1]} for name in NAMES}


def hosts(trial):
    """On how many machines the workers of a trial are."""
    nodes = {f"worker{k}": Node(iter(()), role="worker") for k in range(trial.arguments["workers"])}
    return len(set(trial.arguments["machine"].place(nodes).values()))


def timed(trials):
    """Those that compute nothing, and say only how long that takes."""
    return [t for t in trials if t.arguments.get("data") == "none"]


def elsewhere(trials, documented):
    """Timed trials on other machines than the document's that are not compared with one on these."""
    def what(trial):
        return trial.algorithm, {k: v for k, v in trial.arguments.items() if k != "machine"}

    right = {id(t): hosts(t) == documented(t.arguments["workers"]) for t in timed(trials)}
    deployed = [what(t) for t in timed(trials) if right[id(t)]]
    return [t for t in timed(trials) if not right[id(t)] and what(t) not in deployed]


@pytest.mark.slow
@pytest.mark.parametrize("study", DOCUMENTED)
def test_times_are_of_the_machines_of_the_document(study, performed):
    trials = performed(study)[1]
    for part, documented in DOCUMENTED[study].items():
        if callable(documented):
            assert elsewhere(trials[part], documented) == [], part
            assert timed(trials[part]) or part == "terms", part  # of graur2019: it reads formulas
        elif documented.startswith(TRAINS):
            assert timed(trials[part]) == [], part


def test_a_study_with_a_link_for_each_worker_is_found():
    vm = jia2020.machine("fixed(1)")
    for documented, right, wrong, of in ((on_four, vm, jia2020.flat(vm), (4, 8)),
                                         (fours, ko_runs.machine(10), ko_runs.machine(10, flat=True), (2, 8)),
                                         (a_node_each, ko_runs.machine(10, flat=True), ko_runs.machine(10), (8, 2))):
        two = [Trial("bsp", {"data": "none", "workers": 8, "servers": 4, "machine": machine})
               for machine in (right, wrong)]
        assert tuple(map(hosts, two)) == of
        assert elsewhere(two[1:], documented) == two[1:] and elsewhere(two, documented) == []
