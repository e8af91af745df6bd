"""Frames: what comes out is what went in, and what no peer can have sent is refused before memory is
taken."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refsgd.runtimes.mailbox import tag_of
from refsgd.runtimes.transports.wire import (
    ARRAY,
    DTYPES,
    HEAD,
    JOINED,
    LONGEST_DESCRIPTION,
    REPEATED,
    TUPLE,
    Incoming,
    Outgoing,
    WireError,
    decoder,
    encode,
)


class Body(NamedTuple):
    a: Any
    b: Any = None


def decode(data, limit=1 << 20, piece=None, nodes=range(4)):
    """All frames in `data`, fed in pieces."""
    frames, view, at = [], memoryview(data), 0

    def read_into(target):
        nonlocal at
        n = min(len(target), len(view) - at, piece or len(view))
        target[:n] = view[at : at + n]
        at += n
        return n

    Incoming(read_into, decoder(frames.append, nodes, nodes, limit)).pump()
    return frames


def joined(body, **changes):
    return b"".join(encode(body, **{"src": 1, "to": 2, "number": 7, "stamp": 0.5} | changes))


def same(a, b):
    if isinstance(a, np.ndarray):
        return (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
                and not b.flags.writeable)
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.generic):
        return type(a) is type(b) and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or (a != a and b != b))


arrays = hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
scalars = st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, 1)).map(lambda a: a[0])
plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), arrays,
                  scalars)
fields = st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


def depth(value):
    return 1 + max(map(depth, value), default=0) if isinstance(value, tuple) else 0


@pytest.mark.slow
@given(st.tuples(fields.filter(lambda v: depth(v) <= 4), fields.filter(lambda v: depth(v) <= 4)),
       st.integers(1, 100))
def test_what_comes_out_is_what_went_in(values, piece):
    """Whatever pieces the stream gives; types, shapes and bits are kept."""
    body = Body(*values)
    data = joined(body) + joined(Body(1))
    first, second = decode(data, piece=piece)
    assert (first.src, first.to, first.tag, first.number, first.stamp) == (1, 2, tag_of(Body), 7, 0.5)
    assert same(tuple(values), first.fields) and second.fields == (1, None)


def test_large_arrays_are_not_copied_when_sent():
    """The frame holds views of them."""
    x = np.arange(JOINED, dtype=np.float32)
    views = encode(Body(x, x[::2]), 0, 1, 0, 0.0)
    assert len(views) == 3 and np.shares_memory(np.frombuffer(views[1], np.uint8), x)


def test_a_broadcast_number_travels_as_one_number():
    """Ten gigabytes without contents."""
    body = Body(np.broadcast_to(np.float32(2), (2_500_000_000,)))
    (frame,) = decode(joined(body))
    assert len(joined(body)) < 100 and frame.fields[0].nbytes == 10_000_000_000 and frame.fields[0][-1] == 2


@pytest.mark.parametrize(("value", "what"), [
    ({1}, "is of type set"), ([1, 2], "is of type list"), (1 << 64, "is an int of 65 bits"),
    (np.array([object()]), "is an array of object"), (np.zeros(2, "M8[s]"), "is an array of datetime64"),
    ("x" * 70_000, "is a str of 70000 bytes"), ((((((1,),),),),), "is of type tuple"),
    (1 + 2j, "is of type complex"),
    (b"raw", "is of type bytes"), (np.zeros(2, ">f4"), "is an array of >f4")])
def test_fields_that_cannot_travel_are_named(value, what):
    """By class and field, with what was expected."""
    with pytest.raises(TypeError, match=rf"field Body\.b.* {what}.*; expected"):
        encode(Body(0, value), 0, 1, 0, 0.0)


def test_only_messages_travel():
    """A message is an instance of a NamedTuple class."""
    with pytest.raises(TypeError, match="a message of type tuple; expected an instance of a NamedTuple"):
        encode((1, 2), 0, 1, 0, 0.0)
    with pytest.raises(TypeError, match="a message Body of 0 bytes with"):
        encode(Body(tuple(range(LONGEST_DESCRIPTION // 8))), 0, 1, 0, 0.0)


def frame(description, total=0, src=1, to=2, stamp=0.0, length=None):
    return HEAD.pack(len(description) if length is None else length, 3, src, to, 0, stamp,
                     total) + description


def array_field(kind, code, shape, *rest):
    return struct.pack("<BH", TUPLE, 1) + struct.pack(f"<BBB{len(shape)}Q", kind, code, len(shape),
                                                      *shape) + b"".join(rest)


@pytest.mark.parametrize("data", [
    frame(b"", length=0),
    frame(b"\0\0\0", length=LONGEST_DESCRIPTION + 1),
    frame(array_field(ARRAY, 0, (1 << 40,)), total=1 << 42),
    frame(array_field(ARRAY, 0, (4,)), total=15),
    frame(array_field(ARRAY, 0, (4,)), total=17),
    frame(array_field(ARRAY, 0, (1 << 62, 4)), total=0),
    frame(array_field(ARRAY, 0, (0, 1 << 63)), total=0),
    frame(array_field(ARRAY, 99, (4,)), total=16),
    frame(array_field(ARRAY, 0, (1,) * 40), total=4),
    frame(array_field(REPEATED, 0, (1 << 63, 1 << 63), b"\0\0\0\0")),
    frame(array_field(REPEATED, 0, (4,), b"\0")),
    frame(struct.pack("<BH", TUPLE, 2) + b"\0"),
    frame(struct.pack("<BH", TUPLE, 1) + b"\0\0"),
    frame(struct.pack("<BH", TUPLE, 1) + b"\xee"),
    frame(struct.pack("<BHBQ", TUPLE, 1, 10, 0)),
    frame(struct.pack("<BHBH", TUPLE, 1, 5, 2) + b"\xff\xfe"),
    frame(struct.pack("<BH", TUPLE, 1) * 50),
    frame(b"\0\0\0"),
    frame(struct.pack("<BH", TUPLE, 0), src=9),
    frame(struct.pack("<BH", TUPLE, 0), to=9),
    frame(struct.pack("<BH", TUPLE, 0), stamp=math.nan),
    frame(struct.pack("<BH", TUPLE, 0), stamp=math.inf),
])
def test_what_no_peer_can_have_sent_is_refused(data):
    """Bounded lengths, shapes that add up, known kinds, nodes that belong to the stream."""
    with pytest.raises(WireError):
        decode(data)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(data):
    """Nothing but WireError, and no frame."""
    with contextlib.suppress(WireError):
        assert decode(data) == []


@given(st.data())
def test_altered_frames_are_refused_or_have_the_right_size(data):
    """One byte changed: an error or a frame whose arrays still fit the announced bytes."""
    original = bytearray(joined(Body(np.arange(20, dtype=np.float32), (1, "x", np.float64(2)))))
    at = data.draw(st.integers(0, len(original) - 1))
    original[at] ^= data.draw(st.integers(1, 255))
    try:
        frames = decode(bytes(original))
    except WireError:
        return
    for f in frames:
        assert sum(getattr(v, "nbytes", 0) for v in f.fields if isinstance(v, np.ndarray)
                   and any(v.strides)) <= 80


#: frames of any kind: heads that a peer could have sent, or nobody, with any description and any bytes behind
#: it
numbers = st.one_of(st.integers(0, 40), st.integers(0, 2**63),
                    st.sampled_from([0xFFFF, 1 << 16, 1 << 20, (1 << 32) - 1, 2**64 - 1]))
descriptions = st.one_of(
    st.binary(max_size=60),
    st.tuples(st.integers(0, 12), st.integers(0, 20), st.lists(numbers, max_size=4)).map(
        lambda parts: array_field(parts[0], parts[1], [n % 2**64 for n in parts[2]])),
    fields.filter(lambda v: depth(v) <= 4).map(lambda v: joined(Body(v))[HEAD.size :]))
frames = st.builds(
    lambda description, total, src, to, stamp, length, rest: frame(description, total % 2**64, src, to, stamp,
                                                                   length) + rest,
    descriptions, numbers, st.integers(0, 5), st.integers(0, 5), st.floats(),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.binary(max_size=100))


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(frames, st.integers(1, 50))
def test_thousands_of_frames_of_any_kind(data, piece):
    """Refused, waited for, or frames of a bounded size from and to nodes of the stream; never another
    error."""
    try:
        got = decode(data, piece=piece)
    except WireError:
        return
    for f in got:
        assert f.src in range(4) and f.to in range(4) and math.isfinite(f.stamp)
        assert sum(a.nbytes for a in f.fields if isinstance(a, np.ndarray) and any(a.strides)) <= len(data)


def recorded():
    """Frames as runs send them: small and large, many kinds of fields, several in a row."""
    rng = np.random.default_rng(0)
    bodies = [Body(rng.standard_normal(n).astype(np.float32), more) for n in (0, 1, 100, 5000)
              for more in (None, 3, (1, (2, "x")), np.float64(1), rng.integers(0, 9, (3, 4)), True)]
    return [joined(body, number=k) for k, body in enumerate(bodies)]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_altered_recordings_crash_nothing(count):
    """Bytes changed, cut out, doubled, swapped, frames repeated: refused, or frames of a bounded size;
    seeded."""
    frames, rng, refused = recorded(), np.random.default_rng(1), 0
    for _ in range(count):
        data = bytearray(b"".join(frames[k] for k in rng.integers(0, len(frames), 3)))
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, min(len(data), 400)))
            end = at + int(rng.integers(1, 20))
            how = rng.integers(0, 4)
            if how == 0:
                data[at] = rng.integers(0, 256)
            elif how == 1:
                del data[at:end]
            elif how == 2:
                data[at:at] = data[at:end]
            else:
                data[at:end] = rng.bytes(end - at)
        try:
            got = decode(bytes(data), piece=int(rng.integers(1, 5000)))
        except WireError:
            refused += 1
        else:
            assert all(
                sum(a.nbytes for a in f.fields if isinstance(a, np.ndarray) and any(a.strides)) <= 1 << 20
                       for f in got)
    assert refused > count // 4


def test_the_overflow_queue_keeps_order_and_counts():
    """A stream that takes three bytes at a time, or none."""
    taken, room = bytearray(), [5]

    def write(view):
        n = min(3, len(view), room[0])
        taken.extend(view[:n])
        room[0] -= n
        return n

    out = Outgoing(write)
    assert out.post([memoryview(b"abcdef"), memoryview(b"gh")]) == 3 and out.nbytes == 5
    room[0] = 100
    while out.flush():
        pass
    assert bytes(taken) == b"abcdefgh" and out.nbytes == 0
