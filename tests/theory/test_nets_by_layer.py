"""Schedules of a net's exchange from its layers' parameters and FLOPs."""

import pytest

from refsgd.theory import DomainError
from refsgd.theory.phenomena.overlap import bucketed, fuse, layered, merge, serial


def test_order_of_the_schedules():
    """Sending beside the backward pass saves time; one bucket saves nothing but latencies; layers without
    parameters cost none."""
    parameters, flops = [0, 100, 0, 50, 0, 10_000], [1e6, 5e6, 1e6, 2e6, 0.0, 3e6]

    def link(m):
        return 2 * (0.001 + m / 1e6)

    work, nbytes = layered(parameters, flops)
    assert len(nbytes) == 3 and sum(nbytes) == 4 * sum(parameters) and sum(work) == sum(flops)
    compute, wire = 0.144, sum(map(link, nbytes))
    forward = [compute / 3 * f / sum(work) for f in work]
    none = serial(forward, [2 * f for f in forward], [link(m) for m in nbytes])
    assert none.value == pytest.approx(compute + wire)
    assert compute <= bucketed(parameters, flops, compute, link, 1000).value < none.value
    one = bucketed(parameters, flops, compute, link, 1e9).value
    assert one == pytest.approx(compute + link(sum(nbytes)))


def test_buckets_fill_from_the_end():
    assert fuse([1, 1, 1, 9], 2) == [1, 2, 1] and fuse([1, 2], 0) == [1, 1] and sum(fuse([3] * 7, 10)) == 7


def test_domain():
    with pytest.raises(DomainError, match="one of each"):
        layered([1], [1.0, 2.0])
    assert merge([1, 2, 3], [1, 2]) == [1, 5]
    assert serial([1.0], [2.0], [3.0]).value == 6
