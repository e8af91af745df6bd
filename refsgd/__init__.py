"""refsgd: distributed SGD to learn from, to step through, and to run.

An algorithm is a few generator programs that yield effects; the same text is stepped, simulated in virtual
time, and run as real OS processes, with closed-form models beside the measurement.
"""

from typing import TYPE_CHECKING, Any

from refsgd.comparison import Comparison, compare
from refsgd.experiment import predict
from refsgd.laws import Law
from refsgd.machine import Machine
from refsgd.problems import Problem
from refsgd.result import Result
from refsgd.running import replay, run
from refsgd.version import __version__ as __version__

if TYPE_CHECKING:
    from refsgd.stepper import Stepper

__all__ = ["Comparison", "Law", "Machine", "Problem", "Result", "Stepper", "compare", "predict", "replay", "run"]


def __getattr__(name: str) -> Any:
    """`Stepper` is loaded when it is first used."""
    if name == "Stepper":
        from refsgd.stepper import Stepper

        return Stepper
    raise AttributeError(f"module 'refsgd' has no attribute {name!r}")
