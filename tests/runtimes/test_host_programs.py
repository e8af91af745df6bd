"""What a process inherits from its host program (handlers, blocked signals, closed descriptors, limits)
costs no result, and hides no death."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.experiment.computer import doctor
from refsgd.grader import grading
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import own_children
from refsgd.runtimes.processes.local import run
from tests.runtimes.deployments import exchange, gradient, killed_gradient

SMALL = {"data": "quadratic", "workers": 2, "steps": 3, "machine": Machine()}
REAPED = []  # what the handler below has got


def reap(*_):
    """As in many servers and toolkits."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            REAPED.append(found[0])
    except ChildProcessError:
        pass


@contextmanager
def handled(how):
    before = signal.signal(signal.SIGCHLD, how)
    try:
        yield
        assert signal.getsignal(signal.SIGCHLD) == how
    finally:
        signal.signal(signal.SIGCHLD, before)


def in_thread(call):
    """The result or the exception of a call in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.slow
@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("how", [signal.SIG_IGN, reap])
def test_a_host_that_takes_exit_codes_gets_results_and_the_cause_of_deaths(how, thread):
    """In its main thread and in others; a child of its own is still its own."""
    expected = refsgd.run("bsp", runtime="processes", **SMALL).parameters_sha256
    call = in_thread if thread else lambda do: do()
    with handled(how):
        own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.1)"])
        assert call(partial(refsgd.run, "bsp", runtime="processes", **SMALL)).parameters_sha256 == expected
        with pytest.raises(RunFailed, match=r"^worker1 \(pid \d+\) was killed by SIGKILL"):
            call(partial(run, partial(exchange, gradient=killed_gradient)))
        own.wait()
        end = time.monotonic() + 5.0
        while how is reap and own.pid not in REAPED and time.monotonic() < end:
            time.sleep(0.01)
        assert how is signal.SIG_IGN or own.pid in REAPED


def test_of_two_runs_in_threads_the_last_one_gives_the_signal_back():
    def exit_code():
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except ChildProcessError:  # the host ignores it
            return None

    with handled(signal.SIG_IGN):
        first, second = ExitStack(), ExitStack()
        for each in (first, second):
            each.enter_context(own_children())
        first.close()
        assert exit_code() == 3
        second.close()
        assert exit_code() is None


THIEF = """
import os, sys, threading, time
import refsgd
from functools import partial
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.processes.local import run
from tests.runtimes.deployments import exchange, killed_gradient

def wait():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.001)

threading.Thread(target=wait, daemon=True).start()
if sys.argv[1] == "result":
    print(refsgd.run("bsp", runtime="processes", data="quadratic", workers=2, steps=3).parameters_sha256)
else:
    try:
        run(partial(exchange, gradient=killed_gradient))
    except RunFailed as error:
        print(error, error.silent < 2.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "says"), [
    ("result", ""), ("death", r"(died; this program ignores SIGCHLD or takes all exit codes, so the cause is unknown"
                              r"|was killed by SIGKILL \(by a user, or by the kernel when out of memory\)): worker")])
