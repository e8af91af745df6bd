"""Predictions that are means of few drawn runs, for tests that ask nothing of their precision."""

from contextlib import contextmanager

import pytest

from refsgd.experiment import simulated
from refsgd.theory.phenomena import collectives, fastest, iteration, ssp


@contextmanager
def few_draws():
    """A thirtieth of the draws."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (collectives, fastest, ssp):
            patch.setattr(module, "DRAWS", 2000)
        patch.setattr(simulated, "EVENTS", 2000)
        patch.setattr(iteration, "SAMPLES", 20_000)
        yield
