"""MPI as one more world: the whole conformance suite in every rank, pacing, and what a failing run says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refsgd

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


CATALOGUE = """
import json
import refsgd
from mpi4py import MPI
from refsgd.algorithms import CATALOGUE
from refsgd.machine import Machine
seen = {}
for name in CATALOGUE:
    arguments = dict(data="integers" if name == "hogwild" else "quadratic", workers=4, steps=6, lr=0.05, machine=Machine())
    try:
        result = refsgd.run(name, runtime="mpi", **arguments)
    except ValueError as error:
        seen[name] = str(error)
        continue
    expected = refsgd.run(name, **arguments).parameters_sha256
    seen[name] = [result.parameters_sha256 == expected, result.measured["messages"]]
if not MPI.COMM_WORLD.rank:
    print("SEEN", json.dumps(seen))
"""
#: whose parameters do not depend on the schedule
SYNCHRONOUS = {"sequential", "bsp", "allreduce", "dgc", "independent", "local-sgd", "post-local", "diloco", "dpsgd", "sgp"}


def test_every_algorithm_runs_over_mpi():
    """To its end, and the synchronous ones to the simulator's bits; shared memory is refused in words."""
    done = mpiexec(6, "-c", CATALOGUE)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    seen = json.loads(line[5:])
    assert "share memory" in seen.pop("hogwild")
    assert set(seen) == set(refsgd.algorithms.CATALOGUE) - {"hogwild"}
    assert {name for name in SYNCHRONOUS if not seen[name][0]} == set()
    assert all(messages > 0 for name, (_, messages) in seen.items() if name not in ("sequential", "independent"))


CHECKPOINTS = """
import sys
import refsgd
from mpi4py import MPI
from refsgd.machine import Machine
folder, arguments = sys.argv[1], dict(data="quadratic", workers=3, steps=30, lr=0.05, momentum=0.5, machine=Machine("fixed(0.002)"))
whole = refsgd.run("bsp", runtime="mpi", record=folder + "/record", checkpoint=folder, checkpoint_every=0.1, **arguments)
resumed = refsgd.run("bsp", runtime="mpi", resume=folder)
if not MPI.COMM_WORLD.rank:
    bits = {r.parameters_sha256 for r in (whole, resumed, refsgd.run("bsp", **arguments), refsgd.replay(folder + "/record"))}
    print("SEEN", len(bits), resumed.measured["messages"] == whole.measured["messages"])
"""


def test_checkpoints_and_records_over_mpi(tmp_path):
    """Stop and resume give the bits of the run that never stopped, of the simulator and of the replayed record."""
    done = mpiexec(4, "-c", CHECKPOINTS, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "SEEN 1 True" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000001", "checkpoint-000002", "record"]


def refsgd_run(ranks, *arguments):
    return mpiexec(ranks, "-m", "refsgd", "run", *arguments, "--runtime", "mpi")


def test_the_command_line_over_mpi():
    """As many workers as ranks are left for, one voice, the simulator's hash."""
    done = refsgd_run(4, "bsp", "--data", "integers", "--steps", "5", "--compute", "none", "--lr", "0.25", "--json", "-")
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)  # so only one rank has printed
    assert (result["workers"], result["runtime"]) == (3, "mpi")
    simulated = refsgd.run("bsp", workers=3, data="integers", steps=5, lr=0.25)
    assert result["parameters_sha256"] == simulated.parameters_sha256


def test_a_wrong_number_of_ranks_is_one_line():
    """Of rank 0, with the right number."""
    done = refsgd_run(3, "bsp", "--data", "integers", "--steps", "5", "--workers", "4")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("refsgd:")]
    assert said == ["refsgd: bsp with 4 workers needs 5 ranks and MPI has started 3; use mpiexec -n 5, or another --workers"]


STUCK = """
import os, signal, sys
from functools import partial
from refsgd.runtimes import mpi
from tests.runtimes.deployments import exchange
mpi.GRACE = 0.5
def gradient(x, rank, t):
    if rank == 1 and t == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x
mpi.run(partial(exchange, n=3, gradient=gradient), deadline=1.0)
"""


def test_a_stopped_rank_is_ended_by_abort(tmp_path):
    """It hears of nothing, so those who gave up waiting for it end the job with their error."""
    # Open MPI's own segments, which an abort may leave, go where the test's files go.
    done = mpiexec(4, "-c", STUCK, OMPI_MCA_btl_sm_backing_directory=str(tmp_path), PRTE_MCA_btl_sm_backing_directory=str(tmp_path))
    assert done.returncode != 0
    assert "no message for 1" in done.stderr and "MPI_Abort ends them" in done.stderr
