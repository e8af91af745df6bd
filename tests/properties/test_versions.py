"""Versions and staleness: what each gradient read, recomputed from parameters and messages, is what the
marks and the trace say."""

from collections import Counter

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from tests.catalogue import DEALT, having
from tests.ledger import with_bodies
from tests.properties.coordinates import FREE, STAGED, UNEQUAL, Marked, rank_of
from tests.wrong import wrong_deployment

#: algorithms whose servers apply gradients, with options and the number of servers
SERVERS = [
    ("strads", {"blocks": 1}, 1), ("bsp", {}, 1), ("bsp", {"aggregation": "sum"}, 2), ("asp", {}, 1), ("asp", {}, 2),
    *[("ssp", {"staleness": s, "refresh": refresh}, servers) for s, servers in ((0, 1), (1, 2), (9, 1))
      for refresh in ("fresh", "lazy", "eager")],
    ("dssp", {"lower": 0, "upper": 2}, 1),
    *[("downpour", {"push_every": push, "fetch_every": fetch}, servers)
      for push, fetch, servers in ((1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 3, 2), (3, 2, 1))],
    ("downpour", {"push_every": 2, "adagrad": True}, 1),
    ("backup-workers", {}, 1), ("softsync", {}, 1), ("softsync", {"splitting": 2}, 2),
    ("staleness-aware", {}, 1), ("staleness-aware", {"splitting": 1}, 1),
    ("dc-asgd", {}, 1), ("consgd", {"staleness": 1}, 1), ("dynsgd", {"staleness": 1}, 2),
    ("approximate", {}, 2), ("approximate", {"local": "asp", "barrier": 0}, 2),
]
SERVERS += [(name, {}, 1) for name in having(lambda facts: facts.served and facts.holds == "pushed")
            if name not in {name for name, *_ in SERVERS}]
PEERS = ["sequential", "independent", "gosgd", "adpsgd", "pair-averaging", "allreduce", "dgc", "local-sgd",
         "post-local", "diloco", "eager-diloco", "streaming-diloco", "noloco", "dpsgd", "sgp"]


def hold_versions_of_servers(deploy, options, servers, seed=0):
    """A gradient has read as many versions as there are updates whose gradients all were in the x that it was
    computed at.

    Downpour's own steps since its last fetch are in that x, but not in what was fetched, which its version is
    of.
    """
    run = Marked(deploy, workers=4 if servers == 2 else 3, slices=servers, seed=seed, **options)
    taus = Counter()
    for k in range(servers):
        updates = run.updates(k)

        states = {bytes(4 * run.size), *(mark.values["x"].tobytes() for mark, _ in updates)}

        def versions(rank, t):
            held = run.contents(run.part(run.read[rank, t][0], k))
            if t % options.get("fetch_every", 1) == 0 and options.get("refresh",
                                                                      "fresh") == "fresh" and deploy.__name__ != "approximate":
                assert run.part(run.read[rank, t][0],
                                k).tobytes() in states, "what is read is a state of this slice"
            if "fetch_every" in options:
                held -= {(rank, s) for s in range(t - t % options["fetch_every"], t)}
            return sum(new <= held for _, new in updates)

        for u, (mark, new) in enumerate(updates):
            reads = sorted((f"worker{rank}", versions(rank, t)) for rank, t in new)
            assert mark.values["version"] == u, "a version is the number of earlier updates"
            assert [w for w, _ in mark.values["reads"]] == [w for w, _ in reads], "in the order of workers"
            assert sorted(
                mark.values["reads"]) == reads, f"update {u} of slice {k} says {mark.values['reads']}; expected {reads}"
            taus.update((w, u - read) for w, read in reads)
    assert Counter(run.trace.staleness) == taus


@pytest.mark.parametrize(("name", "options", "servers"), SERVERS)
def test_gradients_at_servers_have_read_what_they_say(name, options, servers):
    for seed in range(3):
        hold_versions_of_servers(CATALOGUE[name], options, servers, seed)


