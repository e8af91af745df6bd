"""refsgd: distributed SGD to learn from, to step through, and to run.

An algorithm is a few generator programs that yield effects; the same text is stepped, simulated in virtual
time, and run as real OS processes, with closed-form models beside the measurement.
"""

from refsgd.experiment import Comparison, Result, compare, predict, replay, run
from refsgd.machine import Law, Machine
from refsgd.problems import Problem

__version__ = "0.1.0"
__all__ = ["Comparison", "Law", "Machine", "Problem", "Result", "compare", "predict", "replay", "run"]
