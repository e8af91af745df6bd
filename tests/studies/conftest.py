"""Each study at its quick sizes, once for all tests that look at it."""

import functools

import pytest

from refsgd.studies import Lab, perform


@pytest.fixture(scope="session")
def quick():
    """A study by its name."""
    return functools.cache(lambda name: perform(name, Lab(quick=True)))
