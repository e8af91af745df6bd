"""Our transports against gloo, torch RPC and MPI: all-reduce and parameter server, in one run, taking turns.

``python -m benchmarks.transports`` measures the programs of `refsgd` as OS processes over shared memory and
over TCP, and the same work done by PyTorch's gloo and RPC and by MPI.  Every figure is taken in fresh
processes; the implementations take turns, and the median over the rounds counts.  ``--only``, ``--sizes`` and
``--processes`` measure a part; ``--results`` adds it to what is there.  What is not installed is left out
with the reason.

What is compared.  All-reduce: the sum of one float32 vector per process, microseconds a call; ours is the
best of the sub-programs of `refsgd.collectives` named in ALLREDUCE, which pass messages and return a fresh
vector; gloo and MPI add in place.  Server: pushes and pulls per second of all workers, each of which sends a
gradient and gets the updated parameters; every server does ``x - lr g`` once a push.  Twice: the exchange
alone, with one gradient that is sent again and again, and an answer that nobody reads ("server"); and with
the work that any use has around it ("server, new gradients"): every worker makes a new gradient, c x + 1, of
the parameters that it got, in one compiled pass over memory, so that it reads all of the answer and writes
all of what it sends.  Ours write into fresh memory, as programs do, and over shared memory the transport
copies it once; the peers write into the same memory each time.  Every all-reduce sums what the last one gave.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numba
import numpy as np
import psutil

from benchmarks.quiet import Foreign, processor, wait_until_quiet
from refsgd import collectives
from refsgd.effects import Compute, Deployment, Mark, Node, Recv, Send
from refsgd.runtimes.processes import local as processes
from refsgd.trace.schema import json_text

SIZES = {"4 kB": 1024, "100 kB": 25_600, "1 MB": 262_144, "10 MB": 2_621_440}
MODELS = {"1.7 MB": 431_080, "45 MB": 11_250_000}
ALLREDUCE = ("root_allreduce", "recursive_doubling_allreduce", "halving_doubling_allreduce", "ring_allreduce")
LR, SLOPE, CONSTANT = np.float32(1e-3), np.float32(0.5), np.float32(1)
#: what the goals ask for: (kind, ours, peers, sizes) -> ours at least so many times as fast
MUST = {("allreduce", "refsgd", "gloo"): 4.0, ("allreduce", "refsgd", "mpi"): 0.75,
        ("server", "refsgd shm", "mpi"): 1.0, ("server", "refsgd shm", "gloo"): 4.0,
        ("server", "refsgd shm", "rpc"): 2.0,
        ("server", "refsgd tcp", "gloo"): 1.0, ("server", "refsgd tcp", "rpc"): 1.0}
NEW = "server, new gradients"
COLORS = {"gloo": "tab:purple", "mpi": "tab:brown", "rpc": "tab:pink"}  # the others take the usual ones
UNASKED = {("mpi", "4 kB"), ("mpi", "100 kB")}  # the goal against MPI begins at 1 MB


# -- ours ----------------------------------------------------------------------------------------------------


class Push(NamedTuple):
    grad: Any


class Model(NamedTuple):
    x: Any


@numba.njit(cache=True, nogil=True)
def step(x, g, lr, out):
    """x - lr g in one pass over memory."""
    for i in range(x.size):
        out[i] = x[i] - lr * g[i]


def update(x, g, lr):
    """The same into fresh memory."""
    out = np.empty_like(x)
    step(x, g, lr, out)
    return out


@numba.njit(cache=True, nogil=True)
def produce(x, slope, constant, out):
    """The gradient slope x + constant of a quadratic, in one pass over memory: each worker's work, with
    all implementations."""
    for i in range(x.size):
        out[i] = slope * x[i] + constant


def gradient(x):
    """The same into fresh memory."""
    out = np.empty_like(x)
    produce(x, SLOPE, CONSTANT, out)
    return out


def summing(me: int, peers: list[str], d: int, calls: int, allreduce: Callable[..., Any]) -> Iterator[Any]:
    """A peer that does nothing but all-reduce what it got last, as the peers below do in place."""
    x = np.zeros(d, np.float32)
    for t in range(calls):
        x = yield from allreduce(me, peers, x)
        yield Mark("clock", t=t)


def pushing(server: str, d: int, calls: int, new: bool) -> Iterator[Any]:
    """A worker that makes a gradient, each time or once, pushes it and pulls."""
    x = np.zeros(d, np.float32)
    g = gradient(x)
    for t in range(calls):
        if new:
            g = yield Compute(gradient, x)
        # a new array for the transport, which knows one that it has sent before
        yield Send(server, Push(g if new else g.view()))
        _, (x,) = yield Recv(Model, src=server)
        yield Mark("clock", t=t)


def serving(workers: list[str], d: int, calls: int) -> Iterator[Any]:
    """The server: update, answer."""
    x = np.zeros(d, np.float32)
    for _ in range(calls * len(workers)):
        src, (g,) = yield Recv(Push)
        x = yield Compute(update, x, g, LR, kind="update")
        yield Send(src, Model(x))


def clocks(run: Any, node: str) -> list[float]:
    return [e.time for e in run.trace.marks("clock") if e.node == node]


def our_allreduce(n: int, d: int, calls: int, transport: str, name: str) -> float:
    """Microseconds a call."""
    peers = [f"peer{i}" for i in range(n)]
    deployment = {peer: Node(summing(i, peers, d, calls, getattr(collectives, name)))
                  for i, peer in enumerate(peers)}
    ticks = clocks(processes.run(deployment, transport=transport), "peer0")
    return statistics.median(np.diff(ticks[min(3, calls // 4) :])) * 1e6


def our_server(n: int, d: int, calls: int, new: bool, transport: str) -> float:
    """Pushes and pulls per second."""
    workers = [f"worker{i}" for i in range(n)]
    deployment: Deployment = {w: Node(pushing("server0", d, calls, new)) for w in workers}
    run = processes.run({**deployment, "server0": Node(serving(workers, d, calls), role="server")}, transport=transport)
    times = sorted(t for w in workers for t in clocks(run, w))
    # neither the start nor the end, where some have ended
    first, last = len(times) // 5, len(times) * 9 // 10
    return (last - first) / (times[last] - times[first])


# -- peers ---------------------------------------------------------------------------------------------------


def _fork(count: int, target: Callable[..., None], *args: Any) -> float:
    """Run `count` processes of a PyTorch peer; what one of them puts into the queue."""
    context = mp.get_context("fork")
    queue, rendezvous = context.SimpleQueue(), tempfile.mktemp()
    children = [context.Process(target=target, args=(rank, rendezvous, queue, *args), daemon=True)
                for rank in range(count)]
    for child in children:
        child.start()
    end = time.monotonic() + 60
    while queue.empty() and time.monotonic() < end and all(child.exitcode in (None, 0) for child in children):
        time.sleep(0.01)
    result = float("nan") if queue.empty() else queue.get()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()
            child.join()
    Path(rendezvous).unlink(missing_ok=True)
    return result


def _gloo(rank: int, rendezvous: str, n: int) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=n)
    return torch, dist


def gloo_allreduce(rank: int, rendezvous: str, queue: Any, n: int, d: int, calls: int) -> None:
    torch, dist = _gloo(rank, rendezvous, n)
    x, ticks = torch.zeros(d), []
    for _ in range(calls):
        dist.all_reduce(x)
        ticks.append(time.perf_counter())
    if rank == 0:
        queue.put(statistics.median(np.diff(ticks[min(3, calls // 4) :])) * 1e6)
    dist.barrier()


def gloo_server(rank: int, rendezvous: str, queue: Any, n: int, d: int, calls: int, new: bool) -> None:
    torch, dist = _gloo(rank, rendezvous, n + 1)
    if rank:
        g, x = torch.ones(d), torch.zeros(d)
        for _ in range(calls):
            if new:
                produce(x.numpy(), SLOPE, CONSTANT, g.numpy())
            dist.send(g, 0)
            dist.recv(x, 0)
    else:
        x, g, ticks = torch.zeros(d), torch.empty(d), []
        for _ in range(calls * n):
            src = dist.recv(g)
            x.add_(g, alpha=-1e-3)
            dist.send(x, src)
            ticks.append(time.perf_counter())
        first, last = len(ticks) // 5, len(ticks) * 9 // 10
        queue.put((last - first) / (ticks[last] - ticks[first]))
    dist.barrier()


_parameters: Any = None


def _push_pull(g: Any) -> Any:
    return _parameters.add_(g, alpha=-1e-3)


def rpc_server(rank: int, rendezvous: str, queue: Any, n: int, d: int, calls: int, new: bool) -> None:
    global _parameters
    import torch
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    _parameters = torch.zeros(d) if rank == 0 else None
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + rendezvous,
                                              num_worker_threads=max(2, n))
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=n + 1, rpc_backend_options=options)
    if rank:
        g, x = torch.ones(d), torch.zeros(d)
        for k in range(calls):
            if k == calls // 5:
                began = time.perf_counter()
            if new:
                produce(x.numpy(), SLOPE, CONSTANT, g.numpy())
            x = rpc.rpc_sync("w0", _push_pull, args=(g,))
        if rank == 1:
            queue.put(n * (calls - calls // 5) / (time.perf_counter() - began))
    rpc.shutdown()


MPI_ALLREDUCE = """
import statistics, sys, time
import numpy as np
from mpi4py import MPI
d, calls = map(int, sys.argv[1:])
x, ticks = np.zeros(d, np.float32), []
for _ in range(calls):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
    ticks.append(time.perf_counter())
