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


def watched(target, *arguments):
    process = mp.get_context("fork").Process(target=target, args=arguments)
    process.start()
    monitor = Monitor(every=0.02)
    monitor.start({"node": process.pid})
    process.join()
    return monitor.stop()["node"]


def test_it_tells_a_busy_process_from_a_sleeping_one():
    work, sleep = watched(busy, 0.4), watched(time.sleep, 0.4)
    assert sleep["cpu"] < 0.3 < sum(cpu * 0.02 for _, cpu, *_ in work["samples"]) + 0.3
    assert work["cpu"] > 3 * sleep["cpu"]
    assert len(work["samples"]) > 3 and work["samples"] == sorted(work["samples"])


def test_it_sees_memory():
    small, large = watched(hold, 8, 0.3), watched(hold, 80_000_000, 0.3)
    assert large["rss_max"] - small["rss_max"] == pytest.approx(80e6, rel=0.3)


def test_it_sees_what_is_written(tmp_path):
    found = watched(write, str(tmp_path / "file"), 3_000_000)
    # some file systems are memory and count nothing
    assert found["written"] >= 3_000_000 or found["written"] == 0


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
    with pytest.raises(ValueError, match="expected processes or tcp"):
        refsgd.run("bsp", **arguments)
