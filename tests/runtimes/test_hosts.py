"""One run on two hosts, which here are two addresses of this machine with a launcher each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import refsgd
from refsgd.cli import main

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

    def ends(self, seconds=20):
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