if not MPI.COMM_WORLD.rank:
    print("RESULT", statistics.median(np.diff(ticks[min(3, calls // 4):])) * 1e6)
"""
MPI_SERVER = """
import sys, time
import numpy as np
from mpi4py import MPI
from benchmarks.transports import CONSTANT, LR, SLOPE, produce
import numba
d, calls, new = map(int, sys.argv[1:])
comm, status = MPI.COMM_WORLD, MPI.Status()
@numba.njit
def step(x, g, lr):
    for i in range(x.size):
        x[i] -= lr * g[i]
if comm.rank:
    g, x = np.empty(d, np.float32), np.zeros(d, np.float32)
    produce(x, SLOPE, CONSTANT, g)
    comm.Barrier()
    for _ in range(calls):
        if new:
            produce(x, SLOPE, CONSTANT, g)
        comm.Send(g, 0)
        comm.Recv(x, 0)
else:
    x, g, ticks = np.zeros(d, np.float32), np.empty(d, np.float32), []
    step(x, x, LR)
    comm.Barrier()
    for _ in range(calls * (comm.size - 1)):
        comm.Recv(g, MPI.ANY_SOURCE, status=status)
        step(x, g, LR)
        comm.Send(x, status.Get_source())
        ticks.append(time.perf_counter())
    first, last = len(ticks) // 5, len(ticks) * 9 // 10
    print("RESULT", (last - first) / (ticks[last] - ticks[first]))
"""
OVERSUBSCRIBED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                  "PRTE_ALLOW_RUN_AS_ROOT": "1",
                  "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                  "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                  "OMPI_MCA_mpi_yield_when_idle": "1"}


def mpiexec() -> str | None:
    return shutil.which("mpiexec",
                        path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def mpi(script: str, ranks: int, *numbers: int) -> float:
    """What rank 0 printed."""
    command = [str(mpiexec()), "-n", str(ranks), sys.executable, "-c", script, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                          env={**os.environ, **OVERSUBSCRIBED})
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return float(found[0]) if found else float("nan")


# -- measuring -----------------------------------------------------------------------------------------------


def available() -> dict[str, str]:
    """Peers that cannot be measured here, and why."""
    missing = {}
    try:
        import torch.distributed as dist

        if not dist.is_available():
            missing |= dict.fromkeys(("gloo", "rpc"), "this PyTorch has no distributed package")
    except ImportError:
        missing |= dict.fromkeys(("gloo", "rpc"), "PyTorch is not installed (extra [peers])")
    try:
        import mpi4py  # noqa: F401

        if mpiexec() is None:
            missing["mpi"] = "mpiexec is not on the path"
    except ImportError:
        missing["mpi"] = "mpi4py is not installed (extra [mpi])"
    return missing


def allreduce_tasks(n: int, d: int) -> dict[str, Callable[[], float]]:
    """One measurement each, by implementation."""
    calls = max(8, min(300, int(2e7 / (d * n))))
    ours = {f"refsgd {name.removesuffix('_allreduce')}": partial(our_allreduce, n, d, calls, "shm", name)
            for name in ALLREDUCE}
    return ours | {"gloo": lambda: _fork(n, gloo_allreduce, n, d, min(calls, 60)),
                   "mpi": lambda: mpi(MPI_ALLREDUCE, n, d, calls)}


def server_tasks(n: int, d: int, new: bool) -> dict[str, Callable[[], float]]:
    calls = max(10, min(800, int(2.5e8 / (d * n))))
    return {"refsgd shm": partial(our_server, n, d, calls, new, "shm"),
            "refsgd tcp": partial(our_server, n, d, calls, new, "tcp"),
            "gloo": lambda: _fork(n + 1, gloo_server, n, d, calls, new),
            "rpc": lambda: _fork(n + 1, rpc_server, n, d, calls, new),
            "mpi": lambda: mpi(MPI_SERVER, n + 1, d, calls, int(new))}


def measure(tasks: dict[str, Callable[[], float]], rounds: int,
            skipped: dict[str, str]) -> tuple[dict[str, float], float]:
    """Medians over rounds in which all take turns, and how many cores others kept busy meanwhile."""
    found: dict[str, list[float]] = {name: [] for name in tasks if name not in skipped}
    with Foreign() as foreign:
        for _ in range(rounds):
            wait_until_quiet(patience=3.0)
            for name, values in found.items():
                values.append(tasks[name]())
    return {name: float(np.nanmedian(values)) for name, values in found.items()}, foreign.cores


def ratios(kind: str, size: str, medians: dict[str, float]) -> dict[str, float]:
    """Ours / peer, each above 1 where ours is faster."""
    out = {}
    if kind == "allreduce":
        best = min((v for name, v in medians.items() if name.startswith("refsgd")), default=float("nan"))
        out = {f"refsgd / {peer}": medians[peer] / best for peer in ("gloo", "mpi") if peer in medians}
    else:
        out = {f"{our} / {peer}": medians[our] / medians[peer] for our in ("refsgd shm", "refsgd tcp")
               if our in medians
               for peer in ("gloo", "rpc", "mpi") if peer in medians}
    return out


def must(kind: str, size: str, pair: str) -> float | None:
    """What the goals ask of a ratio; None where they ask nothing."""
    ours, peer = pair.split(" / ")
    if (peer, size) in UNASKED or (kind == "server" and ours == "refsgd shm" and size != "1.7 MB"):
        return None
    return MUST.get((kind, ours, peer))


def table(results: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [", ".join(f"{name} {value}" for name, value in results["machine"].items()), ""]
    for kind in dict.fromkeys(row["kind"] for row in results["rows"]):
        rows, unit = [row for row in results["rows"]
                      if row[
                          "kind"] == kind], "us a call" if kind == "allreduce" else "pushes and pulls per second"
        names = list(dict.fromkeys(name for row in rows for name in row["medians"]))
        heads = {name: name.removeprefix("refsgd ").replace("_", " ") if kind == "allreduce" else name
                 for name in names}
        lines += [f"{kind}, {unit}",
                  "  ".join([f"{'n':>2} {'size':>7}", *(f"{head:>10}" for head in heads.values())])]
        for row in rows:
            lines.append(
                "  ".join([f"{row['n']:>2} {row['size']:>7}",
                           *(f"{row['medians'].get(name, float('nan')):{max(10, len(head))}.0f}"
                                                                        for name, head in heads.items())]))
            for pair, ratio in row["ratios"].items():
                asked = must(kind, row["size"], pair)
                if asked is not None:
                    lines.append(
                        f"{'':14}{pair}: {ratio:.2f}, at least {asked:g}: "
                        f"{'met' if ratio >= asked else 'MISSED'}")
                elif kind == NEW:
                    lines.append(f"{'':14}{pair}: {ratio:.2f}")
        lines.append("")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Two panels: microseconds of an all-reduce by size, rates of the server."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    sums = [row for row in results["rows"] if row["kind"] == "allreduce" and row["n"] == 4]
    for name in dict.fromkeys(name for row in sums for name in row["medians"]):
        points = [(4 * SIZES[row["size"]], row["medians"][name]) for row in sums if name in row["medians"]]
        axes[0].loglog(*zip(*points), "o-", label=name, color=COLORS.get(name))
    axes[0].set(xlabel="bytes", ylabel="microseconds a call", title="all-reduce, 4 processes")
    servers = [row for row in results["rows"] if row["kind"] in ("server", NEW)]
    names = list(dict.fromkeys(name for row in servers for name in row["medians"]))
    for k, name in enumerate(names):
        axes[1].bar(np.arange(len(servers)) + 0.15 * k, [row["medians"].get(name, np.nan) for row in servers],
                    0.15, label=name, color=COLORS.get(name))
    words = [f"{row['size']}\n{row['n']} worker{'s' * (row['n'] > 1)}" + "\nnew\ngradients"
             * (row["kind"] == NEW) for row in servers]
    axes[1].set_xticks(np.arange(len(servers)) + 0.3, words, fontsize=7)
    axes[1].set(yscale="log", ylabel="pushes and pulls per second", title="parameter server")
    for axis, place in zip(axes, ({"loc": "best"}, {"loc": "upper left", "bbox_to_anchor": (1, 1)}),
                           strict=True):
        if axis.has_data():
            axis.legend(fontsize=7, **place)
    figure.savefig(path, dpi=120)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    try:
        import torch

        versions["torch"] = torch.__version__
    except ImportError:
        pass
    return {"processor": processor(), "cores": psutil.cpu_count(), "system": platform.system(),
            "versions": versions}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("allreduce", "server", NEW))
    parser.add_argument("--sizes", help="comma-separated, of " + ", ".join([*SIZES, *MODELS]))
    parser.add_argument("--processes", default="1,2,4,8",
                        help="all-reduce: processes (not 1); server: workers (1 and 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "transports.json")
    args = parser.parse_args()
    sizes = args.sizes.split(",") if args.sizes else [*SIZES, *MODELS]
    counts = [int(n) for n in args.processes.split(",")]
    skipped = available()
    for name, why in skipped.items():
        print(f"without {name}: {why}", file=sys.stderr)
    # compiled before any process is forked
    gradient(update(np.zeros(1, np.float32), np.zeros(1, np.float32), LR))
    old = json.loads(args.results.read_text()) if args.results.exists() else {}
    kept = old["rows"] if old.get("machine") == machine() else []  # figures of another one are replaced
    rows = {(row["kind"], row["n"], row["size"]): row for row in kept}
    wanted = [("allreduce", n, s, SIZES[s], allreduce_tasks) for n in counts if n > 1 for s in sizes
              if s in SIZES]
    wanted += [(kind, n, s, MODELS[s], partial(server_tasks, new=kind == NEW))
               for kind in ("server", NEW) for n in counts if n in (1, 4) for s in sizes if s in MODELS]
    for kind, n, size, d, make in wanted:
        if args.only in (None, kind):
            medians, foreign = measure(make(n, d), args.rounds, skipped)
            rows[kind, n, size] = {"kind": kind, "n": n, "size": size, "medians": medians,
                                   "ratios": ratios(kind, size, medians),
                                   "foreign_cores": round(foreign, 2), "rounds": args.rounds}
            print(json_text(rows[kind, n, size], indent=None), flush=True)
    results = {"machine": machine(), "skipped": skipped,
               "rows": [rows[key]
                        for key in sorted(rows, key=lambda k: (k[0], k[1], [*SIZES, *MODELS].index(k[2])))]}
    args.results.write_text(json_text(results) + "\n")
    text = table(results)
    args.results.with_suffix(".txt").write_text(text)
    plot(results, args.results.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
