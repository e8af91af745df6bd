"""Whatever dies, stops or raises: one error names it within two seconds, and nothing is left behind."""

from __future__ import annotations

import logging
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node, Recv
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.processes import local, watch
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.transports import tcp
from refsgd.runtimes.transports.transport import wait_for
from tests.marks import mostly_slow
from tests.runtimes.deployments import Never, bad_gradient, exchange, gradient, long_gradient, worker

PACED = Machine(compute="fixed(0.02)")
BEGUN = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the processes: the step of each worker, and one


def noted(gradient):
    """A gradient that notes on `BEGUN` how far its worker is."""
    def note(x, rank, t):
        BEGUN[rank] = min(t + 1, 255)
        return gradient(x, rank, t)

    return note


FOREVER = partial(exchange, steps=100_000, gradient=noted(gradient))


class Blow:
    """Does something to the processes a moment after four workers have begun to compute, and remembers
    when."""

    def __init__(self, act, delay=0.3, steps=1):
        BEGUN[:4] = bytes(4)
        self.act, self.delay, self.steps, self.at, self.pids = act, delay, steps, 0.0, {}

    def __call__(self, pids, words):
        self.pids = pids
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()

    def _go(self):
        end = time.monotonic() + 20.0  # a busy machine takes its time to start processes
        while min(BEGUN[:4]) < self.steps and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self.delay)
        self.at = time.monotonic()
        self.act(self.pids)

    def took(self):
        self.thread.join()
        return time.monotonic() - self.at


def kill(node, sig=signal.SIGKILL):
    return lambda pids: os.kill(pids[node], sig)


@pytest.mark.parametrize(("victim", "machine"), mostly_slow(
    [(victim, machine) for victim in ("worker2", "server0") for machine in (PACED, Machine())],
    ("worker2", PACED), ("server0", Machine())))
def test_a_killed_process_is_named_within_two_seconds(transport, victim, machine):
    """Signal, process number, what it was doing and who waited for it; never a neighbour is blamed."""
    blow = Blow(kill(victim))
    with pytest.raises(RunFailed) as caught:
        run(FOREVER, machine, transport=transport, on_start=blow)
    assert 0 < caught.value.silent < 2.0
    text = str(caught.value)
    assert text.startswith(f"{victim} (pid {blow.pids[victim]}) was killed by SIGKILL")
    assert "deployments.py:" in text and "\n" not in text and caught.value.node == victim
    assert not any(psutil.pid_exists(pid) for pid in blow.pids.values())
    if victim == "worker2" and machine is PACED:
        assert "; waiting: " in text


def test_a_death_is_noticed_while_the_others_compute_for_a_minute(usual):
    """They are ended, not waited for."""
    blow = Blow(kill("worker1"), steps=5)
    with pytest.raises(RunFailed,
                       match=r"worker1 .* was killed by SIGKILL .*Compute\(gradient\) 5 at .*in worker") as caught:
        run(partial(exchange, gradient=noted(long_gradient)), transport=usual, on_start=blow)
    assert 0 < caught.value.silent < 2.0 and blow.took() < 60.0


def test_sigterm_and_exit_codes_are_told_apart(usual):
    """By the signal's name, by the code."""
    blow = Blow(kill("worker0", signal.SIGTERM))
    with pytest.raises(RunFailed, match=r"worker0 \(pid \d+\) was killed by SIGTERM"):
        run(FOREVER, PACED, transport=usual, on_start=blow)

    def leaves(x, rank, t):
        if rank == 1 and t == 3:
            os._exit(7)
        return x

    with pytest.raises(RunFailed,
                       match=r"worker1 \(pid \d+\) ended with exit code 7 and no result: .*gradient") as caught:
        run(partial(exchange, gradient=leaves), transport=usual)
    assert 0 < caught.value.silent < 2.0


