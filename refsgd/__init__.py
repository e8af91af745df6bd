"""refsgd: distributed SGD to learn from, to step through, and to run.

An algorithm is a few generator programs that yield effects; the same text is stepped, simulated in virtual
time, and run as real OS processes, with closed-form models next to the measurement.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.experiment.compare import Comparison, compare
from refsgd.experiment.prepare import predict
from refsgd.experiment.result import Result
from refsgd.experiment.run import replay, run
from refsgd.problems import Problem

if TYPE_CHECKING:
    from refsgd.experiment.stepper import Stepper

__all__ = ["Comparison", "Distribution", "Machine", "Problem", "Result", "Stepper", "compare", "predict",
           "replay", "run"]


def __getattr__(name: str) -> Any:
    """`Stepper` is loaded when it is first used."""
    if name == "Stepper":
        from refsgd.experiment.stepper import Stepper

        return Stepper
    raise AttributeError(f"module 'refsgd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "Stepper"})