def hold_reports(deploy, **options):
    """A server believes no schedule: what it marks as read is what the push says, whatever that is."""
    def reads(less):
        def change(name, to, body):
            return body._replace(version=body.version - less) if type(body).__name__ == "Push" else body

        return [e.values["reads"]
                for e in simulate(with_bodies(deploy(problem, 3, 3, SGD(0.1), **options), change),
                                  UNEQUAL).trace.marks("update")]

    problem = quadratic(workers=3)
    assert reads(7) == [tuple((w, read - 7) for w, read in pairs) for pairs in reads(0)]


@pytest.mark.parametrize("name",
                         ["bsp", "asp", "ssp", "dssp", "softsync", "staleness-aware", "dc-asgd", "consgd",
                          "dynsgd", "approximate"])
def test_servers_mark_what_a_push_says(name):
    hold_reports(CATALOGUE[name])


def hold_versions_of_hogwild(deploy):
    """Where an addition takes no time: as many updates as gradients in the vector that was read, and in
    the vector that was changed."""
    run = Marked(deploy, machine=FREE)
    marks = run.trace.marks("update")
    assert len(marks) == run.size
    for u, mark in enumerate(marks):
        rank, t = rank_of(mark.node), mark.values["t"]
        assert mark.values["version"] == u and mark.values["reads"] == (
            (mark.node, len(run.contents(run.read[rank, t][0]))),)
    assert max(tau for _, tau in run.trace.staleness) > 0


def test_gradients_of_hogwild_have_read_what_they_say():
    hold_versions_of_hogwild(CATALOGUE["hogwild"])


def hold_versions_of_forces(deploy, mode, servers):
    """EASGD: a force has read the centre that its worker was sent last, and counts from the updates
    before it was sent."""
    run = Marked(deploy, steps=6, slices=servers, period=2, mode=mode)
    sent, forces, changes = {}, {}, Counter()
    for e in run.trace.events:
        if e.kind == "mark" and e.name == "update":
            assert e.values["version"] == changes[e.node]
            changes[e.node] += 1
            for w, read in e.values["reads"]:
                assert read == forces[e.node,
                                      w].pop(
                                          0), f"the force of {w} has read another centre than update {e.values['version']} says"
        elif e.kind == "send" and e.message == "Model":
            sent[e.node, e.to, e.number] = changes[e.node]
        elif e.kind == "receive" and e.message == "Model":
            forces.setdefault((e.src, e.node),
                              []).append(sent[e.src, e.node, e.number])
    assert not any(forces.values()) and all(changes.values())


@pytest.mark.parametrize(("mode", "servers"), [("async", 1), ("async", 2), ("sync", 1)])
def test_forces_have_read_what_they_say(mode, servers):
    hold_versions_of_forces(CATALOGUE["easgd"], mode, servers)


def hold_versions_of_peers(name, deploy, workers=3):
    """A replica's version counts its updates; averages with other replicas are none."""
    run = Marked(deploy, workers=1 if name == "sequential" else workers, steps=6,
                 **({"p": 0.7} if name == "gosgd" else {}))
    events = run.trace.events

    def changes(node, until):
        mine = [e for e in events[:until] if e.node == node]
        return sum(e.kind == "mark" and e.name == "update" for e in mine)

    for at, e in enumerate(events):
        if e.kind == "mark" and e.name == "update":
            read_at = run.read[rank_of(e.node), e.values.get("t", e.values["version"])][1]
            read = changes(e.node, read_at)
            assert e.values["reads"] == ((e.node, read),), f"{e.node} says {e.values['reads']}; expected {read}"
            assert e.values["version"] == changes(e.node, at)
    assert len(run.trace.staleness) == run.size


@pytest.mark.parametrize("name", PEERS)
def test_gradients_of_peers_have_read_what_they_say(name):
    hold_versions_of_peers(name, CATALOGUE[name])


