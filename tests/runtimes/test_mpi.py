"""MPI as one more world: the whole conformance suite in every rank, pacing, and what a failing run says."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import refsgd
from tests.runtimes.launched import (
    ENDINGS,
    FAILS,
    STUCK,
    check_ending,
    check_frames,
    check_pacing,
    check_records,
)

pytest.importorskip("mpi4py", reason="mpi4py is not installed (the extra [mpi] brings it)")
MPIEXEC = shutil.which("mpiexec",
                       path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not on the path")
ROOT = Path(__file__).parents[2]


def mpiexec(ranks, *command, **environment):
    """Run Python in `ranks` processes; more ranks than cores are no reason to refuse."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
               "OMPI_MCA_mpi_yield_when_idle": "1", "RUNTIME": "mpi", "PYTHONPATH": str(ROOT)}
    # of Open MPI: what an abort leaves of them goes with the folder
    with tempfile.TemporaryDirectory() as segments:
        places = {f"{kind}_MCA_btl_sm_backing_directory": segments for kind in ("OMPI", "PRTE")}
        return subprocess.run([MPIEXEC, "-n", str(ranks), sys.executable, *command], cwd=ROOT, text=True,
                              timeout=240,
                              env={**os.environ, **allowed, **places, **environment}, capture_output=True)


@pytest.mark.alone
def test_the_conformance_suite_passes_on_mpi():
    """Six ranks run all its tests in step."""
    done = mpiexec(6, "-m", "pytest", "tests/conformance", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
                   REFSGD_WORLD="mpi")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout


@pytest.mark.alone
def test_pacing_and_bits_over_mpi():
    check_pacing(mpiexec)


SHARED = """
from refsgd.runtimes.processes.mpi import run
from tests.runtimes.test_links import CASES, arrivals
for name in ("two groups of two hosts, each of two workers", "both ways between groups, half duplex",
             "worker and server on one host with links inside"):
    case = CASES[name]
    result = run(case.build, case.machine)
    if result is not None:
        slipped = sum(late["slipped"] for late in result.trace.lateness.values())
        print("SHARED", all(0.95 * time < found < 1.05 * time + slipped
                            for time, found in zip(case.arrivals, arrivals(result), strict=True)))
"""


@pytest.mark.alone
def test_shared_links_over_mpi():
    """One rank a host, and times counted by hand: ranks serve the link of a group together, in memory that leaves
    no file behind."""
    with tempfile.TemporaryDirectory() as folder:
        done = mpiexec(4, "-c", SHARED, TMPDIR=folder)
        assert done.stdout.split() == ["SHARED", "True"] * 3, done.stdout + done.stderr[-2000:]
        assert not [path for path in Path(folder).rglob("*") if path.is_file()]


def test_an_exception_ends_all_ranks():
    """Every rank raises the same line, and mpiexec says that the job failed."""
    done = mpiexec(4, "-c", FAILS)
    assert done.returncode != 0
    assert "worker2 (rank 3): FloatingPointError: NaN in layer 3, in Compute(gradient) of worker2" in done.stderr


KILLED = FAILS.replace("bad_gradient", "killed_gradient")


def test_a_killed_rank_ends_all_ranks():
    """mpiexec notices and ends the job."""
    done = mpiexec(4, "-c", KILLED)
    assert done.returncode != 0 and re.search("signal:? 9", done.stderr, re.IGNORECASE), done.stderr[-2000:]


def test_too_few_ranks_are_refused():
    """With the command to type."""
    done = mpiexec(2, "-c", FAILS)
    assert done.returncode != 0 and "needs 4 processes and MPI has started 2; use mpiexec -n 4" in done.stderr


def test_frames_over_mpi_are_bounded_and_checked():
    check_frames(mpiexec)


CATALOGUE = """
import json
import refsgd
from mpi4py import MPI
from refsgd.algorithms import CATALOGUE
from refsgd.cluster.machine import Machine
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
SYNCHRONOUS = {"sequential", "bsp", "allreduce", "dgc", "independent", "local-sgd", "post-local", "diloco",
               "eager-diloco", "streaming-diloco", "noloco", "dpsgd", "sgp", "gpipe", "pipedream", "zero", "sandblaster", "strads"}


def test_every_algorithm_runs_over_mpi():
    """To its end, and the synchronous ones to the simulator's bits; shared memory is refused in words."""
    done = mpiexec(6, "-c", CATALOGUE)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    seen = json.loads(line[5:])
    assert "share memory" in seen.pop("hogwild")
    assert set(seen) == set(refsgd.algorithms.CATALOGUE) - {"hogwild"}
    assert {name for name in SYNCHRONOUS if not seen[name][0]} == set()
    assert all(messages > 0 for name, (_, messages) in seen.items()
               if name not in ("sequential", "independent"))


