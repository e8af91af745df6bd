"""List algorithms, nets, data sets, machines, metrics."""

from __future__ import annotations

import argparse

from refsgd.algorithms import CATALOGUE
from refsgd.cli.options import first_line, flag
from refsgd.cli.outputs import tell
from refsgd.cluster.distributions import DISTRIBUTIONS
from refsgd.cluster.presets import PRESETS
from refsgd.experiment.arguments import options_of
from refsgd.experiment.options.architectures import ARCHITECTURES
from refsgd.trace.metrics import METRICS


def do(args: argparse.Namespace) -> None:
    """Print all names."""
    from refsgd.problems.data import NAMES as DATA
    from refsgd.problems.nn.nets import NAMES as NETS

    width = max(map(len, [*CATALOGUE, *PRESETS, *ARCHITECTURES]))
    print("algorithms")
    for name in CATALOGUE:
        own = ", ".join(flag(o) for o in options_of(CATALOGUE[name]))
        tell(f"  {name:{width}} {first_line(name)}" + (f" [{own}]" if own else ""), width + 3)
    tell("nets\n  " + ", ".join(NETS) + "; tiny:8,tanh,squared: width, tanh or sigmoid, squared, hinge, "
         "likelihood or score", 2)
    tell("nets of sizes alone\n  shapes:P, shapes:resnet50@224, shapes:transformer:LAYERS,WIDTH,HEADS,"
         "SEQUENCE,VOCABULARY, shapes:llama:... (the same), FILE.json", 2)
    print("data sets\n  " + ", ".join(DATA))
    tell("problems without images (--data)\n  quadratic[:LOW,HIGH,MODES,NOISE], integers, "
         "lasso[:samples,features,correlation], logistic[:...], bandit; none with --net shapes:P", 2)
    print("machines")
    for name, preset in PRESETS.items():
        tell(f"  {name:{width}} {preset.says}", width + 3)
    print("update architectures (refsgd run --preset NAME)")
    for name, how in ARCHITECTURES.items():
        tell(f"  {name:{width}} {how.algorithm}: {how.says}", width + 3)
    print("distributions of a compute time")
    for found in DISTRIBUTIONS:
        tell("  " + found, 4)
    print("metrics (refsgd predict ALGORITHM --sweep QUANTITY=RANGE --metric NAME)")
    for name in (name for name, metric in METRICS.items() if metric.predicted):
        unit = METRICS[name].unit
        tell(f"  {name:{width}} {METRICS[name].meaning}" + f" [{unit}]" * (unit != "1"), width + 3)
