"""`refsgd doctor`: a line each, and what to do where something is not as it should be."""

from __future__ import annotations

import multiprocessing
import shutil
import socket
from collections import namedtuple

import pytest

from refsgd import doctor
from refsgd.cli import main


def test_every_check_says_something():
    """On the machine of the tests nothing is missing; what is not ok comes with advice."""
    findings = doctor.examine()
    topics = {f.topic for f in findings}
    assert {"cores", "memory", "start methods", "clock", "loopback", "MPI", "kernel cache", "data sets"} <= topics
    assert {f.verdict for f in findings} <= {doctor.OK, doctor.WARNING}
    assert all(f.advice for f in findings if f.verdict != doctor.OK)


def test_the_command_ends_with_one_if_something_is_missing(monkeypatch, capsys):
    """And with 0 for warnings."""
    monkeypatch.setattr(doctor, "CHECKS", (doctor.starting,))
    assert main(["doctor"]) == 0
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(SystemExit) as stopped:
        main(["doctor"])
    assert stopped.value.code == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("missing start methods spawn; processes need fork: use Linux, macOS or WSL")


def only(check):
    (finding,) = check()
    return finding.verdict, str(finding)


def test_what_is_wrong_is_named(monkeypatch):
    """A small /dev/shm, no loopback, no mpi4py, no place for compiled kernels, a clock that sleeps too long."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 20))
    shm = [f for f in doctor.memory() if f.topic == "shared memory"]
    assert not shm or (shm[0].verdict == doctor.WARNING and "--shm-size" in shm[0].advice)

    def refused(*rest, **more):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    verdict, said = only(doctor.loopback)
    assert verdict == doctor.MISSING and "Connection refused" in said and "firewall" in said
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    verdict, said = only(doctor.message_passing)
    assert verdict == doctor.WARNING and "pip install 'refsgd[mpi]'" in said
    monkeypatch.setattr(doctor, "_can_write", lambda place: False)
    verdict, said = only(doctor.caches)
    assert verdict == doctor.WARNING and "NUMBA_CACHE_DIR" in said
    slow = doctor.time.sleep
    monkeypatch.setattr(doctor.time, "sleep", lambda seconds: slow(seconds + 0.002))
    verdict, said = only(doctor.clock)
    assert verdict == doctor.WARNING and "20 ms" in said
