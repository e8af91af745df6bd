"""PyTorch as it is here: DistributedDataParallel predicted from a profile of another setting.

``python -m benchmarks.ddp`` (a quiet machine, PyTorch) trains two nets in two processes over gloo, one thread
each.  From the profiles of one setting, all gradients in one bucket, it predicts the seconds of a step with
buckets of 1, 4 and 25 MB and with `no_sync` every second step, prints them beside what these take, and writes
docs/ddp.md.  Settings take turns, and so does the profile, so that what else runs meets all of them.
Ends with 1 where an error is above 15 %.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import refsgd
from benchmarks.quiet import processor
from refsgd.experiment.profiles.job import Job, read
from refsgd.problems.layers import Part
from refsgd.problems.shapes import shape_only

PAGE = Path(__file__).parents[1] / "docs" / "ddp.md"
WITHIN, TURNS, STEPS = 0.15, 20, 4
MB = 1_000_000


class Setting(NamedTuple):
    """How gradients are exchanged."""

    name: str
    cap: float  #: MB of a bucket
    every: int = 1  #: steps for each exchange


ONE = Setting("one bucket", 10_000)
OTHERS = (Setting("buckets of 25 MB", 25), Setting("buckets of 4 MB", 4), Setting("buckets of 1 MB", 1),
          Setting("no_sync every second step", 10_000, 2))
NETS = ("perceptron", "convolutional")


def net_of(name: str) -> tuple[Any, tuple[int, ...]]:
    """A net, and the shape of its batch."""
    from torch import nn

    if name == "perceptron":
        sizes = (784, 1024, 1024, 1024, 1024, 10)
        layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1]), (256, 784)
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 1024), nn.ReLU(),
                         nn.Linear(1024, 10)), (64, 3, 32, 32)


def rank(number: int, name: str, port: int, folder: str, answers: Any) -> None:
    """One process: turns of a profile of one bucket and of all settings."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerAction, ProfilerActivity, profile

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    shape = net_of(name)[1]
    x, y = torch.randn(shape), torch.randint(0, 10, (shape[0],))
    models = {s: DistributedDataParallel(net_of(name)[0], bucket_cap_mb=s.cap) for s in (ONE, *OTHERS)}
    rules = {s: torch.optim.SGD(m.parameters(), lr=0.01) for s, m in models.items()}

    def step(s: Setting, k: int) -> None:
        sends = k % s.every == s.every - 1
        with contextlib.nullcontext() if sends else models[s].no_sync():
            loss = torch.nn.functional.cross_entropy(models[s](x), y)
            loss.backward()
        if sends:
            rules[s].step()
            rules[s].zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)  # as who watches the loss does: a second size, which tells the latency

    for s in models:
        for k in range(4):
            step(s, k)
    count, events = STEPS * (1 + len(models)), list[Any]()  # of a turn, whose first setting is profiled

    def action(k: int) -> ProfilerAction:
        at = k % count
        return (ProfilerAction.RECORD if at < STEPS - 1 else ProfilerAction.RECORD_AND_SAVE if at == STEPS - 1
                else ProfilerAction.NONE)

    def save(p: profile) -> None:
        part = f"{folder}/{number}.part"
        p.export_chrome_trace(part)
        events.extend(json.loads(Path(part).read_text(encoding="utf-8"))["traceEvents"])

    took: dict[Setting, list[float]] = {s: [] for s in models}
    with profile(activities=[ProfilerActivity.CPU], schedule=action, record_shapes=True, on_trace_ready=save) as p:
        for shift in range(TURNS):
            rest = [*models][shift % len(models):] + [*models][:shift % len(models)]
            for i, s in enumerate((ONE, *rest)):
                dist.barrier()
                began = time.perf_counter()
                for k in range(STEPS):
                    step(s, k)
                    if i:
                        took[s] += [(time.perf_counter() - began) / STEPS] * (k == STEPS - 1)
                    p.step()
    Path(f"{folder}/{name}-rank-{number}.json").write_text(json.dumps(events, allow_nan=False), encoding="utf-8")
    answers.put({s.name: statistics.mean(times) for s, times in took.items()})
    dist.destroy_process_group()


def measured(name: str, folder: str) -> tuple[Job, dict[str, float]]:
    """The job of the profiles, and the seconds of a step in each setting."""
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = mp.get_context("spawn").SimpleQueue()
    job = mp.spawn(rank, args=(name, port, folder, answers), nprocs=2, join=False)
    while not job.join():  # which raises what a rank has raised
        pass
    found = [answers.get() for _ in range(2)]
    return read([f"{folder}/{name}-rank-{r}.json" for r in (0, 1)]), {
        s: statistics.mean(each[s] for each in found) for s in found[0]}


def layers(name: str) -> list[Part]:
    """The net's layers with parameters, and their shares of the work."""
    import torch

    net, shape = net_of(name)
    work, sizes, x = [], [], torch.zeros((1, *shape[1:]))
    for layer in net:
        x = layer(x)
        if size := sum(p.numel() for p in layer.parameters()):
            sizes.append(size)
            work.append(size * (x[0, 0].numel() if x.dim() == 4 else 1))
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [Part(f"layer{i}", slice(edges[i], edges[i + 1]), w / sum(work)) for i, w in enumerate(work)]


def predicted(job: Job, name: str, s: Setting) -> float:
    """Seconds of a step in a setting, from the profiles of another."""
    parts = layers(name)
    problem = shape_only(parts[-1].slice.stop, parts=parts)
    gradients = [seconds for (op, size, _), (_, seconds) in job.collectives.items() if size > 1000]
    loss = job.exchange - sum(seconds or 0.0 for seconds in gradients)  # what else all ranks wait for
    machine = job.machine()
    if s.every > 1:
        return job.synchronous - (1 - 1 / s.every) * sum(seconds or 0.0 for seconds in gradients)
    found = refsgd.predict("allreduce", problem, machine=machine, workers=2, steps=len(job.steps), collective="ring",
                           overlap="backward", bucket=int(s.cap * MB))
    return float(found["seconds"].value) / len(job.steps) + max(loss, 0.0)


def main() -> int:
    """Measure, predict, print and write the page."""
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in NETS:
            job, took = measured(name, folder)
            print(name, job.summary(), sep="\n", file=sys.stderr)
            for s in (ONE, *OTHERS):
                here, said = took[s.name], predicted(job, name, s) if s is not ONE else job.synchronous
                worst = max(worst, abs(said / here - 1) * (s is not ONE))
                rows.append(f"| {name} | {s.name}{' (the profile)' * (s is ONE)} | {1e3 * here:.1f} | {1e3 * said:.1f} "
                            f"| {said / here - 1:+.1%} |")
    text = "\n".join([
        "# DistributedDataParallel, predicted from its profile", "",
        "Two processes of one thread train two nets with PyTorch over gloo. From the profiles of one setting the others are",
        "predicted ({doc}`howto/profile`). `python -m benchmarks.ddp` makes this page.", "",
        "| net | setting | measured, ms | predicted, ms | error |", "| --- | --- | --- | --- | --- |", *rows, "",
        f"Processor: {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end: "
        "what else ran takes its share of each time, and settings take turns so that it meets all of them.", ""])
    PAGE.write_text(text, encoding="utf-8")
    print(text)
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
