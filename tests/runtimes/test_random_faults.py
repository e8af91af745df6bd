"""Random faults, planned and unplanned, at random moments in every algorithm: the stated outcome in time,
never a hang."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Usage, prepare
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import POLICIES, draw
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.simulator import Faulty
from refsgd.trace import Crashed
from tests.catalogue import NOT_BY_RANK
from tests.runtimes.outcomes import outcome


class Failing:
    """A gradient that raises in one worker at one step."""

    def __init__(self, gradient, rank, step):
        self.gradient, self.rank, self.step = gradient, rank, step

    def __call__(self, x, rank, t):
        if (rank, t) == (self.rank, self.step):
            raise ArithmeticError("planned")
        return self.gradient(x, rank, t)


class Blow:
    """Sends a signal to one process after some seconds, and remembers when."""

    def __init__(self, victim, sig, delay):
        self.victim, self.sig, self.delay, self.at, self.missed = victim, sig, delay, 0.0, False

    def __call__(self, pids, words):
        self.thread = threading.Thread(target=self._go, args=(pids[self.victim],), daemon=True)
        self.thread.start()

    def _go(self, pid):
        time.sleep(self.delay)
        self.at = time.monotonic()
        try:
            os.kill(pid, self.sig)
        except ProcessLookupError:
            self.missed = True


MACHINES = [Machine(), Machine(compute="exponential(0.004)"), Machine(compute="fixed(0.005)", latency=0.002),
            Machine(compute="exponential(0.004)", bandwidth=1e7, colocated=True)]


STOPPED = 1.0  # seconds after which a stopped process is ended here


def unplanned(rng, seed, name, transport):
    """A signal from outside, or an exception of the program, in any algorithm: what it was, and seconds, or
    None if it came too late.

    The first are from the victim's last sign of life until the launcher knew of its end, the second from the
    blow (an exception: from the beginning) until all processes were gone and one error had named the victim.
    """
    n, kinds = rng.randint(2, 5), ["SIGKILL", "SIGTERM", "SIGHUP", "SIGSTOP", "exception"]
    kind = rng.choice(kinds[:4] if name in NOT_BY_RANK else kinds)
    machine = rng.choice(MACHINES)
    endless = prepare(name, data="quadratic", lr=0.01, steps=3000, workers=n, seed=seed, machine=machine)
    deployment = endless.deploy()
    hosts = machine.place(deployment)
    ranks = [name for name, node in deployment.items() if node.role == "worker"]
    if kind == "exception":
        rank, step = rng.randrange(len(ranks)), rng.randrange(20)
        problem = endless.problem
        endless = replace(endless, problem=replace(problem, gradient=Failing(problem.gradient, rank, step), layers=None))
        victim, blow = ranks[rank], Blow(ranks[rank], signal.SIGKILL, 60)
        began, told = time.monotonic(), None
    else:
        victim = rng.choice(list(hosts))
        blow = told = Blow(victim, signal.Signals[kind], rng.uniform(0, 0.3))
    try:
        run(endless.deploy, machine, seed, transport=transport, on_start=told,
            deadline=STOPPED if kind == "SIGSTOP" else 20.0)
    except RunFailed as error:
        failed = error
    else:
        failed = None
    if kind == "exception":
        assert failed is not None and "ArithmeticError: planned" in str(failed) and failed.node == hosts[
            victim]
        return kind, failed.silent, time.monotonic() - began
    blow.thread.join()
    if failed is None or blow.missed:
        return None  # the process had given its result
    took, text = time.monotonic() - blow.at, str(failed)
    assert failed.node == hosts[victim], text
    assert ("has been stopped" if kind == "SIGSTOP" else f"was killed by {kind}") in text
    return kind, failed.silent, took


def planned(rng, seed, name, runtime):
    """One to three drawn faults under a drawn policy, in any algorithm and runtime: the outcome is the
    stated one; the seconds of its end are those beyond virtual time, for each attempt."""
    experiment = prepare(name, data="quadratic", lr=0.01, steps=15, workers=rng.randint(2, 5), seed=seed,
                         machine=rng.choice(MACHINES[1:]))
    deployment = experiment.deploy()
    plan = draw(rng.randint(1, 3), seed, list(deployment), 10)
    on_death = rng.choice(POLICIES)
    lives = [f for f in plan if f.kind in ("kill", "drop")]
    began, silent = time.monotonic(), 0.0
    try:
        run = perform(experiment, runtime, faults=plan, on_death=on_death)
        found = "continues"
        silent = max((e.silent for e in run.trace.of(Crashed) if runtime != "simulator"), default=0.0)
    except Usage:
        found = "refused"
    except (RunFailed, Deadlock) as error:
        found, silent = "ends", getattr(error, "silent", 0.0)
        assert any(f.node in str(error) for f in lives) and "\n" not in str(error), error
    expected = {outcome(name, f.kind, on_death, f.node.startswith("server")) for f in lives or plan}
    if found == "continues":  # a node that is done, or dies with its host, never comes to its fault
        assert "refused" not in expected
    elif found == "ends":
        # Deaths add up: more than the backups mask, the server beside a worker, all that there were.
        assert lives and (on_death == "stop" or "ends" in expected or name == "backup-workers"
                          or experiment.machine.colocated or len(lives) > 1)
    else:
        assert "refused" in expected
        return "planned, refused", silent, time.monotonic() - began
    attempts = 1 + len(lives) * (on_death in ("shrink", "restart"))
    took = time.monotonic() - began
    return f"planned, {found}", silent, took / attempts - virtual(experiment, plan, on_death)


def virtual(experiment, plan, on_death):
    """Virtual seconds until the plan's run has ended or failed; of several attempts, those of a run without deaths,
    which no attempt exceeds.  Delays alone may take many seconds: 0.3 of each exchange between two nodes."""
    if on_death in ("shrink", "restart"):
        plan = [fault for fault in plan if fault.kind not in ("kill", "drop")]
    run = Faulty(experiment.deploy, experiment.machine, experiment.seed, faults=plan, on_death=on_death)
    with suppress(RunFailed, Deadlock):
        run.run()
    return run.now


def strike(seed):
    """One random fault or plan: what it was, seconds until a death was known (0 in virtual time), seconds
    to the run's end."""
    rng = random.Random(seed)
    name = rng.choice([name for name in CATALOGUE if name != "sequential"])
    runtime = rng.choice(["simulator", "processes", "tcp"])
    if rng.random() < 0.5:
        return planned(rng, seed, name, runtime)
    return unplanned(rng, seed, name, "shm" if runtime == "processes" else "tcp")