EXCHANGES = """
import refsgd
from mpi4py import MPI
LAYERS = dict(layout="layers", overlap="both", priority=True)
for name, how in (("bsp", LAYERS), ("bsp", dict(layout="layers", balance="size", servers=2, overlap="backward", compress="topk:0.5")),
                  ("allreduce", dict(overlap="backward", bucket=16)), ("dgc", dict(overlap="backward", ratio=0.5)),
                  ("allreduce", dict(overlap="backward", collective="halving-doubling", compress="powersgd:1"))):
    how = dict(data="integers", workers=3, steps=6, lr=0.25, evaluations=0, **how)
    found, expected = refsgd.run(name, runtime="mpi", machine=refsgd.Machine(), **how), refsgd.run(name, **how)
    if not MPI.COMM_WORLD.rank:
        print("SEEN", found.parameters_sha256 == expected.parameters_sha256,
              found.measured["bytes_sent_by_node"] == expected.measured["bytes_sent_by_node"], found.measured["messages"] == expected.measured["messages"])
how = dict(data="integers", workers=2, steps=12, lr=0.25, evaluations=0, compress="topk:0.5",
           machine=refsgd.Machine(compute="fixed(0.03)", bandwidth=500), **LAYERS)
found, expected = refsgd.run("bsp", runtime="mpi", **how), refsgd.run("bsp", **how)
if not MPI.COMM_WORLD.rank:
    slipped = sum(late["slipped"] for late in found.trace.lateness.values())
    print("PACED", 0.95 * expected.trace.seconds < found.trace.seconds < 1.05 * expected.trace.seconds + slipped,
          found.parameters_sha256 == expected.parameters_sha256, found.trace.seconds, expected.trace.seconds, slipped)
"""


@pytest.mark.alone
def test_exchanges_over_mpi():
    """Layers, priorities, buckets and codecs: the simulator's bits, bytes and messages, and its time where they are paced."""
    done = mpiexec(5, "-c", EXCHANGES)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("SEEN")] == ["SEEN True True True"] * 5
    (line,) = [line for line in lines if line.startswith("PACED")]
    assert line.startswith("PACED True True"), line


def test_an_exchange_from_the_command_line_over_mpi():
    """With the options of the issue, as many ranks as before: parts of one server share its process."""
    done = refsgd_run(3, "bsp", "--layout", "layers", "--overlap", "both", "--priority", "--compress", "topk:0.5",
                      "--data", "integers", "--steps", "5", "--compute", "none", "--lr", "0.25", "--json", "-")
    assert done.returncode == 0, done.stderr[-2000:]
    simulated = refsgd.run("bsp", workers=2, data="integers", steps=5, lr=0.25, layout="layers", overlap="both",
                           priority=True, compress="topk:0.5")
    assert json.loads(done.stdout)["parameters_sha256"] == simulated.parameters_sha256


def test_checkpoints_and_records_over_mpi(tmp_path):
    check_records(mpiexec, tmp_path)


def refsgd_run(ranks, *arguments):
    return mpiexec(ranks, "-m", "refsgd", "run", *arguments, "--runtime", "mpi")


def test_the_command_line_over_mpi():
    """As many workers as ranks are left for, one voice, the simulator's hash."""
    done = refsgd_run(4, "bsp", "--data", "integers", "--steps", "5", "--compute", "none", "--lr", "0.25",
                      "--json", "-")
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
    assert said == [
        "refsgd: bsp with 4 workers needs 5 ranks and MPI has started 3; use mpiexec -n 5, or another "
        "--workers"]


@pytest.mark.parametrize(("record", "code", "says"), [
    ("/proc/nope", 2, "cannot be written (No such file or directory); expected the name of a file that you may write"),
    ("/dev/full", 1, "could not be written (No space left on device); expected more free space")])
def test_a_record_that_cannot_be_written_is_one_line_over_mpi(record, code, says):
    """Of rank 0; the others do not wait for it."""
    done = refsgd_run(3, "bsp", "--data", "integers", "--steps", "5", "--compute", "none", "--record", record)
    assert done.returncode == code
    said = [line for line in done.stderr.splitlines() if line.startswith("refsgd:")]
    assert said == [f"refsgd: the record {record} {says}"]


