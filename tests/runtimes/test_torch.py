"""torch.distributed as one more world, started by torchrun: the conformance suite, the catalogue, and what a failing run says."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.experiment.prepare import prepare
from tests.catalogue import NOT_BY_RANK
from tests.runtimes.launched import (
    ENDINGS,
    FAILS,
    STUCK,
    check_ending,
    check_frames,
    check_pacing,
    check_records,
)

pytest.importorskip("torch", reason="torch is not installed (the extra [torch] brings it)")
ROOT = Path(__file__).parents[2]


def launched(ranks, *command, nodes=1, **environment):
    """Run Python in `ranks` processes of one torchrun, or of one for each of `nodes`; the first one's exit code,
    standard output of all and standard error of all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    module = list(command[1:]) if command[0] == "-m" else None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        # torchrun never removes the folder that it makes for logs
        env = {**os.environ, "RUNTIME": "torch", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": folder,
               **environment}
        if module is None:
            script = Path(folder, "script.py")
            script.write_text(command[1])
            module = [str(script), *command[2:]]
        else:
            module = ["-m", *module]
        started = []
        for node in range(nodes):
            out, err = (stack.enter_context(open(Path(folder, f"{kind}{node}"), "w+")) for kind in ("out", "err"))
            line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--nnodes", str(nodes),
                    "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port, *module]
            started.append((subprocess.Popen(line, cwd=ROOT, text=True, env=env, stdout=out, stderr=err), out, err))
        end = time.monotonic() + 240
        try:
            codes = [process.wait(end - time.monotonic()) for process, *_ in started]
        finally:
            for process, *_ in started:
                process.kill()
                process.wait()
        texts = ["".join((file.seek(0), file.read())[1] for file in files) for files in zip(*[row[1:] for row in started])]
    return subprocess.CompletedProcess(command, max(map(abs, codes)), *texts)


def said(done):
    """The lines of refsgd itself, without torchrun's report."""
    return [line for line in done.stderr.splitlines() if line.startswith("refsgd:")]


@pytest.mark.alone
@pytest.mark.slow
def test_the_conformance_suite_passes_on_torch():
    """Six ranks run all its tests in step."""
    done = launched(6, "-m", "pytest", "tests/conformance", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
                    REFSGD_WORLD="torch")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout


@pytest.mark.alone
def test_pacing_and_bits_over_torch():
    check_pacing(launched)


CATALOGUE_RUN = """
import json, sys
import refsgd
from refsgd.cluster.machine import Machine
from refsgd.runtimes.processes import mpi
seen = {}
for name in sys.argv[1:]:
    arguments = dict(data="integers" if name == "hogwild" else "quadratic", workers=4, steps=6, lr=0.05, machine=Machine())
    try:
        result = refsgd.run(name, runtime="torch", **arguments)
    except ValueError as error:
        seen[name] = str(error)
        continue
    seen[name] = [result.parameters_sha256, result.measured["messages"]]
if not mpi.world("torch").rank:
    print("SEEN", json.dumps(seen))
"""
#: whose parameters do not depend on the schedule
SYNCHRONOUS = {"sequential", "bsp", "allreduce", "dgc", "independent", "local-sgd", "post-local", "diloco",
               "eager-diloco", "streaming-diloco", "noloco", "dpsgd", "sgp", "gpipe", "pipedream", "zero", "sandblaster", "strads"}


@pytest.mark.parametrize("family", sorted({CATALOGUE[name].__module__.split(".")[2] for name in CATALOGUE}))
def test_every_algorithm_runs_over_torch(family):
    """To its end, and the synchronous ones to the simulator's bits; shared memory is refused in words."""
    names = [name for name in CATALOGUE if CATALOGUE[name].__module__.split(".")[2] == family]
    done = launched(6, "-c", CATALOGUE_RUN, *names)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    seen = json.loads(line[5:])
    assert list(seen) == names
    if "hogwild" in seen:
        assert "share memory" in seen.pop("hogwild")
    for name, (bits, messages) in seen.items():
        assert messages > 0 or name in ("sequential", "independent")
        if name in SYNCHRONOUS:
            assert bits == refsgd.run(name, data="quadratic", workers=4, steps=6, lr=0.05,
                                      machine=refsgd.Machine()).parameters_sha256, name


def test_checkpoints_and_records_over_torch(tmp_path):
    check_records(launched, tmp_path)


def refsgd_run(ranks, *arguments, **how):
    return launched(ranks, "-m", "refsgd", "run", *arguments, "--runtime", "torch", **how)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_command_line_over_torch(nodes):
    """As many workers as ranks are left for, one voice, the simulator's hash; also with ranks of two agents of
    torchrun, which meet over loopback."""
    done = refsgd_run(4 // nodes, "bsp", "--data", "integers", "--steps", "5", "--compute", "none", "--lr", "0.25",
                      "--json", "-", nodes=nodes)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)  # so only one rank has printed
    assert (result["workers"], result["runtime"]) == (3, "torch")
    simulated = refsgd.run("bsp", workers=3, data="integers", steps=5, lr=0.25)
    assert result["parameters_sha256"] == simulated.parameters_sha256


