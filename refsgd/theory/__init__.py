"""Closed forms of distributed SGD: how long, how many bytes, how stale, how idle, before anything runs.

One file per phenomenon; every formula returns a `Prediction` (value, unit, kind, terms, formula, source,
assumptions) and raises `DomainError` where its assumptions do not hold.  `predict` puts them together by
algorithm.
"""

from refsgd.theory.predict import ALGORITHMS, predict
from refsgd.theory.prediction import FIGURES, DomainError, Figures, Prediction

__all__ = ["ALGORITHMS", "FIGURES", "DomainError", "Figures", "Prediction", "predict"]
