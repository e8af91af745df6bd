"""refsgd: distributed SGD to learn from, to step through, and to run.

An algorithm is a few generator programs that yield effects; the same text is stepped, simulated in virtual
time, and run as real OS processes, with closed-form models next to the measurement.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from refsgd._version import __version__
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.experiment.compare import Comparison, compare
from refsgd.experiment.prepare import predict
from refsgd.experiment.result import Result
from refsgd.experiment.run import replay, run
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.display.player.stepper import Stepper
    from refsgd.display.result import player, plot
    from refsgd.experiment.race.entries import Race
    from refsgd.experiment.race.race import race

__all__ = ["Comparison", "Distribution", "Machine", "Problem", "Race", "Result", "Stepper", "__version__",
           "compare", "player", "plot", "predict", "race", "replay", "run"]

#: what not every command needs is loaded when it is first used
LATER = {"Race": "refsgd.experiment.race.entries", "race": "refsgd.experiment.race.race",
         "Stepper": "refsgd.display.player.stepper", "player": "refsgd.display.result",
         "plot": "refsgd.display.result"}


def __getattr__(name: str) -> Any:
    """What is loaded later, from its module."""
    if name in LATER:
        return getattr(import_module(LATER[name]), name)
    raise AttributeError(f"module 'refsgd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
