"""`refsgd doctor`: a line each, and what to do where something is not as it should be."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import refsgd
from refsgd.cli import main
from refsgd.experiment.computer import doctor
from refsgd.problems.nn import kernel_cache


def test_every_check_says_something():
    """On the machine of the tests nothing is missing; what is not ok comes with advice."""
    findings = doctor.examine()
    topics = {f.topic for f in findings}
    assert {"cores", "memory", "start methods", "clock", "loopback", "MPI", "torchrun", "kernel cache",
            "data sets"} <= topics
    assert {f.verdict for f in findings} <= {doctor.OK, doctor.WARNING}
    assert all(f.advice for f in findings if f.verdict != doctor.OK)


def test_the_command_ends_with_one_if_something_is_missing(monkeypatch, capsys):
    """And with 0 for warnings."""
    monkeypatch.setattr(doctor, "CHECKS", (doctor.starting,))
    assert main(["doctor"]) == 0
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert main(["doctor"]) == 1
    said = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert said.rpartition("missing start methods")[2].startswith(
        " spawn; OS processes need fork, which this system does not support: use WSL")


def only(check):
    (finding,) = check()
    return finding.verdict, str(finding)


def test_what_is_wrong_is_named(monkeypatch):
    """A small /dev/shm, no loopback, no mpi4py, no place for compiled kernels, a clock that sleeps too
    long."""
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
    monkeypatch.setattr(kernel_cache, "can_write", lambda place: False)
    verdict, said = only(doctor.caches)
    assert verdict == doctor.WARNING and "NUMBA_CACHE_DIR" in said
    slow = doctor.time.sleep
    monkeypatch.setattr(doctor.time, "sleep", lambda seconds: slow(seconds + 0.002))
    verdict, said = only(doctor.clock)
    assert verdict == doctor.WARNING and "20 ms" in said


WITHOUT_A_CACHE = """
import sys
import refsgd
from refsgd.experiment.computer import doctor
bits = [refsgd.run("bsp", data="quadratic", steps=2, runtime=runtime).parameters_sha256 for runtime in ("simulator", "processes")]
import numpy as np
from refsgd.problems.nn import kernels
numbers = np.ones(4, np.float32)
kernels.transpose(2, 2, numbers.ctypes.data, numbers.ctypes.data, 8)  # compiles a kernel
(finding,) = doctor.caches()
print(bits[0] == bits[1], finding)
"""


@pytest.mark.slow  # quickly: tests/cli/test_homeless.py
def test_where_no_compiled_kernel_can_be_kept_a_temporary_folder_is_chosen(tmp_path):
    """A package and a home in which nothing can be written, and a NUMBA_CACHE_DIR that is a file: one
    warning, and everything works."""
    package, temporary = tmp_path / "package", tmp_path / "temporary"
    shutil.copytree(Path(refsgd.__file__).parent, package / "refsgd",
                    ignore=shutil.ignore_patterns("__pycache__"))
    temporary.mkdir()
    # a file, which not even root can make a folder of
    (package / "refsgd" / "problems" / "nn" / "__pycache__").touch()
    environment = {**os.environ, "HOME": "/dev/null", "NUMBA_CACHE_DIR": "/dev/null",
                   "PYTHONPATH": str(package), "TMPDIR": str(temporary),
                   "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_CACHE], env=environment, capture_output=True,
                          text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count(
        "compiled kernels are kept in") == 1 and "expected NUMBA_CACHE_DIR to name a folder that you may write to" in done.stderr
    (folder,) = temporary.iterdir()
    assert folder.name.startswith("refsgd-kernels-") and list(
        folder.rglob("*.nbi")) and folder.stat().st_mode & 0o077 == 0
    assert done.stdout.startswith(
        f"True warning kernel cache  {folder}, a temporary folder") and "set NUMBA_CACHE_DIR" in done.stdout
