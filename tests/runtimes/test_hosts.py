"""One run on two hosts, which here are two addresses of this machine with a launcher each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

import refsgd
from refsgd.cli import main
from refsgd.runtimes import sites, talk
from refsgd.runtimes.simulator import RunFailed

SECRET = "0123456789abcdef0123456789abcdef"


class Host:
    """A launcher in a process of its own; what it says is read line by line."""

    def __init__(self, *arguments, secret=SECRET):
        self.process = subprocess.Popen([sys.executable, "-m", "refsgd", "run", *arguments], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env={**os.environ, "REFSGD_SECRET": secret})

    def says(self, text):
        """The next line on standard error that holds `text`."""
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"{text!r} was never said")

    def ends(self, seconds=60):
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


@pytest.fixture
def hosts():
    """Starts a listener and whoever is to join it; nobody outlives the test."""
    started = []

    def start(*arguments, secret=SECRET):
        if arguments[0] != "--join":
            arguments = (*arguments, "--runtime", "tcp", "--listen", "127.0.0.2:0", "--data", "quadratic", "--quiet")
        started.append(Host(*arguments, secret=secret))
        return started[-1]

    yield start
    for host in started:
        if host.process.poll() is None:
            host.process.kill()
        host.process.communicate()


def place(listener):
    return listener.says("waiting for 1 more at").split()[-1]


def test_two_hosts_end_with_the_simulators_bits(hosts):
    """And a host that does not know the secret is refused before that, in one line each."""
    listener = hosts("bsp", "--steps", "20", "--momentum", "0.5", "--json", "-")
    where = place(listener)
    assert where.startswith("127.0.0.2:")
    code, _, err = hosts("--join", where, secret="another secret of 32 bytes......").ends()
    assert code == 1 and f"cannot join {where}" in err and "with the same secret" in err and err.count("\n") == 1
    other = hosts("--join", where)
    code, out, err = listener.ends()
    assert code == 0, err
    assert "refused a connection" in err and "clocks are known to within" in err
    assert other.ends()[0] == 0
    result = json.loads(out)
    expected = refsgd.run("bsp", data="quadratic", steps=20, momentum=0.5)
    assert result["parameters_sha256"] == expected.parameters_sha256 and result["measured"]["bytes_sent"] == expected.measured["bytes_sent"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["asp", "allreduce", "adpsgd", "gosgd"])
def test_algorithms_on_two_hosts_and_their_record(hosts, algorithm, tmp_path):
    """Their records replay to the bits."""
    record = tmp_path / "record"
    listener = hosts(algorithm, "--steps", "30", "--json", "-", "--record", str(record))
    other = hosts("--join", place(listener))
    code, out, err = listener.ends()
    assert code == 0 and other.ends()[0] == 0, err
    assert refsgd.replay(record).parameters_sha256 == json.loads(out)["parameters_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "whole"), [("listener", False), ("other", False), ("listener", True), ("other", True)])
def test_a_death_ends_both_hosts(hosts, victim, whole):
    """Of a worker, or of a whole host: one line on each side, that names it, within two seconds."""
    listener = hosts("asp", "--steps", "1000000")
    other = hosts("--join", place(listener))
    other.says("joined")
    listener.says("hosts; their clocks")
    launcher = psutil.Process((listener if victim == "listener" else other).process.pid)
    end = time.monotonic() + 20
    while len(launcher.children()) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.5)
    children = launcher.children()
    killed = launcher if whole else children[0]
    killed.send_signal(signal.SIGKILL)
    began = time.monotonic()
    for host in (listener, other):
        if host.process.pid == killed.pid:
            continue
        code, _, err = host.ends(5)
        assert code == 1
        last = err.strip().splitlines()[-1]
        assert ("lost the connection" if whole else f"(pid {killed.pid}) was killed by SIGKILL") in last
    assert time.monotonic() - began < 2.0
    psutil.wait_procs(children, timeout=2)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


@pytest.mark.slow
def test_a_process_of_the_other_host_may_be_silent_for_a_while(hosts):
    """Stopped there for a second and a half: the first host cannot look at it, and accuses nobody."""
    listener = hosts("asp", "--steps", "1000000")
    other = hosts("--join", place(listener))
    other.says("joined")
    listener.says("hosts; their clocks")
    launcher, end = psutil.Process(other.process.pid), time.monotonic() + 20
    while len(launcher.children()) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.5)
    stopped = launcher.children()[0]
    stopped.suspend()
    time.sleep(1.5)
    stopped.resume()
    time.sleep(0.3)
    assert (listener.process.poll(), other.process.poll()) == (None, None)


#: `refsgd.runtimes.sites` without the command line: deadlines of half a second, and a gradient that takes its time in worker 1, which lives on the other
#: host; its process number is written to a file as it begins.
SIDE = """
import os, signal, sys, time
from refsgd.machine import Machine
from refsgd.runtimes import processes, simulator, sites, watch
from tests.runtimes.deployments import exchange
what, where, note = sys.argv[1:]
late = what.startswith("joins")  # there are three hosts, and a second between them
watch.PATIENCE, watch.ROUNDS = (30.0, 20.0) if late else (0.5, 1.0)
sites.SILENCE = 0.8 if late else 30.0
def build(about):
    time.sleep(1.2 * (late + (what == "joins last")))
    return deployment, Machine(), 0
def gradient(x, rank, t):
    if (rank, t) == (1, 3):
        with open(note, "w") as file:
            file.write(str(os.getpid()))
        end = time.monotonic() + 3.0
        while what == "computes" and time.monotonic() < end:
            pass
        if what == "sleeps":
            time.sleep(60)
        if what == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
    return x
