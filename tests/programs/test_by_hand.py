"""Programs driven by hand: values in, effects out, no runtime."""

import numpy as np
import pytest

from refsgd.algorithms.parts import Model, Push, Shard, worker
from refsgd.algorithms.server import asp, bsp, ssp_gate
from refsgd.algorithms.sgd import SGD, StepDecay, mean_gradient, parse_schedule
from refsgd.collectives.parts import chunks
from refsgd.effects import Compute, Mark, Recv, Send, payload_bytes
from refsgd.problems import quadratic

ONE = np.ones(2, np.float32)


def answer(program, value=None):
    """Send a value, perform every Compute in place, skip Marks; the next effect that needs somebody else."""
    effect = program.send(value)
    while isinstance(effect, Compute | Mark):
        effect = program.send(effect.fn(*effect.args) if isinstance(effect, Compute) else None)
    return effect


def test_a_worker_computes_pushes_and_waits():
    problem = quadratic(d=2, workers=1)
    program = worker(0, ["server0"], problem, steps=1)
    effect = program.send(None)
    assert isinstance(effect, Compute) and effect.args == (problem.x0, 0, 0)
    send = program.send(ONE)
    assert send.to == "server0" and send.body.version == 0 and payload_bytes(send.body) == 8
    assert program.send(None) == Recv(Model, src="server0")
    assert program.send(("server0", Model(ONE, 1))) == Mark("clock", t=0)
    with pytest.raises(StopIteration) as end:
        program.send(None)
    assert np.array_equal(end.value.value, ONE)


def test_bsp_server_waits_for_all_and_answers_all():
    program = bsp.server(Shard(0, np.zeros(2, np.float32), SGD(0.5)), ["worker0", "worker1"], steps=1)
    assert isinstance(answer(program), Recv)
    assert isinstance(answer(program, ("worker1", Push(3 * ONE, 1, 0))), Recv)  # one of two: no answer yet
    first = answer(program, ("worker0", Push(ONE, 1, 0)))
    assert isinstance(first, Send) and first.to == "worker0"
    assert np.array_equal(first.body.x, -ONE) and first.body.version == 1
    assert answer(program).to == "worker1"


def test_asp_server_answers_each_push_at_once():
    program = asp.server(Shard(0, np.zeros(2, np.float32), SGD(1.0)), pushes=2)
    answer(program)
    send = answer(program, ("worker1", Push(ONE, 1, 0)))
    assert send.to == "worker1" and np.array_equal(send.body.x, -ONE)


def test_ssp_server_withholds_the_answer_to_whom_is_too_far_ahead():
    program = ssp_gate.server(Shard(0, np.zeros(2, np.float32), SGD(1.0)), ["worker0", "worker1"], 3, staleness=1)
    answer(program)
    assert answer(program, ("worker0", Push(ONE, 1, 0))).to == "worker0"  # one clock ahead: allowed
    answer(program)
    assert isinstance(answer(program, ("worker0", Push(ONE, 1, 1))), Recv)  # two ahead: withheld
    assert answer(program, ("worker1", Push(ONE, 1, 0))).to == "worker0"  # the slowest moved: both go on
    assert answer(program).to == "worker1"


def test_slices_cover_the_vector_and_differ_by_at_most_one():
    for d in range(12):
        for k in range(1, 8):
            parts = chunks(d, k)
            assert [i for s in parts for i in range(s.start, s.stop)] == list(range(d))
            sizes = {s.stop - s.start for s in parts}
            assert max(sizes) - min(sizes) <= 1


def test_the_mean_weighs_by_images_and_the_mean_of_means_is_wrong():
    g = [ONE, 4 * ONE]
    assert np.array_equal(mean_gradient(g, [3, 1]), 1.75 * ONE)
    assert not np.array_equal(np.mean(g, axis=0), mean_gradient(g, [3, 1]))
    assert np.array_equal(mean_gradient([0 * ONE, 0 * ONE], [0, 0]), 0 * ONE)
    assert np.array_equal(mean_gradient([ONE / 3], [11]), ONE / 3), "a lone gradient keeps its bits"


def test_momentum_is_the_form_of_pytorch():
    sgd = SGD(0.1, momentum=0.9, weight_decay=0.01, schedule=StepDecay(1, 0.5))
    x, v = ONE, sgd.start(ONE)
    x1, v1 = sgd.step(x, v, ONE, 0)
    assert np.allclose(v1, 1.01) and np.allclose(x1, 1 - 0.101)
    x2, v2 = sgd.step(x1, v1, ONE, 1)
    assert np.allclose(v2, 0.9 * 1.01 + 1 + 0.01 * x1) and np.allclose(x2, x1 - 0.05 * v2)
    assert x2.dtype == np.float32


def test_a_rate_falls_again_and_again():
    assert [StepDecay(2, 0.5)(t) for t in range(7)] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert parse_schedule("step(2,0.5)") == StepDecay(2, 0.5) and parse_schedule("constant")(5) == 1
    assert StepDecay(1, 1)(9) == 1, "the limits of both are allowed"


@pytest.mark.parametrize(("text", "said"), [
    ("step(0,0.5)", r"schedule step\(0,0.5\); expected every >= 1 and 0 < factor <= 1"),
    ("step(2,0)", r"step\(2,0.0\); expected every"),
    ("step(2,1.5)", r"step\(2,1.5\); expected every"),
    ("step(2)", "not understood; expected constant, cosine, cosine\\(updates\\) or step"), ("step(a,0.5)", "not understood"),
    ("step(2,0.5", "not understood"), ("stop(2,0.5)", "not understood"),
    ("cosines", "'cosines' not understood; expected constant, cosine"),
    ("cosine(0)", "schedule cosine\\(0\\); expected at least 1 update")])
def test_a_schedule_that_is_none_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        parse_schedule(text)


def test_a_constant_rate_is_the_default():
    assert parse_schedule("constant") is SGD(0.3).schedule
    assert {SGD(0.3).rate(t) for t in range(5)} == {np.float32(0.3)}


@pytest.mark.parametrize(("constants", "said"), [
    ((-0.1,), "learning rate -0.1"), ((float("inf"),), "learning rate inf"),
    ((float("nan"),), "learning rate nan"), ((1, 1.0), "momentum 1.0"),
    ((1, -0.1), "momentum -0.1"), ((1, 0, -0.1), "weight decay -0.1"),
    ((1, 0, float("inf")), "weight decay inf")])
def test_constants_that_are_none_are_named(constants, said):
    SGD(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=said + "; expected a"):
        SGD(*constants)
