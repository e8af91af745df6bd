"""Random processes are killed, stopped or fail at random moments: always one error that names them, never a hang."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest

from refsgd.machine import Machine
from refsgd.runtimes.processes import RunFailed, run
from tests.runtimes.deployments import exchange


class Failing:
    """A gradient that raises in one worker at one step."""

    def __init__(self, rank, step):
        self.rank, self.step = rank, step

    def __call__(self, x, rank, t):
        if (rank, t) == (self.rank, self.step):
            raise ArithmeticError("planned")
        return x


def strike(seed):
    """One random fault; seconds from it to the error, None where it came too late to matter."""
    rng = random.Random(seed)
    n, at = rng.randint(1, 6), {}
    machine = rng.choice([Machine(), Machine(compute="exponential(0.005)"), Machine(compute="fixed(0.01)", latency=0.002),
                          Machine(compute="exponential(0.005)", bandwidth=1e7, collocated=True)])
    kind = rng.choice(["SIGKILL", "SIGTERM", "SIGHUP", "SIGSTOP", "exception"])
    victim = rng.choice(["server0", *(f"worker{i}" for i in range(n))])
    delay = rng.uniform(0, 0.3)

    def hit(pids):
        time.sleep(delay)
        at["time"] = time.monotonic()
        try:
            os.kill(pids[victim], signal.Signals[kind])
        except ProcessLookupError:
            at.clear()

    def on_start(pids):
        if kind == "exception":
            at["time"] = time.monotonic()
        else:
            at["thread"] = threading.Thread(target=hit, args=(pids,), daemon=True)
            at["thread"].start()

    gradient = {"gradient": Failing(rng.randrange(n), rng.randrange(20))} if kind == "exception" else {}
    build = partial(exchange, n=n, d=rng.choice([10, 100_000]), steps=100_000 if not gradient else 200, **gradient)
    transport = rng.choice(["shm", "tcp"])
    with pytest.raises(RunFailed) as caught:
        run(build, machine, seed, transport=transport, on_start=on_start, deadline=1.0 if kind == "SIGSTOP" else 20.0,
            records=rng.choice(["queue", "pipe"]))
    took, text = time.monotonic() - at["time"], str(caught.value)
    if kind == "exception":
        assert "ArithmeticError: planned" in text
    elif kind == "SIGSTOP":
        assert f"{caught.value.node} (pid" in text and "has been stopped" in text
    else:
        assert f"was killed by {kind}" in text
    if kind != "exception":
        at["thread"].join()
        assert caught.value.node in (victim, "worker0"), text  # a collocated server lives with worker 0
    return kind, took


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.long)])
def test_random_faults(count, capsys):
    """Named in time, whatever, whoever and whenever."""
    worst = {}
    for seed in range(count):
        kind, took = strike(seed)
        worst[kind] = max(worst.get(kind, 0.0), took)
    with capsys.disabled():
        figures = ", ".join(f"{kind} {took:.2f} s" for kind, took in sorted(worst.items()))
        print(f"\n{count} random faults, slowest error after: {figures}")
    assert all(took < 2.0 for kind, took in worst.items() if kind not in ("SIGSTOP", "exception"))


PARENT = """
import sys
from functools import partial
from refsgd.machine import Machine
from refsgd.runtimes.processes import run
from tests.runtimes.deployments import exchange
print("begins", flush=True)
run(partial(exchange, n=3, steps=100_000), Machine(compute="fixed(0.01)"), transport=sys.argv[1])
"""


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killing_the_parent_at_random_moments_leaves_nothing(count):
    """Between its first fork and later: no process of its group is left after two seconds."""
    rng = random.Random(0)
    for _ in range(count):
        parent = subprocess.Popen([sys.executable, "-c", PARENT, rng.choice(["shm", "tcp"])], stdout=subprocess.PIPE,
                                  text=True, start_new_session=True,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        parent.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        parent.kill()
        parent.wait()
        parent.stdout.close()
        end = time.monotonic() + 2.0
        while left := [p for p in psutil.process_iter(["pid"]) if _group(p.pid) == parent.pid and
                       p.status() != psutil.STATUS_ZOMBIE]:
            assert time.monotonic() < end, left
            time.sleep(0.02)


def _group(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
