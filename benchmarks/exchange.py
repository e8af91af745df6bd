"""Training steps of two processes that exchange gradients, beside PyTorch's DistributedDataParallel over gloo.

``python -m benchmarks.exchange`` trains each net with `allreduce` as two OS processes of this machine, unpaced,
over shared memory: without any exchange (*alone*), the whole gradient after the backward pass, in buckets
during it (``--overlap backward --bucket``), and compressed.  PyTorch does the same work over gloo: alone, the
whole gradient after the backward pass, DDP with buckets of the same size, and DDP with its own hook that sends
float16.  All take turns in fresh
processes of one thread each; every figure is a median over the rounds of the median iteration, and every ratio
a median of the rounds' ratios.  ``--nets`` and
``--only`` measure a part, ``--results`` adds it to what is there.

PyTorch runs at its best setting (channels-last memory, fused SGD, gradients as views of buckets) and takes
consecutive images; ours gathers those of a shuffled epoch.  Beside the wall time stands the processor time of
both processes: on a busy machine it says more.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from benchmarks import torch_twin
from benchmarks.nets import LR, MOMENTUM, Data
from benchmarks.quiet import Foreign, wait_until_quiet
from benchmarks.transports import _fork, _gloo, available, machine
from refsgd.cluster.machine import Machine
from refsgd.effects import Mark, Node, Program
from refsgd.experiment.prepare import prepare
from refsgd.problems.nn import nets
from refsgd.runtimes.processes import local
from refsgd.trace.schema import json_text

WORKERS, BATCH, BUCKET = 2, 32, 1 << 20
NETS = {"shallow": ("mnist", 120), "resnet18:16": ("cifar10", 20)}  #: data, and iterations of a measurement
WARM = 5  #: iterations that do not count
OURS: dict[str, dict[str, Any]] = {
    "refsgd alone": {}, "refsgd": {}, "refsgd, buckets": {"overlap": "backward", "bucket": BUCKET},
    "refsgd, fp16": {"compress": "fp16"},
    "refsgd, fp16, buckets": {"overlap": "backward", "bucket": BUCKET, "compress": "fp16"},
    "refsgd, topk:0.01": {"compress": "topk:0.01"},
    "refsgd, topk:0.01, buckets": {"overlap": "backward", "bucket": BUCKET, "compress": "topk:0.01"}}
THEIRS = ("PyTorch alone", "gloo", "DDP, buckets", "DDP, fp16")
#: ours at most as long as theirs
PAIRS = (("refsgd alone", "PyTorch alone"), ("refsgd", "gloo"), ("refsgd, buckets", "DDP, buckets"), ("refsgd, fp16", "DDP, fp16"))


class Took(NamedTuple):
    """Seconds of an iteration: of the clock, and of the processors of all processes."""

    wall: float
    cpu: float


def median(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the iterations between clock readings (wall, processor), without the first ones."""
    steps = np.diff(np.array(ticks[WARM:]), axis=0)
    return float(np.median(steps[:, 0])), float(np.mean(steps[:, 1]))


def clocked(program: Program[Any], ticks: list[tuple[float, float]]) -> Program[list[tuple[float, float]]]:
    """A program whose clock is read at the end of every iteration; returns the readings."""
    value, send = None, program.send
    while True:
        try:
            effect = send(value)
        except StopIteration:
            return ticks
        if isinstance(effect, Mark) and effect.name == "clock":
            ticks.append((time.perf_counter(), time.process_time()))
        value = yield effect


def ours(net: str, algorithm: str, options: dict[str, Any]) -> Took:
    """Our programs as processes, with options of their exchange."""
    data, steps = NETS[net]
    experiment = prepare(algorithm, data=data, net=net, workers=WORKERS, batch=BATCH, steps=steps + WARM,
                         lr=float(LR), momentum=float(MOMENTUM), machine=Machine(), **options)
    deployment = {name: Node(clocked(node.main, []), node.handlers, role=node.role, rank=node.rank)
                  for name, node in experiment.deploy().items()}
    found = [median(ticks) for ticks in local.run(deployment).values.values()]
    return Took(found[0][0], sum(cpu for _, cpu in found))


