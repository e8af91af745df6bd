"""Accuracy of every algorithm at its defaults: ``python -m benchmarks.defaults`` prints the table of
docs/defaults.md.

Digits, net tiny, 4 epochs, several seeds, in the simulator: 4 workers with identically distributed shards
(the comparison), and 8 workers with shards sorted by label (its second panel).
"""

from __future__ import annotations

import argparse

import numpy as np

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.experiment.compare import HARD
from refsgd.experiment.pipelines import staged
from refsgd.experiment.prepare import DEFAULT_BATCH, DEFAULT_EPOCHS, DEFAULT_LR, DEFAULT_MOMENTUM, options_of


def accuracies(name: str, seeds: range, **arguments: object) -> np.ndarray:
    """Final test accuracy for each seed; NaN where the run diverged."""
    found = []
    for seed in seeds:
        try:
            found.append(refsgd.run(name, seed=seed, **arguments).accuracy["test"])
        except FloatingPointError:
            found.append(float("nan"))
    return np.array(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(
        f"batch {DEFAULT_BATCH}, learning rate {DEFAULT_LR}, momentum {DEFAULT_MOMENTUM}, {DEFAULT_EPOCHS} "
        f"epochs, {len(seeds)} seeds\n")
    print("| algorithm | options | 4 workers: mean | lowest | 8 workers, by label: mean | lowest |")
    print("|---|---|---|---|---|---|")
    for name, function in CATALOGUE.items():
        options = ", ".join(f"{k}={p.default}" for k, p in options_of(function).items()) or "-"
        easy = accuracies(name, seeds, workers=4)
        hard = None if staged(function) else accuracies(name, seeds, **HARD)  # the net has seven blocks
        shown = "- | -" if hard is None else f"{hard.mean():.1%} | {hard.min():.1%}"
        print(f"| `{name}` | {options} | {easy.mean():.1%} | {easy.min():.1%} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
