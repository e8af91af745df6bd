"""Servers driven by hand: when each of them answers, and with what."""

import numpy as np

from refsgd.algorithms.averaging import easgd
from refsgd.algorithms.parts import Fetch, Model, Push, Shard
from refsgd.algorithms.server import backup_workers, downpour, dynsgd, softsync
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Compute, Mark, Send

ONE = np.ones(2, np.float32)
WORKERS = ["worker0", "worker1", "worker2"]


def conversation(program, *messages):
    """For each message what the server then sends, as (to, first entry of x, version), and the names of
    its marks but `update`."""
    effect, said = program.send(None), []
    for message in messages:
        effect, answers = program.send(message), []
        while isinstance(effect, Compute | Mark | Send):
            if isinstance(effect, Send) and isinstance(effect.body, Model):
                answers.append((effect.to, float(effect.body.x[0]), effect.body.version))
            elif isinstance(effect, Mark) and effect.name != "update":
                answers.append(effect.name)
            try:
                effect = program.send(effect.fn(*effect.args) if isinstance(effect, Compute) else None)
            except StopIteration:
                effect = None
        said.append(answers)
    return said


def shard():
    return Shard(0, 0 * ONE, SGD(1.0))


def push(worker, version, scale=1.0):
    return f"worker{worker}", Push(np.float32(scale) * ONE, 1, version)


def test_a_backup_server_answers_the_first_two_and_tells_the_third_that_it_is_late():
    program = backup_workers.server(shard(), WORKERS, 2, needed=2)
    assert conversation(program, push(2, 0), push(0, 0), push(1, 0), push(1, 1), push(0, 1), push(2, 1)) == [
        [],
        [("worker0", -1.0, 1), ("worker2", -1.0, 1)],
        ["drop", ("worker1", -1.0, 1)],  # finished for nothing; goes on with the newest
        [],
        [("worker0", -2.0, 2), ("worker1", -2.0, 2)],
        ["drop", ("worker2", -2.0, 2)],  # version 2 of 2: there is no more to do
    ]


def test_a_softsync_server_answers_at_once_mostly_with_the_model_from_before():
    program = softsync.server(shard(), WORKERS, 4, size=2)
    assert conversation(program, push(1, 0), push(1, 0, 3.0), push(0, 0), push(2, 0)) == [
        [("worker1", 0.0, 0)],
        [("worker1", -2.0, 1)],  # the mean of 1 and 3, both from worker1
        [("worker0", -2.0, 1)],
        [("worker2", -3.0, 2)],
    ]


def test_a_downpour_server_never_answers_a_push_and_always_a_fetch():
    program = downpour.server(shard(), 3, adagrad=False)
    accrued = downpour.Accrued(5 * ONE, (0, 0))
    assert conversation(program, ("worker0", accrued), ("worker1", Fetch(0)),
                        ("worker0", Fetch(2))) == [
        [], [("worker1", -5.0, 1)], [("worker0", -5.0, 1)]]


def test_a_synchronous_centre_keeps_who_is_ahead_waiting_for_the_next_centre():
    program = easgd.server(shard(), WORKERS[:2], 2, together=2)
    fetch, force = Fetch(0), easgd.Elastic(ONE, 0)
    assert conversation(program, ("worker0", fetch), ("worker0", force), ("worker0", fetch),
                        ("worker1", fetch), ("worker1", force)) == [
        [("worker0", 0.0, 0)], [], [], [("worker1", 0.0, 0)], [("worker0", 2.0, 1)]]


def test_an_asynchronous_centre_moves_under_the_feet_of_a_worker():
    program = easgd.server(shard(), WORKERS[:2], 2, together=1)
    fetch, force = Fetch(0), easgd.Elastic(ONE, 0)
    assert conversation(program, ("worker0", fetch), ("worker1", fetch), ("worker1", force),
                        ("worker1", fetch), ("worker0", force)) == [
        [("worker0", 0.0, 0)], [("worker1", 0.0, 0)], [], [("worker1", 1.0, 1)], []]


def test_a_dynsgd_server_corrects_a_step_that_it_has_taken():
    program = dynsgd.server(shard(), WORKERS, 1, staleness=1)
    assert conversation(program, push(0, 0, 6.0), push(1, 0, 0.0), push(2, 0, 3.0)) == [
        [("worker0", -6.0, 1)], [("worker1", -3.0, 2)], [("worker2", -3.0, 3)]]