def test_a_wrong_number_of_ranks_is_one_line():
    """Of rank 0, with the command to type."""
    done = refsgd_run(3, "bsp", "--data", "integers", "--steps", "5", "--workers", "4")
    assert done.returncode != 0
    assert said(done) == ["refsgd: bsp with 4 workers needs 5 ranks and torchrun has started 3; use torchrun "
                          "--nproc-per-node 5 -m refsgd ..., or another --workers"]


def test_without_torchrun_there_is_one_rank():
    """So a server and workers are refused, with the command to type."""
    done = subprocess.run([sys.executable, "-m", "refsgd", "run", "bsp", "--runtime", "torch"], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, said(done)) == (2, [
        "refsgd: bsp with 4 workers needs 5 ranks and torchrun has started 1; use torchrun --nproc-per-node 5 "
        "-m refsgd ..., or another --workers"]), done.stderr


def test_a_record_that_cannot_be_written_is_one_line_over_torch():
    """Of rank 0; the others do not wait for it."""
    done = refsgd_run(3, "bsp", "--data", "integers", "--steps", "5", "--compute", "none", "--record",
                      "/proc/nope")
    assert done.returncode != 0
    assert said(done) == [
        "refsgd: the record /proc/nope cannot be written (No such file or directory); expected the name of "
        "a file that you may write"]


def test_an_exception_ends_all_ranks():
    """Every rank raises the same line, and torchrun says that the job failed."""
    done = launched(4, "-c", FAILS)
    assert done.returncode != 0
    assert done.stderr.count("worker2 (rank 3): FloatingPointError: NaN in layer 3, in Compute(gradient) of worker2") == 4


DIES = """
import os, signal, sys, time
from dataclasses import replace
from refsgd.experiment.prepare import prepare
from refsgd.runtimes.processes.mpi import run
name, kind, rank, step, note = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
endless = prepare(name, data="quadratic", lr=0.01, steps=100_000, workers=3)
def gradient(x, i, t):
    if i == rank and t >= step and not os.path.exists(note):  # whoever is late may pass over some
        with open(note, "w") as file:
            file.write(f"{time.monotonic()} {os.environ['RANK']}")
        if kind == "exception":
            raise ArithmeticError("planned")
        os.kill(os.getpid(), signal.Signals[kind])
    return endless.problem.gradient(x, i, t)
run(replace(endless, problem=replace(endless.problem, gradient=gradient, layers=None)).deploy, runtime="torch")
"""
LOST = "refsgd: rank {} has died, or the connection to it is lost; all ranks end"


@pytest.mark.parametrize(("kind", "nodes", "count"), [
    ("SIGKILL", 1, 1), ("SIGKILL", 2, 1), ("SIGTERM", 1, 1),
    pytest.param("SIGKILL", 1, 6, marks=pytest.mark.slow), pytest.param("SIGKILL", 2, 3, marks=pytest.mark.slow),
    pytest.param("SIGKILL", 1, 40, marks=pytest.mark.long)])
def test_a_rank_that_dies_ends_all_ranks(kind, nodes, count, tmp_path):
    """At any step of any worker of any algorithm: one line, of the rank that died, and no agent of torchrun waits."""
    names = sorted(set(CATALOGUE) - {"hogwild", "sequential"} - NOT_BY_RANK)
    names = [name for name in names if len(prepare(name, data="quadratic", workers=3, steps=1).nodes) <= 4]  # ranks
    note = tmp_path / "note"
    for seed in range(count):
        rng = random.Random(seed)
        name = rng.choice(names)
        done = launched(4 // nodes, "-c", DIES, name, kind, str(rng.randrange(3)), str(rng.randrange(30)), str(note),
                        nodes=nodes)
        died, rank = note.read_text().split()
        assert done.returncode != 0 and time.monotonic() - float(died) < 10.0, (seed, name)
        if kind == "SIGKILL":
            assert said(done) == [LOST.format(rank)], (seed, name, done.stderr[-3000:])
        else:
            assert f"(rank {rank}): RunFailed: terminated by SIGTERM" in done.stderr
        note.unlink()


def test_a_stopped_rank_is_ended():
    """It hears of nothing, so those who gave up waiting for it end the job with their error."""
    done = launched(4, "-c", STUCK)
    assert done.returncode != 0
    assert re.search(r"(no message|no sign of life from some rank) for [12]", done.stderr) and "; all ranks end" in done.stderr


@ENDINGS
def test_no_rank_waits_for_ever(how, says):
    check_ending(launched, how, says, 50.0)


def test_frames_over_torch_are_checked():
    check_frames(launched)