deployment, secret = exchange(n=2, steps=6, gradient=gradient), b"0123456789abcdef"
say = lambda text: print(text, flush=True)
try:
    if where == "listen":
        run = sites.listen(processes.child, {"algorithm": what}, deployment, Machine(), 0, ("127.0.0.2", 0), 2 + late, secret, say)
        print("updates", len(run.trace.marks("update")))
    else:
        host, port = where.split(":")
        sites.join(processes.child, build, (host, int(port)), secret, say)
except simulator.RunFailed as error:
    print("failed:", error)
"""


@pytest.fixture
def sides(tmp_path):
    """Starts both sides of a run in which worker 1 does something; gives what each has said, and the process number of worker 1."""
    started = []

    def start(what):
        note, environment = tmp_path / "pid", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

        def side(what, where):
            started.append(subprocess.Popen([sys.executable, "-c", SIDE, what, where, str(note)], text=True, stdout=subprocess.PIPE, env=environment))
            return started[-1]

        where = side(what, "listen").stdout.readline().split()[-1]
        side(what, where)
        if what == "joins late":
            time.sleep(1.0)
            side("joins last", where)
        said = [process.communicate(timeout=90)[0].strip().splitlines()[-1] for process in started]
        return said[0], said[1], note.read_text() if note.exists() else ""

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_long_compute_of_the_other_host_is_no_standstill(sides):
    """Three seconds of real computing there, and a deadline of half a second here: the run goes on, as it does on one host."""
    assert sides("computes")[0] == "updates 6"


def test_a_standstill_of_the_other_host_ends_at_the_deadline_and_says_where(sides):
    """A Compute that sleeps: the line names it, its file and line, although its process is on the other host."""
    here, there, _ = sides("sleeps")
    assert here.startswith("failed: nothing went on for ") and "longer than the deadline of 0.5 s" in here
    assert "worker1 in Compute(gradient) 4 at " in here and "deployments.py:" in here and "had not begun" not in here
    assert there.startswith(here[:40])


def test_a_stopped_process_of_the_other_host_is_named_there_and_here(sides):
    """SIGSTOP at its own hand: which process it is, and on which host."""
    here, there, pid = sides("stops")
    assert here.startswith(f"failed: worker1 (pid {pid} on 127.0.0.") and "has been stopped for" in here
    assert "in Compute(gradient) 4 at " in here and there.startswith(here[:40])


def test_whoever_joined_first_waits_for_those_who_come_later(sides):
    """Longer than a launcher may be silent once the run goes on: until then each step has its own, longer deadline."""
    assert sides("joins late")[0] == "updates 6"


def test_whoever_listens_does_not_wait_for_ever(monkeypatch, capsys):
    """Nobody joins: one line that says what to do on the other hosts."""
    monkeypatch.setattr(sites, "JOINING", 0.3)
    monkeypatch.setenv("REFSGD_SECRET", SECRET)
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", "--runtime", "tcp", "--listen", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[1].startswith("refsgd: not all 2 hosts joined within 0.3 s; expected `refsgd run --join 127.0.0.1:")


def test_a_launcher_that_says_nothing_ends_the_run():
    """As a computer does whose network cable is out: nothing tells that it is gone."""
    one, other = socket.socketpair()
    line, theirs = talk.Line(one, "192.168.1.6:5"), talk.Line(other, "here")
    theirs.say(alive=True)
    assert line.hear(0.2) == [{"alive": True}]
    time.sleep(0.3)
    with pytest.raises(RunFailed, match=r"192.168.1.6:5 has said nothing for 0.2 s"):
        line.hear(0.2)
    with pytest.raises(RunFailed, match=r"192.168.1.6:5 did not say clock within 0.1 s"):
        line.ask("clock", 0.1)
    line.close()
    theirs.close()


@pytest.mark.parametrize(("options", "says"), [
    (["--listen", "nowhere", "--runtime", "tcp"], "expected HOST:PORT"),
    (["--listen", "127.0.0.1:0"], "expected --runtime tcp"),
    (["--listen", "127.0.0.1:0", "--runtime", "tcp", "--hosts", "1"], "expected at least 2"),
    (["--listen", "127.0.0.1:0", "--runtime", "tcp", "--compute", "fixed(0.01)"], "expected --compute none"),
    (["--listen", "127.0.0.1:0", "--runtime", "tcp", "--checkpoint", "c"], "for runs on one host"),
    (["--listen", "127.0.0.1:0", "--runtime", "tcp", "--secret-file", "/nowhere"], "secret file /nowhere"),
    (["--listen", "127.0.0.1:0", "--runtime", "tcp", "--hosts", "9"], "9 hosts for 5 processes"),
])
def test_wrong_use_is_one_line(monkeypatch, capsys, options, says):
    """What was found and what was expected."""
    monkeypatch.setenv("REFSGD_SECRET", SECRET)
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", *options]) in (1, 2)
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_joining_needs_a_secret_and_somebody_who_listens(monkeypatch, capsys):
    """A closed port is one line and exit code 1."""
    monkeypatch.delenv("REFSGD_SECRET", raising=False)
    assert main(["run", "--join", "127.0.0.1:9"]) == 2 and "a secret of 0 bytes; expected 16 or more" in capsys.readouterr().err
    monkeypatch.setenv("REFSGD_SECRET", SECRET)
    assert main(["run", "--join", "127.0.0.1:9"]) == 1
    assert capsys.readouterr().err == ("refsgd: cannot join 127.0.0.1:9: Connection refused; expected `refsgd run ... --listen` there, "
                                       "with the same secret\n")
    assert main(["run"]) == 2 and "--join HOST:PORT" in capsys.readouterr().err