def test_a_thread_that_waits_for_any_child_takes_no_result(what, says):
    """The exit code is gone, unless the thread came too late, but the end of a process shows, and who it was."""
    found = subprocess.run([sys.executable, "-c", THIEF, what], capture_output=True, text=True, timeout=60,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    expected = says or refsgd.run("bsp", data="quadratic", workers=2, steps=3).parameters_sha256
    assert re.search(expected, found.stdout) and found.stdout.rstrip().endswith("True") == bool(says), found


def test_a_blocked_signal_ends_a_process_all_the_same():
    """A service manager may start programs with SIGTERM blocked."""
    def ends(x, rank, t):
        if (rank, t) == (1, 3):
            os.kill(os.getpid(), signal.SIGTERM)
        return gradient(x, rank, t)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    try:
        with pytest.raises(RunFailed, match=r"worker1 \(pid \d+\) was killed by SIGTERM"):
            run(partial(exchange, gradient=ends))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_process_gets_the_error_of_a_lost_connection_although_its_host_dies_of_it():
    """SIGPIPE would end a process that is not to blame."""
    def asks(x, rank, t):
        if signal.getsignal(signal.SIGPIPE) != signal.SIG_IGN:
            raise ArithmeticError("SIGPIPE is not ignored")
        return x

    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert run(partial(exchange, n=1, steps=2, gradient=asks)).values
    finally:
        signal.signal(signal.SIGPIPE, before)


def in_pool(_):
    try:
        refsgd.run("bsp", runtime="processes", **SMALL)
    except RunFailed as error:
        return str(error)


def test_a_process_of_a_pool_is_told_that_it_may_start_none():
    """Daemons of multiprocessing have no children."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (said,) = pool.map(in_pool, [0])
    assert said.endswith("may start no processes; expected concurrent.futures.ProcessPoolExecutor, or the simulator")


DAEMON = """
import os, sys
import refsgd
from refsgd.problems import quadratic
for number in (0, 1, 2):
    os.close(number)
problem = quadratic(d=200, workers=2)
def gradient(x, rank, t):
    if t > 10:  # in a process
        print("gradient", t, flush=True)  # would go to whatever has got the number 1
    return problem.gradient(x, rank, t)
from dataclasses import replace
try:
    said = refsgd.run("bsp", replace(problem, gradient=gradient), runtime="processes", workers=2,
                      steps=30).parameters_sha256
except BaseException as error:
    said = repr(error)
with open(sys.argv[1], "w") as file:
    file.write(said)
"""


def test_a_daemon_without_standard_streams_runs(tmp_path):
    """Their numbers are not given to sockets and files of a run, into which a program would print."""
    subprocess.run([sys.executable, "-c", DAEMON, str(tmp_path / "said")], timeout=60)
    expected = refsgd.run("bsp", refsgd.problems.quadratic(d=200, workers=2), workers=2, steps=30)
    assert (tmp_path / "said").read_text() == expected.parameters_sha256


def test_a_limit_of_file_sizes_is_one_line(capfd):
    """The memory in which a process leaves its result counts as a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(RuntimeError) as caught:
            refsgd.run("asp", runtime="processes", **SMALL | {"steps": 300})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = str(caught.value)
    assert "\n" not in said and capfd.readouterr() == ("", "")
    assert "File too large: no room for its result; expected more memory, or files without a limit: ulimit -f" in said


@pytest.mark.parametrize(("kind", "mebibytes", "says"), [
    (resource.RLIMIT_AS, 400, "the address space of this process is limited to 0.42 GB; expected at least 0.8 GB, "
                              "which numpy, scipy and numba need: ulimit -v unlimited"),
    (resource.RLIMIT_DATA, 200, "the data of this process is limited to 0.21 GB; expected at least 0.3 GB, "
                                "which numpy, scipy and numba need: ulimit -d unlimited")])
def test_a_limit_of_memory_under_which_libraries_never_load_is_one_line(kind, mebibytes, says):
    """OpenBLAS asks for memory again and again, or interrupts the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run([sys.executable, "-m", "refsgd", "run", "bsp", "--steps", "3"], timeout=120,
                           capture_output=True, text=True,
                           preexec_fn=lambda: resource.setrlimit(kind, (mebibytes << 20, -1)))
    assert (found.returncode, found.stdout, found.stderr) == (2, "", f"refsgd: {says}\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20.0


def test_commands_of_doctor_and_grader_fail_although_sigchld_is_ignored(monkeypatch, tmp_path):
    """Python takes a lost exit code for success."""
    with handled(signal.SIG_IGN):
        monkeypatch.setattr(doctor, "find_spec", lambda name: True)
        with monkeypatch.context() as patch:
            patch.setattr(doctor.sys, "executable", "/bin/false")
            (finding,) = doctor.message_passing()
        assert finding.found == "mpi4py finds no MPI library"
        (tmp_path / "own.py").write_text("import os\nos._exit(3)\n")
        grade = grading.grade(f"{tmp_path / 'own.py'}:f", None, (), 60.0, lambda _: {}, pages=False)
    assert "exit code 3" in str(grade)
