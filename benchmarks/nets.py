"""Training steps of our nets and of PyTorch's, in images per second.

``python -m benchmarks.nets`` trains each net with plain SGD and momentum on fresh random batches, ours and
PyTorch's in turn within one process: PyTorch as most write it (eager), and at its best (channels-last memory,
fused optimiser). It prints a table with the ratio of ours to PyTorch's best, beside the rate of a large
matrix product on the same machine. All of it takes a quarter of an hour: ``--nets``, ``--batches`` and
``--threads`` measure a part, ``--results`` adds it to what is there. ``--lanes 8`` lets both sides use AVX2 at most, ``--lanes 4`` SSE, as a stand-in for a
processor that has no more.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import torch_twin
from benchmarks.parallel import Parallel
from benchmarks.quiet import interleaved, processor
from refsgd.problems.nn import nets
from refsgd.trace.schema import json_text

NETS = ("tiny", "shallow", "resnet18:16", "inception:16", "vgg16", "resnet18")
# What the goals ask for at least: ours / PyTorch's best; with vectors of 4 lanes, 0.9 suffices.
MUST = {"tiny": 1.5, "shallow": 1.5, "resnet18:16": 1.0, "resnet18": 1.0, "vgg16": 1.0, "inception:16": 1.0}
BLOCK = 1 << 15  # parameters updated at a time: four passes over what is in the cache
LR, MOMENTUM = np.float32(1e-3), np.float32(0.9)


_SSE = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+cx16,+popcnt"
#: what numba, PyTorch, oneDNN and MKL read at their start, by lanes of a vector
LESSER = {
    4: {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": _SSE, "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    8: {"NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": f"{_SSE},+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+movbe,+f16c",
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


def batches(name: str) -> tuple[int, ...]:
    """Batch sizes measured: fewer for the nets that take long."""
    return (16, 48, 96, 128) if name in ("tiny", "shallow") else (16, 48, 128) if ":" in name else (16, 64)


class Data:
    """Random images and labels, and the next batch of them."""

    def __init__(self, shape: tuple[int, ...], b: int) -> None:
        random = np.random.default_rng(0)
        count = max(4 * b, min(8192, 2**24 // int(np.prod(shape))))
        self.images = random.standard_normal((count, *shape)).astype(np.float32)
        self.labels = random.integers(0, 10, count)
        self.b, self.position = b, 0

    def next(self) -> slice:
        """Where the next batch lies: repeated data would flatter branch predictors."""
        self.position = self.position + self.b if self.position + 2 * self.b <= len(self.labels) else 0
        return slice(self.position, self.position + self.b)


def ours(name: str, data: Data, threads: int) -> Callable[[], None]:
    """One training step of our net."""
    net = nets.build(name)
    worker: Any = net if threads == 1 else Parallel([net, *(nets.build(name) for _ in range(threads - 1))])
    x, v = net.init(0), np.zeros(net.parameters, np.float32)
    blocks = [slice(k, k + BLOCK) for k in range(0, net.parameters, BLOCK)]
    shares = [blocks[k::threads] for k in range(threads)] if len(blocks) > 64 else [blocks]
    pool = ThreadPoolExecutor(len(shares))

    def update(g: np.ndarray, share: list[slice]) -> None:
        for block in share:
            np.multiply(v[block], MOMENTUM, out=v[block])
            np.add(v[block], g[block], out=v[block])
            np.multiply(v[block], LR, out=g[block])
            np.subtract(x[block], g[block], out=x[block])

    def step() -> None:
        part = data.next()
        _, g = worker.gradient(x, data.images[part], data.labels[part])
        if len(shares) == 1:
            update(g, blocks)
        else:
            list(pool.map(partial(update, g), shares))

    return step


def theirs(name: str, data: Data, best: bool) -> Callable[[], None]:
    """One training step of the same net in PyTorch."""
    import torch

    module = torch_twin.module(nets.build(name))
    images = torch.from_numpy(data.images).permute(0, 3, 1, 2)
    layout = torch.channels_last if best else torch.contiguous_format
    images, module = images.contiguous(memory_format=layout), module.to(memory_format=layout)
    labels = torch.from_numpy(data.labels)
    optimiser = torch.optim.SGD(module.parameters(), lr=float(LR), momentum=float(MOMENTUM), fused=best)

    def step() -> None:
        part = data.next()
        optimiser.zero_grad(set_to_none=True)
        loss: Any = torch.nn.functional.cross_entropy(module(images[part]), labels[part])
        loss.backward()
        optimiser.step()

    return step


def sgemm(threads: int) -> float:
    """GFLOP/s of a product of two 1024 x 1024 matrices in PyTorch, best of some."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best / 1e9


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import numba
    import torch

    from refsgd.problems.nn.vector import LANES

    return {
        "processor": processor(), "cores": os.cpu_count(),
        "memory_GiB": round(psutil.virtual_memory().total / 2**30),
        "lanes": LANES, "python": platform.python_version(), "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": torch.__version__,
    }  # fmt: skip