SPAN = 50
# seconds in which a death must be known, from the last sign of life on; a stopped process: its deadline and
# as much
NOTICE = 2.0
START = 2.0  # seconds in which the processes start, where they are part of what is measured
DEADLINES = {"SIGSTOP": 4.0, "exception": START + NOTICE, "planned, ends": START + NOTICE,
             "planned, continues": START + NOTICE, "planned, refused": 1.0}


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow),
                                   *(pytest.param(k, marks=pytest.mark.long)
                                     for k in range(SPAN, 500, SPAN))])
def test_random_faults(first, capsys):
    """Named in time, whatever, whoever and whenever; every outcome is the stated one, and nothing is left
    behind."""
    noticed, ended, count = {}, {}, Counter()
    for seed in range(first, first + SPAN):
        found = strike(seed)
        if found is None:
            count["came after the end"] += 1
            continue
        kind, silent, took = found
        count[kind] += 1
        noticed[kind], ended[kind] = max(noticed.get(kind, 0.0), silent), max(ended.get(kind, 0.0), took)
        assert silent < NOTICE + (kind == "SIGSTOP") * STOPPED, (seed, kind, silent)
        assert took < DEADLINES.get(kind, 2.0), (seed, kind, took)
    with capsys.disabled():
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(count.items()))
        figures = "; ".join(f"{kind} {noticed[kind]:.3f} s, {ended[kind]:.2f} s" for kind in sorted(noticed))
        print(f"\nrandom faults {first} to {first + SPAN - 1} ({counts}); slowest notice and end: {figures}")


@pytest.mark.slow
def test_ten_random_faults():
    """Some of each sort."""
    found = list(filter(None, map(strike, range(1000, 1010))))
    assert len({kind for kind, *_ in found}) > 2 and all(silent < NOTICE + (kind == "SIGSTOP") * STOPPED
                                                         for kind, silent, _ in found)


PARENT = """
import sys
from functools import partial
from refsgd.cluster.machine import Machine
from refsgd.runtimes.processes.local import run
from tests.runtimes.deployments import exchange
print("begins", flush=True)
run(partial(exchange, n=3, steps=100_000), Machine(compute="fixed(0.01)"), transport=sys.argv[1])
"""


@pytest.mark.parametrize("count",
                         [2, pytest.param(5, marks=pytest.mark.slow),
                          pytest.param(50, marks=pytest.mark.long)])
def test_killing_the_parent_at_random_moments_leaves_nothing(count):
    """Between its first fork and later: no process of its group is left after two seconds."""
    rng = random.Random(0)
    for _ in range(count):
        parent = subprocess.Popen([sys.executable, "-c", PARENT, rng.choice(["shm", "tcp"])],
                                  stdout=subprocess.PIPE,
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