def test_what_the_launcher_takes_to_notice_is_measured(usual, monkeypatch):
    """The figure that is held to two seconds has in it what the launcher sleeps after the death."""
    def dies(x, rank, t):
        if (rank, t) == (1, 5):
            BEGUN[9] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    def sleepy(descriptors, timeout):
        ready = wait_for(descriptors, timeout)
        if BEGUN[9]:
            BEGUN[9] = 0
            time.sleep(0.4)
        return ready

    monkeypatch.setattr(local, "wait_for", sleepy)
    with pytest.raises(RunFailed, match=r"worker1 \(pid \d+\) was killed by SIGKILL") as caught:
        run(partial(exchange, gradient=dies), transport=usual)
    assert 0.4 <= caught.value.silent < 2.0


def test_an_exception_in_a_gradient_reaches_the_caller(usual):
    """As the cause, with the child's own traceback and the program's line."""
    with pytest.raises(RunFailed,
                       match=r"worker2 \(pid \d+\): FloatingPointError: NaN in layer 3, in Compute") as caught:
        run(partial(exchange, gradient=bad_gradient), transport=usual)
    assert 0 < caught.value.silent < 2.0 and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert "in bad_gradient" in caught.value.traceback and "in bad_gradient" in str(
        caught.value.__cause__.__cause__)
    assert "in worker" in str(caught.value) and caught.value.node == "worker2"


def test_an_exception_that_cannot_be_pickled_still_arrives(usual):
    """As text."""
    class Strange(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def raises(x, rank, t):
        error = Strange(1, 2)
        error.add_note("of two\nlines")
        raise error

    with pytest.raises(RunFailed, match="Strange: 1 and 2, of two lines, ") as caught:
        run(partial(exchange, gradient=raises), transport=usual)
    assert "in raises" in caught.value.traceback


def test_a_value_that_cannot_be_pickled_is_named(usual):
    """The node that returned it."""
    def main():
        yield Compute(abs, -1)
        return lambda: None

    with pytest.raises(RunFailed, match=r"the value that worker0 returned cannot be pickled"):
        run(lambda: {"worker0": Node(main())}, transport=usual)


def test_a_deadlock_of_some_nodes_is_the_simulators_error(usual):
    """Although others have returned; a standstill that only the deadline ends is another error."""
    def waits():
        yield Recv(Never, src="peer2")

    with pytest.raises(Deadlock,
                       match=r"peer0 at .*deployments|peer0 at .*in waits waits for Recv\(Never from "
                             r"peer2\)"):
        run(lambda: {"peer0": Node(waits()), "peer1": Node(worker(0, "peer1", np.zeros(1), 0)),
                     "peer2": Node(worker(0, "peer1", np.zeros(1), 0))}, transport=usual)


def test_a_stopped_process_is_reported_and_ended_at_the_deadline(usual, caplog):
    """SIGSTOP: first a warning, then the error."""
    blow = Blow(kill("worker1", signal.SIGSTOP))
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailed,
                                                         match=r"worker1 \(pid \d+\) has been stopped for 2\."):
        run(FOREVER, PACED, transport=usual, deadline=2.0, on_start=blow)
    assert any("worker1" in r.getMessage() and "has been stopped" in r.getMessage() for r in caplog.records)


@pytest.mark.slow
def test_a_stopped_process_is_named_although_the_run_stood_still_before():
    """The others were waiting for long when it was stopped: the standstill has its deadline first, and is
    not what is said."""
    blow = Blow(kill("server0", signal.SIGSTOP), 0.7, steps=5)
    with pytest.raises(RunFailed, match=r"server0 \(pid \d+\) has been stopped for 1\."):
        run(partial(exchange, gradient=noted(long_gradient)), deadline=1.2, on_start=blow)


