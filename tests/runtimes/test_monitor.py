"""The resource monitor: sees work, memory and writing of each process, and ends with them."""

import mmap
import multiprocessing as mp
import os
import threading
import time

import numpy as np
import pytest

import refsgd
from refsgd.runtimes.processes.monitor import Monitor
from refsgd.trace import Sent
from refsgd.trace.resources import COLUMNS, TRAFFIC, column, per_second

pytestmark = pytest.mark.usefixtures("few_draws_throughout")

def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def hold(nbytes, seconds):
    # malloc could give a forked process what its parent had freed, which is resident already
    held = mmap.mmap(-1, nbytes)
    np.frombuffer(held, np.uint8)[:] = 1
    time.sleep(seconds)


def write(path, nbytes):
    with open(path, "wb") as file:
        file.write(os.urandom(nbytes))
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.3)


def write_often(path, reads, writes):
    """With so many calls each, some time after the start."""
    time.sleep(0.1)
    with open(path, "w+b", buffering=0) as file:
        for _ in range(writes):
            file.write(b"x")
        file.seek(0)
        for _ in range(reads):
            file.read(1)
        time.sleep(0.3)


def watched(target, *arguments):
    process = mp.get_context("fork").Process(target=target, args=arguments)
    process.start()
    monitor = Monitor(every=0.02)
    monitor.start({"node": process.pid})
    process.join()
    return monitor.stop()["node"]


def test_it_tells_a_busy_process_from_a_sleeping_one():
    work, sleep = watched(busy, 0.4), watched(time.sleep, 0.4)
    spent = [used["cpu"] * used["samples"][-1][0] for used in (work, sleep)]
    assert spent == pytest.approx([0.4, 0.0], abs=0.1)
    assert len(work["samples"]) > 3 and work["samples"] == sorted(work["samples"])


def test_it_sees_memory():
    small, large = watched(hold, 8, 0.3), watched(hold, 80_000_000, 0.3)
    assert large["rss_max"] - small["rss_max"] == pytest.approx(80e6, rel=0.3)


def test_it_sees_what_is_written(tmp_path):
    found = watched(write, str(tmp_path / "file"), 3_000_000)
    # some file systems are memory and count nothing
    assert found["written"] >= 3_000_000 or found["written"] == 0


def test_it_counts_calls_that_read_and_write(tmp_path):
    found = watched(write_often, str(tmp_path / "file"), 300, 500)
    assert 300 <= found["reads"] < 400 and 500 <= found["writes"] < 600
    assert column(found, "writes")[-1] == found["writes"] and max(per_second(found, "writes")) > 0


def test_it_leaves_no_thread_and_stands_a_process_that_has_ended():
    before = threading.active_count()
    assert "samples" in watched(time.sleep, 0.1)
    monitor = Monitor()
    assert monitor.stop() == {}
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="every 0"):
        Monitor(every=0)


def test_a_run_says_what_its_processes_used(tmp_path):
    """Workers and server each, and this process, which writes the checkpoints."""
    arguments = {"data": "digits", "workers": 2, "epochs": 2,
                 "machine": refsgd.Machine(compute="fixed(0.01)"), "monitor": True}
    used = refsgd.run("bsp", runtime="processes", checkpoint=tmp_path, **arguments).measured["resources"]
    assert set(used) == {"worker0", "worker1", "server0", "launcher"}
    assert all(u["rss_max"] > 1e6 and 0 <= u["cpu"] < 1.5 and u["samples"] for u in used.values())
    assert [u["role"] for u in used.values()] == ["worker", "worker", "server", "launcher"]
    with pytest.raises(ValueError, match="expected simulator, processes or tcp"):
        refsgd.run("bsp", runtime="mpi", **arguments)
    with pytest.raises(ValueError, match="monitor 0; expected a time > 0"):
        refsgd.run("bsp", **arguments | {"monitor": 0})


@pytest.mark.parametrize("runtime", ["processes", "tcp", "simulator"])
def test_bytes_and_messages_in_and_out_are_those_of_the_trace(runtime):
    """Of each process to others, over the run and in every sample: a host's own messages pass no network."""
    machine = refsgd.Machine(compute="fixed(0.01)", bandwidth=1e6, latency=1e-3, hosts="2x2")
    found = refsgd.run("bsp", data="quadratic", workers=4, steps=40, machine=machine, runtime=runtime, monitor=0.02)
    used, host = found.measured["resources"], found.trace.hosts
    for name, each in used.items():
        sent = [e for e in found.trace.of(Sent) if host[e.node] == host.get(name) != host[e.to]]
        got = [m for m in found.trace.transits if host[m.to] == host.get(name) != host[m.src]]
        assert (each["messages_sent"], each["bytes_sent"]) == (len(sent), sum(e.nbytes for e in sent))
        assert (each["messages_received"], each["bytes_received"]) == (len(got), sum(m.nbytes for m in got))
        assert (each["format"], each["every"]) == (2, 0.02) and set(each["columns"]) <= set(COLUMNS)
        for what in TRAFFIC:
            series = column(each, what)
            assert series == sorted(series) and each[what] >= series[-1] >= 0.5 * each[what]
            if each[what]:  # over time, not at the end
                assert series[len(series) // 4] <= 0.5 * series[-1] <= series[3 * len(series) // 4]
    assert used["server0"]["bytes_sent"] == 2 * used["worker0"]["bytes_received"] > 0
    assert refsgd.Result.from_json(found.to_json()).measured["resources"] == used


def test_in_virtual_time_a_full_link_is_a_plateau():
    """One worker sends 1 MB a step over 1 MB/s: 1 s of computing at no byte, 1 s at the link's rate."""
    machine = refsgd.Machine(compute="fixed(1)", bandwidth=1e6)
    used = refsgd.run("bsp", net="shapes:250000", data="none", workers=1, steps=2, machine=machine,
                      monitor=0.5).measured["resources"]
    assert per_second(used["worker0"], "bytes_sent") == [0, 0, 0, 1e6, 1e6, *[0] * 4, 1e6, 1e6, 0, 0]
    assert per_second(used["worker0"], "bytes_received") == [0, *[0] * 4, 1e6, 1e6, *[0] * 4, 1e6, 1e6]
    assert column(used["worker0"], "cpu") == [0, 1, 1, *[0] * 4, 1, 1, *[0] * 4]
    assert used["server0"]["cpu"] == 0 < used["server0"]["predicted"]


def test_a_run_between_two_samples_says_that_it_was_not_sampled():
    with pytest.warns(UserWarning, match="expected less than 60 s between samples"):
        refsgd.run("bsp", data="quadratic", workers=2, steps=3, runtime="processes", monitor=60)
