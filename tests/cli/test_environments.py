"""Interpreters and containers that are not the usual ones."""

import os
import subprocess
import sys

import pytest

from refsgd.cli import main
from refsgd.experiment.computer import doctor, limits
from refsgd.experiment.prepare import Usage, prepare

SMALL = "--data quadratic --workers 2 --steps 2"


def python(*arguments, code=0, **environment):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120,
                          env=os.environ | environment)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [f"run bsp {SMALL}", "list", "explore ssp --workers 2 --steps 1",
                                     "check refsgd.algorithms.server.asp:asp --no-processes"])
def test_commands_work_without_docstrings(command):
    assert python("-OO", "-m", "refsgd", *command.split())


def test_what_breaks_an_invariant_is_found_without_assert_statements(tmp_path):
    """A server of SSP with a slack of 9 where 0 is asked for, under -O."""
    (tmp_path / "loose.py").write_text(
        "from refsgd.algorithms.facts import SERVED, declare\n"
        "from refsgd.algorithms.server import ssp\n"
        "@declare(SERVED, gate=lambda options: (0, 0))\n"
        "def loose(problem, workers, steps, sgd, servers=1, rotated=False):\n"
        "    return ssp.ssp(problem, workers, steps, sgd, servers, rotated, staleness=9)\n")
    said = python("-O", "-m", "refsgd", "explore", f"{tmp_path}/loose.py:loose", "--workers", "2", "--steps", "3", code=1)
    assert "a worker is" in said and "ahead; expected at most 1" in said


def test_nets_are_computed_by_numpy_where_numbas_compiler_is_off():
    said = python("-m", "refsgd", "run", "sequential", "--net", "softmax", "--steps", "2", NUMBA_DISABLE_JIT="1")
    assert said.count("NUMBA_DISABLE_JIT is set: nets are computed with numpy") == 1 and "parameters" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_torn_file_of_a_kernel_is_written_again(kind, tmp_path):
    """As a full disk or a killed process leaves it."""
    command = ("-m", "refsgd", "run", "sequential", "--net", "softmax", "--steps", "2", "--quiet")
    whole = python(*command, NUMBA_CACHE_DIR=str(tmp_path))
    files = [*tmp_path.rglob(f"*.{kind}")]
    for file in files:
        os.truncate(file, 100)
    assert files and python(*command, NUMBA_CACHE_DIR=str(tmp_path)) == whole
    assert all(file.stat().st_size > 100 for file in tmp_path.rglob(f"*.{kind}") if file in files or kind == "nbi")


# -- control groups ------------------------------------------------------------------------------------------------

VERSION_2 = {"user/job/cpu.max": "50000 100000", "user/cpu.max": "max 100000", "user/job/memory.max": "max",
             "user/memory.max": "150000000", "user/memory.current": "40000000",
             "user/memory.stat": "anon 1\ninactive_file 10000000\n", "user/job/pids.max": "20", "user/job/pids.current": "5"}
VERSION_1 = {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000", "cpu/cpu.cfs_quota_us": "-1",
             "memory/job/memory.limit_in_bytes": "150000000", "memory/job/memory.usage_in_bytes": "40000000",
             "memory/job/memory.stat": "total_inactive_file 10000000\n", "pids/job/pids.max": "20", "pids/job/pids.current": "5"}
#: in a container: the path is the host's, and what is visible is the container's own group
INSIDE = {key.replace("/job/", "/"): text for key, text in VERSION_1.items() if "/job/" in key}


@pytest.fixture(params=[("0::/user/job\n", VERSION_2), ("4:memory:/job\n2:cpu,cpuacct:/job\n1:pids:/job\n0::/\n", VERSION_1),
                        ("4:memory:/docker/4f\n2:cpu:/docker/4f\n1:pids:/docker/4f\n", INSIDE)],
                ids=["version 2", "version 1", "container"])
def limited(request, tmp_path, monkeypatch):
    own, files = request.param
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    monkeypatch.setattr(limits, "ROOT", tmp_path / "root")


def test_the_limits_of_control_groups_are_read(limited):
    assert (limits.allowed_cores(), limits.allowed_memory(), limits.free_tasks()) == (0.5, 120_000_000, 15)


def test_the_doctor_and_the_guard_know_them(limited):
    found = {f.topic: f for check in (doctor.cores, doctor.memory, doctor.starting) for f in check()}
    assert found["cores"].verdict == "warning" and found["cores"].found == "0.5 for this process"
    assert found["memory"].found == "0.1 GiB free" and "15 more" in found["processes"].found
    few, many = (prepare("bsp", data="quadratic", steps=1, workers=n) for n in (2, 40))
    limits.check_processes(few, "processes")
    with pytest.raises(Usage, match="on 0.5 cores, 0.12 GB of free memory and room for 15 processes and threads; expected at most 3"):
        limits.check_processes(many, "processes")


def test_without_control_groups_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "OWN", tmp_path / "absent")
    assert (limits.allowed_cores(), limits.allowed_memory(), limits.free_tasks()) == (float("inf"),) * 3


def test_the_command_line_is_a_module_too():
    assert "refsgd" in python("-m", "refsgd", "--version") and main(["list"]) == 0
