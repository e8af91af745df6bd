"""The examples in docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import refsgd

MODULES = [m.name for m in pkgutil.walk_packages(refsgd.__path__, "refsgd.")
           if m.name != "refsgd.cli.__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed
