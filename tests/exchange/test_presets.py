"""Update architectures by name: no two are the same run."""

from itertools import combinations

import pytest

import refsgd
from refsgd.cli.options import expand_preset
from refsgd.experiment.options.architectures import ARCHITECTURES
from refsgd.trace import Computed, Received

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
#: the server sends and gets the same messages in the same order, over its own link or beside a worker for free
SAME_MESSAGES = {("parameter-server", "parameter-server-collocated")}


def test_no_two_presets_give_the_same_trace():
    """Who does what in which order, and when: fusion of 64 MiB and a ring after the backward pass exchange the same
    bytes of a small net at the same time, in a program beside the main one or in it."""
    machine = refsgd.Machine(compute="fixed(0.03)", latency=1e-3, bandwidth=1e7)
    found = {name: refsgd.run(how.algorithm, data="digits", workers=4 + how.extra, steps=2, evaluations=0,
                              machine=machine.with_(**how.fields(4)), **how.options)
             for name, how in ARCHITECTURES.items()}
    traces = {name: [*map(str, run.trace.events)] for name, run in found.items()}
    assert [pair for pair in combinations(traces, 2) if traces[pair[0]] == traces[pair[1]]] == []
    alike = {(a, b) for a, b in combinations(found, 2) if found[a].schedule_sha256 == found[b].schedule_sha256}
    assert alike == SAME_MESSAGES
    apart, beside = (found[name].measured["seconds"] for name in min(SAME_MESSAGES))
    assert beside < apart
    assert {run.parameters_sha256 for name, run in found.items() if ARCHITECTURES[name].algorithm == "bsp"
            and not ARCHITECTURES[name].extra} == {found["parameter-server"].parameters_sha256}
    assert found["replicated"].measured["seconds"] == min(run.measured["seconds"] for run in found.values())


def expanded(*flags):
    return " ".join(expand_preset(["run", "--preset", *flags]))


def test_a_preset_asks_of_the_machine_what_its_name_says():
    assert expanded("replicated", "--workers", "8", "--inside", "5us,1GB/s") == (
        "run allreduce --collective tree --hosts 1x8 --inside 10us,12GB/s --workers 8 --inside 5us,1GB/s")
    assert expanded("ringx2") == "run allreduce --collective rings --rings 2"
    assert expanded("parameter-server-extra-worker", "--workers", "8", "--seed", "1") == (
        "run bsp --servers 1 --workers 8 --seed 1 --workers 9")
    for flags, collective in ((["--hosts", "4x2"], "hierarchical"), (["--hosts", "4x1"], "ring"), ([], "ring"),
                              (["--hosts", "cyclic:4", "--workers", "4"], "ring")):
        assert f"--collective {collective} --overlap backward" in expanded("horovod", *flags)


@pytest.mark.parametrize("name, central", [
    *((name, True) for name in ("parameter-server", "parameter-server-collocated", "distributed-replicated",
                                "distributed-allreduce-pscpu")),
    *((name, False) for name in ("distributed-allreduce-ringx1", "collective-allreduce", "caffe2"))])
def test_central_architectures_grow_with_the_workers_and_gain_from_bandwidth(name, central):
    """Graur 2019, section 5.4.2, with his batches of 128 on ResNet-50, 1 Gbps and 56 Gbps: one node sends all workers
    the model or the mean, so its bytes and the time grow with the workers; a ring's stay below two vectors a node."""
    how, size, busiest, seconds = ARCHITECTURES[name], 102e6, {}, {}
    for n, bandwidth in ((4, 125e6), (16, 125e6), (16, 7e9)):
        machine = refsgd.Machine(compute="fixed(25)", latency=1e-5, bandwidth=bandwidth, **how.fields(n))
        found = refsgd.run(how.algorithm, net=f"shapes:{size / 4:.0f}", data="none", workers=n, steps=2, evaluations=0,
                           machine=machine, **how.options).measured
        busiest[n], seconds[n, bandwidth] = max(found["bytes_sent_by_node"].values()) / 2, found["seconds_per_iteration"]
    grown, gained = seconds[16, 125e6] / seconds[4, 125e6], seconds[16, 125e6] / seconds[16, 7e9]
    if central:
        assert all((n - 1) * size <= busiest[n] <= n * size for n in busiest)
        assert grown > 1.4 and gained > 1.4
    else:
        assert all(busiest[n] == pytest.approx(2 * (n - 1) / n * size) for n in busiest)
        assert grown < 1.1 and gained < 1.1


