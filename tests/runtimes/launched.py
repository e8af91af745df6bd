"""What is asked of ranks whoever has started them: scripts for every rank, and what their output must say.

A script finds its runtime in the environment.  `launch(ranks, "-c", script, *arguments)` runs it.
"""

import re
import time

import pytest

from refsgd.runtimes.transports.wire import HEAD, LONGEST_DESCRIPTION

PACED = """
import os
from functools import partial
from refsgd.cluster.machine import Machine
from refsgd.runtimes.processes.mpi import run
from refsgd.runtimes.simulator import simulate
from tests.runtimes.deployments import exchange
build = partial(exchange, n=4, d=1000, steps=40)
machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e7)
result = run(build, machine, 3, runtime=os.environ["RUNTIME"])
if result is not None:
    expected = simulate(build, machine, 3)
    same = all((result.values[node] == expected.values[node]).all() for node in expected.values)
    slipped = sum(late["slipped"] for late in result.trace.lateness.values())
    print("PACED", result.trace.seconds, expected.trace.seconds, slipped, same)
"""


def check_pacing(launch):
    """The simulator's time within 5 %, the simulator's parameters bit for bit, more ranks than nodes."""
    done = launch(6, "-c", PACED)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PACED")]
    *seconds, same = line.split()[1:]
    took, simulated, slipped = map(float, seconds)
    # A machine that is busy with other things makes Computes end late, which the run counts.
    assert 0.95 * simulated < took < 1.05 * simulated + slipped and same == "True", line


CHECKPOINTS = """
import os, sys
import refsgd
from refsgd.cluster.machine import Machine
from refsgd.runtimes.processes import mpi
world = mpi.world(os.environ["RUNTIME"])
folder, arguments = sys.argv[1], dict(data="quadratic", workers=3, steps=30, lr=0.05, momentum=0.5, machine=Machine("fixed(0.002)"))
whole = refsgd.run("bsp", runtime=os.environ["RUNTIME"], record=folder + "/whole", checkpoint=folder, **arguments)
if not world.rank:
    with open(folder + "/record", "r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
world.Barrier()
resumed = refsgd.run("bsp", runtime=os.environ["RUNTIME"], resume=folder, checkpoint=folder)
if not world.rank:
    bits = {r.parameters_sha256 for r in (whole, resumed, refsgd.run("bsp", **arguments), refsgd.replay(folder + "/whole"), refsgd.replay(folder + "/record"))}
    print("SEEN", len(bits), resumed.measured["messages"] == whole.measured["messages"])
"""


