"""Hypothesis profiles: `dev` while writing, `ci` (HYPOTHESIS_PROFILE=ci) with more examples."""

import functools
import gc
import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true", help="write interaction files anew instead of comparing")


def pytest_collection_finish(session):
    """Thousands of modules and collected tests need no garbage collection again: tests that collect do so in 5 ms, not in 300."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def quick():
    """A study at its quick sizes, by its name: performed once for all tests that look at it."""
    from benchmarks.studies import Lab, perform

    return functools.cache(lambda name: perform(name, Lab(quick=True)))
