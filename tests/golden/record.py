"""The behaviour of the whole catalogue as data: hashes, counts and predictions that a change of structure
must keep.

    python -m tests.golden.record          # compares with golden.json and lists every difference
    python -m tests.golden.record --write  # records again; the commit says which entries changed, and why

Entries of the simulator, the explorer and `predict` are the same on every processor: gradients are of small
integers or elementwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import final_parameters, parameters_sha256
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore

FILE = Path(__file__).with_name("golden.json")
SKEWED = refsgd.Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e5, speeds=(1, 1, 0.5, 2),
                        update="fixed(0.001)")
EVEN = refsgd.Machine(compute="lognormal(0.02,0.5)", latency=0.002, bandwidth=1e7)
QUICK = refsgd.Machine(compute="exponential(0.003)", latency=0.0005, bandwidth=2e7)

#: options of each algorithm that are recorded beside its defaults
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bsp": [{"aggregation": "sum"}],
    "ssp": [{"staleness": 0}, {"staleness": 1, "refresh": "lazy"}, {"staleness": 1, "refresh": "eager"}],
    "easgd": [{"period": 2, "alpha": 0.3}, {"mode": "sync"}],
    "downpour": [{"push_every": 2, "fetch_every": 3}, {"adagrad": True}, {"stages": 2}],
    "backup-workers": [{"backups": 2}],
    "softsync": [{"splitting": 2}],
    "staleness-aware": [{"splitting": 2}, {"rule": "odena"}, {"rule": "mishchenko"}],
    "rennala": [{"gradients": 3}, {"gradients": 1, "interval": 2}],
    "k-async": [{"gradients": 1, "interval": 1}],
    "ringmaster": [{"threshold": 2}],
    "async-rl": [{"ahead": 0}, {"order": "completion", "filter": True}],
    "dc-asgd": [{"compensation": 0.1}, {"adaptive": True}],
    "consgd": [{"staleness": 1}],
    "dynsgd": [{"staleness": 1}],
    "dssp": [{"lower": 1, "upper": 3}],
    "approximate": [{"threshold": 0.1}, {"local": "asp", "barrier": 0, "ahead": 1}, {"local": "ssp", "centers": 1}],
    "allreduce": [{"collective": name}
                  for name in ("rings", "recursive-doubling", "halving-doubling", "tree", "double-tree",
                               "root", "pscpu",
                                                    "hierarchical", "torus")] + [{"collective": "rings", "rings": 3}],
    "dgc": [{"ratio": 0.3}, {"ratio": 0.3, "masking": False}],
    "gosgd": [{"p": 0.5}],
    "ako": [{"partitions": 1}],
    "adpsgd": [{"graph": "ring"}],
    "hogwild": [{"atomic": False}, {"parts": 2}],
    "local-sgd": [{"period": 3}],
    "post-local": [{"period": 3, "switch": 4}],
    "adacomm": [{"period": 3}, {"period": 3, "interval": float("inf")}],
    "diloco": [{"period": 3, "outer_lr": 0.5, "outer_momentum": 0.5}, {"period": 3, "form": "heavy-ball"}],
    "streaming-diloco": [{"period": 3, "fragments": 2}, {"period": 4, "fragments": 3, "delay": 0, "mix": 0.0},
                         {"period": 3, "fragments": 1, "delay": 3, "outer_lr": 1.0, "form": "heavy-ball"}],
    "noloco": [{"period": 3}, {"period": 2, "pairs": "circle", "outer_momentum": 0.0}],
    "decoupled-diloco": [{"period": 2, "fragments": 2, "quorum": 2}, {"period": 1, "merge": "rda", "mix": 0.0}],
    "eager-diloco": [{"period": 3, "outer_lr": 0.5, "outer_momentum": 0.5}, {"period": 3, "mode": "delayed"},
                     {"period": 3, "mode": "whole", "outer_lr": 1.0, "outer_momentum": 0.0}],
    "fedavg": [{"period": 3, "sampled": 2}, {"period": 3, "mu": 0.5}, {"period": 2, "rule": "adam"},
               {"period": 2, "rule": "yogi", "sampled": 2}, {"period": 3, "partial": True}],
    "scaffold": [{"period": 3, "sampled": 2}],
    "fedbuff": [{"period": 2, "buffer": 1, "concurrency": 2}, {"period": 1, "weight": "hinge"}],
    "fedasync": [{"period": 2, "mixing": 1.0, "weight": "constant"}],
    "async-diloco": [{"period": 2, "buffer": 3, "spread": 0.5}, {"period": 2, "rule": "vanilla"},
                     {"period": 3, "dylu": True}],
    "dpsgd": [{"order": "atc"}, {"graph": "complete"}],
    "sgp": [{"graph": "ring"}],
    "gpipe": [{"micro": 1}, {"cut": "mincut"}, {"stages": 2}, {"micro": 8, "passes": "1f1b"}],
    "pipedream": [{"vertical": True}, {"stages": 2}],
    "zero": [{"stage": 1}, {"stage": 2}],
    "sandblaster": [{"portions": 3}, {"history": 0, "portions": 2}],
    "strads": [{"policy": "prioritised"}, {"blocks": 1}],
}


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each algorithm with its defaults and its variants: a name, the algorithm, its options."""
    for algorithm in CATALOGUE:
        for options in ({}, *VARIANTS.get(algorithm, ())):
            yield " ".join([algorithm, *(f"{k}={v}" for k, v in options.items())]), algorithm, options


