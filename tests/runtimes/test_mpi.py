"""MPI as one more world: the whole conformance suite in every rank, pacing, and what a failing run says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed (the extra [mpi] brings it)")
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not on the path")
ROOT = Path(__file__).parents[2]


def mpiexec(ranks, *command, **environment):
    """Run Python in `ranks` processes; more ranks than cores are no reason to refuse."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
               "OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([MPIEXEC, "-n", str(ranks), sys.executable, *command], cwd=ROOT, text=True, timeout=240,
                          env={**os.environ, **allowed, **environment}, capture_output=True)


def test_the_conformance_suite_passes_on_mpi():
    """Six ranks run all its tests in step."""
    done = mpiexec(6, "-m", "pytest", "tests/conformance", "-x", "-q", "-p", "no:cacheprovider", REFSGD_WORLD="mpi")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout


PACED = """
from functools import partial
from refsgd.machine import Machine
from refsgd.runtimes.mpi import run
from refsgd.runtimes.simulator import simulate
from tests.runtimes.deployments import exchange
build = partial(exchange, n=4, d=1000, steps=40)
machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e7)
result = run(build, machine, 3)
if result is not None:
    expected = simulate(build, machine, 3)
    same = all((result.values[node] == expected.values[node]).all() for node in expected.values)
    print("RATIO", result.trace.seconds / expected.trace.seconds, same)
"""


def test_pacing_and_bits_over_mpi():
    """The simulator's time within 5 %, the simulator's parameters bit for bit, more ranks than nodes."""
    done = mpiexec(6, "-c", PACED)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RATIO")]
    _, ratio, same = line.split()
    assert abs(float(ratio) - 1) < 0.05 and same == "True"


FAILS = """
from functools import partial
from refsgd.runtimes.mpi import run
from tests.runtimes.deployments import bad_gradient, exchange
run(partial(exchange, n=3, gradient=bad_gradient))
"""


def test_an_exception_ends_all_ranks():
    """Every rank raises the same line, and mpiexec says that the job failed."""
    done = mpiexec(4, "-c", FAILS)
    assert done.returncode != 0
    assert "worker2 (rank 3): FloatingPointError: NaN in layer 3, in Compute(gradient) of worker2" in done.stderr


KILLED = FAILS.replace("bad_gradient", "killed_gradient")


def test_a_killed_rank_ends_all_ranks():
    """mpiexec notices and ends the job."""
    done = mpiexec(4, "-c", KILLED)
    assert done.returncode != 0


def test_too_few_ranks_are_refused():
    """With the command to type."""
    done = mpiexec(2, "-c", FAILS)
    assert done.returncode != 0 and "needs 4 processes and MPI has started 2; use mpiexec -n 4" in done.stderr
