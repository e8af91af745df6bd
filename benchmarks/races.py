"""Races on four machines: those that the library ships, and how well their passes hold on other machines.

``python -m benchmarks.races ship`` trains the races of `refsgd.Race.load`, digits and digits-by-label, of
nearly the whole catalogue, or only those that are named.  ``transfer`` races the algorithms that depend on the machine on three others, tuned and
simulated there, and compares that with the shipped race's passes times predicted seconds; its figures go to
benchmarks/results/races.json.  All of it is deterministic, about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import refsgd
from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import DEFAULT_MACHINE
from refsgd.experiment.race import entries
from refsgd.experiment.race.entries import Race
from refsgd.experiment.race.standing import separated
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results" / "races.json"
WORKERS = 8
OPTIONS: dict[str, dict[str, Any]] = {"ssp": {"staleness": 3}, "dssp": {}, "gosgd": {}}
#: with a net in stages there is no share of the data for each worker; the others refuse races
LEFT_OUT = ("gpipe", "pipedream", "sandblaster", "strads")
SHIPPED = {"digits": {}, "digits-by-label": {"shards": "by-label"}}
MACHINES: dict[str, Machine] = {
    "equal": DEFAULT_MACHINE,
    "one slow": DEFAULT_MACHINE.with_(speeds=(1,) * (WORKERS - 1) + (0.25,)),
    "slow link": DEFAULT_MACHINE.with_(bandwidth=5e6),
    "heavy tail": DEFAULT_MACHINE.with_(compute="straggler(0.015,0.05,8)")}


def held(names: Sequence[str], machine: Machine, jobs: int, **more: Any) -> Race:
    """A race on a machine."""
    return refsgd.race(names, machine=machine, workers=WORKERS, options=OPTIONS, jobs=jobs, say=print,
                       passes=15, **more)


def ship(jobs: int, only: Sequence[str]) -> None:
    """Train and write the races of the library, or only some."""
    names = [name for name in CATALOGUE if name not in LEFT_OUT]
    names += ["allreduce compress=fp16", "allreduce compress=powersgd:4"]  # which advice considers
    for name, more in ((name, SHIPPED[name]) for name in only or SHIPPED):
        (entries.SHIPPED / f"{name}.json").write_text(held(names, MACHINES["equal"], jobs, **more).to_json() + "\n")


def transferred(jobs: int) -> dict[str, Any]:
    """Times on other machines, by transfer and by a race there, of algorithms that depend on the machine."""
    here = Race.load("digits")
    names = [row.label.split()[0] for row in here.rows
             if not facts_of(CATALOGUE[row.label.split()[0]]).timeless]
    out = {}
    for name, machine in list(MACHINES.items())[1:]:
        there = held([*dict.fromkeys([*names, *COMPARED])], machine, jobs)
        moved = {row.label: row for row in here.on(machine).rows}
        out[name] = {row.label: {"how": moved[row.label].how, "predicted": moved[row.label].seconds,
                                 "seconds": [heat.seconds for heat in row.heats]}
                     for row in there.rows if row.label in moved}
    return out


def figures(found: dict[str, Any]) -> dict[str, float]:
    """The shares of pairs ordered right, errors, rank correlation and regret of a transfer; rows that are
    exact count only for rank correlation and regret."""
    right: dict[str, list[bool]] = {"separated": [], "beyond 20 %": [], "beyond 50 %": []}
    errors, ranks, regrets = [], [], []
    for rows in found.values():
        seconds = {name: list(map(float, row["seconds"])) for name, row in rows.items()}  # "inf": never
        simulated = {name: float(np.median(each)) for name, each in seconds.items()}
        predicted = {name: float(row["predicted"]) for name, row in rows.items()}
        known = [name for name in rows if math.isfinite(simulated[name])]
        own = [name for name in known if rows[name]["how"] == "predicted"]
        errors += [abs(math.log(predicted[name] / simulated[name])) for name in own]
        for a, b in combinations(own, 2):
            agree = (predicted[a] < predicted[b]) == (simulated[a] < simulated[b])
            ratio = max(predicted[a] / predicted[b], predicted[b] / predicted[a])
            if separated(seconds[a], seconds[b]):
                right["separated"].append(agree)
            for share, name in ((1.2, "beyond 20 %"), (1.5, "beyond 50 %")):
                if ratio > share:
                    right[name].append(agree)
        ranks.append(float(stats.spearmanr([predicted[n] for n in known], [simulated[n] for n in known])[0]))
        winner = min(known, key=lambda name: predicted[name])
        regrets.append(simulated[winner] / min(simulated[n] for n in known) - 1)
    return {**{name: float(np.mean(each)) for name, each in right.items()},
            **{f"pairs {name}": len(each) for name, each in right.items()},
            "median error": math.exp(float(np.median(errors))) - 1, "largest error": math.exp(max(errors)) - 1,
            "least rank correlation": min(ranks), "largest regret": max(regrets)}


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("ship", "transfer", "figures"))
    parser.add_argument("only", nargs="*", choices=[*SHIPPED, []], help="of ship: which")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.what == "ship":
        ship(args.jobs, args.only)
        return
    if args.what == "transfer":
        RESULTS.write_text(json_text(transferred(args.jobs)) + "\n")
    for name, value in figures(json.loads(RESULTS.read_text())).items():
        print(f"{name}: {value:.3g}")


if __name__ == "__main__":
    main()
