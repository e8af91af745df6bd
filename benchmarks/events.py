"""What an event of the simulator costs, from 10 to 3,000 workers, and beside SimPy.

``python -m benchmarks.events`` prints three tables and writes events.json, events.txt and events.png below
benchmarks/results: microseconds per event by number of workers, which must not grow with it; long simulations
with shape-only parameters and how long they may take; and worker iterations per second of 16 workers and one
server beside a SimPy model of the same queues, in turn within one process: once with the simulator, which
runs the algorithm's own file and keeps every event, once with that file's programs alone, stepped by hand,
which bounds what any simulator of them can reach, and once with the compiled model of these queues.  The
SimPy model keeps nothing, and once more it keeps the eight events of an iteration as the simulator does; it
sends no messages and computes nothing.  Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compiled_server import parameter_server
from benchmarks.quiet import interleaved, processor
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.shapes import shape_only
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Computed, Event, Marked, Received, Sent
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results"
WORKERS = (10, 30, 100, 300, 1000, 3000)
EVENTS = 60_000  # of one measured run, about
WIDE = 16  # workers beside SimPy
#: GoSGD's peers list all others as they start
ALGORITHMS: tuple[tuple[str, dict[str, Any]], ...] = (("bsp", {}), ("asp", {}), ("ssp", {"staleness": 3}),
                                                      ("gosgd", {}), ("dpsgd", {}))
#: algorithm, options, workers, steps, seconds that it may take
LINES: tuple[tuple[str, dict[str, Any], int, int, float], ...] = (
    ("bsp", {}, 1000, 100, 60.0), ("asp", {}, 1000, 100, 60.0),
    ("allreduce", {"collective": "halving-doubling"}, 1000, 100, 300.0),
    ("allreduce", {"collective": "ring"}, 64, 100, 300.0),
    ("allreduce", {"collective": "ring"}, 1000, 1, 300.0))
MACHINE = Machine(compute="exponential(0.02)", latency=0.0005, bandwidth=1e9)  # type: ignore[arg-type]


def simulated(name: str, options: dict[str, Any], workers: int, steps: int) -> tuple[float, int]:
    """Seconds of a simulation and its events."""
    experiment = prepare(name, shape_only(25_000), workers=workers, steps=steps, machine=MACHINE, **options)
    began = time.process_time()
    trace = perform(experiment, "simulator").trace
    return time.process_time() - began, len(trace.events)


def per_event(name: str, options: dict[str, Any], workers: int, repeats: int = 2) -> tuple[float, float]:
    """Microseconds of an event, and those that each worker's start costs besides (its streams of random
    numbers); best of some runs."""
    found = []
    for _ in range(repeats):
        experiment = prepare(name, shape_only(25_000), workers=workers, steps=max(12, EVENTS // (8 * workers)),
                             machine=MACHINE, **options)
        began = time.process_time()
        simulator = Simulator(experiment.deploy, MACHINE)
        while len(simulator.events) < 16 * workers:
            simulator.advance()
        started, before = time.process_time(), len(simulator.events)
        simulator.run()
        each = (time.process_time() - started) / (len(simulator.events) - before)
        found.append((1e6 * each, 1e6 * max(0.0, started - began - before * each) / workers))
    return min(found)


def simpy_asp(workers: int, steps: int, recorded: bool = False) -> None:
    """ASP through one server as a SimPy model: incoming link, processor, outgoing link, first come first
    served.

    `recorded`: it keeps the events that the simulator keeps, with as many values.
    """
    import simpy

    env = simpy.Environment()
    events: list[Event] = []

    def record(kind: Callable[..., Event], node: str, *fields: Any) -> None:
        events.append(kind(env.now, node, 0, *fields))

    incoming, outgoing = (simpy.Resource(env) for _ in range(2))
    pushes, wire = simpy.Store(env), 100_000 / MACHINE.bandwidth
    answers = [simpy.Store(env) for _ in range(workers)]
    draws = np.random.default_rng(0).exponential(0.02, (workers, steps)).tolist()
    names = [f"worker{i}" for i in range(workers)]

    def worker(i: int) -> Iterator[Any]:
        for t in range(steps):
            yield env.timeout(draws[i][t])
            if recorded:
                record(Computed, names[i], env.now - draws[i][t], "gradient")
                record(Sent, names[i], "server0", "Push", t, 100_000, env.now)
            yield env.timeout(MACHINE.latency)
            with incoming.request() as link:
                yield link
                yield env.timeout(wire)
            pushes.put((i, t))
            since = env.now
            yield answers[i].get()
            if recorded:
                record(Received, names[i], "server0", "Model", t, 100_000, since, env.now)
                record(Marked, names[i], "clock", {"t": t})

    def back(i: int) -> Iterator[Any]:
        with outgoing.request() as link:
            yield link
            yield env.timeout(wire)
        yield env.timeout(MACHINE.latency)
        answers[i].put(0)

    def server() -> Iterator[Any]:
        for version in range(workers * steps):
            since = env.now
            i, t = yield pushes.get()
            if recorded:
                record(Received, "server0", names[i], "Push", t, 100_000, since, env.now)
                record(Computed, "server0", env.now, "update")
                record(Marked, "server0", "update",
                       {"part": 0, "version": version, "reads": ((names[i], version),)})
                record(Sent, "server0", names[i], "Model", t, 100_000, env.now)
            env.process(back(i))

    for i in range(workers):
        env.process(worker(i))
    env.process(server())
    env.run()


def programs_alone(workers: int, steps: int) -> None:
    """The programs of ASP stepped by hand in turn, without clock, link or queue: what no simulator of
    them can do without."""
    deployment = prepare("asp", shape_only(25_000), workers=workers, steps=steps, machine=MACHINE).deploy()
    names = [name for name, node in deployment.items() if node.role == "worker"]
    programs, server = [deployment[name].main for name in names], deployment["server0"].main
    computes = [next(program) for program in programs]
    next(server)
    for _ in range(steps):
        for i, program in enumerate(programs):
            push = program.send(computes[i].fn(*computes[i].args))
            next(program)
            update = server.send((names[i], push.body))
            server.send(update.fn(*update.args))
            answer = next(server)
            next(server, None)
            program.send(("server0", answer.body))
            computes[i] = next(program, computes[i])


def against_simpy(seconds: float, rounds: int = 5) -> dict[str, float]:
    """Worker iterations per second of each, WIDE workers and one server, measured in turn: medians."""
    steps = {"simulator": 200, "programs alone": 200, "compiled": 5000, "simpy": 200, "simpy, recorded": 200}
    tasks: dict[str, Callable[[], Any]] = {
        "simulator": partial(simulated, "asp", {}, WIDE, steps["simulator"]),
        "programs alone": partial(programs_alone, WIDE, steps["programs alone"]),
        "compiled": partial(parameter_server, MACHINE, WIDE, steps["compiled"], 100_000),
        "simpy": partial(simpy_asp, WIDE, steps["simpy"]),
        "simpy, recorded": partial(simpy_asp, WIDE, steps["simpy, recorded"], recorded=True)}
    found, _ = interleaved(tasks, rounds=rounds, seconds=seconds, clock=time.process_time, patience=0)
    return {name: WIDE * steps[name] / each for name, each in found.items()}


def machine() -> dict[str, str]:
    """What was measured on."""
    return {"processor": processor(), "cores": str(os.cpu_count()), "python": platform.python_version(),
            "numpy": np.__version__}


def draw(found: dict[str, Any]) -> None:
    """Microseconds per event by workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, values in found["events"].items():
        ax.plot(WORKERS[: len(values)], values, "o-", label=name)
    ax.set(xscale="log", ylim=(0, None), xlabel="workers", ylabel="µs per event")
    ax.legend()
    fig.savefig(RESULTS / "events.png", dpi=110)
    plt.close(fig)


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [", ".join(f"{name} {value}" for name, value in found["machine"].items()), ""]
    if "events" in found:
        lines += ["microseconds of an event, by workers", f"{'':16}" + "".join(f"{n:>8}" for n in WORKERS)]
        lines += [f"{name:16}" + "".join(f"{v:8.2f}" for v in row)
                  for name, row in found["events"].items()] + [""]
    if "lines" in found:
        lines += ["long simulations, shape-only parameters",
                  f"{'':28}{'workers':>8}{'steps':>8}{'events':>10}{'seconds':>9}{'at most':>9}"]
        lines += [
            f"{row['algorithm']:28}{row['workers']:>8}{row['steps']:>8}{row['events']:>10}{row['seconds']:9.1f}{row['most']:9.0f}"
                  for row in found["lines"]] + [""]
    if "simpy" in found:
        peers = {f"times {name}": rate for name, rate in found["simpy"].items() if name.startswith("simpy")}
        lines += [f"iterations of a worker per second, {WIDE} workers and one server",
                  f"{'':20}{'rate':>12}" + "".join(f"{name:>24}" for name in peers)]
        lines += [f"{name:20}{rate:12,.0f}" + "".join(f"{rate / peer:24.2f}" for peer in peers.values())
                  for name, rate in found["simpy"].items()]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["events", "lines", "simpy"], help="events, lines, simpy")
    parts, path = parser.parse_args().parts, RESULTS / "events.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("machine") != machine():  # figures of another one are replaced
        found = {"machine": machine()}
    if "events" in parts:
        print("µs per event    " + "".join(f"{n:>8}" for n in WORKERS) + "   and of a worker's start")
        found["events"], found["starts"] = {}, {}
        for name, options in ALGORITHMS:
            rows = [per_event(name, options, n) for n in WORKERS]
            found["events"][name], found["starts"][name] = map(list, zip(*rows, strict=True))
            print(f"{name:16}" + "".join(f"{v:8.2f}" for v, _ in rows) + "   "
                  + "".join(f"{v:6.0f}" for _, v in rows), flush=True)
        draw(found)
    if "lines" in parts:
        found["lines"] = []
        for name, options, workers, steps, most in LINES:
            seconds, events = simulated(name, options, workers, steps)
            label = " ".join([name, *map(str, options.values())])
            found["lines"].append({"algorithm": label, "workers": workers, "steps": steps, "seconds": seconds,
                                   "events": events, "most": most})
            print(f"{label}: {workers} x {steps}: {seconds:.1f} s (at most {most:g}), {events} events",
                  flush=True)
    if "simpy" in parts:
        found["simpy"] = against_simpy(0.5)
        print("worker iterations/s: " + ", ".join(
            f"{name} {rate:,.0f} ({rate / found['simpy'].get('simpy', math.nan):.2f})"
            for name, rate in found["simpy"].items()))
    path.write_text(json_text(found) + "\n")
    path.with_suffix(".txt").write_text(table(found))


if __name__ == "__main__":
    main()
