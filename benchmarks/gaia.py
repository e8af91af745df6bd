"""Gaia on six sites against BSP across them and on one LAN: ``python -m benchmarks.gaia``.

Hsieh et al. report that Gaia is 1.8 to 53.5 times as fast as systems that synchronise across the WAN, and takes
0.94 to 1.40 times as long as on a LAN.  Here: seconds until 92 % of the test digits are right, for five seeds.
Learning rates are the best of three for each, found with the first seed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import refsgd
from benchmarks.studies.study import interval
from refsgd import Machine
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results" / "gaia.json"
#: the preset wan-6x4 at the bandwidth that suits a net of 40 kB, with 20 ms between sites
LAN = Machine(compute="lognormal(0.02,0.2)", latency="200us", bandwidth="10MB/s", hosts="cyclic:24")
WAN = LAN.with_(groups="6x4", uplink="20ms,0.667MB/s")
ENOUGH, SEEDS = 0.92, range(5)
BSP, GAIA = {"lr": 0.4, "servers": 24}, {"lr": 0.04, "servers": 4, "ahead": 2}  # servers: of each site
RUNS: dict[str, tuple[str, Machine, dict[str, Any]]] = {
    "BSP on one LAN": ("bsp", LAN, BSP), "BSP across six sites": ("bsp", WAN, BSP),
    **{f"Gaia, threshold {v:.0%}": ("approximate", WAN, {**GAIA, "threshold": v}) for v in (0.2, 0.5, 1.0)}}


def trained(name: str, seed: int) -> dict[str, float]:
    """Seconds until enough digits are right and of an iteration, and the accuracy after three passes."""
    algorithm, machine, options = RUNS[name]
    run = refsgd.run(algorithm, workers=24, machine=machine, seed=seed, batch=1, epochs=3, evaluations=60,
                     **options)
    seconds = next((row[0] for row in run.history if row[4] >= ENOUGH), math.inf)
    return {"seconds": seconds, "iteration": run.measured["seconds_per_iteration"],
            "accuracy": run.accuracy["test"]}


def ratios(found: dict[str, list[dict[str, float]]], name: str, other: str) -> list[float]:
    """Seconds of a run over those of another, for each seed."""
    return [a["seconds"] / b["seconds"] for a, b in zip(found[name], found[other], strict=True)]


def shown(values: Sequence[float]) -> str:
    """A mean with its 95 % interval over seeds."""
    mean, half = interval(values)
    return f"{mean:.2g} ± {half:.2g}"


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """The rows of docs/algorithms/approximate.md."""
    lan, wan = list(RUNS)[:2]
    out = [f"| | seconds to {ENOUGH:.0%} | of BSP's on the LAN | BSP across sites takes | an iteration | final accuracy |",
           "|---|---|---|---|---|---|"]
    for name, runs in found.items():
        cells = [shown([run["seconds"] for run in runs]),
                 shown(ratios(found, name, lan)) if name != lan else "",
                 f"{shown(ratios(found, wan, name))} times" if name not in (lan, wan) else "",
                 f"{1e3 * sum(run['iteration'] for run in runs) / len(runs):.0f} ms",
                 f"{sum(run['accuracy'] for run in runs) / len(runs):.1%}"]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def load() -> dict[str, list[dict[str, float]]]:
    """What `main` has found."""
    found: dict[str, list[dict[str, float]]] = json.loads(RESULTS.read_text())
    return found


def main() -> int:
    """Run all, write them down, and print the table."""
    found = {name: [trained(name, seed) for seed in SEEDS] for name in RUNS}
    RESULTS.write_text(json_text(found) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