#: options without which an algorithm would not run here; SSP's own worker is that of a cache
CLOCKS = {"sequential": {"workers": 1}, "approximate": {"slices": 2}, "ssp": {"refresh": "lazy"}}


def hold_clocks(deploy, **options):
    """Each worker marks the end of every iteration, in order, with the t of its gradient."""
    run = Marked(deploy, machine=UNEQUAL, **options)
    for node in run.trace.workers:
        rank = rank_of(node)
        computed = [t for r, t in run.read if r == rank]
        assert computed and [e.values["t"] for e in run.trace.marks("clock") if e.node == node] == computed


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in (*STAGED, *DEALT)])
def test_clocks_are_those_of_the_gradients(name):
    hold_clocks(CATALOGUE[name], **CLOCKS.get(name, {}))


# -- wrong programs --------------------------------------------------------------------------------------------


#: a shard that believes a gradient to be of its present version, whatever the push says
BELIEVED = "self.mark(reads, images)", "self.mark(tuple((w, self.version) for w, _ in reads), images)"


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("bsp", "((i, push.version) for w, push in pushes", "((i, 0) for w, push in pushes"),
    ("downpour", "[*reads, dict(there.version)]", "[*reads, {s: v + 1 for s, v in there.version.items()}]"),
    ("downpour", "for read in message.versions)", "for read in message.versions[:1])"),
    ("downpour", "self.version[s]) = yield Recv(Model, src=s)", "self.version[s]) = yield Recv(Model)"),  # slices in order of arrival
    ("ssp", "row[s].version + c - row[s].own", "row[s].version"),  # without own updates
    ("asp", *BELIEVED),
    ("backup-workers", "(w, pushes[w]) for", "(w, pushes[w]._replace(version=shard.version - 1)) for"),
    ("approximate", "*of_pushes(pushes), clock,",
     "tuple((w, clock) for w, _ in pushes), of_pushes(pushes)[1], clock,"),
    ("approximate", "        self.version += 1\n", "        self.version += len(reads)\n"),
])
def test_wrong_versions_at_servers_are_caught(name, right, wrong):
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    with pytest.raises(AssertionError):
        for n, options, servers in SERVERS:
            if n == name:
                hold_versions_of_servers(deploy, options, servers)


def test_a_server_that_believes_its_schedule_is_caught():
    with pytest.raises(AssertionError):
        hold_reports(wrong_deployment(CATALOGUE["bsp"], *BELIEVED))


def test_a_force_with_another_version_is_caught():
    with pytest.raises(AssertionError, match="has read another centre"):
        hold_versions_of_forces(wrong_deployment(CATALOGUE["easgd"], "(w, forces[w].version)",
                                                 "(w, center.version)"), "async", 1)


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("gosgd", "version=t, reads", "version=t + 1, reads"),
    ("adpsgd", '}", t),)', '}", max(0, t - 1)),)'),
    ("adpsgd", "replica.mark(t, replica.x)", "replica.mark(2 * t, replica.x)"),  # counts averages too
    ("pair-averaging", "version=t, reads", "version=2 * t, reads"),
])
def test_wrong_versions_of_peers_are_caught(name, right, wrong):
    with pytest.raises(AssertionError):
        hold_versions_of_peers(name, wrong_deployment(CATALOGUE[name], right, wrong))


@pytest.mark.parametrize(("name", "wrong"),
                         [("backup-workers", "newest"), ("sequential", "0"), ("ssp", "c + 1")])
def test_wrong_clocks_are_caught(name, wrong):
    right = "t=c" if name == "ssp" else "t=t"
    with pytest.raises(AssertionError):
        hold_clocks(wrong_deployment(CATALOGUE[name], f'Mark("clock", {right})', f'Mark("clock", t={wrong})'),
                    **CLOCKS.get(name, {}))
