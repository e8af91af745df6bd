"""Schedules of a net's exchange from its layers' parameters and FLOPs."""

import pytest

from refsgd.theory import DomainError
from refsgd.theory.overlap import fuse, of_net, serial


def test_order_of_the_schedules():
    """Sending beside the backward pass saves time, the layer that is needed first saves more; layers without parameters cost no latency."""
    parameters, flops = [0, 100, 0, 50, 0, 10_000], [1e6, 5e6, 1e6, 2e6, 0.0, 3e6]
    found = of_net(parameters, flops, batch=4, speed=1e9, bandwidth=1e6, latency=0.001, bucket=1000)
    assert found["priority"].value <= found["first-come"].value <= found["serial"].value
    compute, wire = 3 * 4 * sum(flops) / 1e9, 2 * 4 * sum(parameters) / 1e6
    assert found["serial"].value == pytest.approx(compute + wire + 3 * 2 * 0.001)
    assert found["serial"].value != pytest.approx(compute + wire + 6 * 2 * 0.001)  # a latency for every layer
    assert found["buckets"].value >= compute


def test_buckets_fill_from_the_end():
    assert fuse([1, 1, 1, 9], 2) == [1, 2, 1] and fuse([1, 2], 0) == [1, 1] and sum(fuse([3] * 7, 10)) == 7


def test_domain():
    with pytest.raises(DomainError, match="one of each"):
        of_net([1], [1.0, 2.0], batch=1, speed=1e9, bandwidth=1e9)
    assert serial([1.0], [2.0], [3.0]).value == 6