def clip(value: Any) -> Any:
    """Floating-point numbers with ten digits, which is what processors and versions of numpy agree on."""
    if isinstance(value, dict):
        return {k: clip(v) for k, v in value.items()}
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else str(value)
    return value


def _seen(algorithm: str, **arguments: Any) -> dict[str, Any]:
    """Hashes and metrics of a run, with servers if it may have them, or why it is refused."""
    if not facts_of(CATALOGUE[algorithm]).served:
        arguments.pop("servers", None)
    try:
        result = refsgd.run(algorithm, data="quadratic", workers=4, steps=12, lr=0.05, **arguments)
    except ValueError as error:
        return {"refused": str(error)}
    m = result.measured
    return clip({"parameters": result.parameters_sha256[:16], "schedule": result.schedule_sha256[:16],
                 "seconds": m["seconds"],
                 "updates": m["updates"], "messages": m["messages"], "bytes": m["bytes_sent"],
                 "staleness": m["staleness_mean"], "idle": m["idle_ratio"]})


def simulated(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Virtual time: machines, servers, update rules, and a worker's death under each policy."""
    death = {"machine": EVEN, "faults": ["kill worker 1 at step 4"], "seed": 4}
    return {"skewed": _seen(algorithm, machine=SKEWED, seed=1, **options),
            "two servers": _seen(algorithm, machine=EVEN, seed=2, servers=2, schedule="step(5,0.5)",
                                 **options),
            "colocated": _seen(algorithm, machine=EVEN.with_(colocated=True), seed=3, servers=4,
                               momentum=0.5, weight_decay=0.01, **options),
            **{f"death, {policy}": _seen(algorithm, on_death=policy, **death, **options)
               for policy in ("continue", "shrink", "restart")}}


def predicted(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Value and kind of every formula, on both machines."""
    out = {}
    for name, machine in (("skewed", SKEWED), ("even", EVEN)):
        found = prepare(algorithm, machine=machine, workers=4, steps=40, **options).formulas()
        out[name] = {key: clip({"value": float(p), "kind": p.kind}) for key, p in found.items()}
    return out


def explored(algorithm: str, options: dict[str, Any], max_runs: int = 150) -> dict[str, Any]:
    """The first schedules of 2 workers and 2 steps, all where there are no more: their number, states and
    results."""
    experiment = prepare(algorithm, integer_gradients(d=3, workers=1 if algorithm == "sequential" else 2),
                         workers=2, steps=2, lr=0.125, **options)
    report = explore(experiment.deploy, observe=lambda run: parameters_sha256(final_parameters(run)),
                     max_runs=max_runs)
    finals = hashlib.sha256("".join(sorted(report.finals)).encode()).hexdigest()[:16]
    return {"runs": report.runs, "states": report.states, "complete": report.complete,
            "results": len(report.finals), "finals": finals}


def real(algorithm: str, options: dict[str, Any], runtime: str) -> dict[str, Any]:
    """What a run as OS processes has in common with every other: the number of updates and the parameters, where
    no schedule changes them."""
    common = {"data": "integers", "workers": 4, "steps": 6, "lr": 0.25, **options}
    machines = (QUICK, 0), (QUICK, 1), (QUICK.with_(speeds=(1,) if algorithm == "sequential" else (1, 0.2, 5, 1)), 2)
    result = refsgd.run(algorithm, machine=QUICK, runtime=runtime, **common)
    runs = [refsgd.run(algorithm, machine=machine, seed=seed, **common) for machine, seed in machines]
    function = CATALOGUE[algorithm]
    known = facts_of(function, options).updates(4, 6, {**(function.__kwdefaults__ or {}), **options}) is not None
    counts, finals = {run.measured["updates"] for run in runs}, {run.parameters_sha256 for run in runs}
    return ({"updates": result.measured["updates"]} if known and len(counts) == 1 else {}) | (
        {"parameters": result.parameters_sha256[:16]} if len(finals) == 1 else {})


def collect() -> dict[str, Any]:
    """Everything that is recorded, by case."""
    return {name: {"simulated": simulated(algorithm, options), "predicted": predicted(algorithm, options),
                   "explored": explored(algorithm, options)}
            for name, algorithm, options in cases()}


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Each place where two recordings differ, numbers by more than one in a thousand million, as ``path:
    old -> new``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [text for key in dict.fromkeys([*old, *new])
                for text in differences(old.get(key), new.get(key), f"{path} / {key}" if path else key)]
    close = isinstance(old, float) and isinstance(new,
                                                  float | int) and math.isclose(
                                                      old, new, rel_tol=1e-9, abs_tol=1e-12)
    return [] if old == new or close else [f"{path}: {old} -> {new}"]


def main() -> int:
    """Compare or record; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record anew")
    write, new = parser.parse_args().write, collect()
    found = differences(json.loads(FILE.read_text()), new) if FILE.exists() else ["no recording"]
    print("\n".join(found) or f"{len(new)} cases, no difference")
    if write:
        FILE.write_text(json.dumps(new, indent=1) + "\n")
    return 1 if found and not write else 0


if __name__ == "__main__":
    raise SystemExit(main())
