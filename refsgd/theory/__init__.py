"""Formulas for distributed SGD: predictions of time, bytes, staleness and idle time before a run.

There is one file per phenomenon.  A formula returns a `Prediction` (value, unit, kind, terms, formula,
source, assumptions) and raises `DomainError` if its assumptions do not hold.  `predict` combines them by
algorithm.  docs/bibliography.md has the works that sources and docstrings name by author and year.
"""

from refsgd.theory.predict import ALGORITHMS, predict
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting

__all__ = ["ALGORITHMS", "DomainError", "Figures", "Prediction", "Setting", "predict"]