def check_records(launch, folder):
    """Stop and resume give the bits of the run that never stopped, of the simulator and of the replayed
    record."""
    done = launch(4, "-c", CHECKPOINTS, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "SEEN 1 True" in done.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["record", "whole"]


FAILS = """
import os
from functools import partial
from refsgd.runtimes.processes.mpi import run
from tests.runtimes.deployments import bad_gradient, exchange
run(partial(exchange, n=3, gradient=bad_gradient), runtime=os.environ["RUNTIME"])
"""


STUCK = """
import os, signal, sys
from functools import partial
from refsgd.runtimes.processes import mpi
from refsgd.runtimes.transports import ranks
from tests.runtimes.deployments import exchange
ranks.GRACE = 0.5
def gradient(x, rank, t):
    if rank == 1 and t == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x
mpi.run(partial(exchange, n=3, gradient=gradient), deadline=1.0, runtime=os.environ["RUNTIME"])
"""


#: what one rank does at a time when nobody waits for a message of it
ABSENT = """
import os, signal, sys, time
from refsgd.effects import Compute, Node, Recv, RunEnded
from refsgd.runtimes.processes import mpi
from tests.runtimes.deployments import Never
how, me = sys.argv[1], mpi.world(os.environ["RUNTIME"]).rank
def stop(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
def main(rank):
    yield Compute(stop if how == "alone" else abs, rank)
def responder(rank):
    try:
        yield Recv(Never)
    except RunEnded:
        yield Compute(stop if how == "closing" else abs, rank)
if how == "starting":
    mpi.STARTING = 1.0
    time.sleep(60 * (me == 1))
mpi.run(lambda: {f"peer{i}": Node(main(i), [responder(i)]) for i in range(3)}, deadline=1.0, runtime=os.environ["RUNTIME"])
"""


#: a rank that stops when the others are done, when the run is over, or that never comes to it
ENDINGS = pytest.mark.parametrize(("how", "says"), [
    ("alone",
     r"no sign of life from some rank for 1.* \(longer than the deadline of 1 s\); stopped, or in a long "
     r"Compute: peer1 \(rank 1\)"),
    ("closing",
     r"refsgd: peer[02] \(rank [02]\): not all ranks ended within 1 s; stopped, or in a long Compute: peer1 "
     r"\(rank 1\); all ranks end"),
    ("starting",
     r"refsgd: rank [02]: not all ranks came to the run within 1 s; expected all 3; all ranks end"),
])


def check_ending(launch, how, says, within):
    """Nobody waits for ever: `within` seconds, beside what starting and ending such processes takes here and now."""
    began = time.monotonic()
    assert launch(3, "-c", "from refsgd.runtimes.processes import mpi").returncode == 0
    within, began = within + time.monotonic() - began, time.monotonic()
    done = launch(3, "-c", ABSENT, how)
    assert done.returncode != 0 and re.search(says, done.stderr), done.stderr[-2000:]
    assert time.monotonic() - began < within


FRAMES = """
import os
import numpy as np
from refsgd.runtimes.processes import mpi
from refsgd.runtimes.processes.status import StatusTable
from refsgd.runtimes.transports.ranks import MESSAGE, Ranks
from refsgd.runtimes.transports.wire import HEAD, WireError, encode
from tests.runtimes.deployments import Model
LARGEST = 1 << 12
(comm, rounds), hosts = (mpi.world(os.environ["RUNTIME"]).Split(0, 0) for _ in range(2)), ["peer0", "peer1"]
table = StatusTable({hosts[comm.rank]: [(hosts[comm.rank], 0)]})
ranks = Ranks(comm, rounds, hosts, [frozenset({0}), frozenset({1})], table, 10.0, LARGEST)
good = b"".join(encode(Model(np.arange(1000, dtype=np.float32)), 0, 1, 0, 0.0))
head = list(HEAD.unpack_from(good))
body = good[HEAD.size:]
bad = {"a large payload": HEAD.pack(*head[:-1], 1 << 40) + body, "cut short": good[:-1],
       "one byte too many": good + b"!", "two frames": 2 * good, "nothing": b"", "half a head": good[:5],
       "of another node": HEAD.pack(*head[:2], 1, *head[3:]) + body, "to another node": HEAD.pack(*head[:3], 0, *head[4:]) + body,
       "at no time": HEAD.pack(*head[:5], float("nan"), head[6]) + body, "another kind": good[:HEAD.size] + b"\\xff" + body[1:]}
sent = []
if comm.rank == 0:
    for data in [*bad.values(), good]:
        sent.append(comm.Isend(data, 1, MESSAGE))
    try:
        ranks.post("peer1", Model(np.zeros(LARGEST)), 0, 1, 1, 0.0)
    except TypeError as error:
        print("REFUSED", error)
else:
    for name in bad:
        while not comm.Iprobe():
            pass
        try:
            print("ACCEPTED", name, ranks.take())
        except WireError as error:
            assert str(error).startswith("peer0 (rank 0) sent "), error
            print("CAUGHT", name, error)
    while not (frames := ranks.take()):
        pass
    print("GOOD", (frames[0].fields[0] == np.arange(1000)).all(), flush=True)
comm.Barrier()
if comm.rank == 0:
    sent.append(comm.Isend(bytes(1 << 20), 1, MESSAGE))
while True:
    ranks.take()
"""


def check_frames(launch):
    """Torn, joined or of others: each is an error that names its sender, and the next good one is taken; too
    large a one ends the job."""
    done = launch(2, "-c", FRAMES)
    assert "ACCEPTED" not in done.stdout and done.stdout.count(
        "CAUGHT") == 10 and "GOOD True" in done.stdout, done.stderr[-2000:]
    assert done.returncode == 1
    most = HEAD.size + LONGEST_DESCRIPTION + (1 << 12)
    assert f"refsgd: peer0 (rank 0) sent a message of 1048576 bytes; expected at most {most}; all ranks end\n" in done.stderr
    assert "REFUSED a message Model of 32768 bytes" in done.stdout and "expected at most 4096" in done.stdout
