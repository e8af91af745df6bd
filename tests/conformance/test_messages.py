"""What the effects promise about messages, held against every runtime."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Poll, Recv, Send
from refsgd.trace import Received, Sent


class Number(NamedTuple):
    value: int


class Data(NamedTuple):
    values: Any


class Other(NamedTuple):
    value: Any


class Many(NamedTuple):
    array: Any
    scalar: Any
    whole: int
    real: float
    flag: bool
    nothing: None
    text: str
    pair: tuple[int, int]
    nested: tuple[Any, ...]


class Nothing(NamedTuple):
    pass


PACED = Machine(compute="fixed(0.004)", latency=0.001, bandwidth=1e9)


def test_channels_are_first_in_first_out(world):
    """Each channel keeps its order, whatever the order between senders."""
    def sender():
        for i in range(200):
            yield Send("peer2", Number(i))

    def receiver():
        got = {"peer0": [], "peer1": []}
        for _ in range(400):
            src, (value,) = yield Recv(Number)
            got[src].append(value)
        return got

    values = world(lambda: {"peer0": Node(sender()), "peer1": Node(sender()),
                            "peer2": Node(receiver())}).values
    assert values["peer2"] == {"peer0": list(range(200)), "peer1": list(range(200))}


def test_receive_is_selective_by_class_and_by_source(world):
    """What a Recv does not name stays in the inbox, in order."""
    def sender(me):
        yield Send("peer2", Number(me))
        yield Send("peer2", Other(10 + me))
        yield Send("peer2", Number(100 + me))

    def receiver():
        a = yield Recv(Other, src="peer1")
        b = yield Recv(Other)
        c = yield Recv(Number, src="peer1")
        d = yield Recv(Number, src="peer0")
        e = yield Recv(Number, src="peer1")
        f = yield Recv(Number)
        return [(src, body.value) for src, body in (a, b, c, d, e, f)]

    values = world(lambda: {"peer0": Node(sender(0)), "peer1": Node(sender(1)),
                            "peer2": Node(receiver())}).values
    assert values["peer2"] == [("peer1", 11), ("peer0", 10), ("peer1", 1), ("peer0", 0), ("peer1", 101),
                               ("peer0", 100)]


def test_one_receive_may_name_several_classes(world):
    """The body tells which class came; the earliest of the named ones is taken."""
    def sender():
        yield Send("peer1", Other(0.5))
        yield Send("peer1", Number(7))
        yield Send("peer1", Data(np.arange(3)))

    def receiver():
        out = []
        for _ in range(2):
            _, body = yield Recv(Number, Data)
            out.append(type(body).__name__)
        _, body = yield Recv(Other, Number)
        return [*out, type(body).__name__, body.value]

    assert world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())}).values["peer1"] == [
        "Number", "Data", "Other", 0.5]


def test_poll_never_waits(world):
    """None at first; later the message, and those of other classes are left alone."""
    def asked():
        first = yield Poll(Number)
        yield Send("peer1", Nothing())
        yield Recv(Other)  # the number was sent before it, so it is there
        second = yield Poll(Number)
        third = yield Poll(Number)
        return first, second, third

    def other():
        yield Recv(Nothing)
        yield Send("peer0", Number(5))
        yield Send("peer0", Other(1))

    values = world(lambda: {"peer0": Node(asked()), "peer1": Node(other())}).values
    assert values["peer0"] == (None, ("peer1", Number(5)), None)


@pytest.mark.parametrize("machine", [None, PACED])
def test_large_arrays_travel_whole(world, machine):
    """Several megabytes, larger than any ring or socket buffer."""
    sent = [np.random.default_rng(k).standard_normal(700_000 + k).astype(np.float32) for k in range(4)]

    def sender():
        for array in sent:
            yield Send("peer1", Data(array))

    def receiver():
        got = []
        for _ in sent:
            _, (array,) = yield Recv(Data)
            got.append(array)
        return got

    got = world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())}, machine).values["peer1"]
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(sent, got))


def test_fields_keep_type_shape_and_value(world):
    """Empty arrays, no dimensions, transposed ones, every kind of field."""
    arrays = [np.zeros(0, np.float32), np.zeros((3, 0, 2)), np.array(2.5, np.float32),
              np.arange(6).reshape(2, 3).T,
              np.arange(10, dtype=np.int32)[::2], np.array([True, False]), np.arange(4, dtype=np.uint8),
              np.arange(3, dtype=np.float16), np.broadcast_to(np.float32(3), (2, 3))]
    body = Many(np.ones(2), np.float32(0.1), -5, 0.25, True, None, "wörker0", (1, -2),
                (np.arange(2), (3, None)))

    def sender():
        for array in arrays:
            yield Send("peer1", Data(array))
        yield Send("peer1", body)
        yield Send("peer1", Nothing())

    def receiver():
        got = []
        for _ in arrays:
            _, (array,) = yield Recv(Data)
            got.append(array)
        _, many = yield Recv(Many)
        _, nothing = yield Recv(Nothing)
        return got, tuple(many), nothing

    got, many, nothing = world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())}).values["peer1"]
    for a, b in zip(arrays, got):
        assert type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    assert np.array_equal(many[0], body.array) and type(many[1]) is np.float32 and many[1] == np.float32(0.1)
    assert many[2:8] == body[2:8] and [type(v)
                                       for v in many[2:8]] == [int, float, bool, type(None), str, tuple]
    assert np.array_equal(many[8][0], np.arange(2)) and many[8][1] == (3, None)
    assert nothing == Nothing()


@pytest.mark.slow
def test_many_small_messages(world):
    """Ten thousand of them, with answers."""
    def asks():
        total = 0
        for i in range(5000):
            yield Send("peer1", Number(i))
            if i % 10 == 9:
                for _ in range(10):
                    _, (value,) = yield Recv(Number)
                    total += value
        return total

    def answers():
        for _ in range(5000):
            src, (value,) = yield Recv(Number)
            yield Send(src, Number(2 * value))

    run = world(lambda: {"peer0": Node(asks()), "peer1": Node(answers())})
    assert run.values["peer0"] == 5000 * 4999 and run.trace.messages == 10_000


def test_two_nodes_flood_each_other_before_they_receive(world):
    """Forty times two megabytes: a design in which Send may wait stands still here."""
    def flood(me, other):
        for k in range(20):
            yield Send(other, Data(np.full(500_000, 10 * me + k, np.float32)))
        total = 0.0
        for _ in range(20):
            _, (array,) = yield Recv(Data)
            assert (array == array[0]).all()
            total += float(array[0])
        return total

    values = world(lambda: {"peer0": Node(flood(0, "peer1")), "peer1": Node(flood(1, "peer0"))}).values
    assert values == {"peer0": 390.0, "peer1": 190.0}


def test_arrays_are_read_only_on_both_sides(world):
    """A value that has crossed a yield cannot be changed any more, by any program that holds it."""
    def sender():
        x = np.ones(5, np.float32)
        yield Send("peer1", Data(x))
        with pytest.raises(ValueError, match="read-only"):
            x += 1
        y = np.ones(3, np.float32)
        yield Compute(np.sum, y)
        with pytest.raises(ValueError, match="read-only"):
            y += 1
        z = np.ones(2, np.float32)
        yield Mark("update", version=0, x=z)
        with pytest.raises(ValueError, match="read-only"):
            z += 1
        return "kept"

    def receiver():
        _, (x,) = yield Recv(Data)
        with pytest.raises(ValueError, match="read-only"):
            x *= 2
        return "kept"

    values = world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())}).values
    assert values == {"peer0": "kept", "peer1": "kept"}


def test_bytes_count_arrays_and_numpy_scalars(world):
    """The same payload bytes at the sender, at the receiver, and in every world."""
    def sender():
        yield Send("peer1",
                   Many(np.zeros(10, np.float32), np.float32(1), 1, 1.0, True, None, "x", (1, 2), ()))
        yield Send("peer1", Data(np.float64(1)))
        yield Send("peer1", Nothing())

    def receiver():
        for kind in (Many, Data, Nothing):
            yield Recv(kind)

    trace = world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())}).trace
    assert [e.nbytes for e in trace.of(Sent)] == [44, 8, 0]
    assert [e.nbytes for e in trace.of(Received)] == [44, 8, 0]
    assert trace.bytes_sent == {"peer0": 52, "peer1": 0}
    assert [t.number for t in trace.transits] == [0, 1, 2]


def test_what_cannot_travel_is_refused_where_it_travels(world, request):
    """A set is no field; the error names the field and the program's line."""
    if request.node.callspec.params["world"] == "simulator":
        pytest.skip("nothing is encoded in the simulator")

    def sender():
        yield Send("peer1", Other({1, 2}))

    def receiver():
        yield Recv(Other)

    with pytest.raises(RuntimeError,
                       match=r"test_messages.py:\d+ in sender sends field Other.value is of type set"):
        world(lambda: {"peer0": Node(sender()), "peer1": Node(receiver())})