DIES = """
import os, signal, sys, time
from dataclasses import replace
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.processes.mpi import run
name, kind, rank, step, note = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
endless = prepare(name, data="quadratic", lr=0.01, steps=100_000, workers=4)
def gradient(x, i, t):
    if i == rank and t >= step and not os.path.exists(note):  # whoever is late may pass over some
        with open(note, "w") as file:
            file.write(str(time.monotonic()))
        if kind == "exception":
            raise ArithmeticError("planned")
        os.kill(os.getpid(), signal.Signals[kind])
    return endless.problem.gradient(x, i, t)
run(replace(endless, problem=replace(endless.problem, gradient=gradient, layers=None)).deploy)
"""


@pytest.mark.parametrize("count",
                         [pytest.param(3, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.long)])
def test_random_deaths_end_all_ranks(count, tmp_path, capsys):
    """Killed, terminated or failed at any step of any worker of any algorithm: the job has failed within
    two seconds of it."""
    by_other_ranks = {"gpipe", "pipedream", "sandblaster"}  # none computes `problem.gradient` under its own rank
    names = sorted(set(refsgd.algorithms.CATALOGUE) - {"hogwild", "sequential"} - by_other_ranks)
    worst, note = {}, tmp_path / "note"
    for seed in range(count):
        rng = random.Random(seed)
        name, kind = rng.choice(names), rng.choice(["SIGKILL", "SIGTERM", "exception"])
        done = mpiexec(6, "-c", DIES, name, kind, str(rng.randrange(4)), str(rng.randrange(30)), str(note))
        took = time.monotonic() - float(note.read_text())
        worst[kind] = max(worst.get(kind, 0.0), took)
        assert done.returncode != 0 and took < 2.0, (name, kind, took)
        assert kind != "exception" or "ArithmeticError: planned, in Compute(gradient)" in done.stderr
        assert kind != "SIGTERM" or "RunFailed: terminated by SIGTERM" in done.stderr
        note.unlink()
    with capsys.disabled():
        print(f"\n{count} random deaths over MPI, slowest until mpiexec had ended:",
              ", ".join(f"{k} {s:.2f} s" for k, s in sorted(worst.items())))


BUSY = """
import os, signal, time
from functools import partial
from refsgd.runtimes.processes import mpi
from tests.runtimes.deployments import exchange
def gradient(x, rank, t):
    if rank == 1 and t == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    return x
mpi.run(partial(exchange, n=3, gradient=gradient))
"""


def test_a_terminated_rank_that_computes_for_long_is_killed():
    """It cannot fail in order, and nobody waits for it to have computed."""
    began = time.monotonic()
    done = mpiexec(4, "-c", BUSY)
    assert done.returncode != 0 and time.monotonic() - began < 30.0
    assert re.search("signal:? 14", done.stderr, re.IGNORECASE), done.stderr[-2000:]


def test_a_stopped_rank_is_ended_by_abort():
    """It hears of nothing, so those who gave up waiting for it end the job with their error."""
    done = mpiexec(4, "-c", STUCK)
    assert done.returncode != 0
    assert "no message for 1" in done.stderr and "all ranks end" in done.stderr


@ENDINGS
def test_no_rank_waits_for_ever(how, says):
    check_ending(mpiexec, how, says, 30.0)


LONG = """
import time
from functools import partial
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.runtimes.processes import mpi
from refsgd.trace import Received
from tests.runtimes.deployments import Model, Push
def gradient(rank, t):
    time.sleep(2.5 if (rank, t) == (1, 1) else 0.03)
def worker(rank):
    for t in range(2 if rank else 100):
        yield Compute(gradient, rank, t)
        yield Send("server0", Push(t))
        yield Recv(Model)
def server():
    for _ in range(102):
        src, push = yield Recv(Push)
        yield Send(src, Model(push.grad))
run = mpi.run(lambda: {"server0": Node(server(), role="server"), "worker0": Node(worker(0)), "worker1": Node(worker(1))}, deadline=1.5)
if run is not None:
    print("RECEIVED", len(run.trace.of(Received)))
"""


def test_a_rank_that_computed_for_longer_than_the_deadline_has_not_waited():
    """It computed beside its driver, which showed life; from then on it has the whole deadline to hear of
    its message."""
    done = mpiexec(3, "-c", LONG)
    assert done.returncode == 0 and "RECEIVED 204" in done.stdout, done.stderr[-2000:]


def test_each_rank_imports_an_own_algorithm_and_one_rank_is_left_to_its_server(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from refsgd.algorithms.server.asp import asp\n"
                    "def own(problem, workers, steps, sgd):\n"
                    "    return asp(problem, workers, steps, sgd)\n")
    done = mpiexec(3, "-m", "refsgd", "run", f"{mine}:own", "--data", "quadratic", "--steps", "2",
                   "--runtime", "mpi", "--compute", "none")
    assert done.returncode == 0, done.stderr
    assert "own: 2 workers, 1 server, 2 steps, mpi" in done.stdout