@pytest.mark.slow
def test_a_stopped_process_may_go_on(usual):
    """Stopped for a second and continued: the run ends as if nothing had been."""
    def pause(pids):
        os.kill(pids["worker1"], signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(pids["worker1"], signal.SIGCONT)

    blow = Blow(pause, 0.0)
    result = run(partial(exchange, steps=40, gradient=noted(gradient)), PACED, transport=usual,
                 on_start=blow)
    blow.took()
    assert len(result.trace.marks("update")) == 40


def test_a_run_without_progress_ends_at_its_deadline(usual):
    """A compute that never ends is named with its line."""
    with pytest.raises(RunFailed, match=r"no progress for .*worker0 in Compute\(gradient\) 5 at"):
        run(partial(exchange, gradient=long_gradient), transport=usual, deadline=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("used", [watch.used, lambda pid: 0.0])
def test_the_default_deadline_spares_who_is_computing(usual, monkeypatch, used):
    """A long Compute that uses the processor, or would if others let it, continues; one that sleeps as long
    ends the run."""
    monkeypatch.setattr(watch, "PATIENCE", 0.5)

    def busy(x, rank, t):
        end = time.monotonic() + (2.5 if (rank, t) == (1, 2) else 0.0)
        while time.monotonic() < end:
            pass
        return x

    monkeypatch.setattr(watch, "used", used)
    assert len(run(partial(exchange, n=2, steps=4, gradient=busy),
                   transport=usual).trace.marks("update")) == 4
    with pytest.raises(RunFailed,
                       match=r"no progress for .*longer than the deadline of .*: server0 in Recv"):
        run(partial(exchange, gradient=long_gradient), transport=usual)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["server0", "worker0"])
def test_a_connection_lost_between_two_that_live_names_both(other):
    """Within the second in which it could still turn out to be a death, although these two may never say
    anything to each other."""
    blow = Blow(lambda pids: None, 0.0, steps=4)
    with pytest.raises(RunFailed,
                       match=r"^worker1 \(pid \d+\): ConnectionError: the connection between worker1 and "
                             rf"{other} was lost, "
                                        r"but both are alive$") as caught:
        run(FOREVER, PACED, transport="tcp", on_start=blow, faults=[Fault("drop", "worker1", 3, to=other)])
    assert blow.took() > 0.8 and caught.value.node == "worker1" and caught.value.silent < 2.0
    assert not any(psutil.pid_exists(pid) for pid in blow.pids.values())


@pytest.mark.slow
def test_the_other_end_speaks_up_where_the_first_cannot():
    """Worker 1 should give up and is inside a long Compute: the server ends the run, a second later."""
    gradient = partial(exchange, n=2, gradient=long_gradient)
    with pytest.raises(RunFailed,
                       match=r"^server0 \(pid \d+\): ConnectionError: the connection between server0 and "
                             r"worker1 was lost"):
        run(gradient, transport="tcp", faults=[Fault("drop", "worker1", 4, to="server0")])


def test_a_connection_that_falls_silent_ends_at_the_deadline():
    """What worker 1 sends is lost and nobody is told: a standstill that says who waits for what."""
    def silenced(x, rank, t):
        if (rank, t) == (1, 3):
            tcp.Sockets.post = lambda *rest: None  # in this process alone
        return x

    with pytest.raises(RunFailed,
                       match=r"no progress for .* deadline of 1 s\): server0 in Recv\(Push\) .*worker1 "
                             r"in Recv\(Model"):
        run(partial(exchange, n=2, gradient=silenced), transport="tcp", deadline=1.0)


@pytest.fixture
def interruptible():
    """Ctrl-C raises, as at a terminal; a job that a shell has put in the background starts with SIGINT
    ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_everything(usual, interruptible):
    """KeyboardInterrupt passes through, and all processes are gone."""
    blow = Blow(lambda pids: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(FOREVER, PACED, transport=usual, on_start=blow)
    blow.took()
    assert not any(psutil.pid_exists(pid) for pid in blow.pids.values())


PARENT = """
import sys
from functools import partial
from refsgd.cluster.machine import Machine
from refsgd.runtimes.processes.local import run
from tests.runtimes.deployments import exchange, long_gradient
gradient = {"gradient": long_gradient} if sys.argv[2] == "long" else {}
run(partial(exchange, steps=100_000, **gradient), Machine(compute="fixed(0.02)"), transport=sys.argv[1],
    on_start=lambda pids, words: print(*pids.values(), flush=True))
"""


@pytest.mark.parametrize(("transport", "sig", "how"), [
    ("shm", signal.SIGKILL, "long"), ("tcp", signal.SIGTERM, "short"),
    *(pytest.param(*rest, marks=pytest.mark.slow)
      for rest in (("tcp", signal.SIGKILL, "long"), ("shm", signal.SIGTERM, "short")))])
def test_no_child_outlives_the_parent(transport, sig, how):
    """Not even one that computes for a minute."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, transport, how], stdout=subprocess.PIPE,
                              text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    time.sleep(0.5)
    parent.send_signal(sig)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=2.0)
    assert len(children) == 5 and not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_runs_may_follow_each_other_and_a_failure(usual):
    """The sixth run is as good as the first."""
    for _ in range(3):
        with pytest.raises(RunFailed):
            run(partial(exchange, gradient=bad_gradient), transport=usual)
        assert len(run(partial(exchange, steps=5), transport=usual).trace.marks("update")) == 5


