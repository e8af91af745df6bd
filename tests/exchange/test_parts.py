"""An exchange changes when and in what parts a gradient travels, never what is computed."""

import functools
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refsgd
import refsgd.testing
from refsgd.algorithms import compression
from refsgd.algorithms.exchange import Exchange, section
from refsgd.runtimes import linked
from refsgd.runtimes.errors import Deadlock
from refsgd.trace import Computed, Sent
from tests.wrong import changed

FIXED = refsgd.Machine(compute="fixed(0.03)", latency=0.001, bandwidth=2e6)
EXCHANGES = [{"overlap": "backward"}, {"overlap": "both"}, {"layout": "layers"},
             {"layout": "layers", "overlap": "backward", "servers": 2, "balance": "size"},
             {"layout": "layers", "overlap": "both", "priority": True},
             {"layout": "chunks:3000", "overlap": "both", "priority": True, "servers": 2, "balance": "hash"}]


def run(name, machine=FIXED, **options):
    options = {"data": "digits", "steps": 4, "workers": 2, "machine": machine, "evaluations": 0, **options}
    return refsgd.run(name, **options)


once = functools.cache(run)  #: a run with which many are compared


@pytest.mark.parametrize("how", EXCHANGES)
def test_bsp_keeps_the_bits_of_the_whole_gradient(how):
    whole, parts = once("bsp", workers=3), run("bsp", workers=3, **how)
    assert parts.parameters_sha256 == whole.parameters_sha256
    assert parts.measured["bytes_sent"] == whole.measured["bytes_sent"]
    assert parts.servers == how.get("servers", 1)


@pytest.mark.parametrize("how", [EXCHANGES[0], EXCHANGES[4]])
@pytest.mark.parametrize("name", ["ssp", "downpour"])
def test_one_worker_keeps_the_bits_under_every_rule(name, how):
    """Alone, a worker meets no other's updates: staleness is 0 whatever overlaps."""
    if name == "downpour":
        how = {**how, "overlap": "backward"}
    assert run(name, workers=1, **how).parameters_sha256 == once(name, workers=1).parameters_sha256


@pytest.mark.parametrize("how", [EXCHANGES[1], EXCHANGES[4], EXCHANGES[5]])
@pytest.mark.parametrize("runtime", ["processes", "tcp"])
def test_processes_send_the_same_parts(how, runtime):
    """Real backward passes, layer by layer, in real processes."""
    there, here = run("bsp", runtime=runtime, **how), once("bsp", **how)
    assert there.parameters_sha256 == here.parameters_sha256
    assert there.measured["messages"] == here.measured["messages"]
    assert there.measured["bytes_sent_by_node"] == here.measured["bytes_sent_by_node"]


def test_the_pieces_of_a_gradient_share_its_draw():
    """So a gradient takes as long in pieces as whole, whatever its distribution."""
    machine = refsgd.Machine(compute="exponential(0.02)")
    whole, parts = run("asp", machine), run("asp", machine, overlap="both", layout="layers")
    took = [[e.time - e.start for e in r.trace.gradients if e.node == "worker1"] for r in (whole, parts)]
    assert took[0] == pytest.approx(took[1], rel=1e-12)
    pieces = [e.piece for e in parts.trace.of(Computed) if e.node == "worker1" and e.piece][4:10]
    assert [p[:2] for p in pieces] == [("forward", 0), ("forward", 1), ("forward", 2), ("backward", 2),
                                       ("backward", 1), ("backward", 0)]
    assert math.fsum(p.share for p in pieces) == pytest.approx(1, abs=1e-12)


def exchanged(layers, compute, byte_time, urgent):
    """Seconds of each iteration of one worker with one server and overlap `both`, by hand: a link there, a
    link back, an update that takes no time; a message that waits goes by priority or in turn."""
    forward, backward = ([compute * share for share in shares] for shares in (layers.forward, layers.backward))
    cost = [4 * byte_time * (part.stop - part.start) for part in layers.parts]
    here, ends = dict.fromkeys(range(len(cost)), 0.0), []
    now = 0.0
    for _ in range(4):
        for k, f in enumerate(forward):
            now = max(now, here[k]) + f
        ready = {}
        for k in reversed(range(len(cost))):
            now += backward[k]
            ready[k] = now
        here = served(served(ready, cost, urgent), cost, urgent)
        ends.append(max(here.values()))
    return ends


def served(ready, cost, urgent):
    """When a link has passed each message on."""
    left, free, out = dict(ready), 0.0, {}
    while left:
        free = max(free, min(left.values()))
        waiting = [k for k in left if left[k] <= free]
        k = min(waiting) if urgent else min(waiting, key=lambda k: (left[k], -k))
        out[k] = free = max(free, left.pop(k)) + cost[k]
    return out


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("bandwidth", [1e5, 1e6, 1e7])
def test_the_time_of_an_iteration_is_that_computed_by_hand(urgent, bandwidth):
    """To the last digits, over links that hide everything, something or nothing; the answer follows the push
    as a whole, since a server updates with all of a part."""
    machine = refsgd.Machine(compute="fixed(0.03)", bandwidth=bandwidth)
    found = run("asp", machine, workers=1, layout="layers", overlap="both", priority=urgent)
    layers = found.deploy and refsgd.experiment.prepare.prepare(
        "asp", data="digits", workers=1, steps=4).problem.layers
    by_hand = exchanged(layers, 0.03, 1 / bandwidth, urgent)
    assert found.measured["seconds"] == pytest.approx(by_hand[-1], rel=1e-9)
    assert 4 * 0.03 <= found.measured["seconds"] <= run("asp", machine, workers=1).measured["seconds"] + 1e-12


def test_a_starved_layer_is_noticed(monkeypatch):
    """A link that serves the highest layer first takes longer by hand than P3's."""
    machine = refsgd.Machine(compute="fixed(0.03)", bandwidth=1e6)
    right = run("asp", machine, workers=1, layout="layers", overlap="both", priority=True)
    backwards = changed(linked, "urgency = max(", "urgency = -max(")
    monkeypatch.setattr(linked.Linked, "post", backwards.Linked.post)
    starved = run("asp", machine, workers=1, layout="layers", overlap="both", priority=True)
    assert starved.measured["seconds"] > right.measured["seconds"]


def test_with_priority_a_message_waits_for_at_most_one_of_a_lower_one():
    found = run("bsp", refsgd.Machine(compute="fixed(0.03)", bandwidth=3e5), workers=2, layout="chunks:4000",
                overlap="both", priority=True)
    for node in ("worker0", "server0.part0"):
        sent = sorted((e for e in found.trace.of(Sent) if e.node.split(".")[0] == node.split(".")[0]),
                      key=lambda e: e.start)
        for k, e in enumerate(sent):
            part = [int((f.to if "part" in f.to else f.node).partition("part")[2]) for f in sent]
            before = [j for j in range(k) if sent[j].start > e.time and part[j] > part[k]]
            assert not before


@pytest.mark.parametrize("bucket", [0, 2000, 10**9])
@pytest.mark.parametrize(("collective", "compress"), [("ring", ""), ("halving-doubling", ""), ("ring", "topk:0.1"),
                                                      ("halving-doubling", "powersgd:2")])
def test_buckets_sum_what_the_whole_vector_would(bucket, collective, compress):
    """With integers to the bit, uncompressed: in floats a ring adds each entry in an order that depends on its
    chunk."""
    options = {"data": "integers", "lr": 0.25, "collective": collective, "compress": compress, "workers": 4}
    whole, parts = once("allreduce", **options), run("allreduce", overlap="backward", bucket=bucket, **options)
    there = run("allreduce", runtime="processes", overlap="backward", bucket=bucket, **options)
    assert there.parameters_sha256 == parts.parameters_sha256
    assert there.measured["bytes_sent_by_node"] == parts.measured["bytes_sent_by_node"]
    if not compress or bucket == 10**9:
        assert parts.parameters_sha256 == whole.parameters_sha256
        assert parts.measured["bytes_sent"] == whole.measured["bytes_sent"]


@pytest.mark.parametrize("collective", ["ring", "halving-doubling"])
def test_an_allreduce_hides_its_buckets_behind_the_backward_pass(collective):
    """A bucket starts when its gradients are known and the one before is summed: by hand, from the simulated
    time of each collective alone."""
    machine = refsgd.Machine(compute="fixed(0.03)", bandwidth=2e6)
    found = run("allreduce", machine, overlap="backward", collective=collective, workers=4, steps=1)
    layers = refsgd.experiment.prepare.prepare("allreduce", data="digits", workers=4, steps=1).problem.layers
    alone = [run("allreduce", machine, data="none", net=f"shapes:{part.stop - part.start}", collective=collective,
                 workers=4, steps=1).measured["seconds"] - 0.03 for part in layers.parts]
    now, end = 0.03 * sum(layers.forward), 0.0
    for k in reversed(range(len(layers.parts))):
        now += 0.03 * layers.backward[k]
        end = max(now, end) + alone[k]
    assert found.measured["seconds"] == pytest.approx(end, rel=1e-9)
    serial = run("allreduce", machine, collective=collective, workers=4, steps=1).measured["seconds"]
    assert max(0.03, sum(alone)) <= found.measured["seconds"] <= 0.03 + sum(alone) + 1e-9
    assert found.measured["seconds"] < serial


