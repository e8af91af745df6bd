"""Parameters of which most are tested only among the slow tests."""

import pytest


def mostly_slow(values, *quick):
    """The same parameters; those that are not among `quick` are marked slow."""
    return [value if value in quick else pytest.param(*value, marks=pytest.mark.slow)
            if isinstance(value, tuple) else pytest.param(value, marks=pytest.mark.slow) for value in values]