def test_a_system_without_room_for_processes_is_named(usual, monkeypatch):
    """The fourth fork fails: one line, and the first three are gone."""
    from multiprocessing.context import ForkProcess

    launch, count = ForkProcess._Popen, []

    def scarce(process):
        count.append(1)
        if len(count) == 4:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return launch(process)

    monkeypatch.setattr(ForkProcess, "_Popen", staticmethod(scarce))
    with pytest.raises(RunFailed,
                       match=r"could not start process 4 of 5, worker2: .*temporarily unavailable"):
        run(FOREVER, PACED, transport=usual)


@pytest.mark.slow
def test_too_few_descriptors_are_refused_before_anything_starts(transport):
    """One line with the numbers; what is allowed then also succeeds."""
    limits, refused = resource.getrlimit(resource.RLIMIT_NOFILE), 0
    for room in range(5, 80, 5):
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + room, limits[1]))
        try:
            run(partial(exchange, steps=2), transport=transport)
        except RunFailed as error:
            assert "5 processes need 46 file descriptors and" in str(error)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert refused == 9


def test_without_fork_processes_are_refused_in_one_line(monkeypatch):
    """And it says where they work."""
    import multiprocessing

    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(RunFailed,
                       match="OS processes need fork, which this system does not support: use WSL, or "
                             "--runtime simulator"):
        run(exchange)


def test_where_fork_is_not_the_default_records_come_through_pipes(monkeypatch, caplog):
    """Python 3.14 starts processes otherwise unless asked; runs here ask."""
    import multiprocessing

    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "spawn", "fork"])

    def talks(x, rank, t):
        logging.getLogger("refsgd.test").warning("step %d", t)
        return x

    with caplog.at_level(logging.WARNING):
        run(partial(exchange, n=1, steps=3, gradient=talks))
    assert [r.getMessage() for r in caplog.records] == ["step 0", "step 1", "step 2"]


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_all_workers_die_at_once(runtime):
    """The servers have the parameters, so that a restart continues with them; nobody is left to shrink to,
    and no replica without servers."""
    def lives(algorithm, on_death, workers=2):
        role = "peer" if algorithm == "allreduce" else "worker"
        faults = [f"kill {role} {k} at step 2" for k in range(workers)]
        return refsgd.run(algorithm, data="quadratic", workers=workers, steps=6,
                          machine=Machine(compute="fixed(0.02)"), faults=faults,
                          on_death=on_death, runtime=runtime)

    for workers in (1, 2):
        assert lives("bsp", "restart", workers).trace.updates["server0"] >= 6
    with pytest.raises(RunFailed, match="no worker is left to continue"):
        lives("bsp", "shrink")
    with pytest.raises(RunFailed, match="peer[01]"):  # whoever is seen to be dead last
        lives("allreduce", "restart")
