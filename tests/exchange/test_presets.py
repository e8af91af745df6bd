"""Update architectures by name: no two are the same run."""

from itertools import combinations

import pytest

import refsgd
from refsgd.experiment.architectures import ARCHITECTURES

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
#: the server sends and gets the same messages in the same order, over its own link or beside a worker for free
SAME_MESSAGES = {("parameter-server", "parameter-server-collocated")}


def test_no_two_presets_give_the_same_trace():
    """Who does what in which order, and when: fusion of 64 MiB and a ring after the backward pass exchange the same
    bytes of a small net at the same time, in a program beside the main one or in it."""
    machine = refsgd.Machine(compute="fixed(0.03)", latency=1e-3, bandwidth=1e7)
    found = {name: refsgd.run(how.algorithm, data="digits", workers=4, steps=2, evaluations=0,
                              machine=machine.with_(colocated=how.colocated), **how.options)
             for name, how in ARCHITECTURES.items()}
    traces = {name: [*map(str, run.trace.events)] for name, run in found.items()}
    assert [pair for pair in combinations(traces, 2) if traces[pair[0]] == traces[pair[1]]] == []
    alike = {(a, b) for a, b in combinations(found, 2) if found[a].schedule_sha256 == found[b].schedule_sha256}
    assert alike == SAME_MESSAGES
    apart, beside = (found[name].measured["seconds"] for name in min(SAME_MESSAGES))
    assert beside < apart
    assert {run.parameters_sha256 for name, run in found.items() if "allreduce" not in ARCHITECTURES[name].algorithm} == {
        found["parameter-server"].parameters_sha256}


@pytest.mark.parametrize(("latency", "first"), [(0.0, "collective-allreduce"), (1e-4, "horovod")])
def test_on_a_large_net_fusion_saves_latency_and_a_ring_for_each_layer_hides_more(latency, first):
    """Of ResNet-50 the 102 MB are two buffers, of which one is summed while the backward pass continues."""
    machine = refsgd.Machine(compute="fixed(0.2)", latency=latency, bandwidth=1e9)
    found = {name: refsgd.predict("allreduce", data="none", net="shapes:resnet50@224", workers=4, steps=2, machine=machine,
                                  **ARCHITECTURES[name].options)["seconds_per_iteration"].value
             for name in ("horovod", "collective-allreduce", "distributed-allreduce-ringx1")}
    assert min(found, key=found.__getitem__) == first
    assert found["horovod"] < found["distributed-allreduce-ringx1"]