def measure(name: str, b: int, threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    import torch

    torch.set_num_threads(threads)
    data = Data(nets.build(name).input_shape, b)
    tasks = {"ours": ours(name, data, threads), "eager": theirs(name, data, False),
             "best": theirs(name, data, True)}
    seconds, foreign = interleaved(
        tasks, arguments.rounds, arguments.seconds, arguments.patience,
        time.process_time if arguments.cpu else time.perf_counter,
    )  # fmt: skip
    rates = {key: b / value for key, value in seconds.items()}
    ratio = rates["ours"] / max(rates["eager"], rates["best"])
    row = {"net": name, "threads": threads, "batch": b, **{key: round(rate) for key, rate in rates.items()}}
    must = min(MUST[name], 0.9) if arguments.lanes == 4 else MUST[name]
    return row | {"ratio": round(ratio, 2), "must": must, "foreign": round(foreign, 2)}


#: parts of a training step, by the methods of a plan's steps of which they consist
PARTS = {
    "forward": ("ProductStep.forward", "ConvPoolStep.forward"),
    "gradient of the input": ("ProductStep.input_gradient",),
    "gradient of the weights": ("ProductStep.weight_gradient",),
    "both gradients": ("ConvPoolStep.backward",),
    "batch norm": ("BatchNormStep.forward", "BatchNormStep.backward"),
    "pooling": ("MaxPoolStep.forward", "MaxPoolStep.backward", "AverageStep.forward", "AverageStep.backward"),
}


def parts(name: str, b: int, rounds: int) -> str:
    """The quickest of some gradients, by parts: milliseconds, and GFLOP/s of what computes products."""
    from refsgd.problems.nn import plan

    net, data = nets.build(name), Data(nets.build(name).input_shape, b)
    x, found, seconds = net.init(0), list[tuple[float, dict[str, float]]](), dict[str, float]()

    def timed(method: Any, key: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            start = time.perf_counter()
            result = method(*given)
            seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - start
            return result
        return call

    homes = {key: (getattr(plan, key.split(".")[0]), key.split(".")[1])
             for names in PARTS.values() for key in names}
    plain = {key: getattr(*home) for key, home in homes.items()}
    net.compile()
    try:
        for key, method in plain.items():
            setattr(*homes[key], timed(method, key))
        for _ in range(rounds):
            seconds.clear()
            part, start = data.next(), time.perf_counter()
            net.gradient(x, data.images[part], data.labels[part])
            found.append((time.perf_counter() - start, dict(seconds)))
    finally:
        for key, method in plain.items():
            setattr(*homes[key], method)
    whole, spent = min(found, key=lambda pair: pair[0])
    rows = {part: sum(spent.get(key, 0.0) for key in names) for part, names in PARTS.items()}
    rows["else"] = whole - sum(rows.values())
    lines = [f"{name}, batch {b}: {1e3 * whole:.2f} ms, {net.work(b) / whole / 1e9:.0f} GFLOP/s"]
    return "\n".join([*lines, *(f"  {part:<24}{1e3 * time_:9.2f} ms {time_ / whole:7.1%}"
                                for part, time_ in rows.items() if time_ > 0)])


COLUMNS = ("net", "threads", "batch", "ours", "eager", "best", "ratio", "must", "foreign")


def line(row: dict[str, Any]) -> str:
    """One row of the table as text."""
    return f"{row['net']:<14}" + "".join(f"{row[column]:>8}" for column in COLUMNS[1:])


def merged(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, and those of before that were not measured again, in the order of the table."""

    def place(row: dict[str, Any]) -> tuple[int, int, int]:
        return row["threads"], NETS.index(row["net"]), row["batch"]

    return [row for _, row in sorted({place(row): row for row in [*before, *rows]}.items())]


def write(folder: Path, result: dict[str, Any]) -> None:
    """Add the result to ``nets.json``, ``nets.txt`` and ``nets.png`` in the folder; figures of another
    machine are replaced."""
    path = folder / "nets.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("machine") == result["machine"] and before.get("clock") == result["clock"]:
        result = result | {
            "rows": merged(result["rows"], before["rows"]),
            "sgemm_gflops": before["sgemm_gflops"] | result["sgemm_gflops"],
        }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json_text(result) + "\n")
    lines = [
        f"{result['unit']}, {result['clock']} time; foreign: cores that other programs kept busy meanwhile",
        ", ".join(f"{key} {value}" for key, value in result["machine"].items()),
        f"sgemm GFLOP/s by threads: {result['sgemm_gflops']}",
        line(dict(zip(COLUMNS, COLUMNS, strict=True))),
        *map(line, result["rows"]),
    ]
    (folder / "nets.txt").write_text("\n".join(lines) + "\n")
    plot(result["rows"], str(folder / "nets.png"))


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Ratios as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(12, 4), layout="constrained")
    names = [f"{row['net']}\nb={row['batch']}, {row['threads']}t" for row in rows]
    axes.bar(names, [row["ratio"] for row in rows],
             color=["C0" if row["threads"] == 1 else "C1" for row in rows])
    axes.plot(names, [row["must"] for row in rows], "k_", markersize=14, label="goal (must)")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("images/s, ours / PyTorch's best")
    axes.tick_params(axis="x", labelrotation=90, labelsize=7)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(words: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nets", description=__doc__)
    parser.add_argument("--nets", default=",".join(NETS), help="names, separated by commas")
    parser.add_argument("--batches", help="batch sizes instead of the usual, separated by commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--patience", type=float, default=20.0,
                        help="seconds to wait for a quiet machine; 0: never")
    parser.add_argument("--cpu", action="store_true",
                        help="processor time, for one thread on a machine never quiet")
    parser.add_argument("--results", metavar="FOLDER", type=Path,
                        help="add the figures to the JSON, table and plot there")
    parser.add_argument("--lanes", type=int, choices=LESSER, help="floats of a vector that both sides may use")
    parser.add_argument("--parts", action="store_true", help="instead: where the time of our step goes")
    arguments = parser.parse_args(words)
    if arguments.lanes and any(os.environ.get(key) != value for key, value in LESSER[arguments.lanes].items()):
        os.environ.update(LESSER[arguments.lanes])  # all of them are read when their library starts
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.nets", *(words or sys.argv[1:])])
    if arguments.cpu:
        arguments.threads, arguments.patience = "1", 0.0
    try:
        about = machine()
    except ImportError as error:
        sys.exit(f"the benchmark compares with PyTorch: {error}; pip install 'refsgd[peers]'")
    limits = {str(n): round(sgemm(n)) for n in map(int, arguments.threads.split(","))}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print("sgemm GFLOP/s by threads:", ", ".join(f"{n}: {rate}" for n, rate in limits.items()))
    if arguments.parts:
        for name in arguments.nets.split(","):
            for b in map(int, arguments.batches.split(",")) if arguments.batches else (32,):
                print(parts(name, b, arguments.rounds), flush=True)
        return
    print(line(dict(zip(COLUMNS, COLUMNS, strict=True))))
    rows = []
    for threads in map(int, arguments.threads.split(",")):
        for name in arguments.nets.split(","):
            for b in map(int, arguments.batches.split(",")) if arguments.batches else batches(name):
                rows.append(measure(name, b, threads, arguments))
                print(line(rows[-1]), flush=True)
    if arguments.results:
        clock = "processor" if arguments.cpu else "wall"
        write(arguments.results,
              {"machine": about, "clock": clock, "sgemm_gflops": limits, "unit": "images/s", "rows": rows})


if __name__ == "__main__":
    main()