def test_peers_whose_buckets_come_in_another_order_deadlock(monkeypatch):
    """WRONG: one peer sums its first bucket last; each then waits for a part of a bucket that the other has not
    begun, or adds up parts of different buckets."""
    def reordered(self, problem):
        found = right(self, problem)
        reordered.calls += 1
        return found[::-1] if reordered.calls % 2 else found

    right, reordered.calls = Exchange.buckets, 0
    monkeypatch.setattr(Exchange, "buckets", reordered)
    with pytest.raises((Deadlock, ValueError)):
        run("allreduce", overlap="backward", workers=2)


@pytest.mark.parametrize("compress", ["topk:0.05", "randk:0.1", "dgc:0.05", "onebit", "twobit:0.1", "qsgd:16", "fp16",
                                      "powersgd:2"])
@pytest.mark.parametrize("name", ["bsp", "downpour"])
def test_servers_get_the_compressed_form(name, compress):
    """Fewer bytes up, as many down; the same in processes."""
    how = {"layout": "layers", "overlap": "backward", "compress": compress, "servers": 2}
    here, dense = run(name, **how), once(name, layout="layers", servers=2)
    up = {k: sum(v for node, v in r.measured["bytes_sent_by_node"].items() if node.startswith("worker"))
          for k, r in (("coded", here), ("dense", dense))}
    assert up["coded"] < 0.6 * up["dense"]
    if name == "bsp":
        assert run(name, runtime="processes", **how).parameters_sha256 == here.parameters_sha256


def test_a_codec_that_takes_time_is_priced_at_both_ends():
    """Of a gradient of M bytes, M bytes at the worker and M at the server."""
    free, priced = (run("bsp", FIXED.with_(codec=price), workers=1, compress="fp16") for price in (0.0, 1e-6))
    nbytes = free.problem["bytes"]
    assert priced.measured["seconds"] - free.measured["seconds"] == pytest.approx(4 * 2 * 1e-6 * nbytes, rel=1e-6)


@pytest.mark.parametrize(("module", "right", "wrongly"), [
    ("compression", "s - self.rule.decode(message, s.size) if self.feedback else rest", "0 * s"),
    ("compression", "s - self.rule.decode(message, s.size) if self.feedback else rest",
     "2 * (s - self.rule.decode(message, s.size))")])
def test_a_residual_that_is_dropped_or_added_twice_breaks_the_ledger(module, right, wrongly):
    """Sum of what is sent + residual = sum of gradients, exactly on integers."""
    def owed(how):
        codec, rng, total = how.codec("topk:0.25"), np.random.default_rng(0), np.zeros(8, np.float32)
        state, sent = codec.start(8), np.zeros(8, np.float32)
        for t in range(20):
            g = rng.integers(-8, 9, 8).astype(np.float32)
            message, state = codec.encode(state, g, codec.key(0, t))
            total, sent = total + g, sent + codec.decode(message, 8)
        return total - sent - state[1]

    assert not owed(compression).any()
    assert owed(changed(compression, right, wrongly)).any()


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from(["robin", "size", "hash"]), st.data())
@settings(max_examples=50)
def test_parts_cover_the_vector_once_and_every_one_has_a_server(d, servers, balance, data):
    edges = sorted({0, d, *data.draw(st.lists(st.integers(0, d), max_size=5))})
    layers = type("Layers", (), {"parts": [slice(a, b) for a, b in pairwise(edges)]})
    problem = type("Problem", (), {"x0": np.arange(d, dtype=np.float32), "layers": layers})
    exchange = Exchange(data.draw(st.sampled_from(["layers", "chunks:8", "chunks:400"])), balance)
    parts = exchange.cut(problem, servers)
    assert np.array_equal(np.concatenate([problem.x0[part] for part in parts]), problem.x0)
    assert [section([(part, problem.x0[part]) for part in parts], layer).tolist() for layer in layers.parts] == [
        problem.x0[layer].tolist() for layer in layers.parts]
    home = exchange.deal(parts, servers)
    assert len(home) == len(parts) and all(0 <= k < servers for k in home)
    if balance == "size":
        held = [sum(p.stop - p.start for p, k in zip(parts, home, strict=True) if k == s) for s in range(servers)]
        assert max(held) <= min(held) + max(p.stop - p.start for p in parts)


