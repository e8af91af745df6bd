"""Parameters of which most are tested only among the slow tests, or only before a release."""

import pytest


def _mostly(mark, values, some):
    return [value if value in some else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
            for value in values]


def mostly_slow(values, *quick):
    """The same parameters; those that are not among `quick` are marked slow."""
    return _mostly(pytest.mark.slow, values, quick)


def mostly_long(values, *some):
    """The same parameters; those that are not among `some` are marked long."""
    return _mostly(pytest.mark.long, values, some)
