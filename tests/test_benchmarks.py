"""The programs in `benchmarks/` begin, also those that are too long for any test."""

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
           if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_a_program_finds_what_it_imports(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # peers that a benchmark compares with
        if error.name.partition(".")[0] in ("benchmarks", "refsgd", "tests"):
            raise
        pytest.skip(f"{error.name} is not installed")