@pytest.mark.parametrize(("name", "options", "says"), [
    ("gosgd", {"overlap": "backward"}, "overlap backward with gosgd: it exchanges parameters"),
    ("allreduce", {"overlap": "both"}, "overlap both with allreduce: the next forward pass begins"),
    ("allreduce", {"layout": "layers"}, "layout layers with allreduce: it has no servers"),
    ("downpour", {"overlap": "both"}, "overlap both with downpour: its workers do not wait"),
    ("ssp", {"overlap": "both", "refresh": "lazy"}, "refresh fresh does; expected overlap backward"),
    ("bsp", {"priority": True}, "priority True with layout equal; expected layout layers"),
    ("bsp", {"bucket": 4}, "bucket 4 with bsp: it has servers"),
    ("allreduce", {"bucket": 4}, "bucket 4 without overlap; expected overlap backward"),
    ("bsp", {"layout": "chunks:0"}, "layout 'chunks:0'; expected equal, layers or chunks:BYTES"),
    ("bsp", {"overlap": "all"}, "overlap 'all'; expected one of none, backward, both")])
def test_what_an_exchange_cannot_do_is_refused_in_a_line(name, options, says):
    with pytest.raises(ValueError, match=says) as error:
        run(name, **options)
    assert "\n" not in str(error.value)


def test_a_comparison_takes_algorithms_with_options():
    from refsgd.experiment.compare import compare

    found = compare(["bsp", "bsp layout=layers overlap=both priority=on", "allreduce compress=topk:0.1"],
                    runtime="simulator", steps=3, workers=2)
    assert list(found.results) == ["bsp", "bsp layout=layers priority=True overlap=both",
                                   "allreduce compress=topk:0.1"]
    plain, layers, coded = found.results.values()
    assert layers.measured["seconds"] < plain.measured["seconds"]
    assert coded.measured["bytes_sent"] < plain.measured["bytes_sent"] / 4
    with pytest.raises(ValueError, match="'overlap' is not an option; expected option=value"):
        compare(["bsp overlap"], runtime="simulator", steps=1)


@pytest.mark.parametrize(("name", "how"), [
    ("bsp", {"layout": "layers", "overlap": "backward"}), ("asp", {"compress": "topk:0.5"}),
    ("allreduce", {"overlap": "backward"})])
def test_every_schedule_of_a_small_case_holds_the_invariants(name, how):
    """Or many of them at random: two layers and two workers have many more than a whole vector."""
    said = refsgd.testing.explore_algorithm(name, steps=1, walks=40, **how)
    assert "40" in said


def test_a_stepper_shows_the_layers():
    stepper = refsgd.Stepper("bsp", workers=1, steps=1, overlap="backward")
    assert stepper.run_until("update").last
    assert stepper.name.startswith("bsp overlap=backward")


def test_a_record_of_layers_is_replayed_bit_for_bit(tmp_path):
    for how in ({"layout": "layers", "overlap": "both", "priority": True}, {"compress": "topk:0.1"}):
        found = run("ssp", record=tmp_path / "record", **how)
        assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256


def test_a_run_of_layers_is_resumed(tmp_path):
    how = {"layout": "layers", "overlap": "both"}
    whole = run("bsp", **how)
    run("bsp", checkpoint=tmp_path / "half", **how)
    again = refsgd.run("bsp", resume=tmp_path / "half")
    assert again.parameters_sha256 == whole.parameters_sha256 and again.measured == whole.measured


@pytest.mark.parametrize("fault", ["kill worker 1 at step 0", "kill worker 1 at step 2"])
def test_a_run_of_layers_shrinks_without_losing_a_layer(fault):
    """Also where some layers have been updated and others not: the newest of each, at its own place."""
    found = run("bsp", layout="layers", overlap="backward", faults=[fault], on_death="shrink", workers=3)
    assert found.parameters.size == found.problem["parameters"] and found.accuracy["test"] > 0.1
