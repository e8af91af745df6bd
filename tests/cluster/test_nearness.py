"""Groups from latencies: those that were drawn are found, and none where there are none."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.cluster.nearness import close, read_latencies, with_groups

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) >= 2)


def drawn(sizes, far, seed, noise=0.2):
    """Latencies of hosts in groups of these sizes, shuffled, and the groups."""
    rng = np.random.default_rng(seed)
    of = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    times = np.where(np.equal.outer(of, of), 1e-4, far) * rng.uniform(1 - noise, 1 + noise, (len(of), len(of)))
    np.fill_diagonal(times, 0)
    return times, {tuple(np.flatnonzero(of == g).tolist()) for g in range(len(sizes))}


@given(sizes.filter(lambda sizes: len(sizes) > 1 and max(sizes) > 1), st.integers(0, 999))
def test_drawn_groups_are_found(sizes, seed):
    times, groups = drawn(sizes, 5e-3, seed)
    assert set(close(times)) == groups
    machine = with_groups(Machine(bandwidth=1e9), times)
    assert machine.latency == pytest.approx(1e-4, rel=0.25)
    assert machine.latency + machine.uplink.latency == pytest.approx(5e-3, rel=0.25)


@given(sizes, st.integers(0, 999))
def test_where_no_hosts_are_closer_there_are_no_groups(sizes, seed):
    times, _ = drawn(sizes, 1e-4, seed)
    machine = with_groups(Machine(bandwidth=1e9), times)
    assert machine.groups == () and machine.uplink is None


def test_groups_that_are_chains_have_uplinks_that_add_nothing():
    """Neighbours are 1 ms apart and other pairs of the chain 10 ms; another host is 2.5 ms from all of them."""
    times = np.full((5, 5), 2.5e-3)
    times[:4, :4] = np.where(abs(np.subtract.outer(range(4), range(4))) == 1, 1e-3, 1e-2)
    assert close(times) == ((0, 1, 2, 3), (4,))
    assert with_groups(Machine(bandwidth=1e9), times).uplink.latency == 0


def nearest(times):
    """Wrong on purpose: each host with the nearest one."""
    pairs = {tuple(sorted((i, int(np.argmin(np.where(row > 0, row, np.inf)))))) for i, row in enumerate(times)}
    return pairs


def test_the_check_notices_pairs_of_nearest_hosts():
    times, groups = drawn([3, 3], 5e-3, 0)
    assert nearest(times) != groups


def test_the_command_writes_a_machine_of_groups(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("0,20ms,0.1ms\n20ms,0,22ms\n0.1ms,21ms,0\n")
    assert main(["machine", "--latencies", str(tmp_path / "t.csv"), "--output", str(tmp_path / "m.json")]) == 0
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["groups"] == [[0, 2], [1]]
    assert main(["run", "bsp", "--data", "quadratic", "--workers", "3", "--machine", str(tmp_path / "m.json"),
                 "--steps", "2", "--quiet"]) == 0


@pytest.mark.parametrize(("text", "says"), [
    ("0,1ms", "lines of 2 times; expected as many"), ("0,1 week\n1ms,0", "not understood"),
    ("0,-1\n1,0", "latencies from -1 to 1 s; expected times > 0"), ("", "for two hosts or more")])
def test_what_is_no_table_is_refused(tmp_path, capsys, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_latencies(str(tmp_path / "t.csv"))
    assert main(["machine", "--latencies", str(tmp_path / "t.csv")]) == 2
    assert says in capsys.readouterr().err and main(["machine", "--latencies", str(tmp_path / "none.csv")]) != 0
