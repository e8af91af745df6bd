"""`refsgd advise` on every preset, filled with its own number of workers: what it says first, and its cost.

``python -m benchmarks.advice [PRESET ...]`` prints a line for each: workers, seconds of processor time, the
recommendation.  A preset without a gradient time gets ResNet-50 on devices of 5 TFLOPS.
"""

from __future__ import annotations

import json
import subprocess
import sys
from os import times

from refsgd.cluster.presets import PRESETS

MODEL = ["--net", "resnet50", "--batch", "32"]
MOST = 10.0  # seconds of processor time


def asked(preset: str) -> list[str]:
    """The arguments that ask for advice on a preset."""
    timed = [] if PRESETS[preset].machine.compute else ["--rate", "5TFLOPS"]
    return ["advise", "--machine", preset, *MODEL, *timed, "--json", "-"]


def main() -> None:
    """Print the table, and exit with 1 if an answer is missing or took too long."""
    failed = 0
    for preset in sys.argv[1:] or PRESETS:
        before = times()
        done = subprocess.run([sys.executable, "-m", "refsgd", *asked(preset)], capture_output=True, text=True)
        after = times()
        spent = after.children_user - before.children_user + after.children_system - before.children_system
        found = json.loads(done.stdout) if done.returncode == 0 else {"recommendation": done.stderr, "strategies": []}
        workers = max((s["workers"] for s in found["strategies"]), default=0)
        print(f"{preset:20}{workers:4} workers {spent:5.1f} s  {found['recommendation'].strip().split('. ')[0]}",
              flush=True)
        failed += done.returncode != 0 or spent > MOST
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
