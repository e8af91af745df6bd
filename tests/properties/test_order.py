"""The order of messages: a model of K slices goes out slice by slice, from the first server on or,
rotated, from the sender's own number on."""

import inspect

import pytest

from refsgd.algorithms import CATALOGUE, parts
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Sent
from tests.ledger import with_bodies
from tests.properties.coordinates import Marked
from tests.wrong import wrong_deployment

SLICED = [name for name, deploy in CATALOGUE.items() if "rotated" in inspect.signature(deploy).parameters]
OPTIONS = {"easgd": {"period": 2}, "downpour": {"push_every": 2}}


def hold_order(deploy, rotated, **options):
    run = Marked(deploy, 4, 3, 3, Machine(compute="exponential(1)", latency=0.1), **options,
                 **({} if rotated is None else {"rotated": rotated}))
    for i in range(run.workers):
        first = i if rotated else 0
        sent = [e.to for e in run.trace.of(Sent, f"worker{i}")]
        turn = [f"server{(first + k) % 3}" for k in range(3)]
        assert sent and sent == turn * (len(sent) // 3), "to each server once, in turn"
    if deploy.__name__ == "bsp":
        for k in range(3):
            first = k if rotated else 0
            answers = [e.to for e in run.trace.of(Sent, f"server{k}")]
            assert answers == [f"worker{(first + i) % 4}" for i in range(4)] * 3


@pytest.mark.parametrize("name", SLICED)
def test_slices_go_out_in_turn(name):
    for rotated in (None, False, True):  # by default not rotated
        hold_order(CATALOGUE[name], rotated, **OPTIONS.get(name, {}))


def test_a_worker_of_its_own_begins_with_the_first_server():
    program = parts.worker(1, ["server0", "server1"], quadratic(d=4, workers=2), 1)
    send = program.send(program.send(None).args[0])
    assert send.to == "server0" and program.send(None).to == "server1"


@pytest.mark.parametrize(("name", "period"), [("downpour", "fetch_every"), ("easgd", "period")])
def test_a_fetch_names_the_iteration(name, period):
    asked = []

    def look(node, to, body):
        asked.extend([(node, to, body.t)] if type(body).__name__ == "Fetch" else [])
        return body

    simulate(with_bodies(CATALOGUE[name](quadratic(workers=2), 2, 5, SGD(0.1), 2, **{period: 2}), look),
             Machine(compute="fixed(1)"))
    assert sorted(asked) == [(f"worker{i}", f"server{k}", t) for i in range(2) for k in range(2)
                             for t in (0, 2, 4)]


@pytest.mark.parametrize(("right", "wrong"),
                         [("rotate(workers, shard.part) if rotated", "rotate(workers, shard.part + 1) if rotated"),
                          ("rotated: bool = False, *", "rotated: bool = True, *")])
def test_another_order_is_caught(right, wrong):
    deploy = wrong_deployment(bsp.bsp, right, wrong)
    with pytest.raises(AssertionError):
        for rotated in (None, True):
            hold_order(deploy, rotated)


def test_an_order_of_the_workers_alone_is_caught():
    with pytest.raises(AssertionError):
        hold_order(wrong_deployment(bsp.bsp, "rank if rotated else 0", "rank"), False)