def theirs(rank: int, rendezvous: str, queue: Any, net: str, how: str) -> None:
    """One process of PyTorch."""
    torch, dist = _gloo(rank, rendezvous, WORKERS)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    built = nets.build(net)
    data, steps = Data(built.leaves[0].shape, BATCH), NETS[net][1]
    images = torch.from_numpy(data.images).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    module, labels = torch_twin.module(built).to(memory_format=torch.channels_last), torch.from_numpy(data.labels)
    own = not how.startswith("DDP")
    net_of_all = module if own else DistributedDataParallel(
        module, bucket_cap_mb=BUCKET / 2**20, gradient_as_bucket_view=True)
    if how == "DDP, fp16":
        net_of_all.register_comm_hook(None, fp16_compress_hook)
    optimiser = torch.optim.SGD(module.parameters(), lr=float(LR), momentum=float(MOMENTUM), fused=True)
    flat, ticks = torch.empty(built.parameters), []
    for _ in range(steps + WARM):
        part = data.next()
        optimiser.zero_grad(set_to_none=own)
        torch.nn.functional.cross_entropy(net_of_all(images[part]), labels[part]).backward()
        if how == "gloo":
            summed(dist, flat, [p.grad for p in module.parameters()])
        optimiser.step()
        ticks.append((time.perf_counter(), time.process_time()))
    wall, cpu = median(ticks)
    total = torch.tensor([cpu])
    dist.all_reduce(total)
    if rank == 0:
        queue.put(Took(wall, float(total)))
    dist.barrier()


def summed(dist: Any, flat: Any, gradients: list[Any]) -> None:
    """The mean over processes of all gradients, through one vector."""
    begin = 0
    for g in gradients:
        flat[begin: begin + g.numel()] = g.flatten()
        begin += g.numel()
    dist.all_reduce(flat)
    flat.div_(WORKERS)
    begin = 0
    for g in gradients:
        g.copy_(flat[begin: begin + g.numel()].view_as(g))
        begin += g.numel()


def tasks(net: str, peers: bool) -> dict[str, Callable[[], Took]]:
    """One measurement of each."""
    mine: dict[str, Callable[[], Took]] = {
        name: partial(ours, net, "independent" if name.endswith("alone") else "allreduce", options)
        for name, options in OURS.items()}
    their: dict[str, Callable[[], Any]] = {how: partial(_fork, WORKERS, theirs, net, how) for how in THEIRS if peers}
    return mine | their


def measure(net: str, only: str, rounds: int, patience: float, peers: bool) -> dict[str, Any]:
    """Medians over rounds in which all take turns, and how many cores others kept busy meanwhile."""
    wanted = {name: task for name, task in tasks(net, peers).items() if only in name or name in only.split(";")}
    found: dict[str, list[Took]] = {name: [] for name in wanted}
    noise = []
    nets.build(net).compile()
    for _ in range(rounds):
        wait_until_quiet(patience=patience)
        with Foreign() as foreign:
            for name, task in wanted.items():
                found[name].append(task())
        noise.append(foreign.cores)
    medians = {name: {key: statistics.median(getattr(t, key) for t in taken) for key in Took._fields}
               for name, taken in found.items()}
    ratios = {f"{other} / {one}": {key: statistics.median(getattr(b, key) / getattr(a, key) for a, b in
                                                          zip(found[one], found[other], strict=True))
                                   for key in Took._fields}
              for one, other in PAIRS if one in found and other in found}
    return {"net": net, "batch": BATCH, "workers": WORKERS, "bucket": BUCKET, "rounds": rounds,
            "foreign_cores": round(statistics.median(noise), 2), "medians": medians, "ratios": ratios}


def table(results: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [", ".join(f"{name} {value}" for name, value in results["machine"].items())]
    for row in results["rows"]:
        found = row["medians"]
        lines += ["", f"{row['net']}, {row['workers']} workers, batch {row['batch']} each, buckets of "
                  f"{row['bucket'] / 2**20:g} MiB; others kept {row['foreign_cores']} cores busy",
                  f"{'':28}{'ms an iteration':>16}{'processor ms':>14}"]
        lines += [f"{name:28}{1e3 * took['wall']:16.2f}{1e3 * took['cpu']:14.2f}" for name, took in found.items()]
        lines += [f"    {pair}: {ratio['wall']:.2f} ({ratio['cpu']:.2f} of processor), at least 1: "
                  f"{'met' if ratio['wall'] >= 1 else 'MISSED'}" for pair, ratio in row["ratios"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--only", default="", help="implementations whose name contains this, or A;B")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet machine")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "exchange.json")
    args = parser.parse_args()
    skipped = available()
    if "gloo" in skipped:
        print(f"without gloo: {skipped['gloo']}", file=sys.stderr)
    old = json.loads(args.results.read_text()) if args.results.exists() else {}
    kept = old["rows"] if old.get("machine") == machine() else []  # figures of another one are replaced
    rows = {row["net"]: row for row in kept}
    for net in args.nets.split(","):
        found = measure(net, args.only, args.rounds, args.patience, "gloo" not in skipped)
        before = rows.get(net, {"medians": {}, "ratios": {}})
        rows[net] = found | {part: before[part] | found[part] for part in ("medians", "ratios")}
    results = {"machine": machine(), "rows": [rows[net] for net in NETS if net in rows]}
    args.results.write_text(json_text(results) + "\n")
    text = table(results)
    args.results.with_suffix(".txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
