"""Predictions that are means of few drawn runs, for tests that ask nothing of their precision."""

from contextlib import contextmanager

import pytest

from refsgd.theory.phenomena import iteration, queues, ring, scripts


@contextmanager
def few_draws():
    """A thirtieth of the draws."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (queues, ring):
            patch.setattr(module, "DRAWS", 2000)
        patch.setattr(queues, "PACE", 400)
        patch.setattr(scripts, "REPLICAS", 2)
        patch.setattr(iteration, "SAMPLES", 20_000)
        yield