def test_pscpu_gathers_at_one_worker_and_sends_the_mean_to_the_others():
    """2 (n-1) M/B beside computing, where the collective of this name, with a part for each worker, takes 2 (n-1)/n M/B."""
    machine, how = refsgd.Machine(compute="1s", bandwidth=1e8), ARCHITECTURES["distributed-allreduce-pscpu"]
    for n in (2, 5, 8):
        found = refsgd.run(how.algorithm, net="shapes:25000000", data="none", workers=n, steps=1, evaluations=0,
                           machine=machine, **how.options).measured
        assert found["seconds"] == pytest.approx(1 + 2 * (n - 1))
        assert found["bytes_sent_by_node"] == {"peer0": (n - 1) * 1e8, **{f"peer{i}": 1e8 for i in range(1, n)}}


def test_horovod_crosses_between_hosts_less_often_where_they_have_several_devices():
    """8 workers on 4 hosts: the leaders' ring has 2 x 3 steps instead of 2 x 7."""
    machine = refsgd.Machine(compute="fixed(0.03)", latency=1e-3, bandwidth=1e9, hosts="4x2", inside="1us,12GB/s")
    how, steps = ARCHITECTURES["horovod"], {}
    for name, options in (("nested", how.on(machine.hosts, 8)), ("flat", how.options)):
        trace = refsgd.run(how.algorithm, data="digits", workers=8, steps=1, evaluations=0, machine=machine, **options).trace
        steps[name] = max(sum(1 for t in trace.transits if t.src == node and trace.hosts[t.to] != trace.hosts[node])
                          for node in trace.nodes)
    assert steps == {"nested": 6, "flat": 14}


@pytest.mark.parametrize(("overlap", "waits"), [("backward", False), ("both", True)])
def test_a_forward_pass_of_distributed_replicated_needs_no_network(overlap, waits):
    """All layers of the model have arrived before it begins; BSP that overlaps both passes waits in it."""
    how = ARCHITECTURES["distributed-replicated"]
    machine = refsgd.Machine(compute="fixed(0.03)", latency=1e-3, bandwidth=1e6, **how.fields(4))
    trace = refsgd.run(how.algorithm, data="digits", workers=4, steps=3, evaluations=0, machine=machine,
                       **{**how.options, "overlap": overlap}).trace
    for worker in trace.workers:
        begun = [g.start for g in trace.gradients if g.node == worker]
        parts = len(trace.nodes) - 4
        arrived = [e.time for e in trace.of(Received, worker)]
        assert len(arrived) == 3 * parts and len(trace.of(Computed, worker)) > 3
        assert any(max(arrived[t * parts:(t + 1) * parts]) > begun[t + 1] for t in range(2)) == waits


def test_one_of_several_rings_is_the_ring_and_their_number_is_an_option():
    machine = refsgd.Machine(compute="fixed(0.03)", latency=1e-3, bandwidth=1e7)
    ring, *several = (refsgd.run("allreduce", data="digits", workers=4, steps=2, evaluations=0, machine=machine, **how)
                      for how in ({}, *({"collective": "rings", "rings": k} for k in (1, 2, 5))))
    assert [run.measured["messages"] for run in several] == [k * ring.measured["messages"] for k in (1, 2, 5)]
    assert several[0].schedule_sha256 == ring.schedule_sha256
    assert several[0].measured["seconds"] == pytest.approx(ring.measured["seconds"])
    for run in several:
        assert run.predicted["seconds"]["value"] == pytest.approx(run.measured["seconds"], rel=1e-3)
    with pytest.raises(ValueError, match="rings 2 with collective ring; expected collective rings"):
        refsgd.run("allreduce", data="quadratic", rings=2)
    with pytest.raises(ValueError, match="rings 0; expected 1 to 10000"):
        refsgd.run("allreduce", data="quadratic", collective="rings", rings=0)


@pytest.mark.parametrize(("latency", "first"), [(0.0, "collective-allreduce"), (1e-4, "horovod")])
def test_on_a_large_net_fusion_saves_latency_and_a_ring_for_each_layer_hides_more(latency, first):
    """Of ResNet-50 the 102 MB are two buffers, of which one is summed while the backward pass continues."""
    machine = refsgd.Machine(compute="fixed(0.2)", latency=latency, bandwidth=1e9)
    found = {name: refsgd.predict("allreduce", data="none", net="shapes:resnet50@224", workers=4, steps=2, machine=machine,
                                  **ARCHITECTURES[name].options)["seconds_per_iteration"].value
             for name in ("horovod", "collective-allreduce", "distributed-allreduce-ringx1")}
    assert min(found, key=found.__getitem__) == first
    assert found["horovod"] < found["distributed-allreduce-ringx1"]
