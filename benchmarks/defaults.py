"""Accuracy of every algorithm at its defaults: ``python -m benchmarks.defaults`` prints the table of
docs/defaults.md.

Digits, net tiny, the default epochs, several seeds, in the simulator: 4 workers with identically distributed shards
(the comparison), and 8 workers with shards sorted by label (its second panel).
"""

from __future__ import annotations

import argparse

import numpy as np

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.experiment.arguments import options_of
from refsgd.experiment.compare import HARD
from refsgd.experiment.prepare import DEFAULT_EPOCHS, Training


def accuracies(name: str, seeds: range, **arguments: object) -> np.ndarray:
    """Final accuracy for each seed, on the images held back if there are any, else on the test images; NaN
    where the run diverged."""
    part = "validation" if arguments.get("validation") else "test"
    found = []
    for seed in seeds:
        try:
            found.append(refsgd.run(name, seed=seed, **arguments).accuracy[part])
        except FloatingPointError:
            found.append(float("nan"))
    return np.array(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", help="choose a rate instead: 0.1,0.15,0.2 prints the mean accuracy of each on "
                                        "a tenth of the training images, which is held back")
    given = parser.parse_args()
    seeds = range(given.seeds)
    if given.rates:
        rates = [float(rate) for rate in given.rates.split(",")]
        print("| algorithm | " + " | ".join(map(str, rates)) + " |\n|---" + "|---" * len(rates) + "|")
        for name in CATALOGUE:
            found = [accuracies(name, seeds, lr=lr, validation=0.1).mean() for lr in rates]
            print(f"| `{name}` | " + " | ".join(f"{mean:.1%}" for mean in found) + " |", flush=True)
        return
    print(
        f"batch {Training.batch}, learning rate {Training.lr}, momentum {Training.momentum}, {DEFAULT_EPOCHS} "
        f"epochs, {len(seeds)} seeds\n")
    print("| algorithm | options | 4 workers: mean | lowest | 8 workers, by label: mean | lowest |")
    print("|---|---|---|---|---|---|")
    for name, function in CATALOGUE.items():
        options = ", ".join(f"{k}={p.default}" for k, p in options_of(function).items()) or "-"
        easy = accuracies(name, seeds, workers=4)
        hard = None if facts_of(function).staged else accuracies(name, seeds, **HARD)  # the net has seven blocks
        shown = "- | -" if hard is None else f"{hard.mean():.1%} | {hard.min():.1%}"
        print(f"| `{name}` | {options} | {easy.mean():.1%} | {easy.min():.1%} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
