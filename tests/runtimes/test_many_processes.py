"""Many more processes than cores: they come to the end, and what one more costs in memory is bounded."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.processes.local import run

ROOT = Path(__file__).parents[2]
WORKERS, SERVERS, STEPS = 64, 4, 5
#: Bytes by which one more worker may make the whole run larger, shared pages counted once: its interpreter's
#: own pages, which the fork does not share once they are written to, and its ends of the channels to all
#: others.
BOUND = {"shm": 8 << 20, "tcp": 16 << 20}


def proportional_set_size(pids):
    """Bytes of memory of these processes, each page divided by the number of processes that share it."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


class Measured:
    """A gradient that waits, in the last step of rank 0, while the parent looks at the memory of all."""

    def __init__(self, gradient):
        self.gradient, self.flag, self.bytes = gradient, mmap.mmap(-1, mmap.PAGESIZE), 0

    def __call__(self, x, rank, t):
        if (rank, t) == (0, STEPS - 1):
            self.flag[0] = 1
            end = time.monotonic() + 20.0
            while self.flag[0] == 1 and time.monotonic() < end:
                time.sleep(0.01)
        return self.gradient(x, rank, t)

    def look(self, pids, words):
        """Called when all have been started."""
        def wait():
            end = time.monotonic() + 60.0
            while self.flag[0] == 0 and time.monotonic() < end:
                time.sleep(0.01)
            self.bytes = proportional_set_size([os.getpid(), *set(pids.values())])
            self.flag[0] = 2

        self.thread = threading.Thread(target=wait, daemon=True)
        self.thread.start()


def bytes_of_a_run(algorithm, workers, transport):
    servers = SERVERS if facts_of(CATALOGUE[algorithm]).served else 0
    experiment = prepare(algorithm, data="quadratic", lr=0.01, steps=STEPS, workers=workers, servers=max(1, servers),
                         machine=Machine())
    gradient = Measured(experiment.problem.gradient)
    experiment = replace(experiment, problem=replace(experiment.problem, gradient=gradient))
    result = run(experiment.deploy, experiment.machine, transport=transport, on_start=gradient.look)
    gradient.thread.join()
    gradient.flag.close()
    assert len(result.values) == workers + servers
    assert set(result.trace.iterations.values()) == {STEPS}
    return gradient.bytes


def bytes_of_a_run_elsewhere(*arguments):
    code = f"from tests.runtimes.test_many_processes import bytes_of_a_run as run; print(run(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"),
                    reason="needs the kernel's account of shared pages")
@pytest.mark.parametrize("algorithm", ["bsp", "asp", "adpsgd"])
def test_sixty_four_workers_and_four_servers_come_to_the_end(transport, algorithm, capsys):
    """On whatever cores there are; the memory of a run is that of a small one and a bounded sum for each
    further worker.

    In an interpreter of its own: what a forked process writes to lies scattered over the heap of its parent,
    and that of a test session is large and full of holes.
    """
    few, many = (bytes_of_a_run_elsewhere(algorithm, n, transport) for n in (WORKERS // 4, WORKERS))
    each = (many - few) / (WORKERS - WORKERS // 4)
    with capsys.disabled():
        print(
            f"\n{algorithm}, {transport}: {many / 2**20:.0f} MB with {WORKERS} workers, {each / 2**20:.1f} "
            "MB for one more")
    assert 0 < each < BOUND[transport]
