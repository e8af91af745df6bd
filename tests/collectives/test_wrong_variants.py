"""All-reduces that a reader would believe, and the checks that catch them."""

import numpy as np
import pytest

from refsgd.cluster.machine import Machine
from refsgd.collectives.parts import Part, Total, chunks
from refsgd.collectives.ring import all_gather, reduce_scatter
from refsgd.collectives.tree import broadcast, children
from refsgd.effects import Compute, Recv, Send
from tests.collectives.groups import (
    check_all_ranks_have_the_same_bits,
    check_chunks_are_in_place,
    check_each_part_counts_once,
)


def everybody_adds(me, peers, x):
    """WRONG: everybody sends to everybody and adds in its own order: the ranks drift apart."""
    n = len(peers)
    for j in range(1, n):
        yield Send(peers[(me + j) % n], Part(x))
    for j in range(1, n):
        _, (other,) = yield Recv(Part, src=peers[(me + j) % n])
        x = yield Compute(np.add, x, other, kind="reduction")
    return x


def one_step_too_many(me, peers, x):
    """WRONG: n steps of reduce-scatter: the last one adds a chunk that has been all the way round."""
    n = len(peers)
    part = [x[chunk] for chunk in chunks(x.size, n)]
    for step in range(n):
        yield Send(peers[(me + 1) % n], Part(part[(me - step) % n]))
        _, (other,) = yield Recv(Part, src=peers[(me - 1) % n])
        mine = (me - 1 - step) % n
        part[mine] = yield Compute(np.add, part[mine], other, kind="reduction")
    return (yield from all_gather(me, peers, part[me]))


def wrong_owner(me, peers, x):
    """WRONG: the ring as in most figures, where rank i ends with chunk i + 1, joined as if it were chunk
    i."""
    n = len(peers)
    part = [x[chunk] for chunk in chunks(x.size, n)]
    for step in range(n - 1):
        yield Send(peers[(me + 1) % n], Part(part[(me - step) % n]))
        _, (other,) = yield Recv(Part, src=peers[(me - 1) % n])
        mine = (me - 1 - step) % n
        part[mine] = yield Compute(np.add, part[mine], other, kind="reduction")
    return (yield from all_gather(me, peers, part[(me + 1) % n]))


def doubling_without_fold(me, peers, x):
    """WRONG where n is no power of two: partners by addition instead of exclusive or, "so that any n will
    do"."""
    n, distance = len(peers), 1
    while distance < n:
        yield Send(peers[(me + distance) % n], Part(x))
        _, (other,) = yield Recv(Part, src=peers[(me - distance) % n])
        x = yield Compute(np.add, x, other, kind="reduction")
        distance *= 2
    return x


def doubling_with_anybody(me, peers, x):
    """WRONG: "the partner's message is the next to arrive": a partner of a later round may be faster."""
    distance = 1
    while distance < len(peers):
        yield Send(peers[me ^ distance], Part(x))
        _, (other,) = yield Recv(Part)
        x = yield Compute(np.add, x, other, kind="reduction")
        distance *= 2
    return x


def tree_in_order_of_arrival(me, peers, x):
    """WRONG: children are added as they come: the sum depends on the network."""
    for _ in children(me, len(peers)):
        _, (other,) = yield Recv(Part)
        x = yield Compute(np.add, x, other, kind="reduction")
    if me:
        yield Send(peers[me & me - 1], Part(x))
    return (yield from broadcast(me, peers, x))


def in_place(me, peers, x):
    """WRONG: saves a copy, and overwrites the caller's vector: the gradient that it may still need."""
    n = len(peers)
    part = [x[chunk] for chunk in chunks(x.size, n)]
    for step in range(n - 1):
        yield Send(peers[(me + 1) % n], Part(part[(me - 1 - step) % n]))
        _, (other,) = yield Recv(Part, src=peers[(me - 1) % n])
        part[(me - 2 - step) % n] += other
    return (yield from all_gather(me, peers, part[me]))


def copied_everywhere(me, peers, x):
    """WRONG: the all-gather adds instead of copying."""
    chunk = yield from reduce_scatter(me, peers, x)
    n, total = len(peers), [part.copy() for part in np.array_split(x, len(peers))]
    total[me] = chunk
    for step in range(n - 1):
        yield Send(peers[(me + 1) % n], Total(total[(me - step) % n]))
        _, (other,) = yield Recv(Total, src=peers[(me - 1) % n])
        total[(me - 1 - step) % n] = total[(me - 1 - step) % n] + other
    return np.concatenate(total)


def test_everybody_in_its_own_order_is_caught_by_the_bits_alone():
    check_each_part_counts_once(everybody_adds, 5, 12)
    with pytest.raises(AssertionError, match="ranks differ"):
        check_all_ranks_have_the_same_bits(everybody_adds, 5)


@pytest.mark.parametrize("wrong", [one_step_too_many, copied_everywhere])
def test_a_chunk_that_counts_twice_is_caught(wrong):
    with pytest.raises(AssertionError):
        check_each_part_counts_once(wrong, 4, 8)


def test_an_off_by_one_owner_is_caught():
    with pytest.raises(AssertionError):
        check_chunks_are_in_place(wrong_owner, 4, 8)


def test_a_missing_fold_is_caught_only_where_n_is_no_power_of_two():
    check_each_part_counts_once(doubling_without_fold, 8, 5)
    with pytest.raises(AssertionError):
        check_each_part_counts_once(doubling_without_fold, 6, 5)


def test_receiving_from_anybody_is_caught_when_ranks_do_not_start_together():
    check_each_part_counts_once(doubling_with_anybody, 8, 5, Machine(latency=0.1))
    with pytest.raises(AssertionError):
        for seed in range(8):
            check_each_part_counts_once(doubling_with_anybody, 8, 5, Machine(compute="exponential(1)"), seed)


def test_a_sum_in_order_of_arrival_is_caught_by_a_second_schedule():
    """All ranks agree, and the inputs all count once; but another schedule gives other bits."""
    check_each_part_counts_once(tree_in_order_of_arrival, 8, 5)
    machine = Machine(compute="uniform(0.1,9)", latency=0.1)
    bits = {check_all_ranks_have_the_same_bits(tree_in_order_of_arrival, 8, machine=machine,
                                               seed=seed).tobytes() for seed in range(8)}
    assert len(bits) > 1


def test_writing_in_place_is_caught_although_the_sum_is_right():
    check_chunks_are_in_place(in_place, 1, 8)
    with pytest.raises(AssertionError, match="an input was modified"):
        check_each_part_counts_once(in_place, 4, 8)
